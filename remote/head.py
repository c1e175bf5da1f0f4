"""The head: one partition's whole truth about the remote tier, immutable, one object for each commit.

| bytes | field |
|---|---|
| line | ``tiered-head 1 <CRC32C of the body, 8 lower-case hex digits> <length of the body in bytes>\\n`` |
| body | JSON, the fields of `Head` in their order |

Written to the bucket as ``meta/head/<20-digit sequence>``, created only if absent, never changed. Anything off (a bit,
a missing or an extra byte, numbers that contradict each other) is Corrupt, never a smaller truth. A reader ignores
fields that it does not know. A head is complete: reading one needs no other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from local.crc32c import crc32c
from local.errors import Corrupt, InvalidRequest
from remote.segment import RemoteSegment, SegmentState
from remote.store import Body

FORMAT_VERSION = 1
HEAD_BYTES_MAX = 64 << 20  # a limit on everything; some 80 000 rows
LINE_BYTES_MAX = 64
_LINE = re.compile(rb"tiered-head ([0-9]{1,9}) ([0-9a-f]{8}) (0|[1-9][0-9]{0,9})\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlinkedObject:
    """An object that no row names any more and that waits for its deletion. `key` is relative to the prefix."""

    key: str
    size_bytes: int
    unlinked_ms: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillRow:
    """A page of older rows that lies beside the head. Not written yet. Offsets half open."""

    key: str
    base_offset: int
    next_offset: int
    min_timestamp_ms: int | None
    max_timestamp_ms: int | None
    segment_count: int
    size_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """See the module text. `segments` ascend and never overlap; gaps are allowed, an offset in one has no record.

    `epoch` is the writer's, raised by one with every change of writer. `commit_id` is fresh for every attempt at a
    commit and tells one's own head from another's; `parent_id` is the commit id of the head before. `properties` are
    the topic's settings when the writer last said so.
    """

    format_version: int = FORMAT_VERSION
    sequence: int
    epoch: int
    commit_id: str
    parent_id: str | None
    writer_id: str
    topic: str
    topic_id: str
    partition: int
    log_start_offset: int
    committed_ms: int
    segments: tuple[RemoteSegment, ...] = ()
    unlinked: tuple[UnlinkedObject, ...] = ()
    spills: tuple[SpillRow, ...] = ()
    cleaned_through: int | None = None
    properties: dict[str, str]

    @property
    def next_offset(self) -> int:
        """Where the next segment may begin: past the last row, never below the log start."""
        last = self.segments[-1].next_offset if self.segments else 0
        return max(last, self.log_start_offset)

    @property
    def size_bytes(self) -> int:
        return sum(row.size_bytes for row in self.segments)


def encode_head(head: Head) -> bytes:
    """The object's bytes. Raises InvalidRequest for a head that `decode_head` would refuse."""
    wrong = contradiction(head)
    if wrong:
        raise InvalidRequest(f"writing a head, {wrong}", topic=head.topic, partition=head.partition)
    body = msgspec.json.encode(head)
    if len(body) > HEAD_BYTES_MAX:
        raise InvalidRequest("writing a head, too large", size_bytes=len(body), size_bytes_max=HEAD_BYTES_MAX)
    return b"tiered-head %d %08x %d\n" % (FORMAT_VERSION, crc32c(body), len(body)) + body


def decode_head(data: Body) -> Head:
    """The inverse. Raises Corrupt for anything off."""
    line = _LINE.match(bytes(data[:LINE_BYTES_MAX]))
    if not line:
        raise Corrupt("reading a head, no such line at its start", size_bytes=len(data))
    version, expected, length = int(line[1]), int(line[2], 16), int(line[3])
    if version != FORMAT_VERSION:
        raise Corrupt("reading a head, damaged or of a newer format", version=version, known=FORMAT_VERSION)
    body = memoryview(data)[line.end() :]
    if len(body) != length:
        raise Corrupt("reading a head, its length differs", expected_bytes=length, found_bytes=len(body))
    if (found := crc32c(body)) != expected:
        raise Corrupt("reading a head, its checksum differs", expected=f"{expected:08x}", found=f"{found:08x}")
    try:
        head = msgspec.json.decode(body, type=Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt("reading a head, its body is no head", cause=str(error)) from error
    if wrong := contradiction(head):
        raise Corrupt(f"reading a head, {wrong}", topic=head.topic, partition=head.partition, sequence=head.sequence)
    return head


def contradiction(head: Head) -> str | None:
    """What in this head contradicts itself; None when it is sound."""
    if head.format_version != FORMAT_VERSION:
        return f"format_version is {head.format_version}"
    if head.sequence < 1 or head.epoch < 1 or head.log_start_offset < 0 or not head.commit_id:
        return "sequence, epoch, log_start_offset or commit_id is missing"
    reached = 0
    for row in head.segments:
        if not reached <= row.base_offset < row.next_offset:
            return f"segments overlap or run backwards at base_offset={row.base_offset} next_offset={row.next_offset}"
        if row.state is not SegmentState.COPY_FINISHED or row.size_bytes <= 0 or row.indexes_bytes <= 0:
            return f"a segment is not finished at base_offset={row.base_offset}"
        reached = row.next_offset
    return None
