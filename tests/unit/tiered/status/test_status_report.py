"""Status report of a read-only open: problems and their start, and the report that the running manager wrote."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from disk_model import ModelDisk
from manager_world import DAY, HOUR, NAME, NOW, TIERED, SwitchableStore, World, send, settle

from local.errors import AccessDenied, DiskFailed, LogError, NotFound, Unavailable
from local.names import TopicPartition
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
from remote.store.memory_store import MemoryStore
from tiered.cli.node.status import deleted_lines
from tiered.config.clock_guard import ClockSuspicion
from tiered.node.problems import KEEP_INTERVAL_MS, REPORT_FILE, WorkJournal, WorkReport, read_report
from tiered.service.worker import Worker
from tiered.status.status_report import StatusReport, partition_row, status_facts, status_report, topic_row

MINUTE = 60_000


@pytest.fixture
def world() -> World:
    return World()


def looked(world: World, now_ms: int, **more: object) -> StatusReport:
    with world.open(read_only=True, now_ms=now_ms) as manager:
        return status_report(manager, now_ms, storage=world.disk, **more)


def test_healthy_node_has_no_problem_and_reports_its_last_maintenance(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        while worker.round(NOW):
            pass
        report = looked(world, NOW + MINUTE)
        assert (report.is_healthy, report.is_at_work, report.problems) == (True, True, ())
        assert report.partitions[NAME].lag_segments == 0
        send(manager, 10, start=200)
        manager.flush()
        report = looked(world, NOW + MINUTE)
        assert report.partitions[NAME].at_risk_bytes == report.partitions[NAME].local_bytes > 0
        assert not looked(world, NOW + HOUR).is_at_work, "a node without a report for an hour must not count as running"
        worker.end(NOW)
    report = looked(world, NOW + MINUTE)
    assert (report.is_healthy, report.is_at_work) == (True, False)


def test_failed_upload_is_a_problem_from_its_first_failure_until_it_succeeds(
    world: World,
) -> None:
    store = SwitchableStore(world.store, is_down=False)
    with world.open(store=store) as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        store.is_down = True
        for at in range(12):
            assert not worker.round(NOW + at * MINUTE)
        (problem,) = looked(world, NOW + 12 * MINUTE).problems
        assert (problem.where, problem.kind, problem.since_ms, problem.count) == ("t/0", "Unavailable", NOW, 12)
        assert "the store is down" in problem.what
        assert "docs/runbooks/store-fails.md" in problem.next_step
        store.is_down = False
        while worker.round(NOW + 13 * MINUTE):
            pass
        assert looked(world, NOW + 13 * MINUTE).is_healthy


def test_overdue_upload_is_a_problem_that_names_the_missing_process(world: World) -> None:
    def told(now_ms: int, **more: int) -> StatusReport:
        return status_report(manager, now_ms, storage=world.disk, **more)

    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        assert told(NOW + 29 * MINUTE).is_healthy
        (problem,) = told(NOW + 30 * MINUTE).problems
        assert (problem.kind, problem.since_ms, problem.partition) == ("upload", NOW, NAME)
        assert "no manager runs on this directory" in problem.next_step
        assert told(NOW + 30 * MINUTE, stuck_after_ms=HOUR).is_healthy


@pytest.mark.parametrize("in_pages", [False, True], ids=["rows", "pages"])
def test_pending_deletes_past_their_grace_period_are_overdue(world: World, monkeypatch, in_pages: bool) -> None:
    if in_pages:
        rule = PageRule(manifest_bytes_max=1, page_rows_max=2, page_rows_min=1, kept_entries_min=1)
        monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    settings = {**TIERED, "retention.ms": str(2 * DAY), "remote.log.delete.grace.ms": str(DAY)}
    with world.open() as manager:
        manager.topics.create("t", 1, settings, now_ms=NOW)
        send(manager, 200)
        settle(manager)
        settle(manager, NOW + 3 * DAY)
        manifest = manager.partitions.find(NAME).manifest()
        assert manifest is not None
        assert bool(manifest.pending_page_deletes) == in_pages
    assert looked(world, NOW + 4 * DAY - 1).partitions[NAME].overdue_bytes == 0
    report = looked(world, NOW + 4 * DAY + HOUR)
    assert report.partitions[NAME].overdue_bytes == report.partitions[NAME].unlinked_bytes > 0
    assert [(each.kind, each.since_ms) for each in report.problems] == [("deletion", NOW + 4 * DAY)]


def test_compacted_topic_that_waits_for_its_cleaner_is_no_problem(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "cleanup.policy": "compact"}, now_ms=NOW)
        send(manager, 200)
    assert looked(world, NOW + DAY).is_healthy


def test_status_covers_only_the_requested_topics(world: World) -> None:
    with world.open() as manager:
        for topic in ("t", "u"):
            manager.topics.create(topic, 1, TIERED, now_ms=NOW)
            send(manager, 200, topic=topic)
    with world.open(read_only=True) as manager:
        report = status_report(manager, NOW + DAY, ["u"], storage=world.disk)
    assert list(report.partitions) == [TopicPartition("u", 0)]
    assert {each.where for each in report.problems} == {"u/0"}


def test_deleted_topics_are_listed_until_their_objects_are_deleted(world: World) -> None:
    with world.open() as manager:
        for topic, settings in (("t", TIERED), ("u", TIERED), ("here", {})):
            manager.topics.create(topic, 1, settings, now_ms=NOW)
            send(manager, 200, topic=topic)
        settle(manager)
        for topic in ("t", "here"):
            manager.topics.delete(topic, now_ms=NOW)
        settle(manager)
    report = looked(world, NOW)
    assert report.deleted == ("t",), "a topic that was never tiered has no objects, so it must not be listed"
    assert deleted_lines(report)[0].startswith(
        "1 deleted topic (t): its objects in the bucket still cost money and are not in these figures"
    )
    with world.open(read_only=True) as manager:
        assert status_report(manager, NOW, ["u"], storage=world.disk).deleted == ()
    with world.open() as manager:
        for day in (2, 4, 6):
            settle(manager, NOW + day * DAY)
    assert deleted_lines(looked(world, NOW + 6 * DAY)) == []


def test_remote_figures_are_null_while_the_bucket_does_not_answer(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        manager.topics.create("here", 1, now_ms=NOW)
        manager.topics.create("new", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        settle(manager)
        before = topic_row(status_report(manager, NOW, storage=world.disk), manager.topics.get("t"))
    with world.open(read_only=True, store=SwitchableStore(world.store)) as manager:
        report = status_report(manager, NOW, storage=world.disk)
        row, here = (topic_row(report, manager.topics.get(name)) for name in ("t", "here"))
    of_bucket = ("remote_segments", "remote_bytes", "lag_segments", "lag_bytes", "overdue_bytes", "lag_since_ms")
    assert [row[name] for name in (*of_bucket, "dollars_per_month")] == [None] * 7
    assert before["local_bytes"] == row["local_bytes"] == row["at_risk_bytes"]
    assert int(str(before["at_risk_bytes"])) < int(str(row["at_risk_bytes"])), "the figure must be an upper bound"
    assert (here["remote_bytes"], here["dollars_per_month"]) == (0, 0)
    with world.open(read_only=True) as manager:
        report = status_report(manager, NOW, storage=world.disk)
        assert topic_row(report, manager.topics.get("t")) == before
        assert topic_row(report, manager.topics.get("new"))["remote_bytes"] == 0, (
            "the bucket was read and has no objects of the topic"
        )


@pytest.mark.parametrize("error", [AccessDenied, NotFound, Unavailable])
def test_bucket_that_refuses_or_is_missing_leaves_local_figures_intact(world: World, error: type[LogError]) -> None:
    with world.open() as manager:
        manager.topics.create("t", 2, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        manager.topics.create("here", 1, now_ms=NOW)
        send(manager, 200)
        send(manager, 200, topic="here")
        settle(manager)
        before = topic_row(status_report(manager, NOW, storage=world.disk), manager.topics.get("t"))
    store = RefusingStore(world.store, error)
    with world.open(read_only=True, store=store) as manager:  # type: ignore[arg-type]
        report = status_report(manager, NOW, storage=world.disk)
        row, here = (topic_row(report, manager.topics.get(name)) for name in ("t", "here"))
        assert row["local_bytes"] == row["at_risk_bytes"] == before["local_bytes"]
        assert (row["remote_bytes"], row["dollars_per_month"]) == (None, None)
        assert int(str(here["local_bytes"])) > 0
        assert [(each.where, each.kind) for each in report.problems] == [(f"t/{at}", error.__name__) for at in (0, 1)]
        assert not report.is_healthy
        local = manager.partitions.find(NAME).log.local_log_start_offset
        assert next(iter(manager.reader().records(NAME, local))).offset == local, "the local log alone must answer"
    for refused in (AccessDenied, NotFound):
        with pytest.raises(refused):  # an open for writing must fail
            world.open(store=RefusingStore(world.store, refused))  # type: ignore[arg-type]


class RefusingStore:
    """A store on which every call fails with `error`, if one is set."""

    def __init__(self, inner: MemoryStore, error: type[LogError] | None) -> None:
        self.inner, self.error, self.url = inner, error, inner.url

    def close(self) -> None:
        self.inner.close()

    def __getattr__(self, verb: str) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            if self.error is not None:
                raise self.error(f"{verb}, refused", store=self.url)
            return getattr(self.inner, verb)(*args, **more)

        return call


def test_partly_read_topic_has_no_sum_of_its_remote_tier(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 2, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 200)
        settle(manager)
        other = manager.partitions.find(TopicPartition("t", 1)).prefix
    store = SwitchableStore(world.store, is_down=False)

    class Half:
        """A store that does not answer for the objects of one partition."""

        url = store.url

        def close(self) -> None:
            store.close()

        def __getattr__(self, verb: str) -> Callable[..., object]:
            def call(*args: object, **more: object) -> object:
                if args and str(args[0]).startswith(other):
                    raise Unavailable("the store is down", verb=verb)
                return getattr(store, verb)(*args, **more)

            return call

    with world.open(read_only=True, store=Half()) as manager:  # type: ignore[arg-type]
        report = status_report(manager, NOW, storage=world.disk)
        row = topic_row(report, manager.topics.get("t"))
        parts = [partition_row(report, TopicPartition("t", number)) for number in (0, 1)]
    assert row["remote_bytes"] is None
    assert row["local_bytes"] == sum(int(str(each["local_bytes"])) for each in parts)
    assert int(str(parts[0]["remote_bytes"])) > 0
    assert parts[1]["remote_bytes"] is None
    assert list(report.unread) == [TopicPartition("t", 1)]
    assert len(row["problems"]) == 1  # type: ignore[arg-type]


# -- report of the running manager


def journal(disk: ModelDisk) -> WorkJournal:
    disk.make_directory("./data")
    return WorkJournal(lambda: (disk, "./data"), pid=7, started_ms=NOW, interval_ms=30_000)


def test_report_is_written_on_changes_and_otherwise_once_per_interval() -> None:
    disk = ModelDisk()
    notes = journal(disk)
    written = []
    for at in range(0, 4 * KEEP_INTERVAL_MS, KEEP_INTERVAL_MS // 3):
        notes.note_round({}, NOW + at)
        written.append(read_report([(disk, "./data")]).round_ms - NOW)
    assert len(set(written)) == 4
    notes.note_round({NAME: Unavailable("writing", store="s")}, NOW + 4 * KEEP_INTERVAL_MS)
    assert [each.name for each in read_report([(disk, "./data")]).troubles] == [NAME]


def test_problem_of_another_class_restarts_and_another_message_does_not() -> None:
    notes = journal(ModelDisk())
    for at, error in enumerate([Unavailable("a"), Unavailable("b"), DiskFailed("c")]):
        notes.note_round({NAME: error}, NOW + at)
        (trouble,) = notes.report.troubles
        assert (trouble.since_ms - NOW, trouble.count) == [(0, 1), (0, 2), (2, 1)][at]
        assert trouble.message == str(error)


@pytest.mark.parametrize("body", [b"", b"{}", b"rubbish", b'{"version": 2}'])
def test_unreadable_report_counts_as_no_report(body: bytes) -> None:
    disk = ModelDisk()
    disk.make_directory("./data")
    disk.create(f"./data/{REPORT_FILE}").append(body)
    assert read_report([(disk, "./data"), (disk, "./elsewhere")]) is None


def test_report_of_a_later_version_counts_as_no_report() -> None:
    disk = ModelDisk()
    notes = journal(disk)
    notes.note_round({}, NOW)
    body = msgspec.json.decode(disk.read(f"./data/{REPORT_FILE}"))
    disk.create(f"./data/{REPORT_FILE}").append(msgspec.json.encode({**body, "version": 2}))
    assert read_report([(disk, "./data")]) is None


def test_manager_that_distrusts_the_wall_clock_counts_as_running() -> None:
    disk = ModelDisk()
    notes = journal(disk)
    suspicion = ClockSuspicion(since_ms=NOW + 40 * DAY, seen_ms=NOW + 41 * DAY)
    notes.note_round({}, NOW, wall_ms=NOW + 41 * DAY, suspicion=suspicion)
    report = read_report([(disk, "./data")])
    assert report is not None
    assert report.suspicion == suspicion
    assert report.is_at_work(NOW + 41 * DAY)
    assert not report.is_at_work(NOW + 42 * DAY)


def test_disk_that_refuses_the_report_does_not_stop_maintenance(world: World, monkeypatch) -> None:
    with world.open() as manager:
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)

        def full(*words: object) -> None:
            raise DiskFailed("writing", cause="enospc")

        monkeypatch.setattr(WorkJournal, "keep", full)
        worker.round(NOW)
        worker.end(NOW)


WORKED = WorkReport(pid=4711, started_ms=NOW, round_ms=NOW, interval_ms=30_000)


@pytest.mark.parametrize(
    ("work", "holder", "after_ms", "is_at_work", "told"),
    [
        (WORKED, 4711, MINUTE, True, None),
        (WORKED, None, MINUTE, True, None),
        (WORKED, None, HOUR, False, None),
        (WORKED, 4711, HOUR, True, "its report is 1h old"),
        (WORKED, 4712, HOUR, True, "process 4712 runs on this directory, and has written no report"),
        (
            msgspec.structs.replace(WORKED, is_ended=True),
            4712,
            HOUR,
            True,
            "and has written no report of its maintenance",
        ),
        (msgspec.structs.replace(WORKED, is_ended=True), None, MINUTE, False, None),
        (None, 4712, 0, True, "and has written no report of its maintenance"),
        (None, None, 0, False, None),
    ],
)
def test_holder_of_the_directory_lock_counts_as_running_without_a_report(
    world: World, work: WorkReport | None, holder: int | None, after_ms: int, is_at_work: bool, told: str | None
) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 20)
    if work is not None:
        world.disk.create(f"./data/{REPORT_FILE}").append(msgspec.json.encode(work))
    report = looked(world, NOW + after_ms, holder_of={"./data/.lock": holder}.get)
    assert report.is_at_work is is_at_work
    assert (told is None) is (report.silent_holder is None)
    assert (told or "") in (report.silent_holder or "")
    assert status_facts(report).is_at_work is is_at_work


def test_maintenance_round_stopped_by_the_disk_is_reported_and_the_next_continues(world: World, monkeypatch) -> None:
    with world.open() as manager:
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        with monkeypatch.context() as patch:
            patch.setattr(
                type(manager), "tick", lambda *words, **more: (_ for _ in ()).throw(DiskFailed("x", cause="enospc"))
            )
            assert not worker.round(NOW)
        (problem,) = looked(world, NOW).problems
        assert (problem.kind, problem.partition, problem.since_ms) == ("DiskFailed", None, NOW)
        worker.round(NOW + MINUTE)
        assert worker.round_error is None
        assert looked(world, NOW + MINUTE).is_healthy
