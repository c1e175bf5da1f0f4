"""A manifest page without a manifest is an orphan only in a later epoch, and is then deleted.

Every call of a writer that writes pages fails in every way, or is its last. At every call a process deletes orphans
without a grace period, by a list of that moment and by an earlier list.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest

from local.errors import LogError
from remote.keys import PAGES, parse_page_key
from remote.manifest import commit_protocol
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.page_out import PageRule
from remote.store import ObjectStore
from remote.store.memory_store import MemoryStore
from tiered.jobs.orphan_deletion import GarbageList, delete_garbage, list_garbage

sys.path.insert(0, str(Path(__file__).parent))
from fault_store import Fault, FaultStore, Killed
from protocol_world import PREFIX, TOPIC, TOPIC_ID, Writer, check

NAME = RemotePartitionName(TOPIC, TOPIC_ID, 0)
NOW, LATER = 1_000, 2_000
FAULTS = (Fault.AFTER, Fault.LATE_1, Fault.OUTAGE, Fault.KILL_BEFORE, Fault.KILL_AFTER)


@pytest.fixture(autouse=True)
def hardly_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = PageRule(manifest_bytes_max=1, page_rows_max=1, page_rows_min=1, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)


def work(writer: Writer) -> None:
    """Write pages, and open one to take an entry out."""
    writer.open()
    for base in (100, 110, 120):
        writer.copy(base)
    writer.expire(100)


def listed(store: ObjectStore) -> GarbageList:
    return list_garbage(store, [NAME], now_ms=LATER)


def collect(store: ObjectStore, found: GarbageList) -> list[str]:
    return [each.key for each in delete_garbage(store, found, now_ms=LATER, grace_ms=0).entries]


def pages(store: ObjectStore) -> set[str]:
    return {info.key.removeprefix(PREFIX) for info in store.list(PREFIX + PAGES)}


def new_store() -> MemoryStore:
    return MemoryStore("memory://b", now_ms=lambda: NOW)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.value)
def test_a_page_without_a_manifest_is_deleted_only_after_the_next_epoch_began(fault: Fault) -> None:
    count, orphans = _calls(), set()
    for at in range(FAULTS.index(fault) % 2, count, 2):
        inner = new_store()
        before = [listed(inner)]

        def others(number: int, at: int = at, inner: MemoryStore = inner, before: list[GarbageList] = before) -> None:
            if (number + at) % 3:
                return
            now = listed(inner)
            taken = collect(inner, before[0]) + collect(inner, now)
            assert taken == [], "no page of the first epoch may be an orphan yet"
            before[0] = now

        store = FaultStore(inner, at, fault, before_call=others)
        writer = Writer(store)
        with suppress(LogError, Killed):
            work(writer)
        store.deliver(1 << 60)
        successor = Writer(inner, "b")
        successor.open()
        manifest = check(inner, successor, writer) if writer.acknowledged else check(inner, successor)
        assert manifest is not None
        named = {page.key for page in manifest.pages} | {each.key for each in manifest.pending_deletes}
        named |= {page.page.key for page in manifest.pending_page_deletes}
        unnamed = pages(inner) - named
        found = listed(inner)
        assert {each.key for each in found.entries if parse_page_key(each.key)} == unnamed
        assert delete_garbage(inner, found, now_ms=NOW, grace_ms=1).entries == (), (
            "an object was deleted before the grace period"
        )
        assert unnamed <= set(collect(inner, found))
        assert pages(inner) <= named
        assert listed(inner).entries == []
        successor.copy(max(100, manifest.next_offset))
        check(inner, successor)
        orphans |= unnamed
    assert orphans or fault is Fault.OUTAGE, "no page was left without a manifest"


def _calls() -> int:
    store = FaultStore(new_store())
    work(Writer(store))
    return len(store.calls)
