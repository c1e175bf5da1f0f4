"""The three index files of a segment.

- `index_files` defines, builds, checks and replaces both sparse indexes, `txn_index` the transaction index.
- `sealed_indexes` serves lookups in closed segments, through a cache of maps.
"""

from local.index.index_files import offset_index, time_index

__all__ = ["offset_index", "time_index"]
