"""A writer that stalls before its deletes, and a bucket restored to an earlier state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from manager_world import HOUR, NAME, NOW, TIERED, World, send, settle, values

from local.errors import Conflict, Corrupt, Fenced, RemoteLost
from remote.gc.pins import pin_newest
from remote.keys import MANIFESTS
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import set_properties
from remote.manifest.page_out import named_keys
from tiered.jobs.orphan_deletion import delete_garbage, list_garbage
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog

DAY = 24 * HOUR
KEEPS = {**TIERED, "remote.log.delete.grace.ms": "1h"}


def head_of(manager: LogManager) -> Manifest:
    manifest = manager.partitions.all()[0].manifest()
    assert manifest is not None
    return manifest


# --- a stall between the check and the deletes ------------------------------------------------------------------------


def test_a_writer_that_stalls_before_its_deletes_deletes_no_object_still_in_use() -> None:
    """The writer saw no pin; during its stall another takes over, and a reader pins."""
    world, pinned = World(), []
    late = NOW + HOUR
    with world.open() as manager:
        manager.topics.create("t", 1, KEEPS, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        manager.maintenance.delete_records({NAME: 150}, now_ms=NOW)
        settle(manager)
        held = manager.partitions.all()[0]
        assert head_of(manager).pending_deletes
        assert head_of(manager).segments
        deleting: Callable[[list[str]], None] = world.store.delete

        def meanwhile(keys: list[str]) -> None:
            world.store.delete = deleting  # type: ignore[method-assign]
            other, topic = MetadataLog(world.store, held.prefix), manager.topics.get("t")
            other.become_writer("another", late, topic="t", topic_id=topic.topic_id, partition=0)
            other.commit(set_properties({"some": "news"}), late)
            pinned.append(pin_newest(world.store, held.prefix, other, now_ms=late, expires_ms=late + DAY, holder="r"))
            deleting(keys)

        world.store.delete = meanwhile  # type: ignore[assignment,method-assign]
        manager.tick(late)
        assert pinned, "the writer did not stall before the deletes"
        assert isinstance(manager.problems[NAME], Fenced)
    newest = MetadataLog(world.store, held.prefix).refresh()
    there = {info.key.removeprefix(held.prefix) for info in world.store.list(held.prefix)}
    for manifest in (newest, pinned[0][1]):
        assert set() < named_keys(manifest, lambda page: ()) <= there
    assert newest.writer_id == "another"


# --- an earlier state of the bucket is restored -----------------------------------------------------------------------


class Timeline:
    """The bucket has records 0 to 400, the disk at least 430; the backup was made when the bucket had 200."""

    def __init__(self, *, keeps_disk: bool) -> None:
        self.world = World()
        settings = {**TIERED, "local.retention.ms": "-2" if keeps_disk else "1ms"}
        self.manager = self.world.open()
        self.manager.topics.create("t", 1, settings, now_ms=NOW)
        self._copied(0)
        self.backup = dict(self.world.store._objects)
        self._copied(200)
        send(self.manager, 30, start=400)
        self.expected = values(self.manager.reader())

    def _copied(self, start: int) -> None:
        send(self.manager, 200, start=start)
        self.manager.partitions.roll("t", now_ms=NOW)
        settle(self.manager)

    def restore(self, *, all_of_it: bool) -> None:
        """Restore the whole bucket or only its manifests, as after a listing that lost newer ones."""
        objects = self.world.store._objects
        gone = [key for key in objects if key not in self.backup and (all_of_it or MANIFESTS in key)]
        for key in gone:
            del objects[key]


@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_disk_with_the_records_that_an_older_manifest_lacks_copies_them_again(all_of_it: bool) -> None:
    line = Timeline(keeps_disk=True)
    line.manager.close()
    line.restore(all_of_it=all_of_it)
    with line.world.open() as manager:
        settle(manager)
        assert values(manager.reader()) == line.expected
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        assert head_of(manager).next_offset == 430, "the records were not copied again under new names"


@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_disk_that_dropped_the_records_an_older_manifest_lacks_reports_remote_lost(all_of_it: bool) -> None:
    line = Timeline(keeps_disk=False)
    line.manager.close()
    line.restore(all_of_it=all_of_it)
    before = dict(line.world.store._objects)
    with line.world.open() as manager:
        manager.tick(NOW)
        assert isinstance(manager.problems[NAME], RemoteLost)
        with pytest.raises(Conflict):
            send(manager, 1, start=430)
    after = {key: body for key, body in line.world.store._objects.items() if "meta/probe" not in key}
    assert after == before


@pytest.mark.damages_bucket  # entries name objects that the backup did not have
@pytest.mark.parametrize("keeps_disk", [True, False])
@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_running_manager_commits_its_whole_manifest_above_a_restored_older_one(
    keeps_disk: bool, all_of_it: bool
) -> None:
    line = Timeline(keeps_disk=keeps_disk)
    line.restore(all_of_it=all_of_it)
    before = head_of(line.manager).sequence
    send(line.manager, 100, start=430)
    line.manager.partitions.roll("t", now_ms=NOW)
    settle(line.manager)
    newest = MetadataLog(line.world.store, line.manager.partitions.all()[0].prefix).refresh()
    assert newest.sequence > before
    assert newest.next_offset == 530
    with RemoteLog(line.world.store) as bucket:  # the manager has cached its earlier reads
        if all_of_it:
            with pytest.raises(Corrupt, match="its object is missing"):  # an error, never skipped
                values(bucket.reader())
        else:
            assert [record for record in values(bucket.reader()) if record[0] < 430] == line.expected
    if keeps_disk:
        assert [record for record in values(line.manager.reader()) if record[0] < 430] == line.expected
    line.manager.close()


def test_objects_of_the_epoch_before_a_restore_are_orphans_after_the_next_takeover() -> None:
    line = Timeline(keeps_disk=True)
    line.manager.close()
    line.restore(all_of_it=False)
    with line.world.open() as manager:
        settle(manager)
        prefix, expected = manager.partitions.all()[0].prefix, values(manager.reader())
        names = list_partitions(line.world.store)
        found = list_garbage(line.world.store, names, now_ms=NOW + DAY)
        assert found.entries, "expected orphans of the epoch before the restore"
        delete_garbage(line.world.store, found, now_ms=NOW + DAY, grace_ms=0)
        assert values(manager.reader()) == expected
        assert prefix == names[0].prefix


@pytest.mark.parametrize("is_put_back", [True, False])
def test_a_disk_with_records_of_a_later_epoch_reports_a_restored_older_bucket(
    caplog: pytest.LogCaptureFixture, *, is_put_back: bool
) -> None:
    line = Timeline(keeps_disk=True)
    line.manager.close()
    with line.world.open() as manager:
        send(manager, 20, start=430)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        expected = values(manager.reader())
    if is_put_back:
        line.restore(all_of_it=True)
    with line.world.open() as manager:
        settle(manager)
        assert values(manager.reader()) == expected
    assert ("the bucket was restored to an older state" in caplog.text) == is_put_back
