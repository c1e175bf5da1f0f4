"""Location of a segment's offset index, for a named segment or for the segment with an offset."""

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
    """A path or a url, and a section of the file; None: the whole file."""

    target: str
    section: str | None = None


def index_of_segment(target: str) -> IndexPlace:
    """Return the index of a ``.log`` on disk or in a bucket; an index is its own.

    Raises InvalidRequest for a file without an index.
    """
    suffix = next((each for each in _STORED if target.endswith(each)), None)
    if suffix is not None and ("://" in target or suffix != LOG):
        return IndexPlace(target=target.removesuffix(suffix) + INDEXES_SUFFIX, section=SECTION)
    if suffix is not None:
        return IndexPlace(target=target.removesuffix(LOG) + OFFSET_INDEX)
    if target.endswith(INDEXES_SUFFIX):
        return IndexPlace(target=target, section=SECTION)
    if target.endswith(OFFSET_INDEX):
        return IndexPlace(target=target)
    raise InvalidRequest("cannot find an index, the file is not a segment", path=target)


def index_of_offset(source: PartitionSource, url: str | None, offset: int | None) -> IndexPlace:
    """Return the index of the segment with `offset` (None: the first segment).

    A local segment is preferred to a remote one in the bucket at `url`. Raises OffsetOutOfRange, Unavailable, and
    InvalidRequest for an external layout.
    """
    first, following = source.start_offset(), source.next_offset()
    wanted = first if offset is None else offset
    if not first <= wanted < following:
        raise out_of_range(source.partition, wanted, first, following)
    if source.is_local(wanted) and source.log is not None:
        bases = [each.base_offset for each in source.log.segments()]
        base = max((each for each in bases if each <= wanted), default=bases[0])
        return IndexPlace(target=join(source.log.directory, segment_file(base, OFFSET_INDEX)))
    row, _ = source.entry_at(wanted)
    if row is None or source.remote is None or url is None or not row.indexes_key.endswith(INDEXES_SUFFIX):
        raise InvalidRequest("cannot find an index, the bucket has no separate index file", partition=source.partition)
    prefix = "" if row.indexes_key.startswith("/") else source.remote.prefix
    key = f"{prefix}{row.indexes_key.removeprefix('/')}"
    return IndexPlace(target=f"{url.rstrip('/')}/{key}", section=SECTION)
