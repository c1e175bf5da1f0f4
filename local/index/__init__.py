"""The three index files of a segment.

`offset_index`, `time_index` and `txn_index` are the formats, `index_files` judges and rebuilds files,
`sealed_indexes` serves lookups in closed segments. Start with `offset_index`.
"""
