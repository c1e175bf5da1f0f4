"""One segment of a log: a ``.log`` file with its indexes.

`segment` appends, `segment_reading` reads, `time_search` finds records by time, `swap` replaces neighbouring segments
so that a crash leaves all old or all new ones.
"""
