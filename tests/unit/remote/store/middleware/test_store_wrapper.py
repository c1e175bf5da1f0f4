"""Byte rates of a store, shared by all threads: writes wait before, reads after the transfer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from local.storage.throttle import BURST_SECONDS, Throttle
from remote.keys import manifest_key
from remote.segment_entry import PART_BYTES
from remote.store import ranged_source
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore, ThrottledStore

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
def test_written_bytes_are_throttled(clock, inner, write):
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
def test_read_bytes_are_throttled(clock, inner, read):
    assert len(read(ThrottledStore(inner, fetch=clock.throttle()))) == 5000
    assert clock.now == pytest.approx(5000 / RATE - BURST_SECONDS)


def test_the_parts_of_an_upload_are_sent_at_the_rate_and_not_at_once(clock):
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


def test_the_two_limits_are_separate_and_other_verbs_cost_nothing(clock, inner):
    store = ThrottledStore(inner, copy=clock.throttle(1.0))
    store.get("there"), store.head("there"), list(store.list("")), store.list_prefixes("")
    store.delete(["there"])
    assert clock.now == 0.0


@pytest.mark.parametrize("verb", ["put", "put_if_absent"])
def test_a_manifest_is_sent_before_waiting_parts_and_its_bytes_count(clock, inner, verb):
    throttle = clock.throttle()
    store = ThrottledStore(inner, copy=throttle)
    throttle.count(50_000)  # the parts of other threads
    getattr(store, verb)(f"t-AAAAAAAAAAAAAAAAAAAAAA/0/{manifest_key(1)}", bytes(1000))
    assert clock.now == 0.0
    store.put("a", bytes(10))
    assert clock.now == pytest.approx(51_010 / RATE - BURST_SECONDS)


def test_joined_parts_of_an_upload_count_as_one_request_each():
    body = bytes(5 * PART_BYTES + 1)
    store = MeteredStore(MemoryStore())
    source = replace(
        ranged_source(len(body), lambda start, length: body[start : start + length]),
        part_bytes=2 * PART_BYTES,
        read_again=lambda start, length: body[start : start + length],
    )
    store.upload("a", source)
    assert (store.counts().puts, store.counts().posts, store.counts().bytes_in) == (3 + 2, 2, len(body))
