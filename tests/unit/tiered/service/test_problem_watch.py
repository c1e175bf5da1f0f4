"""Start and end of a problem are logged once for each cause and counted. The next step names what to check."""

from __future__ import annotations

import pytest
from manager_world import NOW, TIERED, SwitchableStore, World, settle

from local.errors import AccessDenied, Corrupt, DiskFailed, Fenced, InvalidRequest, LogError, NotFound, Unavailable
from local.names import TopicPartition
from tiered.node.next_steps import next_step, step_of
from tiered.observe.metrics import Metrics
from tiered.service.observations import Observations
from tiered.service.problem_watch import ProblemWatch
from tiered.service.worker import Worker
from tiered.status.status_report import status_report

MINUTE = 60_000
DOWN = Unavailable("cannot read an object", endpoint="http://s3:9000", cause="refused")


def names(count: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in range(count)]


def test_200_partitions_with_one_cause_log_one_line_at_start_and_one_at_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = ProblemWatch()
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
    watch, (name,) = ProblemWatch(), names(1)
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
        manager.create_topic("t", 20, TIERED, now_ms=NOW)
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
