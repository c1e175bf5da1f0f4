"""Agreement of disk and bucket by partition: content of both, manifest, writer, distance.

The newest manifest of each partition is fetched, one small request each, in parallel. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import partial
from typing import Any

import msgspec

from local.errors import LogError
from local.storage import DiskStorage, Storage
from policies.tier_relation import Relation
from remote.manifest.manifest import Manifest
from tiered.manager.manager import LogManager
from tiered.node.writer_ids import is_of_node, node_mark
from tiered.partition.partition import Partition

_ASKED_AT_ONCE = 8


class SyncState(Enum):
    """Relation of the two tiers: the first state that holds, worst first."""

    LOST = "lost"  # the bucket lacks offsets that this disk has dropped: it is lost or wrong
    DIVERGED = "diverged"  # this disk has records that the bucket contradicts or does not prove to have
    UNKNOWN = "unknown"  # the bucket did not answer, or answered with bytes that are no manifest
    HOLE = "hole"  # offsets in neither tier, between the bucket's end and the disk's start
    AHEAD = "ahead"  # the bucket has offsets that this disk lacks: another machine wrote, or the disk is an old copy
    OTHER_WRITER = "other writer"  # another node committed the newest manifest
    BEHIND = "behind"  # this disk has offsets that the bucket lacks: normal between two uploads
    IN_SYNC = "in sync"
    NO_MANIFEST = "no head"  # tiered, and nothing was committed yet
    NOT_TIERED = "not tiered"


class TierSync(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Both tiers of one partition. Offsets are half open.

    The disk holds ``[local_start_offset, local_next_offset)``, the bucket ``[remote_start_offset,
    remote_next_offset)``. `head_sequence` is the newest manifest in the bucket, `seen_sequence` the manifest known
    before the request. `epoch` and `writer_id` are the newest manifest's, `local_epoch` is the leader epoch of the
    disk's last records. `is_own_writer`: the writer was a manager of this node. `lag_offsets` is the number of offsets
    that the bucket lacks. `has_new_settings`: the topic's own settings are not in the manifest yet. Fields of the
    manifest are None without a manifest.
    """

    topic: str
    partition: int
    state: SyncState
    local_start_offset: int
    local_next_offset: int
    local_epoch: int | None
    remote_start_offset: int | None
    remote_next_offset: int | None
    head_sequence: int | None
    seen_sequence: int | None
    epoch: int | None
    writer_id: str | None
    is_own_writer: bool | None
    committed_ms: int | None
    lag_offsets: int | None
    has_new_settings: bool | None
    problem: str | None


_OF_MANIFEST = TierSync.__struct_fields__[6:-1]


def tier_sync(
    manager: LogManager, topics: Iterable[str] | None = None, *, storage: Storage | None = None
) -> list[TierSync]:
    """Compare the opened partitions of some topics (None: all), by name. Raises NotFound."""
    from concurrent.futures import ThreadPoolExecutor  # here, because most reports have no section on sync

    names = None if topics is None else {manager.topics.get(name).name for name in topics}
    mark = node_mark(storage or DiskStorage(), manager.config.data_dirs)
    held = manager.partitions.all(names)
    with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="sync") as pool:
        return list(pool.map(partial(_compared, mark), held))


def _compared(mark: str | None, held: Partition) -> TierSync:
    seen, manifest, problem = held.manifest(), None, None
    if held.metadata is not None:
        try:
            manifest = held.metadata.load(exact=True)
            if manifest is not None and manifest.next_offset > held.log.next_offset:
                held.log.reload_files()  # the writer may have appended and copied since the disk was read
        except LogError as error:
            manifest, problem = seen, " ".join(str(error).split())
    log, of_manifest = held.log, dict[str, Any].fromkeys(_OF_MANIFEST)
    if manifest is not None:
        of_manifest |= {
            "remote_start_offset": manifest.log_start_offset,
            "remote_next_offset": manifest.next_offset,
            "head_sequence": manifest.sequence,
            "seen_sequence": seen.sequence if seen is not None else None,
            "epoch": manifest.epoch,
            "writer_id": manifest.writer_id,
            "is_own_writer": is_of_node(manifest.writer_id, mark),
            "committed_ms": manifest.committed_ms,
            "lag_offsets": max(0, log.next_offset - max(manifest.next_offset, log.local_log_start_offset)),
            "has_new_settings": dict(manifest.properties) != dict(held.topic.properties),
        }
    return TierSync(
        topic=held.name.topic,
        partition=held.name.partition,
        state=_state(held, manifest, mark, problem),
        local_start_offset=log.local_log_start_offset,
        local_next_offset=log.next_offset,
        local_epoch=log.epochs.latest,
        problem=problem,
        **of_manifest,
    )


def _state(held: Partition, manifest: Manifest | None, mark: str | None, problem: str | None) -> SyncState:
    from tiered.partition.reconciliation import relation_of

    log = held.log
    if not held.is_tiered:
        return SyncState.NOT_TIERED
    if problem is not None:
        return SyncState.UNKNOWN
    match relation_of(log, manifest, mark).relation:
        case Relation.LOST:
            return SyncState.LOST
        case Relation.DIVERGED | Relation.UNPROVEN | Relation.FENCED:
            return SyncState.DIVERGED
    if manifest is None:
        return SyncState.NO_MANIFEST
    if log.local_log_start_offset > manifest.next_offset:
        return SyncState.HOLE
    if manifest.next_offset > log.next_offset:
        return SyncState.AHEAD
    if not is_of_node(manifest.writer_id, mark):
        return SyncState.OTHER_WRITER
    return SyncState.BEHIND if manifest.next_offset < log.next_offset else SyncState.IN_SYNC
