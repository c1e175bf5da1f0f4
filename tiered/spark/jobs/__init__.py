"""The jobs of `tiered.jobs` in Spark tasks, and exports to Parquet."""
