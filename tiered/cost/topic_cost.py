"""Bills of a manager's topics (`policies.cost.bill`): facts from both tiers and from the request meter.

All segment entries are read, a GET for each page that is not cached. Requests are the recent ones of managers of this
directory (`tiered.stores.persistent_meter`), without those of other readers (Spark jobs, `open_remote`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from local.errors import LogError
from local.names import TopicPartition
from policies.cost.bill import KINDS, TopicBill, TopicFacts, bills
from policies.cost.prices import PriceTable
from policies.cost.storage_cost import StorageUsage, total_usage
from policies.cost.workload import Counts
from remote.keys import is_in_other_topic, topic_directory
from remote.segment_entry import SegmentEntry
from tiered.config.price_file import configured_prices
from tiered.manager.manager import LogManager
from tiered.partition.partition import Partition
from tiered.status.status_report import unread_partitions, usage_for
from tiered.stores.persistent_meter import RequestHistory
from tiered.topics.topic_admin import usage_of_deleted

if TYPE_CHECKING:
    import pandas as pd


class CostTable(ABC):
    """A result with rows of flat fields."""

    __slots__ = ()

    @abstractmethod
    def rows(self) -> list[dict[str, object]]: ...

    def to_frame(self) -> pd.DataFrame:
        import pandas

        return pandas.DataFrame(self.rows())


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport(CostTable):
    """Bills by topic name; if no topics were selected also of deleted ones, as ``orders (deleted)``.

    Metering began at `since_ms`; requests since `rate_since_ms` are scaled to a month. `unread` partitions, of deleted
    topics `unread_deleted`, have an unreadable tier: figures that depend on them, and the total, are None.
    """

    bills: tuple[TopicBill, ...]
    prices: PriceTable
    since_ms: int | None
    rate_since_ms: int | None
    upto_ms: int
    unread: Mapping[TopicPartition, LogError]
    unopened: frozenset[str] = frozenset()
    unread_deleted: Mapping[TopicPartition, LogError] = field(default_factory=dict)

    @property
    def all_unread(self) -> dict[TopicPartition, LogError]:
        return {**self.unread_deleted, **self.unread}

    @property
    def total(self) -> float | None:
        return None if self.all_unread else sum(each.total for each in self.bills)

    def rows(self) -> list[dict[str, object]]:
        topics = {name.topic for name in self.unread} | {deleted_label(name.topic) for name in self.unread_deleted}
        return [
            bill_row(each, is_remote_read=each.topic not in topics, is_local_read=each.topic not in self.unopened)
            for each in self.bills
        ]


def cost_report(manager: LogManager, now_ms: int, topics: Iterable[str] | None = None) -> CostReport:
    """Bill each topic (None: all) for a month. Changes nothing. Raises NotFound."""
    prices = configured_prices(manager.config)
    history = manager.store.history() if manager.store is not None else None
    selected = manager.topics.all() if topics is None else [manager.topics.get(name) for name in set(topics)]
    names = [each.name for each in selected]
    everything = [topic_facts(manager, each.name, prices, history, now_ms) for each in manager.topics.all()]
    deleted, unread = _deleted_facts(manager, prices)
    if topics is None:
        names += [each.topic for each in deleted]
    missing = unread_partitions(manager, names)
    opened = {each.name for each in manager.partitions.all()}
    found = {each.topic: each for each in bills(everything, prices, deleted)}
    return CostReport(
        bills=tuple(found[name] for name in sorted(names)),
        prices=prices,
        since_ms=history.since_ms if history is not None else None,
        rate_since_ms=history.rate_since_ms(now_ms) if history is not None else None,
        upto_ms=now_ms,
        unread=missing,
        unread_deleted=unread if topics is None else {},
        unopened=frozenset(name.topic for name in missing if name not in opened),
    )


def topic_facts(
    manager: LogManager, topic: str, prices: PriceTable, history: RequestHistory | None, now_ms: int
) -> TopicFacts:
    held = manager.partitions.all([topic])
    rows = {each.name: list(all_entries(each)) for each in held}
    local_bytes = both_bytes = 0
    for snapshot in manager.snapshots(now_ms, [topic]):
        for segment in snapshot.segments:
            local_bytes += segment.size_bytes
            if snapshot.is_committed(segment.base_offset, segment.next_offset):
                both_bytes += segment.size_bytes
    directory = topic_directory(topic, manager.topics.get(topic).topic_id)
    counts, period_ms = history.recent(directory, now_ms) if history is not None else (None, 0)
    return TopicFacts(
        topic=topic,
        usage=total_usage(usage_for(each, prices, rows[each.name]) for each in held),
        local_bytes=local_bytes,
        both_bytes=both_bytes,
        segments=sum(map(len, rows.values())),
        shared_bytes=sum(row.stored_bytes for each in rows.values() for row in each if is_in_other_topic(row.data_key)),
        requests=Counts(**asdict(counts)) if counts is not None else None,
        period_ms=period_ms,
    )


def deleted_label(topic: str) -> str:
    return f"{topic} (deleted)"


def _deleted_facts(manager: LogManager, prices: PriceTable) -> tuple[list[TopicFacts], dict[TopicPartition, LogError]]:
    usage: dict[str, list[StorageUsage]] = {}
    unread: dict[TopicPartition, LogError] = {}
    for each in manager.topics.deleted_partitions():
        topic = deleted_label(each.name.topic)
        if each.error is not None:
            unread[each.name] = each.error
            usage.setdefault(topic, [])
        elif each.manifest is not None:
            usage.setdefault(topic, []).append(usage_of_deleted(each.manifest, prices))
    return [TopicFacts(topic=name, usage=total_usage(parts)) for name, parts in usage.items()], unread


def log_entries(held: Partition) -> Iterator[SegmentEntry]:
    """Yield a log's segment entries, oldest first; none without a manifest."""
    manifest = held.manifest()
    if manifest is not None and held.metadata is not None:
        for page in manifest.pages:
            yield from held.metadata.page_entries(page)
        yield from manifest.segments


def all_entries(held: Partition, *, may_ask: bool = True) -> Iterator[SegmentEntry]:
    """Yield the segment entries of a log, then of its views; without `may_ask` no entry of a manifest page."""
    manifest = held.manifest()
    yield from log_entries(held) if may_ask or manifest is None else manifest.segments
    if manifest is not None:
        yield from manifest.view_entries


METERED = (
    *("puts", "gets", "lists", "bytes_in", "bytes_out"),
    *("data_puts", "data_gets", "data_bytes_in", "data_bytes_out"),
)


def bill_row(bill: TopicBill, *, is_remote_read: bool = True, is_local_read: bool = True) -> dict[str, object]:
    row: dict[str, object] = {
        "topic": bill.topic,
        "dollars_per_month": bill.total,
        **{f"{kind}_dollars": getattr(bill, kind) for kind in KINDS},
        "double_storage_dollars": bill.double,
        "idle_dollars": bill.idle,
        "segments": bill.segments,
        "remote_bytes": bill.data_bytes,
        "local_bytes": bill.local_bytes,
        "double_bytes": bill.both_bytes,
        "shared_bytes": bill.shared_bytes,
    }
    of_disk = {"disk_dollars", "local_bytes"}
    of_remote = row.keys() - of_disk - {"topic", "requests_dollars"}
    unread = (set() if is_local_read else of_disk) | (set() if is_remote_read else of_remote)
    return {
        **{name: None if name in unread else value for name, value in row.items()},
        **{f"{name}_per_month": round(getattr(bill.month_requests, name)) for name in METERED},
        "metered_months": bill.months,
    }
