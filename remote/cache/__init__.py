"""Caches of immutable bytes from the store: in memory (`chunk_cache`) and on a disk (`disk_cache`)."""
