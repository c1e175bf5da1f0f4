"""A segment in the object store: its row in the index and its life.

States and codes are KIP-405's. Only COPY_FINISHED is visible to readers. Rows of the other states are never counted
by retention. In this layout COPY_STARTED lives in the writer's memory alone (an upload that never commits is an
orphan of an older epoch, see `remote.manifest.commit_protocol`), so heads hold COPY_FINISHED rows and, as unlinked
objects, what is in DELETE_STARTED.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from local.errors import InvalidRequest
from remote.number_bounds import ClockMs, Count, Crc32c, LeaderEpoch, ObjectBytes, Offset, StoredSize, TimestampMs

PART_BYTES = 8 << 20  # a segment goes up in parts whose size is a multiple of this
PARTS_MAX = 10_000  # S3's limit on the parts of one object


class SegmentState(IntEnum):
    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


NEXT_STATES: dict[SegmentState, frozenset[SegmentState]] = {
    SegmentState.COPY_STARTED: frozenset({SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED}),
    SegmentState.COPY_FINISHED: frozenset({SegmentState.DELETE_STARTED}),
    SegmentState.DELETE_STARTED: frozenset({SegmentState.DELETE_FINISHED}),
    SegmentState.DELETE_FINISHED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRange:
    """Where one index lies inside the ``.indexes`` object: bytes ``[start, start + length)``."""

    start: ObjectBytes
    length: ObjectBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment:
    """One row of the remote-log metadata index. Offsets half open; sizes in bytes; timestamps in ms.

    `next_offset` is the following segment's base at upload time, never last record + 1. `epochs` are pairs
    (leader epoch, start offset), ascending, the first starting at `base_offset`. `cleaned_through` is the cleaner's
    checkpoint at upload time, or at a later time that left the segment as it was: every record here was compared with
    all newer ones below it; None = never cleaned. It never lies above the head's `next_offset`: a bucket that lacks
    older records holds the newer ones. `data_crc32c` covers the stored data object, `segment_crc32c` the segment in it
    (None: the object is the segment itself). `data_key`/`indexes_key` are relative to the partition's prefix. `codec`
    is how the object's chunks are compressed; `key_id` names the key that wrapped `wrapped_key`, the data key under
    which they are encrypted, None where they are not (`remote.segments.encryption`). `made_by` names the job that wrote
    these objects beside the managers (`remote.manifest.co_writer`), None for the copy of a segment of a disk: only of
    such a copy is it known that the segment's later cleanings took from it and changed nothing else.
    """

    ulid: str
    base_offset: Offset
    next_offset: Offset
    size_bytes: StoredSize
    stored_bytes: StoredSize
    record_count: Count
    max_timestamp_ms: TimestampMs | None
    min_timestamp_ms: TimestampMs | None
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]
    data_crc32c: Crc32c
    data_key: str
    indexes_key: str
    indexes_bytes: StoredSize
    indexes: dict[str, IndexRange]
    codec: str = "none"
    storage_class: str | None = None
    cleaned_through: Offset | None = None
    committed_ms: ClockMs = 0
    segment_crc32c: Crc32c | None = None
    key_id: str | None = None
    wrapped_key: str | None = None
    made_by: str | None = None
    state: SegmentState = SegmentState.COPY_FINISHED

    @property
    def content_crc32c(self) -> int:
        """CRC32C of the segment's own bytes, however they are stored."""
        return self.data_crc32c if self.segment_crc32c is None else self.segment_crc32c

    def is_named(self, base_offset: int, last_offset: int, ulid: str) -> bool:
        """Whether an object's name says these. A job learns only at its commit where the next row begins, after its
        objects have their names: its rows may reach further than they say."""
        if (base_offset, ulid) != (self.base_offset, self.ulid):
            return False
        is_end = last_offset + 1 == self.next_offset
        return is_end or (self.made_by is not None and last_offset < self.next_offset)

    def holds(self, offset: int) -> bool:
        return self.base_offset <= offset < self.next_offset

    @property
    def aborted_bytes(self) -> int:
        """The size of its transaction index; 0 when no abort marker lies in it (KIP-405's ``txnIndexEmpty``)."""
        return self.indexes["txn"].length if "txn" in self.indexes else 0

    def to(self, state: SegmentState) -> RemoteSegment:
        """This row in a later state; the same state again is no change. Raises InvalidRequest otherwise."""
        if state is self.state:
            return self
        if state not in NEXT_STATES[self.state]:
            raise InvalidRequest(
                "changing a remote segment's state", segment=self.data_key, now=self.state.name, to=state.name
            )
        return replace(self, state=state)


def part_step(size_bytes: int, part_bytes: int = PART_BYTES) -> int:
    """The size of every part but the last of an object that goes up in parts: `part_bytes` or a multiple of it."""
    return part_bytes * max(1, -(-size_bytes // (part_bytes * PARTS_MAX)))
