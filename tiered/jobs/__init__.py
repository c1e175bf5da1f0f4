"""Jobs that change a bucket while its writers run.

Compaction, rewriting, copying, retention, garbage collection, ingest and the pipeline that combines them. Spark runs
the same jobs in tasks (`tiered.spark.jobs`).
"""
