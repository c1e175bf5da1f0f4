"""``tiered status --section sync``: whether disk and bucket agree, a line for each partition."""

from __future__ import annotations

from collections.abc import Sequence

from tiered.cli.render import Column, Row
from tiered.config.units import format_count, format_ms
from tiered.status.sync_status import SyncState, TierSync


def sync_rows(found: Sequence[TierSync], now_ms: int) -> list[Row]:
    """Rows with each fact for programs; the table combines some facts."""
    return [{**_facts(each), **_words(each, now_ms)} for each in found]


def sync_facts(found: Sequence[TierSync]) -> list[Row]:
    """The facts as JSON has them next to other sections."""
    return [_facts(each) for each in found]


def _facts(each: TierSync) -> dict[str, object]:
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "state": each.state.value,
        **{column.name: getattr(each, column.name) for column in _FACTS},
    }


def _words(each: TierSync, now_ms: int) -> dict[str, object]:
    manifest = None
    if each.head_sequence is not None:
        behind = each.head_sequence - (each.seen_sequence or 0)
        manifest = f"{each.head_sequence}" + (f" (+{behind})" if behind and each.seen_sequence is not None else "")
    committed = None if each.committed_ms is None else max(0, now_ms - each.committed_ms) // 1000 * 1000
    return {
        "disk": f"{format_count(each.local_start_offset)}..{format_count(each.local_next_offset)}",
        "bucket": None
        if each.remote_start_offset is None or each.remote_next_offset is None
        else f"{format_count(each.remote_start_offset)}..{format_count(each.remote_next_offset)}",
        "head": manifest,
        "committed": None if committed is None else f"{format_ms(committed)} ago",
        "sync": _state(each),
    }


def _state(each: TierSync) -> str:
    told = each.state.value
    if each.state is SyncState.BEHIND:
        told += f" {format_count(each.lag_offsets or 0)}"
    if each.is_own_writer is False:
        told += (
            f", the last writer was {each.writer_id}"
            if each.state is not SyncState.OTHER_WRITER
            else f": {each.writer_id}"
        )
    if each.has_new_settings:
        told += ", settings wait"
    return told


_FACTS = tuple(
    Column(name)
    for name in (
        "local_start_offset",
        "local_next_offset",
        "local_epoch",
        "remote_start_offset",
        "remote_next_offset",
        "head_sequence",
        "seen_sequence",
        "epoch",
        "writer_id",
        "is_own_writer",
        "committed_ms",
        "lag_offsets",
        "has_new_settings",
        "problem",
    )
)
COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partition", "PART", is_number=True),
    Column("disk", "DISK", only_table=True, is_number=True),
    Column("bucket", "BUCKET", only_table=True, is_number=True),
    Column("head", "HEAD", only_table=True, is_number=True),
    Column("epoch", "EPOCH", is_number=True),
    Column("committed", "COMMITTED", only_table=True),
    Column("sync", "SYNC", only_table=True),
    Column("state"),
    *(column for column in _FACTS if column.name != "epoch"),
)
