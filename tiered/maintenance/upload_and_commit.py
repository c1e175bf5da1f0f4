"""Commits of several uploads, and commits that replace entries.

**Copies** are uploaded one after another and share commits, because each manifest repeats all entries. Uploads are
committed at the first of these events: nothing is left to copy, the group is full
(`policies.tiering.completes_commit`), a second has passed, the caller wants to stop, the next upload fails. Entries
become visible in the order of offsets.

**Copies of a compacted topic** are committed together, so that their entries stay consistent (`policies.tiering`).

Until their commit, uploads are notes in memory: a stopped or failed run continues later with the next segment.

**A replacement** puts one uploaded segment's entry in the place of the entries that it tiles, in one commit.

| a crash, or an error, after | leaves | later effect |
|---|---|---|
| some uploads | objects that no manifest names | this process continues with them; after a restart they are orphans |
| that, and their segment was cleaned again | the same | the next commit unlinks them |
| that, and their offsets were deleted | the same | the next commit or their own unlinks them |
| that, and another machine took over | the same | Fenced; orphans, of an epoch that can never name them |
| the commit, its answer lost | the new manifest | the same entries committed again change nothing |
| the commit of a replacement | unlinked objects of old entries | readers of an older manifest have the grace period |

Every record stays readable: before the commit through the disk or the old entries, after it through the new ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from local.cleaner.cleaner_history import CleaningFigures
from local.errors import Conflict, LogError, NotFound, Unavailable
from local.facts import SegmentInfo
from local.logdirs.log_dir import LogDirectory
from policies.compaction import replacements
from policies.decisions import AdvanceCleanedOffset, CleanLog, CopySegment, Decision, ReplaceRemote
from policies.rules import PartitionRules
from policies.snapshot import PartitionSnapshot
from policies.tiering import completes_commit
from remote.gc.object_deletion import DeleteReason, delete_objects
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import add_segments, advance_cleaned_offset, replace_segments, unlink_uploads
from remote.manifest.page_out import keys_of
from remote.segment_entry import SegmentEntry
from remote.upload.segment_upload import copy_segment
from tiered.partition.partition import Partition
from tiered.partition.segment_inspection import count_records, segment_to_copy

_log = logging.getLogger(__name__)

COMMIT_S = 1.0  # longest wait of an upload for others to share a commit with
Clock = Callable[[], float]
_Upload = tuple[CopySegment, SegmentInfo, SegmentEntry]
Clean = Callable[[Partition, LogDirectory, CleanLog], CleaningFigures | None]


@dataclass(frozen=True, slots=True)
class Applied:
    """The effects of decisions on one partition; `skipped` holds decisions that no longer applied."""

    done: tuple[Decision, ...] = ()
    skipped: tuple[Decision, ...] = ()
    cleaned: tuple[CleaningFigures, ...] = ()


@dataclass(slots=True, kw_only=True)
class Application:
    """One application of decisions to a partition, and its effects so far."""

    partition: Partition
    now_ms: int
    where: Callable[[], LogDirectory]  # called under the partition's lock, because the partition may move
    should_stop: Callable[[], bool] = lambda: False  # called before each run of one kind, and before each copy
    clean: Clean = lambda partition, directory, decision: None  # only maintenance cleans, no task
    clock: Clock = lambda: 0.0  # constant by default, so that commits do not depend on the time
    rules: PartitionRules | None = None  # of the plan (None: current); with others now, nothing is expired or deleted
    done: list[Decision] = field(default_factory=list)
    skipped: list[Decision] = field(default_factory=list)
    cleaned: list[CleaningFigures] = field(default_factory=list)

    def applied(self) -> Applied:
        return Applied(tuple(self.done), tuple(self.skipped), tuple(self.cleaned))

    def stops_uploads(self) -> bool:
        return self.should_stop() or self.partition.is_paused_now()

    def record(self, run: Sequence[Decision], done: Sequence[Decision]) -> None:
        self.done += done
        known = {id(decision) for decision in done}  # there may be thousands
        self.skipped += [decision for decision in run if id(decision) not in known]
        for decision in done:
            _log.info("applied: partition=%s decision=%s", self.partition.name, decision)


def copy_segments(state: Application, run: Sequence[Any]) -> None:
    if state.partition.rules.cleanup_compact:
        state.record(run, copy_in_one_commit(state, run))
        return
    before = len(state.done)
    copy_in_groups(state, run)
    state.record(run[len(state.done) - before :], [])


def copy_in_groups(state: Application, run: Sequence[CopySegment]) -> None:
    """Upload the segments of `run`, commit them in groups, and record each group as done.

    Ends at the first changed segment, and at `stops_uploads`. Commits the earlier uploads before it raises an error.
    """
    context = _CommitContext.of(state)
    group, reached, began_s = list[_Upload](), 0, 0.0
    try:
        for decision in run:
            info = None if state.stops_uploads() else context.next_to_copy(decision, reached)
            if info is None:
                break
            began_s = began_s if group else state.clock()
            entry = context.uploaded(info)
            if entry is None:
                break
            group.append((decision, info, entry))
            reached, size_bytes = info.next_offset, sum(each.size_bytes for _, each, _ in group)
            if completes_commit(len(group), size_bytes) or state.clock() - began_s >= COMMIT_S:
                full, group = group, []
                context.commit_group(full, state)
    except LogError as error:
        if not isinstance(error, Conflict):
            with suppress(Unavailable):  # then the uploads stay in the ledger
                context.commit_group(group, state)
        raise
    context.commit_group(group, state)


def copy_in_one_commit(state: Application, run: Sequence[CopySegment]) -> list[CopySegment]:
    """Upload and commit all of `run` in one commit; `run`, or empty if the state changed or at `stops_uploads`."""
    context = _CommitContext.of(state)
    infos = context.whole(run)
    if not infos:
        return []
    cut = min(context.snapshot.clean_cut, infos[-1].next_offset)
    uploads = []
    for info in infos:
        entry = None if state.stops_uploads() else context.uploaded(info)
        if entry is None:
            return []
        uploads.append(entry)
    if state.partition.is_deleted:
        context.discard(uploads)
        return []
    context.commit(add_segments([replace(entry, cleaned_through=cut) for entry in uploads]), infos)
    return list(run)


def replace_remote(state: Application, decision: ReplaceRemote) -> bool:
    """Upload a segment and commit its entry in the place of others; False if the state changed."""
    context = _CommitContext.of(state)
    if not context.is_still_due(decision):
        return False
    info = next(info for info in context.snapshot.closed if info.base_offset == decision.base_offset)
    uploaded = context.uploaded(info)
    if uploaded is None:
        return False
    entry = replace(uploaded, cleaned_through=context.snapshot.clean_cut)
    context.commit(replace_segments(entry, decision.ulids), [info])
    return True


def advance_entries(state: Application, run: Sequence[AdvanceCleanedOffset]) -> list[AdvanceCleanedOffset]:
    """Record as clean, in one commit, the entries with as many records as their local segments.

    Returns their decisions. Equal counts mean equal records: cleaning only removes. Others are noted as shrunk.
    """
    context = _CommitContext.of(state)
    entries = {entry.ulid: entry for entry in context.manifest.segments}
    done = []
    for decision in run:
        if not context.is_still_due(decision):
            continue
        segment = state.partition.log.segment(decision.base_offset)
        if count_records(segment) == sum(entries[ulid].record_count for ulid in decision.ulids):
            done.append(decision)
        else:
            state.partition.uploads.shrunk[decision.base_offset] = segment
    if done:
        cut = min(decision.cleaned_through for decision in done)
        ulids = [ulid for decision in done for ulid in decision.ulids]
        context.commit(advance_cleaned_offset(ulids, min(cut, context.manifest.next_offset)), [])
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommitContext:
    partition: Partition
    metadata: MetadataLog
    manifest: Manifest
    snapshot: PartitionSnapshot

    @classmethod
    def of(cls, state: Application) -> _CommitContext:
        metadata, manifest = state.partition.metadata, state.partition.manifest()
        assert metadata is not None and manifest is not None  # noqa: PT018 - only a writer may upload (`tier_state`)
        # The caller itself copies the marked segments.
        snapshot = replace(state.partition.snapshot(state.now_ms), copying=frozenset())
        return cls(partition=state.partition, metadata=metadata, manifest=manifest, snapshot=snapshot)

    def next_to_copy(self, decision: CopySegment, uploaded_upto: int) -> SegmentInfo | None:
        """The segment on the disk; None if it no longer exists, is committed, or would leave a hole."""
        partition, manifest = self.partition, self.partition.manifest()
        info = partition.closed_segment(decision.base_offset, decision.next_offset)
        if info is None or manifest is None or info.base_offset < max(manifest.entries_end_offset, uploaded_upto):
            return None
        return None if self._leaves_hole(info, max(manifest.next_offset, uploaded_upto)) else info

    def _leaves_hole(self, info: SegmentInfo, copied_upto: int) -> bool:
        return any(
            segment.next_offset > copied_upto and not segment.is_empty
            for segment in self.partition.log.segments()
            if segment.base_offset < info.base_offset
        )

    def commit_group(self, group: Sequence[_Upload], state: Application) -> None:
        decisions, infos, entries = zip(*group, strict=True) if group else ((), (), ())
        if entries and self.partition.is_deleted:
            self.discard(entries)
        elif entries:
            self.commit(add_segments(entries), infos)
            state.record(decisions, decisions)

    def discard(self, entries: Sequence[SegmentEntry]) -> None:
        """Delete the uploads of a deleted topic, except uploads whose commit was sent: it may have succeeded."""
        tried = {each.entry.ulid for each in self.partition.uploads.items().values() if each.may_be_committed}
        keys = keys_of(entry for entry in entries if entry.ulid not in tried)
        delete_objects(self.metadata.store, self.partition.prefix, keys, DeleteReason.OWN_UPLOAD)

    def whole(self, run: Sequence[CopySegment]) -> list[SegmentInfo]:
        cut, start, closed = self.snapshot.clean_cut, self.manifest.next_offset, self.snapshot.closed
        found = [info for info in closed if start < info.next_offset <= cut and not info.is_empty]
        ranges = [(info.base_offset, info.next_offset) for info in found]
        is_same = ranges == [(decision.base_offset, decision.next_offset) for decision in run]
        return found if is_same and found and found[0].base_offset >= self.manifest.entries_end_offset else []

    def is_still_due(self, decision: ReplaceRemote | AdvanceCleanedOffset) -> bool:
        """Whether the policy would still decide this. False if the manifest itself lacks one of the entries."""
        known = {entry.ulid for entry in self.manifest.segments}
        wanted = decision.base_offset, decision.next_offset, decision.ulids
        due = [one for one in replacements(self.snapshot) if isinstance(one, type(decision))]
        return known.issuperset(decision.ulids) and any(
            (one.base_offset, one.next_offset, one.ulids) == wanted for one in due
        )

    def uploaded(self, info: SegmentInfo) -> SegmentEntry | None:
        """The segment's entry, uploaded now or earlier in this epoch; None if the log moved during the copy."""
        partition, manifest = self.partition, self.manifest
        segment = partition.log.segment(info.base_offset)
        known = partition.uploads.find(segment, manifest.epoch)
        if known is not None and known.entry.next_offset == info.next_offset:
            return known.entry
        try:
            entry = copy_segment(
                self.metadata.store,
                partition.prefix,
                segment_to_copy(partition.log, info),
                epoch=manifest.epoch,
                now_ms=self.snapshot.now_ms,
                object_encoding=partition.object_encoding,
                progress=partition.copy_progress(info),
            )
        except NotFound:
            if segment.is_retired:
                return None
            raise
        partition.uploads.add(segment, manifest.epoch, entry)
        return entry

    def commit(self, change: Callable[[Manifest], Manifest], infos: Collection[SegmentInfo]) -> None:
        partition, epoch = self.partition, self.manifest.epoch
        used = {partition.log.segment(info.base_offset) for info in infos}
        with partition.uploads.committing(used, epoch) as retired:
            unlink = unlink_uploads(retired)
            self.metadata.commit(lambda manifest: unlink(change(manifest)), self.snapshot.now_ms)
