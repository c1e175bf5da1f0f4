"""Looking for the newest head: what a listing does not know of yet, and what came in vain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from local.errors import Corrupt
from remote.keys import head_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_chain import HeadChain
from remote.manifest.manifest_changes import set_properties
from remote.store import Asked, Body, ObjectInfo
from remote.store.memory_store import MemoryStore

PREFIX = "orders-AAAAAAAAAAAAAAAAAAAAAA/0/"


class Behind(MemoryStore):
    """Its listings do not know of the last `hidden` objects; `between` happens after a listing."""

    hidden = 0

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        found = list(super().list(prefix, start_after=start_after))
        return iter(found[: len(found) - self.hidden])

    def get_each(self, asked: Sequence[Asked]) -> Sequence[Body | None]:
        self.between()
        return super().get_each(asked)

    def between(self) -> None:
        pass


def committed(store: MemoryStore, heads: int) -> MetadataLog:
    log = MetadataLog(store, PREFIX)
    log.become_writer("w", 0, topic="orders", topic_id="A" * 22, partition=0)
    for now_ms in range(heads - 1):
        log.commit(set_properties({"retention.ms": str(now_ms)}), now_ms)
    return log


@pytest.mark.parametrize("hidden", [0, 1, 2, 3, 6])
def test_heads_that_a_listing_does_not_know_of_yet_are_found(hidden: int) -> None:
    store = Behind()
    newest = committed(store, 8).cached
    store.hidden = hidden
    assert HeadChain(store, PREFIX).newest(None) == newest


def test_a_head_committed_between_the_listing_and_the_look_at_it_is_found() -> None:
    store = Behind()
    log = committed(store, 3)
    store.between = lambda: log.commit(set_properties({"a": "b"}), 9)  # type: ignore[method-assign]
    found = HeadChain(store, PREFIX).newest(None)
    assert found == log.cached


def test_a_listed_head_that_is_gone_is_looked_for_again() -> None:
    store = Behind()
    log = committed(store, 3)
    last = log.cached
    assert last is not None

    def collect() -> None:
        store.between = lambda: None  # type: ignore[method-assign]
        log.commit(set_properties({"a": "b"}), 9)
        store.delete([PREFIX + head_key(last.sequence)])

    store.between = collect  # type: ignore[method-assign]
    assert HeadChain(store, PREFIX).newest(None) == log.cached


def test_a_damaged_head_behind_the_listed_one_is_corrupt_and_named() -> None:
    store = Behind()
    last = committed(store, 3).cached
    assert last is not None
    store.put(PREFIX + head_key(last.sequence), b"{}")
    store.hidden = 1
    with pytest.raises(Corrupt, match=head_key(last.sequence)):
        HeadChain(store, PREFIX).newest(None)
