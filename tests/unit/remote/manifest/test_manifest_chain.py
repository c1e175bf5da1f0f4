"""Finding the newest manifest: listings that lag, and commits and deletions between the requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from local.errors import Corrupt
from remote.keys import manifest_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.manifest_changes import set_properties
from remote.store import Asked, Body, ObjectInfo
from remote.store.memory_store import MemoryStore

PREFIX = "orders-AAAAAAAAAAAAAAAAAAAAAA/0/"


class Behind(MemoryStore):
    """Its listings lack the last `hidden` objects; `between` runs after a listing."""

    hidden = 0

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        found = list(super().list(prefix, start_after=start_after))
        return iter(found[: len(found) - self.hidden])

    def get_each(self, asked: Sequence[Asked]) -> Sequence[Body | None]:
        self.between()
        return super().get_each(asked)

    def between(self) -> None:
        pass


def committed(store: MemoryStore, manifests: int) -> MetadataLog:
    log = MetadataLog(store, PREFIX)
    log.become_writer("w", 0, topic="orders", topic_id="A" * 22, partition=0)
    for now_ms in range(manifests - 1):
        log.commit(set_properties({"retention.ms": str(now_ms)}), now_ms)
    return log


@pytest.mark.parametrize("hidden", [0, 1, 2, 3, 6])
def test_manifests_missing_in_a_lagging_listing_are_found(hidden: int) -> None:
    store = Behind()
    newest = committed(store, 8).cached
    store.hidden = hidden
    assert ManifestChain(store, PREFIX).newest(None) == newest


def test_a_manifest_committed_after_the_listing_is_found() -> None:
    store = Behind()
    log = committed(store, 3)
    store.between = lambda: log.commit(set_properties({"a": "b"}), 9)  # type: ignore[method-assign]
    found = ManifestChain(store, PREFIX).newest(None)
    assert found == log.cached


def test_a_listed_manifest_that_was_deleted_is_searched_for_again() -> None:
    store = Behind()
    log = committed(store, 3)
    last = log.cached
    assert last is not None

    def collect() -> None:
        store.between = lambda: None  # type: ignore[method-assign]
        log.commit(set_properties({"a": "b"}), 9)
        store.delete([PREFIX + manifest_key(last.sequence)])

    store.between = collect  # type: ignore[method-assign]
    assert ManifestChain(store, PREFIX).newest(None) == log.cached


def test_a_damaged_manifest_behind_the_listed_one_raises_corrupt_with_its_name() -> None:
    store = Behind()
    last = committed(store, 3).cached
    assert last is not None
    store.put(PREFIX + manifest_key(last.sequence), b"{}")
    store.hidden = 1
    with pytest.raises(Corrupt, match=manifest_key(last.sequence)):
        ManifestChain(store, PREFIX).newest(None)
