"""One partition held by a manager: its local log, its manifests, its rules."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from local.errors import DiskFailed, Diverged, Fenced, LogError, NotFound, RemoteLost, Unavailable
from local.facts import SegmentInfo
from local.lock_ranks import LockRank, ranked_lock
from local.log import Log
from local.logdirs.log_dir import LogDirectory
from local.logdirs.log_dirs import LogDirectories
from local.names import TopicPartition
from policies.rules import PartitionRules, Pause
from policies.snapshot import Coverage, PartitionFigures, PartitionSnapshot
from remote.fetch.range_reader import RemotePartition
from remote.gc.pins import PinWatch
from remote.keys import partition_prefix
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest, PageEntry, PendingDelete, PendingPageDelete
from remote.manifest.manifest_changes import Pending, disable_tier
from remote.manifest.manifest_page import Rows
from remote.manifest.writer_roles import WriterState
from remote.segments.stored_segment import PLAIN_ENCODING, ObjectEncoding
from tiered.config.clock_guard import JUMP_MS, counted_ms
from tiered.config.properties import DELETE_ON_DISABLE, parse
from tiered.node.topic_registry import Topic
from tiered.node.upload_pause import UploadPauses
from tiered.partition.tier_state import PERMISSIONS, WRITING, Permission, TierAction, TierMachine, TierState, Uploads
from tiered.read.partition_source import PartitionSource
from tiered.read.view_places import LocalViews

_log = logging.getLogger(__name__)
T = TypeVar("T", bound=PartitionFigures)

OLDEST_PAGES_MAX = 2  # manifest pages with the oldest entries that one maintenance run reads for expiry
ENABLE = "remote.storage.enable"


class SkewedDeleteTimer:
    """Counts the grace period of pending deletes with an unlink time in the future.

    The clock of the writer that unlinked them was ahead. A stamp ahead by more than `JUMP_MS` would keep the objects
    for years. Their grace period ends once this process has counted it whole, by a monotonic clock, since it first saw
    the stamp; if the present time reaches the stamp earlier, the stamp counts as always.

    A reader may need an object for the grace period after the manifest that unlinked it. This process sees an object
    first after that manifest exists. So the object is never deleted early, whichever clock was wrong. Stamps in
    manifests are never rewritten: if the present clock is behind, the stamp is right, and a lowered stamp would delete
    the object the moment the clock is corrected. A restart counts from the beginning. Thread safe: a race only
    lengthens the wait.
    """

    def __init__(self, counted: Callable[[], int] = counted_ms) -> None:
        self._counted = counted
        self._seen: dict[str, int] = {}  # key: counted time at which it was first seen ahead

    def judged(
        self, manifest: Manifest, now_ms: int
    ) -> tuple[tuple[PendingDelete, ...], tuple[PendingPageDelete, ...]]:
        """The unlinked objects and pages of the manifest; a stamp too far ahead becomes the time first seen here."""
        latest_ms = now_ms + JUMP_MS
        ahead = {each.key for each in manifest.pending if each.unlinked_ms > latest_ms}
        if not ahead and not self._seen:
            return manifest.pending_deletes, manifest.pending_page_deletes
        counted, listed = self._counted(), {each.key for each in manifest.pending}
        seen = {key: at for key, at in self._seen.items() if key in listed}
        self._seen = seen | {key: counted for key in ahead if key not in seen}
        since = {key: now_ms - (counted - self._seen.get(key, counted)) for key in ahead}

        def restated(pending: Iterable[Pending]) -> tuple[Pending, ...]:
            return tuple(replace(each, unlinked_ms=since.get(each.key, each.unlinked_ms)) for each in pending)

        return restated(manifest.pending_deletes), restated(manifest.pending_page_deletes)


@dataclass(slots=True, eq=False)
class Partition:
    """One partition: its log, its remote tier, its rules.

    `tier_lock` guards remote state, `lock` local state. Order: `tier_lock`, then `lock`. Only a task in its own thread
    (`tiered.maintenance.remote_tasks`) waits for the store, under `tier_lock` and never under `lock`. `on_copied` is
    called from the thread that reads the segment.
    """

    name: TopicPartition
    topic: Topic
    rules: PartitionRules
    log: Log
    tier: TierMachine
    metadata: MetadataLog | None = None  # as the next two: None before the first contact with the bucket
    remote: RemotePartition | None = None
    pins: PinWatch | None = None
    object_encoding: ObjectEncoding = PLAIN_ENCODING
    on_copied: Callable[[int, int, int], None] = lambda base_offset, done_bytes, size_bytes: None
    check_room: Callable[[], None] = lambda: None
    pauses: UploadPauses | None = None
    ahead: SkewedDeleteTimer = field(default_factory=SkewedDeleteTimer)
    uploads: Uploads = field(default_factory=Uploads)
    lock: threading.RLock = field(default_factory=partial(ranked_lock, LockRank.PARTITION))
    tier_lock: threading.RLock = field(default_factory=partial(ranked_lock, LockRank.TIER))
    end_offset_at_open: int | None = None  # None for an empty log
    local_views: LocalViews | None = None

    @property
    def tier_state(self) -> TierState:
        """The state of the remote tier at this moment, with the facts of the commit protocol."""
        manifest = self.manifest()
        return self.tier.seen(
            is_fenced=self._is_fenced,
            has_commit_in_doubt=self.has_commit_in_doubt,
            is_disabled=manifest is not None
            and (manifest.tier_disabled or (self.rules.gives_up_remote and not manifest.has_entries)),
        )

    @property
    def is_tiered(self) -> bool:
        return self.tier.is_tiered

    @property
    def is_writer(self) -> bool:
        """Whether this process is the partition's writer, and the two tiers agree."""
        # A writer in doubt or with a disabled tier is a writer: only the third fact of `tier_state` matters.
        return self.tier.seen(is_fenced=self._is_fenced, has_commit_in_doubt=False, is_disabled=False) in WRITING

    @property
    def _is_fenced(self) -> bool:
        return self.metadata is not None and self.metadata.state is WriterState.FENCED

    @property
    def is_deleted(self) -> bool:
        """Whether its topic was deleted. Ask under `lock`, and again after each wait."""
        return self.tier.state is TierState.DELETED

    def change_topic(self, topic: Topic, rules: PartitionRules, object_encoding: ObjectEncoding) -> None:
        """Apply changed settings of the topic. The caller holds `lock`."""
        self.topic, self.rules, self.object_encoding = topic, rules, object_encoding

    def connect(self, metadata: MetadataLog, pins: PinWatch, remote: RemotePartition) -> None:
        """Attach the clients of the partition's remote tier, at the first contact with the bucket."""
        self.metadata, self.pins, self.remote = metadata, pins, remote

    def allows(self, action: TierAction) -> bool:
        state = self.tier_state
        permission = PERMISSIONS[state][action]
        if permission is not Permission.CHECKED:
            return permission is Permission.ALLOWED
        match action:
            case TierAction.APPEND:
                return self._append_problem() is None
            case TierAction.CLEAN:
                return not self.may_hold_more
            case TierAction.READ_REMOTE:
                return self.tier.has_agreed
        raise AssertionError(f"no check of a partition: state={state.name} action={action.name}")

    def check_not_stopped(self) -> None:
        """Raise the error of a state that forbids all changes, or Fenced. The caller holds `lock`."""
        if (error := self.tier.error) is not None:
            raise error
        self.check_not_fenced()

    def check_not_fenced(self) -> None:
        if self.metadata is not None:
            self.metadata.check_not_fenced()

    @property
    def keeps_views_on_disk(self) -> bool:
        """Whether its views are on the disk: no tier, or a disabled one without entries and named views."""
        if not self.is_tiered:
            return True
        manifest = self.manifest()
        if not self.rules.gives_up_remote or manifest is None or manifest.views:
            return False
        return manifest.tier_disabled or not manifest.has_entries

    @property
    def prefix(self) -> str:
        return partition_prefix(self.topic.name, self.topic.topic_id, self.name.partition)

    def manifest(self) -> Manifest | None:
        """The newest manifest seen so far; sends no request. None before the first commit, or if not tiered."""
        return self.metadata.cached if self.metadata is not None else None

    def reconciled_manifest(self) -> Manifest | None:
        """As `manifest`, but None if it is not true of this disk: a diverged or fenced log, or a lost bucket."""
        return None if isinstance(self.tier.error, (Diverged, Fenced, RemoteLost)) else self.manifest()

    @property
    def has_commit_in_doubt(self) -> bool:
        """Whether the newest manifest may contain a commit that `manifest` lacks. Ask this before `manifest`."""
        return self.metadata is not None and self.metadata.has_commit_in_doubt

    @property
    def may_hold_more(self) -> bool:
        """Whether a commit in doubt may have added segment entries or a view that `manifest` lacks.

        Then no cleaning may rely on `manifest`: segments on both sides of the true remote end could be merged into one
        that could never be copied, and tombstones could be removed before the records that they hide.
        """
        manifest = self.manifest()
        has_views = manifest is not None and bool(manifest.views)
        return self.has_commit_in_doubt and (self.uploads.may_be_committed or has_views)

    @property
    def pause(self) -> Pause | None:
        """Since when and why its uploads are paused; None if they are not paused, or it is not tiered."""
        return self.pauses.of(self.topic) if self.is_tiered and self.pauses is not None else None

    def is_paused_now(self) -> bool:
        if self.pauses is not None:
            self.pauses.refresh()
        return self.pause is not None

    def closed_segment(self, base_offset: int, next_offset: int) -> SegmentInfo | None:
        """The local segment of exactly these offsets; None if there is none or it is the active segment."""
        for info in self.log.segments():
            if (info.base_offset, info.next_offset, info.is_active) == (base_offset, next_offset, False):
                return info
        return None

    def source(self) -> PartitionSource:
        """The source of a reader. Raises the error of a stopped tier if the tiers were never reconciled."""
        if (error := self.tier.error) is not None and not self.allows(TierAction.READ_REMOTE):
            raise error
        manifest = self.manifest()
        is_behind = self.log.is_read_only and manifest is not None and self.log.next_offset < manifest.next_offset
        log = None if is_behind else self.log
        return PartitionSource(self.name, log, self.remote, self.metadata, local_views=self.local_views)

    def copy_progress(self, info: SegmentInfo) -> Callable[[int], None]:
        """A callback that adds up the bytes read by one copy and reports the sum to `on_copied`."""
        done = 0

        def tell(read_bytes: int) -> None:
            nonlocal done
            done += read_bytes
            self.on_copied(info.base_offset, done, info.size_bytes)

        return tell

    def check_appendable(self) -> None:
        """Check that records may be appended.

        Raises as `check_not_stopped`, DiskFailed from `check_room`, NotFound for a deleted topic, or Unavailable if the
        offsets could collide with the bucket's: the log is not reconciled and ends below the manifest, or holds no
        record (a fresh disk). Records of an empty log would get an epoch that records of another machine may have too.
        """
        self.check_not_stopped()
        self.check_room()
        if (problem := self._append_problem()) is not None:
            raise problem

    def _append_problem(self) -> LogError | None:
        match self.tier_state:
            case TierState.DELETED:
                return NotFound("cannot append, the topic was deleted", partition=self.name)
            case TierState.UNREACHED:
                manifest = self.manifest()
                if manifest is not None and self.log.next_offset < manifest.allocated_end_offset:
                    return Unavailable("cannot append, the log ends before the end of the bucket", partition=self.name)
                if self.log.size_bytes == 0:
                    wrong = "cannot append, the log has no records and this process is not the writer in the bucket"
                    return Unavailable(wrong, partition=self.name)
        return None

    def note_append(self) -> None:
        """Mark the log as unconfirmed before an append without the writer role. Raises DiskFailed.

        The role is checked again under the log's lock: a takeover removes the note only after it has the role.
        """
        if self.is_tiered and not self.is_writer:
            self.log.notes.mark_unconfirmed(unless=lambda: self.is_writer)

    def snapshot(
        self, now_ms: int, *, may_clean: bool = True, may_ask: bool = True, known: dict[str, Rows] | None = None
    ) -> PartitionSnapshot:
        """The facts of both tiers for the policies. `may_ask`: read pages that expiry needs into `known`."""
        known = {} if known is None else known
        asks_first_times = self.rules.cleanup_compact and self.rules.max_compaction_lag_ms is not None
        first_times_from = (self.log.cleaner_offset or 0) if asks_first_times else None
        manifest = self.reconciled_manifest()
        snapshot = self._figures(
            partial(PartitionSnapshot, stable_offset=self.log.last_stable_offset, may_clean=may_clean),
            now_ms,
            manifest,
            partial(self.log.segments, first_times_from=first_times_from),
        )
        if manifest is None or not snapshot.pages or not (may_ask or known):
            return snapshot
        return self._with_oldest_rows(snapshot, manifest, known, may_ask=may_ask)

    def figures(self, now_ms: int) -> PartitionFigures:
        """The facts of both tiers for `tiered.partition.partition_status`, without a read of the log."""
        read_segments = partial(self.log.segments, with_times=False)
        return self._figures(PartitionFigures, now_ms, self.reconciled_manifest(), read_segments)

    def _figures(
        self,
        build: Callable[..., T],
        now_ms: int,
        manifest: Manifest | None,
        read_segments: Callable[[], tuple[SegmentInfo, ...]],
    ) -> T:
        pending_deletes, pending_page_deletes = self.ahead.judged(manifest, now_ms) if manifest else ((), ())
        return build(
            partition=self.name,
            rules=self.rules,
            now_ms=now_ms,
            log_start_offset=manifest.log_start_offset if manifest else self.log.log_start_offset,
            next_offset=self.log.next_offset,
            segments=read_segments(),
            is_tiered=self.is_tiered,
            remote=manifest.segments if manifest and not manifest.tier_disabled else (),
            pages=manifest.pages if manifest and not manifest.tier_disabled else (),
            tier_disabled=manifest.parts if manifest and manifest.tier_disabled else (),
            pending_deletes=pending_deletes,
            pending_page_deletes=pending_page_deletes,
            views=manifest.views if manifest else (),
            local_views=self.local_views.known() if self.local_views is not None else (),
            keeps_views_on_disk=self.keeps_views_on_disk,
            cleaner_offset=self.log.cleaner_offset,
            cleaner_reach=self.log.cleaner_reach,
            shrunk=self.uploads.shrunk_bases,
            copying=self.uploads.copying,
            paused=self.pause,
            head_sequence=manifest.sequence if manifest else 0,
            manifests_gc_boundary=self.metadata.gc_boundary if self.metadata else 0,
        )

    def _with_oldest_rows(
        self, snapshot: PartitionSnapshot, manifest: Manifest, known: dict[str, Rows], *, may_ask: bool
    ) -> PartitionSnapshot:
        from policies.retention import with_oldest_entries

        def read(page: PageEntry) -> Rows | None:
            if page.key not in known and may_ask:
                assert self.metadata is not None, "a head comes with its chain"
                try:
                    known[page.key] = self.metadata.index(manifest).page(page)
                except (Unavailable, NotFound) as error:
                    where = self.name, page.key
                    _log.warning("retention waits for a manifest page: partition=%s page=%s %s", *where, error)
            return known.get(page.key)

        return with_oldest_entries(snapshot, read, OLDEST_PAGES_MAX)


def coverage(manifest: Manifest) -> Coverage:
    entries = [(entry.base_offset, entry.next_offset) for entry in manifest.segments]
    return Coverage.of([*entries, *(each for page in manifest.pages for each in page.ranges())])


def check_room(directories: LogDirectories, partition: TopicPartition, least_bytes: int) -> None:
    """Raise DiskFailed (enospc) if the partition's log directory has less than `least_bytes` free."""
    directory = directories.of(partition)
    space = directory.storage.space(directory.root)
    if space is not None and space.free_bytes < least_bytes:
        facts = {"directory": directory.root, "free_bytes": space.free_bytes, "least_bytes": least_bytes}
        wrong = "cannot append, the disk is nearly full; a retry may succeed"
        raise DiskFailed(wrong, partition=partition, **facts, cause="enospc")


def is_tier_disabled(topic: Topic, values: Mapping[str, str]) -> bool:
    """Whether the topic's own settings disable its tier; a changed default only makes it read-only."""
    own = topic.properties.get(ENABLE)
    is_off = own is not None and not parse(ENABLE, own) and values[ENABLE] == "false"
    return topic.was_tiered and is_off and values[DELETE_ON_DISABLE] == "true"


def disable_tier_of(partition: Partition, where: Callable[[], LogDirectory], offset: int, *, now_ms: int) -> bool:
    """Disable the tier for good: `remote.storage.enable` from true to false (KIP-950). Steps 2 and 3 of:

    | step | effect | a crash after it leaves |
    |---|---|---|
    | 1 | the registry has the topic's own ``remote.storage.enable=false`` | the request; the next maintenance does 2 |
    | 2 | a manifest: log start = the disk's, no entry counts, no views | a tier that is not read; the open does 3 |
    | 3 | the log-start checkpoint; readers get the new log start | entries to unlink |
    | 4 | entries are unlinked, pages whole, as many as a manifest has room for | fewer entries |
    | 5 | after the grace period and the pins: their objects are deleted | pending deletes |
    | 6 | the last entry was unlinked | a manifest without entries |

    Refused unless `remote.log.delete.on.disable=true`. Before step 2 no record is lost, and enabling the tier again
    undoes the request. All records that count afterwards are durable on the disk: the bucket holds closed segments
    only, and a closed segment is durable. After step 2 nothing in the bucket is read. A tier that is enabled again
    waits for step 6, then copies everything under new names. This writer keeps the writer role by its manifests: a disk
    lost later must not give the offsets again that were in the bucket (I3).

    False if the request no longer applies. The caller holds `tier_lock`. `lock` is held before and after the commit,
    never during a wait for the store. During the commit `Uploads.copying` holds `offset`, so no local segment that ends
    above it is dropped. `where` is called under the lock, because the partition may move.
    """
    metadata, log = partition.metadata, partition.log
    with partition.lock:
        if metadata is None or partition.is_deleted or not partition.is_writer or not partition.rules.gives_up_remote:
            return False
        if log.segments()[0].base_offset > offset or offset > log.next_offset:
            return False
        partition.uploads.mark_copying({offset})
        # An upload whose commit is in doubt may be an entry, which is unlinked with the others: a tier that is enabled
        # again must not treat it as complete. If it is no entry, it is an orphan of this epoch.
        partition.uploads.remove_doubtful()
    try:
        tier_disabled = disable_tier(log_start_offset=offset, now_ms=now_ms)
        # Checked again when the commit runs: the request may have been undone during the wait for another commit.
        manifest = metadata.commit(
            lambda manifest: tier_disabled(manifest) if partition.rules.gives_up_remote else manifest, now_ms
        )
        with partition.lock:
            if log.log_start_offset < manifest.log_start_offset and not partition.is_deleted:
                where().write_log_starts({partition.name: manifest.log_start_offset})
                log.raise_log_start(manifest.log_start_offset)
    finally:
        partition.uploads.unmark_copying()
    return manifest.tier_disabled or not manifest.has_entries
