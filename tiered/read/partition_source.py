"""The places of one partition's records: its log, its objects, its manifest.

A segment is copied once it is below the last stable offset, so every transaction in it is decided, but the marker may
be in a later segment, on either tier. So the aborted transactions of a range are searched in its entry, in the
following entries, and then in the local log, until an index entry shows that all of the range was decided. In the
bucket alone, the last stable offset is the start of the earliest transaction that was open at the end of the last
entry, by the entry's producer snapshot. Source: kafka `RemoteLogManager.collectAbortedTransactions`, KIP-405.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from local.errors import Corrupt, InvalidRequest, LogError, NotFound, OffsetOutOfRange
from local.index.txn_index import AbortedTransaction, entries, overlapping
from local.log import Log
from local.log.producer_state import ProducerState, decode_snapshot
from local.names import TopicPartition
from local.records.isolation import Isolation
from remote.fetch.range_reader import RemotePartition
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_lookup import MetadataIndex
from remote.manifest.view import DEFAULT_VIEW
from remote.segment_entry import SegmentEntry

if TYPE_CHECKING:
    from local.records.offset_spec import FoundOffset, OffsetSpec
    from tiered.read.reader import TieredReader
    from tiered.read.view_places import LocalViews

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """The tiers of one partition; either may be missing. With `is_disk_alone` records in the bucket do not count."""

    partition: TopicPartition
    log: Log | None
    remote: RemotePartition | None = None
    metadata: MetadataLog | None = None
    is_disk_alone: bool = False
    local_views: LocalViews | None = None

    def known_manifest(self) -> Manifest | None:
        """The newest manifest seen so far; sends no request."""
        return self.metadata.cached if self.metadata is not None else None

    def manifest(self) -> Manifest | None:
        """As `known_manifest`, but requests it if none was seen. None: nothing is tiered. Raises Unavailable."""
        return self.known_manifest() or (self.metadata.load() if self.metadata is not None else None)

    def manifest_below(self, local_start: int | None) -> Manifest | None:
        """As `manifest`, but loaded again if it lacks segments dropped below `local_start` (I2)."""
        manifest = self.manifest()
        if manifest is None or self.metadata is None or local_start is None or manifest.next_offset >= local_start:
            return manifest
        return self.metadata.load(exact=True)  # readers skip a hole, so "nothing new" has to be true

    def ask(self, question: Callable[[MetadataIndex], T]) -> T | None:
        """The answer of `question` from the manifest; None without a manifest. Raises Unavailable."""
        manifest = self.manifest()
        return self.ask_of(manifest, question) if manifest is not None else None

    def ask_of(self, manifest: Manifest, question: Callable[[MetadataIndex], T]) -> T:
        """The answer of `question` from `manifest`, or from the newest one if `manifest` is too old for it."""
        assert self.metadata is not None, "a head comes with its chain"
        return self.metadata.ask(manifest, question)

    def start_offset(self) -> int:
        """The first retained offset over both tiers. Raises Unavailable if the disk alone does not know it."""
        manifest = self.known_manifest() if self.has_whole_log() else self.manifest()
        if manifest is not None:
            return manifest.log_start_offset
        if self.log is None:
            return 0
        return self.log.local_log_start_offset if self.is_disk_alone else self.log.log_start_offset

    def next_offset(self) -> int:
        """The log end offset. Raises Unavailable if the disk alone does not know it."""
        manifest = self.known_manifest() if self.has_local_records() else self.manifest()
        ends = [manifest.next_offset] if manifest else []
        if self.log is not None:
            ends.append(self.log.next_offset)
        return max(ends, default=0)

    def has_local_records(self) -> bool:
        return self.log is not None and self.log.next_offset > self.log.local_log_start_offset

    def has_whole_log(self) -> bool:
        """Whether the disk holds every record from its log start on, as far as the disk knows."""
        log = self.log
        return log is not None and self.has_local_records() and log.log_start_offset >= log.local_log_start_offset

    def is_local(self, offset: int) -> bool:
        """Whether the disk alone answers for `offset`, the log end included."""
        log = self.log
        return log is not None and self.has_local_records() and log.local_log_start_offset <= offset <= log.next_offset

    def entry_at(self, offset: int) -> tuple[SegmentEntry | None, int]:
        """The segment entry to read for `offset` and the offset in it; (None, next offset) across a gap.

        Raises OffsetOutOfRange, Unavailable, and the error of `unknown`.
        """
        # The disk first, then the manifest: a dropped segment was committed before.
        local_start = self.log.local_log_start_offset if self.log is not None else None
        manifest = self.manifest_below(local_start)
        if manifest is None:
            raise self.unseen(offset)
        return self.ask_of(manifest, lambda index: self.entry_in(index, offset, local_start))

    def entry_in(self, index: MetadataIndex, offset: int, local_start: int | None) -> tuple[SegmentEntry | None, int]:
        if offset < index.manifest.log_start_offset:  # possible if the read began with an older manifest
            raise out_of_range(self.partition, offset, index.manifest.log_start_offset, self.next_offset())
        entry = index.find_by_offset(offset)
        if entry is None or (local_start is not None and offset < local_start <= entry.base_offset):
            if local_start is None:
                raise out_of_range(self.partition, offset, self.start_offset(), self.next_offset())
            return None, max(offset, local_start)
        return entry, max(offset, entry.base_offset)

    def check_start(self, start: int) -> None:
        """Raise OffsetOutOfRange for a start outside the log."""
        if self.known_manifest() is not None or not self.is_local(start):
            first = self.start_offset()
            if not first <= start <= self.next_offset():
                raise out_of_range(self.partition, start, first, self.next_offset())

    def why_missing(self, entry: SegmentEntry, offset: int) -> LogError:
        """The error after a 404: the newest manifest distinguishes expiry, replacement and a lost object.

        `exact`: without it, a reader whose manifest GC deleted may get that old manifest as the newest.
        """
        manifest = self.metadata.load(exact=True) if self.metadata is not None else None
        if manifest is not None and offset < manifest.log_start_offset:
            return out_of_range(self.partition, offset, manifest.log_start_offset, self.next_offset())
        if manifest is not None and self.ask_of(manifest, lambda index: index.holds(entry)):
            wrong = "cannot read a remote segment, its object is missing"
            return Corrupt(wrong, partition=self.partition, object=entry.data_key)
        return NotFound("cannot read a remote segment, it was replaced; read again", object=entry.data_key)

    def unseen(self, offset: int) -> LogError:
        if self.log is None or self.is_disk_alone or offset < self.log.log_start_offset:
            return out_of_range(self.partition, offset, self.start_offset(), self.next_offset())
        return self.unknown(offset)

    def unknown(self, offset: int) -> LogError:
        """The error for records dropped from the disk without a manifest that locates them."""
        facts = {"partition": self.partition, "offset": offset}
        if self.metadata is None:
            attempt = "cannot read the tiered partition, no store is configured: set url in [remote] of tiered.toml"
            return InvalidRequest(attempt, **facts)
        return NotFound("cannot read the tiered partition, the bucket has no manifest of it", **facts)

    def stable_end(self) -> int:
        """The last stable offset: below it every transaction is decided. Raises Unavailable, Corrupt."""
        end = self.next_offset()
        if self.log is not None:
            return min(end, self.log.last_stable_offset)
        unstable_offset = self.producers_in_bucket().first_unstable_offset
        return end if unstable_offset is None else min(end, unstable_offset)

    def producers_in_bucket(self) -> ProducerState:
        """The producer state at the end of the last entry; empty without one. Raises Unavailable, Corrupt."""
        try:
            found = self.ask(self._last_producers)
        except NotFound as error:
            wrong = "cannot read the producers at the end of the bucket, an object is missing"
            raise Corrupt(wrong, **error.facts) from error
        return ProducerState() if found is None else found

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that concern ``[from_offset, upper_offset)``, by their marker's offset.

        `upper_offset` is at most the stable end. Raises Unavailable, Corrupt, NotFound as reading does.
        """
        found = self._settled(lambda start, index: self._aborted(index, start, from_offset, upper_offset))
        if found is None:
            return self.log.aborted_transactions(from_offset, upper_offset) if self.log is not None else []
        return found

    def entry_with_aborted(
        self, offset: int, upper_offset: int
    ) -> tuple[SegmentEntry | None, int, list[AbortedTransaction]]:
        """As `entry_at`, with the entry's aborted transactions below `upper_offset`, of the same manifest."""

        def question(
            start: int | None, index: MetadataIndex
        ) -> tuple[SegmentEntry | None, int, list[AbortedTransaction]]:
            entry, at = self.entry_in(index, offset, start)
            if entry is None:
                return None, at, []
            return entry, at, self._aborted(index, start, at, min(entry.next_offset, upper_offset))

        found = self._settled(question)
        if found is None:
            raise self.unseen(offset)
        return found

    def _last_producers(self, index: MetadataIndex) -> ProducerState:
        last = index.last_entry()
        if last is None or self.remote is None:
            return ProducerState()
        snapshot = self.remote.producer_snapshot(last)
        return ProducerState(decode_snapshot(snapshot, path=last.indexes_key) if snapshot else ())

    def _settled(self, question: Callable[[int | None, MetadataIndex], T]) -> T | None:
        """The answer of `question`, asked again if the local log start changes meanwhile; None without a manifest."""
        log = self.log
        while True:
            local_start = log.local_log_start_offset if log is not None else None
            manifest = self.manifest_below(local_start)  # the disk first, then the manifest (I2)
            if manifest is None:
                return None
            found = self.ask_of(manifest, partial(question, local_start))
            if log is None or log.local_log_start_offset == local_start:
                return found

    def _aborted(
        self, index: MetadataIndex, local_start: int | None, from_offset: int, upper_offset: int
    ) -> list[AbortedTransaction]:
        found: list[AbortedTransaction] = []
        is_complete = False
        for entry in _entries_with_aborted(index, from_offset, local_start):
            assert self.remote is not None, "a manifest comes with its objects"
            try:
                recorded = entries(self.remote.txn_index(entry), path=entry.indexes_key)
            except Corrupt as error:
                raise Corrupt(f"cannot read committed records: {error.attempt}", **error.facts) from error
            overlapped, is_complete = overlapping(recorded, from_offset, upper_offset)
            found += overlapped
            if is_complete:
                break
        if self.log is not None and local_start is not None and not is_complete:
            found += self.log.aborted_transactions(max(from_offset, local_start), upper_offset)
        return sorted(set(found), key=lambda each: each.last_offset)


def _entries_with_aborted(index: MetadataIndex, start: int, end: int | None) -> Iterator[SegmentEntry]:
    for part in index.parts(start, end):
        if part.aborted_bytes == 0:
            continue
        for entry in index.entries(max(start, part.base_offset), part.next_offset):
            if entry.aborted_bytes:
                yield entry


def out_of_range(partition: TopicPartition, offset: int, first: int, next_offset: int) -> OffsetOutOfRange:
    facts = {"offset": offset, "first_offset": first, "next_offset": next_offset}
    return OffsetOutOfRange("cannot read, the offset is out of range", partition=partition, **facts)


class Readable(ABC):
    """Makes readers from the partition sources of its subclass. Reader modules load on first use."""

    @abstractmethod
    def _source(self, name: TopicPartition) -> PartitionSource: ...

    def reader(
        self,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        *,
        read_compacted: bool = False,
        view: str = DEFAULT_VIEW,
    ) -> TieredReader:
        """A reader of the full log, or with `read_compacted` of that compacted view and the log behind it.

        Under READ_COMMITTED a stream of a bucket ends before the first transaction whose end is not in the bucket.
        """
        from tiered.read.reader import CompactedReader, TieredReader

        if read_compacted:
            return CompactedReader(self._source, isolation, view)
        return TieredReader(self._source, isolation)

    def list_offsets(
        self, specs: Mapping[TopicPartition, OffsetSpec | int], *, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> dict[TopicPartition, FoundOffset | None]:
        """The offset of each spec (`tiered.read.offset_listing`) over both tiers; None if there is none."""
        from tiered.read.offset_listing import find_offset

        reader = self.reader()
        return {name: find_offset(self._source(name), reader, spec, isolation) for name, spec in specs.items()}
