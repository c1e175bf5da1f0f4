"""One partition held by a manager: its local log, its remote metadata, its rules.

The log start of a tiered partition is the head's: it is committed there before the disk hears of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from local.errors import Diverged, Fenced, LogError, NotFound, RemoteLost, Unavailable
from local.log import Log
from local.names import TopicPartition
from local.segment.segment import Segment
from local.segment.segment_info import SegmentInfo
from policies.coverage import Coverage
from policies.rules import PartitionRules, Pause
from policies.snapshot import PartitionSnapshot
from remote.fetch.range_reader import RemotePartition
from remote.gc.pin_watch import PinWatch
from remote.keys import partition_prefix
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Head, SpillRow
from remote.manifest.manifest_page import Rows
from remote.segment_entry import RemoteSegment
from remote.segments.object_encoding import AS_IT_IS, AtRest
from tiered.node.topic_registry import Topic
from tiered.node.upload_pause import Pauses
from tiered.partition.clock_skew import AheadStamps
from tiered.read.local_views import LocalViews
from tiered.read.partition_source import PartitionSource

_log = logging.getLogger(__name__)

OLDEST_PAGES_MAX = 2  # pages of old rows that one round looks into for what expires


def _has_room() -> None:
    """Where nobody asks the disk."""


def _tell_nobody(base_offset: int, done_bytes: int, size_bytes: int) -> None:
    """Hears of copies where nobody else wants to."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A segment in the store that no head names yet, as far as is known, put there by the writer of this epoch.

    `is_tried`: a commit of it has begun. Where that had no answer, the newest head may name it after all.
    """

    epoch: int
    row: RemoteSegment
    is_tried: bool = False


@dataclass(slots=True, eq=False)
class Partition:
    """What the manager keeps of one partition. `metadata`, `remote`, `pins` are None for a topic that is not tiered.

    `is_tiered`: something of it may be in the bucket. `is_owned`: this manager is the partition's writer there and the
    two tiers agree; `has_agreed`: they once did. `stopped` is why it may not write any more (another writer took over,
    or the histories contradict each other); nothing is changed then, and nothing read where the tiers never agreed.
    `at_rest` is how its segments are kept in the store; `on_copied` hears the base offset of a segment that is being
    copied, the bytes done and those in all, from whichever thread reads them.
    `ahead` knows objects whose grace time begins at a time to come. `uploaded` and `shrunk` are the notes of
    `tiered.maintenance.upload_and_commit`.
    `lock` is for what changes on the disk, `tier_lock` for what changes in the bucket; who needs both takes that first.
    Only who holds that one, in a thread of its own (`tiered.maintenance.remote_tasks`), waits for the store without the
    other one; `copying` are the segments that it is copying, which stay as they are. `is_deleted`: its topic is; what
    went up and is in no head is of no use to anybody. `opened_upto` is where its log ended when it was opened, None
    where it held nothing. `forgot_tried`: some of `uploaded` went that may be in rows. `is_noted`: the disk remembers
    that records came before the manifest was this log's. `local_views` are the compacted views beside the log
    (`tiered.read.local_views`).
    """

    name: TopicPartition
    topic: Topic
    rules: PartitionRules
    log: Log
    is_tiered: bool = False
    metadata: MetadataLog | None = None
    remote: RemotePartition | None = None
    pins: PinWatch | None = None
    is_owned: bool = False
    has_agreed: bool = False
    stopped: LogError | None = None
    at_rest: AtRest = AS_IT_IS
    on_copied: Callable[[int, int, int], None] = _tell_nobody
    check_room: Callable[[], None] = _has_room
    pauses: Pauses | None = None
    ahead: AheadStamps = field(default_factory=AheadStamps)
    uploaded: dict[Segment, Upload] = field(default_factory=dict)
    shrunk: dict[int, Segment] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    tier_lock: threading.RLock = field(default_factory=threading.RLock)
    copying: frozenset[int] = frozenset()
    is_deleted: bool = False
    opened_upto: int | None = None
    forgot_tried: bool = False
    is_noted: bool = False
    local_views: LocalViews | None = None

    @property
    def keeps_views_on_disk(self) -> bool:
        """Whether its compacted views lie beside the log: there is no remote tier, or one that was given up and whose
        manifest counts nothing any more."""
        if not self.is_tiered:
            return True
        head = self.head()
        if not self.rules.gives_up_remote or head is None or head.views:
            return False
        return head.given_up or not head.has_rows

    @property
    def prefix(self) -> str:
        return partition_prefix(self.topic.name, self.topic.topic_id, self.name.partition)

    def head(self) -> Head | None:
        """The newest head seen so far; no request is sent. None before anything was committed, or when not tiered."""
        return self.metadata.cached if self.metadata is not None else None

    def agreed_head(self) -> Head | None:
        """As `head`; None too for a log that diverged or was fenced, or whose bucket is lost. What such a manifest says
        of offsets, copies and the log start is not true of this disk."""
        return None if isinstance(self.stopped, (Diverged, Fenced, RemoteLost)) else self.head()

    @property
    def is_unsettled(self) -> bool:
        """Whether a commit may have happened that `head` does not have. For whoever goes by a head: asked before it is
        looked at, or the commit is settled between the two."""
        return self.metadata is not None and self.metadata.is_unsettled

    @property
    def may_hold_more(self) -> bool:
        """Whether the bucket may hold rows, or a view, that `head` does not have, for their commit had no answer: a
        cleaning may not go by that head. The segments on both sides of the bucket's true end would be merged into one
        that tiles no row and can never go up, and tombstones could go before the records that they hide."""
        tried = self.forgot_tried or any(each.is_tried for each in list(self.uploaded.values()))
        head = self.head()
        return self.is_unsettled and (tried or (head is not None and bool(head.views)))

    @property
    def pause(self) -> Pause | None:
        """Since when and why its uploads are paused; None where they go on, or there are none."""
        return self.pauses.of(self.topic) if self.is_tiered and self.pauses is not None else None

    def is_paused_now(self) -> bool:
        """Whether its uploads are paused this moment: before each, since many may follow one another in a round."""
        if self.pauses is not None:
            self.pauses.refresh()
        return self.pause is not None

    def check_may_shrink(self) -> None:
        """Raises `stopped` and Fenced: of a diverged or fenced log nothing is dropped, truncated or cleaned. For the
        holder of `lock`, before anything is taken from the disk."""
        if self.stopped is not None:
            raise self.stopped
        self.check_not_fenced()

    def check_not_fenced(self) -> None:
        """Raises Fenced where the newest head seen is another writer's, which a reader may have met first: its rows and
        its log start say nothing of what this disk holds. For whoever holds `lock`, before anything leaves the disk."""
        if self.metadata is not None:
            self.metadata.check_not_fenced()

    def closed_segment(self, base_offset: int, next_offset: int) -> SegmentInfo | None:
        """The local segment of exactly these offsets, unless it is the active one."""
        for info in self.log.segments():
            if (info.base_offset, info.next_offset, info.is_active) == (base_offset, next_offset, False):
                return info
        return None

    def source(self) -> PartitionSource:
        """For a reader. Raises `stopped` where the tiers never agreed: one stream over both would mix two histories.

        A disk that is only looked at and ends before the bucket does (lost and empty, put back from an old copy, looked
        at a moment before) has nothing that the bucket lacks: then the bucket alone is read.
        """
        if self.stopped is not None and not self.has_agreed:
            raise self.stopped
        head = self.head()
        is_behind = self.log.is_read_only and head is not None and self.log.next_offset < head.next_offset
        log = None if is_behind else self.log
        return PartitionSource(self.name, log, self.remote, self.metadata, local_views=self.local_views)

    def copy_progress(self, info: SegmentInfo) -> Callable[[int], None]:
        """For one copy: told the bytes read since the last time, it tells `on_copied` those read so far."""
        done = 0

        def tell(read_bytes: int) -> None:
            nonlocal done
            done += read_bytes
            self.on_copied(info.base_offset, done, info.size_bytes)

        return tell

    def check_appendable(self) -> None:
        """Raises `stopped`, Fenced, what `check_room` raises (a full disk), and Unavailable while the bucket may hold
        the very offsets that an append would be given.

        That is so for a log that holds no record (a fresh disk, one that starts over at the bucket's end) and for one
        that ends below the head it has not been reconciled with. A log with records knows its end, and the leader epoch
        of its last ones is its own; without any, records would get an epoch that another machine's have, too, and
        nobody could tell the two histories apart.
        """
        if self.stopped is not None:
            raise self.stopped
        self.check_not_fenced()
        self.check_room()
        if not self.is_tiered or self.is_owned:
            return
        head = self.head()
        if head is not None and self.log.next_offset < head.taken_upto:
            raise Unavailable("appending to a log that ends before the bucket's end", partition=self.name)
        if self.log.size_bytes == 0:
            raise Unavailable("appending to a log without records, it is not ours in the bucket", partition=self.name)

    def note_append(self) -> None:
        """Before records are appended: where the manifest is not this log's yet, the disk remembers that. Raises
        DiskFailed."""
        if self.is_tiered and not self.is_owned and not self.is_noted:
            self.log.mark_unconfirmed()
            self.is_noted = True

    def snapshot(
        self,
        now_ms: int,
        *,
        may_clean: bool = True,
        may_ask: bool = True,
        for_figures: bool = False,
        known: dict[str, Rows] | None = None,
    ) -> PartitionSnapshot:
        """What the policies are told: both tiers at this moment. The log start is the head's where there is one.

        A page of the oldest rows is read when some of them may expire, if it `may_ask`; while the bucket is out of
        reach they just stay. `known` are pages that a snapshot before this one read, by key; those that are read now
        are added.

        `for_figures` alone (`tiered.partition.partition_status`) nothing is read of the log: there is no largest
        timestamp, and the stable offset is the log start, above which nothing may be copied or cleaned. Of a log that
        is only looked at that one would be found by reading the active segment from end to end.
        """
        known = {} if known is None else known
        head = self.agreed_head()
        unlinked, unlinked_pages = self.ahead.judged(head, now_ms) if head else ((), ())
        asks_first_times = (
            not for_figures and self.rules.cleanup_compact and self.rules.max_compaction_lag_ms is not None
        )
        first_times_from = (self.log.cleaner_offset or 0) if asks_first_times else None
        snapshot = PartitionSnapshot(
            partition=self.name,
            rules=self.rules,
            now_ms=now_ms,
            log_start_offset=head.log_start_offset if head else self.log.log_start_offset,
            next_offset=self.log.next_offset,
            stable_offset=self.log.log_start_offset if for_figures else self.log.last_stable_offset,
            segments=self.log.segments(first_times_from=first_times_from, with_times=not for_figures),
            is_tiered=self.is_tiered,
            remote=head.segments if head and not head.given_up else (),
            spills=head.spills if head and not head.given_up else (),
            given_up=head.parts if head and head.given_up else (),
            unlinked=unlinked,
            unlinked_pages=unlinked_pages,
            views=head.views if head else (),
            local_views=self.local_views.known() if self.local_views is not None else (),
            keeps_views_on_disk=self.keeps_views_on_disk,
            cleaner_offset=self.log.cleaner_offset,
            cleaner_reach=self.log.cleaner_reach,
            shrunk=frozenset(base for base, segment in list(self.shrunk.items()) if not segment.is_retired),
            copying=self.copying,
            may_clean=may_clean,
            paused=self.pause,
            head_sequence=head.sequence if head else 0,
            heads_void_upto=self.metadata.void_upto if self.metadata else 0,
        )
        if head is None or not snapshot.spills or not (may_ask or known):
            return snapshot
        return self._with_oldest_rows(snapshot, head, known, may_ask=may_ask)

    def _with_oldest_rows(
        self, snapshot: PartitionSnapshot, head: Head, known: dict[str, Rows], *, may_ask: bool
    ) -> PartitionSnapshot:
        from policies.remote_retention import page_to_know

        for _ in range(OLDEST_PAGES_MAX):
            spill = page_to_know(snapshot)
            if spill is None:
                break
            if spill.key not in known and not (may_ask and self._read_page(head, spill, known)):
                break
            rows = known[spill.key]
            at = len(snapshot.known_oldest())
            snapshot = replace(
                snapshot,
                remote=(*snapshot.remote[:at], *rows, *snapshot.remote[at:]),
                spills=tuple(each for each in snapshot.spills if each is not spill),
                known_pages=(*snapshot.known_pages, spill),
            )
        return snapshot

    def _read_page(self, head: Head, spill: SpillRow, known: dict[str, Rows]) -> bool:
        """Read a page into `known`; False where the store does not give it."""
        assert self.metadata is not None, "a head comes with its chain"
        try:
            known[spill.key] = self.metadata.index(head).page(spill)
        except (Unavailable, NotFound) as error:
            _log.warning("retention waits for a page of rows: partition=%s page=%s %s", self.name, spill.key, error)
            return False
        return True


def coverage(head: Head) -> Coverage:
    """The offsets that rows hold."""
    rows = [(row.base_offset, row.next_offset) for row in head.segments]
    return Coverage.of([*rows, *(each for spill in head.spills for each in spill.ranges())])
