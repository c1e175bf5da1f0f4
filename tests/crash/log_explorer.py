"""Crash states of a log: taken while a program runs; each is recovered and compared with the promises.

1. A program runs once.
2. After each effect and each promise, `draws` crash states of the disk are drawn (`ModelDisk.crash`).
3. A state with the same contents and the same promises as an earlier state is skipped.
4. Every other state goes through the **aftermath**: recover, compare, append, compare, close, reopen, compare.
5. Crashes also happen in the aftermath: some of its effects are drawn for nested states, with an aftermath of their
   own.
"""

from __future__ import annotations

import logging
import random
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from compaction_promises import check_compacted
from disk_model import ModelDisk
from log_programs import Case
from log_script import FLUSHED, NAME, RETENTION_MS, ROOT, Story, World, play

from local import kernels
from local.index import offset_index, time_index
from local.log import Log
from local.names import LOG, OFFSET_INDEX, TIME_INDEX

DEPTH_MAX = 2
NESTED_ODDS = 0.05


@dataclass
class Tally:
    """Figures of an exploration: `checked` holds a digest of every distinct checked state.

    `seen` also holds the states that were drawn and skipped because enough others were checked.
    """

    drawn: int = 0
    nested: int = 0
    seen: set[int] = field(default_factory=set)
    checked: set[int] = field(default_factory=set)

    @property
    def distinct(self) -> int:
        return len(self.checked)


@dataclass
class _State:
    disk: ModelDisk
    story: Story
    key: int
    depth: int
    where: str


def explore(
    case: Case,
    *,
    draws: int,
    seed: int = 0,
    tally: Tally | None = None,
    states_max: int = 1 << 60,
    own_max: int = 1 << 60,
) -> Tally:
    """Check the crash states after each effect of `case`, `draws` for each.

    Raises the exception of the first state that breaks a promise, with a note that says how to reproduce the state.
    """
    tally = Tally() if tally is None else tally
    rng = random.Random(f"{case.name} {seed}")
    disk, story = ModelDisk(), Story(keys=case.keys)
    waiting: deque[_State] = deque()
    with _quiet():
        _collect(disk, story, waiting, tally, rng, draws=lambda: draws, depth=0)
        play(case.program, disk, case.settings, story)
        # If `states_max` ends the run early, the states come from all over the program.
        rng.shuffle(waiting)
        while len(waiting) > own_max:
            waiting.pop()
        while waiting and tally.distinct < states_max:
            # The program's own states come first, then the states inside their recoveries.
            state = waiting.popleft()
            _look_at(state, case, waiting, tally, rng, seed)
            tally.checked.add(state.key)
            tally.nested += state.depth > 0
    return tally


def _collect(
    disk: ModelDisk,
    story: Story,
    waiting: deque[_State],
    tally: Tally,
    rng: random.Random,
    *,
    draws: Callable[[], int],
    depth: int,
) -> None:
    """Append crash states of `disk` to `waiting` after each of its effects and each promise of `story`."""

    def watch() -> None:
        count = draws()
        told: Story | None = None
        position = hash(story.position()) if count else 0
        for _ in range(count):
            state = disk.crash(rng)
            tally.drawn += 1
            key = int.from_bytes(state.digest()) ^ (position * 0x9E3779B97F4A7C15 & (1 << 64) - 1)
            if key not in tally.seen:
                tally.seen.add(key)
                told = told or story.copy()
                waiting.append(_State(state, told.copy(), key, depth, f"effect {disk.effects} {disk.journal[-3:]}"))

    disk.watch = story.watch = watch


def _look_at(state: _State, case: Case, waiting: deque[_State], tally: Tally, rng: random.Random, seed: int) -> None:
    disk, story = state.disk, state.story
    before = {path: bytes(inode.live) for path, inode in disk.names.items()}
    if state.depth < DEPTH_MAX:
        _collect(disk, story, waiting, tally, rng, draws=lambda: rng.random() < NESTED_ODDS, depth=state.depth + 1)
    try:
        _aftermath(disk, case, story, rng)
    except Exception as error:
        files = "\n".join(f"  {path}: {len(body)} bytes" for path, body in sorted(before.items()))
        error.add_note(f"{case.name}, seed {seed}, depth {state.depth}, cut after {state.where}; found\n{files}")
        raise
    disk.watch = story.watch = None


def _aftermath(disk: ModelDisk, case: Case, story: Story, rng: random.Random) -> None:
    world = World(disk, case.settings, story)
    found = check(world.log, disk, story, case)
    story.found(found, world.log.log_start_offset, world.log.next_offset, remembered(world.log))
    world.repeat()
    world.append(3, FLUSHED)
    world.send(1, 2, 0, FLUSHED)
    world.reopen()
    check(world.log, disk, story, case)
    if any(name == "sweep" for name, *_ in case.program):
        _sweep_out(world, disk, case)


def _sweep_out(world: World, disk: ModelDisk, case: Case) -> None:
    """Run two more passes, so far apart that the second removes all that was deleted before the first."""
    world.sweep(RETENTION_MS)
    swept_to = world.log.cleaner_offset or 0
    check(world.log, disk, world.story, case)
    world.append(1, FLUSHED)
    world.sweep(RETENTION_MS)
    kept = check(world.log, disk, world.story, case)
    if (world.log.cleaner_offset or 0) == swept_to:
        return  # an open transaction excludes all new records from the pass, so no second pass runs
    left = [at for at, serial in kept.items() if at < swept_to and world.story.records[serial].value is None]
    assert not left, f"tombstones are never removed: {left}"


# -- invariants
# ----------------------------------------------------------------------------------------------------------


def check(log: Log, disk: ModelDisk, story: Story, case: Case) -> dict[int, int]:
    """Check every promise against the records in the log; return the serial found at each offset."""
    start, end = log.log_start_offset, log.next_offset
    assert story.start_promised <= start <= story.start_allowed, "the log start offset fell, or rose without a request"
    assert end > max(story.acked, default=-1), "an acknowledged offset would be given again"
    kept = _contents(log, story)
    if case.settings.is_compacted:
        check_compacted(log, kept, story)
    else:
        _check_whole(kept, story, start, end)
    bases = [info.base_offset for info in log.segments()]
    segments = {base: _batches(disk.read(f"{ROOT}/{NAME.directory}/{base:020d}{LOG}")) for base in bases}
    _check_indexes(disk, segments)
    _check_epochs(log, segments)
    _check_times(log, story, kept)
    _check_producers(log, story, kept, is_compacted=case.settings.is_compacted)
    return kept


def _contents(log: Log, story: Story) -> dict[int, int]:
    """The serial at each offset from the log start: every record is whole and was sent to this offset."""
    kept: dict[int, int] = {}
    offset = start = log.local_log_start_offset
    while data := log.read(offset):
        records, next_offset = _decoded(bytes(data))
        for at, key, value, timestamp_ms, told in records:
            assert at not in kept, "an offset was read twice"
            serial = int(told) if told.isdigit() else struct.unpack(">hi", told)[1]
            assert story.records[serial][:3] == (key, value, timestamp_ms), "a record was read that no producer sent"
            if at >= start:
                assert serial in story.sent.get(at, ()), f"offset {at} holds a record that was sent to another offset"
                kept[at] = serial
        assert next_offset > offset
        offset = next_offset
    assert list(kept) == sorted(kept)
    assert story.skipped.issuperset(range(offset, log.next_offset)), "the batches end before the log end offset"
    return kept


def _check_whole(kept: dict[int, int], story: Story, start: int, end: int) -> None:
    assert story.skipped.issuperset(set(range(start, end)) - kept.keys()), (
        "offsets are missing between the log start and the log end"
    )
    for offset, serial in story.acked.items():
        assert offset < start or kept[offset] == serial, f"acknowledged offset {offset} is lost or changed"
    for offset, serial in kept.items():
        is_first = offset == start or (offset - 1 in story.skipped and offset - 1 not in kept)
        assert is_first or story.before[serial] == kept.get(offset - 1, 0), "records of two histories are mixed"


@lru_cache(20_000)
def _decoded(data: bytes) -> tuple[list[tuple[int, bytes | None, bytes | None, int, bytes]], int]:
    """(offset, key, value, time, field with the serial) of every record, and the next offset.

    Cached, because most states share most bytes. A value has the serial behind its v, a tombstone has it in its header,
    and a marker has it in its value.
    """
    columns = kernels.decode_columns(data, include_control=True)
    records = []
    for each in columns.records():
        told = (each.headers[0][1] or b"") if each.value is None else each.value.removeprefix(b"v")
        records.append((each.offset, each.key, each.value, each.timestamp_ms, told))
    return records, columns.next_offset


class _Batch(NamedTuple):
    base_offset: int
    last_offset: int
    position: int
    epoch: int
    largest_ms: int  # of this batch and the earlier ones in the segment


@lru_cache(20_000)
def _batches(data: bytes) -> list[_Batch]:
    """The batches of one ``.log``; cached as well."""
    table = kernels.scan_batches(data)
    assert table.problem is None, "a recovered segment ends in bytes that are not a batch"
    columns = (table.base_offsets, table.last_offsets, table.positions, table.leader_epochs, table.max_timestamps)
    found, largest = list[_Batch](), -1
    for base, last, position, epoch, timestamp in zip(*(column.tolist() for column in columns), strict=True):
        largest = max(largest, timestamp)
        found.append(_Batch(base, last, position, epoch, largest))
    return found


def _check_indexes(disk: ModelDisk, segments: dict[int, list[_Batch]]) -> None:
    """Every index entry names a batch, in order; a time entry has the largest timestamp so far."""
    for base, batches in segments.items():
        path = f"{ROOT}/{NAME.directory}/{base:020d}"
        offsets, times = disk.read(path + OFFSET_INDEX), disk.read(path + TIME_INDEX)
        if offsets:
            offset_index.check(offsets, 1 << 40, path=path)
            positions = {batch.last_offset: batch.position for batch in batches}
            for offset, position in offset_index.entries(offsets, base):
                assert positions.get(offset) == position, f"an index entry names no batch: {offset} at {position}"
        if times:
            time_index.check(times, path=path)
            largest = {batch.last_offset: batch.largest_ms for batch in batches}
            for timestamp, offset in time_index.entries(times, base):
                assert largest.get(offset) == timestamp, f"a time entry names no batch: {timestamp} at {offset}"


def _check_epochs(log: Log, segments: dict[int, list[_Batch]]) -> None:
    entries = log.epochs.entries
    assert all(a < b and s < t for (a, s), (b, t) in pairwise(entries)), "epochs out of order"
    assert not entries or entries[-1][1] <= log.next_offset, "an epoch begins past the log end offset"
    for batches in segments.values():
        for batch in batches:
            known = [epoch for epoch, start in entries if start <= batch.base_offset]
            assert known, f"no epoch is known for offset {batch.base_offset}"
            assert known[-1] == batch.epoch, f"a batch at {batch.base_offset} of epoch {batch.epoch}, not {known[-1]}"


def _check_times(log: Log, story: Story, kept: dict[int, int]) -> None:
    if kept:
        wanted = story.records[kept[max(kept)]].timestamp_ms
        first = next(offset for offset, serial in kept.items() if story.records[serial].timestamp_ms >= wanted)
        assert log.offset_for_timestamp(wanted) == first


def remembered(log: Log) -> dict[int, tuple[int, bool]]:
    """The last offset of every producer in the log, and whether it has an open transaction."""
    return {
        each.producer_id: (each.last_offset, each.transaction_first_offset >= 0)
        for each in log.producer_state.entries()
    }


def _check_producers(log: Log, story: Story, kept: dict[int, int], *, is_compacted: bool) -> None:
    """Sequences, epochs, open and aborted transactions are exactly the ones of the remaining records."""
    entries = log.producer_state.entries()
    if not kept and log.next_offset == log.log_start_offset:
        story = story.copy()
        story.begun_anew(remembered(log))
    known, aborted = story.producers(kept, log.next_offset)
    found = {e.producer_id: (e.producer_epoch, e.last_sequence, e.last_offset) for e in entries}
    wanted = {producer_id: (each.epoch, each.last_sequence, each.last_offset) for producer_id, each in known.items()}
    assert found == wanted, "the producer state is not the one of the remaining records"
    begun = [each.first_open for each in known.values() if each.first_open >= 0]
    stable = max(min(begun, default=log.next_offset), log.log_start_offset)
    assert log.last_stable_offset == stable, "the last stable offset is wrong"
    start = log.local_log_start_offset
    told = {(e.producer_id, e.first_offset, e.last_offset) for e in log.aborted_transactions(start, stable)}
    wanted_entries = {each for each in aborted if each[2] >= start and each[1] < stable}
    if is_compacted:
        # The cleaner removes an entry with the last of its records. `check_compacted` proves that none of them is
        # shown.
        assert told <= wanted_entries, "a transaction is listed as aborted that no producer aborted"
    else:
        assert told == wanted_entries, "the list of aborted transactions is wrong"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings of recovery, which logs every tail that it truncates."""
    logger = logging.getLogger("local")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
