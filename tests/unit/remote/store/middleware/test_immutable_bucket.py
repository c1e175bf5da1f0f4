"""A bucket without overwrites and deletions: all operations work and never request either."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path

import pytest
from checked_bucket import check_bucket, damage
from manager_world import COMPACTED, DAY, HOUR, NAME, NOW, TIERED, World, send, settle, values

from local.errors import AccessDenied, AlreadyExists
from local.names import TopicPartition
from remote.gc.pins import pin_newest, renew
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import ImmutableStore, ThrottledStore
from remote.store.probe import probe_store
from tiered.cli.job_command import open_bucket, task_bucket
from tiered.cli.main import invoke
from tiered.cli.session import Session
from tiered.config.config import Config
from tiered.jobs.orphan_deletion import list_garbage
from tiered.migrate.fork import plan_fork, run_fork
from tiered.read.bucket_reader import RemoteLog
from tiered.stores.configured_store import configured_store


class LockedStore(MemoryStore):
    """A store with an object lock: it refuses a second body for a name, and every deletion."""

    def put(self, key: str, body: bytes) -> None:  # type: ignore[override]
        assert key not in self._objects, f"overwritten: {key}"
        super().put(key, body)

    def delete(self, keys: Iterable[str]) -> None:
        raise AccessDenied("deleting, the bucket is locked", keys=list(keys))


def _locked() -> tuple[World, LockedStore]:
    world, inner = World(), LockedStore("memory://locked")
    world.store = ImmutableStore(inner)  # type: ignore[assignment]
    return world, inner


@pytest.mark.parametrize("settings", [TIERED, COMPACTED])
def test_a_topic_works_through_its_whole_life_in_a_locked_bucket(settings: dict[str, str]) -> None:
    world, inner = _locked()
    with world.open() as manager:
        manager.topics.create("t", 1, {**settings, "retention.ms": "-1"}, now_ms=NOW)
        for turn in range(8):
            now = NOW + turn * DAY * 2
            send(manager, 120, start=turn * 120)
            manager.partitions.roll("t", now_ms=now)
            settle(manager, now)
            if settings is TIERED and turn % 3 == 2:
                manager.maintenance.delete_records({NAME: turn * 100}, now_ms=now)
            settle(manager, now + DAY + 1)
        manifest = manager.partitions.find(NAME).manifest()
        assert manifest is not None
        assert (
            not manifest.pending_deletes
        )  # removed from the list after their grace period, because the list is bounded
    assert world.store.spared > 0  # type: ignore[attr-defined]
    assert damage(check_bucket(inner)) == []
    with world.open(now_ms=NOW + 40 * DAY) as again:
        assert again.problems == {}
    listed = list_garbage(inner, list_partitions(inner), now_ms=NOW + 90 * DAY)
    assert listed.entries or settings is COMPACTED  # objects that a lifecycle rule or an operator may delete
    read = RemoteLog(inner).reader()
    assert list(read.records(NAME, read.offsets(NAME)[0]))


def test_a_deleted_topic_and_a_fork_request_no_deletion() -> None:
    world, inner = _locked()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        names = list_partitions(inner)
        plan = plan_fork(world.store, names, "f", known=[])
        run_fork(world.store, plan, now_ms=lambda: NOW)
        manager.topics.delete("t", now_ms=NOW)
        for at in range(5):
            settle(manager, NOW + at * 2 * DAY)
    manifest = MetadataLog(inner, names[0].prefix).refresh()
    assert manifest.deleted_ms is not None
    assert not manifest.has_entries


def test_the_store_probe_needs_no_deletion() -> None:
    assert probe_store(ImmutableStore(LockedStore("memory://locked")), now_ms=NOW).allows_writers


def test_other_bytes_under_an_existing_name_are_refused_and_the_same_bytes_accepted() -> None:
    store = ImmutableStore(LockedStore("memory://locked"))
    store.put("a", b"one")
    store.put("a", b"one")
    with pytest.raises(AlreadyExists, match="immutable"):
        store.put("a", b"two")
    assert store.get("a") == b"one"


def test_a_pin_is_renewed_under_another_name_that_all_its_holders_share() -> None:
    """Two workers renew it for hours and know only the first name; the pinned objects are never orphans."""
    world, inner = _locked()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "remote.log.delete.grace.ms": "1h"}, now_ms=NOW)
        send(manager, 200)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        prefix = manager.partitions.find(NAME).prefix
        log = MetadataLog(world.store, prefix)
        pin, manifest = pin_newest(world.store, prefix, log, now_ms=NOW, expires_ms=NOW + 4 * HOUR, holder="job")
        manager.maintenance.delete_records({NAME: -1}, now_ms=NOW)
        ends = set()
        for hours in range(2, 30):
            now = NOW + hours * HOUR
            for _ in ("worker", "other worker"):
                later = renew(world.store, prefix, pin, clock=lambda now=now: now, expires_ms=now + 4 * HOUR)
                assert later is not None
                assert (later.sequence, later.holder) == (pin.sequence, "job")
                assert later.expires_ms >= now + 2 * HOUR
                ends.add(later.key)
            settle(manager, now)
        assert 8 <= len(ends) <= 16, "expected one pin for every few hours, for any number of holders"
    mine = {row.data_key for row in manifest.segments}
    for now, kept in ((NOW + 30 * HOUR, mine), (NOW + 60 * HOUR, set())):
        with world.open(now_ms=now) as manager:  # a new epoch: unnamed objects of the older epoch are orphans
            settle(manager, now)
        listed = {each.key for each in list_garbage(inner, list_partitions(inner), now_ms=now).entries}
        assert mine - listed == kept, now
    late = NOW + 60 * HOUR
    assert renew(world.store, prefix, pin, clock=lambda: late, expires_ms=late + HOUR) is None, (
        "an expired pin was renewed"
    )


def test_a_complete_fork_stays_complete_in_a_locked_bucket_when_forked_again() -> None:
    world, inner = _locked()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        names = list_partitions(inner)
        run_fork(world.store, plan_fork(world.store, names, "f", known=[]), now_ms=lambda: NOW)
        manager.maintenance.delete_records({NAME: -1}, now_ms=NOW)
        for at in range(4):
            settle(manager, NOW + at * 2 * DAY)
    forks = [name for name in list_partitions(inner) if name.topic == "f"]
    run_fork(world.store, plan_fork(world.store, names, "f", known=forks), now_ms=lambda: NOW + 9 * DAY)
    read, fork = RemoteLog(inner).reader(), TopicPartition("f", 0)
    assert [each.offset for each in read.records(fork, read.offsets(fork)[0])] == list(range(200))


def test_remote_immutable_makes_the_configured_store_immutable(tmp_path: Path, capfd) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "tiered.toml").write_text(f'[local]\ndir = "data"\n[remote]\nurl = "file://{tmp_path}/bucket"\n')
    for more, kind in (
        ({"remote.immutable": "true"}, ImmutableStore),
        (
            {"remote.immutable": "true", "remote.log.manager.copy.max.bytes.per.second": "1MiB"},
            ThrottledStore,
        ),
    ):
        store = configured_store(Config.load(str(tmp_path / "tiered.toml"), more, {}))
        assert isinstance(store, kind)
        store.put("a", b"1")
        store.delete(["a"])
        assert store.get("a") == b"1"
    words = ["-C", str(tmp_path), "-X", "remote.immutable=true", "gc"]
    assert invoke([*words]) == 0
    assert invoke([*words, "--delete", "--yes"]) == 2
    assert "its lifecycle deletes" in capfd.readouterr().err


@pytest.mark.parametrize("settings", [{"remote.immutable": "true"}, {}])
def test_the_store_that_a_job_opens_for_its_tasks_is_immutable_as_well(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    """Also when no configuration names the bucket, and -X has the setting."""
    url = f"file://{tmp_path}"
    session = Session(directory=str(tmp_path), overrides=settings)
    with open_bucket(session, url, {}) as bucket:
        bucket.store.put("a", b"1")
        pickled = pickle.dumps(task_bucket(session, bucket, is_configured=False))
        bucket.store.delete(["a"])
        assert bool(list(bucket.store.list(""))) == bool(settings)
    with pickle.loads(pickled).opened() as store:
        store.put("b", b"1")
        store.delete(["a", "b"])
        assert bool(list(store.list(""))) == bool(settings)


def test_a_tier_that_is_paused_and_resumed_has_no_gap() -> None:
    """During the pause only `retention.*` removes segments, over restarts too."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        copied = manager.partitions.find(NAME).manifest().next_offset
        paused = {"remote.log.copy.disable": "true", "local.retention.ms": "-2"}
        manager.topics.alter("t", paused, now_ms=NOW)
        send(manager, 200, start=200)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager, NOW + DAY)
        assert manager.partitions.find(NAME).manifest().next_offset == copied
    with world.open(now_ms=NOW + DAY) as manager:
        send(manager, 200, start=400)
        settle(manager, NOW + 2 * DAY)
        going_on = {"remote.log.copy.disable": "", "local.retention.ms": "1ms"}
        manager.topics.alter("t", going_on, now_ms=NOW + 2 * DAY)
        manager.partitions.roll("t", now_ms=NOW + 2 * DAY)
        settle(manager, NOW + 2 * DAY)
        rows = manager.partitions.find(NAME).manifest().segments
        assert [row.base_offset for row in rows[1:]] == [row.next_offset for row in rows[:-1]]
        assert rows[-1].next_offset == 600
        assert values(manager.reader()) == [(at, b"value %d" % at) for at in range(600)]
