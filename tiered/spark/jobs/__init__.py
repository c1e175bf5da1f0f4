"""The jobs of `tiered.jobs` in Spark tasks, and exports.

`runner` has the executor and a function for each job, `exporting` the export to Parquet.
"""
