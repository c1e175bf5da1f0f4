"""A compaction of the bucket and a live manager: a fault at every store call of either.

Each also runs between any two calls of the other.

The manager appends, cleans, copies, replaces entries and vouches for them, expires and deletes, as in
`test_recompaction_faults`. The job compacts the bucket. Afterwards, and after a restart, both tiers together and the
bucket alone give every key its newest acknowledged value, and no deleted key returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest
from bucket_truth import assert_sound
from disk_model import ModelDisk
from fault_store import Fault, FaultStore, Killed
from run_profile import each_call
from test_recompaction_faults import HOUR, NAME, TOPIC, Story, check, check_bucket_alone, open_manager

from local.errors import Conflict, Fenced, LogError, NotFound
from remote.manifest.catalog import RemotePartitionName, list_partitions
from remote.manifest.manifest import Manifest
from remote.store import ObjectStore
from remote.store.memory_store import MemoryStore
from tiered.jobs import bucket_compaction, compaction_passes
from tiered.jobs.bucket_compaction import CompactionOutcome, CompactionPlan
from tiered.jobs.compaction_passes import compact_partition
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog


class Scene:
    """A disk, a bucket and a live manager, with a history of both kinds of cleaning."""

    def __init__(self, **settings: str) -> None:
        self.disk, self.store, self.story = ModelDisk(), MemoryStore("memory://b"), Story()
        self.manager: LogManager = open_manager(self.disk, self.store, self.story.clock)
        self.manager.topics.create("t", 1, {**TOPIC, **settings}, now_ms=self.story.clock)
        self.round("abcdef", "1")
        self.round("ghij", "1")
        self.round("abcgh", "2")
        self.round("dx", None)
        self.round("x", "3")

    def round(self, keys: str, value: str | None) -> None:
        self.story.put(self.manager, keys, value)
        self.story.settle(self.manager)
        self.story.clock += HOUR // 2

    def job(self, store: ObjectStore | None = None, job_id: str | None = None, **more: int) -> CompactionOutcome:
        disk = ModelDisk()
        disk.make_directory("./job")
        return compact_partition(
            store or self.store,
            self.name(),
            now_ms=self.story.clock,
            storage=disk,
            directory="./job",
            job_id=job_id,
            group_bytes=3000,
            **more,
        )

    def name(self) -> RemotePartitionName:
        return list_partitions(self.store)[0]

    def manifest(self) -> Manifest:
        return RemoteLog(self.store).manifest(NAME)

    def leave(self) -> None:
        self.manager.close()

    def end(self) -> None:
        """Let jobs and the manager work for a day, then check the records."""
        for _ in range(3):
            self.story.clock += 2 * HOUR
            self.job()
            self.story.settle(self.manager)
            self.round("y", "4")
            check_bucket_alone(self.store, self.story)
        self.leave()
        check(self.disk, self.store, self.story)


SETTINGS = [{"local.retention.ms": "-1"}, {"local.retention.ms": "1"}]
BOTH = pytest.mark.parametrize("settings", SETTINGS, ids=["the disk keeps all", "the disk lets go"])
UNSEEN = (Fenced, Conflict, NotFound)  # the errors of a job that lost a race; it has then no visible effect


@BOTH
def test_compaction_jobs_and_a_manager_in_turns_keep_newest_values(settings: dict[str, str]) -> None:
    scene = Scene(**settings)
    before = scene.manifest()
    outcome = scene.job()
    assert outcome.records_after < outcome.records_before or settings == SETTINGS[0]
    assert scene.manifest().epoch == before.epoch
    scene.end()
    assert not any(record.value is None for record in RemoteLog(scene.store).reader().records(NAME, 0))


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.value)
def test_a_job_with_any_fault_loses_no_value_and_a_second_run_finishes(fault: Fault) -> None:
    rehearsal = Scene(**SETTINGS[1])
    calls = FaultStore(rehearsal.store)
    rehearsal.job(calls)
    for at in each_call(range(len(calls.calls)), fault):
        scene = Scene(**SETTINGS[1])
        store = FaultStore(scene.store, at, fault)
        with suppress(LogError, Killed):
            scene.job(store, job_id="nightly")
        scene.story.settle(scene.manager)
        store.deliver(1 << 60)
        check_bucket_alone(scene.store, scene.story)
        scene.job(job_id="nightly")
        assert [each.job_id for each in scene.manifest().jobs] == ["nightly"]
        assert all((entry.cleaned_through or 0) >= 19 for entry in scene.manifest().segments[:-2])
        scene.leave()
        check(scene.disk, scene.store, scene.story)


def _meanwhile(scene: Scene) -> dict[str, Callable[[], object]]:
    def restart() -> None:
        scene.leave()
        scene.manager = open_manager(scene.disk, scene.store, scene.story.clock)

    return {
        "a round of the manager": lambda: scene.round("ab", "5"),
        "a deletion": lambda: scene.round("g", None),
        "another manager": restart,
        "another job": lambda: scene.job(job_id="other"),
        "the same job": lambda: scene.job(job_id="nightly"),
    }


EVENTS = [
    "a round of the manager",
    "a deletion",
    "another manager",
    "another job",
    "the same job",
]


@BOTH
@pytest.mark.parametrize("event", EVENTS)
def test_a_job_with_any_event_between_two_calls_loses_no_value_and_revives_none(
    event: str, settings: dict[str, str]
) -> None:
    rehearsal = Scene(**settings)
    calls = FaultStore(rehearsal.store)
    rehearsal.job(calls)
    for at in each_call(range(0, len(calls.calls), 2), event, settings):
        scene = Scene(**settings)

        def meanwhile(number: int, at: int = at, scene: Scene = scene) -> None:
            if number == at:
                _meanwhile(scene)[event]()

        with suppress(*UNSEEN):
            scene.job(FaultStore(scene.store, before_call=meanwhile), job_id="nightly")
        assert_sound(scene.store)
        scene.end()


@BOTH
def test_entries_that_expire_during_a_job_stay_expired_and_the_rest_is_committed(
    settings: dict[str, str],
) -> None:
    settings = {**settings, "cleanup.policy": "compact,delete"}
    rehearsal = Scene(**settings)
    calls = FaultStore(rehearsal.store)
    rehearsal.job(calls)
    for at in each_call(range(len(calls.calls)), settings):
        scene = Scene(**settings)

        def meanwhile(number: int, at: int = at, scene: Scene = scene) -> None:
            if number == at:
                scene.manager.maintenance.delete_records({NAME: 7}, now_ms=scene.story.clock)
                scene.story.settle(scene.manager)

        with suppress(*UNSEEN):
            scene.job(FaultStore(scene.store, before_call=meanwhile))
        assert_sound(scene.store)
        scene.job()
        assert scene.manifest().log_start_offset == 7
        found = {record.key: record.value for record in RemoteLog(scene.store).reader().records(NAME, 7)}
        for offset, record in scene.story.acked.items():
            newest = max(at for at, one in scene.story.acked.items() if one.key == record.key)
            if 7 <= offset == newest < scene.manifest().next_offset:
                assert found.get(record.key) == record.value


@pytest.mark.parametrize("fault", [None, Fault.AFTER, Fault.EXISTS, Fault.KILL_AFTER])
def test_a_job_between_any_two_calls_of_a_manager_loses_nothing(fault: Fault | None) -> None:
    def tell(scene: Scene) -> None:
        scene.round("abgh", "6")
        scene.round("cx", None)

    def reopened(scene: Scene, store: ObjectStore) -> None:
        scene.leave()
        scene.manager = open_manager(scene.disk, store, scene.story.clock)

    rehearsal = Scene(**SETTINGS[0])
    calls = FaultStore(rehearsal.store)
    reopened(rehearsal, calls)
    tell(rehearsal)
    for at in each_call(range(0, len(calls.calls), 3), fault):
        scene = Scene(**SETTINGS[0])

        def meanwhile(number: int, at: int = at, scene: Scene = scene) -> None:
            if number == at:
                with suppress(*UNSEEN):
                    scene.job()

        store = FaultStore(scene.store, at, fault, before_call=meanwhile)
        with suppress(Killed, LogError):
            reopened(scene, store)
            tell(scene)
        scene.disk.locks.clear()
        scene.manager = open_manager(scene.disk, scene.store, scene.story.clock)
        scene.end()


# --- planted bugs are detected ----------------------------------------------------------------------------------------


def jobs_on_the_younger_half() -> None:
    """The tombstone is in the range of the job; the value that it hides is not."""
    scene = Scene(**SETTINGS[1])
    entries = scene.manifest().segments
    for _ in range(3):
        scene.job(start_offset=entries[1].base_offset)
        scene.story.clock += 2 * HOUR
    check_bucket_alone(scene.store, scene.story)
    scene.end()


def test_a_job_on_a_range_leaves_tombstones_of_values_below_the_range() -> None:
    jobs_on_the_younger_half()


def test_removing_tombstones_without_a_bound_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_compaction, "tombstone_bound", lambda parts, views, min_readable_offset: None)
    with pytest.raises(AssertionError):
        jobs_on_the_younger_half()


def test_removing_records_without_a_newer_one_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    real = compaction_passes.newest_by_group

    def forgetful(plan: CompactionPlan, runs: Iterable[compaction_passes.KeyRun]) -> dict[int, object]:
        return {number: found[1:] for number, found in real(plan, runs).items()}

    monkeypatch.setattr(compaction_passes, "newest_by_group", forgetful)
    with pytest.raises(AssertionError):
        test_compaction_jobs_and_a_manager_in_turns_keep_newest_values(SETTINGS[1])
