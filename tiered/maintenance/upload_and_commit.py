"""Commits of more than one upload, or in the place of others.

**Copies** go up one after another and share commits: a head for each segment of a backlog would be a hundred times as
many, and each names all that the one before it names. What was uploaded is committed when nothing is left to copy,
when it is enough (`policies.tiering.completes_commit`) or has taken a second, when the caller wants to stop, and when
the next upload fails. Rows become visible in the order of offsets.

**Copies of a compacted topic** go up one by one and are committed at once (`policies.tiering` says why): what keeps its
rows a whole.

Until their commit, uploads are notes in the memory of this process: a round that is stopped, or loses the store, goes
on with the next segment in a later one.

**A replacement** puts one uploaded segment's row in the place of the rows that it tiles, in one commit.

| a crash, or an error, after | leaves | what becomes of it |
|---|---|---|
| some uploads | objects that no head names | this process goes on with them; after a restart they are orphans |
| that, and their segment was cleaned again | the same | the next commit lists them among those to delete |
| that, and their offsets were deleted | the same | the same; or their own commit does |
| that, and another machine took over | the same | Fenced; orphans, of an epoch that can never name them |
| the commit, its answer lost | the new head | the same rows committed again change nothing |
| the commit of a replacement | objects of gone rows, listed | readers of an older head have them for the grace time |

No record is ever out of reach: up to the commit the disk or the old rows are there, after it the new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from local.errors import Conflict, LogError, NotFound, Unavailable
from local.segment.segment_info import SegmentInfo
from policies.decisions import CopySegment, RaiseCleaned, ReplaceRemote
from policies.recompaction import replacements
from policies.snapshot import PartitionSnapshot
from policies.tiering import completes_commit
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Head
from remote.manifest.manifest_changes import Change, add_segments, raise_cleaned, replace_segments, unlink_uploads
from remote.segment_entry import RemoteSegment
from remote.segments.segment_upload import copy_segment
from remote.store import ObjectStore
from tiered.partition.partition import Partition, Upload
from tiered.partition.segment_inspection import count_records, segment_to_copy

COMMIT_S = 1.0  # uploads wait no longer for others to share a commit with
Clock = Callable[[], float]
Told = Callable[[Sequence[CopySegment]], None]


def no_time() -> float:
    """The clock of whoever wants the same commits every time."""
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ways:
    """What a commit needs, and what is known when it begins."""

    partition: Partition
    metadata: MetadataLog
    store: ObjectStore
    head: Head
    snapshot: PartitionSnapshot


@dataclass(slots=True)
class _Group:
    """Uploads that wait for their commit, in the order of their offsets. `began_s` is when the first one began."""

    began_s: float = 0.0
    size_bytes: int = 0
    decisions: list[CopySegment] = field(default_factory=list)
    infos: list[SegmentInfo] = field(default_factory=list)
    rows: list[RemoteSegment] = field(default_factory=list)


def copy_in_groups(
    partition: Partition,
    store: ObjectStore | None,
    run: Sequence[CopySegment],
    told: Told,
    *,
    now_ms: int,
    should_stop: Callable[[], bool],
    clock: Clock = no_time,
) -> None:
    """Upload the segments of `run` and commit them in groups (module text); `told` hears of those of each commit.

    Ends at the first one for which the world has moved, and when asked to stop. An error of an upload is raised when
    those before it are committed.
    """
    ways = _ways(partition, store, now_ms)
    if ways is None:
        return
    group, reached = _Group(), 0
    try:
        for decision in run:
            info = None if should_stop() else _next_to_copy(ways, decision, reached)
            if info is None:
                break
            began_s = clock()
            row = _uploaded(ways, info)
            if row is None:
                break
            if not group.rows:
                group.began_s = began_s
            group.rows.append(row)
            group.infos.append(info)
            group.decisions.append(decision)
            group.size_bytes += info.size_bytes
            reached = info.next_offset
            if completes_commit(len(group.rows), group.size_bytes) or clock() - group.began_s >= COMMIT_S:
                whole, group = group, _Group()
                _commit_group(ways, whole, told)
    except LogError as error:
        if not isinstance(error, Conflict):
            with suppress(Unavailable):  # then they stay notes
                _commit_group(ways, group, told)
        raise
    _commit_group(ways, group, told)


def copy_together(
    partition: Partition,
    store: ObjectStore | None,
    run: Sequence[CopySegment],
    *,
    now_ms: int,
    should_stop: Callable[[], bool],
) -> list[CopySegment]:
    """Upload and commit all of `run` at once; none is done where the world has moved, or when asked to stop."""
    ways = _ways(partition, store, now_ms)
    infos = _whole(ways, run) if ways is not None else []
    if ways is None or not infos:
        return []
    cut = min(ways.snapshot.clean_cut, infos[-1].next_offset)
    uploads = []
    for info in infos:
        row = None if should_stop() else _uploaded(ways, info)
        if row is None:
            return []
        uploads.append(row)
    if partition.is_deleted:
        _discard(ways, uploads)
        return []
    _commit(ways, add_segments([replace(row, cleaned_through=cut) for row in uploads]), infos)
    return list(run)


def replace_remote(partition: Partition, store: ObjectStore | None, decision: ReplaceRemote, *, now_ms: int) -> bool:
    """Upload a segment and commit its row in the place of others; False where the world has moved."""
    ways = _ways(partition, store, now_ms)
    if ways is None or not _is_still_due(ways, decision):
        return False
    info = _closed(ways.snapshot, decision.base_offset)
    uploaded = _uploaded(ways, info)
    if uploaded is None:
        return False
    row = replace(uploaded, cleaned_through=ways.snapshot.clean_cut)
    _commit(ways, replace_segments(row, decision.ulids), [info])
    return True


def raise_rows(
    partition: Partition, store: ObjectStore | None, run: Sequence[RaiseCleaned], *, now_ms: int
) -> list[RaiseCleaned]:
    """Vouch for the rows whose local segments hold as many records: cleaning only takes away, so it is the same ones.

    The others are noted as shrunk. One commit for all.
    """
    ways = _ways(partition, store, now_ms)
    if ways is None:
        return []
    rows = {row.ulid: row for row in ways.head.segments}
    done = []
    for decision in run:
        if not _is_still_due(ways, decision):
            continue
        segment = partition.log.segment(decision.base_offset)
        if count_records(segment) == sum(rows[ulid].record_count for ulid in decision.ulids):
            done.append(decision)
        else:
            partition.shrunk[decision.base_offset] = segment
    if done:
        cut = min(decision.cleaned_through for decision in done)
        ulids = [ulid for decision in done for ulid in decision.ulids]
        _commit(ways, raise_cleaned(ulids, min(cut, ways.head.next_offset)), [])
    return done


def _ways(partition: Partition, store: ObjectStore | None, now_ms: int) -> _Ways | None:
    metadata, head = partition.metadata, partition.head()
    if metadata is None or head is None or store is None:
        return None
    # What is being copied is being copied by whoever asks.
    snapshot = replace(partition.snapshot(now_ms), copying=frozenset())
    return _Ways(partition=partition, metadata=metadata, store=store, head=head, snapshot=snapshot)


def _next_to_copy(ways: _Ways, decision: CopySegment, uploaded_upto: int) -> SegmentInfo | None:
    """The segment as it is on the disk; None when it is there no more, is committed, or would leave a hole."""
    partition, head = ways.partition, ways.partition.head()
    info = partition.closed_segment(decision.base_offset, decision.next_offset)
    if info is None or head is None or info.base_offset < max(head.rows_next_offset, uploaded_upto):
        return None
    return None if _leaves_hole(partition, info, max(head.next_offset, uploaded_upto)) else info


def _leaves_hole(partition: Partition, info: SegmentInfo, copied_upto: int) -> bool:
    """Whether local records between what is copied (or the log start) and `info` would be passed over."""
    return any(
        segment.next_offset > copied_upto and not segment.is_empty
        for segment in partition.log.segments()
        if segment.base_offset < info.base_offset
    )


def _commit_group(ways: _Ways, group: _Group, told: Told) -> None:
    if group.rows and ways.partition.is_deleted:
        _discard(ways, group.rows)
    elif group.rows:
        _commit(ways, add_segments(group.rows), group.infos)
        told(group.decisions)


def _discard(ways: _Ways, rows: Sequence[RemoteSegment]) -> None:
    """Delete what went up for a topic that this machine has deleted meanwhile, if nobody ever tried to commit it.

    A commit without an answer may have happened: what it named has readers and pins, and leaves as all of the topic.
    """
    tried = {each.row.ulid for each in ways.partition.uploaded.values() if each.is_tried}
    keys = [key for row in rows if row.ulid not in tried for key in (row.data_key, row.indexes_key)]
    ways.store.delete([ways.partition.prefix + key for key in keys])


def _whole(ways: _Ways, run: Sequence[CopySegment]) -> list[SegmentInfo]:
    """The segments of `run`, if they are still all of the clean ones that no row holds; else none."""
    cut, start = ways.snapshot.clean_cut, ways.head.next_offset
    found = [
        info
        for info in ways.snapshot.closed
        if info.next_offset > start and not info.is_empty and info.next_offset <= cut
    ]
    ranges = [(info.base_offset, info.next_offset) for info in found]
    is_same = ranges == [(decision.base_offset, decision.next_offset) for decision in run]
    return found if is_same and found and found[0].base_offset >= ways.head.rows_next_offset else []


def _is_still_due(ways: _Ways, decision: ReplaceRemote | RaiseCleaned) -> bool:
    """Whether the policy would say it now, about rows that the head holds itself (those in pages are left alone)."""
    known = {row.ulid for row in ways.head.segments}
    due = [one for one in replacements(ways.snapshot) if isinstance(one, type(decision))]
    return known.issuperset(decision.ulids) and any(
        (one.base_offset, one.next_offset, one.ulids) == (decision.base_offset, decision.next_offset, decision.ulids)
        for one in due
    )


def _closed(snapshot: PartitionSnapshot, base_offset: int) -> SegmentInfo:
    return next(info for info in snapshot.closed if info.base_offset == base_offset)


def _uploaded(ways: _Ways, info: SegmentInfo) -> RemoteSegment | None:
    """The segment's row; uploaded now unless an earlier try of this epoch did, of these very bytes. None where the log
    moved to another directory under the copy: it is there as another one, for the next round."""
    partition, head = ways.partition, ways.head
    segment = partition.log.segment(info.base_offset)
    known = partition.uploaded.get(segment)
    if known is not None and (known.epoch, known.row.next_offset) == (head.epoch, info.next_offset):
        return known.row
    try:
        row = copy_segment(
            ways.store,
            partition.prefix,
            segment_to_copy(partition.log, info),
            epoch=head.epoch,
            now_ms=ways.snapshot.now_ms,
            at_rest=partition.at_rest,
            progress=partition.copy_progress(info),
        )
    except NotFound:
        if segment.is_retired:
            return None
        raise
    partition.uploaded[segment] = Upload(head.epoch, row)
    return row


def _commit(ways: _Ways, change: Change, infos: Collection[SegmentInfo]) -> None:
    """Commit `change`, and with it that uploads whose segments are gone are to be deleted."""
    partition = ways.partition
    used = {partition.log.segment(info.base_offset) for info in infos}
    lost = {segment: each for segment, each in partition.uploaded.items() if segment.is_retired}
    # Those of an earlier epoch are orphans, which are found by their names.
    unlink = unlink_uploads([each.row for each in lost.values() if each.epoch == ways.head.epoch])
    for segment in used & partition.uploaded.keys():
        partition.uploaded[segment] = replace(partition.uploaded[segment], is_tried=True)
    ways.metadata.commit(lambda head: unlink(change(head)), ways.snapshot.now_ms)
    for segment in used | set(lost):
        partition.uploaded.pop(segment, None)
