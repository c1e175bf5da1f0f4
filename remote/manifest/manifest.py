"""The head: one partition's whole truth about the remote tier, immutable, one object for each commit.

| bytes | field |
|---|---|
| line | ``tiered-head 1 <CRC32C of the body, 8 lower-case hex digits> <its length> <its length inflated>\\n`` |
| body | one zstd frame: JSON, the fields of `Head` in their order |

Written to the bucket as ``meta/head/<20-digit sequence>``, created only if absent, never changed. Anything off (a bit,
a missing or an extra byte, numbers that contradict each other) is Corrupt, never a smaller truth. A reader ignores
fields that it does not know. A head is complete: reading one needs no other head. Rows that are too many for it lie in
pages beside it that never change (`SpillRow`). Of an encrypted topic these bytes are sealed as a whole
(`remote.manifest.sealing`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from local.errors import Corrupt, InvalidRequest
from local.format.crc32c import crc32c
from local.log.leader_epochs import EpochRange, joined_ranges
from remote.keys import head_key
from remote.manifest.manifest_sizes import note_size
from remote.manifest.manifest_validation import contradictions
from remote.manifest.sealing import Opened, Sealer, sealed_size
from remote.manifest.view import CompactedView, view_contradiction
from remote.number_bounds import (
    INT32_MAX,
    INT64_MAX,
    ByteCount,
    ClockMs,
    Count,
    Crc32c,
    LeaderEpoch,
    ObjectBytes,
    Offset,
    PartitionNumber,
    Sequence,
    SequenceOrNone,
    StoredSize,
    TimestampMs,
    Turn,
    WriterEpoch,
)
from remote.segment_entry import RemoteSegment, SegmentState
from remote.store import Body

FORMAT_VERSION = 1
KEY_ID = "remote.encryption.key.id"  # the topic's property that names the key to encrypt with
HEAD_BYTES_MAX = 64 << 20  # a limit on everything; some 80 000 rows
LINE_BYTES_MAX = 64
ZSTD_LEVEL = 1  # level 6 saves nothing and takes seven times as long (docs/reference/benchmarks.md)
_LINE = re.compile(rb"tiered-head ([0-9]{1,9}) ([0-9a-f]{8}) ([1-9][0-9]{0,9}) ([1-9][0-9]{0,9})\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlinkedObject:
    """An object that no row names any more and that waits for its deletion. `key` is relative to the prefix.

    `unlinked_sequence` is that of the first head that lists it; the commit fills it in. Who reads by an older head may
    still need the object (`remote.gc.pins`).
    """

    key: str
    size_bytes: ObjectBytes
    unlinked_ms: ClockMs
    epoch: WriterEpoch
    unlinked_sequence: SequenceOrNone = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillRow:
    """A page of older rows that lies beside the head (`remote.manifest.manifest_page`), and what is answered without
    reading it.

    Offsets half open: the first row's base, the last one's next. `min_timestamp_ms` is over rows that know any time,
    `max_timestamp_ms` over those that know their largest. `first_stamp_ms` is what retention by time asks of the first
    row: its largest timestamp, or its commit's time. `cleaned_through` is the least of all rows, None when one was
    never cleaned. `gaps` are the offsets between its rows that no row holds; `epochs` the leader epochs of its rows,
    each with its first start. Counts and sizes (`aborted_bytes` of transaction indexes, `indexes_bytes` of the objects
    beside the segments') are sums over its rows; `page_bytes` and `page_crc32c` are the object's. `other_classes` are
    the storage classes of its rows but for the bucket's own one: name, rows, `stored_bytes` of each, by name. These
    two are None in a head that was written before they were noted. `seal_key_id` is the key by which the page is sealed
    (`remote.manifest.sealing`), None for one that is not.
    """

    key: str
    base_offset: Offset
    next_offset: Offset
    min_timestamp_ms: TimestampMs | None
    max_timestamp_ms: TimestampMs | None
    first_stamp_ms: TimestampMs
    segment_count: Count
    record_count: Count
    size_bytes: ByteCount
    stored_bytes: ByteCount
    cleaned_through: Offset | None = None
    aborted_bytes: ByteCount = 0
    gaps: tuple[tuple[Offset, Offset], ...] = ()
    epochs: tuple[tuple[LeaderEpoch, Offset], ...] = ()
    page_bytes: StoredSize
    page_crc32c: Crc32c
    indexes_bytes: ByteCount | None = None
    other_classes: tuple[tuple[str, Count, ByteCount], ...] | None = None
    seal_key_id: str | None = None

    def ranges(self) -> Iterator[tuple[int, int]]:
        """The offset ranges that its rows hold, ascending."""
        reached = self.base_offset
        for gap_start, gap_end in self.gaps:
            yield reached, gap_start
            reached = gap_end
        yield reached, self.next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNote:
    """What a job that works beside the managers has committed here, so that whoever runs it again finds it done.

    `turn` is the last one of a job that commits again and again (the batch id of a stream; below 0 for a job in rounds
    that is not over, see `tiered.jobs.bucket_compaction`), 0 for all others.
    """

    job_id: str
    turn: Turn = 0
    committed_ms: ClockMs = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlinkedPage:
    """A page that left the index whole: it, and the objects of all its rows, wait for their deletion.

    The page goes last; is it gone, nothing of it is left. Other fields as of `UnlinkedObject`.
    """

    spill: SpillRow
    unlinked_ms: ClockMs
    epoch: WriterEpoch
    unlinked_sequence: SequenceOrNone = 0

    @property
    def size_bytes(self) -> int:
        """Of all that goes with it; without its rows' indexes where the head was written before it noted these."""
        return self.spill.stored_bytes + (self.spill.indexes_bytes or 0) + self.spill.page_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """See the module text. `segments` ascend and never overlap; gaps are allowed, an offset in one has no record.

    They are the newest rows only: `spills` stand for all older ones, ascending, every one below the first segment. So
    whoever wants "all rows" asks `remote.manifest.manifest_lookup`; the sums below are over both.

    `epoch` is the writer's, raised by one with every change of writer. `commit_id` is fresh for every attempt at a
    commit and tells one's own head from another's; `parent_id` is the commit id of the head before. `properties` are
    the topic's settings when the writer last said so. `views` are the compacted views beside the log, by name.
    `boundary_number` and `void_upto` are the newest boundary of collected heads that the writer knew
    (`remote.manifest.manifest_chain`), 0 for none.
    `tiered_upto` is one above the highest offset that was in the bucket when rows last left it, 0 before that; it never
    goes back. Whoever asks how far the bucket ever reached asks `highest_next_offset`.
    `expired_epochs` are the leader epochs of offsets that were in the bucket and left it, ascending. A log start that
    rose over records which were never copied leaves none.
    `appender_id` is the last writer that keeps a log of its own, which may hold records that no row has; jobs commit
    without one, so `writer_id` does not tell. None in a head of an older version.
    `jobs` are the last few jobs that committed something, the newest last (`remote.manifest.job_changes`).
    `given_up`: all rows there are count for nothing, for the tier was switched off (`tiered.partition.tier_disable`);
    the disk alone has what the log retains. They leave as expired ones do, none comes until the last has left, then it
    is false. `deleted_ms` is when the topic was deleted, None for a living one: nothing is readable any more, nobody
    becomes its writer but to remove it, and what is missing then is not damage. Nothing takes it back. `seal_key_id` is
    the key of the ring by which this head is sealed (`remote.manifest.sealing`), and its successors, until another one
    is named; None for one that is not sealed. No successor of a sealed head is unsealed.
    """

    format_version: int = FORMAT_VERSION
    sequence: Sequence
    epoch: WriterEpoch
    commit_id: str
    parent_id: str | None
    writer_id: str
    topic: str
    topic_id: str
    partition: PartitionNumber
    log_start_offset: Offset
    committed_ms: ClockMs
    segments: tuple[RemoteSegment, ...] = ()
    unlinked: tuple[UnlinkedObject, ...] = ()
    unlinked_pages: tuple[UnlinkedPage, ...] = ()
    spills: tuple[SpillRow, ...] = ()
    views: tuple[CompactedView, ...] = ()
    boundary_number: SequenceOrNone = 0
    void_upto: SequenceOrNone = 0
    deleted_ms: ClockMs | None = None
    tiered_upto: Offset = 0
    given_up: bool = False
    expired_epochs: tuple[EpochRange, ...] = ()
    appender_id: str | None = None
    jobs: tuple[JobNote, ...] = ()
    seal_key_id: str | None = None
    properties: dict[str, str]

    @property
    def next_offset(self) -> int:
        """Where the next segment may begin: past the last row that counts, never below the log start."""
        return self.log_start_offset if self.given_up else max(self.rows_next_offset, self.log_start_offset)

    @property
    def readable_from(self) -> int:
        """Rows wholly below it are for nobody: they are below the log start, or were given up."""
        return max(self.rows_next_offset, self.log_start_offset) if self.given_up else self.log_start_offset

    @property
    def taken_upto(self) -> int:
        """One above the highest offset that is known here to have been given; no log may give it again."""
        return max(self.next_offset, self.highest_next_offset)

    @property
    def rows_next_offset(self) -> int:
        """One above the highest offset of a row; 0 without rows."""
        last = self.segments[-1:] or self.spills[-1:]
        return last[0].next_offset if last else 0

    @property
    def highest_next_offset(self) -> int:
        """One above the highest offset that was ever in the bucket; 0 while none was. Expiry does not lower it."""
        return max(self.tiered_upto, self.rows_next_offset)

    @property
    def parts(self) -> tuple[SpillRow | RemoteSegment, ...]:
        """All rows, the oldest as pages."""
        return (*self.spills, *self.segments)

    @property
    def has_rows(self) -> bool:
        return bool(self.segments or self.spills)

    @property
    def segment_count(self) -> int:
        return len(self.segments) + sum(spill.segment_count for spill in self.spills)

    @property
    def record_count(self) -> int:
        return sum(each.record_count for each in self.parts)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.parts)

    @property
    def waiting_bytes(self) -> int:
        """What left the index and waits for its deletion."""
        return sum(each.size_bytes for each in self.unlinked) + sum(each.size_bytes for each in self.unlinked_pages)

    @property
    def view_rows(self) -> Iterator[RemoteSegment]:
        """The rows of all compacted views: objects of their own, beside those of the log."""
        return (row for view in self.views for row in view.rows)

    @property
    def epoch_ranges(self) -> list[EpochRange]:
        """The offsets of all rows by leader epoch, ascending; neighbouring ranges of one epoch are one."""
        return joined_ranges(_epoch_ranges(self.parts))

    @property
    def lineage(self) -> Iterator[tuple[int, int]]:
        """The leader epochs of all rows, (epoch, start offset), ascending by offset; an epoch may come repeatedly."""
        return (entry for each in self.parts for entry in each.epochs)


_NO_SEALER = Sealer("")
# Made at import: made in two threads at once it ends the process (msgspec 0.22).
_DECODER = msgspec.json.Decoder(Head)


def encode_head(head: Head, sealer: Sealer | None = None) -> bytes:
    """The object's bytes, sealed where the head says so; the same whenever they are made.

    Raises InvalidRequest for a head that `decode_head` would refuse, AccessDenied without the key to seal with.
    """
    _check_readable(head)
    return encode_again(head, sealer)


def encode_again(head: Head, sealer: Sealer | None = None) -> bytes:
    """The object's bytes of a head that was read or written before, and so was validated then. Raises as `seal`."""
    return (sealer or _NO_SEALER).seal(head_key(head.sequence), _unsealed(head), head.seal_key_id)


def encoded_size(head: Head) -> int:
    """How many bytes `encode_head` gives; needs no key."""
    return sealed_size(head_key(head.sequence), len(_unsealed(head)), head.seal_key_id)


def _unsealed(head: Head) -> bytes:
    text = msgspec.json.encode(head)
    if len(text) > HEAD_BYTES_MAX:
        raise InvalidRequest("writing a head, too large", size_bytes=len(text), size_bytes_max=HEAD_BYTES_MAX)
    return encode_line(text)


def _check_readable(head: Head) -> None:
    """Raises InvalidRequest for a head that readers would refuse."""
    wrong = contradiction(head)
    if wrong:
        raise InvalidRequest(f"writing a head, {wrong}", topic=head.topic, partition=head.partition)
    try:
        _check(_DECODER.decode(msgspec.json.encode(head)), None)  # the bounds are the decoder's
    except (msgspec.DecodeError, Corrupt) as error:
        facts = {"topic": head.topic, "partition": head.partition, "cause": str(error)}
        raise InvalidRequest("writing a head, readers would refuse it", **facts) from error


def encode_line(text: bytes) -> bytes:
    """The object's bytes around a head's JSON."""
    from local.format.compression import Codec, compress  # heavy, and whoever only decides needs none of it

    body = compress(Codec.ZSTD, text, ZSTD_LEVEL)
    return b"tiered-head %d %08x %d %d\n" % (FORMAT_VERSION, crc32c(body), len(body), len(text)) + body


def decode_line(data: Body) -> bytes:
    """The inverse: a head's JSON. Raises Corrupt for anything off."""
    from local.format.compression import Codec, decompress

    line = _LINE.match(bytes(data[:LINE_BYTES_MAX]))
    if not line:
        raise Corrupt("reading a head, no such line at its start", size_bytes=len(data))
    version, expected, length, inflated = int(line[1]), int(line[2], 16), int(line[3]), int(line[4])
    if version != FORMAT_VERSION or inflated > HEAD_BYTES_MAX:
        facts = {"version": version, "known": FORMAT_VERSION, "size_bytes": inflated}
        raise Corrupt("reading a head, damaged or of a newer format", **facts)
    body = memoryview(data)[line.end() :]
    if len(body) != length:
        raise Corrupt("reading a head, its length differs", expected_bytes=length, found_bytes=len(body))
    if (found := crc32c(body)) != expected:
        raise Corrupt("reading a head, its checksum differs", expected=f"{expected:08x}", found=f"{found:08x}")
    text = bytes(decompress(Codec.ZSTD, body, inflated))
    if len(text) != inflated:
        raise Corrupt("reading a head, it inflates to another length", expected_bytes=inflated, found_bytes=len(text))
    return text


def decode_head(data: Body, prefix: str | None = None, *, sealer: Sealer | None = None) -> Head:
    """The inverse, validated whole (`remote.manifest.manifest_validation`). `prefix` is where the object lies, None if
    unknown.

    Raises Corrupt for anything off, with the place in the head, and for a missing seal; AccessDenied without the key of
    a seal.
    """
    seal = (sealer or _NO_SEALER).open(data)
    text = decode_line(seal.body)
    try:
        head = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt("reading a head, its body is no head", cause=str(error)) from error
    if wrong := contradiction(head):
        raise Corrupt(f"reading a head, {wrong}", topic=head.topic, partition=head.partition, sequence=head.sequence)
    if wrong := _seal_contradiction(head, seal, sealer):
        raise Corrupt(f"reading a head, {wrong}", topic=head.topic, partition=head.partition, sequence=head.sequence)
    _check(head, prefix)
    note_size(head, len(data))
    return head


def lacks_seal(head: Head) -> bool:
    """Whether an encrypted topic's head is not sealed: a version before wrote it, or the topic was plain before."""
    if head.seal_key_id is not None:
        return False
    return bool(head.properties.get(KEY_ID)) or any(row.key_id for row in (*head.segments, *head.view_rows))


def check_says_something(head: Head) -> None:
    """Raises Corrupt for a head that lacks its seal and names no segment: a reader could not tell that it was forged.

    Such a head with segments is served with a warning: their bytes are authenticated.
    """
    if lacks_seal(head) and not head.has_rows:
        facts = {"topic": head.topic, "partition": head.partition, "sequence": head.sequence}
        wrong = "the manifest of an encrypted topic is not sealed and names no segment"
        raise Corrupt(f"reading a head, {wrong}: forged, or `tiered rotate-keys` is due", **facts)


def _check(head: Head, prefix: str | None) -> None:
    """Raises Corrupt for the first contradiction of `remote.manifest.manifest_validation`."""
    found = next(contradictions(head, prefix), None)
    if found is not None:
        facts = {"topic": head.topic, "partition": head.partition, "sequence": head.sequence}
        raise Corrupt(f"reading a head, {found.what}", **facts, **found.facts())


def _seal_contradiction(head: Head, seal: Opened, sealer: Sealer | None) -> str | None:
    if seal.key_id is None and head.seal_key_id is not None:
        return "it says that it is sealed, and is not: forged"
    if seal.key_id is None:
        is_refused = sealer is not None and sealer.is_required
        return (
            "it is not sealed, and the key ring requires that: forged, or `tiered rotate-keys` is due"
            if is_refused
            else None
        )
    if (seal.key_id, seal.key) != (head.seal_key_id, head_key(head.sequence)):
        return f"it says another seal, key_id={head.seal_key_id}"
    return None


def contradiction(head: Head) -> str | None:
    """What in this head contradicts itself; None when it is sound."""
    if head.format_version != FORMAT_VERSION:
        return f"format_version is {head.format_version}"
    if head.sequence < 1 or head.epoch < 1 or min(head.log_start_offset, head.tiered_upto) < 0 or not head.commit_id:
        return "sequence, epoch, log_start_offset, tiered_upto or commit_id is missing"
    reached = 0
    for spill in head.spills:
        if not reached <= spill.base_offset < spill.next_offset or spill.segment_count < 1 or spill.page_bytes < 1:
            return f"spills overlap or run backwards at base_offset={spill.base_offset}"
        reached = spill.next_offset
    for row in head.segments:
        if not reached <= row.base_offset < row.next_offset:
            return f"segments overlap or run backwards at base_offset={row.base_offset} next_offset={row.next_offset}"
        if row.state is not SegmentState.COPY_FINISHED or row.size_bytes <= 0 or row.indexes_bytes <= 0:
            return f"a segment is not finished at base_offset={row.base_offset}"
        reached = row.next_offset
    if (wrong := _expired_contradiction(head.expired_epochs)) is not None:
        return wrong
    cleaned = max((each.cleaned_through or 0 for each in head.parts), default=0)
    if cleaned > head.next_offset and not head.given_up:
        return f"a row was cleaned for the sake of records that no row holds, cleaned_through={cleaned}"
    return view_contradiction(head.views, upto_offset=head.next_offset)


def _expired_contradiction(ranges: tuple[EpochRange, ...]) -> str | None:
    reached = 0
    for epoch, base_offset, next_offset in ranges:
        is_epoch = epoch is None or -1 <= epoch <= INT32_MAX
        if not reached <= base_offset < next_offset <= INT64_MAX or not is_epoch:
            return f"expired_epochs overlap, run backwards or leave their bounds at base_offset={base_offset}"
        reached = next_offset
    return None


def _epoch_ranges(parts: Iterable[SpillRow | RemoteSegment]) -> Iterator[EpochRange]:
    epoch: int | None = None  # a row that names none continues the one before it
    for part in parts:
        starts = list(part.epochs)
        held = part.ranges() if isinstance(part, SpillRow) else [(part.base_offset, part.next_offset)]
        for at, next_offset in held:
            while starts and starts[0][1] < next_offset:
                following, start = starts.pop(0)
                if start > at:
                    yield EpochRange(epoch, at, start)
                    at = start
                epoch = following
            yield EpochRange(epoch, at, next_offset)
