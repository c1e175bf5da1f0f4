"""Random forged manifests: readers return the written records or raise Corrupt, and no data or checkpoint is deleted.

A forgery changes the newest manifest of a sound bucket and has valid checksums. `ABSURD` values are outside the
bounds of every field, or have another type. `LEGAL` values are within the bounds: a reader may then see another log
(a later start, a missing entry), but no record that was not written and no other error.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from manager_world import NAME, NOW, TIERED, World, send, settle
from run_profile import examples
from split_columns import split_columns

from local.errors import Corrupt, LogError
from local.names import CLEANER_OFFSETS, LEADER_EPOCHS, LOG_START_OFFSETS
from remote.check.partition_check import salvage_manifest
from remote.keys import manifest_key
from remote.manifest import commit_protocol
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import decode_line, decode_manifest, encode_line
from remote.manifest.manifest_validation import contradictions
from remote.manifest.page_out import PageRule
from remote.store.memory_store import MemoryStore
from tiered.health.scrub import plan_scrub, report_of, run_scrub
from tiered.read.bucket_reader import RemoteLog
from tiered.spark.options import parse_options
from tiered.spark.source.planning import plan_read

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(60))
CHECKPOINTS = (LEADER_EPOCHS, LOG_START_OFFSETS, CLEANER_OFFSETS)
pytestmark = pytest.mark.damages_bucket

ABSURD = [
    *(2**63, 2**64, 10**20, 10**30, -(2**63) - 1, -(10**20)),
    *(1.5, 1e300, [], {}, [None], "x" * 5000, "../../x", "\0", "meta/head/" + "0" * 20, "/", "\ud800", True),
]
LEGAL = [{}, 0, 1, 2, 7, 100, 2**31 - 1, 2**40, 2**62, 2**63 - 1, -1, None, "", "none", "zstd", [], [[0, 0]], False]
LISTS = ("segments", "unlinked", "spills", "unlinked_pages", "views", "jobs")


@dataclass(frozen=True)
class Bucket:
    """The world of a sound bucket, its newest manifest, and the records that a reader must return."""

    world: World
    prefix: str
    key: str
    body: dict
    truth: list


@cache
def bucket() -> Bucket:
    """A bucket with two epochs, manifest pages, entries in the manifest, pending deletes, and records on the disk
    only."""
    with pytest.MonkeyPatch.context() as patched:
        rule = PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=3, kept_entries_min=4)
        patched.setattr(commit_protocol, "PAGE_RULE", rule)
        world = World()
        World.made.remove(world)  # the forged bucket must not be checked at the end of the test
        with world.open() as manager:
            manager.topics.create("t", 1, TIERED, now_ms=NOW)
            send(manager, 600)
            settle(manager)
            manager.maintenance.delete_records({NAME: 130}, now_ms=NOW)
            settle(manager)
        with world.open() as manager:
            send(manager, 300, start=600)
            settle(manager)
    (name,) = list_partitions(world.store)
    manifest = MetadataLog(world.store, name.prefix).refresh()
    assert manifest.pages
    assert len(manifest.segments) > 3
    assert manifest.pending_deletes
    key = name.prefix + manifest_key(manifest.sequence)
    body = json.loads(decode_line(world.store.get(key)))
    return Bucket(world, name.prefix, key, body, records(world.store))


def records(store) -> list:
    with RemoteLog(store) as view:
        return [(each.offset, each.value) for each in view.reader().records(NAME, view.reader().offsets(NAME)[0])]


def paths(value, above=()):
    """The path of every value in a manifest's JSON, containers included."""
    if above:
        yield above
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield from paths(each, (*above, name))


def put(body, path, value):
    changed = copy.deepcopy(body)
    place = changed
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return changed


def forged_store(body) -> MemoryStore:
    """A copy of the bucket with this JSON as its newest manifest."""
    made, store = bucket(), MemoryStore("memory://bucket")
    store._objects = dict(made.world.store._objects)
    store.put(made.key, encode_line(json.dumps(body).encode()))
    return store


@st.composite
def absurd(draw):
    """The manifest with one impossible value. A list without its entries is the legal manifest of another log."""
    path = draw(st.sampled_from(list(paths(bucket().body))))
    before = bucket().body
    for name in path:
        before = before[name]
    values = [each for each in ABSURD if not (each in ([], {}) and type(each) is type(before))]
    return put(bucket().body, path, draw(st.sampled_from(values)))


@st.composite
def twisted(draw):
    """The manifest with some values of the right type replaced, and entries removed, repeated, moved or forged."""
    body = bucket().body
    for _ in range(draw(st.integers(1, 3))):
        places = list(paths(body))
        path = draw(st.sampled_from(places))
        others = [place for place in places if place[-1] == path[-1]]
        donor = body
        for name in draw(st.sampled_from(others)):
            donor = donor[name]
        body = put(body, path, draw(st.sampled_from([*LEGAL, copy.deepcopy(donor)])))
    name = draw(st.sampled_from(LISTS))
    entries = list(body[name]) if isinstance(body.get(name), list) else []
    if len(entries) > 1:
        match draw(st.sampled_from(["nothing", "drop", "double", "swap", "delete"])):
            case "drop":
                entries.pop(draw(st.integers(0, len(entries) - 1)))
            case "double":
                entries.append(draw(st.sampled_from(entries)))
            case "swap":
                entries[0], entries[-1] = entries[-1], entries[0]
            case "delete":
                living = bucket().body["segments"][draw(st.integers(0, 3))]["data_key"]
                gone = {"key": living, "size_bytes": 1, "unlinked_ms": 0, "epoch": 1, "unlinked_sequence": 1}
                body = {**body, "unlinked": [gone]}
        body = {**body, name: entries} if name in body else body
    return body


def spark_records(store) -> list:
    splits = plan_read(store, parse_options({"path": "memory://b", "subscribe": "t"}), now_ms=NOW)
    columns = [each for split in splits for each in split_columns(store, split)]
    return [(record.offset, record.value) for each in columns for record in each.records()]


@pytest.mark.parametrize("read", [records, spark_records])
@CALM
@given(forgery=absurd())
def test_an_absurd_value_is_corrupt_or_does_not_change_the_records_read(read, forgery):
    try:
        found = read(forged_store(forgery))
    except Corrupt:
        return
    assert found == bucket().truth


@CALM
@given(forgery=twisted())
def test_no_forged_manifest_makes_a_reader_return_records_that_were_not_written(forgery):
    try:
        found = records(forged_store(forgery))
    except LogError:
        return
    written = dict(bucket().truth)
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets))
    # Records below the log start are still in their segments: a lower log start shows them again.
    assert all(written.get(offset, value) == value for offset, value in found)


def data_objects(store) -> set[str]:
    return {key for key in store._objects if "/data/" in key}


def checkpoints(disk) -> dict[str, bytes]:
    named = (
        path for root in ("./data", f"./data/{NAME.directory}") for path in (f"{root}/{each}" for each in CHECKPOINTS)
    )
    return {path: disk.read(path) for path in named if disk.exists(path)}


@CALM
@given(forgery=absurd())
def test_a_manager_of_a_forged_bucket_deletes_no_data_and_keeps_its_checkpoints(forgery):
    made = bucket()
    store, disk = forged_store(forgery), copy.deepcopy(made.world.disk)
    objects, before = data_objects(store), checkpoints(disk)
    is_sound = True
    try:
        MetadataLog(store, made.prefix).refresh()
    except Corrupt:
        is_sound = False
    try:
        with made.world.open(disk=disk, store=store, now_ms=NOW + 1) as manager:
            for _ in range(3):
                manager.tick(NOW + 1)
    except LogError:
        pass
    assert objects <= data_objects(store)
    if not is_sound:
        assert checkpoints(disk) == before
        assert store.get(made.key) == encode_line(json.dumps(forgery).encode()), (
            "the forged manifest must stay as evidence"
        )


@CALM
@given(forgery=st.one_of(absurd(), twisted()))
def test_a_scrub_of_a_forged_bucket_changes_nothing_and_reports_corrupt_manifests(forgery):
    made, store = bucket(), forged_store(forgery)
    before = dict(store._objects)
    plan = plan_scrub(store, list_partitions(store), deep=True)
    results = run_scrub(store, plan, threads=1)
    report = report_of(store, plan, results, started_ms=NOW, now_ms=NOW)
    assert store._objects == before
    try:
        decode_manifest(store.get(made.key), made.prefix)
    except Corrupt:
        assert report.of("corrupt")


@CALM
@given(forgery=st.one_of(absurd(), twisted()))
def test_a_salvaged_manifest_is_accepted_by_readers(forgery):
    made = bucket()
    data = encode_line(json.dumps(forgery).encode())
    salvage = salvage_manifest(data, made.prefix)
    if salvage.manifest is not None:
        assert list(contradictions(salvage.manifest, made.prefix)) == []
    try:
        assert decode_manifest(data, made.prefix) == salvage.manifest
    except Corrupt:
        assert salvage.found


def test_the_bucket_without_a_forgery_is_sound():
    made = bucket()
    assert records(forged_store(made.body)) == made.truth == spark_records(forged_store(made.body))
    assert [offset for offset, _ in made.truth] == list(range(130, made.truth[-1][0] + 1))
