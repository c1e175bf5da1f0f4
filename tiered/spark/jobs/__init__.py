"""The jobs of `tiered.jobs` in Spark tasks, and exports.

Each module runs one job: compaction, rewriting, copying, garbage collection, scrubbing, exports. `task_batches` runs
work with effects as tasks.
"""
