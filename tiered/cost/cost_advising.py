"""Advice to lower the costs of a manager's topics, from their own history (`policies.cost.cost_advice`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from local.errors import LogError
from local.names import TopicPartition
from policies.cost.cost_advice import CostAdvice, StoredSegment, advise_costs
from policies.cost.prices import STANDARD, PriceTable
from policies.rules import remote_expiry_ms
from remote.segment_entry import SegmentEntry
from tiered.config.price_file import configured_prices
from tiered.cost.cost_history import Measured, measured_streams
from tiered.cost.topic_cost import CostTable, log_entries
from tiered.manager.manager import LogManager
from tiered.partition.partition import Partition
from tiered.status.status_report import unread_partitions

_FIELDS = (
    *("topic", "change", "saved_dollars", "once_dollars", "payback_months"),
    *("segments", "size_bytes", "reason", "command"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisedCosts(CostTable):
    """Advice, the largest saving first, and its measurements; `unread` has reasons for partitions left out."""

    advice: tuple[CostAdvice, ...]
    measured: tuple[Measured, ...]
    prices: PriceTable
    unread: Mapping[TopicPartition, LogError] = field(default_factory=dict)

    def rows(self) -> list[dict[str, object]]:
        return [
            {field: getattr(each, field) for field in _FIELDS}
            | {"payback_months": each.payback_months if each.saved_dollars > 0 else None}
            for each in self.advice
        ]


def cost_advice(
    manager: LogManager,
    now_ms: int,
    topics: Iterable[str] | None = None,
    *,
    least_dollars: float = 0.01,
    rates: Mapping[str | None, float] | None = None,
) -> AdvisedCosts:
    """Advise on tiered topics (None: all). `rates` as in `simulate_costs`. Raises NotFound."""
    prices = configured_prices(manager.config)
    found = measured_streams(manager, now_ms, topics, rates=rates)
    streams = [each.stream for each in found if each.stream is not None]
    segments = {stream.topic: stored_segments_of(manager, stream.topic, now_ms) for stream in streams}
    advice = advise_costs(streams, segments, prices, least_dollars=least_dollars)
    unread = unread_partitions(manager, topics)
    return AdvisedCosts(advice=tuple(advice), measured=tuple(found), prices=prices, unread=unread)


def stored_segments_of(manager: LogManager, topic: str, now_ms: int) -> list[StoredSegment]:
    return [
        _stored_segment(held, entry, now_ms) for held in manager.partitions.all([topic]) for entry in log_entries(held)
    ]


def _stored_segment(held: Partition, entry: SegmentEntry, now_ms: int) -> StoredSegment:
    limit = held.rules.log_limits.ms
    newest = entry.committed_ms if entry.max_timestamp_ms is None else entry.max_timestamp_ms
    return StoredSegment(
        stored_bytes=entry.stored_bytes,
        storage_class=entry.storage_class or STANDARD,
        lived_ms=max(0, now_ms - entry.committed_ms),
        remaining_ms=None if limit is None else max(0, remote_expiry_ms(newest, limit) - now_ms),
        is_settled=entry.next_offset <= held.log.local_log_start_offset,
        newest_ms=newest,
    )
