"""The three index files of a segment.

- `offset_index`, `time_index` and `txn_index` define the formats. Start with `offset_index`.
- `index_building`, `index_files` and `txn_scan` build, check and replace index files.
- `sealed_indexes` serves lookups in closed segments, through a cache of maps.
"""
