"""Status of a node: figures of its partitions and problems with next steps; also as flat rows.

A read-only manager finds the problems of this moment; the report of the running manager (`tiered.node.problems`) has
the start of each, and problems that only a writer meets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from local.errors import ErrorCode, LogError
from local.names import TopicPartition
from local.storage import DiskStorage, Storage
from policies.copy_lag import uncopied
from policies.cost.storage_cost import StorageDollars, StorageUsage, storage_dollars, usage_of
from remote.manifest.manifest import size_of
from tiered.config.units import counted, format_bytes, format_lasted, format_ms
from tiered.node.problems import (
    Problem,
    ReportedProblem,
    UnreadPartitions,
    WorkReport,
    directory_holder,
    flat,
    group_line,
    lock_holder,
    next_step,
    problem_of,
    read_report,
    step_of,
    unread_rows,
)
from tiered.partition.partition_status import PartitionStatus, partition_status
from tiered.status.sync_status import TierSync

if TYPE_CHECKING:
    from policies.cost.prices import PriceTable
    from policies.decisions import Code, Deferral
    from policies.snapshot import PartitionFigures, PartitionSnapshot
    from remote.segment_entry import SegmentEntry
    from tiered.manager.manager import LogManager
    from tiered.node.topic_registry import Topic
    from tiered.partition.partition import Partition

WORK_OVERDUE_MS = 30 * 60_000
_BEGIN_WORK = "start tiered run: no manager runs on this directory"
_SET_CLOCK = "set the clock; if the new time is right, restart the manager with -X clock.jump.hold.ms=0"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """Figures and problems of a node. `partitions` are the opened ones; `errors` may be of any partition.

    `prices`: None if their file cannot be read; then `storage`, the price of the remote storage, is empty. `work`: last
    report of a running manager. `holder`: process that holds a log directory, None if unknown. `unread`: partitions
    with an unreadable tier, whose figures are None in the rows. `deleted`: deleted topics that may have objects in the
    bucket; empty if topics were selected. `deferrals`: why closed segments are not copied yet.
    """

    now_ms: int
    topics: tuple[Topic, ...]
    partitions: Mapping[TopicPartition, PartitionStatus]
    errors: Mapping[TopicPartition, LogError]
    problems: tuple[Problem, ...]
    prices: PriceTable | None
    work: WorkReport | None
    unread: Mapping[TopicPartition, LogError]
    storage: Mapping[TopicPartition, StorageDollars]
    holder: int | None = None
    deleted: tuple[str, ...] = ()
    deferrals: Mapping[TopicPartition, Sequence[Deferral]] = field(default_factory=dict)

    @property
    def is_healthy(self) -> bool:
        return not self.problems

    @property
    def is_at_work(self) -> bool:
        return self.is_reported or self.holder is not None

    @property
    def is_reported(self) -> bool:
        return self.work is not None and self.work.is_at_work(self.now_ms)

    @property
    def silent_holder(self) -> str | None:
        if self.holder is None or self.is_reported:
            return None
        return holder_line(self.holder, self.work, self.now_ms)


def status_report(
    manager: LogManager,
    now_ms: int,
    topics: Iterable[str] | None = None,
    *,
    stuck_after_ms: int = WORK_OVERDUE_MS,
    storage: Storage | None = None,
    may_ask: bool = True,
    holder_of: Callable[[str], int | None] = lock_holder,
) -> StatusReport:
    """Report on some topics (None: all). Changes nothing. Raises NotFound for an unknown topic.

    Without `may_ask` no request is sent. `holder_of` returns the process that holds a lock file.
    """
    from tiered.config.price_file import prices_or_none

    prices = prices_or_none(manager.config)
    names = None if topics is None else sorted(set(topics))
    selected = manager.topics.all() if names is None else [manager.topics.get(name) for name in names]
    figures = manager.partitions.figures(now_ms, manager.partitions.all(names), records_problems=may_ask)
    found = {each.partition: partition_status(each) for each in figures}
    errors = {name: error for name, error in manager.problems.items() if names is None or name.topic in names}
    unseen = {each.name for each in manager.partitions.all(names) if is_unseen(manager, each)}
    disk = storage or DiskStorage()
    roots = [root for _, root in manager.directories.places()]  # not those of a reload, used from the next start
    work = read_report([(disk, root) for root in roots])
    holder = directory_holder(roots, holder_of)
    is_at_work = holder is not None or (work is not None and work.is_at_work(now_ms))
    reported = work.troubles if work is not None else ()
    known = {each.name: each for each in reported if names is None or each.topic is None or each.topic in names}
    if work is not None and not (work.is_at_work(now_ms) and holder in (None, work.pid)):
        # An offline directory may be readable again; no other problem can be disproved.
        back = {name for name in found if name not in errors}
        known = {
            name: each for name, each in known.items() if each.code != ErrorCode.DIRECTORY_OFFLINE or name not in back
        }
    problems = [
        *_offline(manager),
        *_of_node(known.pop(None, None), roots[0]),
        *_of_partitions(errors, {name: each for name, each in known.items() if name is not None}),
    ]
    with_problems = {each.partition for each in problems}
    uncleanable = manager.cleaning.uncleanable_of(manager.partitions.all(names))
    for name, each in sorted(uncleanable.items()):
        if name not in with_problems:
            what = f"the log cannot be cleaned: {' '.join(each.reason.split())}"
            problems.append(_problem(name, "uncleanable", what, each.since_ms, "docs/runbooks/cleaner-stuck.md"))
    quiet = [each for name, each in found.items() if name not in with_problems]  # the others are late for a known cause
    problems += _late(quiet, now_ms - stuck_after_ms, is_at_work=is_at_work)
    return StatusReport(
        now_ms=now_ms,
        topics=tuple(sorted(selected, key=lambda each: each.name)),
        partitions=found,
        errors=errors,
        problems=tuple(problems),
        prices=prices,
        work=work,
        unread={name: error for name, error in errors.items() if name not in found or name in unseen},
        storage=storage_costs(manager, prices) if prices is not None else {},
        holder=holder,
        deleted=tuple(each.name for each in manager.topics.deleted()) if names is None else (),
        deferrals=_put_off(manager, figures, errors),
    )


def _put_off(
    manager: LogManager, figures: Iterable[PartitionFigures], errors: Mapping[TopicPartition, LogError]
) -> dict[TopicPartition, list[Deferral]]:
    waiting = [each for each in figures if each.is_tiered and uncopied(each)]
    if not waiting:
        return {}
    from policies.decisions import Code
    from policies.snapshot import PartitionSnapshot
    from policies.tiering import copy_deferrals, remote_unknown_deferrals

    found: dict[TopicPartition, list[Deferral]] = {}
    for each in waiting:
        if each.is_remote_unknown:
            error = errors.get(each.partition)
            why = flat(error) if error is not None else "the state of its remote tier is unknown"
            found[each.partition] = remote_unknown_deferrals(each, why)
            continue
        try:
            log = manager.partitions.find(each.partition).log
            timed = replace(each, segments=log.segments())
            reported = PartitionSnapshot.of(timed, stable_offset=log.closed_stable_offset)
        except LogError:
            continue  # the partition is now a problem of its own
        found[each.partition] = [one for one in copy_deferrals(reported) if one.code is not Code.ACTIVE]
    return {name: some for name, some in found.items() if some}


def snapshots_at_hand(manager: LogManager, now_ms: int, topics: Iterable[str] | None = None) -> list[PartitionSnapshot]:
    """Return snapshots from memory: sends no request and notes no problem."""
    return manager.partitions.snapshots(
        now_ms,
        manager.partitions.all(topics),
        may_ask=False,
        uncleanable=manager.cleaning.waiting(now_ms),
        records_problems=False,  # a disk that failed just now: the next maintenance reports it
    )


def unread_partitions(manager: LogManager, topics: Iterable[str] | None = None) -> dict[TopicPartition, LogError]:
    """Return the partitions of some topics (None: all) that did not open or have an unread manifest, and the errors."""
    problems = dict(manager.problems)
    wanted = None if topics is None else set(topics)
    read = {each.name for each in manager.partitions.all() if not is_unseen(manager, each)}
    names = [name for name in sorted(problems) if (wanted is None or name.topic in wanted) and name not in read]
    return {name: problems[name] for name in names}


def is_unseen(manager: LogManager, held: Partition) -> bool:
    return held.is_tiered and held.reconciled_manifest() is None and held.name in manager.problems


def holder_line(holder: int, work: WorkReport | None, now_ms: int) -> str:
    begin = f"process {holder} runs on this directory"
    if work is None or work.is_ended or work.pid != holder:
        return f"{begin}, and has written no report of its maintenance"
    age = format_lasted(now_ms - work.seen_ms)
    return (
        f"{begin}; its report is {age} old: a maintenance round takes that long, or the disk has "
        "no space for the next report"
    )


def _offline(manager: LogManager) -> Iterable[Problem]:
    for root, error in manager.directories.offline.items():
        what = f"log directory offline: {flat(error)}"
        yield Problem(where=root, partition=None, kind="offline", what=what, next_step=next_step(error))


def _of_node(reported: ReportedProblem | None, root: str) -> Iterable[Problem]:
    if reported is not None:
        is_clock = reported.code == ErrorCode.CLOCK_JUMPED
        step = _SET_CLOCK if is_clock else reported.next_step or step_of(reported.kind, {})
        yield replace(reported.problem(root), next_step=step)


def _of_partitions(
    errors: Mapping[TopicPartition, LogError], reported: Mapping[TopicPartition, ReportedProblem]
) -> Iterable[Problem]:
    """Yield the problems found now, with the reported start, then those that only the running manager meets."""
    for name in sorted({*errors, *reported}):
        known = reported[name].problem() if name in reported else None
        if name not in errors:
            assert known is not None, "each name is from one of the two"
            yield known
            continue
        now = replace(problem_of(name, errors[name]), next_step=next_step(errors[name]))
        yield now if known is None else replace(now, since_ms=known.since_ms, count=known.count)


def _late(found: Iterable[PartitionStatus], before_ms: int, *, is_at_work: bool) -> Iterable[Problem]:
    go_on = "the running manager is behind or fails: docs/runbooks/copy-lag-grows.md" if is_at_work else _BEGIN_WORK
    for each in found:
        if each.paused is None and each.lag_since_ms is not None and each.lag_since_ms <= before_ms:
            what = f"upload waits: {counted(each.lag_segments, 'segment')}, {format_bytes(each.lag_bytes)}"
            yield _problem(each.partition, "upload", what, each.lag_since_ms, go_on)
        if each.overdue_since_ms is not None and each.overdue_since_ms <= before_ms:
            what = f"deletion waits: {format_bytes(each.overdue_bytes)} past the grace period"
            step = "the pin of a reader may delay it: docs/runbooks/delete-lag.md" if is_at_work else go_on
            yield _problem(each.partition, "deletion", what, each.overdue_since_ms, step)


def _problem(name: TopicPartition, kind: str, what: str, since_ms: int, step: str) -> Problem:
    return Problem(where=str(name), partition=name, kind=kind, what=what, next_step=step, since_ms=since_ms)


def storage_costs(manager: LogManager, prices: PriceTable) -> dict[TopicPartition, StorageDollars]:
    """Return dollars a month of each open partition with remote objects: all share the price bands."""
    found = all_usage(manager, prices)
    return dict(zip(found, storage_dollars(list(found.values()), prices), strict=True))


def all_usage(manager: LogManager, prices: PriceTable) -> dict[TopicPartition, StorageUsage]:
    """Return the remote storage of each open partition with objects there, without a request."""
    return {each.name: usage_for(each, prices) for each in manager.partitions.all() if each.manifest() is not None}


def usage_for(held: Partition, prices: PriceTable, rows: Iterable[SegmentEntry] | None = None) -> StorageUsage:
    manifest = held.manifest()
    if manifest is None:
        return StorageUsage()
    return usage_of(manifest, prices, manifest_bytes=size_of(manifest), entries=rows)


# -- rows: JSON, CSV and pages -----------------------------------------------------------------------------------------


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
    names, found, problems = topic.partitions(), report.partitions, report.errors
    return {
        **_figures(report, [found[name] for name in names if name in found], len(names)),
        "topic": topic.name,
        "partitions": topic.partition_count,
        "problems": [str(problems[name]) for name in names if name in problems],
    }


def partition_row(report: StatusReport, name: TopicPartition) -> Row:
    status, problems = report.partitions.get(name), report.errors
    figures = _figures(report, [status] if status is not None else [], 1)
    del figures["offsets"]  # the row has first and next offset instead
    unknown = ("remote_next_offset", "unlinked_bytes") if name in report.unread else ()
    return {
        **figures,
        **{field: getattr(status, field, None) for field in _OFFSETS},
        **dict.fromkeys(unknown),
        "topic": name.topic,
        "partition": name.partition,
        "problems": [str(problems[name])] if name in problems else [],
    }


def status_facts(report: StatusReport) -> StatusFacts:
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
    """Return the sums of some partitions. A sum is None if one of `count` partitions lacks the figure.

    With an unread manifest the bytes at risk are the upper bound, all bytes on the disk.
    """
    if not some:
        return dict.fromkeys(_FIGURES)
    is_open = len(some) == count
    is_seen = is_open and not any(each.partition in report.unread for each in some)
    dollars = [report.storage.get(each.partition) for each in some]
    is_priced = is_seen and report.prices is not None
    paused = [each.paused for each in some if each.paused is not None]
    sums: dict[str, int | None] = {name: sum(getattr(each, name) for each in some) for name in _SUMS}
    sums |= dict.fromkeys(() if is_open else _OF_DISK)
    sums |= dict.fromkeys(() if is_seen else _OF_BUCKET)
    return {
        "is_tiered": some[0].is_tiered,
        # Offsets, not records: offsets that compaction and gaps removed are counted too.
        "offsets": sum(each.next_offset - each.log_start_offset for each in some) if is_open else None,
        **sums,
        "lag_since_ms": _earliest(each.lag_since_ms for each in some) if is_seen else None,
        "is_paused": bool(paused),
        "paused_since_ms": _earliest(each.since_ms for each in paused),
        "pause_reason": next((each.reason for each in paused), None),
        "dollars_per_month": round(sum(each.total for each in dollars if each is not None), 6) if is_priced else None,
    }


def _earliest(times: Iterable[int | None]) -> int | None:
    return min((each for each in times if each is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferralCause:
    action: str
    code: Code
    why: str
    partitions: tuple[str, ...]
    segments: int
    size_bytes: int
    until_ms: int | None

    @property
    def words(self) -> str:
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
    return [
        DeferredSegment(**{**asdict(each), "action": each.action.value, "code": each.code.value}, **asdict(name))
        for name, found in sorted(deferrals.items())
        for each in found
    ]


def causes(
    deferrals: Mapping[TopicPartition, Sequence[Deferral]], *, without: Iterable[Code] = ()
) -> list[DeferralCause]:
    """Return the deferrals of all partitions, grouped by action and reason, except codes in `without`."""
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
            until_ms=_earliest(each.until_ms for _, each in some),
        )
        for (action, code, why), some in found.items()
    ]


def deferral_lines(deferrals: Mapping[TopicPartition, Sequence[Deferral]], now_ms: int) -> list[str]:
    from policies.decisions import Code

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
