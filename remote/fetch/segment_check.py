"""One tiered segment looked at byte by byte: its indexes object, its chunks, and whatever the caller looks for in them.

The unit of a deep scrub: a row and a store are all that it needs, and it may run anywhere, any number of times. Nothing
is written. What differs is a finding that names the object, the stored range and the offsets that it may hold; of a
damaged object that is the segment itself the caller's look goes on over the raw bytes, for whoever knows batches can
say more exactly which.

Memory: one range of the segment, and its indexes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate

from local.errors import AccessDenied, Corrupt, LogError, NotFound, describe
from local.index import offset_index
from local.verify.findings import Finding, Severity, damaged
from remote.fetch.range_reader import RANGE_BYTES, RemotePartition
from remote.keys import full_key
from remote.segment_entry import RemoteSegment
from remote.segments.index_bundle import SECTIONS, IndexBundle
from remote.store import ObjectStore

ReadRange = Callable[[int, int], memoryview]  # bytes [start, start + length) of one segment
LookInside = Callable[[str, RemoteSegment, IndexBundle, ReadRange], Iterable[Finding]]


def only_read(path: str, row: RemoteSegment, bundle: IndexBundle, read: ReadRange) -> Iterable[Finding]:
    """Nothing is looked for: every byte is read, so that every chunk meets its CRC."""
    for at in range(0, row.size_bytes, RANGE_BYTES):
        read(at, min(RANGE_BYTES, row.size_bytes - at))
    return ()


def check_segment(
    store: ObjectStore, remote: RemotePartition, row: RemoteSegment, look_inside: LookInside = only_read
) -> list[Finding]:
    """What is wrong inside one segment of `store`. Raises what keeps it from being reached, a missing key aside.

    A row whose key is not in the ring is a WARNING. Its finding is unread, as is that of a segment whose objects are
    missing or whose indexes cannot be decoded: nothing is known of the data then.
    """
    where = full_key(remote.prefix, row.data_key)
    try:
        bundle = remote.indexes(row)
        found = list(_of_sections(remote.prefix, row, bundle))
        return found + _of_contents(store, remote, row, bundle, look_inside)
    except Corrupt as error:
        path = str(error.facts.get("object", where))
        return [replace(damaged(error, path), offsets=(row.base_offset, row.next_offset), is_unread=True)]
    except NotFound:
        return [replace(wrong(where, "an object was deleted while it was read", row), is_unread=True)]
    except AccessDenied as error:
        if "key_id" not in error.facts:
            raise
        return [replace(wrong(where, str(error), row), severity=Severity.WARNING, is_unread=True)]


def wrong(path: str, what: str, row: RemoteSegment | None = None) -> Finding:
    """Damage that concerns all of a row's offsets."""
    offsets = (row.base_offset, row.next_offset) if row is not None else None
    return Finding(severity=Severity.CORRUPT, path=path, what=what, offsets=offsets)


def unreadable(error: LogError, path: str, row: RemoteSegment | None = None) -> Finding:
    """An object that the store refuses while it serves others: a WARNING where a permission is missing."""
    severity = Severity.WARNING if isinstance(error, AccessDenied) else Severity.CORRUPT
    facts = {name: value for name, value in error.facts.items() if name not in ("store", "key")}
    return replace(wrong(path, f"could not be read, {describe(error.attempt, facts)}", row), severity=severity)


def _of_sections(prefix: str, row: RemoteSegment, bundle: IndexBundle) -> Iterator[Finding]:
    """The row says where each index lies in its object."""
    lengths = [len(getattr(bundle, name)) for name in SECTIONS[:-1]]
    for name, start, length in zip(SECTIONS, accumulate(lengths, initial=0), lengths, strict=False):
        says = row.indexes.get(name)
        if says is None or (says.start, says.length) != (start, length):
            yield wrong(
                full_key(prefix, row.indexes_key), f"the row says another place of an index: section={name}", row
            )


def _of_contents(
    store: ObjectStore, remote: RemotePartition, row: RemoteSegment, bundle: IndexBundle, look_inside: LookInside
) -> list[Finding]:
    where = full_key(remote.prefix, row.data_key)
    try:
        return list(look_inside(where, row, bundle, lambda at, length: remote.read(row, at, length)))
    except Corrupt as error:
        first = error
    found = list(_damaged_chunks(remote, row, bundle))
    if bundle.chunks.is_as_it_is and found:
        with suppress(LogError):  # the raw bytes may end early, or make no sense at all
            seen = look_inside(where, row, bundle, lambda at, length: memoryview(store.get_range(where, at, length)))
            found += [each for each in seen if each.at is not None and each.path == where]
    return found or [replace(damaged(first, where), offsets=(row.base_offset, row.next_offset))]


def _damaged_chunks(remote: RemotePartition, row: RemoteSegment, bundle: IndexBundle) -> Iterator[Finding]:
    """Each chunk for itself: the stored range of those that are wrong, and the offsets that they may hold."""
    table = bundle.chunks
    for number in range(len(table)):
        start, length = table.chunk_range(number)
        try:
            remote.read(row, start, length)
        except Corrupt as error:
            stored_start, stored_length = table.stored_range(number)
            offsets = offsets_between(row, bundle, start, start + length)
            found = damaged(error, full_key(remote.prefix, row.data_key))
            yield replace(found, at=stored_start, length=stored_length, offsets=offsets)


def offsets_between(row: RemoteSegment, bundle: IndexBundle, start: int, end: int) -> tuple[int, int]:
    """The offsets that bytes ``[start, end)`` of a segment may hold, as narrow as its offset index tells."""
    low, high = row.base_offset, row.next_offset
    entries = offset_index.entries(bytes(bundle.offset), row.base_offset)
    positions = [position for _, position in entries]
    before = bisect_right(positions, start) - 2  # the batch of the entry before ends below ours
    after = bisect_left(positions, end)
    if before >= 0:
        low = max(low, entries[before][0] + 1)
    if after < len(entries):
        high = min(high, entries[after][0])  # the batch there begins at or below its last offset
    return (low, high) if low < high else (row.base_offset, row.next_offset)
