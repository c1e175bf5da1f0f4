"""A store that hangs: every verb ends by its deadline, and threads are bounded."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from local.errors import NotFound, Unavailable
from remote.store import LIST_PAGE, UploadSource, ranged_source
from remote.store.memory_store import MemoryStore
from remote.store.middleware import deadlines_and_retries
from remote.store.middleware.deadlines_and_retries import (
    Deadlines,
    ProgressSignal,
    RetryingStore,
    RetryPolicy,
    Watchdog,
    WatchedStore,
    _watched_parts,
)

SHORT = Deadlines(call_s=0.1, upload_stall_s=0.1, close_s=0.1)
VERBS = {
    "put": lambda store: store.put("a", b"x"),
    "put_if_absent": lambda store: store.put_if_absent("b", b"x"),
    "upload": lambda store: store.upload("a", ranged_source(1, lambda start, length: b"x")),
    "get": lambda store: store.get("a"),
    "get_range": lambda store: store.get_range("a", 0, 1),
    "get_ranges": lambda store: store.get_ranges("a", [(0, 1)]),
    "head": lambda store: store.head("a"),
    "list_prefixes": lambda store: store.list_prefixes(""),
    "list": lambda store: list(store.list("")),
    "delete": lambda store: store.delete(["a"]),
}


class Hanging(MemoryStore):
    """Every verb waits until `release`, then does its work."""

    def __init__(self):
        super().__init__()
        super().put("a", b"x")
        self.release = threading.Event()

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in (*VERBS, "close"):
            return found

        def hang(*args, **kwargs):
            self.release.wait(30)
            return found(*args, **kwargs)

        return hang


@pytest.fixture
def hanging():
    store = Hanging()
    yield store
    store.release.set()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_a_store_that_hangs_for_ever_ends_by_its_deadline(hanging, verb):
    store, begun = WatchedStore(hanging, deadlines=SHORT), time.monotonic()
    with pytest.raises(Unavailable, match="no reply before the deadline"):
        VERBS[verb](store)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_hangs_once_is_retried(verb):
    class HangsOnce(MemoryStore):
        def __getattribute__(self, name):
            return hang if name in VERBS and not hung.is_set() else super().__getattribute__(name)

    class EndsWhatHangs(Watchdog):
        """The deadline of a call passes once the store hangs, on a slow machine too."""

        def run(self, call, limit, attempt, **facts):
            return super().run(call, ProgressSignal(0.05, clock=lambda: float(hung.is_set())), attempt, **facts)

    def hang(*args, **kwargs):
        hung.set()
        gate.wait(30)

    hung, gate, store = threading.Event(), threading.Event(), HangsOnce()
    MemoryStore.put(store, "a", b"x")
    watchdog = EndsWhatHangs()
    patient = RetryingStore(WatchedStore(store, watchdog), RetryPolicy(sleep=lambda _: None))
    try:
        VERBS[verb](patient)
        assert hung.is_set()
        assert watchdog.abandoned == 1, "expected that only the first attempt hangs"
    finally:
        gate.set()


def test_closing_a_store_that_hangs_returns(hanging):
    watchdog = Watchdog()
    WatchedStore(hanging, watchdog, SHORT).close()
    assert watchdog.abandoned == 1


def test_threads_of_abandoned_calls_are_bounded_and_reused(hanging, monkeypatch):
    monkeypatch.setattr(deadlines_and_retries, "ABANDONED_MAX", 3)
    watchdog = Watchdog()
    store, patient = WatchedStore(hanging, watchdog, SHORT), WatchedStore(hanging, watchdog)
    for _ in range(3):
        with pytest.raises(Unavailable, match="no reply"):
            store.get("a")
    with pytest.raises(Unavailable, match=r"too many calls to the store do not return.*hanging=3"):
        store.get("a")
    assert watchdog.abandoned == 3
    hanging.release.set()
    for _ in range(30_000):
        if watchdog.abandoned == 0:
            break
        time.sleep(0.002)
    assert watchdog.abandoned == 0
    assert patient.get("a") == b"x"


def test_threads_are_reused_and_errors_pass_through():
    store, before = WatchedStore(MemoryStore()), threading.active_count()
    for _ in range(200):
        with pytest.raises(NotFound):
            store.get("none")
    assert threading.active_count() <= before + 1


def test_an_upload_may_take_any_time_while_it_makes_progress():
    now = [0.0]
    progress_signal = ProgressSignal(10.0, clock=lambda: now[0])
    for _ in _watched_parts(UploadSource(parts=lambda: iter([b"x"] * 30)), progress_signal):
        now[0] += 9.0
        assert progress_signal.left_s() == 1.0
    assert now[0] == 270.0


def test_a_slow_source_of_parts_does_not_count_as_a_hanging_store():
    now = [0.0]
    progress_signal = ProgressSignal(10.0, clock=lambda: now[0])

    def parts():
        for _ in range(3):
            now[0] += 100.0  # a throttle, a slow disk
            assert progress_signal.left_s() == 10.0
            yield b"x"

    for _ in _watched_parts(UploadSource(parts=parts), progress_signal):
        assert progress_signal.left_s() == 10.0


def test_waiting_for_other_uploads_does_not_count_as_a_hanging_store(monkeypatch):
    """Earlier, a large upload that waited for two slow ones was abandoned after the deadline."""
    going_on, began, asked = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)
    most, pulses = [], []

    class Counting(MemoryStore):
        def upload(self, key, source):
            most.append(key)
            super().upload(key, source)

    class Places:
        """Signals each upload that asks for one of the store's places."""

        def __enter__(self):
            asked.release()
            places.acquire()

        def __exit__(self, *error):
            places.release()

    class CountedSignal(ProgressSignal):
        def __init__(self, limit_s):
            pulses.append(limit_s)
            super().__init__(limit_s)

    def parts():
        began.release()
        assert going_on.wait(30)
        yield b"x"

    monkeypatch.setattr("remote.store.middleware.deadlines_and_retries.ProgressSignal", CountedSignal)
    inner = Counting()
    store = WatchedStore(inner, uploads_max=2)
    places, store._places = store._places, Places()
    with ThreadPoolExecutor(3) as threads:
        uploads = [threads.submit(store.upload, key, UploadSource(parts=parts)) for key in ("a", "b", "c")]
        for gate in (began, began, asked, asked, asked):
            assert gate.acquire(timeout=60)
        assert len(most) == 2
        assert len(pulses) == 2, "time counts for the waiting upload"
        going_on.set()
        for each in uploads:
            each.result(30)
    assert [info.key for info in inner.list("")] == ["a", "b", "c"]


def test_an_upload_that_hung_frees_its_place_for_the_next_one(hanging):
    store = WatchedStore(hanging, deadlines=SHORT, uploads_max=1)
    for _ in range(2):
        with pytest.raises(Unavailable, match="no reply"):
            store.upload("a", ranged_source(1, lambda start, length: b"x"))


def test_an_abandoned_upload_gets_no_further_part():
    asked, resumed, ended = [], threading.Event(), threading.Event()

    class HangsBetweenParts(MemoryStore):
        def upload(self, key, source):
            try:
                for number, _ in enumerate(source.parts()):
                    asked.append(number)
                    resumed.wait(30)
                self.put(key, b"late")
            finally:
                ended.set()

    inner = HangsBetweenParts()
    store = WatchedStore(inner, deadlines=SHORT)
    with pytest.raises(Unavailable, match="no reply"):
        store.upload("a", UploadSource(parts=lambda: iter([b"x"] * 9)))
    resumed.set()
    assert ended.wait(60)
    assert asked in ([0], []), "more parts than the first were read"
    assert list(inner.list("")) == []


def test_a_pulse_counts_from_the_last_beat_and_not_while_it_is_paused():
    now = [0.0]
    progress_signal = ProgressSignal(10.0, clock=lambda: now[0])
    now[0] = 9.0
    assert progress_signal.left_s() == 1.0
    progress_signal.pause()
    now[0] = 100.0
    assert progress_signal.left_s() == 10.0
    progress_signal.beat()
    now[0] = 110.0
    assert progress_signal.left_s() == 0.0


def test_the_deadline_grows_with_the_bytes_of_a_call():
    assert Deadlines(call_s=60.0).of(0) == 60.0
    assert Deadlines(call_s=60.0).of(64 << 20) == 60.0 + 512


@pytest.mark.parametrize(("keys", "pages"), [(0, 1), (3, 1), (LIST_PAGE, 2), (LIST_PAGE + 1, 2)])
def test_a_listing_requests_no_page_after_one_that_was_not_full(keys, pages, monkeypatch):
    inner = MemoryStore()
    for at in range(keys):
        inner.put(f"k{at:05}", b"x")
    watchdog = Watchdog()
    run, asked = watchdog.run, []
    monkeypatch.setattr(watchdog, "run", lambda *words, **facts: asked.append(words[2]) or run(*words, **facts))
    policy = RetryPolicy()
    call, tried = RetryPolicy.call, []
    monkeypatch.setattr(
        RetryPolicy, "call", lambda self, *words, **facts: tried.append(1) or call(self, *words, **facts)
    )
    store = RetryingStore(WatchedStore(inner, watchdog), policy)
    assert len(list(store.list(""))) == keys
    assert (len(asked), len(tried)) == (pages, pages)
