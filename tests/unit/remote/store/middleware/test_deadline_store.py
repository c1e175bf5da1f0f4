"""A store that hangs: every verb ends by its deadline, threads are bounded, and what was abandoned does no harm."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from local.errors import NotFound, Unavailable
from remote.store import UploadSource, ranged_source
from remote.store.memory_store import MemoryStore
from remote.store.middleware.deadline_store import Deadlines, WatchedStore, _Parts
from remote.store.middleware.retrying_store import LIST_PAGE, RetryingStore, RetryPolicy
from remote.store.middleware.watchdog import Pulse, Watchdog

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
    """Every verb waits until `release`, then does what it should."""

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
    with pytest.raises(Unavailable, match="no answer by the deadline"):
        VERBS[verb](store)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_hangs_once_is_tried_again(verb):
    class HangsOnce(MemoryStore):
        def __getattribute__(self, name):
            return hang if name in VERBS and not hung.is_set() else super().__getattribute__(name)

    class EndsWhatHangs(Watchdog):
        """The deadline of a call passes once the store hangs, however slow the machine is."""

        def run(self, call, limit, attempt, **facts):
            return super().run(call, Pulse(0.05, clock=lambda: float(hung.is_set())), attempt, **facts)

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
        assert watchdog.abandoned == 1, "one try hung, and the next one did not"
    finally:
        gate.set()


def test_closing_a_store_that_hangs_goes_on(hanging):
    watchdog = Watchdog()
    WatchedStore(hanging, watchdog, SHORT).close()
    assert watchdog.abandoned == 1


def test_the_threads_of_abandoned_calls_are_bounded_and_come_back(hanging):
    watchdog = Watchdog(abandoned_max=3)
    store, patient = WatchedStore(hanging, watchdog, SHORT), WatchedStore(hanging, watchdog)
    for _ in range(3):
        with pytest.raises(Unavailable, match="no answer"):
            store.get("a")
    with pytest.raises(Unavailable, match=r"too many calls to the store hang.*hanging=3"):
        store.get("a")
    assert watchdog.abandoned == 3
    hanging.release.set()
    for _ in range(30_000):
        if watchdog.abandoned == 0:
            break
        time.sleep(0.002)
    assert watchdog.abandoned == 0
    assert patient.get("a") == b"x"


def test_threads_are_used_again_and_errors_pass_through():
    store, before = WatchedStore(MemoryStore()), threading.active_count()
    for _ in range(200):
        with pytest.raises(NotFound):
            store.get("none")
    assert threading.active_count() <= before + 1


def test_an_upload_may_take_as_long_as_it_gets_on():
    now = [0.0]
    pulse = Pulse(10.0, clock=lambda: now[0])
    for _ in _Parts(UploadSource(parts=lambda: iter([b"x"] * 30)), pulse).begin():
        now[0] += 9.0
        assert pulse.left_s() == 1.0
    assert now[0] == 270.0


def test_the_making_of_parts_is_no_hanging_of_the_store():
    now = [0.0]
    pulse = Pulse(10.0, clock=lambda: now[0])

    def parts():
        for _ in range(3):
            now[0] += 100.0  # a throttle, a slow disk
            assert pulse.left_s() == 10.0
            yield b"x"

    for _ in _Parts(UploadSource(parts=parts), pulse).begin():
        assert pulse.left_s() == 10.0


def test_waiting_for_other_uploads_is_no_hanging_of_the_store(monkeypatch):
    """A third large upload beside two slow ones was given up after the time in which a store has to move."""
    going_on, began, asked = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)
    most, pulses = [], []

    class Counting(MemoryStore):
        def upload(self, key, source):
            most.append(key)
            super().upload(key, source)

    class Places:
        """Tells of each upload that asks for one of the store's places."""

        def __enter__(self):
            asked.release()
            places.acquire()

        def __exit__(self, *error):
            places.release()

    def begin_to_count(limit_s):
        pulses.append(limit_s)
        return Pulse(limit_s)

    def parts():
        began.release()
        assert going_on.wait(30)
        yield b"x"

    monkeypatch.setattr("remote.store.middleware.deadline_store.Pulse", begin_to_count)
    inner = Counting()
    store = WatchedStore(inner, uploads_max=2)
    places, store._places = store._places, Places()
    with ThreadPoolExecutor(3) as threads:
        uploads = [threads.submit(store.upload, key, UploadSource(parts=parts)) for key in ("a", "b", "c")]
        for gate in (began, began, asked, asked, asked):
            assert gate.acquire(timeout=60)
        assert len(most) == 2
        assert len(pulses) == 2, "no time counts for the upload that waits"
        going_on.set()
        for each in uploads:
            each.result(30)
    assert [info.key for info in inner.list("")] == ["a", "b", "c"]


def test_an_upload_that_hung_leaves_its_place_to_the_next_one(hanging):
    store = WatchedStore(hanging, deadlines=SHORT, uploads_max=1)
    for _ in range(2):
        with pytest.raises(Unavailable, match="no answer"):
            store.upload("a", ranged_source(1, lambda start, length: b"x"))


def test_an_abandoned_upload_is_given_no_further_part():
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
    with pytest.raises(Unavailable, match="no answer"):
        store.upload("a", UploadSource(parts=lambda: iter([b"x"] * 9)))
    resumed.set()
    assert ended.wait(60)
    assert asked in ([0], []), "none at all where it was given up before it began"
    assert list(inner.list("")) == []


def test_a_pulse_counts_from_the_last_beat_and_not_while_it_is_paused():
    now = [0.0]
    pulse = Pulse(10.0, clock=lambda: now[0])
    now[0] = 9.0
    assert pulse.left_s() == 1.0
    pulse.pause()
    now[0] = 100.0
    assert pulse.left_s() == 10.0
    pulse.beat()
    now[0] = 110.0
    assert pulse.left_s() == 0.0


def test_more_bytes_have_more_time():
    assert Deadlines(call_s=60.0).of(0) == 60.0
    assert Deadlines(call_s=60.0).of(64 << 20) == 60.0 + 512


@pytest.mark.parametrize(("keys", "pages"), [(0, 1), (3, 1), (LIST_PAGE, 2), (LIST_PAGE + 1, 2)])
def test_a_listing_asks_no_further_once_a_page_was_not_full(keys, pages, monkeypatch):
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
