"""Which file or object has the offset index of a segment: of one that is named, or of the one that holds an offset."""

from __future__ import annotations

from dataclasses import dataclass

from local.errors import InvalidRequest
from local.names import LOG, OFFSET_INDEX, segment_file
from local.storage import join
from remote.keys import INDEXES_SUFFIX
from tiered.read.partition_source import PartitionSource, out_of_range

_STORED = (".log.zst.enc", ".log.zst", ".log.enc", ".log")
SECTION = "offset"  # of an indexes object


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlace:
    """A path or a url, and which part of it; None: all of it."""

    target: str
    section: str | None = None


def index_of_segment(target: str) -> IndexPlace:
    """Of a ``.log`` on a disk or in a bucket. An index is its own. Raises InvalidRequest for what has none."""
    suffix = next((each for each in _STORED if target.endswith(each)), None)
    if suffix is not None and ("://" in target or suffix != LOG):
        return IndexPlace(target=target.removesuffix(suffix) + INDEXES_SUFFIX, section=SECTION)
    if suffix is not None:
        return IndexPlace(target=target.removesuffix(LOG) + OFFSET_INDEX)
    if target.endswith(INDEXES_SUFFIX):
        return IndexPlace(target=target, section=SECTION)
    if target.endswith(OFFSET_INDEX):
        return IndexPlace(target=target)
    raise InvalidRequest("looking for an index, this is no segment", path=target)


def index_of_offset(source: PartitionSource, url: str | None, offset: int | None) -> IndexPlace:
    """Of the segment that holds `offset` (None: the first one), on the disk where it is there, else in the bucket at
    `url`. Raises OffsetOutOfRange, Unavailable, and InvalidRequest for a bucket of another layout."""
    first, following = source.start_offset(), source.next_offset()
    wanted = first if offset is None else offset
    if not first <= wanted < following:
        raise out_of_range(source.partition, wanted, first, following)
    if source.is_local(wanted) and source.log is not None:
        bases = [each.base_offset for each in source.log.segments()]
        base = max((each for each in bases if each <= wanted), default=bases[0])
        return IndexPlace(target=join(source.log.directory, segment_file(base, OFFSET_INDEX)))
    row, _ = source.row_at(wanted)
    if row is None or source.remote is None or url is None or not row.indexes_key.endswith(INDEXES_SUFFIX):
        raise InvalidRequest("looking for an index, the bucket has none of its own", partition=source.partition)
    prefix = "" if row.indexes_key.startswith("/") else source.remote.prefix
    key = f"{prefix}{row.indexes_key.removeprefix('/')}"
    return IndexPlace(target=f"{url.rstrip('/')}/{key}", section=SECTION)
