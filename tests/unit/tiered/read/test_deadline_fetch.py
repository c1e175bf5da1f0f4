"""Fetches with a deadline: they return what arrived and the next offset, and no range is requested twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest
from manager_world import NAME, NOW, TIERED, World, send, settle

from local import kernels
from local.errors import InvalidRequest, OffsetOutOfRange, Unavailable
from remote.store import Body, GetRange, read_if_there
from remote.store.memory_store import MemoryStore
from tiered.manager.manager import LogManager
from tiered.read.deadline_fetch import Fetched, Fetcher

LONG_MS = 30_000


class SlowStore:
    """A store that holds every range request until its gate opens, and then fails it if `is_broken`."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.gate = threading.Event()
        self.is_broken = False
        self.asked: list[tuple[str, tuple[int, int]]] = []

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self.asked += [(key, each) for each in ranges]
        assert self.gate.wait(60)
        if self.is_broken:
            raise Unavailable("the store is away")
        return self.inner.get_ranges(key, ranges)

    def get_each(self, asked: Sequence[GetRange]) -> list[Body | None]:
        return [read_if_there(self, each) for each in asked]  # type: ignore[arg-type]

    def __getattr__(self, verb: str) -> object:
        return getattr(self.inner, verb)


@pytest.fixture
def tiered() -> Iterator[tuple[LogManager, SlowStore]]:
    """A topic of 300 records, the older ones in the bucket only."""
    world = World()
    store = SlowStore(world.store)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        assert manager._source(NAME).log.local_log_start_offset > 100  # type: ignore[union-attr]
        yield manager, store
        store.gate.set()


def offsets_of(fetched: Fetched) -> list[int]:
    return [int(each) for data in fetched.data for columns in kernels.decode_in_steps(data) for each in columns.offsets]


@pytest.mark.parametrize("bytes_max", [1, 500, 2500, 1 << 20])
def test_consecutive_fetches_return_every_record_once_within_the_size_limit(
    tiered: tuple[LogManager, SlowStore], bytes_max: int
) -> None:
    manager, store = tiered
    store.gate.set()
    with Fetcher(manager.reader()) as fetcher:
        got, offset = [], 0
        while (answer := fetcher.fetch(NAME, offset, bytes_max=bytes_max, wait_ms=LONG_MS)).data:
            batches = sum(len(kernels.scan_batches(data)) for data in answer.data)
            assert sum(map(len, answer.data)) <= bytes_max or batches == 1
            assert not answer.is_partial
            got += offsets_of(answer)
            offset = answer.next_offset
        assert got == list(range(300))
        assert (answer.next_offset, answer.is_partial) == (300, False)


def test_fetch_past_its_deadline_is_partial_and_a_later_fetch_reuses_the_request(
    tiered: tuple[LogManager, SlowStore],
) -> None:
    manager, store = tiered
    with Fetcher(manager.reader()) as fetcher:
        for _ in range(3):
            assert fetcher.fetch(NAME, 0, wait_ms=1) == Fetched((), 0, is_partial=True)
        store.gate.set()
        answer = fetcher.fetch(NAME, 0, bytes_max=1000, wait_ms=LONG_MS)
        assert offsets_of(answer)[0] == 0
        assert len(store.asked) == len(set(store.asked)), "no range may be requested twice"


def test_batches_before_a_slow_range_are_returned_without_it(tiered: tuple[LogManager, SlowStore]) -> None:
    manager, store = tiered
    store.gate.set()
    with Fetcher(manager.reader()) as fetcher:
        first = fetcher.fetch(NAME, 0, bytes_max=1, wait_ms=LONG_MS)
        store.gate.clear()
        answer = fetcher.fetch(NAME, first.next_offset, bytes_max=1 << 20, wait_ms=20)
        assert answer.is_partial
        assert offsets_of(answer)[0] == first.next_offset
        assert offsets_of(answer)[-1] + 1 == answer.next_offset < 300


def test_error_is_raised_by_the_fetch_that_reaches_it_and_the_next_fetch_retries(
    tiered: tuple[LogManager, SlowStore],
) -> None:
    manager, store = tiered
    store.is_broken = True
    store.gate.set()
    with Fetcher(manager.reader()) as fetcher:
        with pytest.raises(Unavailable):
            fetcher.fetch(NAME, 0, wait_ms=LONG_MS)
        store.is_broken = False
        assert offsets_of(fetcher.fetch(NAME, 0, wait_ms=LONG_MS))[0] == 0
        with pytest.raises(OffsetOutOfRange):
            fetcher.fetch(NAME, 301, wait_ms=LONG_MS)
        with pytest.raises(InvalidRequest):
            fetcher.fetch(NAME, 0, bytes_max=0, wait_ms=1)
