"""Status of a node: figures of its partitions, and its problems with start, cause and next step.

A read-only manager gathers the report. Its own findings are of this moment. The start of a problem, and problems that
only a writer meets (a failed upload), are in the report of the running manager (`tiered.node.problems`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from local.errors import ErrorCode, LogError
from local.names import TopicPartition
from local.storage import DiskStorage, Storage
from policies.copy_lag import uncopied
from policies.cost.storage_cost import StorageDollars, StorageUsage, storage_dollars, usage_of
from remote.manifest.manifest import size_of
from tiered.config.units import counted, format_bytes, format_ms
from tiered.node.problems import (
    Problem,
    ReportedProblem,
    WorkReport,
    directory_holder,
    flat,
    lock_holder,
    next_step,
    problem_of,
    read_report,
    step_of,
)
from tiered.partition.partition_status import PartitionStatus, partition_status

if TYPE_CHECKING:
    from local.names import TopicPartition
    from policies.cost.prices import PriceTable
    from policies.cost.storage_cost import StorageDollars
    from policies.deferrals import Deferral
    from policies.snapshot import PartitionFigures, PartitionSnapshot
    from remote.segment_entry import SegmentEntry
    from tiered.maintenance.cleaning import Uncleanable
    from tiered.manager.manager import LogManager
    from tiered.node.topic_registry import Topic
    from tiered.partition.partition import Partition


WORK_OVERDUE_MS = 30 * 60_000

_BEGIN_WORK = "start tiered run: no manager runs on this directory"
_SET_CLOCK = "set the clock; if the new time is right, restart the manager with -X clock.jump.hold.ms=0"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """Figures and problems of a node. `partitions` have figures, `errors` are errors of the others.

    | field | content |
    |---|---|
    | `prices` | None if their file cannot be read |
    | `work` | last report of a running manager; None without one |
    | `holder` | process that holds a log directory; None if there is none, or it cannot be determined |
    | `seen` | partitions, of every topic, with a known remote tier |
    | `kept` | price of the remote storage; empty without `prices` |
    | `deleted` | deleted topics that may have objects in the bucket; empty for a report of some topics |
    | `deferrals` | why closed segments are not copied yet |

    Topics in `deleted` have no figures, because their figures need requests (`TopicAdmin.deleted_partitions`).
    """

    now_ms: int
    topics: tuple[Topic, ...]
    partitions: Mapping[TopicPartition, PartitionStatus]
    errors: Mapping[TopicPartition, LogError]
    problems: tuple[Problem, ...]
    prices: PriceTable | None
    work: WorkReport | None
    seen: frozenset[TopicPartition]
    kept: Mapping[TopicPartition, StorageDollars]
    holder: int | None = None
    deleted: tuple[str, ...] = ()
    deferrals: Mapping[TopicPartition, Sequence[Deferral]] = field(default_factory=dict)

    @property
    def unread(self) -> dict[TopicPartition, LogError]:
        """The partitions with an unreadable tier, and the errors; figures of this tier are None in the rows."""
        tiered = {name for name, each in self.partitions.items() if each.is_tiered}
        return {
            name: error
            for name, error in self.errors.items()
            if name not in self.partitions or (name in tiered and name not in self.seen)
        }

    @property
    def is_healthy(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    @property
    def is_at_work(self) -> bool:
        """Whether a process works in this directory: it reports, or it holds the lock without a report."""
        return self.is_reported or self.holder is not None

    @property
    def is_reported(self) -> bool:
        """Whether a manager has recently reported maintenance."""
        return self.work is not None and self.work.is_at_work(self.now_ms)

    @property
    def silent_holder(self) -> str | None:
        """A line about a process that holds the directory without a recent report; None without one."""
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
    chosen = manager.topics.all() if names is None else [manager.topics.get(name) for name in names]
    figures = manager.partitions.figures(now_ms, manager.partitions.all(names), records_problems=may_ask)
    found = {each.partition: partition_status(each) for each in figures}
    errors = {name: error for name, error in manager.problems.items() if names is None or name.topic in names}
    disk = storage or DiskStorage()
    roots = [root for _, root in manager.directories.places()]  # a reload may have named others, for the next start
    work = read_report([(disk, root) for root in roots])
    holder = directory_holder(roots, holder_of)
    is_at_work = holder is not None or (work is not None and work.is_at_work(now_ms))
    reported = work.troubles if work is not None else ()
    known = {each.name: each for each in reported if names is None or each.topic is None or each.topic in names}
    if work is not None and not _is_of_now(work, holder, now_ms):
        known = {name: each for name, each in known.items() if not _is_back(each, found, errors)}
    problems = [
        *_offline(manager),
        *_of_node(known.pop(None, None), roots[0]),
        *_of_partitions(errors, {name: each for name, each in known.items() if name is not None}),
    ]
    with_problems = {each.partition for each in problems}
    uncleanable = manager.cleaning.uncleanable_of(manager.partitions.all(names))
    problems += [_uncleanable(name, each) for name, each in sorted(uncleanable.items()) if name not in with_problems]
    quiet = [each for name, each in found.items() if name not in with_problems]  # others have a cause already
    problems += _late(quiet, now_ms - stuck_after_ms, is_at_work=is_at_work)
    return StatusReport(
        now_ms=now_ms,
        topics=tuple(sorted(chosen, key=lambda each: each.name)),
        partitions=found,
        errors=errors,
        problems=tuple(problems),
        prices=prices,
        work=work,
        seen=frozenset(each.name for each in manager.partitions.all() if each.reconciled_manifest() is not None),
        kept=storage_costs(manager, prices) if prices is not None else {},
        holder=holder,
        deleted=tuple(each.name for each in manager.topics.deleted()) if names is None else (),
        deferrals=_put_off(manager, figures, errors),
    )


def _put_off(
    manager: LogManager, figures: Iterable[PartitionFigures], errors: Mapping[TopicPartition, LogError]
) -> dict[TopicPartition, list[Deferral]]:
    """Return why closed segments are not copied yet. Reads the logs of partitions with such segments only."""
    waiting = [each for each in figures if each.is_tiered and uncopied(each)]
    if not waiting:
        return {}
    from policies.deferrals import Code
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
    """Return snapshots as `manager.snapshots`, from memory: sends no request and notes no problem."""
    return manager.partitions.snapshots(
        now_ms,
        manager.partitions.all(topics),
        may_ask=False,
        uncleanable=manager.cleaning.waiting(now_ms),
        records_problems=False,  # a disk that failed just now: the next maintenance reports it
    )


def unread_partitions(manager: LogManager, topics: Iterable[str] | None = None) -> dict[TopicPartition, LogError]:
    """Return the partitions of some topics (None: all) with an unreadable tier, and the errors.

    A partition that did not open has no figures of either tier. A partition with an unread manifest has none of the
    remote tier. A problem that leaves both tiers readable is not included.
    """
    problems = dict(manager.problems)
    wanted = None if topics is None else set(topics)
    opened = {each.name: each for each in manager.partitions.all()}
    return {
        name: error
        for name, error in sorted(problems.items())
        if (wanted is None or name.topic in wanted) and (name not in opened or is_unseen(manager, opened[name]))
    }


def is_unseen(manager: LogManager, held: Partition) -> bool:
    """Return whether the content of a partition's remote tier is unknown here."""
    return held.is_tiered and held.reconciled_manifest() is None and held.name in manager.problems


def holder_line(holder: int, work: WorkReport | None, now_ms: int) -> str:
    """Return a line about a process that holds a log directory without a current report of its own."""
    begin = f"process {holder} runs on this directory"
    if work is None or work.is_ended or work.pid != holder:
        return f"{begin}, and has written no report of its maintenance"
    age = format_ms(max(0, now_ms - work.seen_ms) // 1000 * 1000)
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
        yield replace(_reported(reported, root), next_step=step)


def _reported(reported: ReportedProblem, where: str) -> Problem:
    """Return a problem that the running manager met."""
    return Problem(
        where=where,
        partition=reported.name,
        kind=reported.kind,
        what=reported.message,
        next_step=reported.next_step,
        since_ms=reported.since_ms,
        count=reported.count,
    )


def _is_of_now(work: WorkReport, holder: int | None, now_ms: int) -> bool:
    """Return whether the process that wrote a report is the one that works in this directory."""
    return work.is_at_work(now_ms) and holder in (None, work.pid)


def _is_back(
    reported: ReportedProblem,
    found: Mapping[TopicPartition, PartitionStatus],
    errors: Mapping[TopicPartition, LogError],
) -> bool:
    """Return whether the offline directory of an ended process's report is readable again.

    True if the report named an offline log directory, and this manager has opened the partition in it. Other problems
    are excluded: a read-only manager cannot disprove a problem that only a writer meets (a full disk, another writer).
    """
    return reported.code == ErrorCode.DIRECTORY_OFFLINE and reported.name in found and reported.name not in errors


def _of_partitions(
    errors: Mapping[TopicPartition, LogError], reported: Mapping[TopicPartition, ReportedProblem]
) -> Iterable[Problem]:
    """Yield the problems found now, with the start that the running manager knows.

    Then yield the problems that only the running manager meets.
    """
    for name in sorted({*errors, *reported}):
        known = _reported(reported[name], str(name)) if name in reported else None
        if name not in errors:
            assert known is not None, "each name is from one of the two"
            yield known
            continue
        now = replace(problem_of(name, errors[name]), next_step=next_step(errors[name]))
        yield now if known is None else replace(now, since_ms=known.since_ms, count=known.count)


def _uncleanable(name: TopicPartition, uncleanable: Uncleanable) -> Problem:
    return Problem(
        where=str(name),
        partition=name,
        kind="uncleanable",
        what=f"the log cannot be cleaned: {' '.join(uncleanable.reason.split())}",
        next_step="docs/runbooks/cleaner-stuck.md",
        since_ms=uncleanable.since_ms,
    )


def _late(found: Iterable[PartitionStatus], before_ms: int, *, is_at_work: bool) -> Iterable[Problem]:
    """Yield uploads and deletions that were due before `before_ms`."""
    go_on = "the running manager is behind or fails: docs/runbooks/copy-lag-grows.md" if is_at_work else _BEGIN_WORK
    for each in found:
        # A paused upload is no problem; the status reports it next to the figures.
        if each.paused is None and each.lag_since_ms is not None and each.lag_since_ms <= before_ms:
            what = f"upload waits: {counted(each.lag_segments, 'segment')}, {format_bytes(each.lag_bytes)}"
            yield _waiting(each, "upload", what, each.lag_since_ms, go_on)
        if each.overdue_since_ms is not None and each.overdue_since_ms <= before_ms:
            what = f"deletion waits: {format_bytes(each.overdue_bytes)} past the grace period"
            step = "the pin of a reader may delay it: docs/runbooks/delete-lag.md" if is_at_work else go_on
            yield _waiting(each, "deletion", what, each.overdue_since_ms, step)


def _waiting(status: PartitionStatus, kind: str, what: str, since_ms: int, step: str) -> Problem:
    name = status.partition
    return Problem(where=str(name), partition=name, kind=kind, what=what, next_step=step, since_ms=since_ms)


def storage_costs(manager: LogManager, prices: PriceTable) -> dict[TopicPartition, StorageDollars]:
    """Return dollars a month of every open partition with remote objects, without a request.

    Always for all topics, because they fill the price bands together.
    """
    found = all_usage(manager, prices)
    return dict(zip(found, storage_dollars(list(found.values()), prices), strict=True))


def all_usage(manager: LogManager, prices: PriceTable) -> dict[TopicPartition, StorageUsage]:
    """Return the remote storage of every open partition with objects there, without a request."""
    return {each.name: usage_for(each, prices) for each in manager.partitions.all() if each.manifest() is not None}


def usage_for(held: Partition, prices: PriceTable, rows: Iterable[SegmentEntry] | None = None) -> StorageUsage:
    """Return the remote storage of one partition; empty without a manifest.

    `rows` as in `policies.cost.storage_cost.usage_of`.
    """
    manifest = held.manifest()
    return (
        StorageUsage()
        if manifest is None
        else usage_of(manifest, prices, manifest_bytes=size_of(manifest), entries=rows)
    )
