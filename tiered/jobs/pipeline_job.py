"""The stages of a pipeline in order, with the units of each stage done by a runner.

A runner is this process (`Here`) or Spark (`tiered.spark.jobs.pipeline`); the result is the same. Within a stage the
largest units start first and small ones are packed together, so no worker has a large one left at the end. Before each
bucket stage tasks read its partitions again and return the due ones only. So the driver holds one line for each
partition and the segment entries of one wave of merging.

A run may stop at any point, and every unit may be done twice: the next run reads the stage's state again.
`PipelineState` lets a resumed job skip finished units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol, TypeVar

from local.errors import LogError, Unavailable
from remote.manifest.catalog import RemotePartitionName, chosen_partitions
from remote.store import ObjectStore
from tiered.jobs.pipeline import (
    SMALL_BYTES,
    Fleet,
    Stage,
    State,
    Unit,
    compact_whole,
    delete_due,
    failed_on_error,
    merged_unit,
    plan_merging,
    plan_unit_of_compaction,
    plan_unit_of_node,
    plan_units_of_partition,
    retain,
    work_node,
)
from tiered.jobs.pipeline_state import PipelineState
from tiered.jobs.rewriting import RewriteOutcome, RewritePlan, run_rewrite

LOOKS_A_TASK = 8  # partitions; some milliseconds each
W = TypeVar("W")
R = TypeVar("R")
Clock = Callable[[], int]
Progress = Callable[[Stage, int, int], None]  # stage, finished units, all units


class Runner(Protocol):
    """Runs the work of units."""

    def run_in_batches(self, description: str, work: Sequence[W], do: Callable[[W], R]) -> Iterator[list[R]]:
        """Yield the results of `do` for each piece of `work`, in order, in lists. It may stop after any list."""
        ...

    def compact(self, fleet: Fleet, name: RemotePartitionName, *, job_id: str, now_ms: int) -> Unit:
        """Compact a large partition. Raises LogError."""
        ...

    def merge(
        self, fleet: Fleet, plans: Sequence[RewritePlan], *, job_id: str, now_ms: Clock
    ) -> tuple[list[RewriteOutcome], dict[int, LogError]]:
        """Carry out plans; return the results, and errors by plan number. Raises Unavailable."""
        ...


@dataclass(frozen=True, slots=True)
class Here:
    """Runs all units in this process, one after another."""

    should_stop: Callable[[], bool] = lambda: False

    def run_in_batches(self, description: str, work: Sequence[W], do: Callable[[W], R]) -> Iterator[list[R]]:
        for each in work:
            if self.should_stop():
                return
            yield [do(each)]

    def compact(self, fleet: Fleet, name: RemotePartitionName, *, job_id: str, now_ms: int) -> Unit:
        with fleet.bucket.opened() as store:
            return compact_whole(fleet, store, name, job_id, now_ms)

    def merge(
        self, fleet: Fleet, plans: Sequence[RewritePlan], *, job_id: str, now_ms: Clock
    ) -> tuple[list[RewriteOutcome], dict[int, LogError]]:
        outcomes, errors = [], {}
        with fleet.bucket.opened() as store:
            for number, plan in enumerate(plans):
                outcome = RewriteOutcome(is_complete=False)
                try:
                    outcome = run_rewrite(
                        store, plan, now_ms=now_ms, keys=fleet.bucket.keys(), should_stop=self.should_stop
                    )
                except Unavailable:
                    raise
                except LogError as error:
                    errors[number] = error
                outcomes.append(outcome)
        return outcomes, errors


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """The units with work done or with a reason why not. If not complete, run the job again.

    At most a part of the work of a unit that is still `DUE` was done.
    """

    job_id: str
    units: tuple[Unit, ...]
    is_complete: bool


def plan_pipeline(
    fleet: Fleet,
    runner: Runner,
    *,
    now_ms: int,
    progress: Callable[[int, int], None] = lambda done, everything: None,
) -> list[Unit]:
    """Return every unit in its current state. Changes nothing.

    Changes that an earlier stage will make for a later one are not foreseen. `progress` is called with (nodes and
    partitions read, all of them), at first with 0 read.
    """
    names = _names(fleet)
    done, everything = 0, len(fleet.nodes) + len(names)

    def heard(run_in_batches: Iterator[list[list[Unit]]], sizes: Iterable[int]) -> list[Unit]:
        nonlocal done
        found, left = list[Unit](), iter(sizes)
        for wave in run_in_batches:
            found += [unit for of_task in wave for unit in of_task]
            done += sum(islice(left, len(wave)))
            progress(done, everything)
        return found

    progress(0, everything)
    reports_of_nodes = runner.run_in_batches(
        "reading nodes", fleet.nodes, lambda node: [plan_unit_of_node(fleet, node, now_ms=now_ms)]
    )
    found = heard(reports_of_nodes, (1 for _ in fleet.nodes))
    packs = packs_of(names)

    def look(pack: Sequence[RemotePartitionName]) -> list[Unit]:
        with fleet.bucket.opened() as store:
            return [unit for name in pack for unit in plan_units_of_partition(fleet, store, name, now_ms=now_ms)]

    return found + heard(runner.run_in_batches("reading partitions", packs, look), map(len, packs))


def run_pipeline(
    fleet: Fleet,
    runner: Runner,
    *,
    job_id: str,
    now_ms: Clock,
    state: PipelineState | None = None,
    small_bytes: int = SMALL_BYTES,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Progress = lambda stage, done, everything: None,
) -> PipelineResult:
    """Run all stages, in order; return the units.

    A unit that fails for good does not stop the others and is reported. If `should_stop` returns true, the run ends
    between two waves. Raises Unavailable, and the error of a runner for a task that failed for good.
    """
    job = _Job(fleet, runner, job_id, now_ms, state, small_bytes, should_stop, progress)
    for stage in (job.clean_and_tier, job.free, job.retain, job.compact, job.merge):
        if should_stop():
            break
        stage()
    return PipelineResult(job_id=job_id, units=tuple(job.units), is_complete=not should_stop() and not job.was_cut)


class _Job:
    def __init__(
        self,
        fleet: Fleet,
        runner: Runner,
        job_id: str,
        now_ms: Clock,
        state: PipelineState | None,
        small_bytes: int,
        should_stop: Callable[[], bool],
        progress: Progress,
    ) -> None:
        self._fleet, self._runner, self._job_id, self._now_ms = fleet, runner, job_id, now_ms
        self._state, self._should_stop, self._progress = state, should_stop, progress
        self._small_bytes = small_bytes
        self.units: list[Unit] = []
        self.was_cut = False

    # -- stages ------------------------------------------------------------------------------------------------------

    def clean_and_tier(self) -> None:
        """Clean and tier nodes, the largest work first, one task each: a node has one manager."""
        fleet, now_ms = self._fleet, self._now_ms()
        nodes = self._left(Stage.CLEAN_AND_TIER, fleet.nodes, str)
        reports_of_nodes = self._all("reading nodes", nodes, lambda node: plan_unit_of_node(fleet, node, now_ms=now_ms))
        due = self._due(reports_of_nodes)
        self._work(
            Stage.CLEAN_AND_TIER,
            "cleaning and tiering nodes",
            [[each.unit] for each in due],
            lambda pack: [work_node(fleet, node, now_ms=now_ms) for node in pack],
        )

    def free(self) -> None:
        """Delete pending deletes after their grace period, where no manager deletes them."""
        self._each(Stage.DELETION, "deletion in the bucket", delete_due)

    def retain(self) -> None:
        """Expire segment entries."""
        self._each(Stage.RETENTION, "retention in the bucket", retain)

    def _each(
        self, stage: Stage, description: str, work: Callable[[Fleet, ObjectStore, RemotePartitionName, int], Unit]
    ) -> None:
        """Work on partitions in the bucket, a few to a task: one or two manifests each, no data."""
        fleet, now_ms = self._fleet, self._now_ms()

        def do(pack: Sequence[RemotePartitionName]) -> list[Unit]:
            with fleet.bucket.opened() as store:
                return [failed_on_error(stage, work, fleet, store, name, now_ms) for name in pack]

        self._work(stage, description, self._packs(stage), do)

    def compact(self) -> None:
        """Compact small partitions whole, one or several to a task, and large ones group by group."""
        fleet, now_ms, job_id = self._fleet, self._now_ms(), self._job_id

        def look(pack: Sequence[RemotePartitionName]) -> list[tuple[RemotePartitionName, Unit]]:
            with fleet.bucket.opened() as store:
                return [
                    (name, failed_on_error(Stage.COMPACTION, plan_unit_of_compaction, fleet, store, name))
                    for name in pack
                ]

        def do(pack: Sequence[RemotePartitionName]) -> list[Unit]:
            with fleet.bucket.opened() as store:
                return [
                    failed_on_error(Stage.COMPACTION, compact_whole, fleet, store, name, job_id, now_ms)
                    for name in pack
                ]

        reports_of_nodes = [
            each
            for of_task in self._all("finding dirty partitions", self._packs(Stage.COMPACTION), look)
            for each in of_task
        ]
        of = {unit.unit: name for name, unit in reports_of_nodes}
        due = self._due([unit for _, unit in reports_of_nodes])
        for each in due:
            if each.size_bytes > self._small_bytes and not self._should_stop():
                self._over([self._compacted(of[each.unit], each, now_ms)])
        small = [each for each in due if each.size_bytes <= self._small_bytes]
        packs = [[of[each.unit] for each in pack] for pack in by_size(small, self._small_bytes // 4)]
        self._work(Stage.COMPACTION, "compacting partitions", packs, do)

    def _compacted(self, name: RemotePartitionName, look: Unit, now_ms: int) -> Unit:
        try:
            return self._runner.compact(self._fleet, name, job_id=self._job_id, now_ms=now_ms)
        except Unavailable:
            raise
        except LogError as error:
            return replace(look, state=State.FAILED, why=str(error))

    def merge(self) -> None:
        """Plan a wave of partitions, then run their groups on any free worker."""
        fleet, now_ms = self._fleet, self._now_ms()

        def plan(pack: Sequence[RemotePartitionName]) -> list[RewritePlan | Unit]:
            with fleet.bucket.opened() as store:
                return [failed_on_error(Stage.MERGE, plan_merging, fleet, store, name, now_ms) for name in pack]

        packs = self._packs(Stage.MERGE)
        everything, done = sum(map(len, packs)), 0
        for wave in self._runner.run_in_batches("finding small segments", packs, plan):
            found = [each for of_task in wave for each in of_task]
            self._over([each for each in found if isinstance(each, Unit)])
            plans = [each for each in found if not isinstance(each, Unit) and each.groups]
            if plans and not self._should_stop():
                self._merge_all(plans)
            done += len(found)
            self._progress(Stage.MERGE, done, everything)
        self.was_cut |= done < everything

    def _merge_all(self, plans: Sequence[RewritePlan]) -> None:
        outcomes, errors = self._runner.merge(self._fleet, plans, job_id=self._job_id, now_ms=self._now_ms)
        for number, (plan, outcome) in enumerate(zip(plans, outcomes, strict=True)):
            self._over([merged_unit(plan, outcome, errors.get(number))])

    # -- units -------------------------------------------------------------------------------------------------------

    def _work(
        self, stage: Stage, description: str, packs: Sequence[Sequence[W]], do: Callable[[Sequence[W]], list[Unit]]
    ) -> None:
        everything, done = sum(len(pack) for pack in packs), 0
        for wave in self._runner.run_in_batches(description, packs, do):
            units = [unit for of_task in wave for unit in of_task]
            done += len(units)
            self._over(units)
            self._progress(stage, done, everything)
        self.was_cut |= done < everything

    def _all(self, description: str, work: Sequence[W], do: Callable[[W], R]) -> list[R]:
        found = [each for wave in self._runner.run_in_batches(description, work, do) for each in wave]
        self.was_cut |= len(found) < len(work)
        return found

    def _due(self, reports_of_nodes: Sequence[Unit]) -> list[Unit]:
        """Return the due units, the largest first. The others are finished."""
        self._over([each for each in reports_of_nodes if each.state is not State.DUE])
        return sorted(
            (each for each in reports_of_nodes if each.state is State.DUE),
            key=lambda each: (-each.size_bytes, each.unit),
        )

    def _packs(self, stage: Stage) -> list[tuple[RemotePartitionName, ...]]:
        return packs_of(self._left(stage, _names(self._fleet), _prefix))

    def _left(self, stage: Stage, work: Sequence[W], unit_of: Callable[[W], str]) -> list[W]:
        state = self._state
        return [each for each in work if state is None or not state.is_over(stage, unit_of(each))]

    def _over(self, units: Sequence[Unit]) -> None:
        for unit in units:
            if unit.state is not State.NOTHING:
                self.units.append(unit)
            if self._state is not None and unit.state in (State.DONE, State.NOTHING):
                self._state.note(unit.stage, unit.unit)


def by_size(units: Sequence[Unit], task_bytes: int) -> list[list[Unit]]:
    """Pack units, largest first, into packs of up to `task_bytes`, at least one unit in each.

    A unit is added to the first pack that has room.
    """
    packs: list[list[Unit]] = []
    sizes: list[int] = []
    for unit in units:
        at = next((at for at, size in enumerate(sizes) if size + unit.size_bytes <= task_bytes), None)
        if at is None:
            packs.append([unit])
            sizes.append(unit.size_bytes)
        else:
            packs[at].append(unit)
            sizes[at] += unit.size_bytes
    return packs


def _names(fleet: Fleet) -> list[RemotePartitionName]:
    with fleet.bucket.opened() as store:
        return chosen_partitions(store, [(topic, None) for topic in fleet.topics])


def _prefix(name: RemotePartitionName) -> str:
    return name.prefix


def packs_of(names: Sequence[RemotePartitionName]) -> list[tuple[RemotePartitionName, ...]]:
    """Divide partitions into packs, one for each task."""
    return [tuple(names[at : at + LOOKS_A_TASK]) for at in range(0, len(names), LOOKS_A_TASK)]
