"""Which local segments and entries expire or are dropped, and which pending deletes and old manifests are deleted.

Entries, source `RemoteLogManager.cleanupExpiredRemoteLogSegments`: per entry, oldest first: log start, then time
(**not** strict, unlike the local test), then size. The first entry that must stay ends the scan. Bytes are deleted only
after the grace period, for readers with an older manifest. Expiry and unlinking are two steps, because a manifest has
limited room for pending deletes. The newest MANIFESTS_RETAINED manifests stay: a reader may be between learning a
sequence and reading that manifest, and a pin needs the manifest that it was made for (`remote.gc.pins`).

Local segments, source `UnifiedLog.deleteOldSegments`: log start, then size, then time (strict). Each scan ends at the
first segment it must keep. The active segment is never dropped here; it is rolled first.

| function | segments | order of effects |
|---|---|---|
| `local_drops` | committed in the store, or below the log start | safe at once |
| `local_expirations` | the only copy of records that retention ends | the log start passes them first |
| `disk_relief` | committed in the store, when a disk fills up: before their limits | safe at once |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import takewhile

from local.facts import SegmentInfo
from local.names import TopicPartition
from policies.decisions import (
    Action,
    Code,
    CollectManifests,
    Deferral,
    DeletePage,
    DeletePending,
    DropLocal,
    ExpirePage,
    ExpireRemote,
    put_off,
)
from policies.formatting import format_ms
from policies.rules import Limits, deletion_due_ms, local_expiry_ms, remote_expiry_ms
from policies.snapshot import PartitionSnapshot
from remote.manifest.manifest import PageEntry
from remote.segment_entry import SegmentEntry

UNLINKED_MAX = 4096  # objects that a manifest lists one by one: 20 bytes each, a third of a manifest's limit
PAGES_DELETED_MAX = 2  # per plan; some 16,000 objects
MANIFESTS_RETAINED = 200
MANIFESTS_AT_ONCE = 200  # each deletion leaves a permanent boundary object


def expirations(snapshot: PartitionSnapshot) -> list[ExpireRemote]:
    """Return the known entries to expire, oldest first, up to the first that is being copied."""
    limits = snapshot.rules.log_limits
    retained_bytes = log_bytes(snapshot) if limits.bytes is not None else 0
    first_copying = min(snapshot.copying, default=None)
    expired: list[ExpireRemote] = []
    for entry in snapshot.known_oldest():
        if first_copying is not None and first_copying <= entry.base_offset:
            break
        reason: str | None = f"below the log start {snapshot.log_start_offset}"
        if entry.next_offset > snapshot.log_start_offset:
            is_too_large = limits.bytes is not None and retained_bytes - entry.size_bytes >= limits.bytes
            too_large = f"{retained_bytes} bytes kept, retention.bytes={limits.bytes}" if is_too_large else None
            reason = _too_old(entry, snapshot.now_ms, limits.ms) or too_large
        if reason is None:
            break
        if entry.next_offset > snapshot.log_start_offset:
            retained_bytes -= entry.size_bytes
        expired.append(expire_entry(entry, reason))
    return expired


def leaving(snapshot: PartitionSnapshot, expired: Sequence[ExpireRemote]) -> list[ExpirePage | ExpireRemote]:
    """Return the parts of `expired` to unlink now, oldest first: pages, then entries while there is room."""
    passed = expired[-1].next_offset if expired else 0
    whole = [page for page in snapshot.known_pages if page.next_offset <= passed]
    singles = [entry for entry in expired if not whole or entry.base_offset >= whole[-1].next_offset]
    return [
        *(expire_page(page, f"all below the log start {snapshot.log_start_offset}") for page in snapshot.dead_pages),
        *(expire_page(page, f"all its segments expired, the last one: {expired[-1].reason}") for page in whole),
        *singles[: room_for_entries(snapshot)],
    ]


def room_for_entries(snapshot: PartitionSnapshot) -> int:
    """The number of entries that can be unlinked one by one: each lists two objects."""
    return max(0, UNLINKED_MAX - len(snapshot.pending_deletes)) // 2


def deletions(snapshot: PartitionSnapshot) -> list[DeletePending | DeletePage]:
    """Return the objects that no entry names and whose grace period has passed, then due pages."""
    grace_ms, now_ms = snapshot.rules.delete_grace_ms, snapshot.now_ms
    due = [each for each in snapshot.pending_deletes if deletion_due_ms(each.unlinked_ms, snapshot.rules) <= now_ms]
    live = snapshot.named_keys if due else frozenset()  # two keys per entry: computed only if needed

    def waited(unlinked_ms: int) -> str:
        return f"unlinked {format_ms(now_ms - unlinked_ms)} ago, grace period {format_ms(grace_ms)}"

    objects = [
        DeletePending(key=each.key, size_bytes=each.size_bytes, reason=waited(each.unlinked_ms))
        for each in due
        if each.key not in live
    ]
    pages = [
        DeletePage(key=page.page.key, size_bytes=page.size_bytes, reason=waited(page.unlinked_ms))
        for page in snapshot.pending_page_deletes
        if deletion_due_ms(page.unlinked_ms, snapshot.rules) <= now_ms
    ]
    return [*objects, *pages[:PAGES_DELETED_MAX]]


def manifest_collections(snapshot: PartitionSnapshot) -> list[CollectManifests]:
    upto = collectable_upto(snapshot.head_sequence, snapshot.manifests_gc_boundary)
    if not upto:
        return []
    reason = f"{upto - snapshot.manifests_gc_boundary} old manifests, the newest {MANIFESTS_RETAINED} are kept"
    return [CollectManifests(upto_sequence=upto, reason=reason)]


def collectable_upto(sequence: int, gc_boundary: int) -> int:
    """Return the sequence up to which manifests may be deleted; 0 if too few are above `gc_boundary`."""
    upto = sequence - MANIFESTS_RETAINED
    return upto if upto - gc_boundary >= MANIFESTS_AT_ONCE else 0


def page_to_know(snapshot: PartitionSnapshot) -> PageEntry | None:
    """Return the oldest page whose entries must be read, because some may expire; None without one."""
    page = snapshot.oldest_unknown
    if page is None or len(expirations(snapshot)) < len(snapshot.known_oldest()):
        return None
    limits = snapshot.rules.log_limits
    is_old = limits.ms is not None and snapshot.now_ms >= remote_expiry_ms(page.first_stamp_ms, limits.ms)
    is_large = limits.bytes is not None and log_bytes(snapshot) > limits.bytes
    return page if page.base_offset < snapshot.log_start_offset or is_old or is_large else None


def with_oldest_entries(
    snapshot: PartitionSnapshot, read: Callable[[PageEntry], Sequence[SegmentEntry] | None], pages_max: int
) -> PartitionSnapshot:
    """Return the snapshot with the entries of its oldest pages, as far as needed, and until `read` returns None."""
    for _ in range(pages_max):
        page = page_to_know(snapshot)
        entries = read(page) if page is not None else None
        if page is None or entries is None:
            break
        at = len(snapshot.known_oldest())
        snapshot = replace(
            snapshot,
            remote=(*snapshot.remote[:at], *entries, *snapshot.remote[at:]),
            pages=tuple(each for each in snapshot.pages if each is not page),
            known_pages=(*snapshot.known_pages, page),
        )
    return snapshot


def log_bytes(snapshot: PartitionSnapshot) -> int:
    """The size for retention: committed entries, records only on disk, and whole unread pages (`page_to_know`)."""
    start = snapshot.log_start_offset
    only_local_from = max(start, snapshot.remote_next_offset or 0)
    remote_bytes = sum(entry.size_bytes for entry in snapshot.committed_parts if entry.next_offset > start)
    local_bytes = sum(segment.size_bytes for segment in snapshot.segments if segment.next_offset > only_local_from)
    return remote_bytes + local_bytes


def _too_old(entry: SegmentEntry, now_ms: int, limit: int | None) -> str | None:
    """Return why `entry` exceeds the limit; None if not. Without a timestamp its commit time counts."""
    has_time = entry.max_timestamp_ms is not None
    newest_ms = entry.committed_ms if entry.max_timestamp_ms is None else entry.max_timestamp_ms
    if limit is None or now_ms < remote_expiry_ms(newest_ms, limit):
        return None
    age = format_ms(now_ms - newest_ms)
    age = f"newest record {age} old" if has_time else f"no timestamp, committed {age} ago"
    return f"{age}, retention.ms={format_ms(limit)}"


def expire_entry(entry: SegmentEntry, reason: str) -> ExpireRemote:
    keys = {"data_key": entry.data_key, "indexes_key": entry.indexes_key}
    return ExpireRemote.of(entry, reason, ulid=entry.ulid, **keys)


def expire_page(page: PageEntry, reason: str) -> ExpirePage:
    return ExpirePage.of(page, reason, key=page.key)


def local_limits(snapshot: PartitionSnapshot) -> Limits:
    """Return `local.retention.*` while segments are copied, else `retention.*` (KIP-405, KIP-950)."""
    return snapshot.rules.local_limits if snapshot.is_copying_on else snapshot.rules.log_limits


def local_drops(snapshot: PartitionSnapshot) -> list[DropLocal]:
    """Return the local segments to drop: never an only copy; copies of the same plan do not count."""
    safe = takewhile(partial(_is_droppable, snapshot), snapshot.closed)
    return [drop for drop, _ in zip(_unwanted(snapshot), safe, strict=False)]


def drop_deferrals(snapshot: PartitionSnapshot) -> list[Deferral]:
    """Return a deferral for each unwanted local segment that `local_drops` omits; oldest first."""
    if not snapshot.is_copying_on:
        return []
    dropped = len(local_drops(snapshot))
    unwanted = len(_unwanted(snapshot))
    found = []
    for segment in snapshot.closed[dropped:unwanted]:
        code, why = Code.ORDER, "an earlier segment waits"
        if segment.base_offset in snapshot.copying:
            code, why = Code.COPYING, "a copy is in progress"
        elif not snapshot.has_safe_copy(segment):
            code, why = Code.NOT_COPIED, "only the local disk has some of its records"
        found.append(put_off(Action.DROP, segment, code, why))
    return found


def _unwanted(snapshot: PartitionSnapshot) -> list[DropLocal]:
    """Return the oldest segments below the log start or beyond the local limits, whether or not they may be dropped."""
    local_bytes = sum(segment.size_bytes for segment in snapshot.segments)
    return _beyond(snapshot, snapshot.closed, local_bytes, local_limits(snapshot))


def _beyond(
    snapshot: PartitionSnapshot, segments: Sequence[SegmentInfo], retained_bytes: int, limits: Limits
) -> list[DropLocal]:
    """Return drops up to the first segment that must stay. `retained_bytes`: the log's with `segments`."""
    found: list[DropLocal] = []
    for segment in segments:
        if segment.next_offset <= snapshot.log_start_offset:
            reason = f"below the log start {snapshot.log_start_offset}"
        elif limits.bytes is not None and retained_bytes - segment.size_bytes >= limits.bytes:
            reason = f"{retained_bytes} bytes kept, limit {limits.bytes}"
        elif limits.ms is not None and snapshot.now_ms >= local_expiry_ms(segment.age_timestamp_ms, limits.ms):
            age_ms = snapshot.now_ms - segment.age_timestamp_ms
            reason = f"newest record {format_ms(age_ms)} old, limit {format_ms(limits.ms)}"
        else:
            break
        found.append(DropLocal.of(segment, reason))
        retained_bytes -= segment.size_bytes
    return found


def local_expirations(
    snapshot: PartitionSnapshot, dropped: Sequence[DropLocal], expired: Sequence[ExpireRemote]
) -> list[DropLocal]:
    """Return local segments that retention expires, oldest first; none if copying is on or an entry stays."""
    expired_count = len(expired) + sum(page.segment_count for page in snapshot.dead_pages)
    if snapshot.is_copying_on or expired_count < snapshot.committed_count:
        return []
    rest = takewhile(lambda each: each.base_offset not in snapshot.copying, snapshot.closed[len(dropped) :])
    expired_bytes = sum(entry.size_bytes for entry in expired if entry.next_offset > snapshot.log_start_offset)
    return _beyond(snapshot, list(rest), log_bytes(snapshot) - expired_bytes, snapshot.rules.log_limits)


def disk_relief(snapshots: Iterable[PartitionSnapshot], wanted_bytes: int) -> dict[TopicPartition, list[DropLocal]]:
    """Return drops of `wanted_bytes`, oldest first. A segment that must stay (I2) ends those of its log."""
    found: dict[TopicPartition, list[DropLocal]] = {}
    droppable = {
        each.partition: list(takewhile(partial(_is_droppable, each), each.closed))
        for each in snapshots
        if each.is_tiered
    }
    queue = [(segments[0].age_timestamp_ms, name, 0) for name, segments in droppable.items() if segments]
    heapify(queue)
    freed = 0
    while queue and freed < wanted_bytes:
        _, name, at = heappop(queue)
        segment = droppable[name][at]
        found.setdefault(name, []).append(DropLocal.of(segment, "the disk is nearly full, and the store has a copy"))
        freed += segment.size_bytes
        if at + 1 < len(droppable[name]):
            heappush(queue, (droppable[name][at + 1].age_timestamp_ms, name, at + 1))
    return found


def _is_droppable(snapshot: PartitionSnapshot, segment: SegmentInfo) -> bool:
    return segment.base_offset not in snapshot.copying and snapshot.has_safe_copy(segment)
