"""Read the bucket as a Spark data source.

`source` is the entry point. `planning` and `splits` turn segments into tasks. `task` reads one split. `stream` plans
micro-batches.
"""
