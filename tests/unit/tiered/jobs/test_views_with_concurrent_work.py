"""Readers of a view while a writer rebuilds it repeatedly, with a very short thread switch interval."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from manager_world import NAME, NOW, TIERED, World, settle

from local.format.record import Record
from tiered.jobs.view_jobs import build_views, plan_views
from tiered.manager.manager import LogManager

ROUNDS, KEYS = 12, 7


@pytest.fixture(autouse=True)
def hostile_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def tables(manager: LogManager) -> list[dict[bytes, bytes]]:
    """The newest value of each key at every offset of the log."""
    state: dict[bytes, bytes] = {}
    found = [{}]
    for record in manager.reader().records(NAME, 0):
        if record.value is None:
            state.pop(record.key or b"", None)
        else:
            state[record.key or b""] = record.value
        found.append(dict(state))
    return found


def test_view_and_log_read_during_rebuilds_give_the_state_at_one_offset() -> None:
    world = World()
    manager = world.open()
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    seen: list[tuple[int, dict[bytes, bytes], int]] = []
    failures: list[BaseException] = []
    is_over = threading.Event()

    def read() -> None:
        reader = manager.reader(read_compacted=True)
        try:
            while not is_over.is_set():
                before = manager.partitions.all()[0].log.next_offset
                state: dict[bytes, bytes] = {}
                offsets = []
                for record in reader.records(NAME, 0):
                    offsets.append(record.offset)
                    if record.value is None:
                        state.pop(record.key or b"", None)
                    else:
                        state[record.key or b""] = record.value
                assert offsets == sorted(set(offsets))
                seen.append((before, state, manager.partitions.all()[0].log.next_offset))
        except BaseException as error:  # noqa: BLE001 - asserted by the test's thread
            failures.append(error)

    write(manager, 0)
    readers = [threading.Thread(target=read) for _ in range(2)]
    for each in readers:
        each.start()
    for turn in range(1, ROUNDS):
        write(manager, turn)
    is_over.set()
    for each in readers:
        each.join()
    assert failures == []
    known = tables(manager)
    assert len(seen) > 2
    for before, state, after in seen:
        assert state in known[before : after + 1]
    manager.close()


def write(manager: LogManager, turn: int) -> None:
    records = [
        Record(b"k%d" % (at % KEYS), None if (at + turn) % 5 == 0 else b"%d in %d" % (at, turn), NOW)
        for at in range(3 * KEYS)
    ]
    manager.append("t", records, 0, now_ms=NOW)
    manager.partitions.roll("t", now_ms=NOW)
    settle(manager)
    build_views(manager, plan_views(manager, "t", now_ms=NOW))
    assert manager.problems == {}
