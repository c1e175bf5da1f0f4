"""Reads of remote segments.

| module | task |
|---|---|
| `range_reader` | reads verified ranges |
| `read_ahead` | fetches the bytes that a stream will read next |
| `chunk_cache`, `disk_cache` | store chunks in memory and on disk |
"""
