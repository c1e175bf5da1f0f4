"""The files of one restored partition in a Kafka log directory, complete or absent.

All files are written to ``<topic>-<partition>.restoring``, next to the final place, synced, and renamed at the end. A
Kafka broker refuses to start on a log directory that contains such a directory; our manager ignores it. Order of
effects for one entry:

1. Write its indexes.
2. Write its ``.log`` under a temporary name and sync it.
3. Compare it with the entry's checksum.
4. Rename it.

A ``.log`` under its final name is therefore whole. A later run compares its bytes again and then uses it.

| file | content |
|---|---|
| ``<base>.log .index .timeindex .txnindex`` of each entry | the bytes of the source's disk |
| ``<offset>.snapshot`` at each entry's end | the producers at that offset |
| ``<next offset>.log``, empty | the active segment: the log ends where the bucket does, holes included |
| ``leader-epoch-checkpoint``, ``partition.metadata`` | the lineage of the entries; the topic id |

A cut entry has only its ``.log``: recovery reads it whole and builds the other files.

Records that the bucket lacks are never replaced:

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

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain

import numpy as np

from local import kernels, names
from local.errors import Conflict, Corrupt, InvalidRequest, NotFound
from local.format.batch_header import HEADER_BYTES, read_header
from local.format.crc32c import crc32c
from local.index.index_files import slices_of
from local.log import checkpoints
from local.names import (
    CLEANED,
    DELETED,
    LOG,
    OFFSET_INDEX,
    PRODUCER_SNAPSHOT,
    TEMPORARY,
    TIME_INDEX,
    TXN_INDEX,
    TopicPartition,
    parse_marked_directory,
    parse_segment_file,
    segment_file,
)
from local.storage import Storage, join, replace_file
from remote.fetch.range_reader import RANGE_BYTES, RemotePartition
from remote.segment_entry import SegmentEntry
from tiered.migrate.restore_plan import PartitionRestore, TopicRestore
from tiered.node.topic_registry import TopicRegistry
from tiered.partition.reconciliation import lineage
from tiered.read.segment_runs import index_is_wrong

STAGING = ".restoring"
READ_BYTES = 4 * RANGE_BYTES
_CRC_START, _LAST_OFFSET_DELTA = 21, 23  # in a batch's header

Progress = Callable[[int], None]
ShouldStop = Callable[[], bool]


def lay_down(
    storage: Storage,
    directory: str,
    remote: RemotePartition,
    planned: PartitionRestore,
    *,
    topic_id: str,
    should_stop: ShouldStop = lambda: False,
    progress: Progress = lambda size_bytes: None,
) -> bool:
    """Write all files of a partition to `directory`, durable on return.

    Returns False if `should_stop` ended it before that. Raises NotFound if the bucket no longer has an entry (plan
    again), Corrupt if an entry's bytes are wrong.
    """
    storage.make_directory(directory)
    _clear(storage, directory, planned)
    for at, entry in enumerate(planned.entries):
        if should_stop():
            return False
        if entry.next_offset > planned.next_offset:
            _write_cut(storage, directory, remote, entry, planned.next_offset)
        else:
            _write_entry(storage, directory, remote, entry)
            following = planned.entries[at + 1].base_offset if at + 1 < len(planned.entries) else planned.next_offset
            _write_producers(storage, directory, remote, entry, following)
        progress(entry.size_bytes)
    if not planned.entries and planned.last_entry is not None:  # the producers at the end of the bucket
        _write_producers(storage, directory, remote, planned.last_entry, planned.next_offset)
    if not planned.entries or planned.entries[-1].base_offset < planned.next_offset:
        for suffix in (LOG, OFFSET_INDEX, TIME_INDEX):
            replace_file(storage, join(directory, segment_file(planned.next_offset, suffix)), b"")
    epochs = lineage(planned.manifest).truncate_from_end(planned.next_offset)
    checkpoints.write_epochs(storage, join(directory, names.LEADER_EPOCHS), epochs.entries)
    checkpoints.write_topic_id(storage, directory, topic_id)
    return True


def trusted_upto(planned: PartitionRestore) -> int:
    """The offset below which the files were compared with the bucket's; a cut entry is not compared."""
    last = planned.entries[-1] if planned.entries else None
    return last.base_offset if last is not None and last.next_offset > planned.next_offset else planned.next_offset


def is_whole(storage: Storage, directory: str, entry: SegmentEntry) -> bool:
    """Whether the segment's ``.log`` there has exactly the entry's bytes. A restore writes this file last."""
    path = join(directory, segment_file(entry.base_offset, LOG))
    with suppress(NotFound):
        if storage.size(path) != entry.size_bytes:
            return False
        found = 0
        for position in range(0, entry.size_bytes, READ_BYTES):
            found = crc32c(storage.read(path, position, READ_BYTES), found)
        return found == entry.content_crc32c
    return False


def _clear(storage: Storage, directory: str, planned: PartitionRestore) -> None:
    """Delete the files of a run by another plan, and the active segment, which is written last.

    The topic id stays: the empty partition with that id may already be renamed aside.
    """
    wanted = {entry.base_offset for entry in planned.entries if entry.next_offset <= planned.next_offset}
    for name in storage.list(directory):
        if name == names.PARTITION_METADATA:
            continue
        parsed = names.parse_segment_file(name)
        if parsed is None or parsed[0] not in wanted or name.endswith(TEMPORARY):
            storage.unlink(join(directory, name))


def _write_entry(storage: Storage, directory: str, remote: RemotePartition, entry: SegmentEntry) -> None:
    if is_whole(storage, directory, entry):
        return
    bundle = remote.indexes(entry)
    for suffix, body in ((OFFSET_INDEX, bundle.offset), (TIME_INDEX, bundle.time), (TXN_INDEX, bundle.txn)):
        if suffix != TXN_INDEX or len(body):
            replace_file(storage, join(directory, segment_file(entry.base_offset, suffix)), bytes(body))
    _write_log(storage, directory, entry, _checked(remote, entry))


def _checked(remote: RemotePartition, entry: SegmentEntry) -> Iterator[memoryview]:
    """The bytes of a segment. Raises Corrupt at the end if their checksum is not the entry's."""
    found = 0
    for position in range(0, entry.size_bytes, READ_BYTES):
        piece = remote.read(entry, position, READ_BYTES)
        found = crc32c(piece, found)
        yield piece
    if found != entry.content_crc32c:
        facts = {"expected": f"{entry.content_crc32c:08x}", "found": f"{found:08x}", "object": entry.data_key}
        raise Corrupt("cannot restore a segment, its checksum differs", base_offset=entry.base_offset, **facts)


def _write_cut(storage: Storage, directory: str, remote: RemotePartition, entry: SegmentEntry, end: int) -> None:
    """Write the batches below `end`; a batch that contains `end` keeps only its records below it."""
    at, found = remote.position_of_offset(entry, end), b""
    if at and index_is_wrong(entry, remote.read(entry, at, HEADER_BYTES), end, at):
        at = 0
    while at + len(found) < entry.size_bytes:
        found += remote.read(entry, at + len(found), READ_BYTES)
        table = kernels.scan_batches(found, verify=False)
        if len(table) and int(table.last_offsets[-1]) >= end:
            break
    before = (remote.read(entry, each, min(READ_BYTES, at - each)) for each in range(0, at, READ_BYTES))
    _write_log(storage, directory, entry, chain(before, [cut_batches(found, end)]))


def _write_log(storage: Storage, directory: str, entry: SegmentEntry, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a ``.log`` under a temporary name, sync it, and rename it."""
    path = join(directory, segment_file(entry.base_offset, LOG))
    file = storage.create(path + TEMPORARY)
    try:
        for piece in pieces:
            file.append(piece)
        file.sync()
    finally:
        file.close()
    storage.rename(path + TEMPORARY, path)
    storage.sync_directory(directory)


def cut_batches(data: bytes, end: int) -> bytes:
    """The batches of `data` below the offset `end`; a batch that contains it keeps the records below.

    In that batch only the records, their largest timestamp and the last offset (`end` - 1) change. Codec, producer and
    first sequence stay. `data` begins with a batch and may end inside one.
    """
    table = kernels.scan_batches(data, verify=False)
    below = int((table.last_offsets < end).sum())
    whole = int(table.positions[below]) if below < len(table) else table.valid_bytes
    if below == len(table) or int(table.base_offsets[below]) >= end:
        return data[:whole]
    batch = data[whole : whole + int(table.sizes[below])]
    columns = kernels.decode_columns(batch, include_control=True)
    keep = np.asarray(columns.offsets < end, np.bool_)
    rest = bytearray(kernels.filter_batches(batch, keep, keep_last_batch=True))
    header = read_header(rest)
    assert header is not None, "what was filtered is a batch"
    struct.pack_into(">i", rest, _LAST_OFFSET_DELTA, end - 1 - header.base_offset)
    struct.pack_into(">I", rest, _CRC_START - 4, crc32c(memoryview(rest)[_CRC_START:]))
    return data[:whole] + bytes(rest)


def _write_producers(
    storage: Storage, directory: str, remote: RemotePartition, entry: SegmentEntry, offset: int
) -> None:
    if snapshot := bytes(remote.indexes(entry).producers):
        replace_file(storage, join(directory, segment_file(offset, PRODUCER_SNAPSHOT)), snapshot)


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
    staged_id = checkpoints.read_topic_id(storage, place + STAGING) if storage.is_directory(place + STAGING) else None
    return staged_id if staged_id in _put_aside(storage, root, partition) else topic_id


def _check_free(storage: Storage, root: str, registry: TopicRegistry, topic: TopicRestore) -> None:
    if topic.topic in {each.name for each in registry.all()}:
        wrong = "cannot restore the topic, the directory already has it"
        raise InvalidRequest(wrong, topic=topic.topic, directory=root)
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
                wrong = "cannot take over the topic, the directory has an empty partition with another topic id"
                raise Conflict(wrong, **facts)
        elif not _may_give_way(storage, root, each, topic, topic_id):
            wrong = "cannot restore the partition, its directory contains other files"
            raise Conflict(wrong, partition=partition, directory=place)
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
