"""Crash states of a log: taken while a program runs, each recovered and compared with what was promised.

A program runs once. After each effect and each promise the disk is asked, `draws` times, what a crash right there might
leave (`ModelDisk.crash`). A state that was met before (equal contents, equal promises) is not looked at again; every
other one goes through the **aftermath**: recover, compare, append, compare, close, reopen, compare. The power goes in
the aftermath too: of its own effects some are drawn for nested states, which go through an aftermath of their own.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from disk_model import ModelDisk
from log_script import FLUSHED, NAME, ROOT, Case, Story, World, play

from local import kernels, offset_index, time_index
from local.batch import BatchHeader, read_marker
from local.batch_header import CONTROL
from local.columns import BatchTable
from local.log import Log
from local.names import LOG, OFFSET_INDEX, TIME_INDEX

DEPTH_MAX = 2
NESTED_ODDS = 0.05


@dataclass
class Tally:
    """What an exploration saw; `seen` holds a digest of every distinct state."""

    drawn: int = 0
    nested: int = 0
    seen: set[int] = field(default_factory=set)

    @property
    def distinct(self) -> int:
        return len(self.seen)


@dataclass
class _State:
    disk: ModelDisk
    story: Story
    depth: int
    where: str


def explore(case: Case, *, draws: int, seed: int = 0, tally: Tally | None = None, states_max: int = 1 << 60) -> Tally:
    """Every cut of `case`, `draws` ways of forgetting each. Raises what the first state that breaks a promise raises,
    with a note of how to come back to it."""
    tally = Tally() if tally is None else tally
    rng = random.Random(f"{case.name} {seed}")
    disk, story = ModelDisk(), Story(keys=case.keys)
    waiting: list[_State] = []
    with _quiet():
        _collect(disk, story, waiting, tally, rng, draws=lambda: draws, depth=0)
        play(case.program, disk, case.settings, story)
        # Taken from all over the program, should `states_max` end it early.
        rng.shuffle(waiting)
        while waiting and tally.distinct < states_max:
            _look_at(waiting.pop(), case, waiting, tally, rng, seed)
    return tally


def _collect(
    disk: ModelDisk,
    story: Story,
    waiting: list[_State],
    tally: Tally,
    rng: random.Random,
    *,
    draws: Callable[[], int],
    depth: int,
) -> None:
    """Have crash states of `disk` put on the list after each of its effects and each promise of `story`."""

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
                tally.nested += depth > 0
                told = told or story.copy()
                waiting.append(_State(state, told.copy(), depth, f"effect {disk.effects} {disk.journal[-3:]}"))

    disk.watch = story.watch = watch


def _look_at(state: _State, case: Case, waiting: list[_State], tally: Tally, rng: random.Random, seed: int) -> None:
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
    story.found(found, world.log.log_start_offset)
    world.append(3, FLUSHED)
    check(world.log, disk, story, case)
    world.reopen()
    check(world.log, disk, story, case)


# -- what must hold ----------------------------------------------------------------------------------------------------


def check(log: Log, disk: ModelDisk, story: Story, case: Case) -> dict[int, int]:
    """Every promise against what is in the log; the serial found at each offset."""
    start, end = log.log_start_offset, log.next_offset
    assert story.start_promised <= start <= story.start_allowed, "the log start went back, or ahead by itself"
    assert end > max(story.acked, default=-1), "an acknowledged offset would be given again"
    assert end >= story.durable_end, "an acknowledged marker is gone"
    kept = _contents(log, story)
    tables = {base: _table(log, disk, base) for base in (info.base_offset for info in log.segments())}
    markers = {int(at) for table in tables.values() for at in table.base_offsets[(table.attributes & CONTROL) != 0]}
    if case.settings.is_compacted:
        _check_newest_per_key(kept, story)
    else:
        _check_whole(kept, markers, story, start, end)
    if start == 0 and not case.settings.is_compacted:
        _check_producers(log, disk, tables)
    _check_indexes(disk, tables)
    _check_epochs(log, tables)
    _check_times(log, story, kept)
    return kept


def _contents(log: Log, story: Story) -> dict[int, int]:
    """Serial by offset, each record whole and sent to that very offset. Records below the log start are left out."""
    kept: dict[int, int] = {}
    offset = start = log.local_log_start_offset
    while data := log.read(offset):
        columns = kernels.decode_columns(data)
        for stored in columns.records():
            assert stored.offset not in kept, "an offset was read twice"
            assert stored.value is not None
            serial = int(stored.value[1:])
            record = story.records[serial]
            assert (stored.key, stored.value, stored.timestamp_ms) == record[:3], "a record was made up"
            if stored.offset >= start:
                assert serial in story.sent.get(stored.offset, ()), f"at offset {stored.offset} a record of another"
                kept[stored.offset] = serial
        assert columns.next_offset > offset
        offset = columns.next_offset
    assert list(kept) == sorted(kept)
    assert offset == log.next_offset, "the log ends before its end"
    return kept


def _check_whole(kept: dict[int, int], markers: set[int], story: Story, start: int, end: int) -> None:
    assert sorted({*kept, *markers} - set(range(start))) == list(range(start, end)), "a hole"
    for offset, serial in story.acked.items():
        assert offset < start or kept[offset] == serial, f"acknowledged offset {offset} is gone or changed"
    for offset, serial in kept.items():
        assert offset == start or story.before[serial] == kept.get(offset - 1, 0), "two histories were mixed"


def _check_producers(log: Log, disk: ModelDisk, tables: dict[int, BatchTable]) -> None:
    """What a plain reading of all batches says of producers and transactions is what the log says and answers."""
    last: dict[int, BatchHeader] = {}
    began: dict[int, int] = {}
    aborted: list[tuple[int, int, int]] = []
    for base, table in tables.items():
        data = disk.read(log.segment(base).path(LOG))
        for row in [row for row in range(len(table)) if table.producer_ids[row] >= 0]:
            header = table.row(row)
            if not header.is_control:
                last[header.producer_id] = header
                if header.is_transactional:
                    began.setdefault(header.producer_id, header.base_offset)
            elif (first := began.pop(header.producer_id, None)) is not None:
                marker = read_marker(data, int(table.positions[row]))
                assert marker is not None
                if not marker.is_commit:
                    aborted.append((header.producer_id, first, header.base_offset))
    stable = min(began.values(), default=log.next_offset)
    assert log.last_stable_offset == stable, "another last stable offset than the batches say"
    told = [(each.producer_id, each.first_offset, each.last_offset) for each in log.aborted_transactions(0, stable)]
    assert told == [each for each in aborted if each[1] < stable], "other aborted transactions than the batches say"
    for header in last.values():
        again = log._producers.check(header)
        assert again is not None, "a retry of a producer's last batch is not known again"
        assert again.base_offset == header.base_offset
    assert {entry.producer_id for entry in log._producers.entries()} >= set(last)


def _check_newest_per_key(kept: dict[int, int], story: Story) -> None:
    newest = {story.records[serial].key: offset for offset, serial in sorted(story.acked.items())}
    found = {story.records[serial].key: offset for offset, serial in kept.items()}
    for key, offset in newest.items():
        assert found.get(key, -1) >= offset, f"the newest record of {key!r} is gone"
    for offset, serial in kept.items():
        assert story.acked.get(offset, serial) == serial


def _table(log: Log, disk: ModelDisk, base: int) -> BatchTable:
    table = kernels.scan_batches(disk.read(log.segment(base).path(LOG)))
    assert table.problem is None, "a recovered segment ends in bytes that are no batch"
    return table


def _check_indexes(disk: ModelDisk, tables: dict[int, BatchTable]) -> None:
    """Every entry names a batch of the log, in order; a time entry names the largest timestamp up to its offset."""
    for base, table in tables.items():
        path = f"{ROOT}/{NAME.directory}/{base:020d}"
        batches = dict(zip(table.last_offsets.tolist(), table.positions.tolist(), strict=True))
        offsets = disk.read(path + OFFSET_INDEX)
        offset_index.check(offsets, 1 << 40, path=path)
        for offset, position in offset_index.entries(offsets, base):
            assert batches.get(offset) == position, f"an index entry names no batch: {offset} at {position}"
        times = disk.read(path + TIME_INDEX)
        time_index.check(times, path=path)
        largest, latest = dict[int, int](), -1
        for last, timestamp in zip(batches, table.max_timestamps.tolist(), strict=True):
            largest[last] = latest = max(latest, timestamp)
        for timestamp, offset in time_index.entries(times, base):
            assert largest.get(offset) == timestamp, f"a time entry names no batch: {timestamp} at {offset}"


def _check_epochs(log: Log, tables: dict[int, BatchTable]) -> None:
    entries = log.epochs.entries
    assert all(a < b and s < t for (a, s), (b, t) in pairwise(entries)), "epochs out of order"
    assert not entries or entries[-1][1] <= log.next_offset, "an epoch begins past the log end"
    for table in tables.values():
        for offset, epoch in zip(table.base_offsets.tolist(), table.leader_epochs.tolist(), strict=True):
            known = [e for e, start in entries if start <= offset]
            assert known, f"no epoch is known for offset {offset}"
            assert known[-1] == epoch, f"a batch at {offset} of epoch {epoch}, the checkpoint says {known[-1]}"


def _check_times(log: Log, story: Story, kept: dict[int, int]) -> None:
    if kept:
        wanted = story.records[kept[max(kept)]].timestamp_ms
        first = next(offset for offset, serial in kept.items() if story.records[serial].timestamp_ms >= wanted)
        told = log.offset_for_timestamp(wanted)
        assert told == first, f"the first record at or after {wanted} is {first}, the lookup says {told}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Recovery warns of every tail it cuts; here that is most of the work."""
    logger = logging.getLogger("local")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
