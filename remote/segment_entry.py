"""A segment in the object store: its entry in the manifest and its states.

States and codes are KIP-405's. Readers and retention see only COPY_FINISHED.

| state | stored in |
|---|---|
| COPY_STARTED | the writer's memory; an upload without a commit becomes an orphan (`remote.manifest.commit_protocol`) |
| COPY_FINISHED | manifests, as entries |
| DELETE_STARTED | manifests, as pending deletes |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from msgspec import Meta

# Bounds of the numbers in manifests and pages. The decoder rejects a number outside them and names its place, such as
# ``$.segments[3].base_offset``. Numbers of the log have Kafka's widths. A writer epoch begins above a leader epoch and
# becomes one at a takeover, so it is an int32 too.
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT32_MAX = 2**31 - 1
OBJECT_BYTES_MAX = 5 << 40  # the largest object of S3; no other store here has a larger one

Offset = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]
ByteCount = Annotated[int, Meta(ge=0, le=INT64_MAX)]  # a sum over any number of objects
ObjectBytes = Annotated[int, Meta(ge=0, le=OBJECT_BYTES_MAX)]
StoredSize = Annotated[int, Meta(ge=1, le=OBJECT_BYTES_MAX)]  # an object is never empty
Crc32c = Annotated[int, Meta(ge=0, le=2**32 - 1)]
LeaderEpoch = Annotated[int, Meta(ge=-1, le=INT32_MAX)]  # -1: a batch without one, as Kafka writes it
WriterEpoch = Annotated[int, Meta(ge=1, le=INT32_MAX)]
Sequence = Annotated[int, Meta(ge=1, le=INT64_MAX)]
SequenceOrNone = Annotated[int, Meta(ge=0, le=INT64_MAX)]  # 0: none yet
PartitionNumber = Annotated[int, Meta(ge=0, le=INT32_MAX)]
TimestampMs = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]  # of a record: any value its producer wrote
ClockMs = Annotated[int, Meta(ge=0, le=INT64_MAX)]  # of a clock
Turn = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]

PART_BYTES = 8 << 20  # a large segment is uploaded in parts of a multiple of this size
PARTS_WANTED = 24  # of a segment whose parts are read from its file while they are sent, if that is at least 192 MiB
PARTS_MAX = 10_000  # S3's limit on the parts of one object
REDACTION = "redact-"  # start of the id of a job that erases records (`tiered.jobs.redacting`)
UNKNOWN_MAKER = f"{REDACTION}unknown"  # `made_by` of a rebuilt entry: its objects do not name the job, so it may be one


class SegmentState(IntEnum):
    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRange:
    start: ObjectBytes
    length: ObjectBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEntry:
    """A segment entry. Offsets half open; sizes in bytes; timestamps in ms.

    `cleaned_through` is the checkpoint at upload time, or a later one at which the segment was unchanged: every record
    was compared with all newer records below it. It is never above the manifest's `next_offset`. Only for a copy
    (`made_by` None) is it certain that later local cleanings removed records and changed nothing else.
    """

    ulid: str
    base_offset: Offset
    next_offset: Offset  # the following segment's base at upload time, never last record + 1
    size_bytes: StoredSize
    stored_bytes: StoredSize
    record_count: Count
    max_timestamp_ms: TimestampMs | None
    min_timestamp_ms: TimestampMs | None
    # pairs (leader epoch, start offset), ascending, the first at `base_offset`
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]
    data_crc32c: Crc32c  # of the stored data object
    data_key: str  # relative to the partition's prefix, as `indexes_key`
    indexes_key: str
    indexes_bytes: StoredSize
    indexes: dict[str, IndexRange]
    codec: str = "none"  # compression of the object's chunks
    storage_class: str | None = None
    cleaned_through: Offset | None = None  # the cleaner's checkpoint, None = never cleaned; see above
    committed_ms: ClockMs = 0
    segment_crc32c: Crc32c | None = None  # of the segment in the object; None: the object is the segment itself
    key_id: str | None = None  # the wrapping key; None without encryption
    wrapped_key: str | None = None  # the data key of the chunks
    # the job that wrote the objects as a co-writer, or `UNKNOWN_MAKER`; None: a copy of a segment
    made_by: str | None = None
    state: SegmentState = SegmentState.COPY_FINISHED

    @property
    def content_crc32c(self) -> int:
        """CRC32C of the segment's own bytes, independent of the object encoding."""
        return self.data_crc32c if self.segment_crc32c is None else self.segment_crc32c

    def is_named(self, base_offset: int, last_offset: int, ulid: str) -> bool:
        """Whether these are the fields of the object's name. A job's entry may reach further."""
        if (base_offset, ulid) != (self.base_offset, self.ulid):
            return False
        is_end = last_offset + 1 == self.next_offset
        return is_end or (self.made_by is not None and last_offset < self.next_offset)

    @property
    def offsets(self) -> tuple[int, int]:
        return self.base_offset, self.next_offset

    @property
    def is_redacted(self) -> bool:
        """Whether a job erased records here, or may have. A copy of the segment on a disk may still have them."""
        return self.made_by is not None and self.made_by.startswith(REDACTION)

    def holds(self, offset: int) -> bool:
        return self.base_offset <= offset < self.next_offset

    @property
    def aborted_bytes(self) -> int:
        """Size of the transaction index; 0 without abort markers (KIP-405's ``txnIndexEmpty``)."""
        return self.indexes["txn"].length if "txn" in self.indexes else 0


def part_step(size_bytes: int, part_bytes: int | None = PART_BYTES) -> int:
    """Return the size of every part but the last of a multipart upload: a multiple of `part_bytes`.

    None is for parts that no memory holds (`remote.store.UploadSource`): they grow with the object.
    """
    if part_bytes is None:
        return part_step(size_bytes, PART_BYTES * max(1, -(-size_bytes // (PART_BYTES * PARTS_WANTED))))
    return part_bytes * max(1, -(-size_bytes // (part_bytes * PARTS_MAX)))
