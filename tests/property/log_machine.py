"""A local log compared with a plain Python list: the rules of the state machine that `test_log_model` runs.

The model is a list of batches, each a list of records with offsets, and a few numbers. A rule does the same to the
model and to the log, and the invariants compare both after every step. A crash loses a random part of the unsynced
bytes: the model gives the bounds of the remaining log, and then continues with the log's end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from disk_model import ModelDisk
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from local import kernels
from local.cleaner import cleaner
from local.errors import InvalidRequest, OffsetOutOfRange, OutOfOrderSequence, ProducerFenced
from local.format.columns import BatchTable
from local.format.compression import Codec
from local.format.record import Record, StoredRecord, TimestampType
from local.log import AppendResult, Durability, Log
from local.log.producer_state import Producer
from local.logdirs.log_dir import LogDirectory
from local.names import CLEANER_OFFSETS, LOG, TopicPartition
from local.records.isolation import Isolation
from local.settings import LogSettings

NAME = TopicPartition("t", 0)
ROOT = "./data"
NOW = 1_800_000_000_000

keys = st.sampled_from([b"a", b"b", b"c", b"", b"key" * 9])
values = st.none() | st.binary(max_size=8) | st.integers(0, 400).map(lambda size: b"v" * size)
headers = st.just(()) | st.lists(st.tuples(st.sampled_from(["h", "é"]), st.none() | st.just(b"x")), max_size=2).map(
    tuple
)
durabilities = st.sampled_from(Durability)


def record_lists(are_keyed: bool) -> st.SearchStrategy[list[Record]]:
    some = keys if are_keyed else st.none() | keys
    times = st.integers(NOW - 500, NOW + 500)
    return st.lists(st.builds(Record, some, values, times, headers), min_size=1, max_size=8)


@dataclass
class Batch:
    """One batch of the log. `producer` is (id, epoch, base sequence, is transactional)."""

    base_offset: int
    next_offset: int
    records: list[StoredRecord]
    producer: Producer | None = None
    marker: bool | None = None  # markers only: True for a commit
    epoch: int = 0


class LogMachine(RuleBasedStateMachine):
    """The state machine of this module. Subclasses set `IS_COMPACTED`."""

    IS_COMPACTED = False

    @initialize(
        segment_bytes=st.sampled_from([600, 1200, 4000]),
        batch_bytes=st.sampled_from([1, 200, 500]),
        interval=st.sampled_from([1, 200, 4096]),
        codec=st.sampled_from(Codec),
    )
    def begin(self, segment_bytes: int, batch_bytes: int, interval: int, codec: Codec) -> None:
        self.settings = LogSettings(
            segment_bytes=segment_bytes,
            batch_bytes=batch_bytes,
            index_interval_bytes=interval,
            compression=codec,
            is_compacted=self.IS_COMPACTED,
        )
        self.disk = ModelDisk()
        self.batches: list[Batch] = []
        self.gone: list[Batch] = []  # batches that retention removed; their producers are still known
        self.start = self.end = 0
        self.durable = 0  # every record below survives any crash
        self.epoch = 0
        self.dropped_to = 0  # retention dropped the segments below
        self.last_sent: dict[int, tuple[Producer, list[Record]]] = {}
        self._open(is_first=True)
        self.beside = LogDirectory(self.disk, ROOT, read_only=True).open_log(NAME, self.settings, now_ms=NOW)

    def _open(self, *, is_first: bool = False) -> None:
        self.directory = LogDirectory(self.disk, ROOT)
        if is_first:
            self.directory.create(NAME, "A" * 22)
        self.log: Log = self.directory.open_log(NAME, self.settings, now_ms=NOW)

    # -- appending -----------------------------------------------------------------------------------------------

    @rule(data=st.data(), durability=durabilities)
    def append(self, data: st.DataObject, durability: Durability) -> None:
        records = data.draw(record_lists(self.IS_COMPACTED))
        try:
            result = self.log.append(records, now_ms=NOW, durability=durability)
        except InvalidRequest as error:
            self._refused(error)
            return
        self._added(result, records, durability)

    @rule(codec=st.sampled_from(Codec))
    def change_codec(self, codec: Codec) -> None:
        self.settings = self.log.settings = replace(self.settings, compression=codec)

    @rule()
    def next_epoch(self) -> None:
        self.epoch += 1
        self.log.begin_epoch(self.epoch)

    @rule(
        data=st.data(),
        producer_id=st.integers(1, 2),
        is_transactional=st.booleans(),
        durability=durabilities,
    )
    def append_as_producer(
        self, data: st.DataObject, producer_id: int, is_transactional: bool, durability: Durability
    ) -> None:
        last = self._last_of(producer_id)
        if self._open_transaction(producer_id) is not None:
            is_transactional = True
        epoch, sequence = (0, 0) if last is None else (last[0], last[1])
        producer = Producer(
            producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=is_transactional
        )
        records = data.draw(record_lists(self.IS_COMPACTED))
        try:
            result = self.log.append(records, now_ms=NOW, durability=durability, producer=producer)
        except InvalidRequest as error:
            self._refused(error)
            return
        assert not result.is_duplicate
        self._added(result, records, durability, producer)
        self.last_sent[producer_id] = (producer, records)

    @rule(producer_id=st.integers(1, 2), durability=durabilities)
    def repeat_the_last_batch(self, producer_id: int, durability: Durability) -> None:
        """A retry returns the offsets of the first append and adds no record."""
        newest = self._newest_batch_of(producer_id)
        sent = [batch for batch in self._batches_of(producer_id) if batch.marker is None]
        if newest is None or newest.producer is None or not sent or producer_id not in self.last_sent:
            return
        producer, records = self.last_sent[producer_id]
        if sent[-1].producer != producer or newest.producer.producer_epoch != producer.producer_epoch:
            return
        result = self.log.append(records, now_ms=NOW, durability=durability, producer=producer)
        assert result == AppendResult(sent[-1].base_offset, sent[-1].next_offset, is_duplicate=True)
        if durability is Durability.FLUSHED and self.durable < sent[-1].next_offset:
            self.durable = self.end  # one fsync covers all written records

    @rule(producer_id=st.integers(1, 2), gap=st.integers(1, 5))
    def a_gap_in_the_sequence_is_refused(self, producer_id: int, gap: int) -> None:
        last = self._last_of(producer_id)
        if last is None:
            return
        epoch, sequence = last
        wrong = Producer(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence + gap)
        wrong = replace(wrong, is_transactional=self._open_transaction(producer_id) is not None)
        try:
            self.log.append([Record(b"a", b"b", NOW)], now_ms=NOW, producer=wrong)
        except OutOfOrderSequence:
            return
        raise AssertionError("a gap in a producer's sequence was taken")

    @rule(producer_id=st.integers(1, 2), commit=st.booleans(), bumps=st.booleans(), durability=durabilities)
    def end_the_transaction(self, producer_id: int, commit: bool, bumps: bool, durability: Durability) -> None:
        last = self._last_of(producer_id)
        if last is None or self._open_transaction(producer_id) is None:
            return
        epoch = last[0] + bumps
        result = self.log.append_marker(producer_id, epoch, commit=commit, now_ms=NOW, durability=durability)
        producer = Producer(producer_id=producer_id, producer_epoch=epoch, base_sequence=0, is_transactional=True)
        marker = Batch(result.base_offset, result.next_offset, [], producer, marker=commit, epoch=self.epoch)
        self._extend([marker], durability)
        if epoch:
            with pytest.raises(ProducerFenced):
                self.log.append_marker(producer_id, epoch - 1, commit=False, now_ms=NOW)

    @rule(offset=st.integers(0, 3))
    def wrong_calls_change_nothing(self, offset: int) -> None:
        calls = [
            lambda: self.log.append([], now_ms=NOW),
            lambda: self.log.raise_log_start(self.end + 1 + offset),
            lambda: self.log.read(self.end + 1 + offset),
        ]
        for call in calls:
            try:
                call()
            except (InvalidRequest, OffsetOutOfRange):
                continue
            raise AssertionError("a wrong call was answered")

    # -- making durable, rolling ---------------------------------------------------------------------------------

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.durable = self.end
        assert self.log.recovery_point == self.end

    @rule()
    def roll(self) -> None:
        had = self.log.segments()[-1].size_bytes
        assert self.log.roll(now_ms=NOW) == (had > 0)
        self.durable = self.end if had else self.durable
        assert self.log.segments()[-1].base_offset == self.end

    @rule()
    def checkpoint(self) -> None:
        self.directory.write_checkpoints()

    # -- shrinking -----------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.IS_COMPACTED)
    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = self.start + int((self.end - self.start) * share)
        self.directory.write_log_starts({NAME: offset})
        self.log.raise_log_start(offset)
        self.start = offset

    @precondition(lambda self: not self.IS_COMPACTED)
    @rule(share=st.floats(0, 1))
    def retention(self, share: float) -> None:
        segments = self.log.segments()
        boundary = segments[int((len(segments) - 1) * share)].base_offset
        count = self.log.drop_before(boundary, now_ms=NOW, delay_ms=5, raises_log_start=True)
        assert count == sum(each.next_offset <= boundary for each in segments[:-1])
        if count:
            self.start = max(self.start, boundary)
            self.dropped_to = boundary
            self._forget_below(boundary)

    @rule(later=st.sampled_from([0, 5]))
    def remove_files(self, later: int) -> None:
        self.log.remove_deleted(NOW + later)
        assert later == 0 or not any(name.endswith(".deleted") for name in self.disk.list(self.log.directory))

    @precondition(lambda self: self.IS_COMPACTED)
    @rule()
    def compact(self) -> None:
        """Compaction keeps the newest committed record of each key and every undecided record.
        The cleaner may keep more records; the model continues with the records that it kept."""
        stable = min(self._first_open(), self.end)
        self.log.roll(now_ms=NOW)
        self.durable = self.end
        result = cleaner.clean(self.log, clean_from=0, now_ms=NOW)
        self.directory.write(CLEANER_OFFSETS)
        decided = [batch for batch in self.batches if batch.base_offset < stable and not self._is_aborted(batch)]
        newest = {record.key: record.offset for batch in decided for record in batch.records}
        open_ones = {r.offset for batch in self.batches for r in batch.records if r.offset >= stable}
        before = {record.offset: record for batch in self.batches for record in batch.records}
        found = {record.offset: record for record in self.log.records(self.start)}
        assert {*newest.values(), *open_ones} <= set(found), "compaction must keep the newest record of each key"
        assert all(before[offset] == record for offset, record in found.items())
        assert result is None or len(found) <= len(before)
        for batch in self.batches:
            batch.records = [found[record.offset] for record in batch.records if record.offset in found]

    # -- closing and opening -----------------------------------------------------------------------------------------

    @rule()
    def reopen(self) -> None:
        self.directory.close()
        self.durable = self.end
        self._open()
        assert self.directory.was_clean
        self._after_open()

    @rule()
    def kill(self) -> None:
        """The process ends and the page cache stays. Recovery makes the records that it read durable."""
        self.directory.abandon()
        self._open()
        assert self.log.next_offset == self.end
        self.durable = self.end
        self._after_open()

    @rule(seed=st.integers(0, 1 << 30))
    def crash(self, seed: int) -> None:
        self.disk = self.disk.crash(random.Random(seed))
        readable = self._readable_end()
        self._open()
        found = self.log.next_offset
        assert self.durable <= found <= self.end, "recovery must keep every durable record and add none"
        assert found in {self.end, self.start, 0, *(batch.next_offset for batch in self.batches)}, (
            "the log must end at a batch boundary"
        )
        if found == self.start == self.log.local_log_start_offset:
            # The log restarted empty. The producers of deleted records are known as far as the files were readable.
            self.batches = [batch for batch in self.batches if batch.next_offset <= readable]
            self._forget_below(found)
        self.batches = [batch for batch in self.batches if batch.next_offset <= found]
        self.end = self.durable = found
        # The raised log start was checkpointed first. Files of dropped segments are not restored in this model.
        assert self.log.log_start_offset == self.start
        self._after_open()

    def _after_open(self) -> None:
        self.beside = LogDirectory(self.disk, ROOT, read_only=True).open_log(NAME, self.settings, now_ms=NOW)
        self.epoch = self.log.leader_epoch
        self.log.settings = self.settings

    # -- reading -------------------------------------------------------------------------------------------------

    @rule(share=st.floats(0, 1), bytes_max=st.sampled_from([1, 150, 600, 1 << 20]))
    def read(self, share: float, bytes_max: int) -> None:
        """Whole batches from the one that contains the offset, as many as the limit allows."""
        first = self.log.local_log_start_offset
        offset = first + round((self.end - first) * share)
        table = kernels.scan_batches(self.log.read(offset, bytes_max))
        entries = [entry for entry in self._entries() if entry[1] > offset]
        got = list(
            zip(table.base_offsets.tolist(), (table.last_offsets + 1).tolist(), table.sizes.tolist(), strict=True)
        )
        assert table.problem is None
        assert got == [entry[:3] for entry in entries[: len(got)]]
        size = sum(entry[2] for entry in got)
        assert size <= bytes_max or len(got) == 1
        left = entries[len(got) :]
        if left and got and left[0][3] == entries[0][3]:
            assert size + left[0][2] > bytes_max, "a batch that fits into the limit must be returned"
        assert got or not left

    @rule(share=st.floats(0, 1), shift=st.sampled_from([-1, 0, 0, 1]))
    def find_by_time(self, share: float, shift: int) -> None:
        """The first record at or after a timestamp: one of a record, or one millisecond before or after it. Markers
        count."""
        markers = [batch.base_offset for batch in self.batches if batch.marker is not None]
        timed = [(record.offset, record.timestamp_ms) for record in self._visible()]
        timed = sorted([*timed, *((offset, NOW) for offset in markers if offset >= self.start)])
        timestamp = timed[int((len(timed) - 1) * share)][1] + shift if timed else NOW
        hits = [offset for offset, time_ms in timed if time_ms >= timestamp]
        assert self.log.offset_for_timestamp(timestamp) == (hits[0] if hits else None)

    @rule()
    def find_by_name(self) -> None:
        log, records = self.log, self._visible()
        assert (log.log_start_offset, log.next_offset) == (self.start, self.end)
        newest = log.newest()
        if not any(batch.marker is not None for batch in self.batches):
            largest = max((record.timestamp_ms for record in records), default=None)
            at = next((record.offset for record in records if record.timestamp_ms == largest), None)
            assert (newest.offset if newest else None) == at

    @rule()
    def read_committed(self) -> None:
        stable = min(self._first_open(), self.end)
        assert self.log.last_stable_offset == max(stable, self.start)
        upper = self.log.last_stable_offset
        wanted = [
            record
            for batch in self.batches
            for record in batch.records
            if self.start <= record.offset < upper and not self._is_aborted(batch)
        ]
        assert list(self.log.records(self.start, isolation=Isolation.READ_COMMITTED)) == wanted

    @rule()
    def look_from_beside(self) -> None:
        """A read-only open in another process sees the same records after a refresh."""
        self.beside.reload_files()
        assert self.beside.next_offset == self.end
        first = max(self.beside.local_log_start_offset, self.start)
        assert list(self.beside.records(first)) == [each for each in self._visible() if each.offset >= first]

    # -- invariants ----------------------------------------------------------------------------------------------

    @invariant()
    def offsets_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.log_start_offset, log.next_offset) == (self.start, self.end)
        assert self.durable <= self.end
        assert log.recovery_point <= self.durable, "the recovery point must not be above the durable offset"
        assert log.log_start_offset <= log.local_log_start_offset <= log.next_offset

    @invariant()
    def records_agree(self) -> None:
        if hasattr(self, "log"):
            assert list(self.log.records(self.log.local_log_start_offset)) == self._visible()

    @invariant()
    def segments_tile(self) -> None:
        if not hasattr(self, "log"):
            return
        infos = self.log.segments()
        assert [each.is_active for each in infos] == [False] * (len(infos) - 1) + [True]
        for before, after in pairwise(infos):
            assert before.next_offset == after.base_offset
            assert before.size_bytes > 0, "a closed segment must not be empty"
        for info in infos:
            table = self._table(info.base_offset)
            assert info.size_bytes == table.valid_bytes
            assert info.size_bytes <= max(self.settings.segment_bytes, int(table.sizes.max(initial=0)))
            if not info.is_active:
                assert (info.max_timestamp_ms or -1) == int(table.max_timestamps.max(initial=-1))

    @invariant()
    def epochs_agree(self) -> None:
        if hasattr(self, "log"):
            for batch in self.batches:
                assert self.log.epochs.epoch_at(batch.base_offset) == batch.epoch

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.directory.close()

    # -- the model -----------------------------------------------------------------------------------------------

    def _added(
        self, result: AppendResult, records: list[Record], durability: Durability, producer: Producer | None = None
    ) -> None:
        """Add the batches of an append. The log chooses how records are split into batches, but not their order."""
        assert result[:2] == (self.end, self.end + len(records)), "an append must get the next offsets"
        stored = [
            StoredRecord(offset, each.timestamp_ms, TimestampType.CREATE_TIME, each.key, each.value, each.headers)
            for offset, each in enumerate(records, start=result.base_offset)
        ]
        made = []
        for first, after, _, _ in self._entries():
            if first >= result.base_offset:
                mine = [each for each in stored if first <= each.offset < after]
                assert len(mine) == after - first
                made.append(Batch(first, after, mine, producer, epoch=self.epoch))
        assert len(made) == 1 or producer is None
        self._extend(made, durability)

    def _refused(self, error: InvalidRequest) -> None:
        """Only the size may be the reason of a refusal, and no record was appended."""
        assert "larger than segment.bytes" in str(error)
        assert self.log.next_offset == self.end

    def _extend(self, batches: list[Batch], durability: Durability) -> None:
        sealed = self.log.segments()[-1].base_offset
        self.batches += batches
        self.end = batches[-1].next_offset
        # Records of segments closed by this append are durable at every durability.
        self.durable = self.end if durability is Durability.FLUSHED else max(self.durable, sealed)

    def _history(self) -> list[Batch]:
        return self.gone + self.batches

    def _forget_below(self, offset: int) -> None:
        self.gone += [batch for batch in self.batches if batch.next_offset <= offset]
        self.batches = [batch for batch in self.batches if batch.next_offset > offset]

    def _visible(self) -> list[StoredRecord]:
        return [record for batch in self.batches for record in batch.records if record.offset >= self.start]

    def _entries(self) -> list[tuple[int, int, int, int]]:
        """(base offset, next offset, size, segment) of every batch in the files."""
        entries = []
        for info in self.log.segments():
            table = self._table(info.base_offset)
            columns = (table.base_offsets, table.last_offsets, table.sizes)
            for base, last, size in zip(*(column.tolist() for column in columns), strict=True):
                entries.append((base, last + 1, size, info.base_offset))
        return entries

    def _readable_end(self) -> int:
        """The offset after the last valid batch of all segment files; 0 without one."""
        names = [name for name in self.disk.list(self.log.directory) if name.endswith(LOG)]
        tables = [self._table(int(name.removesuffix(LOG))) for name in names]
        return max((int(table.last_offsets.max(initial=-1)) + 1 for table in tables), default=0)

    def _table(self, base: int) -> BatchTable:
        return kernels.scan_batches(self.disk.read(f"{self.log.directory}/{base:020d}{LOG}"))

    def _newest_batch_of(self, producer_id: int) -> Batch | None:
        of = self._batches_of(producer_id)
        return of[-1] if of else None

    def _batches_of(self, producer_id: int) -> list[Batch]:
        """All batches and markers of this producer."""
        return [each for each in self._history() if each.producer and each.producer.producer_id == producer_id]

    def _last_of(self, producer_id: int) -> tuple[int, int] | None:
        """Epoch and next sequence of a producer, or None for an unknown one."""
        newest = self._newest_batch_of(producer_id)
        if newest is None or newest.producer is None:
            return None
        producer = newest.producer
        if newest.marker is None:
            return producer.producer_epoch, producer.base_sequence + newest.next_offset - newest.base_offset
        # A marker has no sequence. After it an older batch of the same epoch continues, and a new epoch begins at 0.
        for batch in reversed(self._history()):
            same = batch.producer is not None and batch.producer.producer_id == producer_id and batch.marker is None
            if same and batch.producer is not None and batch.producer.producer_epoch == producer.producer_epoch:
                return producer.producer_epoch, batch.producer.base_sequence + batch.next_offset - batch.base_offset
        return producer.producer_epoch, 0

    def _open_transaction(self, producer_id: int) -> int | None:
        began = None
        for batch in self._history():
            if batch.producer is not None and batch.producer.producer_id == producer_id:
                if batch.marker is not None:
                    began = None
                elif batch.producer.is_transactional and began is None:
                    began = batch.base_offset
        return began

    def _first_open(self) -> int:
        began = [first for first in map(self._open_transaction, (1, 2)) if first is not None]
        return min(began, default=self.end)

    def _is_aborted(self, batch: Batch) -> bool:
        if batch.producer is None or not batch.producer.is_transactional:
            return False
        for later in self.batches:
            same = later.producer is not None and later.producer.producer_id == batch.producer.producer_id
            if same and later.marker is not None and later.base_offset > batch.base_offset:
                return not later.marker
        return False
