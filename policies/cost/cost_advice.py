"""Changes that would reduce the bill, and their one-time cost. Pure; changes nothing.

Never proposed: a shorter retention, a class of a single zone, a class that needs a restore before reads. A *move* is of
segments that left the disk, of the class's minimum size and more, with a remaining retention above its minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from policies.cost.prices import STANDARD, Prices, PriceTable
from policies.cost.scenarios import Scenario, Stream, cost_of
from policies.cost.simulation import RANGE_BYTES
from policies.cost.storage_cost import (
    DAY_MS,
    DAYS_PER_MONTH,
    GIB,
    break_even_reads,
    early_deletion,
    intelligent_storage,
    monthly_storage,
    request_cost,
    retrieval_cost,
    upload_requests,
)
from policies.formatting import counted
from remote.segment_entry import PART_BYTES

MOVES_TO = ("STANDARD_IA", "GLACIER_IR")
SEGMENT_BYTES_MAX = 1 << 30
LOCAL_CHOICES_MS = (DAY_MS, 6 * DAY_MS // 24)
ZSTD_PAYS_BELOW = 0.9
PAYBACK_MONTHS_MAX = 12.0
# The settings that may be proposed: none of them deletes a record that is in no other place.
SETTINGS = ("segment.bytes", "remote.compression", "local.retention.ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSegment:
    """A segment in the bucket: its age, the time to its expiry (None: never), its newest record."""

    stored_bytes: int
    storage_class: str
    lived_ms: int
    remaining_ms: int | None
    is_settled: bool
    newest_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A move of settled segments of `min_bytes` or more, newest record in ``[since_ms, until_ms)``."""

    to: str
    min_bytes: int
    since_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAdvice:
    """One change. Dollars are of the topic for a `setting` (key, value), of the segments for a `move`."""

    topic: str
    change: str
    now_dollars: float
    then_dollars: float
    once_dollars: float
    reason: str
    command: str
    setting: tuple[str, str] | None = None
    move: Move | None = None
    segments: int = 0
    size_bytes: int = 0

    @property
    def saved_dollars(self) -> float:
        return self.now_dollars - self.then_dollars

    @property
    def payback_months(self) -> float:
        return self.once_dollars / self.saved_dollars if self.saved_dollars > 0 else float("inf")


def advise_costs(
    streams: Sequence[Stream],
    segments: Mapping[str, Sequence[StoredSegment]],
    prices: PriceTable,
    *,
    least_dollars: float = 0.01,
) -> list[CostAdvice]:
    """Return advice that saves `least_dollars` a month or more and pays back within a year, best first."""
    found: list[CostAdvice] = []
    stored = _by_class(each for some in segments.values() for each in some)
    for stream in streams:
        found += _settings(stream, prices)
        own = segments.get(stream.topic, ())
        moves = [move for to in MOVES_TO if (move := _move(stream, own, prices.of(to), prices, stored)) is not None]
        found += [max(moves, key=lambda each: each.saved_dollars)] if moves else []
    worth = [
        each for each in found if each.saved_dollars >= least_dollars and each.payback_months <= PAYBACK_MONTHS_MAX
    ]
    return sorted(worth, key=lambda each: -each.saved_dollars)


def _settings(stream: Stream, prices: PriceTable) -> list[CostAdvice]:
    today = cost_of([stream], Scenario(), prices).total

    def setting(variant: Scenario, key: str, value: str, reason: str) -> CostAdvice:
        return CostAdvice(
            topic=stream.topic,
            change=f"{key}={value}",
            now_dollars=today,
            then_dollars=cost_of([stream], variant, prices).total,
            once_dollars=0.0,
            reason=reason,
            command=f"tiered topic alter {stream.topic} -X {key}={value}",
            setting=(key, value),
        )

    found = []
    larger, share = stream.workload.segment_bytes * 4, stream.zstd_share
    if larger <= SEGMENT_BYTES_MAX:
        why = f"the cost of requests is per segment, and segments have at most {larger >> 12} KiB"
        found.append(setting(Scenario(segment_bytes=larger), "segment.bytes", str(larger), why))
    if share is not None and share < ZSTD_PAYS_BELOW and stream.workload.stored_share > share:
        why = f"samples compress to {share:.0%} of their size"
        found.append(setting(Scenario(compression="zstd"), "remote.compression", "zstd", why))
    local_ms, hour_ms = stream.rules.local_limits.ms, DAY_MS // 24
    for choice in LOCAL_CHOICES_MS:
        if local_ms is None or choice < local_ms:
            why = "the disk also keeps the data that is in the bucket"
            value = f"{choice // hour_ms}h"
            found.append(setting(Scenario(local_retention_ms=choice), "local.retention.ms", value, why))
    return found


def _by_class(segments: Iterable[StoredSegment]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in segments:
        found[each.storage_class] = found.get(each.storage_class, 0) + each.stored_bytes
    return found


def _move(
    stream: Stream, segments: Sequence[StoredSegment], to: Prices, prices: PriceTable, stored: Mapping[str, int]
) -> CostAdvice | None:
    """Return the move of movable segments to `to`; None if it does not pay. `stored`: all bytes by class."""
    movable = _movable(segments, to)
    moved = _by_class(movable)
    now = sum(_leaving(movable, name, stored[name], prices.of(name)) for name in moved)
    now += sum(_use(each, prices.of(each.storage_class), stream) for each in movable)
    then = monthly_storage(sum(moved.values()), to) + sum(_use(each, to, stream) for each in movable)
    once = sum(_once(each, prices.of(each.storage_class), to, prices.of(STANDARD)) for each in movable)
    if not movable or (now - then) * _months_left(movable) <= once:
        return None
    limit = break_even_reads(to, prices.of(STANDARD), stored_bytes=stored.get(STANDARD, 0))
    times = [each.newest_ms for each in movable]
    move = Move(to=to.storage_class, min_bytes=to.min_bytes, since_ms=min(times), until_ms=max(times) + 1)
    reads = f"{stream.read_share:.2f} of it is read in a month, break-even {limit:.2f}" if limit is not None else ""
    size = f"--min-bytes {move.min_bytes} " if move.min_bytes else ""
    options = f"--storage-class {to.storage_class} {size}--since {move.since_ms} --until {move.until_ms}"
    return CostAdvice(
        topic=stream.topic,
        change=f"{counted(len(movable), 'segment')} to {to.storage_class}",
        now_dollars=now,
        then_dollars=then,
        once_dollars=once,
        reason=f"closed, kept longer than {to.min_days:g} days; {reads}",
        command=f"tiered rewrite recode {stream.topic} {options}",
        move=move,
        segments=len(movable),
        size_bytes=sum(moved.values()),
    )


def _leaving(segments: Sequence[StoredSegment], name: str, stored_bytes: int, of: Prices) -> float:
    leaving = [each for each in segments if each.storage_class == name]
    if of.later_bands:
        return sum(intelligent_storage(each.stored_bytes, 1, each.lived_ms / DAY_MS, of) for each in leaving)
    size = sum(each.stored_bytes for each in leaving)
    return monthly_storage(stored_bytes, of) - monthly_storage(stored_bytes - size, of)


def _months_left(segments: Sequence[StoredSegment]) -> float:
    most_ms = PAYBACK_MONTHS_MAX * DAYS_PER_MONTH * DAY_MS
    remaining = [(most_ms if each.remaining_ms is None else each.remaining_ms, each.stored_bytes) for each in segments]
    byte_ms = sum(min(most_ms, ms) * size_bytes for ms, size_bytes in remaining)
    return byte_ms / DAY_MS / DAYS_PER_MONTH / sum(size_bytes for _, size_bytes in remaining)


def _movable(segments: Sequence[StoredSegment], to: Prices) -> list[StoredSegment]:
    large = [each for each in segments if each.storage_class != to.storage_class and each.stored_bytes >= to.min_bytes]
    min_ms = to.min_days * DAY_MS
    fit = [each for each in large if each.remaining_ms is None or each.remaining_ms >= min_ms]
    upto = min((each.newest_ms for each in fit if not each.is_settled), default=None)
    return [each for each in fit if each.is_settled and (upto is None or each.newest_ms < upto)]


def _use(segment: StoredSegment, of: Prices, stream: Stream) -> float:
    reads = stream.workload.reads
    range_bytes = RANGE_BYTES if reads is None else reads.range_bytes
    gets = stream.read_share * max(1.0, segment.stored_bytes / range_bytes)
    overhead = of.overhead_bytes / GIB * of.storage_bands[0][1]
    read = retrieval_cost(segment.stored_bytes * stream.read_share, of) + request_cost(gets=gets, prices=of)
    return overhead + read


def _once(segment: StoredSegment, before: Prices, to: Prices, small: Prices) -> float:
    read = retrieval_cost(segment.stored_bytes, before)
    read += request_cost(gets=ceil(segment.stored_bytes / RANGE_BYTES), prices=before)
    written = request_cost(puts=upload_requests(max(1, segment.stored_bytes), PART_BYTES), gets=1, prices=to)
    written += segment.stored_bytes / GIB * to.write_per_gb + request_cost(puts=1, gets=2, prices=small)
    return read + written + early_deletion(segment.stored_bytes, segment.lived_ms / DAY_MS, before)
