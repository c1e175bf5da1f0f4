"""A small language of operations on a log before a power loss, and a record of their promises.

A program is a list of operations (`Op`); `play` runs it once on a `ModelDisk`. The `Story` holds two kinds of facts:

* **Promised**: an acknowledged record, a log start offset, a truncation. It holds after any later crash.
* **Begun**: a call that has not returned. Its effect may or may not be found.

The story is updated before each call starts and after it returned. Each update is a point at which the power may fail.

Each record holds a serial number that is never used twice. The checks thus detect a record at a wrong offset, a record
from before a truncation, and a record that no producer sent. The story also stores the serial of the preceding record,
so the checks detect a mix of two histories.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from disk_model import ModelDisk

from local.cleaner import cleaner
from local.format.record import Record
from local.log import Durability, Log
from local.log.log_removal import find_cut
from local.log.producer_state import Producer
from local.logdirs.log_dir import LogDirectory
from local.names import CLEANER_OFFSETS, TopicPartition
from local.settings import LogSettings

NAME = TopicPartition("t", 0)
ROOT = "./data"
SMALL = LogSettings(segment_bytes=700, index_interval_bytes=150, batch_bytes=200)
COMPACTED = replace(SMALL, is_compacted=True)
MEMORY, FLUSHED = 0, 1
RETENTION_MS = 100  # delete.retention.ms of the passes; each append advances the story's clock by 10
Op = tuple[str, *tuple[int, ...]]


class Sent(NamedTuple):
    """One batch as a producer sent it; identified by the serial of its first record."""

    producer: Producer
    count: int
    marker: bool | None = None  # for a marker: whether it commits


class Known(NamedTuple):
    """The state of one producer that a log must know."""

    epoch: int
    last_sequence: int = -1
    last_offset: int = -1
    first_open: int = -1
    last_batch: Sent | None = None


@dataclass
class Story:
    """The begun and the promised facts so far; a record is identified by its serial."""

    sent: dict[int, tuple[int, ...]] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    acked: dict[int, int] = field(default_factory=dict)
    batches: dict[int, Sent] = field(default_factory=dict)
    start_allowed: int = 0
    start_promised: int = 0
    clock: int = 1_000
    keys: int = 1 << 30
    serial: int = 0
    passes: list[tuple[int, int]] = field(default_factory=list)  # of each cleaner pass: its clock and its end
    lost: set[int] = field(default_factory=set)  # offsets that a recovery did not find: they must not come back
    skipped: set[int] = field(default_factory=set)  # offsets between the last batch and a truncation point
    watch: Callable[[], None] | None = None

    def copy(self) -> Story:
        mine = {name: dict(getattr(self, name)) for name in ("sent", "acked", "records", "before", "batches")}
        return replace(
            self, **mine, passes=list(self.passes), lost=set(self.lost), skipped=set(self.skipped), watch=None
        )

    def position(self) -> tuple[object, ...]:
        """Equal when the same operations were begun and promised."""
        return (tuple(self.sent.items()), tuple(self.acked.items()), self.start_allowed, self.start_promised)

    def told(self) -> None:
        if self.watch is not None:
            self.watch()

    def begin_append(
        self, first: int, count: int, producer: Producer | None = None, *, is_deletion: bool = False
    ) -> list[Record]:
        """`count` new records for the offsets from `first`; timestamps rise and fall a little."""
        made = []
        for offset in range(first, first + count):
            serial = self._next_serial(offset)
            jitter = serial * 7 % 5
            value = None if is_deletion else b"v%d" % serial
            headers = (("serial", b"%d" % serial),) if is_deletion else ()
            record = Record(b"k%d" % (offset % self.keys), value, self.clock + jitter, headers)
            self.records[serial] = record
            made.append(record)
            if producer is not None and offset == first:
                self.batches[serial] = Sent(producer, count)
        self.clock += 10
        self.told()
        return made

    def begin_marker(self, offset: int, producer: Producer, *, commit: bool) -> int:
        """Return the coordinator epoch of the marker, which is its serial."""
        serial = self._next_serial(offset)
        key, value = struct.pack(">hh", 0, commit), struct.pack(">hi", 0, serial)
        self.records[serial] = Record(key, value, self.clock)
        self.batches[serial] = Sent(producer, 1, commit)
        self.told()
        return serial

    def _next_serial(self, offset: int) -> int:
        self.serial += 1
        self.before[self.serial] = self.sent[offset - 1][-1] if offset - 1 in self.sent else 0
        self.sent[offset] = (*self.sent.get(offset, ()), self.serial)
        self.skipped.discard(offset)
        return self.serial

    def promise_all_below(self, next_offset: int) -> None:
        """Every record sent so far below `next_offset` is acknowledged as durable."""
        below = {offset for offset in self.sent if offset < next_offset} - self.skipped
        self.acked = {offset: self.sent[offset][-1] for offset in sorted(below)}
        self.told()

    def begin_start(self, offset: int) -> None:
        self.start_allowed = max(self.start_allowed, offset)
        self.told()

    def promise_start(self, offset: int) -> None:
        self.start_promised = max(self.start_promised, offset)
        self.told()

    def begin_pass(self, next_offset: int) -> None:
        """From now on a cleaner pass may have read every record below `next_offset`."""
        self.passes.append((self.clock, next_offset))
        self.told()

    def may_have_left(self, offset: int) -> bool:
        """Whether another pass came at least `RETENTION_MS` after the first pass that read the tombstone."""
        clocks = [clock for clock, upto in self.passes if offset < upto]
        return bool(clocks) and clocks[-1] >= clocks[0] + RETENTION_MS

    def begin_truncate(self, offset: int) -> None:
        """Records at or above `offset` may be truncated from now on."""
        self.acked = {at: serial for at, serial in self.acked.items() if at < offset}
        self.told()

    def promise_truncated(self, offset: int) -> None:
        """Records at or above `offset` are truncated for ever."""
        self.sent = {at: serials for at, serials in self.sent.items() if at < offset}
        self.passes = [(clock, min(upto, offset)) for clock, upto in self.passes]
        self.lost = {at for at in self.lost if at < offset}
        self.told()

    def begun_anew(self, remembered: Mapping[int, tuple[int, bool]]) -> None:
        """Account for an empty log, which begins at its start offset.

        Batches below the start that were never promised may be lost with the power, unless a producer snapshot holds
        them. `remembered` has the last offset of each producer, and whether the producer has an open transaction. A
        marker does not change the last offset.
        """
        staying = set(self.acked)
        for offset, serials in self.sent.items():
            batch = self.batches.get(serials[-1])
            if batch is None:
                continue
            last, is_open = remembered.get(batch.producer.producer_id, (-1, True))
            if offset <= last or (batch.marker is not None and not is_open):
                staying.update(range(offset, offset + batch.count))
        self.sent = {offset: serials for offset, serials in self.sent.items() if offset in staying}

    def found(
        self, kept: dict[int, int], log_start: int, next_offset: int, remembered: Mapping[int, tuple[int, bool]]
    ) -> None:
        """After a recovery: the records found are durable from now on, the others are lost for ever."""
        if not kept and next_offset == log_start:
            self.begun_anew(remembered)
        self.sent = {at: (kept.get(at, serials[-1]),) for at, serials in self.sent.items() if at < next_offset}
        self.acked = dict(kept)
        self.passes = [(clock, min(upto, next_offset)) for clock, upto in self.passes]
        self.lost = set(self.sent) - set(kept)
        self.skipped -= set(kept)  # the power failed before their truncation
        self.start_promised = log_start
        self.start_allowed = max(self.start_allowed, log_start)
        self.told()

    def producers(self, kept: dict[int, int], next_offset: int) -> tuple[dict[int, Known], set[tuple[int, int, int]]]:
        """The producer states after the batches below `next_offset`, and (producer, first, last) of aborted
        transactions.

        `kept` decides between several records that were sent to one offset. Records that retention or compaction
        removed count too.
        """
        known: dict[int, Known] = {}
        aborted: set[tuple[int, int, int]] = set()
        for offset in sorted(offset for offset in self.sent if offset < next_offset):
            if offset in self.skipped and offset not in kept:
                continue  # truncated, and the log end offset is above it
            batch = self.batches.get(kept.get(offset, self.sent[offset][-1]))
            if batch is None:
                continue
            producer, last = batch.producer, offset + batch.count - 1
            before = known.get(producer.producer_id, Known(producer.producer_epoch))
            if before.epoch != producer.producer_epoch:
                before = Known(producer.producer_epoch, first_open=before.first_open)
            if batch.marker is None:
                first = offset if producer.is_transactional and before.first_open < 0 else before.first_open
                sequence = producer.base_sequence + batch.count - 1
                after = Known(producer.producer_epoch, sequence, last, first, batch)
            else:
                after = before._replace(first_open=-1)
                if not batch.marker and before.first_open >= 0:
                    aborted.add((producer.producer_id, before.first_open, offset))
            known[producer.producer_id] = after
        return known, aborted


class World:
    """An open log in its directory, and the operations of the language."""

    def __init__(self, disk: ModelDisk, settings: LogSettings, story: Story) -> None:
        self.disk, self.settings, self.story = disk, settings, story
        self.directory, self.log = self._open()

    def _open(self) -> tuple[LogDirectory, Log]:
        directory = LogDirectory(self.disk, ROOT)
        if NAME not in directory.partitions():
            directory.create(NAME, "A" * 22)
        return directory, directory.open_log(NAME, self.settings, now_ms=self.story.clock)

    def append(self, count: int, flushed: int) -> None:
        durability = Durability.FLUSHED if flushed else Durability.MEMORY
        first = self.log.next_offset
        records = self.story.begin_append(first, count)
        result = self.log.append(records, now_ms=self.story.clock, durability=durability)
        assert result[:2] == (first, first + count), (
            "an append did not get the next offset, or an offset was given twice"
        )
        if flushed:
            self.story.promise_all_below(result.next_offset)

    def delete(self, count: int, flushed: int) -> None:
        """Tombstones for the keys of the next offsets."""
        first = self.log.next_offset
        records = self.story.begin_append(first, count, is_deletion=True)
        durability = Durability.FLUSHED if flushed else Durability.MEMORY
        result = self.log.append(records, now_ms=self.story.clock, durability=durability)
        assert result[:2] == (first, first + count), (
            "an append did not get the next offset, or an offset was given twice"
        )
        if flushed:
            self.story.promise_all_below(result.next_offset)

    def send(self, producer_id: int, count: int, transactional: int, flushed: int) -> None:
        """Send the next batch of a producer; within its transaction when one is open."""
        first = self.log.next_offset
        known = self.story.producers({}, first)[0].get(producer_id, Known(0))
        producer = Producer(
            producer_id=producer_id,
            producer_epoch=known.epoch,
            base_sequence=known.last_sequence + 1,
            is_transactional=bool(transactional) or known.first_open >= 0,
        )
        records = self.story.begin_append(first, count, producer)
        durability = Durability.FLUSHED if flushed else Durability.MEMORY
        result = self.log.append(records, now_ms=self.story.clock, durability=durability, producer=producer)
        assert result == (first, first + count, False), "a new batch was taken for a duplicate"
        if flushed:
            self.story.promise_all_below(result.next_offset)

    def end(self, producer_id: int, commit: int, bump: int, flushed: int) -> None:
        """Write the marker that ends the open transaction of a producer, if any.

        The marker may raise the producer epoch.
        """
        first = self.log.next_offset
        known = self.story.producers({}, first)[0].get(producer_id)
        if known is None or known.first_open < 0:
            return
        epoch = known.epoch + bump
        producer = Producer(producer_id=producer_id, producer_epoch=epoch, base_sequence=0, is_transactional=True)
        serial = self.story.begin_marker(first, producer, commit=bool(commit))
        durability = Durability.FLUSHED if flushed else Durability.MEMORY
        result = self.log.append_marker(
            producer_id,
            epoch,
            commit=bool(commit),
            coordinator_epoch=serial,
            now_ms=self.story.clock,
            durability=durability,
        )
        if flushed:
            self.story.promise_all_below(result.next_offset)

    def repeat(self) -> None:
        """Every producer repeats its last batch: the answer has the old offsets, and the log is unchanged."""
        end = self.log.next_offset
        for known in self.story.producers({}, end)[0].values():
            if known.last_batch is not None:
                base = known.last_offset - known.last_batch.count + 1
                records = [self.story.records[self.story.sent[at][-1]] for at in range(base, known.last_offset + 1)]
                result = self.log.append(records, now_ms=self.story.clock, producer=known.last_batch.producer)
                assert result == (base, known.last_offset + 1, True), "a repeated batch was appended again"
        assert self.log.next_offset == end

    def truncate(self, percent: int) -> None:
        """Truncate at a batch boundary, which is looked up first.

        Decisions of earlier cleaner passes stay valid.
        """
        low, high = self.log.log_start_offset, self.log.next_offset
        offset = low + (high - low) * percent // 100
        cut = find_cut(self.log.view.segments, offset)
        decided = max((upto for _, upto in self.story.passes), default=0)
        if cut is None or cut.next_offset < max(low, decided):
            return
        self.story.skipped |= set(range(cut.next_offset, offset))
        if cut.next_offset <= low:  # nothing stays: after a crash the log may begin at the truncation offset
            self.story.begin_start(offset)
        self.story.begin_truncate(cut.next_offset)
        assert self.log.truncate_to(offset, now_ms=self.story.clock) == offset
        self.story.promise_truncated(cut.next_offset)
        self.story.promise_all_below(cut.next_offset)

    def flush(self) -> None:
        self.log.flush()
        self.story.promise_all_below(self.log.next_offset)

    def roll(self) -> None:
        if self.log.roll(now_ms=self.story.clock):
            self.story.promise_all_below(self.log.next_offset)

    def checkpoint(self) -> None:
        self.directory.write_checkpoints()

    def epoch(self) -> None:
        self.log.begin_epoch(self.log.leader_epoch + 1)

    def drop(self, count: int) -> None:
        """Retention drops the `count` oldest segments."""
        segments = self.log.segments()
        boundary = segments[min(count, len(segments) - 1)].base_offset
        if boundary > segments[0].base_offset:
            self.story.begin_start(boundary)
            self.log.drop_before(boundary, now_ms=self.story.clock, delay_ms=0, raises_log_start=True)
            self.story.promise_start(boundary)

    def remove(self) -> None:
        self.log.remove_deleted(self.story.clock)

    def start(self, percent: int) -> None:
        """Delete records: the new log start offset is written to disk before readers see it."""
        low, high = self.log.log_start_offset, self.log.next_offset
        offset = low + (high - low) * percent // 100
        self.story.begin_start(offset)
        self.directory.write_log_starts({NAME: offset})
        self.log.raise_log_start(offset)
        self.story.promise_start(offset)

    def clean(self) -> None:
        """Run a pass that leaves tombstones and markers, as in a log above a tier that needs them."""
        self._clean(tombstones_below=0)

    def sweep(self, wait_ms: int) -> None:
        """After `wait_ms`, run a pass that may remove tombstones and markers; write its checkpoint."""
        self.story.clock += wait_ms
        self._clean(tombstones_below=None)

    def _clean(self, *, tombstones_below: int | None) -> None:
        self.roll()
        self.story.begin_pass(self.log.next_offset)
        now = {"now_ms": self.story.clock, "delete_retention_ms": RETENTION_MS}
        cleaner.clean(self.log, clean_from=0, tombstones_below=tombstones_below, **now)
        self.directory.write(CLEANER_OFFSETS)

    def reopen(self) -> None:
        """Close cleanly and open again."""
        self.directory.close()
        self.story.promise_all_below(self.log.next_offset)
        self.directory, self.log = self._open()
        assert self.directory.was_clean

    def kill(self) -> None:
        """Kill the process; the page cache survives. The next open must promise all that it reads."""
        known = self.log.next_offset
        self.directory.abandon()
        self.directory, self.log = self._open()
        assert self.log.next_offset == known, "a killed process lost records that the page cache held"
        self.story.promise_all_below(known)


def play(program: Iterable[Op], disk: ModelDisk, settings: LogSettings, story: Story) -> World:
    world = World(disk, settings, story)
    for name, *numbers in program:
        getattr(world, name)(*numbers)
    return world
