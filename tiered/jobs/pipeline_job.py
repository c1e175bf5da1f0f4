"""The stages of a pipeline in order, with the units of each stage done by an executor (`tiered.jobs.runner`).

Within a stage the largest units start first and small ones are packed together. This process holds one line for each
partition and the segment entries of one batch of merging. A run may stop at any point; every unit may be done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

import msgspec

from local.errors import LogError
from local.storage import Storage
from remote.keys import new_ulid
from remote.manifest.catalog import RemotePartitionName, chosen_partitions
from tiered.jobs import pipeline
from tiered.jobs.pipeline import SMALL_BYTES, Fleet, Stage, State, Unit, failed_on_error
from tiered.jobs.rewriting import RewriteJob
from tiered.jobs.runner import Clock, Executor, StateFile, packed, run_job

STATE_VERSION = 1
LOOKS_A_TASK = 8  # partitions; some milliseconds each
W = TypeVar("W")
R = TypeVar("R")
Runs = Iterator[Sequence[tuple[Sequence[Any], list[Unit]]]]
Progress = Callable[[Stage, int, int], None]  # stage, finished units, all units


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """A `DUE` unit was done in part or not at all: run the job again."""

    job_id: str
    units: tuple[Unit, ...]
    is_complete: bool


def plan_pipeline(
    fleet: Fleet, runner: Executor, *, now_ms: int, progress: Callable[[int, int], None] = lambda done, everything: None
) -> list[Unit]:
    """Return every unit in its current state; `progress` receives (nodes and partitions read, all of them), from 0."""
    names = _names(fleet)
    found, done, everything = list[Unit](), 0, len(fleet.nodes) + len(names)

    def plan_nodes(pack: Sequence[str]) -> list[Unit]:
        return [pipeline.plan_unit_of_node(fleet, node, now_ms=now_ms) for node in pack]

    def plan_partitions(pack: Sequence[RemotePartitionName]) -> list[Unit]:
        with fleet.bucket.opened() as store:
            return [one for name in pack for one in pipeline.plan_units_of_partition(fleet, store, name, now_ms=now_ms)]

    progress(0, everything)
    nodes: Runs = runner.run("reading nodes", [(node,) for node in fleet.nodes], plan_nodes)
    partitions: Runs = runner.run("reading partitions", _packs(names), plan_partitions)
    for finished in chain(nodes, partitions):
        for pack, units in finished:
            found += units
            done += len(pack)
        progress(done, everything)
    return found


def run_pipeline(
    fleet: Fleet,
    runner: Executor,
    *,
    job_id: str,
    now_ms: Clock,
    state: PipelineState | None = None,
    small_bytes: int = SMALL_BYTES,
    progress: Progress = lambda stage, done, everything: None,
) -> PipelineResult:
    """Run all stages, in order; return the units. Ends between two batches if the runner is to stop.

    A unit that fails for good is reported and does not stop the others. Raises Unavailable, and the error of a runner
    for a task that failed for good.
    """
    run = _Run(fleet, runner, job_id, now_ms, state, small_bytes, progress)
    for stage in (run.clean_and_tier, run.delete, run.retain, run.compact, run.merge):
        if not runner.should_stop():
            stage()
    is_complete = not runner.should_stop() and not run.was_cut
    return PipelineResult(job_id=job_id, units=tuple(run.units), is_complete=is_complete)


@dataclass
class _Run:
    fleet: Fleet
    runner: Executor
    job_id: str
    now_ms: Clock
    state: PipelineState | None
    small_bytes: int
    progress: Progress
    units: list[Unit] = field(default_factory=list)
    was_cut: bool = False

    def clean_and_tier(self) -> None:
        fleet, now_ms = self.fleet, self.now_ms()

        def each(work: Callable[..., Unit]) -> Callable[[Sequence[str]], list[Unit]]:
            return lambda pack: [work(fleet, node, now_ms=now_ms) for node in pack]

        nodes = [(node,) for node in self._remaining(Stage.CLEAN_AND_TIER, fleet.nodes, str)]
        due = self._due(self._results("reading nodes", nodes, each(pipeline.plan_unit_of_node)))
        work = [(unit.unit,) for unit in due]
        self._work(Stage.CLEAN_AND_TIER, "cleaning and tiering nodes", work, each(pipeline.work_node))

    def delete(self) -> None:
        do = _each(self.fleet, Stage.DELETION, pipeline.delete_due, self.now_ms())
        self._work(Stage.DELETION, "deletion in the bucket", self._packs(Stage.DELETION), do)

    def retain(self) -> None:
        do = _each(self.fleet, Stage.RETENTION, pipeline.retain, self.now_ms())
        self._work(Stage.RETENTION, "retention in the bucket", self._packs(Stage.RETENTION), do)

    def compact(self) -> None:
        stage, now_ms = Stage.COMPACTION, self.now_ms()
        packs = self._packs(stage)
        of = {name.prefix: name for pack in packs for name in pack}
        plan = _each(self.fleet, stage, pipeline.plan_unit_of_compaction)
        due = self._due(self._results("finding dirty partitions", packs, plan))
        for each in due:
            if each.size_bytes > self.small_bytes and not self.runner.should_stop():
                with self.fleet.bucket.opened() as store:
                    name, more = of[each.unit], (self.job_id, now_ms, self.runner)
                    self._finish([failed_on_error(stage, pipeline.compact_whole, self.fleet, store, name, *more)])
        small = [each for each in due if each.size_bytes <= self.small_bytes]
        tasks = [[of[each.unit] for each in pack] for pack in by_size(small, self.small_bytes // 4)]
        do = _each(self.fleet, stage, pipeline.compact_whole, self.job_id, now_ms)
        self._work(stage, "compacting partitions", tasks, do)

    def merge(self) -> None:
        plan, packs = _each(self.fleet, Stage.MERGE, pipeline.plan_merging, self.now_ms()), self._packs(Stage.MERGE)
        for found in self._results("finding small segments", packs, plan, Stage.MERGE):
            self._finish([each for each in found if isinstance(each, Unit)])
            plans = [each for each in found if not isinstance(each, Unit) and each.groups]
            if plans and not self.runner.should_stop():
                errors: dict[int, LogError] = {}
                job = RewriteJob(bucket=self.fleet.bucket, plans=plans, now_ms=self.now_ms)
                outcomes = zip(plans, run_job(job, self.runner, errors=errors), strict=True)
                self._finish([pipeline.merged_unit(*each, errors.get(number)) for number, each in enumerate(outcomes)])

    def _work(
        self, stage: Stage, description: str, packs: Sequence[Sequence[W]], do: Callable[[Sequence[W]], list[Unit]]
    ) -> None:
        for units in self._results(description, packs, do, stage):
            self._finish(units)

    def _results(
        self,
        description: str,
        packs: Sequence[Sequence[W]],
        do: Callable[[Sequence[W]], list[R]],
        stage: Stage | None = None,
    ) -> Iterator[list[R]]:
        everything, done = sum(map(len, packs)), 0
        for finished in self.runner.run(description, packs, do):
            results = [each for _, of_pack in finished for each in of_pack]
            yield results
            done += len(results)
            if stage is not None:
                self.progress(stage, done, everything)
        self.was_cut |= done < everything

    def _due(self, planned: Iterable[list[Unit]]) -> list[Unit]:
        units = [each for found in planned for each in found]
        self._finish([each for each in units if each.state is not State.DUE])
        due = (each for each in units if each.state is State.DUE)
        return sorted(due, key=lambda each: (-each.size_bytes, each.unit))

    def _packs(self, stage: Stage) -> list[tuple[RemotePartitionName, ...]]:
        return _packs(self._remaining(stage, _names(self.fleet), lambda name: name.prefix))

    def _remaining(self, stage: Stage, work: Sequence[W], unit_of: Callable[[W], str]) -> list[W]:
        return [each for each in work if self.state is None or not self.state.is_over(stage, unit_of(each))]

    def _finish(self, units: Sequence[Unit]) -> None:
        for unit in units:
            if unit.state is not State.NOTHING:
                self.units.append(unit)
            if self.state is not None and unit.state in (State.DONE, State.NOTHING):
                self.state.note(unit.stage, unit.unit)


def _each(
    fleet: Fleet, stage: Stage, work: Callable[..., R], *more: object
) -> Callable[[Sequence[RemotePartitionName]], list[R | Unit]]:
    def do(pack: Sequence[RemotePartitionName]) -> list[R | Unit]:
        with fleet.bucket.opened() as store:
            return [failed_on_error(stage, work, fleet, store, name, *more) for name in pack]

    return do


def by_size(units: Sequence[Unit], task_bytes: int) -> list[list[Unit]]:
    """Pack units, largest first, each into the first pack of up to `task_bytes` with room."""
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


def _packs(names: Sequence[RemotePartitionName]) -> list[tuple[RemotePartitionName, ...]]:
    return packed(names, lambda name: 1, LOOKS_A_TASK)


class _Pipeline(msgspec.Struct, frozen=True):
    tiered_pipeline: int
    store: str
    job_id: str
    run_id: str


class _Finished(msgspec.Struct, frozen=True):
    stage: str
    unit: str


# Created at import: creating it in two threads at once ends the process (msgspec 0.22).
_DECODERS = msgspec.json.Decoder(_Pipeline), msgspec.json.Decoder(_Finished)


class PipelineState(StateFile[_Pipeline, _Finished]):
    """The finished units of a pipeline; `run_id`, new with each file, names its compaction notes in manifests."""

    def __init__(self, storage: Storage, path: str, store_url: str, job_id: str, *, now_ms: int) -> None:
        super().__init__(
            storage,
            path,
            _Pipeline(STATE_VERSION, store_url, job_id, f"{job_id}-{new_ulid(now_ms)}"),
            _DECODERS,
            job="pipeline",
            is_resumable=lambda found: found.tiered_pipeline == STATE_VERSION and found.job_id == job_id,
        )
        self.run_id = self.first.run_id
        self._done = {(line.stage, line.unit) for line in self.lines}

    def is_over(self, stage: str, unit: str) -> bool:
        return (stage, unit) in self._done

    def note(self, stage: str, unit: str) -> None:
        self._done.add((stage, unit))
        self.append(_Finished(stage, unit))
