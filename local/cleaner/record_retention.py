"""The decisions of pass two of the cleaner, for every batch and every record. It only reads.

The first condition that holds decides on a record of a data batch:

| condition | decision |
|---|---|
| its transaction was aborted | removed |
| it has no key | removed |
| a newer record of its key was mapped | removed |
| it has a value | stays |
| a tombstone in a batch that reaches to `tombstones_below` or above | stays: an older record may be remote (I5) |
| a tombstone in a batch without delete horizon | stays, and the batch gets one: now + ``delete.retention.ms`` |
| a tombstone whose horizon has not passed | stays |
| a tombstone otherwise | removed |

The horizon is thus set by the first pass at which no tier has a readable older record. It is the base timestamp of the
batch, marked by attribute bit 6; a later pass never changes it.

A marker stays if the pass met data of its transaction. Otherwise it gets a horizon and is removed like a tombstone.

Remaining records of formats 0 and 1 become batches of format 2, as in Kafka since 4.0, their tombstones with a horizon.
A tombstone in a segment last modified at or before `legacy_horizon_ms` is removed at once. That time is
``delete.retention.ms`` before the last modification of the last segment that starts in the clean section.

A batch without remaining records is removed, except in these cases, where it stays empty:

| batch | reason |
|---|---|
| the last data batch of a producer that the log still knows | its last sequence |
| the control batch of such a producer's epoch, if its latest write was a marker | fencing |
| the last batch of the pass | the offsets of the log must not fall |

**Transaction markers.** `CleanedTransactions` replays the batches of a pass, across its segments. Batches that the
cleaner retained empty count as data of their transaction. The pass reads no remote data, but the remote tier may hold
data below the first batch of the pass, and records of the same offsets that the local tier no longer has:

| remote tier at the marker | aborted records there | marker of an abort |
|---|---|---|
| cleaned past the marker | none | removed as above |
| not cleaned past it (`tombstones_below`) | possible | stays with its transaction index entry, data met or not |

Without the entry, a reader would take the aborted records for committed ones.

Source: kafka `Cleaner.cleanInto`, `Cleaner.shouldRetainRecord`, `Cleaner.CleanedTransactionMetadata`,
`MemoryRecords.filterTo`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from local import kernels
from local.cleaner.offset_map import Bits, CleanerThrottle, check_whole, clear, packed
from local.format.batch_header import (
    CODEC_BITS,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    MAGIC,
    RECORD_BYTES_MIN,
    TRANSACTIONAL,
)
from local.format.columns import BatchTable, Columns, Flags, Longs, Octets
from local.index.txn_index import AbortedTransaction
from local.kernels.pure_kernels import DROP, EMPTY, REBASE, REBUILD, VERBATIM
from local.log.producer_state import ProducerEntry
from local.records.batch import Marker, read_marker
from local.records.isolation import aborted_batches
from local.segment.segment import Segment

TIME_MAX_MS = 2**63 - 1  # ``delete.retention.ms`` may be this long, for tombstones that are never removed
_REBASED_GROWTH = 6  # approximate growth of a record in bytes when its timestamp is relative to a distant horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanContext:
    """The constants of one pass."""

    now_ms: int
    delete_retention_ms: int
    tombstones_below: int | None  # None: no bound
    legacy_horizon_ms: int | None
    first_offset: int
    upto_offset: int  # the exclusive end of the pass
    producers: Mapping[int, ProducerEntry]
    dirty_from: int = 0  # records below are treated as clean

    @property
    def horizon_ms(self) -> int:
        """The delete horizon for a batch without one: now plus the retention, at most TIME_MAX_MS."""
        return min(self.now_ms + self.delete_retention_ms, TIME_MAX_MS)

    def removes_legacy(self, segment: Segment) -> bool:
        """Whether the segment is old enough to remove its tombstones of formats 0 and 1."""
        return self.legacy_horizon_ms is not None and segment.modified_ms <= self.legacy_horizon_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceVerdict:
    """One bit per record, one action per batch; `last_stays`: the action for a last batch that must stay."""

    keep: Octets
    actions: Octets
    last_stays: int


@dataclass(slots=True, kw_only=True)
class SegmentVerdict:
    """The decisions on one segment, slice by slice."""

    segment: Segment
    mapped: memoryview | None  # its bytes, if pass one has mapped them
    next_offset: int
    slices: list[SliceVerdict] = field(default_factory=list)
    record_count: int = 0
    kept_count: int = 0
    bytes_least: int = 0  # these two bound its size afterwards, with compressed batches at their present size
    bytes_most: int = 0
    batches_after: int = 0
    has_legacy: bool = False
    aborted: list[AbortedTransaction] = field(default_factory=list)

    def measure(self, limiter: CleanerThrottle) -> None:
        """Set both bounds to the exact value. Raises as `CleanerThrottle.slices`."""
        if self.bytes_least == self.bytes_most:
            return
        size = 0
        for (_, data), verdict in zip(limiter.slices(self.segment, self.mapped), self.slices, strict=True):
            table = kernels.scan_batches(data, verify=False)
            remaining = kernels.count_bits(verdict.keep, table.record_counts)
            size += _sizes_after(table, kernels.kept_bytes(data, table, verdict.keep), remaining, verdict.actions)
        self.bytes_least = self.bytes_most = size if self.has_legacy else min(size, self.segment.size_bytes)

    @property
    def is_changed(self) -> bool:
        return any((each.actions != VERBATIM).any() for each in self.slices)

    @property
    def is_empty(self) -> bool:
        return all((each.actions == DROP).all() for each in self.slices)

    @property
    def is_last_batch_alone(self) -> bool:
        """Whether the segment is one empty batch, so that another pass would change nothing."""
        return self.is_empty and sum(len(each.actions) for each in self.slices) == 1 and not self.record_count


class Newest(Protocol):
    """The result of pass one, or another source that knows the newest record of every key."""

    def mapped(self, base_offset: int) -> memoryview | None:
        """The bytes of the segment, if they are mapped."""

    def bits(self, base_offset: int, slice_number: int) -> tuple[Bits, Bits] | None:
        """(stays, is a tombstone) for each record of a slice, control records too; None: use `superseded`."""

    def superseded(self, columns: Columns) -> Flags:
        """Whether a newer record of each record's key was seen."""


class RecordFilter:
    """The decisions of one pass. Takes each segment once and in order: transactions may span segments."""

    def __init__(self, clean_context: CleanContext, newest: Newest, aborted: Sequence[AbortedTransaction]) -> None:
        self.invalid_records = 0
        self._facts = clean_context
        self._newest = newest
        self._aborted = aborted
        self._last_data = np.array(sorted(each.last_offset for each in clean_context.producers.values()), np.int64)
        self._transactions = CleanedTransactions(aborted, tombstones_below=clean_context.tombstones_below)

    def begin(self, producer_ids: Iterable[int], offset: int) -> None:
        """Treat these producers as having open transactions below `offset`: their markers stay."""
        for producer_id in producer_ids:
            self._transactions.meet(producer_id, offset - 1)

    def segment(self, segment: Segment, next_offset: int, limiter: CleanerThrottle) -> SegmentVerdict:
        """Decide on one segment. Raises Corrupt, CleaningAborted."""
        mapped = self._newest.mapped(segment.base_offset)
        found = SegmentVerdict(segment=segment, mapped=mapped, next_offset=next_offset)
        known = len(self._transactions.kept)
        for number, (start, data) in enumerate(limiter.slices(segment, mapped, is_counted=False)):
            table = kernels.scan_batches(data, verify=False)
            check_whole(segment, start, table.valid_bytes, len(data))
            bits = self._known(segment, number, table)
            # Pass one has read a dirty segment, and the rewrite reads it again: only headers count here.
            limiter.read(len(data) if bits is None else len(table) * HEADER_BYTES)
            keep, tombstones = self._records(segment, number, data, table) if bits is None else bits
            self._batches(found, data, table, keep, tombstones)
        found.aborted = self._transactions.kept[known:]
        if not found.has_legacy:
            found.bytes_most = min(found.bytes_most, segment.size_bytes)
        return found

    def _known(self, segment: Segment, number: int, table: BatchTable) -> tuple[Bits, Bits] | None:
        has_horizon = (table.attributes & (DELETE_HORIZON | CONTROL)) == DELETE_HORIZON
        is_legacy_due = table.has_legacy and self._facts.removes_legacy(segment)
        is_split = segment.base_offset < self._facts.dirty_from
        if is_split or is_legacy_due or has_horizon.any():
            return None
        return self._newest.bits(segment.base_offset, number)

    def _records(self, segment: Segment, number: int, data: memoryview, table: BatchTable) -> tuple[Bits, Bits]:
        """(stays, is a tombstone) for each record; control records stay (`_follow_transactions` decides on them)."""
        bits = self._newest.bits(segment.base_offset, number)
        is_split = bits is not None and segment.base_offset < self._facts.dirty_from
        if bits is not None and is_split:
            return self._split(segment, data, bits)
        steps = list(self._looked_up(segment, data, is_clean=bits is None))
        if bits is not None:
            due = packed(np.concatenate([due for _, _, due in steps]))
            return bits[0] & ~(bits[1] & due), bits[1]
        keep, tombstones, due = (np.concatenate(parts) for parts in zip(*steps, strict=True))
        return packed(keep & ~(tombstones & due)), packed(tombstones)

    def _split(self, segment: Segment, data: memoryview, bits: tuple[Bits, Bits]) -> tuple[Bits, Bits]:
        """The bits of a slice where the dirty section starts: below it by the keys, from it on by `bits`."""
        known = self.invalid_records
        steps = zip(*self._looked_up(segment, data, is_clean=True), strict=True)
        keep, tombstones, due = (np.concatenate(parts) for parts in steps)
        self.invalid_records = known  # counted before: by pass one at or above `dirty_from`, by an earlier pass below
        offsets = np.concatenate([each.offsets for each in kernels.decode_in_steps(data, include_control=True)])
        is_old, rows = offsets < self._facts.dirty_from, len(offsets)
        new_keep, new_tombstones = (np.unpackbits(each, count=rows, bitorder="little").astype(bool) for each in bits)
        keep, tombstones = np.where(is_old, keep, new_keep), np.where(is_old, tombstones, new_tombstones)
        return packed(keep & ~(tombstones & due)), packed(tombstones)

    def _looked_up(self, segment: Segment, data: memoryview, *, is_clean: bool) -> Iterator[tuple[Flags, Flags, Flags]]:
        """Yield (stays, is a tombstone, removable as a tombstone) in steps; unless `is_clean` only the last counts."""
        for columns in kernels.decode_in_steps(data, include_control=True):
            table, ordinals = columns.table, columns.batch_ordinals
            due = self._due(segment, columns)
            if not is_clean:
                yield due, due, due
                continue
            is_aborted, control = aborted_batches(table, self._aborted), (table.attributes & CONTROL) != 0
            keyless = (columns.key_lengths < 0) & ~(is_aborted | control)[ordinals]
            self.invalid_records += int(keyless.sum())
            older = self._newest.superseded(columns)
            keep = control[ordinals] | ~(older | keyless | is_aborted[ordinals])
            yield keep, (columns.value_lengths < 0) & ~control[ordinals], due
            del columns  # frees it before the next step is decompressed

    def _due(self, segment: Segment, columns: Columns) -> Flags:
        table = columns.table
        is_past = ((table.attributes & DELETE_HORIZON) != 0) & (table.base_timestamps <= self._facts.now_ms)
        if table.has_legacy and self._facts.removes_legacy(segment):
            is_past |= table.magics != MAGIC
        due: Flags = is_past[columns.batch_ordinals]
        if self._facts.tombstones_below is not None:
            due = due & (columns.offsets < self._facts.tombstones_below)
        return due

    def _batches(
        self, found: SegmentVerdict, data: memoryview, table: BatchTable, keep: Bits, tombstones: Bits
    ) -> None:
        counts = table.record_counts
        useless = self._follow_transactions(data, table)
        firsts = np.cumsum(counts, dtype=np.int64) - counts
        for row in self._due_markers(table, useless):
            clear(keep, int(firsts[row]), int(counts[row]))
        remaining, dead = kernels.count_bits(keep, counts), kernels.count_bits(keep & tombstones, counts)
        needs_horizon = ((dead > 0) | useless) & ((table.attributes & DELETE_HORIZON) == 0)
        if self._facts.tombstones_below is not None:
            needs_horizon &= table.last_offsets < self._facts.tombstones_below
        actions = np.full(len(table), REBUILD, np.uint8)
        actions[(remaining == counts) & (table.magics == MAGIC)] = VERBATIM
        actions[needs_horizon] = REBASE
        is_emptied = (counts == 0) & ((table.attributes & (CODEC_BITS | DELETE_HORIZON)) == 0)
        staying = np.where(is_emptied & (table.base_timestamps == -1), VERBATIM, EMPTY)
        actions[remaining == 0] = np.where(self._must_stay(table), staying, DROP)[remaining == 0]
        found.slices.append(SliceVerdict(keep=keep, actions=actions, last_stays=int(staying[-1])))
        found.has_legacy |= table.has_legacy
        found.record_count += int(counts.sum(dtype=np.int64))
        found.kept_count += int(remaining.sum())
        is_plain, lost = (table.attributes & CODEC_BITS) == 0, counts - remaining
        # A message of format 0 or 1 is at least as large as its records will be without their batch header.
        sections = table.sizes.astype(np.int64) - np.where(table.magics == MAGIC, HEADER_BYTES, 0)
        found.bytes_least += _sizes_after(table, remaining * RECORD_BYTES_MIN * is_plain, remaining, actions)
        found.bytes_most += _sizes_after(table, sections - lost * RECORD_BYTES_MIN * is_plain, remaining, actions)
        found.batches_after += int((actions != DROP).sum())

    def _follow_transactions(self, data: memoryview, table: BatchTable) -> Flags:
        useless = np.zeros(len(table), np.bool_)
        for row in np.flatnonzero((table.attributes & (TRANSACTIONAL | CONTROL)) != 0).tolist():
            producer_id, last_offset = int(table.producer_ids[row]), int(table.last_offsets[row])
            if not table.attributes[row] & CONTROL:
                self._transactions.meet(producer_id, last_offset)
            elif table.record_counts[row] == 0:
                useless[row] = True
            else:
                marker = read_marker(data, int(table.positions[row]))
                useless[row] = self._transactions.end(producer_id, last_offset, marker)
        return useless

    def _due_markers(self, table: BatchTable, useless: Flags) -> Iterator[int]:
        for row in np.flatnonzero(useless & ((table.attributes & DELETE_HORIZON) != 0)).tolist():
            is_past = table.base_timestamps[row] <= self._facts.now_ms
            if is_past and self._transactions.may_leave(int(table.last_offsets[row])):
                yield row

    def _must_stay(self, table: BatchTable) -> Flags:
        stays: Flags = table.last_offsets + 1 == self._facts.upto_offset
        is_control = (table.attributes & CONTROL) != 0
        candidates = (table.producer_ids >= 0) & (is_control | np.isin(table.last_offsets, self._last_data))
        for row in np.flatnonzero(candidates).tolist():
            known = self._facts.producers.get(int(table.producer_ids[row]))
            if known is None:
                continue
            if known.last_offset >= 0:
                stays[row] |= known.last_offset == table.last_offsets[row]
            elif is_control[row]:
                stays[row] |= known.producer_epoch == table.producer_epochs[row]
        return stays


def _sizes_after(table: BatchTable, sections: Longs, remaining: Longs, actions: Octets) -> int:
    sizes = np.where(actions == VERBATIM, table.sizes, HEADER_BYTES).astype(np.int64)
    sizes[actions == DROP] = 0
    is_rebuilt = (actions == REBUILD) | (actions == REBASE)
    sizes[is_rebuilt] += sections[is_rebuilt]
    sizes[actions == REBASE] += remaining[actions == REBASE] * _REBASED_GROWTH
    return int(sizes.sum())


class CleanedTransactions:
    """The transactional batches of a pass, in log order. `kept` are the entries of the markers that stay."""

    def __init__(self, aborted: Iterable[AbortedTransaction], *, tombstones_below: int | None) -> None:
        self.kept: list[AbortedTransaction] = []
        self._tombstones_below = tombstones_below
        unique = {(each.producer_id, each.first_offset): each for each in aborted}
        self._ahead = deque(sorted(unique.values(), key=lambda each: each.first_offset))
        self._aborting: dict[int, AbortedTransaction] = {}
        self._met: set[int] = set()  # producers in `_aborting` of which a batch was met
        self._committing: set[int] = set()

    def meet(self, producer_id: int, last_offset: int) -> None:
        """Add a batch of a transaction. Its data may have been removed."""
        self._begin_upto(last_offset)
        (self._met if producer_id in self._aborting else self._committing).add(producer_id)

    def end(self, producer_id: int, last_offset: int, marker: Marker | None) -> bool:
        """Whether a marker is no longer needed: no batch of its transaction was met. False for `marker` None."""
        self._begin_upto(last_offset)
        if marker is None:
            return False
        if marker.is_commit:
            is_met = producer_id in self._committing
            self._committing.discard(producer_id)
            return not is_met
        aborted = self._aborting.pop(producer_id, None)
        is_met = producer_id in self._met
        self._met.discard(producer_id)
        if aborted is None or (not is_met and self.may_leave(aborted.last_offset)):
            return True
        self.kept.append(aborted)
        return False

    def may_leave(self, offset: int) -> bool:
        """Whether nothing in the remote tier needs a tombstone or marker at `offset` (invariant I5)."""
        return self._tombstones_below is None or offset < self._tombstones_below

    def _begin_upto(self, offset: int) -> None:
        while self._ahead and self._ahead[0].first_offset <= offset:
            transaction = self._ahead.popleft()
            self._aborting.setdefault(transaction.producer_id, transaction)
