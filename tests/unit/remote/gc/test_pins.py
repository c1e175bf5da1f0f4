"""The watch over pins asks the store rarely, and never frees an object that a valid pin protects."""

from __future__ import annotations

from dataclasses import asdict, replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manager_world import HOUR, NAME, NOW, TIERED, World, send, settle
from run_profile import examples

from local.errors import Corrupt
from local.format.record import Record
from remote.gc.pins import (
    LISTING_LAG_MS,
    RECHECK_MS,
    RENEWAL_LAG_MS,
    Pin,
    PinWatch,
    Unlinking,
    list_pins,
    pin_newest,
    read_pin,
    release,
)
from remote.keys import PINS, pin_key
from remote.manifest.commit_protocol import MetadataLog
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore

PREFIX = "t/0/"
DAY = 24 * HOUR


def put_pin(store, number, sequence, expires_ms):
    key = pin_key(f"01ARZ3NDEKTSV4RRFFQ69G5{number:03d}")
    body = {"sequence": sequence, "commit_id": "c", "expires_ms": expires_ms, "holder": "h"}
    store.put(PREFIX + key, msgspec.json.encode(body))
    return Pin(key=key, sequence=sequence, commit_id="c", expires_ms=expires_ms, holder="h")


def renew(store, pin, *, now_ms, expires_ms):
    """The effect of a renewal on a bucket without manifests."""
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
        """The free ones among objects unlinked by these manifests, and the requests (gets, lists)."""
        before = self.store.counts()
        due = {str(each): Unlinking(sequence=each, at_ms=left_ms) for each in sequences}
        found = self.watch.free(due, sequence=at, now_ms=now_ms)
        asked = self.store.counts() - before
        return sorted(map(int, found)), (asked.gets, asked.lists)


def test_one_listing_covers_all_objects_unlinked_before_it():
    asking = Asking()
    assert asking.free(1, 2, now_ms=NOW, at=5) == ([1, 2], (0, 1))
    assert asking.free(3, 4, 5, now_ms=NOW + HOUR, at=9) == ([3, 4, 5], (0, 0))
    assert asking.free(5, 6, now_ms=NOW + HOUR, at=9) == ([5, 6], (0, 1)), "6 was unlinked after the listing"
    assert asking.free(7, 8, 9, now_ms=NOW + DAY, at=30) == ([7, 8, 9], (0, 0))
    assert asking.free(now_ms=NOW + DAY) == ([], (0, 0))


def test_a_listing_that_may_have_lagged_is_repeated():
    asking = Asking()
    assert asking.free(1, now_ms=NOW, left_ms=NOW) == ([1], (0, 1))
    assert asking.free(2, now_ms=NOW + 1, left_ms=NOW - LISTING_LAG_MS + 1) == ([2], (0, 1))
    assert asking.free(3, now_ms=NOW + 2, left_ms=NOW + 1 - LISTING_LAG_MS) == ([3], (0, 0))


def test_a_valid_pin_alone_is_asked_for_and_rarely():
    asking = Asking()
    pin = put_pin(asking.inner, 1, 4, NOW + DAY)
    put_pin(asking.inner, 2, 6, NOW + DAY)
    assert asking.free(5, now_ms=NOW) == ([], (2, 1))
    assert asking.free(5, 7, 99, now_ms=NOW + RECHECK_MS - 1, at=99) == ([], (0, 0)), (
        "an object unlinked after the pin is free"
    )
    assert asking.free(5, now_ms=NOW + RECHECK_MS) == ([], (1, 0))
    assert asking.free(3, 4, 5, now_ms=NOW + RECHECK_MS) == ([3, 4], (0, 0)), "3 and 4 are not pinned"
    release(asking.inner, PREFIX, [pin])
    assert asking.free(5, 6, 7, now_ms=NOW + 2 * RECHECK_MS) == ([5, 6], (2, 0)), "expected one GET for the other pin"


def test_a_pin_is_asked_for_when_it_ends_and_holds_on_if_it_was_renewed():
    asking = Asking()
    pin = put_pin(asking.inner, 1, 4, NOW + 1000)
    assert asking.free(5, now_ms=NOW) == ([], (1, 1))
    assert asking.free(5, now_ms=NOW + 999) == ([], (0, 0))
    renew(asking.inner, pin, now_ms=NOW + 999, expires_ms=NOW + 2000)
    assert asking.free(5, now_ms=NOW + 1000) == ([], (1, 0))
    assert asking.free(5, now_ms=NOW + 2000) == ([5], (2, 1)), "expected a listing for a pin in its place"
    assert asking.free(5, now_ms=NOW + 2001) == ([5], (1, 0)), "expected a GET: a slow clock may still renew the pin"
    assert asking.free(5, now_ms=NOW + 2000 + RENEWAL_LAG_MS) == ([5], (1, 0))
    assert asking.free(5, now_ms=NOW + 2001 + RENEWAL_LAG_MS) == ([5], (0, 0))


@pytest.mark.parametrize("is_listed_lapsed", [True, False])
def test_a_pin_renewed_by_a_slow_clock_protects_the_remaining_objects_again(*, is_listed_lapsed):
    """By the writer's clock the pin had expired when it was last read, in a listing or by its name."""
    asking = Asking()
    pin = put_pin(asking.inner, 1, 4, NOW + 1000)
    if not is_listed_lapsed:
        assert asking.free(5, now_ms=NOW)[0] == []
    assert asking.free(5, now_ms=NOW + 1500)[0] == [5]
    assert renew(asking.inner, pin, now_ms=NOW + 999, expires_ms=NOW + DAY) is not None
    assert asking.free(6, now_ms=NOW + 2000) == ([], (1, 0)), "6 was unlinked before the renewal, but is due only now"


def test_a_clock_that_is_set_back_makes_the_watch_ask_again():
    asking = Asking()
    pin = put_pin(asking.inner, 1, 4, NOW + DAY)
    assert asking.free(5, now_ms=NOW) == ([], (1, 1))
    release(asking.inner, PREFIX, [pin])
    assert asking.free(5, now_ms=NOW - 1) == ([5], (1, 0))


def test_an_unreadable_pin_frees_nothing():
    asking = Asking()
    pin = put_pin(asking.inner, 1, 4, NOW + DAY)
    asking.inner.put(PREFIX + pin.key, b"{")
    for _ in range(2):
        with pytest.raises(Corrupt, match="pin"):
            asking.free(5, now_ms=NOW)


STEPS = st.lists(
    st.tuples(st.sampled_from(["pin", "release", "renew", "unlink", "wait", "ask"]), st.integers(0, 9)), max_size=60
)


@settings(max_examples=examples(400), deadline=None)
@given(STEPS)
def test_the_watch_frees_at_most_what_a_fresh_listing_frees_and_the_same_in_time(steps):
    """Compared with reading all pins every time. Pins are on the newest manifest."""
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


@pytest.mark.deep("a year of expiry")
def test_a_log_whose_segments_expire_all_the_time_lists_pins_once_a_day():
    world = World()
    with world.open() as manager:
        topic = {**TIERED, "retention.ms": "2d", "remote.log.delete.grace.ms": "1d", "local.retention.ms": "1h"}
        manager.topics.create("t", 1, topic, now_ms=NOW)
        listings, deleted = [], []
        inner, prefix = world.store, manager.partitions.find(NAME).prefix
        real_list, real_delete = inner.list, inner.delete
        inner.list = lambda key, **more: listings.append(key) or real_list(key, **more)
        inner.delete = lambda keys: deleted.append(keys := list(keys)) or real_delete(keys)
        for hour in range(7 * 24):
            now = NOW + hour * HOUR
            manager.append("t", [Record(b"k", b"v", now)], 0, now_ms=now)
            manager.partitions.roll("t", now_ms=now)
            manager.tick(now)
    objects = [key for keys in deleted for key in keys if "/data/" in key]
    assert len(objects) > 60, "too few objects were deleted"
    assert listings.count(prefix + PINS) <= 6


def test_rounds_do_not_list_while_a_pin_protects_due_objects():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.ms": "2d", "remote.log.delete.grace.ms": "1h"}, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        prefix = manager.partitions.find(NAME).prefix
        log = MetadataLog(world.store, prefix)
        pin_newest(world.store, prefix, log, now_ms=NOW, expires_ms=NOW + 9 * DAY, holder="a job")
        settle(manager, NOW + 2 * DAY)
        settle(manager, NOW + 2 * DAY + HOUR)
        before = manager.store.counts()
        for minute in range(600):
            manager.tick(NOW + 2 * DAY + HOUR + minute * 60_000)
        asked = manager.store.counts() - before
        assert (asked.lists, asked.puts, asked.deletes) == (0, 0, 0)
        assert asked.gets <= 600 // 5 + 1
        settle(manager, NOW + 9 * DAY)
        assert not [info for info in world.store.list("") if "/data/" in info.key]
