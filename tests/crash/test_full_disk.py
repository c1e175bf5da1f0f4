"""A disk that becomes full at each effect of a program in turn, and has space again a little later.

Directories are full as well. The log refuses calls that need space, still reads, and takes the same call once there is
space; it is not reopened. All acknowledged records are read by the log itself, by a log that was closed and opened, and
by a log that was opened after a kill.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from filling_disk import FillingDisk
from log_world import SMALL, open_log, read_all

from local.cleaner import cleaner
from local.errors import DiskFailed
from local.format.record import Record
from local.log import Durability, Log
from local.log.producer_state import Producer
from local.names import CLEANED, SWAP

MARKER = b"the end of a transaction"
KEYS = 3
TRIES = 3  # calls on a full disk before there is space


class Story:
    """A log, its acknowledged records, and steps that are repeated until they succeed."""

    def __init__(self, full_from: int | None, *, is_compacted: bool = False) -> None:
        self.disk = FillingDisk()
        self.log = open_log(self.disk, replace(SMALL, is_compacted=is_compacted))
        self.disk.full_from = full_from
        self.acked: list[bytes | None] = []
        self.start = 0

    def step(self, act: Callable[[], object]) -> None:
        for at in range(TRIES + 1):
            if at == TRIES:
                self.disk.full_from = None
            try:
                act()
            except DiskFailed as error:
                if not error.lacks_room:
                    raise  # the log is unusable
                self.check(self.log)
            else:
                return
        raise AssertionError("a step was refused although there is space")

    def append(self, count: int, producer: Producer | None = None) -> None:
        first = len(self.acked)
        records = [Record(b"k%d" % (at % KEYS), b"v%d" % at, 5000 + at) for at in range(first, first + count)]

        def act() -> None:
            del self.acked[first:]
            done = self.log.next_offset - first  # batches of a refused call may be in the log too
            if producer is not None:
                given = self.log.append(records, now_ms=1000, durability=Durability.FLUSHED, producer=producer)
                assert given.base_offset == first
            elif done < count:
                self.log.append(records[done:], now_ms=1000, durability=Durability.FLUSHED)
            self.acked += [each.value for each in records]

        self.step(act)

    def abort(self, producer_id: int) -> None:
        offset = len(self.acked)
        self.step(lambda: self.log.append_marker(producer_id, 0, commit=False, now_ms=1000))
        assert self.log.next_offset == offset + 1
        aborted = self.log.segment(self.log.segments()[-1].base_offset).aborted()
        assert [each.last_offset for each in aborted] == [offset]
        self.acked.append(MARKER)

    def clean(self) -> None:
        now = {"now_ms": 2000, "delete_retention_ms": 1000}
        self.step(lambda: cleaner.clean(self.log, clean_from=0, tombstones_below=0, **now))

    def check(self, log: Log) -> None:
        assert not [name for name in self.disk.names if name.endswith((CLEANED, SWAP))], (
            "files of an unfinished swap are left"
        )
        found = {each.offset: each.value for each in read_all(log, self.start)}
        if log.settings.is_compacted:
            newest = range(max(0, len(self.acked) - KEYS), len(self.acked))
            assert {at: found.get(at) for at in newest} == {at: self.acked[at] for at in newest}
            assert found == {at: self.acked[at] for at in found if at < len(self.acked)}
            return
        told = {at: value for at, value in enumerate(self.acked) if at >= self.start and value is not MARKER}
        assert {at: found.get(at) for at in told} == told


def play(full_from: int | None) -> Story:
    story = Story(full_from)
    story.append(12)
    story.append(4, Producer(producer_id=7, producer_epoch=0, base_sequence=0))
    story.step(lambda: story.log.roll(now_ms=2000))
    story.append(15)
    story.append(4, Producer(producer_id=7, producer_epoch=0, base_sequence=4))
    story.step(lambda: story.log.roll(now_ms=3000))
    story.append(6)
    story.append(2, Producer(producer_id=8, producer_epoch=0, base_sequence=0, is_transactional=True))
    story.abort(8)
    story.append(3, Producer(producer_id=7, producer_epoch=0, base_sequence=8))
    bases = [each.base_offset for each in story.log.segments()]
    story.log.snapshots._remove([bases[1]])  # a roll without space for a producer snapshot writes none
    story.start = bases[1]
    story.step(lambda: story.log.drop_before(bases[1], now_ms=4000, delay_ms=0, raises_log_start=True))
    story.step(lambda: story.log.remove_deleted(5000))
    story.append(9)
    story.disk.full_from = None
    return story


def play_compacted(full_from: int | None) -> Story:
    story = Story(full_from, is_compacted=True)
    for _ in range(2):
        story.append(15)
        story.step(lambda: story.log.roll(now_ms=2000))
        story.append(9)
        story.step(lambda: story.log.roll(now_ms=2000))
        story.clean()
        story.step(lambda: story.log.remove_deleted(2000))
    story.append(5)
    story.disk.full_from = None
    return story


@pytest.mark.parametrize("play", [play, play_compacted])
def test_log_with_a_full_disk_at_any_effect_continues_without_a_reopen(play: Callable[[int | None], Story]) -> None:
    met, renames, count = 0, 0, play(None).disk.effects
    for full_from in range(count):
        story = play(full_from)
        met += story.disk.refused > 0
        renames += story.disk.refused_renames
        story.check(story.log)
        killed = open_log(story.disk, story.log.settings, log_start_offset=story.start)
        story.check(killed)
        killed.release()
        assert story.log.close(), full_from
        again = open_log(story.disk, story.log.settings, was_clean=True, log_start_offset=story.start)
        story.check(again)
        assert again.next_offset == len(story.acked)
        again.close()
    assert met > count // 2
    assert renames > 10
