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
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from local import kernels, names
from local.errors import Corrupt, NotFound
from local.format.batch_header import HEADER_BYTES, read_header
from local.format.crc32c import crc32c
from local.log import checkpoints
from local.names import LOG, OFFSET_INDEX, PRODUCER_SNAPSHOT, TEMPORARY, TIME_INDEX, TXN_INDEX, segment_file
from local.storage import Storage, join, replace_file
from remote.fetch.range_reader import RANGE_BYTES, RemotePartition
from remote.segment_entry import SegmentEntry
from tiered.migrate.restore_plan import PartitionRestore
from tiered.partition.reconciliation import lineage
from tiered.read.view_entries import leads_astray

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
            _write_row(storage, directory, remote, entry)
            following = planned.entries[at + 1].base_offset if at + 1 < len(planned.entries) else planned.next_offset
            _write_producers(storage, directory, bytes(remote.indexes(entry).producers), following)
        progress(entry.size_bytes)
    if not planned.entries:
        _write_last_producers(storage, directory, remote, planned)
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

    The topic id stays: the empty partition with that id may already be renamed aside
    (`tiered.migrate.restore_place`).
    """
    wanted = {entry.base_offset for entry in planned.entries if entry.next_offset <= planned.next_offset}
    for name in storage.list(directory):
        if name == names.PARTITION_METADATA:
            continue
        parsed = names.parse_segment_file(name)
        if parsed is None or parsed[0] not in wanted or name.endswith(TEMPORARY):
            storage.unlink(join(directory, name))


def _write_row(storage: Storage, directory: str, remote: RemotePartition, entry: SegmentEntry) -> None:
    if is_whole(storage, directory, entry):
        return
    bundle = remote.indexes(entry)
    for suffix, body in ((OFFSET_INDEX, bundle.offset), (TIME_INDEX, bundle.time), (TXN_INDEX, bundle.txn)):
        if suffix != TXN_INDEX or len(body):
            replace_file(storage, join(directory, segment_file(entry.base_offset, suffix)), bytes(body))
    path = join(directory, segment_file(entry.base_offset, LOG))
    found = 0
    file = storage.create(path + TEMPORARY)
    try:
        for position in range(0, entry.size_bytes, READ_BYTES):
            piece = remote.read(entry, position, READ_BYTES)
            found = crc32c(piece, found)
            file.append(piece)
        if found != entry.content_crc32c:
            facts = {"expected": f"{entry.content_crc32c:08x}", "found": f"{found:08x}", "object": entry.data_key}
            raise Corrupt("cannot restore a segment, its checksum differs", base_offset=entry.base_offset, **facts)
        file.sync()
    finally:
        file.close()
    storage.rename(path + TEMPORARY, path)
    storage.sync_directory(directory)


def _write_cut(storage: Storage, directory: str, remote: RemotePartition, entry: SegmentEntry, end: int) -> None:
    """Write the batches below `end`; a batch that contains `end` keeps only its records below it."""
    path = join(directory, segment_file(entry.base_offset, LOG))
    at, found = remote.position_of_offset(entry, end), b""
    if at and leads_astray(entry, remote.read(entry, at, HEADER_BYTES), end, at):
        at = 0
    while at + len(found) < entry.size_bytes:
        found += remote.read(entry, at + len(found), READ_BYTES)
        table = kernels.scan_batches(found, verify=False)
        if len(table) and int(table.last_offsets[-1]) >= end:
            break
    file = storage.create(path + TEMPORARY)
    try:
        for position in range(0, at, READ_BYTES):
            file.append(remote.read(entry, position, min(READ_BYTES, at - position)))
        file.append(cut_batches(found, end))
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


def _write_producers(storage: Storage, directory: str, snapshot: bytes, offset: int) -> None:
    if snapshot:
        replace_file(storage, join(directory, segment_file(offset, PRODUCER_SNAPSHOT)), snapshot)


def _write_last_producers(storage: Storage, directory: str, remote: RemotePartition, planned: PartitionRestore) -> None:
    """For a log without an entry on the disk: write the producers at the end of the bucket's last entry."""
    if planned.last_entry is not None:
        _write_producers(storage, directory, bytes(remote.indexes(planned.last_entry).producers), planned.next_offset)
