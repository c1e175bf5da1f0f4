"""One segment of a log: a ``.log`` file with its indexes.

- `segment` appends and owns the files. `segment_reading` reads batches.
- `swap` replaces neighbouring segments; a crash leaves all the old or all the new ones.
"""
