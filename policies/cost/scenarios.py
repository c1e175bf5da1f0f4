"""The cost of other settings: each variant simulated, priced and compared with today. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise, product
from math import inf
from typing import Any

from policies.cost.bill import request_dollars
from policies.cost.prices import STANDARD, Prices, PriceTable
from policies.cost.simulation import Counts, Reads, Simulated, Workload, simulate
from policies.cost.storage_cost import (
    DAY_MS,
    DAYS_PER_MONTH,
    GIB,
    IN_STANDARD,
    Stored,
    break_even_reads,
    equal_object_bytes,
    intelligent_storage,
    monthly_storage,
)
from policies.rules import PartitionRules
from remote.segment_entry import PART_BYTES

KINDS = ("storage", "index", "waiting", "requests", "retrieval", "early_deletion", "disk")
VARIANTS_MAX = 2000
# Limits of the simulated window; a longer month is scaled from it.
SEGMENTS_PER_WINDOW, TICKS_PER_WINDOW = 1000, 20
_simulated = lru_cache(maxsize=2048)(simulate)  # the result is shared: callers must not modify it


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A topic as measured: `partitions` of one `workload` under `rules`."""

    topic: str
    partitions: int
    workload: Workload
    rules: PartitionRules
    storage_class: str = STANDARD  # of new segments
    read_share: float = 0.0  # of the stored bytes, in a month (1.0 = all of it once)
    zstd_share: float | None = None  # that compression in the bucket would leave, None if nothing was sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Settings to simulate; None leaves a setting as it is. Times in ms (-1 for no limit), sizes in bytes."""

    retention_ms: int | None = None
    local_retention_ms: int | None = None
    segment_bytes: int | None = None
    compression: str | None = None
    storage_class: str | None = None
    read_share: float | None = None

    @property
    def changes(self) -> dict[str, int | float | str]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioCost:
    """Dollars and requests a month under one variant. `double`: disk bytes that are also in the bucket."""

    variant: Scenario
    storage: float
    index: float
    waiting: float
    requests: float
    retrieval: float
    early_deletion: float
    disk: float
    double: float
    stored_bytes: float
    local_bytes: float
    objects: float
    counts: Counts

    @property
    def total(self) -> float:
        return sum(float(getattr(self, kind)) for kind in KINDS)

    @property
    def idle(self) -> float:
        """The monthly cost without any append or read, until retention expires the records."""
        return self.storage + self.index + self.waiting + self.disk


@dataclass(frozen=True, slots=True)
class BreakEven:
    what: str
    value: float
    limit: float | None
    unit: str
    verdict: str

    @property
    def known_value(self) -> float | None:
        """`value` for JSON, which has no infinity: None instead."""
        return None if self.value == inf else self.value


def changed(stream: Stream, variant: Scenario) -> Stream:
    """Return the stream under other settings; local retention never exceeds retention."""
    rules, workload = stream.rules, stream.workload
    times = {field: getattr(variant, field) for field in ("retention_ms", "local_retention_ms")}
    limits: dict[str, Any] = {field: None if ms < 0 else ms for field, ms in times.items() if ms is not None}
    rules = replace(rules, **limits)
    whole = rules.log_limits.ms
    if whole is not None and (rules.local_retention_ms is None or rules.local_retention_ms > whole):
        rules = replace(rules, local_retention_ms=whole)
    workload = replace(workload, segment_bytes=variant.segment_bytes or workload.segment_bytes)
    if variant.compression is not None:
        share = 1.0 if variant.compression == "none" else min(1.0, stream.zstd_share or 1.0)
        part_bytes = PART_BYTES if share < 1 else workload.part_bytes
        workload = replace(workload, stored_share=share, part_bytes=part_bytes)
    share = stream.read_share if variant.read_share is None else variant.read_share
    range_bytes = workload.reads.range_bytes if workload.reads is not None else Reads(every_ms=DAY_MS).range_bytes
    reads = Reads(every_ms=DAY_MS, share=share / DAYS_PER_MONTH, range_bytes=range_bytes) if share > 0 else None
    return replace(
        stream,
        rules=rules,
        workload=replace(workload, reads=reads),
        storage_class=variant.storage_class or stream.storage_class,
        read_share=share,
    )


def month_of(stream: Stream, prices: PriceTable) -> Simulated:
    """Return a month of one partition in its steady state, scaled from a shorter window."""
    workload = replace(stream.workload, reads=None)
    segment_ms = workload.batches_per_segment * workload.batch_ms
    ticks = max(TICKS_PER_WINDOW, -(-segment_ms * SEGMENTS_PER_WINDOW // workload.tick_ms))
    window_ms = min(DAYS_PER_MONTH * DAY_MS, ticks * workload.tick_ms)
    min_days = sorted({each.min_days for each in prices.classes.values()})
    found = _simulated(workload, stream.rules, window_ms=window_ms, min_days=tuple(min_days))
    factor = DAYS_PER_MONTH * DAY_MS / window_ms
    short = {days: each * factor for days, each in found.short_byte_days.items()}
    counts = found.counts.times(factor)
    if stream.workload.reads is not None:
        counts += _reads(found, stream)
    return replace(found, counts=counts, short_byte_days=short)


def _reads(month: Simulated, stream: Stream) -> Counts:
    reads = stream.workload.reads
    assert reads is not None
    segments = month.objects * stream.read_share
    ranges = segments * max(1.0, month.object_bytes / reads.range_bytes)
    small = month.small_bytes * stream.read_share
    return Counts(
        gets=2 * stream.read_share + segments + ranges,
        lists=2 * stream.read_share,
        data_gets=ranges,
        bytes_out=month.stored_bytes * stream.read_share + small,
        data_bytes_out=month.stored_bytes * stream.read_share,
    )


def cost_of(streams: Sequence[Stream], variant: Scenario, prices: PriceTable) -> ScenarioCost:
    months = [(stream, month_of(stream, prices)) for stream in (changed(each, variant) for each in streams)]
    standard = prices.of(STANDARD)

    def total(name: str) -> float:
        return sum(float(each.partitions * getattr(month, name)) for each, month in months)

    in_standard = sum(map(total, IN_STANDARD))
    in_standard += sum(_stored(each, month) for each, month in months if _is_standard(each, prices))
    per_byte = monthly_storage(in_standard, standard) / in_standard if in_standard else 0.0
    storage = early = requests = retrieval = 0.0
    for stream, month in months:
        of = prices.of(stream.storage_class)
        in_class = _stored(stream, month) * per_byte if of is standard else _class_storage(stream, month, of)
        storage += in_class + stream.partitions * month.small_bytes * per_byte
        short = month.short_byte_days.get(of.min_days, 0.0) * stream.partitions
        early += monthly_storage(1, of) * short / DAYS_PER_MONTH
        data = {stream.storage_class: Stored(objects=1, size_bytes=1)}
        sent, read = request_dollars(month.counts.times(stream.partitions), data, prices)
        requests, retrieval = requests + sent, retrieval + read
    disk = prices.disk_per_gb_month / GIB
    return ScenarioCost(
        variant=variant,
        storage=storage,
        index=total("index_bytes") * per_byte,
        waiting=total("waiting_bytes") * per_byte,
        requests=requests,
        retrieval=retrieval,
        early_deletion=early,
        disk=total("local_bytes") * disk,
        double=total("both_bytes") * disk,
        stored_bytes=total("stored_bytes"),
        local_bytes=total("local_bytes"),
        objects=total("objects"),
        counts=sum((month.counts.times(each.partitions) for each, month in months), Counts()),
    )


def variants(axes: Mapping[str, Iterable[int | float | str]]) -> list[Scenario]:
    """Return every combination of the given values, by fields of `Scenario`; at most VARIANTS_MAX."""
    names = list(axes)
    found = [Scenario(**dict(zip(names, each, strict=True))) for each in product(*axes.values())]  # type: ignore[arg-type]
    return found[:VARIANTS_MAX]


def sensitivities(
    streams: Sequence[Stream], axes: Mapping[str, Iterable[int | float | str]], prices: PriceTable
) -> list[tuple[Scenario, float]]:
    """Return the best single change of each axis but `read_share`, and its monthly saving, best first."""
    today = cost_of(streams, Scenario(), prices).total
    best: list[tuple[Scenario, float]] = []
    for name, values in axes.items():
        single = [Scenario(**{name: value}) for value in values if name != "read_share"]  # type: ignore[arg-type]
        found = [(each, today - cost_of(streams, each, prices).total) for each in single]
        best += [max(found, key=lambda pair: pair[1])] if found else []
    return sorted(best, key=lambda pair: -pair[1])


def break_evens(streams: Sequence[Stream], prices: PriceTable) -> list[BreakEven]:
    months = [(stream, month_of(stream, prices)) for stream in streams]
    stored = sum(_stored(each, month) for each, month in months)
    objects = sum(each.partitions * month.objects for each, month in months)
    read = sum(each.read_share * _stored(each, month) for each, month in months)
    share = read / stored if stored else 0.0
    size = stored / objects if objects else 0.0
    retentions = [each.rules.log_limits.ms for each in streams]
    in_standard = sum(_stored(each, month) for each, month in months if _is_standard(each, prices))
    days = min((each / DAY_MS for each in retentions if each is not None), default=inf)
    found = []
    for of in (each for each in prices.classes.values() if each.is_readable and each.retrieval_per_gb):
        if of.storage_bands[0][1] < prices.of(STANDARD).storage_bands[0][1]:
            found += _class_lines(of, share, size, days, prices, in_standard)
    limit = equal_object_bytes(prices.of(STANDARD))
    verdict = "storage dominates" if size > limit else "requests dominate"
    what = "object size where a PUT costs as much as a month of storage"
    return [*found, BreakEven(what, size, limit, "bytes", verdict)]


def _class_lines(
    of: Prices, share: float, size: float, days: float, prices: PriceTable, in_standard: float
) -> list[BreakEven]:
    reads = break_even_reads(of, prices.of(STANDARD), stored_bytes=in_standard)
    name = of.storage_class
    verdict = "pays" if reads is None or share < reads else "does not pay"
    lines = [BreakEven(f"{name}: share of the data read in a month", share, reads, "share", verdict)]
    if of.min_days >= 1:
        verdict = "stored long enough" if days >= of.min_days else "deleted too early"
        lines.append(BreakEven(f"{name}: days that data is stored", days, of.min_days, "days", verdict))
    if of.min_bytes:
        verdict = "large enough" if size >= of.min_bytes else "billed for more than its size"
        lines.append(BreakEven(f"{name}: object size", size, float(of.min_bytes), "bytes", verdict))
    return lines


def _stored(stream: Stream, month: Simulated) -> float:
    return stream.partitions * month.stored_bytes


def _is_standard(stream: Stream, prices: PriceTable) -> bool:
    return prices.of(stream.storage_class) is prices.of(STANDARD)


def _class_storage(stream: Stream, month: Simulated, of: Prices) -> float:
    if of.later_bands:
        return _intelligent(stream, month, of)
    billed = max(month.object_bytes, float(of.min_bytes)) + of.overhead_bytes
    return monthly_storage(billed * stream.partitions * month.objects, of)


def _intelligent(stream: Stream, month: Simulated, of: Prices) -> float:
    """Dollars a month, for evenly spread ages. Read bytes and small segments stay in the first tier."""
    retained_days = _retention_days(stream)
    stored, objects = _stored(stream, month), stream.partitions * month.objects
    if month.object_bytes < of.monitored_min_bytes:
        return intelligent_storage(stored, objects, 0, of)
    stays = min(1.0, stream.read_share)
    edges = [0.0, *(days for days, _ in of.later_bands), max(retained_days, 1.0)]
    dollars = intelligent_storage(stored * stays, 0, 0, of) + objects * of.monitoring_per_1000 / 1000
    for low, high in pairwise(edges):
        part = max(0.0, min(high, retained_days) - min(low, retained_days)) / max(retained_days, 1e-9)
        dollars += intelligent_storage(stored * (1 - stays) * part, 0, low, of)
    return dollars


def _retention_days(stream: Stream) -> float:
    """Return the retention of a segment in days; of a log without limits, a year."""
    limits, workload = stream.rules.log_limits, stream.workload
    days = [365.0 if limits.ms is None and limits.bytes is None else inf]
    if limits.ms is not None:
        days.append(limits.ms / DAY_MS)
    if limits.bytes is not None:
        share = workload.compacted_share if stream.rules.cleanup_compact else 1.0
        days.append(limits.bytes / (workload.batch_bytes * share) * workload.batch_ms / DAY_MS)
    return min(days)
