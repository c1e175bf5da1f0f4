"""The removal of a partition waits for readers' pins, without a listing in each step."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from local.errors import NotFound
from remote.gc.partition_removal import PartitionRemoval, Removal
from remote.gc.pins import LISTING_LAG_MS, RECHECK_MS, PinWatch, list_pins, pin_newest, release
from remote.keys import MANIFESTS, PINS
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore

sys.path.insert(0, str(Path(__file__).parents[3] / "crash"))
from protocol_world import PREFIX, TOPIC, TOPIC_ID, Writer, entries_of

HOUR = 3_600_000
GRACE = 24 * HOUR


class Lagging(MemoryStore):
    """Pins are listed LISTING_LAG_MS after they were written, and found by their names at once."""

    def __init__(self):
        super().__init__()
        self.now_ms = 0
        self.written = {}
        self.before_pin = lambda: None

    def put(self, key, body):
        if PINS in key:
            self.before_pin()
        self.written.setdefault(key, self.now_ms)
        super().put(key, body)

    def list(self, prefix, *, start_after=""):
        for info in super().list(prefix, start_after=start_after):
            if PINS not in info.key or self.written[info.key] + LISTING_LAG_MS <= self.now_ms:
                yield info


def filled(store):
    writer = Writer(store)
    writer.open()
    for base in (100, 110, 120):
        writer.copy(base)
    return writer


def removal_of(store):
    return PartitionRemoval(store, RemotePartitionName(TOPIC, TOPIC_ID, 0), "remover")


def run(removal, now_ms, grace_ms=GRACE):
    while (found := removal.step(now_ms, grace_ms=grace_ms)) is Removal.UNDER_WAY:
        pass
    return found


@pytest.mark.parametrize("began_ms", [0, 1, GRACE // 2, GRACE - 1])
@pytest.mark.parametrize("wrote_ms", [0, 1, GRACE // 2, GRACE - 1])
def test_a_reader_with_a_pin_can_read_its_manifest_however_late_pins_are_listed(began_ms, wrote_ms):
    """The topic is deleted at 1, its entries expire at 1 + the grace period; the reader stalls in between."""
    store = Lagging()
    filled(store)
    removal, log = removal_of(store), MetadataLog(store, PREFIX)

    def at(now_ms):
        while store.now_ms < now_ms:
            store.now_ms = 1 if store.now_ms == 0 else now_ms
            removal.step(store.now_ms, grace_ms=GRACE)

    log.load()
    at(began_ms)
    store.before_pin = lambda: at(wrote_ms)
    try:
        pin, manifest = pin_newest(store, PREFIX, log, now_ms=began_ms, expires_ms=9 * GRACE, holder="a job")
    except NotFound:
        pin, manifest = None, None
        assert not [key for key in store._objects if PINS in key], "the pin was not withdrawn"
    store.before_pin = lambda: None
    at(1)
    store.now_ms = GRACE + 1
    state = run(removal, store.now_ms)
    if manifest is not None:
        for entry in entries_of(log, manifest):
            assert store.head(PREFIX + entry.data_key).size_bytes == entry.stored_bytes
    assert (pin is not None) == (max(began_ms, wrote_ms) == 0)
    assert state is (Removal.DONE if pin is None else Removal.WAITING)


@pytest.mark.parametrize("has_entries", [True, False])
def test_removal_steps_do_not_list_while_a_pin_protects_an_old_manifest(has_entries):
    inner = MemoryStore()
    writer = filled(inner)
    if not has_entries:
        for base in (100, 110, 120):
            writer.expire(base)
        writer.delete_pending()
    log = MetadataLog(inner, PREFIX)
    pin, manifest = pin_newest(inner, PREFIX, log, now_ms=0, expires_ms=9 * GRACE, holder="a job")
    store = MeteredStore(inner)
    removal = removal_of(store)
    assert run(removal, 0) is Removal.WAITING
    assert run(removal, GRACE) is Removal.WAITING
    before = store.counts()
    for minute in range(600):
        assert run(removal, GRACE + minute * 60_000) is Removal.WAITING
    asked = store.counts() - before
    assert (asked.lists, asked.puts, asked.deletes) == (0, 0, 0)
    assert asked.gets <= 600 // 5 + 1
    kept = MetadataLog(inner, PREFIX)._chain.read(manifest.sequence)
    assert kept == manifest
    release(inner, PREFIX, [pin])
    assert run(removal, GRACE + 600 * 60_000 + RECHECK_MS) is Removal.DONE
    assert len(list(inner.list(PREFIX + MANIFESTS))) == 1
    assert list_pins(inner, PREFIX) == []


def test_a_fenced_removal_lists_once_while_the_other_waits_for_a_pin():
    inner = MemoryStore()
    writer = filled(inner)
    for base in (100, 110, 120):
        writer.expire(base)
    writer.delete_pending()
    pin, _ = pin_newest(inner, PREFIX, MetadataLog(inner, PREFIX), now_ms=0, expires_ms=9 * GRACE, holder="a job")
    store = MeteredStore(inner)
    first, second = removal_of(store), removal_of(inner)
    for each in (first, second):
        assert run(each, GRACE) is Removal.WAITING
    assert MetadataLog(inner, PREFIX).load().epoch == 3, "expected one takeover of each removal"
    first._pins = PinWatch(store, PREFIX)  # like a removal that knows of no pin yet: it is about to act, and is fenced
    for _ in range(2):  # the next step starts with a read of the bucket: one listing
        assert run(first, GRACE) is Removal.WAITING
    before = store.counts().lists
    for minute in range(60):
        assert run(first, GRACE + minute * 60_000) is Removal.WAITING
        assert run(second, GRACE + minute * 60_000) is Removal.WAITING
    assert store.counts().lists == before
    release(inner, PREFIX, [pin])
    assert run(second, GRACE + 2 * HOUR) is Removal.DONE
    assert run(first, 2 * GRACE + 2 * HOUR) is Removal.DONE
    assert MetadataLog(inner, PREFIX).load().epoch == 3
