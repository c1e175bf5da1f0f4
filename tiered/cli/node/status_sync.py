"""``tiered status --section sync``: whether disk and bucket agree, a line for each partition."""

from __future__ import annotations

from tiered.cli.render import Column, Result
from tiered.config.units import format_count, format_ms
from tiered.status.sync_status import SyncState, TierSync


class Synced(Result):
    """Lines of ``tiered status --section sync``; JSON has them in the result of ``status``."""

    sync: list[TierSync]


def sync_columns(now_ms: int) -> tuple[Column, ...]:
    """Return the columns of the table, which combine some facts."""
    return (
        Column("topic", "TOPIC"),
        Column("partition", "PART", is_number=True),
        Column("", "DISK", is_number=True, of=lambda row: _range(row.local_start_offset, row.local_next_offset)),
        Column("", "BUCKET", is_number=True, of=lambda row: _range(row.remote_start_offset, row.remote_next_offset)),
        Column("", "HEAD", is_number=True, of=_manifest),
        Column("epoch", "EPOCH", is_number=True),
        Column("committed_ms", "COMMITTED", lambda at_ms: f"{format_ms(max(0, now_ms - at_ms) // 1000 * 1000)} ago"),
        Column("", "SYNC", of=_state),
    )


def _range(start: int | None, end: int | None) -> str | None:
    return None if start is None or end is None else f"{format_count(start)}..{format_count(end)}"


def _manifest(row: TierSync) -> str | None:
    if row.head_sequence is None:
        return None
    behind = row.head_sequence - (row.seen_sequence or 0)
    return f"{row.head_sequence}" + (f" (+{behind})" if behind and row.seen_sequence is not None else "")


def _state(each: TierSync) -> str:
    sync_text = each.state.value
    if each.state is SyncState.BEHIND:
        sync_text += f" {format_count(each.lag_offsets or 0)}"
    if each.is_own_writer is False:
        sync_text += (
            f", the last writer was {each.writer_id}"
            if each.state is not SyncState.OTHER_WRITER
            else f": {each.writer_id}"
        )
    if each.has_new_settings:
        sync_text += ", settings wait"
    return sync_text
