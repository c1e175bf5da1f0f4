"""A holder that stalls during a renewal never relies on a pin that protects nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from local.errors import Unavailable
from remote.gc.delayed_delete import collect_manifests
from remote.gc.pins import list_pins, pin_newest, renew
from remote.keys import PINS
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import set_properties
from remote.store.memory_store import MemoryStore

sys.path.insert(0, str(Path(__file__).parent))
from protocol_world import PREFIX, Writer, entries_of

END, LATER = 100, 200


def nothing(writer):
    pass


def a_row_leaves_the_index(writer):
    writer.expire(100)


def a_row_is_deleted(writer):
    writer.expire(100)
    writer.delete_pending()


def its_head_is_collected(writer):
    for step in range(9):
        writer.log.commit(set_properties({"step": str(step)}), now_ms=5)
    collect_manifests(writer.store, PREFIX, writer.log, writer.log.cached.sequence - 1, now_ms=END)


class Stalling:
    """Calls `stall` before the pin is written."""

    def __init__(self, inner, stall):
        self._inner, self._stall = inner, stall

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def put(self, key, body):
        assert key.startswith(PREFIX + PINS)
        self._stall()
        self._inner.put(key, body)


@pytest.mark.parametrize("fork", [None, "t-XXXXXXXXXXXXXXXXXXXXXX/0/"])
@pytest.mark.parametrize(
    ("deed", "woke_ms", "counts"),
    [
        (nothing, END - 1, True),
        (nothing, END, True),
        (a_row_leaves_the_index, END - 1, True),  # the objects are pending deletes, and each deleter finds the pin
        (a_row_leaves_the_index, END, False),  # a deleter may have read the pins while this one had expired
        (a_row_is_deleted, END - 1, False),  # by a fast clock
        (a_row_is_deleted, END, False),
        (its_head_is_collected, END - 1, False),
        (its_head_is_collected, END, False),
    ],
)
def test_a_renewal_counts_only_if_all_pinned_objects_exist_and_stay(deed, woke_ms, counts, fork):
    store = MemoryStore()
    writer = Writer(store)
    writer.open()
    for base in (100, 110):
        writer.copy(base)
    log = MetadataLog(store, PREFIX)
    pin, manifest = pin_newest(store, PREFIX, log, now_ms=5, expires_ms=END, holder="a job", fork=fork)
    now = [END - 1]

    def stall():
        deed(writer)
        now[0] = woke_ms

    later = renew(Stalling(store, stall), PREFIX, pin, clock=lambda: now[0], expires_ms=LATER)
    assert (later is not None) == counts
    assert [each.expires_ms for each in list_pins(store, PREFIX)] == ([LATER] if counts else [0] if fork else [])
    if counts:
        for entry in entries_of(log, manifest):
            assert store.head(PREFIX + entry.data_key).size_bytes == entry.stored_bytes


def test_a_pin_on_unlinked_entries_can_be_renewed_repeatedly():
    store = MemoryStore()
    writer = Writer(store)
    writer.open()
    for base in (100, 110):
        writer.copy(base)
    pin, _ = pin_newest(store, PREFIX, MetadataLog(store, PREFIX), now_ms=5, expires_ms=END, holder="a job")
    for turn in range(3):
        deeds = [lambda: writer.expire(100), lambda: writer.expire(110), lambda: writer.copy(120)]
        deeds[turn]()
        now = pin.expires_ms - 1
        renewed = renew(store, PREFIX, pin, clock=lambda now=now: now, expires_ms=pin.expires_ms + END)
        assert renewed is not None
        pin = renewed
    assert list_pins(store, PREFIX) == [pin]


class Cut(Stalling):
    """Stops to answer after the pin is written, while `is_cut`."""

    def __init__(self, inner, stall):
        super().__init__(inner, stall)
        self.is_cut = False

    def put(self, key, body):
        super().put(key, body)
        self.is_cut = True

    def __getattr__(self, name):
        if self.is_cut and name != "url":
            raise Unavailable("no reply", verb=name)
        return super().__getattr__(name)


@pytest.mark.parametrize("asked_ms", [LATER - 1, LATER, LATER + 50])
@pytest.mark.parametrize("fork", [None, "t-XXXXXXXXXXXXXXXXXXXXXX/0/"])
@pytest.mark.parametrize(
    ("deed", "woke_ms", "again_ms", "counts"),
    [
        (nothing, END - 1, END - 1, True),
        (nothing, END - 1, END, True),
        (nothing, END, END, True),
        (a_row_leaves_the_index, END - 1, END - 1, True),
        (a_row_leaves_the_index, END - 1, END, False),  # it is unknown whether the renewal was in time
        (a_row_leaves_the_index, END, END, False),
        (a_row_leaves_the_index, END, END + 50, False),
        (a_row_is_deleted, END, END, False),
        (its_head_is_collected, END, END, False),
    ],
)
def test_a_renewal_that_was_written_and_not_verified_is_not_relied_on(deed, woke_ms, again_ms, counts, fork, asked_ms):
    """The first holder gets no answer to its PUT, or dies; a later holder continues."""
    store = MemoryStore()
    writer = Writer(store)
    writer.open()
    for base in (100, 110):
        writer.copy(base)
    log = MetadataLog(store, PREFIX)
    pin, manifest = pin_newest(store, PREFIX, log, now_ms=5, expires_ms=END, holder="a job", fork=fork)
    now = [END - 1]

    def stall():
        deed(writer)
        now[0] = woke_ms

    with pytest.raises(Unavailable):
        renew(Cut(store, stall), PREFIX, pin, clock=lambda: now[0], expires_ms=LATER)
    (left,) = list_pins(store, PREFIX)
    assert left.expires_ms == LATER, "a stalled renewal must leave the later expiry"
    later = renew(store, PREFIX, pin, clock=lambda: again_ms, expires_ms=asked_ms)
    assert (later is not None) == counts
    if counts:
        assert later.expires_ms == later.sure_until_ms == max(LATER, asked_ms)
        assert list_pins(store, PREFIX) == [later]
        for entry in entries_of(log, manifest):
            assert store.head(PREFIX + entry.data_key).size_bytes == entry.stored_bytes
    else:
        assert [each.expires_ms for each in list_pins(store, PREFIX)] == ([0] if fork else [])


def test_a_renewal_with_a_lost_last_answer_is_repeated_and_counts():
    store = MemoryStore()
    writer = Writer(store)
    writer.open()
    writer.copy(100)
    pin, _ = pin_newest(store, PREFIX, MetadataLog(store, PREFIX), now_ms=5, expires_ms=END, holder="a job")
    puts = []

    def second_fails():
        puts.append(1)
        if len(puts) == 2:
            raise Unavailable("no reply")

    with pytest.raises(Unavailable):
        renew(Stalling(store, second_fails), PREFIX, pin, clock=lambda: END - 2, expires_ms=LATER)
    writer.expire(100)
    assert renew(store, PREFIX, pin, clock=lambda: END - 1, expires_ms=LATER).sure_until_ms == LATER
