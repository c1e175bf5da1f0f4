"""Apply a plan one decision at a time; each decision is checked again before its effect.

Any prefix of a plan is safe: after a failure the next maintenance does the rest. Order of effects of each decision:

* copy: read and check the bytes → upload data and indexes → verify → **commit the manifest** (only now the copy
  exists). A failed copy ends the copies of its run: an entry committed past a missing one would be a permanent hole.
* local drop: check the newest committed manifest → hide from readers → rename → delete after the delay.
* view: `tiered.maintenance.view_building`; its horizon rises before the log start may pass it.
* log start: commit it in the manifest (tiered) → write the checkpoint → publish it to readers.
* expire: one commit that removes entries and unlinks their objects; no byte is deleted.
* disable the tier: `tiered.partition.partition`.
* copies, replacements and views are skipped while uploads are paused (`tiered.node.upload_pause`).
* segments copied by this maintenance or task that may now be dropped are dropped.
* delete: look for pins → prove that this process is still the writer → delete the objects → commit the deletion
  (`remote.gc.delayed_delete`).
* GC of manifests: prove that it is allowed → declare old manifests void → delete them (`remote.gc.delayed_delete`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from local.errors import Conflict, InvalidRequest, LogError
from local.log.log_state import State
from local.logdirs.log_dir import LogDirectory
from policies.compacted_view import held_from
from policies.compaction import replacements
from policies.decisions import (
    AdvanceCleanedOffset,
    AdvanceLogStart,
    BuildView,
    CleanLog,
    CollectManifests,
    CopySegment,
    Decision,
    DeletePage,
    DeletePending,
    DisableTier,
    DropLocal,
    ExpirePage,
    ExpireRemote,
    ReplaceRemote,
    RollActive,
)
from policies.invariants import violations
from policies.retention import local_drops
from policies.snapshot import PartitionSnapshot
from remote.gc.delayed_delete import collect_manifests, delete_due_objects, delete_due_pages
from remote.manifest.manifest_changes import expire_pages, expire_segments
from remote.manifest.manifest_page import Rows
from tiered.maintenance.upload_and_commit import Application, Applied, advance_entries, copy_segments, replace_remote
from tiered.maintenance.view_building import ViewWork, build_view
from tiered.partition.partition import Partition, disable_tier_of
from tiered.partition.tier_state import TierAction

Progress = Callable[[Decision], None]
Decide = Callable[[PartitionSnapshot], Sequence[Decision]]
Effect = Callable[[Application, Sequence[Decision]], None]


UPLOADS = (CopySegment, ReplaceRemote, AdvanceCleanedOffset)
SENDING = (*UPLOADS, BuildView)
PAUSED = (CopySegment, ReplaceRemote, BuildView)  # not done while uploads are paused
ON_DISK = (RollActive, CleanLog, DropLocal)
ON_UNLINKED = (DeletePending, DeletePage, CollectManifests)  # earlier commits unlinked them: need no other decision
ENDING = (AdvanceLogStart, DeletePending, DeletePage)  # irreversible, and decided by the settings


def apply_partition(
    state: Application,
    decisions: Sequence[Decision],
    *,
    decide: Decide | None = None,
    progress: Progress = lambda decision: None,
    drops_copied: bool = False,
) -> Applied:
    """Apply one partition's decisions in order and return the effects. `drops_copied` also drops copied segments.

    `decide` decides again under the lock: a task may have applied the decisions since. Raises InvalidRequest, before
    any effect, for an unsound plan. Raises the errors of the disk and the store; earlier effects remain and are safe.
    Waits for a running task.
    """
    partition = state.partition
    with partition.tier_lock, partition.lock:
        state.rules = state.rules or partition.rules
        partition.check_not_stopped()
        snapshot = partition.snapshot(state.now_ms)
        due = decisions if decide is None else decide(snapshot)
        _check(snapshot, due)
        _apply_all(state, due, progress)
        if drops_copied and not state.should_stop() and any(isinstance(each, CopySegment) for each in state.done):
            _drop_copied(state)
        return state.applied()


def apply_on_disk(state: Application, decide: Decide) -> Applied | None:
    """Apply the decisions of `decide` on a tiered partition's disk, in parallel to a task.

    Calls `decide` under the lock. Never waits: None if another thread has the partition. Raises as `apply_partition`.
    """
    partition = state.partition
    if not partition.lock.acquire(blocking=False):
        return None
    try:
        state.rules = partition.rules
        partition.check_not_stopped()
        snapshot = partition.snapshot(state.now_ms, may_ask=False)
        decisions = decide(snapshot)
        _check(snapshot, decisions)
        _apply_all(state, decisions)
        return state.applied()
    finally:
        partition.lock.release()


def apply_in_task(state: Application, decide: Decide) -> Applied | None:
    """Apply the decisions of `decide` without holding the partition's lock during store requests.

    The caller holds `tier_lock`. Rolls and cleanings are left out; copied segments are dropped. Segments are marked
    (`Uploads.copying`) until their commit. Returns None, with nothing done, if maintenance has the partition. Raises as
    `apply_partition`, but decisions after a failed upload are applied first.
    """
    partition, known = state.partition, dict[str, Rows]()
    partition.snapshot(state.now_ms, known=known)  # sends its requests here, so that none is sent under the lock
    if not partition.lock.acquire(blocking=False):
        return None
    try:
        if partition.log.cleaning.now.state is State.IN_PROGRESS:
            return None
        snapshot = partition.snapshot(state.now_ms, may_ask=False, known=known)
        decisions, state.rules = decide(snapshot), snapshot.rules
        _check(snapshot, decisions)
        partition.uploads.mark_copying([each.base_offset for each in decisions if isinstance(each, UPLOADS)])
    finally:
        partition.lock.release()
    try:
        _apply_in_turn(state, decisions)
    finally:
        partition.uploads.unmark_copying()
    if not state.should_stop() and any(isinstance(each, UPLOADS) for each in state.done):
        _drop_copied(state)
    return state.applied()


def _check(snapshot: PartitionSnapshot, decisions: Sequence[Decision]) -> None:
    broken = violations(snapshot, decisions)
    if broken:
        raise InvalidRequest(f"invalid plan, {broken[0]}", partition=snapshot.partition, broken=len(broken))


def _apply_all(state: Application, decisions: Sequence[Decision], progress: Progress = lambda decision: None) -> None:
    for _, together in groupby(decisions, key=type):
        if state.should_stop():
            break
        _apply_run(state, list(together), progress)


def _apply_in_turn(state: Application, decisions: Sequence[Decision]) -> None:
    """As `_apply_all`, but raises a failed upload last: it must not block expiry and deletion."""
    failed_upload: LogError | None = None
    for _, together in groupby(decisions, key=type):
        run = list(together)
        if state.should_stop():
            break
        if failed_upload is not None and isinstance(run[0], SENDING):
            continue
        try:
            _apply_run(state, run, lambda decision: None)
        except LogError as error:
            if failed_upload is not None or isinstance(error, Conflict) or not isinstance(run[0], SENDING):
                raise
            failed_upload = error
    if failed_upload is not None:
        raise failed_upload


def _drop_copied(state: Application) -> None:
    snapshot = state.partition.snapshot(state.now_ms, may_ask=False)
    for decision in local_drops(snapshot) if not replacements(snapshot) else ():
        state.record([decision], [decision] if _drop(state, decision) else [])


def _apply_run(state: Application, run: Sequence[Decision], progress: Progress) -> None:
    partition = state.partition
    is_held_up = isinstance(run[0], PAUSED) and partition.is_paused_now()
    action, apply = _EFFECTS[type(run[0])]
    is_forbidden = action is not None and not partition.allows(action)
    if is_forbidden:
        partition.check_not_stopped()
    # A task may have waited long for the store since its decision: a retention raised since then must hold.
    if is_held_up or is_forbidden or (isinstance(run[0], ENDING) and partition.rules != state.rules):
        state.record(run, [])
        return
    for decision in run:
        progress(decision)
    apply(state, run)


def _in_one_step(effect: Callable[[Application, Any], Sequence[Decision]]) -> Effect:
    return lambda state, run: state.record(run, effect(state, run))


def _one_by_one(effect: Callable[[Application, Any], bool]) -> Effect:
    """`effect` returns False if the state changed and the decision no longer applies."""

    def apply(state: Application, run: Sequence[Decision]) -> None:
        for decision in run:
            state.record([decision], [decision] if effect(state, decision) else [])

    return apply


def _roll(state: Application, decision: RollActive) -> bool:
    log = state.partition.log
    return log.segments()[-1].base_offset == decision.base_offset and log.roll(now_ms=state.now_ms)


def _clean(state: Application, decision: CleanLog) -> bool:
    if state.partition.uploads.copying or not state.partition.allows(TierAction.CLEAN):
        return False  # a segment being copied must not change, and the remote end must be known
    result = state.clean(state.partition, state.where(), decision)
    if result is not None:
        state.cleaned.append(result)
    return result is not None


def _disable(state: Application, decision: DisableTier) -> bool:
    return disable_tier_of(state.partition, state.where, decision.offset, now_ms=state.now_ms)


def _drop(state: Application, decision: DropLocal) -> bool:
    partition = state.partition
    with partition.lock:
        partition.check_not_stopped()
        info = partition.closed_segment(decision.base_offset, decision.next_offset)
        if not partition.allows(TierAction.DROP):
            return False  # in doubt, the content of the bucket is unknown: the tier may have been disabled
        # Checked against the newest committed manifest, not the state that the plan expected (I2). It is read after the
        # check for a commit in doubt: an older one would lack a commit resolved in between.
        snapshot = partition.snapshot(state.now_ms, may_ask=False)
        is_wanted = info is None or any(base < info.next_offset for base in snapshot.copying)
        if info is None or is_wanted or not snapshot.has_safe_copy(info):
            return False
        delay_ms, is_local = partition.rules.file_delete_delay_ms, not snapshot.is_tiered
        dropped = partition.log.drop_before(
            info.next_offset, now_ms=state.now_ms, delay_ms=delay_ms, raises_log_start=is_local
        )
        return dropped > 0


def _build_view(state: Application, decision: BuildView) -> bool:
    if state.partition.metadata is None and not state.partition.keeps_views_on_disk:
        return False
    work = ViewWork(
        name=decision.view,
        storage=state.where().storage,
        now_ms=state.now_ms,
        accepts_loss=decision.accepts_loss,
        should_stop=state.should_stop,
    )
    return build_view(state.partition, work) is not None


def _advance(state: Application, decision: AdvanceLogStart) -> bool:
    snapshot = state.partition.snapshot(state.now_ms)
    reach = held_from(snapshot)
    if reach is not None and decision.offset > max(reach, snapshot.log_start_offset):
        return False  # the view did not get as far as planned
    is_committed = commit_log_start(state.partition, decision.offset, now_ms=state.now_ms)
    with state.partition.lock:
        if state.partition.is_deleted:
            return False  # the name may belong to another topic now
        state.partition.check_not_stopped()
        is_raised = advance_log_start(state.partition, state.where(), decision.offset, now_ms=state.now_ms)
        return is_raised or is_committed


def commit_log_start(partition: Partition, offset: int, *, now_ms: int) -> bool:
    """The first step of `advance_log_start`, without the partition's lock. False if nothing changes."""
    metadata = partition.metadata
    if metadata is None or partition.snapshot(now_ms, may_ask=False).log_start_offset >= offset:
        return False
    metadata.commit(expire_segments([], now_ms=now_ms, log_start_offset=offset), now_ms)
    return True


def advance_log_start(partition: Partition, directory: LogDirectory, offset: int, *, now_ms: int) -> bool:
    """Raise a partition's log start to at least `offset`; False if no record is below it.

    The caller holds the partition's lock. Order of effects: committed in the manifest → durable in the checkpoint →
    published to readers. Only missing steps are done, so a failed call may be repeated.
    """
    is_committed = commit_log_start(partition, offset, now_ms=now_ms)
    if partition.log.log_start_offset >= offset:
        return is_committed
    directory.write_log_starts({partition.name: offset})
    partition.log.raise_log_start(offset)
    return True


def _expire(state: Application, run: Sequence[ExpireRemote]) -> list[Decision]:
    metadata, manifest = state.partition.metadata, state.partition.manifest()
    if metadata is None or manifest is None or not run:
        return []
    start, end = run[0].base_offset, run[-1].next_offset
    named = {entry.ulid for entry in metadata.index(manifest).entries_with_dead(start, end)}
    due = [each for each in run if each.ulid in named and each.next_offset <= manifest.min_readable_offset]
    if due:
        change = expire_segments([each.ulid for each in due], now_ms=state.now_ms)
        metadata.commit(change, state.now_ms, touches=(start, end))
    return list(due)


def _expire_pages(state: Application, run: Sequence[ExpirePage]) -> list[Decision]:
    metadata, manifest = state.partition.metadata, state.partition.manifest()
    if metadata is None or manifest is None:
        return []
    dead = {page.key for page in manifest.pages if page.next_offset <= manifest.min_readable_offset}
    due = [each for each in run if each.key in dead]
    metadata.commit(expire_pages([each.key for each in due], now_ms=state.now_ms), state.now_ms)
    return list(due)


def _delete(state: Application, run: Sequence[DeletePending | DeletePage]) -> list[Decision]:
    metadata, pins = state.partition.metadata, state.partition.pins
    assert metadata is not None and pins is not None  # noqa: PT018 - only a writer may delete (`tier_state`)
    delete_due = delete_due_objects if isinstance(run[0], DeletePending) else delete_due_pages
    keys = [decision.key for decision in run]
    deleted = delete_due(metadata.store, state.partition.prefix, metadata, pins, keys, state.now_ms)
    return [decision for decision in run if decision.key in deleted]


def _collect(state: Application, decision: CollectManifests) -> bool:
    metadata = state.partition.metadata
    assert metadata is not None, "only a writer may delete manifests"
    collect_manifests(metadata.store, state.partition.prefix, metadata, decision.upto_sequence, now_ms=state.now_ms)
    return True


# What the state of the tier must allow for a decision (rolls and views need nothing of the tier), and its effect.
_EFFECTS: dict[type[Decision], tuple[TierAction | None, Effect]] = {
    RollActive: (None, _one_by_one(_roll)),
    BuildView: (None, _one_by_one(_build_view)),
    DisableTier: (None, _one_by_one(_disable)),
    CleanLog: (TierAction.CLEAN, _one_by_one(_clean)),
    CopySegment: (TierAction.UPLOAD, copy_segments),
    ReplaceRemote: (TierAction.UPLOAD, _one_by_one(replace_remote)),
    AdvanceCleanedOffset: (TierAction.UPLOAD, _in_one_step(advance_entries)),
    DropLocal: (TierAction.DROP, _one_by_one(_drop)),
    AdvanceLogStart: (TierAction.EXPIRE, _one_by_one(_advance)),
    ExpireRemote: (TierAction.EXPIRE, _in_one_step(_expire)),
    ExpirePage: (TierAction.EXPIRE, _in_one_step(_expire_pages)),
    DeletePending: (TierAction.DELETE_REMOTE, _in_one_step(_delete)),
    DeletePage: (TierAction.DELETE_REMOTE, _in_one_step(_delete)),
    CollectManifests: (TierAction.DELETE_REMOTE, _one_by_one(_collect)),
}
