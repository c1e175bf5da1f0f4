"""The three index files of a segment.

- `sparse_index` and `txn_index` define the formats. Start with `sparse_index`.
- `index_files` builds, checks and replaces the files of both sparse indexes.
- `sealed_indexes` serves lookups in closed segments, through a cache of maps.
"""

from local.index.sparse_index import offset_index, time_index

__all__ = ["offset_index", "time_index"]
