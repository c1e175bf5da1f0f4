"""Which entries expire, and which pending deletes and old manifests are deleted.

Source: `RemoteLogManager.cleanupExpiredRemoteLogSegments`. Per entry from the oldest: log start, then time (**not**
strict, unlike the local test), then size. The first entry that must stay ends the scan. Bytes are deleted only after
the grace period, for readers with an older manifest. Expiry and unlinking are two steps, because a manifest has limited
room for pending deletes. The newest MANIFESTS_RETAINED manifests stay: a reader may be between learning a sequence and
reading that manifest, and a pin needs the manifest that it was made for (`remote.gc.pins`).
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.decisions import CollectManifests, DeletePage, DeletePending, ExpirePage, ExpireRemote
from policies.formatting import format_ms
from policies.rules import deletion_due_ms, remote_expiry_ms
from policies.snapshot import PartitionSnapshot
from remote.manifest.manifest import PageEntry
from remote.segment_entry import SegmentEntry

UNLINKED_MAX = 4096  # objects that a manifest lists one by one: 20 bytes each, a third of a manifest's limit
PAGES_DELETED_MAX = 2  # per plan; some 16,000 objects
MANIFESTS_RETAINED = 200
MANIFESTS_AT_ONCE = 200  # each deletion leaves a permanent boundary object


def expirations(snapshot: PartitionSnapshot) -> list[ExpireRemote]:
    """Return the known entries to expire, oldest first, up to the first segment that is being copied."""
    limits = snapshot.rules.log_limits
    kept_bytes = log_bytes(snapshot) if limits.bytes is not None else 0
    first_copying = min(snapshot.copying, default=None)
    expired: list[ExpireRemote] = []
    for entry in snapshot.known_oldest():
        if first_copying is not None and first_copying <= entry.base_offset:
            break
        reason: str | None = f"below the log start {snapshot.log_start_offset}"
        if entry.next_offset > snapshot.log_start_offset:
            too_old = _too_old(entry, snapshot.now_ms, limits.ms)
            reason = too_old or _too_large(entry, kept_bytes, limits.bytes)
        if reason is None:
            break
        if entry.next_offset > snapshot.log_start_offset:
            kept_bytes -= entry.size_bytes
        expired.append(expire_entry(entry, reason))
    return expired


def leaving(snapshot: PartitionSnapshot, expired: Sequence[ExpireRemote]) -> list[ExpirePage | ExpireRemote]:
    """Return the parts of `expired` to unlink now, oldest first: pages, then entries while there is room."""
    passed = expired[-1].next_offset if expired else 0
    whole = [page for page in snapshot.known_pages if page.next_offset <= passed]
    left_whole = whole[-1].next_offset if whole else 0
    singles = [entry for entry in expired if entry.base_offset >= left_whole]
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
    """Return at most one collection, once MANIFESTS_AT_ONCE manifests more than MANIFESTS_RETAINED exist."""
    upto = collectable_upto(snapshot.head_sequence, snapshot.manifests_gc_boundary)
    if not upto:
        return []
    reason = f"{upto - snapshot.manifests_gc_boundary} old manifests, the newest {MANIFESTS_RETAINED} are kept"
    return [CollectManifests(upto_sequence=upto, reason=reason)]


def collectable_upto(sequence: int, gc_boundary: int) -> int:
    """Return the sequence up to which manifests may be deleted (void up to `gc_boundary`); 0 for few."""
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


def log_bytes(snapshot: PartitionSnapshot) -> int:
    """The size of the whole log for retention by size: committed entries plus records only on disk.

    An unread page that contains the log start counts whole (`page_to_know`).
    """
    start = snapshot.log_start_offset
    only_local_from = max(start, snapshot.remote_next_offset or 0)
    remote_bytes = sum(entry.size_bytes for entry in snapshot.committed_parts if entry.next_offset > start)
    local_bytes = sum(segment.size_bytes for segment in snapshot.segments if segment.next_offset > only_local_from)
    return remote_bytes + local_bytes


def _too_old(entry: SegmentEntry, now_ms: int, limit: int | None) -> str | None:
    """Compare the newest record's age with the limit. Without a timestamp the commit time counts."""
    has_time = entry.max_timestamp_ms is not None
    newest_ms = entry.committed_ms if entry.max_timestamp_ms is None else entry.max_timestamp_ms
    if limit is None or now_ms < remote_expiry_ms(newest_ms, limit):
        return None
    age = format_ms(now_ms - newest_ms)
    age = f"newest record {age} old" if has_time else f"no timestamp, committed {age} ago"
    return f"{age}, retention.ms={format_ms(limit)}"


def _too_large(entry: SegmentEntry, kept_bytes: int, limit: int | None) -> str | None:
    if limit is None or kept_bytes - entry.size_bytes < limit:
        return None
    return f"{kept_bytes} bytes kept, retention.bytes={limit}"


def expire_entry(entry: SegmentEntry, reason: str) -> ExpireRemote:
    return ExpireRemote(
        ulid=entry.ulid,
        base_offset=entry.base_offset,
        next_offset=entry.next_offset,
        size_bytes=entry.size_bytes,
        data_key=entry.data_key,
        indexes_key=entry.indexes_key,
        reason=reason,
    )


def expire_page(page: PageEntry, reason: str) -> ExpirePage:
    return ExpirePage(
        key=page.key,
        base_offset=page.base_offset,
        next_offset=page.next_offset,
        size_bytes=page.size_bytes,
        reason=reason,
    )
