"""Pages answer within their deadline under any store or disk fault, with known data and the current problem."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from types import SimpleNamespace

import pytest
from manager_world import NOW, TIERED, SwitchableStore, World, send, settle
from web_pages import data, page, site

from local.errors import AccessDenied, NotFound, Unavailable
from remote.store.memory_store import MemoryStore
from tiered.manager.manager import LogManager
from tiered.web.pages import manager_cache as looks_module
from tiered.web.pages.manager_cache import (
    AGE_MAX_MS,
    FRESH_MS,
    RESULTS_MAX,
    STALE_MS,
    THREADS_MAX,
    DataLoader,
    Loaded,
    ManagerCache,
    data_age,
    silent_store,
)
from tiered.web.pages.site import CACHE_MS, Site

PATHS = ("/", "/plan", "/cost", "/compaction", "/groups", "/troubles", "/topics/t", "/topics/t/0")
SOON_S = 0.02  # a deadline short enough for a test


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


class Hanging:
    """A function that returns only after its event is set."""

    def __init__(self, value: object = "found") -> None:
        self.value = value
        self.may_go, self.calls = threading.Event(), 0

    def __call__(self) -> object:
        self.calls += 1
        assert self.may_go.wait(30)
        return self.value


class HangingStore(SwitchableStore):
    """A store whose calls block while its event is cleared."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner, is_down=False)
        self.may_go = threading.Event()
        self.may_go.set()

    def __getattr__(self, verb: str) -> Callable[..., object]:
        call = super().__getattr__(verb)

        def waiting(*args: object, **more: object) -> object:
            assert self.may_go.wait(30)
            return call(*args, **more)

        return waiting


@pytest.fixture
def world() -> World:
    return World()


def settled(loader: DataLoader, key: str, make: Callable[[], object]) -> object:
    """The value after the read has ended."""
    with suppress(Unavailable):
        loader.get(key, make)
    ended("tiered-page")
    return loader.get(key, make, keep_ms=1 << 40).value


def ended(name: str) -> None:
    """Wait until all threads of the given name prefix have ended."""
    for thread in threading.enumerate():
        if thread.name.startswith(name):
            thread.join(30)
            assert not thread.is_alive()


def test_hanging_read_costs_its_deadline_and_its_result_serves_later_requests() -> None:
    clock, look = Clock(), Hanging()
    loader = DataLoader(clock, deadline_s=SOON_S)
    for _ in range(3):
        with pytest.raises(Unavailable, match="does not reply"):
            loader.get("a", look)
    assert look.calls == 1, "requests during a read must wait for that read"
    look.may_go.set()
    assert settled(loader, "a", look) == "found"


def test_previous_result_is_served_while_a_newer_read_hangs() -> None:
    clock, look = Clock(), Hanging("new")
    loader = DataLoader(clock, deadline_s=SOON_S)
    assert settled(loader, "a", lambda: "old") == "old"
    clock.now += 5000
    told = loader.get("a", look)
    assert (told.value, told.at_ms, told.late_since_ms) == ("old", NOW, NOW + 5000)
    look.may_go.set()
    assert settled(loader, "a", look) == "new"


def test_cached_result_is_served_until_it_is_old_even_if_the_clock_jumps() -> None:
    clock = Clock()
    loader = DataLoader(clock)
    count = iter(range(100))

    def asked() -> object:
        return loader.get("a", lambda: next(count), keep_ms=1000).value

    assert [asked(), asked()] == [0, 0]
    clock.now += 1000
    assert asked() == 1
    clock.now -= 5000
    assert asked() == 2, "a result from the future must not be reused"


def test_error_is_raised_for_waiting_requests_and_the_next_request_reads_again() -> None:
    loader = DataLoader(Clock())

    def fails() -> object:
        raise NotFound("looking for a topic")

    with pytest.raises(NotFound):
        loader.get("a", fails)
    assert loader.get("a", lambda: 1).value == 1


def test_hanging_reads_use_a_bounded_number_of_threads_and_cache_entries() -> None:
    loader = DataLoader(Clock(), deadline_s=SOON_S)
    hanging = [Hanging() for _ in range(THREADS_MAX + 3)]
    before = threading.active_count()
    try:
        for at, each in enumerate(hanging):
            with pytest.raises(Unavailable):
                loader.get(f"{at}", each)
        assert threading.active_count() - before <= THREADS_MAX
        assert sum(each.calls for each in hanging) == THREADS_MAX
    finally:
        for each in hanging:
            each.may_go.set()
    for at in range(3 * RESULTS_MAX):
        settled(loader, f"more {at}", lambda: 1)
    assert len(loader._found) <= RESULTS_MAX


def test_every_page_shows_known_data_while_the_store_hangs(world: World) -> None:
    store = HangingStore(world.store)
    with world.open(store=store) as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.ms": "30d"}, now_ms=NOW)
        send(manager, 400)
        settle(manager)
        before = {path: page(site(world, manager), path) for path in PATHS}
        store.may_go.clear()
        try:
            for path in PATHS:
                assert page(site(world, manager), path) == before[path]
        finally:
            store.may_go.set()


def test_hanging_disk_leaves_the_previous_data_with_a_note(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 100)
        clock, look = Clock(), Hanging([])
        found = Site(manager, clock, storage=world.disk, deadline_s=60)
        assert "late" not in page(found, "/")
        monkeypatch.setattr(found._loader, "_deadline_s", SOON_S)
        monkeypatch.setattr(manager.partitions, "all", lambda topics=None: look())
        clock.now += CACHE_MS
        try:
            body = page(found, "/")
            assert 'href="/topics/t"' in body
            assert 'id="late"' in body
            assert "The data shown is of 2027-01-15 08:00:00 UTC" in body
            body = page(found, "/plan", HTTPStatus.SERVICE_UNAVAILABLE)
            assert "does not reply" in body
        finally:
            look.may_go.set()


def test_hanging_first_read_is_reported_and_pages_work_after_it_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks_module, "FIRST_S", SOON_S)
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        look, clock = Hanging(), Clock()

        def opened() -> LogManager:
            look()
            return world.open(read_only=True)

        looks = ManagerCache(manager.config, opened, clock)
        found = Site(looks, clock, storage=world.disk, deadline_s=60)
        for path in PATHS:
            assert "has not replied" in page(found, path, HTTPStatus.SERVICE_UNAVAILABLE)
        assert look.calls == 1
        look.may_go.set()
        monkeypatch.setattr(looks_module, "FIRST_S", 30)
        for path in PATHS:
            page(found, path)
        looks.close()


def test_store_that_hangs_from_the_start_leaves_local_data_until_it_answers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks_module, "FIRST_S", SOON_S)
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        send(manager, 100, start=300)
    store, clock = HangingStore(world.store), Clock()
    store.may_go.clear()
    looks = ManagerCache(
        world.config,
        lambda: world.open(read_only=True, store=store),  # type: ignore[arg-type]
        clock,
        lambda: world.open(read_only=True, store=silent_store("s3://away")),
    )
    found = Site(looks, clock, storage=world.disk, deadline_s=60)
    try:
        for path in PATHS:
            body = page(found, path)
            assert "the store has not replied" in body
        assert "local tier only: the store has not replied since" in page(found, "/plan")
        (row,) = data(found, "/topics/t?format=json")["partitions"]
        assert row["local_bytes"] > 0
        assert "unknown" in page(found, "/")
    finally:
        store.may_go.set()
    ended("tiered-look")
    clock.now += CACHE_MS
    body = page(found, "/")
    assert "disk alone" not in body
    assert "unknown" not in body
    looks.close()


def test_old_read_only_open_is_replaced_and_closed_after_its_last_use(world: World) -> None:
    clock = Clock()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        made: list[LogManager] = []
        closed: list[LogManager] = []

        def opened() -> LogManager:
            new = world.open(read_only=True)
            end = new.close
            new.close = lambda **more: (closed.append(new), end(**more))  # type: ignore[method-assign, func-returns-value]
            made.append(new)
            return new

        looks = ManagerCache(manager.config, opened, clock)
        with looks.seen() as (first, _):
            clock.now += FRESH_MS - 1
            with looks.seen() as (same, _):
                assert same is first
            clock.now += 1
            with looks.seen():
                pass
            ended("tiered-look")
            with looks.seen() as (newer, _):
                assert newer is not first, "a newer read-only open must replace the old one"
            assert closed == [], "the old one is still in use, so it must stay open"
        assert closed == [first]
        looks.close()
        assert closed == made


def test_failed_or_hanging_reopen_is_reported_on_every_page(world: World) -> None:
    clock = Clock()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        answers: list[Callable[[], LogManager]] = [lambda: world.open(read_only=True)]
        looks = ManagerCache(manager.config, lambda: answers[-1](), clock)
        found = Site(looks, clock, storage=world.disk, deadline_s=60)
        page(found, "/")

        def refused() -> LogManager:
            raise AccessDenied("opening the bucket, <b>refused</b>")

        answers.append(refused)
        clock.now += FRESH_MS
        page(found, "/")
        ended("tiered-look")
        body = page(found, "/")
        assert "The data shown is of 2027-01-15 08:00:00 UTC; refresh failed" in body
        assert "&lt;b&gt;refused" in body
        hanging = Hanging()
        answers.append(lambda: hanging() and world.open(read_only=True))  # type: ignore[arg-type, return-value]
        try:
            ended("tiered-look")
            clock.now += CACHE_MS
            assert "refresh failed" in page(found, "/"), "the previous problem must be shown until there is a newer one"
            clock.now += STALE_MS
            assert "refreshing for" in page(found, "/plan")
        finally:
            hanging.may_go.set()
            looks.close()


def test_manager_that_opens_after_the_pages_closed_is_closed_too(world: World) -> None:
    clock, look, over = Clock(), Hanging(), threading.Event()
    with world.open() as manager:

        def opened() -> LogManager:
            look()
            new = world.open(read_only=True)
            end = new.close
            new.close = lambda **more: (end(**more), over.set())  # type: ignore[method-assign, func-returns-value]
            return new

        looks = ManagerCache(manager.config, opened, clock)

        def ask() -> None:
            with pytest.raises(Unavailable), looks.seen():
                pass

        waiting = threading.Thread(target=ask)
        waiting.start()
        while not look.calls:
            pass
        looks.close()
        look.may_go.set()
        assert over.wait(30)
        waiting.join()


def test_page_with_two_reads_waits_for_one_deadline_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = [0.0]
    monkeypatch.setattr(looks_module, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    found, hangs = DataLoader(Clock(), deadline_s=30), Hanging()
    began, deadline = time.monotonic(), found.deadline()
    try:
        assert found.get("measured", lambda: "late", deadline=deadline).value == "late"
        passed[0] = 30
        with pytest.raises(Unavailable):
            found.get("lab", hangs, deadline=deadline)
    finally:
        hangs.may_go.set()
    assert time.monotonic() - began < 20, "the second read must have no time left"
    assert found.deadline() == 60, "the next request must have its own deadline"


# -- age of the data


def test_first_page_after_an_idle_time_shows_current_data(world: World) -> None:
    clock = Clock()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        looks = ManagerCache(manager.config, lambda: world.open(read_only=True), clock)
        found = Site(looks, clock, storage=world.disk, deadline_s=60)
        assert data(found, "/?format=json")["topics"][0]["offsets"] == 0
        send(manager, 200)
        clock.now += AGE_MAX_MS + 1
        for path in ("/?format=json", "/topics/t?format=json", "/plan?format=json", "/compaction?format=json"):
            facts = data(found, path)
            assert (facts["data_ms"], facts["age_ms"], facts["stale"]) == (clock.now, 0, None), path
        assert data(found, "/?format=json")["topics"][0]["offsets"] == 200
        assert "0ms old" in page(found, "/")
        looks.close()


@pytest.mark.parametrize("path", PATHS)
def test_page_with_data_that_cannot_be_refreshed_shows_its_age(
    world: World, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        settle(manager)
    answers: list[Callable[[], LogManager]] = [lambda: world.open(read_only=True)]
    looks = ManagerCache(world.config, lambda: answers[-1](), clock)
    found = Site(looks, clock, storage=world.disk, deadline_s=60)
    assert 'id="late"' not in page(found, path)
    hanging = Hanging()
    answers.append(lambda: hanging() and world.open(read_only=True))  # type: ignore[arg-type, return-value]
    clock.now += 4 * 60_000
    monkeypatch.setattr(looks_module, "FIRST_S", SOON_S)
    try:
        body = page(found, path)
        assert 'id="late"' in body
        assert "Data of 2027-01-15 08:00:00 UTC, 4m old." in body
        query = f"{path}?format=json" if path != "/cost" else "/cost?format=json&rate=1GiB/d"
        facts = data(found, query)
        assert facts["age_ms"] == 4 * 60_000
        assert "The data shown is of" in str(facts["stale"])
    finally:
        hanging.may_go.set()
        ended("tiered-look")
        looks.close()


def test_page_of_a_running_manager_shows_current_data(world: World) -> None:
    clock = Clock()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        found = Site(manager, clock, storage=world.disk, deadline_s=60)
        for _ in range(2):
            assert data(found, "/?format=json")["age_ms"] == 0
            clock.now += 10 * 60_000


def test_data_older_than_the_limit_is_marked(world: World) -> None:
    clock = Clock()
    with world.open() as manager:
        looks = ManagerCache.of(manager)
        told = Loaded(value=None, at_ms=NOW, read_ms=NOW - AGE_MAX_MS)
        assert data_age(looks, told, clock.now).stale is None
        old = data_age(looks, told, clock.now + 1000)
        assert old.stale is not None
        assert old.age_ms == 31_000
        assert data_age(looks, told, clock.now + 1000, cache_ms=60_000).stale is None
