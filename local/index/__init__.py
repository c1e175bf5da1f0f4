"""The three index files of a segment. `sealed_indexes` serves lookups in closed segments."""

from local.index.index_files import offset_index, time_index

__all__ = ["offset_index", "time_index"]
