"""Check the place of a restore: records that the bucket lacks are never replaced.

| present | without takeover | with `takes_over` |
|---|---|---|
| nothing | restored, under the bucket's topic id | the same |
| an empty partition, just created by a broker | filled, keeps its topic id | its id must be the bucket's |
| the result of an earlier run by the same plan | used unchanged | used unchanged |
| segments of its topic id that are all in the bucket, byte for byte | refused | renamed aside, then restored |
| anything else | refused | refused |

Records that only a disk has (a broker's newest, a directory with a lost registry) look much like the fourth case. The
check therefore compares every file with an entry's size and checksum, before any rename and before any takeover.
"""

from __future__ import annotations

from collections.abc import Sequence

from local.errors import Conflict, InvalidRequest
from local.index.index_files import slices_of
from local.log import checkpoints
from local.names import (
    CLEANED,
    DELETED,
    LOG,
    TopicPartition,
    parse_marked_directory,
    parse_segment_file,
    segment_file,
)
from local.storage import Storage, join
from remote.segment_entry import SegmentEntry
from tiered.migrate.restore_files import STAGING, is_whole
from tiered.migrate.restore_plan import PartitionRestore, TopicRestore
from tiered.node.topic_registry import TopicRegistry


def check_restore(topics: Sequence[TopicRestore], storage: Storage, root: str) -> None:
    """Check that the directory has place for the topics; changes nothing.

    Raises InvalidRequest if a topic is already there, Conflict if files there may not be replaced. The restore repeats
    the check under the directory's lock.
    """
    if storage.exists(root) and not storage.is_directory(root):
        raise InvalidRequest("cannot restore, the target is a file: name a directory", directory=root)
    registry = TopicRegistry([(storage, root)])
    for topic in topics:
        _check_free(storage, root, registry, topic)


def holds_all(storage: Storage, directory: str, planned: PartitionRestore) -> bool:
    """Whether `directory` is the finished result of an earlier run by such a plan."""
    expected = {entry.base_offset: entry for entry in planned.entries}
    found = _logs(storage, directory)
    if found.pop(segment_file(planned.next_offset, LOG), None) != 0:
        return False
    if found.keys() != {segment_file(base, LOG) for base in expected}:
        return False
    return all(_is_as_planned(storage, directory, entry, planned.next_offset) for entry in planned.entries)


def topic_id_for(storage: Storage, root: str, partition: TopicPartition, topic_id: str) -> str:
    """The id of the empty partition here, or of one that a run renamed aside; else `topic_id`."""
    place = join(root, partition.directory)
    if storage.is_directory(place):
        return checkpoints.read_topic_id(storage, place) or topic_id
    begun = checkpoints.read_topic_id(storage, place + STAGING) if storage.is_directory(place + STAGING) else None
    return begun if begun in _put_aside(storage, root, partition) else topic_id


def _check_free(storage: Storage, root: str, registry: TopicRegistry, topic: TopicRestore) -> None:
    if topic.topic in {each.name for each in registry.all()}:
        raise InvalidRequest(
            "cannot restore the topic, the directory already has it", topic=topic.topic, directory=root
        )
    ids = set()
    for each in topic.partitions:
        partition = each.name.topic_partition
        place = join(root, partition.directory)
        if not storage.is_directory(place):
            continue
        topic_id = checkpoints.read_topic_id(storage, place)
        ids.add(topic_id)
        if not any(_logs(storage, place).values()):
            if topic.wish.takes_over and topic_id != topic.topic_id:
                facts = {"partition": partition, "topic_id": topic_id, "in_the_bucket": topic.topic_id}
                raise Conflict(
                    "cannot take over the topic, the directory has an empty partition with another topic id", **facts
                )
        elif not _may_give_way(storage, root, each, topic, topic_id):
            raise Conflict(
                "cannot restore the partition, its directory contains other files", partition=partition, directory=place
            )
    if len(ids) > 1:
        raise Conflict("cannot restore the topic, its partitions in the directory have several ids", topic=topic.topic)


def _may_give_way(
    storage: Storage, root: str, planned: PartitionRestore, topic: TopicRestore, topic_id: str | None
) -> bool:
    """Whether the records present are those that this restore, or an earlier run of it, writes there."""
    partition = planned.name.topic_partition
    place = join(root, partition.directory)
    if topic.wish.takes_over:
        return topic_id == topic.topic_id and _is_in_the_bucket(storage, place, planned)
    is_ours = topic_id == topic.topic_id or topic_id in _put_aside(storage, root, partition)
    return is_ours and holds_all(storage, place, planned)


def _is_in_the_bucket(storage: Storage, place: str, planned: PartitionRestore) -> bool:
    """Whether every segment there is an entry of the bucket, byte for byte."""
    entries = {
        segment_file(entry.base_offset, LOG): entry for entry in (*planned.remote_only_entries, *planned.entries)
    }
    found = [name for name, size in _logs(storage, place).items() if size]
    return all(name in entries and is_whole(storage, place, entries[name]) for name in found)


def _is_as_planned(storage: Storage, directory: str, entry: SegmentEntry, end: int) -> bool:
    if entry.next_offset <= end:
        return is_whole(storage, directory, entry)
    path = join(directory, segment_file(entry.base_offset, LOG))
    reached = 0
    for at, _, table in slices_of(lambda position, length: storage.read(path, position, length)):
        reached = at + table.valid_bytes
        if len(table) and int(table.last_offsets[-1]) >= end:
            return False
    return reached == storage.size(path) <= entry.size_bytes


def _logs(storage: Storage, directory: str) -> dict[str, int]:
    """Size by name of the files that may hold records: unfinished ones too, pending deletions not."""
    found = {}
    for name, facts in storage.list_files(directory).items():
        parsed = parse_segment_file(name)
        if parsed is not None and parsed[1].startswith(LOG) and not name.endswith((DELETED, CLEANED)):
            found[name] = facts.size_bytes
    return found


def _put_aside(storage: Storage, root: str, partition: TopicPartition) -> set[str]:
    """The topic ids of this partition's empty directories that were renamed aside."""
    found = set()
    for name in storage.list(root):
        parsed = parse_marked_directory(name)
        if parsed is None or parsed[0] != partition or any(_logs(storage, join(root, name)).values()):
            continue
        if (topic_id := checkpoints.read_topic_id(storage, join(root, name))) is not None:
            found.add(topic_id)
    return found
