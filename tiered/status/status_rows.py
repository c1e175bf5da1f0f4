"""A status report as flat rows, shared by JSON, CSV and the web page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from local.names import TopicPartition
from tiered.config.units import counted, format_bytes, format_ms
from tiered.node.problems import UnreadPartitions, group_line, unread_rows
from tiered.partition.partition_status import PartitionStatus
from tiered.status.sync_status import TierSync

if TYPE_CHECKING:
    from local.names import TopicPartition
    from policies.deferrals import Code, Deferral
    from tiered.node.topic_registry import Topic
    from tiered.status.status_report import StatusReport

Row = dict[str, object]
_OF_DISK = ("local_segments", "local_bytes", "at_risk_bytes")
_OF_BUCKET = ("remote_segments", "remote_bytes", "lag_segments", "lag_bytes", "overdue_bytes")
_SUMS = (*_OF_DISK, *_OF_BUCKET)
_PAUSED = ("is_paused", "paused_since_ms", "pause_reason")
_FIGURES = ("is_tiered", "offsets", *_SUMS, "lag_since_ms", "dollars_per_month", *_PAUSED)
_OFFSETS = (
    "log_start_offset",
    "local_start_offset",
    "next_offset",
    "remote_next_offset",
    "cleaner_offset",
    "unlinked_bytes",
)
_NOT_YET = {"copy": "not copied yet", "clean": "not cleaned yet", "drop": "not dropped yet"}


class StatusPrices(msgspec.Struct, forbid_unknown_fields=True):
    """The price table of the dollars."""

    as_of: str
    region: str
    storage_class: str


class ProblemFacts(msgspec.Struct, forbid_unknown_fields=True):
    """A problem; `rounds` of the manager at work met it, 0 for a problem that was seen just now."""

    where: str
    topic: str | None
    partition: int | None
    kind: str
    what: str
    since_ms: int | None
    rounds: int
    next: str


class StatusFacts(msgspec.Struct, forbid_unknown_fields=True):
    """Prices, activity, deferrals and problems of a report.

    `deleted_topics` have no figures; ``tiered cost show`` has the cost of their remaining objects. `sync` is null if it
    was not requested, because it costs requests.
    """

    prices: StatusPrices | None
    now_ms: int
    is_at_work: bool
    last_round_ms: int | None
    deleted_topics: list[str]
    unread: list[UnreadPartitions]
    deferrals: list[DeferredSegment]
    sync: list[TierSync] | None
    stuck: list[ProblemFacts]


def topic_row(report: StatusReport, topic: Topic) -> Row:
    """Return the sums over a topic's partitions that have figures."""
    names, found, problems = topic.partitions(), report.partitions, report.errors
    return {
        **_figures(report, [found[name] for name in names if name in found], len(names)),
        "topic": topic.name,
        "partitions": topic.partition_count,
        "problems": [str(problems[name]) for name in names if name in problems],
    }


def partition_row(report: StatusReport, name: TopicPartition) -> Row:
    """Return the row of one partition; without figures if it did not open."""
    status, problems = report.partitions.get(name), report.errors
    figures = _figures(report, [status] if status is not None else [], 1)
    del figures["offsets"]  # the row has first and next offset instead
    unknown = ("remote_next_offset", "unlinked_bytes") if status is not None and is_unseen(report, status) else ()
    return {
        **figures,
        **{field: getattr(status, field, None) for field in _OFFSETS},
        **dict.fromkeys(unknown),
        "topic": name.topic,
        "partition": name.partition,
        "problems": [str(problems[name])] if name in problems else [],
    }


def status_facts(report: StatusReport) -> StatusFacts:
    """Return the facts of the report other than rows."""
    prices = report.prices.of(None) if report.prices is not None else None
    return StatusFacts(
        prices=StatusPrices(prices.as_of, prices.region, prices.storage_class) if prices is not None else None,
        now_ms=report.now_ms,
        is_at_work=report.is_at_work,
        last_round_ms=report.work.seen_ms if report.work is not None else None,
        deleted_topics=list(report.deleted),
        unread=unread_rows(report.unread),
        deferrals=deferral_rows(report.deferrals),
        sync=None,
        stuck=[
            ProblemFacts(
                where=each.where,
                topic=each.partition.topic if each.partition is not None else None,
                partition=each.partition.partition if each.partition is not None else None,
                kind=each.kind,
                what=each.what,
                since_ms=each.since_ms,
                rounds=each.count,
                next=each.next_step,
            )
            for each in report.problems
        ],
    )


def _figures(report: StatusReport, some: Sequence[PartitionStatus], count: int) -> dict[str, object]:
    """Return the sums of some partitions; all None if there is none.

    A sum is None if one of `count` partitions lacks the figure. A partition that did not open lacks all figures. A
    partition with an unread manifest lacks the figures of the remote tier. Its bytes at risk are the upper bound: all
    bytes on its disk.
    """
    if not some:
        return dict.fromkeys(_FIGURES)
    is_open = len(some) == count
    is_seen = is_open and not any(is_unseen(report, each) for each in some)
    kept_of = [report.kept.get(each.partition) for each in some]
    is_priced = is_seen and report.prices is not None
    sums: dict[str, int | None] = {name: sum(getattr(each, name) for each in some) for name in _SUMS}
    sums |= dict.fromkeys(() if is_open else _OF_DISK)
    sums |= dict.fromkeys(() if is_seen else _OF_BUCKET)
    return {
        "is_tiered": some[0].is_tiered,
        # Offsets, not records: offsets that compaction and gaps removed are counted too.
        "offsets": sum(each.next_offset - each.log_start_offset for each in some) if is_open else None,
        **sums,
        "lag_since_ms": min((each.lag_since_ms for each in some if each.lag_since_ms is not None), default=None)
        if is_seen
        else None,
        "is_paused": any(each.paused is not None for each in some),
        "paused_since_ms": min(
            (each.paused_since_ms for each in some if each.paused_since_ms is not None), default=None
        ),
        "pause_reason": next((each.paused.reason for each in some if each.paused is not None), None),
        "dollars_per_month": round(sum(kept.total for kept in kept_of if kept is not None), 6) if is_priced else None,
    }


def is_unseen(report: StatusReport, status: PartitionStatus) -> bool:
    """Return whether a partition's manifest was never read here because of a problem."""
    name = status.partition
    return status.is_tiered and name in report.errors and name not in report.seen


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferralCause:
    """Deferrals of one action for one reason, over partitions. `until_ms` is the earliest known end."""

    action: str
    code: Code
    why: str
    partitions: tuple[str, ...]
    segments: int
    size_bytes: int
    until_ms: int | None

    @property
    def words(self) -> str:
        """Words such as ``not copied yet``."""
        return _NOT_YET[self.action]


class DeferredSegment(msgspec.Struct, forbid_unknown_fields=True):
    """A segment that is not copied, cleaned or dropped yet. `code` is stable; `until_ms` null: no time is known."""

    action: str
    code: str
    topic: str
    partition: int
    base_offset: int
    next_offset: int
    size_bytes: int
    why: str
    until_ms: int | None


def deferral_rows(deferrals: Mapping[TopicPartition, Sequence[Deferral]]) -> list[DeferredSegment]:
    """Return a row for each deferred segment, in the order of partitions."""
    return [
        DeferredSegment(
            action=each.action.value,
            code=each.code.value,
            topic=name.topic,
            partition=name.partition,
            base_offset=each.base_offset,
            next_offset=each.next_offset,
            size_bytes=each.size_bytes,
            why=each.why,
            until_ms=each.until_ms,
        )
        for name, found in sorted(deferrals.items())
        for each in found
    ]


def causes(
    deferrals: Mapping[TopicPartition, Sequence[Deferral]], *, without: Iterable[Code] = ()
) -> list[DeferralCause]:
    """Group deferrals by action and reason: 200 partitions with one reason are one cause."""
    left_out = frozenset(without)
    found: dict[tuple[str, Code, str], list[tuple[str, Deferral]]] = {}
    for name, some in sorted(deferrals.items()):
        for each in some:
            if each.code not in left_out:
                found.setdefault((each.action.value, each.code, each.why), []).append((str(name), each))
    return [
        DeferralCause(
            action=action,
            code=code,
            why=why,
            partitions=tuple(dict.fromkeys(name for name, _ in some)),
            segments=len(some),
            size_bytes=sum(each.size_bytes for _, each in some),
            until_ms=min((each.until_ms for _, each in some if each.until_ms is not None), default=None),
        )
        for (action, code, why), some in found.items()
    ]


def deferral_lines(deferrals: Mapping[TopicPartition, Sequence[Deferral]], now_ms: int) -> list[str]:
    """Format a line for each reason; pauses and problems have their own lines."""
    from policies.deferrals import Code

    return [cause_line(each, now_ms) for each in causes(deferrals, without=(Code.PAUSED, Code.REMOTE_UNKNOWN))]


def cause_line(cause: DeferralCause, now_ms: int) -> str:
    """Format ``orders/0: 3 segments (3.00 MiB) not copied yet: a transaction is open from offset 7``."""
    what = f"{counted(cause.segments, 'segment')} ({format_bytes(cause.size_bytes)}) {cause.words}: {cause.why}"
    return group_line(cause.partitions, what + (f"; {ends(cause, now_ms)}" if cause.until_ms is not None else ""))


def ends(cause: DeferralCause, now_ms: int) -> str:
    """Return when the first deferral ends by itself; empty if unknown."""
    if cause.until_ms is None:
        return ""
    left_ms = max(0, cause.until_ms - now_ms)
    return f"ends in {format_ms(left_ms if left_ms < 1000 else left_ms // 1000 * 1000)}"
