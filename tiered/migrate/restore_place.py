"""What lies where a partition is to be restored, and whether it may give way: nothing that the bucket lacks ever does.

| there | without taking over | with `takes_over` |
|---|---|---|
| nothing | restored, under the bucket's topic id | the same |
| an empty partition, just created by a broker | filled, keeps its topic id | its id has to be the bucket's |
| what an earlier run put there by the same plan | taken as it is | taken as it is |
| segments of its topic id that are all in the bucket, byte for byte | refused | put aside for what is wished |
| anything else | refused | refused |

Records that only a disk has (a broker's newest, a directory whose registry was lost) look much like the last but one:
so every file is held against a row's size and checksum before anything is renamed, and before anybody is fenced.
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
from remote.segment_entry import RemoteSegment
from tiered.migrate.restore_files import STAGING, is_whole
from tiered.migrate.restore_plan import PartitionRestore, TopicRestore
from tiered.node.topic_registry import TopicRegistry


def check_restore(topics: Sequence[TopicRestore], storage: Storage, root: str) -> None:
    """Whether the directory has room for them by what lies there; changes nothing.

    Raises InvalidRequest for a topic that is there already, Conflict for files that may not give way. Whoever restores
    looks again under the directory's lock.
    """
    if storage.exists(root) and not storage.is_directory(root):
        raise InvalidRequest("restoring, it is a file: name a directory", directory=root)
    registry = TopicRegistry([(storage, root)])
    for topic in topics:
        _check_free(storage, root, registry, topic)


def holds_all(storage: Storage, directory: str, planned: PartitionRestore) -> bool:
    """Whether `directory` is what a run before laid down by such a plan and put in its place."""
    expected = {row.base_offset: row for row in planned.rows}
    found = _logs(storage, directory)
    if found.pop(segment_file(planned.next_offset, LOG), None) != 0:
        return False
    if found.keys() != {segment_file(base, LOG) for base in expected}:
        return False
    return all(_is_as_planned(storage, directory, row, planned.next_offset) for row in planned.rows)


def topic_id_for(storage: Storage, root: str, partition: TopicPartition, topic_id: str) -> str:
    """That of the empty partition that is there, or was until an earlier run put it aside; else `topic_id`."""
    place = join(root, partition.directory)
    if storage.is_directory(place):
        return checkpoints.read_topic_id(storage, place) or topic_id
    begun = checkpoints.read_topic_id(storage, place + STAGING) if storage.is_directory(place + STAGING) else None
    return begun if begun in _put_aside(storage, root, partition) else topic_id


def _check_free(storage: Storage, root: str, registry: TopicRegistry, topic: TopicRestore) -> None:
    if topic.topic in {each.name for each in registry.all()}:
        raise InvalidRequest("restoring a topic, the directory has it", topic=topic.topic, directory=root)
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
                raise Conflict("taking a topic over, an empty partition with another topic id is there", **facts)
        elif not _may_give_way(storage, root, each, topic, topic_id):
            raise Conflict("restoring a partition, other files are there", partition=partition, directory=place)
    if len(ids) > 1:
        raise Conflict("restoring a topic, its partitions there have several ids", topic=topic.topic)


def _may_give_way(
    storage: Storage, root: str, planned: PartitionRestore, topic: TopicRestore, topic_id: str | None
) -> bool:
    """Whether records that lie there are what this restore, or one before it, has to put there."""
    partition = planned.name.topic_partition
    place = join(root, partition.directory)
    if topic.wish.takes_over:
        return topic_id == topic.topic_id and _is_in_the_bucket(storage, place, planned)
    is_ours = topic_id == topic.topic_id or topic_id in _put_aside(storage, root, partition)
    return is_ours and holds_all(storage, place, planned)


def _is_in_the_bucket(storage: Storage, place: str, planned: PartitionRestore) -> bool:
    """Whether every segment there is a row of the bucket, byte for byte."""
    rows = {segment_file(row.base_offset, LOG): row for row in (*planned.left_rows, *planned.rows)}
    found = [name for name, size in _logs(storage, place).items() if size]
    return all(name in rows and is_whole(storage, place, rows[name]) for name in found)


def _is_as_planned(storage: Storage, directory: str, row: RemoteSegment, end: int) -> bool:
    if row.next_offset <= end:
        return is_whole(storage, directory, row)
    path = join(directory, segment_file(row.base_offset, LOG))
    reached = 0
    for at, _, table in slices_of(lambda position, length: storage.read(path, position, length)):
        reached = at + table.valid_bytes
        if len(table) and int(table.last_offsets[-1]) >= end:
            return False
    return reached == storage.size(path) <= row.size_bytes


def _logs(storage: Storage, directory: str) -> dict[str, int]:
    """Size by name of all files that hold records, or may: those on their way in too, those on their way out not."""
    found = {}
    for name, facts in storage.list_files(directory).items():
        parsed = parse_segment_file(name)
        if parsed is not None and parsed[1].startswith(LOG) and not name.endswith((DELETED, CLEANED)):
            found[name] = facts.size_bytes
    return found


def _put_aside(storage: Storage, root: str, partition: TopicPartition) -> set[str]:
    """The topic ids of empty directories of this partition that were put aside."""
    found = set()
    for name in storage.list(root):
        parsed = parse_marked_directory(name)
        if parsed is None or parsed[0] != partition or any(_logs(storage, join(root, name)).values()):
            continue
        if (topic_id := checkpoints.read_topic_id(storage, join(root, name))) is not None:
            found.add(topic_id)
    return found
