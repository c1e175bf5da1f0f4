"""The monthly bill of topics by kind, from stored bytes and metered requests. Pure, in US dollars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policies.cost.prices import STANDARD, PriceTable
from policies.cost.storage_cost import (
    DAY_MS,
    DAYS_PER_MONTH,
    GIB,
    StorageDollars,
    StorageUsage,
    Stored,
    dollars_added,
    request_cost,
)
from policies.cost.workload import Counts

KINDS = ("storage", "index", "waiting", "requests", "retrieval", "disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic's bytes now, and its requests in `period_ms`."""

    topic: str
    usage: StorageUsage = field(default_factory=StorageUsage)
    local_bytes: int = 0
    both_bytes: int = 0  # the part of `local_bytes` that is in the bucket too
    segments: int = 0
    shared_bytes: int = 0  # the part of `usage` that a fork shares with its source
    requests: Counts | None = None  # None: not metered
    period_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBill:
    """Dollars a month by kind."""

    topic: str
    storage: float  # segments in the bucket, by storage class; indexes and views with them
    index: float  # manifests and manifest pages
    waiting: float  # pending deletes
    requests: float  # PUT, COPY, POST, LIST and GET as metered, scaled to a month
    retrieval: float  # bytes read from classes that charge for it, as metered
    disk: float  # the local segments
    double: float  # the part of `disk` whose bytes are in the bucket too
    months: float  # of the metered period
    data_bytes: int
    local_bytes: int
    both_bytes: int
    segments: int
    shared_bytes: int
    month_requests: Counts

    @property
    def total(self) -> float:
        return sum(float(getattr(self, kind)) for kind in KINDS)

    @property
    def idle(self) -> float:
        """A month without any append or read."""
        return self.storage + self.index + self.waiting + self.disk


def bills(facts: Sequence[TopicFacts], prices: PriceTable, deleted: Sequence[TopicFacts] = ()) -> list[TopicBill]:
    """Return a bill for each topic in the given order; their sum is the bill of the bucket.

    Bills of `deleted` topics come last: the amount by which the topic's remaining objects raise the bill.
    """
    present, added = dollars_added([each.usage for each in facts], [each.usage for each in deleted], prices)
    priced = zip([*facts, *deleted], [*present, *added], strict=True)
    return [_bill(each, dollars, prices) for each, dollars in priced]


def _bill(of: TopicFacts, stored: StorageDollars, prices: PriceTable) -> TopicBill:
    to_month = DAYS_PER_MONTH * DAY_MS / max(of.period_ms, DAY_MS)
    month = of.requests.times(to_month) if of.requests is not None else Counts()
    requests, retrieval = request_dollars(month, of.usage.data, prices)
    disk = prices.disk_per_gb_month / GIB
    return TopicBill(
        topic=of.topic,
        storage=stored.storage,
        index=stored.index,
        waiting=stored.waiting,
        requests=requests,
        retrieval=retrieval,
        disk=of.local_bytes * disk,
        double=of.both_bytes * disk,
        months=of.period_ms / DAY_MS / DAYS_PER_MONTH,
        data_bytes=sum(each.size_bytes for each in of.usage.data.values()),
        local_bytes=of.local_bytes,
        both_bytes=of.both_bytes,
        segments=of.segments,
        shared_bytes=of.shared_bytes,
        month_requests=month,
    )


def request_dollars(month: Counts, data: Mapping[str, Stored], prices: PriceTable) -> tuple[float, float]:
    """Return the dollars of (requests, retrieval). Data requests are split among classes by stored bytes."""
    small = prices.of(STANDARD)
    dollars = request_cost(
        puts=month.puts - month.data_puts, gets=month.gets - month.data_gets, lists=month.lists, prices=small
    )
    total = sum(each.size_bytes for each in data.values())
    shares = {name: each.size_bytes / total for name, each in data.items()} if total else {STANDARD: 1.0}
    retrieval = 0.0
    for name, share in shares.items():
        of = prices.of(name)
        dollars += share * request_cost(puts=month.data_puts, gets=month.data_gets, prices=of)
        retrieval += share * month.data_bytes_out / GIB * of.retrieval_per_gb
        dollars += share * month.data_bytes_in / GIB * of.write_per_gb
    return dollars, retrieval
