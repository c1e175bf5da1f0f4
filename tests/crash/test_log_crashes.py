"""Every disk call of the local log cut before and after its effect; then recover, append, reopen, compare."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from disk_model import ModelDisk, PowerCut

from local import cleaner, kernels
from local.log import Durability, Log
from local.log_dirs import LogDirectory
from local.names import TopicPartition
from local.record import Record
from local.settings import LogSettings

NAME = TopicPartition("t", 0)
ROOT = "./data"
SMALL = LogSettings(segment_bytes=700, index_interval_bytes=150, batch_bytes=200)
COMPACTED = LogSettings(segment_bytes=700, index_interval_bytes=150, batch_bytes=200, is_compacted=True)


@dataclass
class Story:
    """What the workload was promised, as it went along."""

    acked: dict[int, Record] = field(default_factory=dict)
    sent: dict[int, Record] = field(default_factory=dict)
    start: int = 0
    clock: int = 1_000


def _append(log: Log, story: Story, count: int, durability: Durability, keys: int = 1 << 30) -> None:
    first = log.next_offset
    records = [Record(b"k%d" % ((first + i) % keys), b"v%d" % (first + i), story.clock + i) for i in range(count)]
    story.sent.update({first + i: record for i, record in enumerate(records)})
    result = log.append(records, now_ms=story.clock, durability=durability)
    assert result.base_offset == first
    if durability is Durability.FLUSHED:
        story.acked.update({o: r for o, r in story.sent.items() if o < result.next_offset})
    story.clock += 10


def _open(disk: ModelDisk, settings: LogSettings, story: Story) -> tuple[LogDirectory, Log]:
    directory = LogDirectory(disk, ROOT)
    if NAME not in directory.partitions():
        directory.create(NAME, "A" * 22)
    return directory, directory.open_log(NAME, settings, now_ms=story.clock)


def delete_workload(disk: ModelDisk, story: Story) -> None:
    directory, log = _open(disk, SMALL, story)
    _append(log, story, 5, Durability.FLUSHED)
    _append(log, story, 30, Durability.MEMORY)
    _append(log, story, 3, Durability.FLUSHED)
    log.roll(now_ms=story.clock)
    story.acked.update(story.sent)
    _append(log, story, 4, Durability.MEMORY)
    log.flush()
    story.acked.update(story.sent)
    directory.write_checkpoints()
    boundary = log.segments()[2].base_offset
    story.start = boundary
    log.drop_before(boundary, now_ms=story.clock, delay_ms=0, raises_log_start=True)
    log.remove_deleted(story.clock)
    _append(log, story, 2, Durability.FLUSHED)
    directory.close()
    story.acked.update(story.sent)
    directory, log = _open(disk, SMALL, story)
    _append(log, story, 6, Durability.FLUSHED)


def compact_workload(disk: ModelDisk, story: Story) -> None:
    directory, log = _open(disk, COMPACTED, story)
    _append(log, story, 40, Durability.FLUSHED, keys=7)
    log.roll(now_ms=story.clock)
    cleaner.clean(log, disk, clean_from=0, now_ms=story.clock)
    directory.write_cleaner_offsets()
    log.remove_deleted(story.clock)
    _append(log, story, 20, Durability.FLUSHED, keys=5)
    log.roll(now_ms=story.clock)
    cleaner.clean(log, disk, clean_from=0, now_ms=story.clock)
    directory.write_cleaner_offsets()
    _append(log, story, 3, Durability.FLUSHED, keys=5)


def _contents(log: Log) -> dict[int, Record]:
    found: dict[int, Record] = {}
    offset = log.local_log_start_offset
    while data := log.read(offset, 500):
        columns = kernels.decode_columns(data)
        for stored in columns.records():
            assert stored.offset not in found, "an offset was read twice"
            found[stored.offset] = Record(stored.key, stored.value, stored.timestamp_ms)
        assert columns.next_offset > offset
        offset = columns.next_offset
    assert list(found) == sorted(found)
    return found


def _check_nothing_lost(log: Log, story: Story) -> None:
    found = _contents(log)
    for offset, record in found.items():
        assert story.sent[offset] == record
    for offset, record in story.acked.items():
        if offset >= max(story.start, log.log_start_offset):
            assert found.get(offset) == record, f"acknowledged offset {offset} is gone"
    assert log.log_start_offset <= story.start


def _check_newest_per_key(log: Log, story: Story) -> None:
    found = _contents(log)
    for offset, record in found.items():
        assert story.sent[offset] == record
    newest = {record.key: offset for offset, record in sorted(story.acked.items())}
    kept = {record.key: offset for offset, record in sorted(found.items())}
    for key, offset in newest.items():
        assert kept.get(key, -1) >= offset, f"the newest record of {key!r} is gone"


Workload = Callable[[ModelDisk, Story], None]
Check = Callable[[Log, Story], None]
CASES: list[tuple[str, Workload, LogSettings, Check]] = [
    ("delete", delete_workload, SMALL, _check_nothing_lost),
    ("compact", compact_workload, COMPACTED, _check_newest_per_key),
]


def explore(workload: Workload, settings: LogSettings, check: Check, *, seeds: int, first_seed: int = 0) -> int:
    """Cut at every effect, before and after; `seeds` ways of forgetting each; how many states were checked."""
    rehearsal = ModelDisk()
    workload(rehearsal, Story())
    states = 0
    for at in range(1, rehearsal.effects + 1):
        for before in (True, False):
            for seed in range(first_seed, first_seed + seeds):
                check_state(workload, settings, check, at=at, before=before, seed=seed)
                states += 1
    return states


def check_state(workload: Workload, settings: LogSettings, check: Check, *, at: int, before: bool, seed: int) -> None:
    disk, story = ModelDisk(), Story()
    disk.cut_at, disk.cut_before = at, before
    with pytest.raises(PowerCut):
        workload(disk, story)
    rng = random.Random(f"{at} {before} {seed}")
    found = disk.crash(rng)
    if seed % 3 == 0:
        # The power goes again, inside recovery.
        found.cut_at = found.effects + 1 + rng.randrange(12)
        with suppress(PowerCut):
            _open(found, settings, story)
        found = found.crash(rng)
    directory, log = _open(found, settings, story)
    check(log, story)
    story.sent = {offset: record for offset, record in story.sent.items() if offset < log.next_offset}
    _append(log, story, 3, Durability.FLUSHED, keys=5 if settings.is_compacted else 1 << 30)
    check(log, story)
    directory.close()
    _, log = _open(found, settings, story)
    check(log, story)


@pytest.mark.parametrize(("name", "workload", "settings", "check"), CASES, ids=[case[0] for case in CASES])
def test_no_acknowledged_record_is_lost_whatever_call_is_cut(
    name: str, workload: Workload, settings: LogSettings, check: Check
) -> None:
    assert explore(workload, settings, check, seeds=8) > 1000
