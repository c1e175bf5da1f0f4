"""How seldom a writer asks for pins, and that it never frees what a pin holds that counts."""

from __future__ import annotations

from dataclasses import asdict, replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manager_world import HOUR, NAME, NOW, TIERED, World, send, settle

from local.errors import Corrupt
from local.format.record import Record
from remote.gc.pin_watch import LISTING_LAG_MS, RECHECK_MS, RENEWAL_LAG_MS, PinWatch, Unlinking
from remote.gc.pins import Pin, list_pins, pin_newest, read_pin, release
from remote.keys import PINS, pin_key
from remote.manifest.commit_protocol import MetadataLog
from remote.store.memory_store import MemoryStore
from remote.store.middleware.metered_store import MeteredStore

PREFIX = "t/0/"
DAY = 24 * HOUR


def put_pin(store, number, sequence, expires_ms):
    key = pin_key(f"01ARZ3NDEKTSV4RRFFQ69G5{number:03d}")
    body = {"sequence": sequence, "commit_id": "c", "expires_ms": expires_ms, "holder": "h"}
    store.put(PREFIX + key, msgspec.json.encode(body))
    return Pin(key=key, sequence=sequence, commit_id="c", expires_ms=expires_ms, holder="h")


def renew(store, pin, *, now_ms, expires_ms):
    """What a renewal leaves in a bucket, where no heads are."""
    found = read_pin(store, PREFIX, pin.key)
    if found is None or found.expires_ms <= now_ms:
        return None
    later = replace(found, expires_ms=max(found.expires_ms, expires_ms))
    body = {name: value for name, value in asdict(later).items() if name != "key"}
    store.put(PREFIX + pin.key, msgspec.json.encode(body))
    return later


class Asking:
    """A watch over a metered store."""

    def __init__(self):
        self.inner = MemoryStore()
        self.store = MeteredStore(self.inner)
        self.watch = PinWatch(self.store, PREFIX)

    def free(self, *sequences, now_ms, at=10, left_ms=NOW - DAY):
        """What is free of what left the index with these heads, and the requests (gets, lists) to know it."""
        before = self.store.counts()
        due = {str(each): Unlinking(sequence=each, at_ms=left_ms) for each in sequences}
        found = self.watch.free(due, sequence=at, now_ms=now_ms)
        asked = self.store.counts() - before
        return sorted(map(int, found)), (asked.gets, asked.lists)


def test_one_listing_covers_what_had_left_the_index_before_it():
    asking = Asking()
    assert asking.free(1, 2, now_ms=NOW, at=5) == ([1, 2], (0, 1))
    assert asking.free(3, 4, 5, now_ms=NOW + HOUR, at=9) == ([3, 4, 5], (0, 0))
    assert asking.free(5, 6, now_ms=NOW + HOUR, at=9) == ([5, 6], (0, 1)), "6 left it later"
    assert asking.free(7, 8, 9, now_ms=NOW + DAY, at=30) == ([7, 8, 9], (0, 0))
    assert asking.free(now_ms=NOW + DAY) == ([], (0, 0))


def test_a_listing_that_may_have_lagged_is_made_again():
    asking = Asking()
    assert asking.free(1, now_ms=NOW, left_ms=NOW) == ([1], (0, 1))
    assert asking.free(2, now_ms=NOW + 1, left_ms=NOW - LISTING_LAG_MS + 1) == ([2], (0, 1))
    assert asking.free(3, now_ms=NOW + 2, left_ms=NOW + 1 - LISTING_LAG_MS) == ([3], (0, 0))


def test_while_a_pin_stands_it_alone_is_asked_and_seldom():
    asking = Asking()
    pin = put_pin(asking.inner, 1, 4, NOW + DAY)
    put_pin(asking.inner, 2, 6, NOW + DAY)
    assert asking.free(5, now_ms=NOW) == ([], (2, 1))
    assert asking.free(5, 7, 99, now_ms=NOW + RECHECK_MS - 1, at=99) == ([], (0, 0)), "and what left later stays, too"
    assert asking.free(5, now_ms=NOW + RECHECK_MS) == ([], (1, 0))
    assert asking.free(3, 4, 5, now_ms=NOW + RECHECK_MS) == ([3, 4], (0, 0)), "the pinned head has no more of those"
    release(asking.inner, PREFIX, [pin])
    assert asking.free(5, 6, 7, now_ms=NOW + 2 * RECHECK_MS) == ([5, 6], (2, 0)), "the other one is asked then"


def test_a_pin_is_asked_when_it_ends_and_one_that_was_renewed_goes_on():
    asking = Asking()
    pin = put_pin(asking.inner, 1, 4, NOW + 1000)
    assert asking.free(5, now_ms=NOW) == ([], (1, 1))
    assert asking.free(5, now_ms=NOW + 999) == ([], (0, 0))
    renew(asking.inner, pin, now_ms=NOW + 999, expires_ms=NOW + 2000)
    assert asking.free(5, now_ms=NOW + 1000) == ([], (1, 0))
    assert asking.free(5, now_ms=NOW + 2000) == ([5], (2, 1)), "another one might stand in its place"
    assert asking.free(5, now_ms=NOW + 2001) == ([5], (1, 0)), "it may be renewed yet, by a clock that is behind"
    assert asking.free(5, now_ms=NOW + 2000 + RENEWAL_LAG_MS) == ([5], (1, 0))
    assert asking.free(5, now_ms=NOW + 2001 + RENEWAL_LAG_MS) == ([5], (0, 0))


@pytest.mark.parametrize("is_listed_lapsed", [True, False])
def test_a_pin_that_is_renewed_by_a_clock_that_is_behind_holds_again_what_is_there_yet(*, is_listed_lapsed):
    """It lapsed by the writer's clock when it was last asked for, in a listing or by its name."""
    asking = Asking()
    pin = put_pin(asking.inner, 1, 4, NOW + 1000)
    if not is_listed_lapsed:
        assert asking.free(5, now_ms=NOW)[0] == []
    assert asking.free(5, now_ms=NOW + 1500)[0] == [5]
    assert renew(asking.inner, pin, now_ms=NOW + 999, expires_ms=NOW + DAY) is not None
    assert asking.free(6, now_ms=NOW + 2000) == ([], (1, 0)), "6 had left the index before that, but is due only now"


def test_a_clock_that_goes_back_makes_the_watch_ask():
    asking = Asking()
    pin = put_pin(asking.inner, 1, 4, NOW + DAY)
    assert asking.free(5, now_ms=NOW) == ([], (1, 1))
    release(asking.inner, PREFIX, [pin])
    assert asking.free(5, now_ms=NOW - 1) == ([5], (1, 0))


def test_a_pin_that_cannot_be_read_frees_nothing():
    asking = Asking()
    pin = put_pin(asking.inner, 1, 4, NOW + DAY)
    asking.inner.put(PREFIX + pin.key, b"{")
    for _ in range(2):
        with pytest.raises(Corrupt, match="reading a pin"):
            asking.free(5, now_ms=NOW)


STEPS = st.lists(
    st.tuples(st.sampled_from(["pin", "release", "renew", "unlink", "wait", "ask"]), st.integers(0, 9)), max_size=60
)


@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_what_is_free_is_what_a_fresh_listing_says_or_less_and_in_time_the_same(steps):
    """Against looking at all pins every time. Pins are of the newest head, as the protocol has it."""
    store, now, sequence, pins, left, count = MemoryStore(), NOW, 1, [], {}, 0
    watch = PinWatch(store, PREFIX)

    def truth(now_ms):
        held = min((pin.sequence for pin in list_pins(store, PREFIX) if pin.expires_ms > now_ms), default=sequence)
        return {key for key, each in left.items() if each.sequence <= held}

    for what, number in steps:
        if what == "pin":
            count += 1
            pins.append(put_pin(store, count, sequence, now + (number + 1) * RECHECK_MS))
        elif what == "release" and pins:
            release(store, PREFIX, [pins.pop(number % len(pins))])
        elif what == "renew" and pins:
            at = number % len(pins)
            pins[at] = renew(store, pins[at], now_ms=now, expires_ms=now + 20 * RECHECK_MS) or pins[at]
        elif what == "unlink":
            sequence += 1
            left[str(sequence)] = Unlinking(sequence=sequence, at_ms=now)
        elif what == "wait":
            now += number * RECHECK_MS // 3
        else:
            free = watch.free(left, sequence=sequence, now_ms=now)
            assert free <= truth(now)
            for key in free:
                del left[key]
    now += RECHECK_MS
    assert watch.free(left, sequence=sequence, now_ms=now) == truth(now)


def test_a_log_whose_segments_expire_all_the_time_lists_pins_once_a_day():
    world = World()
    with world.open() as manager:
        topic = {**TIERED, "retention.ms": "2d", "remote.log.delete.grace.ms": "1d", "local.retention.ms": "1h"}
        manager.create_topic("t", 1, topic, now_ms=NOW)
        listings, deleted = [], []
        inner, prefix = world.store, manager._partition(NAME).prefix
        real_list, real_delete = inner.list, inner.delete
        inner.list = lambda key, **more: listings.append(key) or real_list(key, **more)
        inner.delete = lambda keys: deleted.append(keys := list(keys)) or real_delete(keys)
        for hour in range(7 * 24):
            now = NOW + hour * HOUR
            manager.append("t", [Record(b"k", b"v", now)], 0, now_ms=now)
            manager.roll("t", now_ms=now)
            manager.tick(now)
    objects = [key for keys in deleted for key in keys if "/data/" in key]
    assert len(objects) > 60, "it deletes day and night"
    assert listings.count(prefix + PINS) <= 6


def test_a_pin_that_keeps_what_is_due_makes_no_round_list():
    world = World()
    with world.open() as manager:
        manager.create_topic("t", 1, {**TIERED, "retention.ms": "2d", "remote.log.delete.grace.ms": "1h"}, now_ms=NOW)
        send(manager, 300)
        manager.roll("t", now_ms=NOW)
        settle(manager)
        prefix = manager._partition(NAME).prefix
        log = MetadataLog(world.store, prefix)
        pin_newest(world.store, prefix, log, now_ms=NOW, expires_ms=NOW + 9 * DAY, holder="a job")
        settle(manager, NOW + 2 * DAY)
        settle(manager, NOW + 2 * DAY + HOUR)
        before = manager.request_counts()
        for minute in range(600):
            manager.tick(NOW + 2 * DAY + HOUR + minute * 60_000)
        asked = manager.request_counts() - before
        assert (asked.lists, asked.puts, asked.deletes) == (0, 0, 0)
        assert asked.gets <= 600 // 5 + 1
        settle(manager, NOW + 9 * DAY)
        assert not [info for info in world.store.list("") if "/data/" in info.key]
