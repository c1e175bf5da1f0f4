"""Read the bucket as a Spark data source; `source` is the entry point."""
