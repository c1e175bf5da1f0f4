"""Reads of remote segments.

`range_reader` reads verified ranges, `read_ahead` fetches what comes next, `chunk_cache` and `disk_cache` keep chunks
in memory and on disk.
"""
