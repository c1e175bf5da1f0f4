"""A deep scrub finds every drawn corruption, and has no findings in an undamaged bucket."""

from __future__ import annotations

import os

import pytest
import rot
from care_world import KEYS, MODES, all_kinds, named
from run_profile import ROT_CASES

from remote.store.memory_store import MemoryStore
from tiered.health.scrub import plan_scrub, run_scrub

CASES = int(os.environ.get("TIERED_ROT_CASES", str(ROT_CASES)))
TOPICS = (*MODES, "paged", "viewed")
UNSEALED = ("encrypted", "both", "paged")  # encrypted topics with manifests of a version before sealing


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    found = all_kinds().store
    assert isinstance(found, MemoryStore)
    return found


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("deep", [False, True])
def test_scrub_of_an_undamaged_bucket_has_no_findings(store: MemoryStore, topic: str, deep: bool) -> None:
    report = rot.scrubbed(store, topic, deep=deep)
    told = [each.what for each in report.findings]
    if topic in UNSEALED:
        assert "are not sealed" in told.pop()
    assert told == []
    (partition,) = report.partitions
    assert partition.segments == (11 if topic == "paged" else 4)
    assert (report.read_bytes > 0) == deep


@pytest.mark.parametrize("topic", TOPICS)
def test_scrub_finds_every_drawn_corruption(store: MemoryStore, topic: str) -> None:
    missed = rot.run({topic: store}, CASES // len(TOPICS), first_seed=7_000)
    assert missed == []


def test_a_deep_scrub_finds_a_change_in_any_byte_of_a_segment(store: MemoryStore) -> None:
    """Every byte of one segment's objects is changed in turn."""
    prefix = named("raw").prefix
    plan = plan_scrub(store, [named("raw")], deep=True)
    entry = plan.jobs[1].entry
    missed = []
    for key in (entry.data_key, entry.indexes_key):
        body = store.get(prefix + key)
        for at in range(len(body)):
            bad = MemoryStore("memory://b")
            bad._objects = dict(store._objects)
            bad.put(prefix + key, body[:at] + bytes([body[at] ^ 0x10]) + body[at + 1 :])
            (result,) = run_scrub(bad, _only(plan, 1), keys=KEYS, threads=1) or ()
            if not result.findings:
                missed.append((key, at))
    assert missed == []


def _only(plan, number):
    from dataclasses import replace

    return replace(plan, jobs=plan.jobs[number : number + 1])
