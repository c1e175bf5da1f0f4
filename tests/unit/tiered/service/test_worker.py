"""Maintenance runs log the start and end of each problem once for each cause, and relieve a full disk."""

from __future__ import annotations

import random

import pytest
from disk_model import ModelDisk
from manager_world import HOUR, NAME, NOW, TIERED, SwitchableStore, World, send, settle, values
from policy_samples import KEEP, entry, local
from policy_samples import NOW as THEN

from local.errors import AccessDenied, Corrupt, DiskFailed, Fenced, InvalidRequest, LogError, NotFound, Unavailable
from local.names import TopicPartition
from local.storage import Space
from policies.invariants import violations
from policies.retention import disk_relief
from policies.snapshot import PartitionSnapshot
from tiered.manager.manager import LogManager
from tiered.node.problems import WorkJournal, next_step, step_of
from tiered.observe.metrics import Metrics
from tiered.service.observations import Observations
from tiered.service.worker import ProblemWatch, Worker
from tiered.status.status_report import status_report

MINUTE = 60_000
DOWN = Unavailable("cannot read an object", endpoint="http://s3:9000", cause="refused")
MIB = 1 << 20
KEPT = {"remote.storage.enable": "true", "retention.ms": "-1"}
TOTAL = 1000 * MIB


def names(count: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in range(count)]


class Watched(ProblemWatch):
    """A watch of the reports of a journal that is never written."""

    def __init__(self) -> None:
        super().__init__()
        self._journal = WorkJournal(lambda: (ModelDisk(), ""), pid=1, started_ms=NOW, interval_ms=MINUTE)
        self._journal.keep = lambda: None

    def note(self, problems, of_node, now_ms) -> None:
        before = self._journal.report.troubles
        self._journal.note_round(problems, now_ms, of_node=of_node)
        super().note(before, self._journal.report.troubles, now_ms)


def test_a_failed_disk_logs_one_line_although_each_partition_names_its_own_file(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = Watched()
    failed = {name: DiskFailed("cannot append", path=f"/data/{name}/0.log", cause="eio") for name in names(2)}
    watch.note(failed, None, NOW)
    watch.note({}, None, NOW + MINUTE)
    assert [each.partition(":")[0] for each in caplog.messages] == ["problem", "problem ended after 1m"]


def test_200_partitions_with_one_cause_log_one_line_at_start_and_one_at_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = Watched()
    for at in range(3):
        watch.note(dict.fromkeys(names(200), DOWN), None, NOW + at * MINUTE)
    watch.note(dict.fromkeys(names(50), DOWN), None, NOW + 5 * MINUTE)
    watch.note({}, None, NOW + 6 * MINUTE)
    cause = "cannot read an object: endpoint=http://s3:9000 cause=refused"
    assert caplog.messages == [
        f"problem: 200 partitions (t/0, t/1, t/2, ...): {cause}",
        f"problem ended after 5m: 150 partitions (t/50, t/51, t/52, ...): {cause}",
        f"problem ended after 6m: 50 partitions (t/0, t/1, t/2, ...): {cause}",
    ]
    assert (watch.begun["Unavailable"], watch.ended["Unavailable"]) == (200, 200)
    assert watch.oldest_since_ms is None


def test_problem_of_another_class_ends_the_previous_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch, (name,) = Watched(), names(1)
    watch.note({name: DOWN}, None, NOW)
    watch.note({name: Fenced("committing")}, DiskFailed("writing", cause="enospc"), NOW + MINUTE)
    assert watch.oldest_since_ms == NOW + MINUTE
    assert (dict(watch.begun), dict(watch.ended)) == (
        {"Unavailable": 1, "Fenced": 1, "DiskFailed": 1},
        {"Unavailable": 1},
    )
    watch.note({name: Fenced("committing")}, None, NOW + 2 * MINUTE)
    assert caplog.messages[-1] == "problem ended after 1m: node: writing: cause=enospc"


def test_dead_store_logs_one_line_at_start_and_one_at_recovery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 20, TIERED, now_ms=NOW)
        settle(manager)
    store = SwitchableStore(world.store)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        figures = Metrics(manager, Observations(), worker)
        for at in range(1, 4):
            worker.round(NOW + at * MINUTE)
        met = len(manager.problems)
        assert met == 20
        errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert len([each for each in errors if "a partition has a problem" in each]) == 1
        assert len([each for each in errors if f"problem: {met} partitions" in each]) == 1
        assert len(worker.problem_lines()) == 1, "/health must have one line"
        (stuck_line,) = {each.next_step for each in status_report(manager, NOW, storage=world.disk).problems}
        assert "docs/runbooks/store-fails.md" in stuck_line
        samples = {(each.name, each.labels): each.value for each in figures.samples(NOW + 5 * MINUTE)}
        assert samples["tiered_problems_begun_total", (("class", "Unavailable"),)] == met
        assert samples["tiered_oldest_problem_seconds", ()] == 4 * 60
        store.is_down = False
        while worker.round(NOW + 6 * MINUTE):
            pass
        assert manager.problems == {}
        over = [each for each in caplog.messages if each.startswith("problem ended after 5m: ")]
        assert len(over) == 1
        samples = {(each.name, each.labels): each.value for each in figures.samples(NOW + 7 * MINUTE)}
        assert samples["tiered_problems_ended_total", (("class", "Unavailable"),)] == met
        assert samples["tiered_oldest_problem_seconds", ()] == 0


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (DOWN, "http://s3:9000"),
        (Unavailable("x", store="s3://orders"), "s3://orders"),
        (AccessDenied("x", cause="eacces", path="/var/log/t-0"), "/var/log/t-0"),
        (AccessDenied("x", code="InvalidAccessKeyId"), "AWS_PROFILE"),
        (NotFound("x", directory="/mnt/bucket"), "/mnt/bucket"),
        (DiskFailed("x", path="/var/log", cause="eio"), "docs/runbooks/log-dir-offline.md"),
        (DiskFailed("x", path="/var/log", cause="enospc"), "docs/runbooks/disk-full.md"),
        (Corrupt("x"), "docs/runbooks/corruption.md"),
        (InvalidRequest("x", key="retention.ms"), "correct the named setting"),
        (LogError("x"), "docs/runbooks/unopened.md"),
    ],
)
def test_next_step_names_what_to_check_and_not_status_or_doctor(error: LogError, named: str) -> None:
    for step in (next_step(error), step_of(type(error).__name__, {})):
        assert "tiered doctor" not in step
        assert "tiered status" not in step
    assert named in next_step(error)


class SmallDisk(ModelDisk):
    """A disk that reports its free bytes."""

    free = TOTAL

    def space(self, path: str) -> Space:
        return Space(self.free, TOTAL)


@pytest.fixture
def world() -> World:
    found = World()
    found.disk = SmallDisk()
    return found


def bases(manager: LogManager) -> list[int]:
    return [each.base_offset for each in manager.partitions.find(NAME).log.segments()]


def test_appends_are_refused_below_the_free_space_limit_and_accepted_above(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, KEPT, now_ms=NOW)
        send(manager, 10)
        world.disk.free = 32 * MIB - 1
        with pytest.raises(DiskFailed, match="nearly full") as caught:
            send(manager, 10, start=10)
        assert (caught.value.facts["cause"], caught.value.facts["free_bytes"]) == ("enospc", 32 * MIB - 1)
        assert manager.partitions.find(NAME).log.next_offset == 10
        world.disk.free = 32 * MIB
        send(manager, 10, start=10)
        assert manager.partitions.find(NAME).log.next_offset == 20
        assert manager.problems == {}


def test_copied_segments_are_dropped_early_oldest_first_and_only_as_needed(world: World) -> None:
    with world.open(file_delete_delay_ms="60000") as manager:
        manager.topics.create("t", 1, KEPT, now_ms=NOW)
        records = send(manager, 600)
        settle(manager)
        before = bases(manager)
        assert len(before) > 4
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        sizes = [each.size_bytes for each in manager.partitions.find(NAME).log.segments()]
        world.disk.free = 128 * MIB - sizes[0] - 1  # more than the first segment frees, less than the first two free
        worker.round(NOW)
        assert bases(manager) == before[2:]
        worker.round(NOW + 1000)
        assert bases(manager) == before[2:], "bytes of segments whose deletion is scheduled must count as free"
        worker.round(NOW + 2 * 60_000)
        assert len(bases(manager)) < len(before) - 2, (
            "more segments must be dropped, because the disk is as full as before"
        )
        assert [value for _, value in values(manager.reader())] == [each.value for each in records]


def test_full_disk_drops_no_segment_without_a_remote_copy(world: World) -> None:
    store = SwitchableStore(world.store, is_down=False)
    with world.open(store=store) as manager:
        manager.topics.create("t", 1, KEPT, now_ms=NOW)
        manager.topics.create("untiered", 1, {}, now_ms=NOW)
        send(manager, 200)
        send(manager, 200, topic="untiered")
        store.is_down = True
        world.disk.free = 0
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        before = bases(manager)
        for at in range(3):
            worker.round(NOW + at * HOUR)
        assert bases(manager) == before
        assert manager.partitions.find(TopicPartition("untiered", 0)).log.log_start_offset == 0
        store.is_down = False
        while worker.round(NOW + 4 * HOUR):
            pass
        assert len(bases(manager)) == 1, "the segment must be dropped after its upload"


def test_disk_with_free_space_or_limit_zero_drops_nothing_early(world: World) -> None:
    for free, limit in ((128 * MIB, "128MiB"), (0, "0")):
        fresh = World()
        fresh.disk = SmallDisk()
        with fresh.open(log_dir_relief_free_bytes_min=limit) as manager:
            manager.topics.create("t", 1, KEPT, now_ms=NOW)
            send(manager, 200)
            settle(manager)
            before = bases(manager)
            fresh.disk.free = free
            Worker(manager, now_ms=NOW, interval_ms=30_000).round(NOW)
            assert bases(manager) == before


def snapshot(name: TopicPartition, rows: list[tuple[int, int]], ages: list[int]) -> PartitionSnapshot:
    """Segments of ten records with the given ages in milliseconds. The last segment is active."""
    last = len(ages) - 1
    return PartitionSnapshot(
        partition=name,
        rules=KEEP,
        now_ms=THEN,
        log_start_offset=0,
        next_offset=10 * len(ages),
        stable_offset=10 * len(ages),
        segments=tuple(local(10 * at, 10 * at + 10, age=age, active=at == last) for at, age in enumerate(ages)),
        is_tiered=True,
        remote=tuple(entry(*each) for each in rows),
    )


def chosen(wanted: int, *snapshots: PartitionSnapshot) -> list[tuple[str, int]]:
    return [(str(name), each.base_offset) for name, drops in disk_relief(snapshots, wanted).items() for each in drops]


def test_policy_drops_the_oldest_of_all_partitions_up_to_the_first_uncopied() -> None:
    one, two = TopicPartition("a", 0), TopicPartition("b", 0)
    all_rows = [(0, 10), (10, 20), (20, 30), (30, 40)]
    first = snapshot(one, all_rows, [900, 700, 500, 0])
    assert chosen(0, first) == []
    assert chosen(1, first) == [("a/0", 0)]
    assert chosen(101, first) == [("a/0", 0), ("a/0", 10)]
    assert chosen(10**6, first) == [("a/0", 0), ("a/0", 10), ("a/0", 20)], "the active segment must never be dropped"
    assert chosen(10**6, snapshot(one, [(0, 10), (20, 30)], [900, 700, 500, 0])) == [("a/0", 0)], (
        "no segment after a gap may be dropped"
    )
    assert chosen(10**6, snapshot(one, [(10, 20)], [900, 700, 500, 0])) == []
    second = snapshot(two, all_rows, [800, 600, 400, 0])
    assert chosen(300, first, second) == [("a/0", 0), ("a/0", 10), ("b/0", 0)]


@pytest.mark.parametrize("seed", range(20))
def test_early_drops_violate_no_invariant(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        count = rng.randrange(1, 8)
        rows = [(10 * at, 10 * at + 10) for at in range(count) if rng.random() < 0.8]
        one = snapshot(NAME, rows, sorted((rng.randrange(1000) for _ in range(count)), reverse=True))
        for drops in disk_relief([one], rng.randrange(1000)).values():
            assert violations(one, drops) == []
