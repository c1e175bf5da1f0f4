"""Reading the bucket as a Spark data source.

`source` is the entry point, `planning` and `splits` make tasks of segments, `task` reads one split, `stream_planning`
makes micro-batches.
"""
