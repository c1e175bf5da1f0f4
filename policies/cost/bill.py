"""What topics cost a month, by kind, from what they hold and what was sent for them. Pure, in US dollars.

| kind | what |
|---|---|
| storage | segments in the bucket, by their classes; indexes and views with them |
| index | heads, and pages of rows |
| waiting | objects that left the index and wait for their deletion |
| requests | PUT, COPY, POST, LIST and GET as metered, scaled to a month |
| retrieval | bytes read from classes that charge for it, as metered |
| disk | the local segments |

`double` is the part of `disk` whose bytes are in the bucket as well: paid twice. `idle` is what a month without any
append or read costs: everything but requests and retrieval, since an idle partition sends none.

What is kept is priced as everywhere (`policies.cost.storage_usage`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from policies.cost.prices import STANDARD, PriceTable
from policies.cost.storage_cost import (
    DAY_MS,
    DAYS_PER_MONTH,
    GIB,
    billed_bytes,
    intelligent_storage,
    monthly_storage,
    request_cost,
)
from policies.cost.storage_usage import KeepingDollars, Lying, Stored, beside

KINDS = ("storage", "index", "waiting", "requests", "retrieval", "disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests and bytes of some period: `lists` in the PUT class, `heads` in `gets`, as
    `remote.store.middleware.metered_store` counts.

    `data_*` are those of segments' data, which are priced by the class of the topic's segments.
    """

    puts: float = 0
    gets: float = 0
    lists: float = 0
    bytes_in: float = 0
    bytes_out: float = 0
    data_puts: float = 0
    data_gets: float = 0
    data_bytes_in: float = 0
    data_bytes_out: float = 0

    def scaled(self, factor: float) -> Requests:
        return Requests(**{each.name: getattr(self, each.name) * factor for each in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """What a topic holds now and what was sent for it in `period_ms`.

    `both_bytes` of `local_bytes` are in the bucket too. `requests` None where nothing was metered. `shared_bytes` of
    what lies there are objects that a fork has in common with its source.
    """

    topic: str
    lying: Lying = field(default_factory=Lying)
    local_bytes: int = 0
    both_bytes: int = 0
    segments: int = 0
    shared_bytes: int = 0
    requests: Requests | None = None
    period_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBill:
    """Dollars a month, see the module text. `months` is how much of a month the requests were metered for."""

    topic: str
    storage: float
    index: float
    waiting: float
    requests: float
    retrieval: float
    disk: float
    double: float
    months: float
    data_bytes: int
    local_bytes: int
    both_bytes: int
    segments: int
    shared_bytes: int
    month_requests: Requests

    @property
    def total(self) -> float:
        return sum(float(getattr(self, kind)) for kind in KINDS)

    @property
    def idle(self) -> float:
        return self.storage + self.index + self.waiting + self.disk


def bills(facts: Sequence[TopicFacts], prices: PriceTable, deleted: Sequence[TopicFacts] = ()) -> list[TopicBill]:
    """A bill for each topic, in the order given; their sum is the bucket's.

    Those `deleted` come last, and are billed what the bucket costs more for what it still has of them: the bills of
    the others do not hang on what nobody but this one asks for.
    """
    kept, left = beside([each.lying for each in facts], [each.lying for each in deleted], prices)
    everything = zip([*facts, *deleted], [*kept, *left], strict=True)
    return [_bill(each, kept_for, prices) for each, kept_for in everything]


def _bill(of: TopicFacts, kept: KeepingDollars, prices: PriceTable) -> TopicBill:
    month = of.requests.scaled(_to_month(of.period_ms)) if of.requests is not None else Requests()
    requests, retrieval = request_dollars(month, of.lying.data, prices)
    disk = prices.disk_per_gb_month / GIB
    return TopicBill(
        topic=of.topic,
        storage=kept.storage,
        index=kept.index,
        waiting=kept.waiting,
        requests=requests,
        retrieval=retrieval,
        disk=of.local_bytes * disk,
        double=of.both_bytes * disk,
        months=of.period_ms / DAY_MS / DAYS_PER_MONTH,
        data_bytes=sum(each.size_bytes for each in of.lying.data.values()),
        local_bytes=of.local_bytes,
        both_bytes=of.both_bytes,
        segments=of.segments,
        shared_bytes=of.shared_bytes,
        month_requests=month,
    )


def request_dollars(month: Requests, data: Mapping[str, Stored], prices: PriceTable) -> tuple[float, float]:
    """Dollars of the requests and of retrieval; those of data by the classes it lies in, by their share of bytes."""
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


def _to_month(period_ms: int) -> float:
    """From the metered period to a month. Less than a day is taken as a day: half an hour foretells nothing."""
    return DAYS_PER_MONTH * DAY_MS / max(period_ms, DAY_MS)


def moved(stored: Stored, to: str, prices: PriceTable) -> float:
    """Dollars a month that these objects would cost in another class, by themselves."""
    of = prices.of(to)
    billed = stored.billed(of.min_bytes) + of.overhead_bytes * stored.objects
    if of.later_bands:
        return intelligent_storage(billed_bytes(stored.size_bytes, stored.objects, of), stored.objects, 0, of)
    return monthly_storage(billed, of)
