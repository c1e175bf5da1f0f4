"""A byte by byte check of one remote segment: its indexes object, its chunks, and the caller's checks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate

from local.errors import AccessDenied, Corrupt, LogError, NotFound, describe
from local.index import offset_index
from local.verify.findings import Finding, Severity, damaged, finding
from remote.fetch.range_reader import RemotePartition
from remote.keys import full_key
from remote.segment_entry import SegmentEntry
from remote.segments.stored_segment import SECTIONS, IndexBundle
from remote.store import ObjectStore

ReadRange = Callable[[int, int], memoryview]  # bytes [start, start + length) of one segment
CheckContents = Callable[[str, SegmentEntry, IndexBundle, ReadRange], Iterable[Finding]]


def check_segment(
    store: ObjectStore, remote: RemotePartition, entry: SegmentEntry, check_contents: CheckContents
) -> list[Finding]:
    """The findings inside one segment of `store`. Raises errors that make the segment unreachable.

    `is_unread` marks unchecked data: the key (a WARNING) or an object is missing, or the indexes cannot be decoded.
    """
    where = full_key(remote.prefix, entry.data_key)
    try:
        bundle = remote.indexes(entry)
        found = list(_of_sections(remote.prefix, entry, bundle))
        return found + _of_contents(store, remote, entry, bundle, check_contents)
    except Corrupt as error:
        path = str(error.facts.get("object", where))
        return [damaged(error, path, offsets=entry.offsets, is_unread=True)]
    except NotFound:
        return [finding("object.deleted", where, offsets=entry.offsets, is_unread=True)]
    except AccessDenied as error:
        if "key_id" not in error.facts:
            raise
        return [finding("object.no-key", where, what=str(error), offsets=entry.offsets, is_unread=True)]


def unreadable(error: LogError, path: str, entry: SegmentEntry | None = None) -> Finding:
    """Return the finding for a refused object: a WARNING if a permission is missing, else CORRUPT."""
    severity = Severity.WARNING if isinstance(error, AccessDenied) else Severity.CORRUPT
    facts = {name: value for name, value in error.facts.items() if name not in ("store", "key")}
    offsets = entry.offsets if entry is not None else None
    return finding("object.unreadable", path, severity=severity, offsets=offsets, cause=describe(error.attempt, facts))


def _of_sections(prefix: str, entry: SegmentEntry, bundle: IndexBundle) -> Iterator[Finding]:
    lengths = [len(getattr(bundle, name)) for name in SECTIONS[:-1]]
    for name, start, length in zip(SECTIONS, accumulate(lengths, initial=0), lengths, strict=False):
        says = entry.indexes.get(name)
        if says is None or (says.start, says.length) != (start, length):
            yield finding(
                "segment.index-position", full_key(prefix, entry.indexes_key), offsets=entry.offsets, section=name
            )


def _of_contents(
    store: ObjectStore, remote: RemotePartition, entry: SegmentEntry, bundle: IndexBundle, check_contents: CheckContents
) -> list[Finding]:
    where = full_key(remote.prefix, entry.data_key)
    try:
        return list(check_contents(where, entry, bundle, lambda at, length: remote.read(entry, at, length)))
    except Corrupt as error:
        first = error
    found = list(_damaged_chunks(remote, entry, bundle))
    if bundle.chunks.is_as_it_is and found:
        # The raw bytes show the damaged offsets more exactly. They may end early or be unreadable.
        with suppress(LogError):
            seen = check_contents(
                where, entry, bundle, lambda at, length: memoryview(store.get_range(where, at, length))
            )
            found += [each for each in seen if each.at is not None and each.where == where]
    return found or [damaged(first, where, offsets=entry.offsets)]


def _damaged_chunks(remote: RemotePartition, entry: SegmentEntry, bundle: IndexBundle) -> Iterator[Finding]:
    table = bundle.chunks
    for number in range(len(table)):
        start, length = table.chunk_range(number)
        try:
            remote.read(entry, start, length)
        except Corrupt as error:
            stored_start, stored_length = table.stored_range(number)
            offsets = offsets_between(entry, bundle, start, start + length)
            found = damaged(error, full_key(remote.prefix, entry.data_key))
            yield replace(found, at=stored_start, length=stored_length, offsets=offsets)


def offsets_between(entry: SegmentEntry, bundle: IndexBundle, start: int, end: int) -> tuple[int, int]:
    """Return the offsets that bytes ``[start, end)`` may hold, as narrow as the offset index allows."""
    low, high = entry.base_offset, entry.next_offset
    entries = offset_index.entries(bytes(bundle.offset), entry.base_offset)
    positions = [position for _, position in entries]
    before = bisect_right(positions, start) - 2  # the batch of the entry before ends below `start`
    after = bisect_left(positions, end)
    if before >= 0:
        low = max(low, entries[before][0] + 1)
    if after < len(entries):
        high = min(high, entries[after][0])  # the batch there begins at or below its last offset
    return (low, high) if low < high else (entry.base_offset, entry.next_offset)
