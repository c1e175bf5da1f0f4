"""Which rows leave the index, and which unlinked objects leave the store.

Source: `RemoteLogManager.cleanupExpiredRemoteLogSegments`: per row from the oldest, log start, then time (**not**
strict, unlike the local test), then size; the first row that may not go ends the scan. Bytes follow rows only after the
grace time, so a reader with an older head still finds them (DESIGN, commit protocol 5).
"""

from __future__ import annotations

from policies.decisions import DeleteUnlinked, ExpireRemote
from policies.snapshot import PartitionSnapshot
from remote.head import SpillRow
from remote.segment import RemoteSegment


def expirations(snapshot: PartitionSnapshot) -> list[ExpireRemote]:
    """The rows to expire, oldest first, as far as they are known.

    Neither a segment being copied nor anything after it goes in this round.
    """
    limits = snapshot.rules.log_limits
    kept_bytes = log_bytes(snapshot)
    first_copying = min(snapshot.copying, default=None)
    expired: list[ExpireRemote] = []
    for row in snapshot.known_oldest():
        if first_copying is not None and first_copying <= row.base_offset:
            break
        reason = (
            _below_log_start(row, snapshot.log_start_offset)
            or _too_old(row, snapshot.now_ms, limits.ms)
            or _too_large(row, kept_bytes, limits.bytes)
        )
        if reason is None:
            break
        if row.next_offset > snapshot.log_start_offset:
            kept_bytes -= row.size_bytes
        expired.append(_expire(row, reason))
    return expired


def deletions(snapshot: PartitionSnapshot) -> list[DeleteUnlinked]:
    """The unlinked objects whose grace time has passed and that no row names, the log's or a view's."""
    grace_ms = snapshot.rules.delete_grace_ms
    live = snapshot.named_keys
    return [
        DeleteUnlinked(
            key=unlinked.key,
            size_bytes=unlinked.size_bytes,
            reason=f"unlinked {snapshot.now_ms - unlinked.unlinked_ms} ms ago, grace {grace_ms} ms",
        )
        for unlinked in snapshot.unlinked
        if snapshot.now_ms - unlinked.unlinked_ms >= grace_ms and unlinked.key not in live
    ]


def page_to_know(snapshot: PartitionSnapshot) -> SpillRow | None:
    """The oldest page whose rows have to be known one by one, for some may expire; None when there is none.

    Asked again of the fuller snapshot, it may name the next page.
    """
    spill = next(iter(snapshot.spills), None)
    if spill is None or len(expirations(snapshot)) < len(snapshot.known_oldest()):
        return None
    limits = snapshot.rules.log_limits
    is_old = limits.ms is not None and snapshot.now_ms - spill.first_stamp_ms >= limits.ms
    is_large = limits.bytes is not None and log_bytes(snapshot) > limits.bytes
    return spill if spill.base_offset < snapshot.log_start_offset or is_old or is_large else None


def log_bytes(snapshot: PartitionSnapshot) -> int:
    """The size of the whole log that retention by size compares: committed rows plus what is only local.

    A segment on both tiers counts once, and nothing below the log start counts, but for a page of unknown rows that
    the log start lies in: it counts whole until `page_to_know` has asked for it.
    """
    start = snapshot.log_start_offset
    only_local_from = max(start, snapshot.remote_next_offset or 0)
    remote_bytes = sum(row.size_bytes for row in snapshot.committed_parts if row.next_offset > start)
    local_bytes = sum(segment.size_bytes for segment in snapshot.segments if segment.next_offset > only_local_from)
    return remote_bytes + local_bytes


def _below_log_start(row: RemoteSegment, log_start_offset: int) -> str | None:
    return f"below the log start {log_start_offset}" if row.next_offset <= log_start_offset else None


def _too_old(row: RemoteSegment, now_ms: int, limit: int | None) -> str | None:
    """By the newest record; by the commit where no record has a timestamp, as the disk goes by the file's mtime."""
    if limit is None:
        return None
    if row.max_timestamp_ms is None:
        waited_ms = now_ms - row.committed_ms
        return f"no timestamp, committed {waited_ms} ms ago, retention.ms={limit}" if waited_ms >= limit else None
    age_ms = now_ms - row.max_timestamp_ms
    return f"newest record {age_ms} ms old, retention.ms={limit}" if age_ms >= limit else None


def _too_large(row: RemoteSegment, kept_bytes: int, limit: int | None) -> str | None:
    """A row goes only if the log without it still reaches the limit."""
    if limit is None or kept_bytes - row.size_bytes < limit:
        return None
    return f"{kept_bytes} bytes kept, retention.bytes={limit}"


def _expire(row: RemoteSegment, reason: str) -> ExpireRemote:
    return ExpireRemote(
        ulid=row.ulid,
        base_offset=row.base_offset,
        next_offset=row.next_offset,
        size_bytes=row.size_bytes,
        data_key=row.data_key,
        indexes_key=row.indexes_key,
        reason=reason,
    )
