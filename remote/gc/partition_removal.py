"""Delete a partition of a deleted topic from the store: mark, wait, unlink, delete, page by page.

| step | effect | a crash after it leaves |
|---|---|---|
| 1 | commit epoch + 1: the former writer is fenced | the partition as it was; repeat from here |
| 2 | commit a manifest with `deleted_ms` and the log start offset at the end | a deleted partition, not readable |
| 3 | wait for the grace period, counted from `deleted_ms` | the same |
| 4 | unlink pages or entries | pending deletes |
| 5 | no pin, epoch still ours: delete the listed objects, or one page with its objects | a list of deleted objects |
| 6 | commit a manifest without them; 5 again for the next page, 4 for the remaining entries | 4, 5, or the end |
| 7 | all is deleted: delete the manifests before the last (`remote.gc.delayed_delete`) | one manifest, and void ones |

The last manifest stays: it distinguishes "deleted" from "lost". Only manifests and objects that a manifest names are
deleted. No new reader pins a deleted partition (`remote.gc.pins`), so one grace period is enough for all pages.

Two machines that delete the same topic must not fence each other for ever. A removal that was fenced only reads, until
the grace period is over and no commit has happened for `PATIENCE_MS`: then the other removal has died. A new removal (a
start) takes over at once, so each start costs the other removals at most one fence.
"""

from __future__ import annotations

from enum import Enum

from local.errors import Fenced, LogError
from remote.gc.delayed_delete import collect_manifests, delete_pages, unlinkings_of
from remote.gc.fork_references import delete_unlinked
from remote.gc.object_deletion import DeleteReason
from remote.gc.pins import PinWatch
from remote.keys import MANIFESTS, manifest_key
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import delete_partition, expire_pages, expire_segments, remove_pending_deletes
from remote.manifest.view_changes import drop_view
from remote.manifest.writer_roles import WriterState
from remote.store import ObjectStore

ROWS_AT_ONCE = 2048  # entries that one commit unlinks; a manifest lists their objects one by one
PATIENCE_MS = 3_600_000  # a removal commits with every step; a removal that is silent for this time has died


class Removal(Enum):
    """State of a removal after a step: go on, wait (for the grace period or a reader's pin), or done."""

    UNDER_WAY = "under way"
    WAITING = "waiting"
    DONE = "done"


class PartitionRemoval:
    """The removal of one partition: call `step` until it is DONE; another process may repeat every step."""

    def __init__(self, store: ObjectStore, name: RemotePartitionName, writer_id: str) -> None:
        self._store, self._name, self._prefix, self._writer_id = store, name, name.prefix, writer_id
        self._log, self._pins = MetadataLog(store, self._prefix), PinWatch(store, self._prefix)
        self._gives_way = False

    def step(self, now_ms: int, *, grace_ms: int) -> Removal:
        """Do the next step; return the state, WAITING if fenced. Raises Unavailable, Corrupt for a damaged manifest."""
        try:
            return self._step(now_ms, grace_ms)
        except LogError as error:
            self._log, self._pins = MetadataLog(self._store, self._prefix), PinWatch(self._store, self._prefix)
            if not isinstance(error, Fenced):
                raise
            self._gives_way = True
            return Removal.WAITING

    def _step(self, now_ms: int, grace_ms: int) -> Removal:
        if self._log.state is WriterState.READER:
            manifest = self._log.load()
            if manifest is not None and self._gives_way and _is_at_work(manifest, now_ms, grace_ms):
                return Removal.WAITING
            if manifest is None or (_is_empty(manifest) and not self._has_old_manifests(manifest)):
                return Removal.DONE
            self._log.become_writer(self._writer_id, now_ms, **self._name.identity, removes=True)
            self._gives_way = False
        manifest = self._log.commit(delete_partition(now_ms=now_ms), now_ms)
        assert manifest.deleted_ms is not None
        if _is_empty(manifest):
            return self._collect(manifest, now_ms)
        if now_ms - manifest.deleted_ms < grace_ms:
            return Removal.WAITING
        if manifest.pending_deletes or manifest.pending_page_deletes:
            return self._delete(manifest, now_ms)
        self._unlink(manifest, manifest.deleted_ms, now_ms)
        return Removal.UNDER_WAY

    def _collect(self, manifest: Manifest, now_ms: int) -> Removal:
        """Step 7. While a known pin holds an old manifest, only that pin is read, and nothing is listed."""
        if self._pins.keeps_before(manifest.sequence, now_ms):
            return Removal.WAITING
        if not self._has_old_manifests(manifest):
            return Removal.DONE
        collect_manifests(self._store, self._prefix, self._log, manifest.sequence - 1, now_ms=now_ms)
        if not self._has_old_manifests(manifest):
            return Removal.DONE
        self._pins.refresh(sequence=manifest.sequence, now_ms=now_ms)
        return Removal.WAITING

    def _has_old_manifests(self, manifest: Manifest) -> bool:
        first = next(iter(self._store.list(self._prefix + MANIFESTS)), None)
        return first is not None and first.key != self._prefix + manifest_key(manifest.sequence)

    def _unlink(self, manifest: Manifest, deleted_ms: int, now_ms: int) -> None:
        if manifest.views:
            for view in manifest.views:
                self._log.commit(drop_view(view.name, now_ms=deleted_ms), now_ms)
        elif manifest.pages:
            self._log.commit(expire_pages([page.key for page in manifest.pages], now_ms=deleted_ms), now_ms)
        else:
            ulids = [entry.ulid for entry in manifest.segments[:ROWS_AT_ONCE]]
            self._log.commit(expire_segments(ulids, now_ms=deleted_ms), now_ms)

    def _delete(self, manifest: Manifest, now_ms: int) -> Removal:
        free = self._pins.free(unlinkings_of(manifest), sequence=manifest.sequence, now_ms=now_ms)
        keys = [each.key for each in manifest.pending_deletes if each.key in free]
        pages = [each for each in manifest.pending_page_deletes if each.page.key in free]
        if not keys and not pages:
            return Removal.WAITING
        newest, has_forks = self._log.check_still_writer(), self._pins.has_forks
        if keys:
            reason = DeleteReason.PENDING_DELETE
            delete_unlinked(self._store, self._prefix, keys, reason, newest, has_forks=has_forks)
            self._log.commit(remove_pending_deletes(keys), now_ms)
        else:
            delete_pages(self._store, self._prefix, self._log, newest, pages[:1], now_ms, has_forks=has_forks)
        return Removal.UNDER_WAY


def _is_at_work(manifest: Manifest, now_ms: int, grace_ms: int) -> bool:
    """Whether the process of the removal that committed `manifest` may still run; False without a deletion mark."""
    if manifest.deleted_ms is None:
        return False
    return now_ms - max(manifest.deleted_ms + grace_ms, manifest.committed_ms) < PATIENCE_MS


def _is_empty(manifest: Manifest) -> bool:
    return manifest.deleted_ms is not None and not (
        manifest.has_entries or manifest.views or manifest.pending_deletes or manifest.pending_page_deletes
    )
