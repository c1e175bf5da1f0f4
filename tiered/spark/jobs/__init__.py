"""The jobs of `tiered.jobs` in Spark tasks, and exports.

`runner` has the executor and a function for each job, `compaction` the two passes as one action, `exporting` the export
to Parquet.
"""
