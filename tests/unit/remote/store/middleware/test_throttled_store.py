"""Byte rates of a store: what goes in is paid before it is sent, what comes out when it is here; over all threads."""

from __future__ import annotations

import pytest

from local.storage.throttle import BURST_SECONDS, Throttle
from remote.keys import head_key
from remote.segment_entry import PART_BYTES
from remote.store import ranged_source
from remote.store.memory_store import MemoryStore
from remote.store.middleware.throttled_store import ThrottledStore

RATE = 1000.0


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self):
        self.now = 0.0

    def throttle(self, rate=RATE):
        return Throttle(rate, clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def inner():
    memory = MemoryStore()
    memory.put("there", bytes(5000))
    return memory


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.put("a", bytes(5000)),
        lambda store: store.put_if_absent("a", bytes(5000)),
        lambda store: store.upload("a", ranged_source(5000, lambda start, length: bytes(length))),
    ],
)
def test_what_goes_in_is_paid_for(clock, inner, write):
    write(ThrottledStore(inner, copy=clock.throttle()))
    assert clock.now == pytest.approx(5000 / RATE - BURST_SECONDS)
    assert inner.head("a").size_bytes == 5000


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.get("there"),
        lambda store: store.get_range("there", 0, 5000),
        lambda store: b"".join(store.get_ranges("there", [(0, 2000), (2000, 3000)])),
    ],
)
def test_what_comes_out_is_paid_for(clock, inner, read):
    assert len(read(ThrottledStore(inner, fetch=clock.throttle()))) == 5000
    assert clock.now == pytest.approx(5000 / RATE - BURST_SECONDS)


def test_the_parts_of_an_upload_go_at_the_rate_and_not_in_one_go(clock):
    sent = []

    class Watching(MemoryStore):
        def upload(self, key, source):
            for part in source.parts():
                sent.append((clock.now, len(part)))

    rate = PART_BYTES / 2
    store = ThrottledStore(Watching(), copy=clock.throttle(rate))
    store.upload("a", ranged_source(3 * PART_BYTES, lambda start, length: bytes(length)))
    assert [size for _, size in sent] == [PART_BYTES] * 3
    assert [now for now, _ in sent] == pytest.approx([2 * n - BURST_SECONDS for n in (1, 2, 3)])


def test_the_two_limits_are_apart_and_the_rest_costs_nothing(clock, inner):
    store = ThrottledStore(inner, copy=clock.throttle(1.0))
    store.get("there"), store.head("there"), list(store.list("")), store.list_prefixes("")
    store.delete(["there"])
    assert clock.now == 0.0


@pytest.mark.parametrize("verb", ["put", "put_if_absent"])
def test_a_head_goes_before_the_parts_of_others_and_they_pay_for_it(clock, inner, verb):
    throttle = clock.throttle()
    store = ThrottledStore(inner, copy=throttle)
    throttle.count(50_000)  # the parts of other threads
    getattr(store, verb)(f"t-AAAAAAAAAAAAAAAAAAAAAA/0/{head_key(1)}", bytes(1000))
    assert clock.now == 0.0
    store.put("a", bytes(10))
    assert clock.now == pytest.approx(51_010 / RATE - BURST_SECONDS)
