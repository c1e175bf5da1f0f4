"""Jobs that change a bucket while its writers run.

Compaction, rewriting, copying, retention, garbage collection, ingest and the pipeline that combines them. Start with
`runner`: a job is plan -> units -> commit, run here or in Spark tasks (`tiered.spark.jobs.runner`).
"""
