"""A read that starts at the last known manifest: one request, and no newer one is missed."""

from __future__ import annotations

import random

import pytest

from local.errors import Corrupt, Unavailable
from remote.gc.delayed_delete import collect_manifests
from remote.gc.pins import pin_newest
from remote.keys import manifest_key
from remote.manifest import manifest_memory_cache
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import set_properties
from remote.manifest.manifest_memory_cache import SURE_MS, ManifestMemoryCache
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore

PREFIX = "orders-AAAAAAAAAAAAAAAAAAAAAA/0/"
STEP_MS = 10_000


class Watcher:
    """A reader that reads repeatedly, each time with a new log object."""

    def __init__(self, store: MemoryStore) -> None:
        self.store, self.now_ms = store, 0
        self.known = ManifestMemoryCache(lambda: self.now_ms)

    def look(self, after_ms: int = STEP_MS) -> tuple[str | None, dict[str, int]]:
        """Read after `after_ms`; return the commit id found, and the requests of the read."""
        self.now_ms += after_ms
        metered = MeteredStore(self.store)
        manifest = MetadataLog(metered, PREFIX, known=self.known).load()
        counts = metered.counts()
        asked = {name: getattr(counts, name) for name in ("lists", "gets", "heads", "puts", "deletes")}
        return manifest.commit_id if manifest is not None else None, {
            name: count for name, count in asked.items() if count
        }


def writer(store: MemoryStore, manifests: int = 1) -> MetadataLog:
    log = MetadataLog(store, PREFIX)
    log.become_writer("w", 0, topic="orders", topic_id="A" * 22, partition=0)
    commit(log, manifests - 1)
    return log


def commit(log: MetadataLog, manifests: int) -> None:
    for _ in range(manifests):
        assert log.cached is not None
        log.commit(set_properties({"retention.ms": str(log.cached.sequence)}), log.cached.sequence)


def newest(store: MemoryStore) -> str | None:
    manifest = MetadataLog(store, PREFIX).load()
    return manifest.commit_id if manifest is not None else None


def test_a_read_without_a_newer_manifest_costs_one_small_request() -> None:
    store = MemoryStore()
    writer(store, 3)
    watcher = Watcher(store)
    assert watcher.look() == (newest(store), {"lists": 1, "gets": 3})
    quiet = [watcher.look() for _ in range(SURE_MS // STEP_MS - 1)]
    assert quiet == [(newest(store), {"gets": 1})] * len(quiet)
    assert len(quiet) >= 3
    assert watcher.look() == (newest(store), {"gets": 3}), "once a minute the boundary is checked too"
    assert watcher.look() == (newest(store), {"gets": 1})


@pytest.mark.parametrize("manifests", [1, 2, 4, 5, 9])
def test_manifests_committed_since_the_last_read_are_seen(manifests: int) -> None:
    store = MemoryStore()
    log, watcher = writer(store, 2), Watcher(store)
    watcher.look()
    commit(log, manifests)
    assert watcher.look()[0] == newest(store)
    assert watcher.look() == (newest(store), {"gets": 1})


def test_a_manifest_with_deleted_successors_is_taken_for_the_newest_at_most_a_minute() -> None:
    store = MemoryStore()
    log, watcher = writer(store, 2), Watcher(store)
    watcher.look()
    commit(log, 20)
    collect_manifests(store, PREFIX, log, 15, now_ms=1)
    assert watcher.look(SURE_MS)[0] == newest(store)


def test_a_pinned_manifest_is_not_taken_for_the_newest_because_it_still_exists() -> None:
    store = MemoryStore()
    log, watcher = writer(store, 2), Watcher(store)
    pin_newest(store, PREFIX, log, now_ms=0, expires_ms=1 << 40, holder="a job")
    watcher.look()
    commit(log, 20)
    collect_manifests(store, PREFIX, log, 15, now_ms=1)
    assert watcher.look(SURE_MS)[0] == newest(store)


def test_a_bucket_restored_to_an_earlier_state_is_seen() -> None:
    store = MemoryStore()
    log, watcher = writer(store, 2), Watcher(store)
    before = {info.key: store.get(info.key) for info in store.list("")}
    commit(log, 3)
    watcher.look()
    store.delete([info.key for info in store.list("")])
    for key, body in before.items():
        store.put(key, bytes(body))
    assert watcher.look(SURE_MS)[0] == newest(store)
    other = MetadataLog(store, PREFIX)
    other.become_writer("other", 9, topic="orders", topic_id="A" * 22, partition=0)
    commit(other, 7)
    assert watcher.look()[0] == newest(store), "another history under the same names was not seen"


def test_another_history_that_does_not_follow_is_read_from_its_own_start() -> None:
    """The next number holds a manifest that does not follow.

    Manifests deleted in one history exist in the other.
    """
    store, other = MemoryStore(), MemoryStore()
    log = writer(store, 20)
    collect_manifests(store, PREFIX, log, 18, now_ms=1)
    commit(log, 1)
    writer(other, 25)
    watcher = Watcher(store)
    watcher.look()
    watcher.store = other
    assert watcher.look()[0] == newest(other)


def test_a_damaged_newest_manifest_raises_corrupt_however_it_was_found() -> None:
    store = MemoryStore()
    log, watcher = writer(store, 3), Watcher(store)
    watcher.look()
    commit(log, 1)
    assert log.cached is not None
    store.put(PREFIX + manifest_key(log.cached.sequence), b"{}")
    with pytest.raises(Corrupt, match=manifest_key(log.cached.sequence)):
        watcher.look()


def test_a_store_without_an_answer_does_not_change_the_known_manifests() -> None:
    class Away(MemoryStore):
        is_away = False

        def get(self, key: str) -> bytes | memoryview:
            if self.is_away:
                raise Unavailable("cannot read an object, the store cannot be reached")
            return super().get(key)

    store = Away()
    writer(store, 3)
    watcher = Watcher(store)
    watcher.look()
    store.is_away = True
    with pytest.raises(Unavailable):
        watcher.look()
    store.is_away = False
    assert watcher.look() == (newest(store), {"gets": 1})


def test_only_the_last_used_manifests_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_memory_cache, "KNOWN_MAX", 2)
    store = MemoryStore()
    known = ManifestMemoryCache(lambda: 0)
    for number in range(3):
        prefix = f"orders-{'A' * 22}/{number}/"
        log = MetadataLog(store, prefix)
        log.become_writer("w", 0, topic="orders", topic_id="A" * 22, partition=number)
        MetadataLog(store, prefix, known=known).load()
    assert len(known._known) == 2


@pytest.mark.parametrize("seed", range(20))
def test_reads_of_any_history_return_the_same_as_a_first_read(seed: int) -> None:
    """At any pace while no manifest is deleted; and always when a minute has passed."""
    rng = random.Random(seed)
    store = MemoryStore()
    log, watcher = writer(store), Watcher(store)
    is_quick = bool(seed % 2)
    for _ in range(30):
        commit(log, rng.choice((0, 0, 1, 2, 6, 12)))
        assert log.cached is not None
        if not is_quick and rng.random() < 0.3 and log.cached.sequence > 8:
            collect_manifests(store, PREFIX, log, log.cached.sequence - rng.randrange(1, 6), now_ms=1)
        if rng.random() < 0.2:
            log = MetadataLog(store, PREFIX)
            log.become_writer("w", 0, topic="orders", topic_id="A" * 22, partition=0)
        found, _ = watcher.look(rng.randrange(1, STEP_MS) if is_quick else SURE_MS)
        assert found == newest(store)
