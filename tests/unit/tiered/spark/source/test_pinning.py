"""A read by a pin returns the pinned manifest or raises NotFound."""

from __future__ import annotations

import pytest

from local.errors import NotFound
from remote.gc.pins import Pin, pin_newest
from remote.keys import manifest_key
from remote.manifest.commit_protocol import MetadataLog
from remote.store.memory_store import MemoryStore
from tiered.spark.source.planning import pinned_log

PREFIX, NOW, HOUR = "t-Yune3fyATvKLNh0q9V3QqQ/0/", 1_700_000_000_000, 3_600_000
OF = {"topic": "t", "topic_id": "Yune3fyATvKLNh0q9V3QqQ", "partition": 0}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def _pinned(store: MemoryStore) -> Pin:
    """The pin of the first manifest of a writer."""
    log = MetadataLog(store, PREFIX)
    log.load()
    log.become_writer("a", NOW, **OF)
    pin, _ = pin_newest(store, PREFIX, log, now_ms=NOW, expires_ms=NOW + HOUR, holder="a reader")
    return pin


def _at(store: MemoryStore, pin: Pin) -> MetadataLog:
    return pinned_log(store, PREFIX, pin)


def _another_under_the_name(store: MemoryStore, pin: Pin) -> None:
    """GC deleted the pinned manifest after the pin's end, and a slow writer created the void name again."""
    other = MemoryStore()
    log = MetadataLog(other, PREFIX)
    log.load()
    log.become_writer("b", NOW + 2 * HOUR, **OF)
    key = PREFIX + manifest_key(pin.sequence)
    store.delete([key])
    store.put(key, other.get(key))


def test_a_pin_reads_its_manifest_again(store: MemoryStore) -> None:
    pin = _pinned(store)
    assert _at(store, pin).load().commit_id == pin.commit_id


def test_a_deleted_pinned_manifest_is_not_found(store: MemoryStore) -> None:
    pin = _pinned(store)
    store.delete([PREFIX + manifest_key(pin.sequence)])
    with pytest.raises(NotFound, match="the pin has expired"):
        _at(store, pin).load()


def test_another_manifest_under_the_pinned_name_is_not_found(store: MemoryStore) -> None:
    pin = _pinned(store)
    _another_under_the_name(store, pin)
    with pytest.raises(NotFound, match="the pin has expired"):
        _at(store, pin).load()
