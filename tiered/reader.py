"""One stream over both tiers: whole batches, columns or records from any retained offset.

A reader advances by a batch's last offset + 1 and by a remote row's next offset, never by what records it saw, so gaps
that compaction left are crossed without a stall. Where an offset is on both tiers the local one answers, and the store
is not touched. When the local tier drops a segment under a reader, or the remote tier expires one, the reader looks at
the newest head once and goes on or says which offsets remain.

Offsets below the local tier are passed over only where a head says that nothing is there. When none was ever seen (the
bucket was out of reach so far), it is asked for first, and the answer may be Unavailable.

A stream ends at the log end as it was when the stream began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from local import kernels
from local.batch import read_header
from local.columns import Columns
from local.errors import Corrupt, InvalidRequest, LogError, NotFound, OffsetOutOfRange
from local.isolation import Isolation
from local.log import Log
from local.names import TopicPartition
from local.record import StoredRecord
from remote.head import Head
from remote.metadata_index import MetadataIndex
from remote.metadata_log import MetadataLog
from remote.range_reader import RemotePartition
from remote.segment import RemoteSegment

T = TypeVar("T")

FETCH_BYTES = 1 << 20
REMOTE_FETCH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """The tiers of one partition; either may be missing."""

    partition: TopicPartition
    log: Log | None
    remote: RemotePartition | None = None
    metadata: MetadataLog | None = None

    def known_head(self) -> Head | None:
        """The newest head seen so far; no request is sent."""
        return self.metadata.cached if self.metadata is not None else None

    def head(self) -> Head | None:
        """As `known_head`, asked for when none was ever seen. None: nothing is tiered. Raises Unavailable."""
        return self.known_head() or (self.metadata.load() if self.metadata is not None else None)

    def head_below(self, local_start: int | None) -> Head | None:
        """As `head`, and one that holds what the disk let go of below `local_start`.

        What the disk lets go of was committed before (I2), but another process may have done both: then the head seen
        so far ends too early, and it is read once more.
        """
        head = self.head()
        if (
            head is not None
            and local_start is not None
            and head.next_offset < local_start
            and self.metadata is not None
        ):
            return self.metadata.load()
        return head

    def ask(self, question: Callable[[MetadataIndex], T]) -> T | None:
        """What `question` finds in the head; None without one. Raises Unavailable."""
        head = self.head()
        return self.ask_of(head, question) if head is not None else None

    def ask_of(self, head: Head, question: Callable[[MetadataIndex], T]) -> T:
        """What `question` finds in `head`, one of this partition's, or in the newest where `head` is too old for it."""
        assert self.metadata is not None, "a head comes with its chain"
        return self.metadata.ask(head, question)

    def start_offset(self) -> int:
        """The first retained offset over both tiers: the head's where there is one. Raises Unavailable."""
        head = self.head()
        if head is not None:
            return head.log_start_offset
        return self.log.log_start_offset if self.log is not None else 0

    def next_offset(self) -> int:
        """The log end. Raises Unavailable when it cannot be told from the disk alone."""
        head = self.known_head() if self.has_local_records() else self.head()
        ends = [head.next_offset] if head else []
        if self.log is not None:
            ends.append(self.log.next_offset)
        return max(ends, default=0)

    def has_local_records(self) -> bool:
        return self.log is not None and self.log.next_offset > self.log.local_log_start_offset

    def is_local(self, offset: int) -> bool:
        """Whether the disk alone answers for `offset`, the log end included."""
        log = self.log
        return log is not None and self.has_local_records() and log.local_log_start_offset <= offset <= log.next_offset


class TieredReader:
    """Reads any partition that `source_of` knows. Thread safe; iterators are not to be shared between threads.

    Under READ_COMMITTED a stream ends at the last stable offset and leaves out what was aborted, as far as the local
    tier holds the records: a start below it is refused (InvalidRequest), for what was aborted there is not looked up.
    """

    def __init__(
        self,
        source_of: Callable[[TopicPartition], PartitionSource],
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> None:
        self._source_of = source_of
        self._isolation = isolation

    def offsets(self, partition: TopicPartition) -> tuple[int, int]:
        """The retained offsets ``[start, next)`` of both tiers together. Raises Unavailable, see the module text."""
        source = self._source_of(partition)
        return source.start_offset(), self._end_of(source)

    def batches(self, partition: TopicPartition, start: int, end: int | None = None) -> Iterator[memoryview]:
        """Whole batches from the one that holds `start` up to `end` (None: the log end as of now).

        Each item is a run of consecutive batches. The first may hold records below `start`, the last some above `end`.
        Raises OffsetOutOfRange for a start outside the log, Corrupt (naming the object) for damaged bytes, Unavailable
        when the bucket is needed and cannot be reached.
        """
        source = self._source_of(partition)
        _check_start(source, start)
        if self._isolation is Isolation.READ_COMMITTED:
            log = _committed_log(source, start)
            yield from _cut(log.batches(start, isolation=self._isolation), end)
            return
        stop = source.next_offset() if end is None else min(end, source.next_offset())
        offset = start
        while offset < stop:
            before = offset
            for data, offset in _read_on(source, offset):  # noqa: B020 - the position moves with each item
                if data:
                    yield data
                if offset >= stop:
                    return
            if offset == before:
                return

    def columns(self, partition: TopicPartition, start: int, end: int | None = None) -> Iterator[Columns]:
        """As `batches`, decoded and checked; records outside ``[start, end)`` are left out."""
        source = self._source_of(partition)
        stop = source.next_offset() if end is None else end
        if self._isolation is Isolation.READ_COMMITTED:
            _check_start(source, start)
            yield from _committed_columns(source, start, stop)
            return
        for data in self.batches(partition, start, end):
            for columns in _decode(data, partition):
                inside = (columns.offsets >= start) & (columns.offsets < stop)
                yield columns if inside.all() else columns.select(inside)

    def records(self, partition: TopicPartition, start: int, end: int | None = None) -> Iterator[StoredRecord]:
        """As `columns`, record by record."""
        for columns in self.columns(partition, start, end):
            yield from columns.records()

    def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        """Offset of the first retained record at or after `timestamp_ms`; None when there is none.

        A segment that is on both tiers is searched locally, without touching the store.
        """
        source = self._source_of(partition)
        log = source.log
        if log is None:
            return self._search_remote(source, None, timestamp_ms)
        while True:
            # In this order: what the disk no longer has at the first step is in the head of the second (I2).
            local_start = log.local_log_start_offset
            found = self._search_remote(source, local_start, timestamp_ms)
            if found is not None:
                return found
            try:
                found = log.offset_for_timestamp(timestamp_ms)
            except OffsetOutOfRange:
                if log.local_log_start_offset == local_start:
                    raise
            if log.local_log_start_offset == local_start:
                return found
            # The disk let go of records meanwhile, which nobody has searched: again, with the newest head.

    def _end_of(self, source: PartitionSource) -> int:
        log = source.log
        end = source.next_offset()
        return end if log is None or self._isolation is Isolation.READ_UNCOMMITTED else min(end, log.last_stable_offset)

    def _search_remote(self, source: PartitionSource, local_start: int | None, timestamp_ms: int) -> int | None:
        """The offset among the rows that begin below `local_start`."""
        head = source.head_below(local_start)
        if head is None and source.log is not None and source.log.log_start_offset < source.log.local_log_start_offset:
            raise _unknown(source, source.log.log_start_offset)
        start = 0
        while head is not None:
            row = source.ask_of(head, partial(_late_row, timestamp_ms, start))
            if row is None or (local_start is not None and row.base_offset >= local_start):
                return None
            found = self._search_row(source, row, timestamp_ms)
            if found is not None:
                return found
            start = row.next_offset
        return None

    def _search_row(self, source: PartitionSource, row: RemoteSegment, timestamp_ms: int) -> int | None:
        assert source.remote is not None
        start = source.start_offset()
        position = source.remote.position_of_timestamp(row, timestamp_ms)
        for data, _ in _remote_run(source.remote, row, position, row.base_offset):
            for columns in _decode(data, source.partition):
                hits = (columns.timestamps >= timestamp_ms) & (columns.offsets >= start)
                if hits.any():
                    return int(columns.offsets[hits.argmax()])
        return None


def _late_row(timestamp_ms: int, start: int, index: MetadataIndex) -> RemoteSegment | None:
    return index.find_by_timestamp(timestamp_ms, start)


def _check_start(source: PartitionSource, start: int) -> None:
    if source.known_head() is not None or not source.is_local(start):
        first = source.start_offset()
        if not first <= start <= source.next_offset():
            raise _out_of_range(source.partition, start, first, source.next_offset())


def _committed_log(source: PartitionSource, start: int) -> Log:
    """The local log. Raises InvalidRequest when `start` is not in it."""
    log = source.log
    if log is None or not log.local_log_start_offset <= start <= log.next_offset:
        local_start = None if log is None else log.local_log_start_offset
        raise InvalidRequest(
            "reading committed records, the remote tier does not tell which were aborted",
            partition=source.partition,
            offset=start,
            local_start_offset=local_start,
        )
    return log


def _committed_columns(source: PartitionSource, start: int, stop: int) -> Iterator[Columns]:
    log = _committed_log(source, start)
    offset = start
    try:
        for columns in log.columns(start, isolation=Isolation.READ_COMMITTED):
            yield columns.select(columns.offsets < stop) if columns.next_offset > stop else columns
            offset = columns.next_offset
            if offset >= stop:
                return
    except OffsetOutOfRange:
        # The local tier let go of what comes next, perhaps to the remote tier; else it is gone, and that is told.
        _check_start(source, offset)
        _committed_log(source, offset)
        raise


def _cut(runs: Iterator[memoryview], end: int | None) -> Iterator[memoryview]:
    for data in runs:
        yield data
        if end is not None and _offset_after(data, 0) >= end:
            return


def _read_on(source: PartitionSource, offset: int) -> Iterator[tuple[memoryview, int]]:
    """(batches, where to go on) from `offset`: one local read, or one remote row to its end."""
    log = source.log
    if log is not None and offset >= log.local_log_start_offset:
        data = _read_local(source, log, offset)
        if data is not None:
            yield data, _offset_after(data, offset)
            return
    # The disk first, then the head: what the disk let go of was committed before.
    local_start = log.local_log_start_offset if log is not None else None
    head = source.head_below(local_start)
    if head is None:
        if log is None or offset < log.log_start_offset:
            raise _out_of_range(source.partition, offset, source.start_offset(), source.next_offset())
        raise _unknown(source, offset)
    row = source.ask_of(head, lambda index: index.find_by_offset(offset))
    if row is None or (local_start is not None and offset < local_start <= row.base_offset):
        if local_start is None or offset < head.log_start_offset:
            raise _out_of_range(source.partition, offset, source.start_offset(), source.next_offset())
        # The head says that no record lies between here and what is still local.
        yield memoryview(b""), max(offset, local_start)
        return
    assert source.remote is not None, "a head comes with its objects"
    offset = max(offset, row.base_offset)
    try:
        yield from _remote_run(source.remote, row, source.remote.position_of_offset(row, offset), offset)
    except NotFound as error:
        raise _why_missing(source, row, offset) from error


def _read_local(source: PartitionSource, log: Log, offset: int) -> memoryview | None:
    """None when the segment was dropped since we looked: it is in the remote tier then, and in the newest head (I2)."""
    try:
        return log.read(offset, FETCH_BYTES)
    except OffsetOutOfRange:
        if offset < log.local_log_start_offset:
            return None
        raise
    except (NotFound, Corrupt):
        if not log.is_read_only:
            raise
    # Another process dropped or cleaned the segment: see the directory and the bucket as they are now, once.
    log.look_again()
    if source.metadata is not None:
        source.metadata.load()
    return log.read(offset, FETCH_BYTES) if offset >= log.local_log_start_offset else None


def _remote_run(
    remote: RemotePartition, row: RemoteSegment, position: int, offset: int
) -> Iterator[tuple[memoryview, int]]:
    """The rest of one remote segment from byte `position`, without the batches below `offset`."""
    want = REMOTE_FETCH_BYTES
    while position < row.size_bytes:
        data = remote.read(row, position, min(want, row.size_bytes - position))
        whole, skipped, reached = _whole_batches(data, offset)
        if whole == 0:
            if position + len(data) >= row.size_bytes:
                raise Corrupt("reading a remote segment, it ends inside a batch", object=row.data_key, at=position)
            want *= 2
            continue
        position += whole
        yield data[skipped:whole], max(reached, offset)
    yield memoryview(b""), row.next_offset


def _whole_batches(data: memoryview, offset: int) -> tuple[int, int, int]:
    """(length of the leading whole batches, of those below `offset`, one past the last offset)."""
    at = skipped = 0
    reached = offset
    while (header := read_header(data, at)) and at + header.size_bytes <= len(data):
        at += header.size_bytes
        reached = header.next_offset
        if reached <= offset:
            skipped = at
    return at, skipped, reached


def _offset_after(data: memoryview, offset: int) -> int:
    return _whole_batches(data, offset)[2] if data else offset


def _why_missing(source: PartitionSource, row: RemoteSegment, offset: int) -> LogError:
    """After a 404: the newest head, read once, tells expiry (an offset out of range) from a lost object (damage)."""
    head = source.metadata.load() if source.metadata is not None else None
    if head is not None and offset < head.log_start_offset:
        return _out_of_range(source.partition, offset, head.log_start_offset, source.next_offset())
    if head is not None and source.ask_of(head, lambda index: index.holds(row)):
        return Corrupt(
            "reading a remote segment, its object is missing", partition=source.partition, object=row.data_key
        )
    return NotFound("reading a remote segment, it was replaced; read again", object=row.data_key)


def _unknown(source: PartitionSource, offset: int) -> LogError:
    """Records that the disk let go of, and no head that says where they are."""
    facts = {"partition": source.partition, "offset": offset}
    if source.metadata is None:
        attempt = "reading a tiered partition, no store is configured: set url in [remote] of tiered.toml"
        return InvalidRequest(attempt, **facts)
    return NotFound("reading a tiered partition, there is no head of it in the bucket", **facts)


def _decode(data: memoryview, partition: TopicPartition) -> Iterator[Columns]:
    """In steps of bounded memory, however well the batches were compressed."""
    try:
        yield from kernels.decode_in_steps(data)
    except Corrupt as error:
        header = read_header(data)
        facts = {"topic": partition.topic, "partition": partition.partition, **error.facts}
        if "base_offset" not in facts and header is not None:
            facts["from_offset"] = header.base_offset
        raise Corrupt(error.attempt, **facts) from error


def _out_of_range(partition: TopicPartition, offset: int, first: int, next_offset: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        "reading, offset out of range", partition=partition, offset=offset, first_offset=first, next_offset=next_offset
    )
