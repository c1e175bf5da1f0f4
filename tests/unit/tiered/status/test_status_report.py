"""How a node stands, told by one that only looks: what is stuck, since when, what the manager at work left behind."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from disk_model import ModelDisk
from manager_world import DAY, HOUR, NAME, NOW, TIERED, SwitchableStore, World, send, settle

from local.errors import AccessDenied, DiskFailed, LogError, NotFound, Unavailable
from local.names import TopicPartition
from remote.manifest import commit_protocol
from remote.manifest.page_spill import SpillRule
from remote.store.memory_store import MemoryStore
from tiered.cli.node.status import deleted_lines
from tiered.config.clock_guard import Doubt
from tiered.node.work_report import FILE, KEEP_INTERVAL_MS, WorkJournal, WorkReport, read_report
from tiered.service.worker import Worker
from tiered.status.status_report import StatusReport, status_report
from tiered.status.status_rows import partition_row, status_facts, topic_row

MINUTE = 60_000


@pytest.fixture
def world() -> World:
    return World()


def looked(world: World, now_ms: int, **more: object) -> StatusReport:
    with world.open(read_only=True, now_ms=now_ms) as manager:
        return status_report(manager, now_ms, storage=world.disk, **more)


def test_a_healthy_node_has_nothing_stuck_and_says_when_it_worked_last(world: World) -> None:
    with world.open() as manager:
        manager.create_topic("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        while worker.round(NOW):
            pass
        report = looked(world, NOW + MINUTE)
        assert (report.is_healthy, report.is_at_work, report.stuck) == (True, True, ())
        assert report.partitions[NAME].lag_segments == 0
        send(manager, 10, start=200)
        manager.flush()
        report = looked(world, NOW + MINUTE)
        assert report.partitions[NAME].at_risk_bytes == report.partitions[NAME].local_bytes > 0
        assert not looked(world, NOW + HOUR).is_at_work, "no word for an hour"
        worker.end(NOW)
    report = looked(world, NOW + MINUTE)
    assert (report.is_healthy, report.is_at_work) == (True, False)


def test_an_upload_that_fails_is_stuck_since_it_failed_first_and_not_any_more_when_it_went_through(
    world: World,
) -> None:
    store = SwitchableStore(world.store, is_down=False)
    with world.open(store=store) as manager:
        manager.create_topic("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        store.is_down = True
        for at in range(12):
            assert not worker.round(NOW + at * MINUTE)
        (stuck,) = looked(world, NOW + 12 * MINUTE).stuck
        assert (stuck.where, stuck.kind, stuck.since_ms, stuck.count) == ("t/0", "Unavailable", NOW, 12)
        assert "the store is down" in stuck.what
        assert "docs/runbooks/store-fails.md" in stuck.next_step
        store.is_down = False
        while worker.round(NOW + 13 * MINUTE):
            pass
        assert looked(world, NOW + 13 * MINUTE).is_healthy


def test_work_that_waits_too_long_is_stuck_and_says_that_nobody_is_at_work(world: World) -> None:
    def told(now_ms: int, **more: int) -> StatusReport:
        return status_report(manager, now_ms, storage=world.disk, **more)

    with world.open() as manager:
        manager.create_topic("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        assert told(NOW + 29 * MINUTE).is_healthy
        (stuck,) = told(NOW + 30 * MINUTE).stuck
        assert (stuck.kind, stuck.since_ms, stuck.partition) == ("upload", NOW, NAME)
        assert "no process is at work" in stuck.next_step
        assert told(NOW + 30 * MINUTE, stuck_after_ms=HOUR).is_healthy


@pytest.mark.parametrize("in_pages", [False, True], ids=["rows", "pages"])
def test_objects_past_their_grace_time_are_overdue(world: World, monkeypatch, in_pages: bool) -> None:
    if in_pages:
        rule = SpillRule(head_bytes_max=1, page_rows_max=2, page_rows_min=1, kept_rows_min=1)
        monkeypatch.setattr(commit_protocol, "SPILL_RULE", rule)
    settings = {**TIERED, "retention.ms": str(2 * DAY), "remote.log.delete.grace.ms": str(DAY)}
    with world.open() as manager:
        manager.create_topic("t", 1, settings, now_ms=NOW)
        send(manager, 200)
        settle(manager)
        settle(manager, NOW + 3 * DAY)
        head = manager.partition(NAME).head()
        assert head is not None
        assert bool(head.unlinked_pages) == in_pages
    assert looked(world, NOW + 4 * DAY - 1).partitions[NAME].overdue_bytes == 0
    report = looked(world, NOW + 4 * DAY + HOUR)
    assert report.partitions[NAME].overdue_bytes == report.partitions[NAME].unlinked_bytes > 0
    assert [(each.kind, each.since_ms) for each in report.stuck] == [("deletion", NOW + 4 * DAY)]


def test_a_topic_that_only_compacts_waits_for_its_cleaner_and_is_not_stuck(world: World) -> None:
    with world.open() as manager:
        manager.create_topic("t", 1, {**TIERED, "cleanup.policy": "compact"}, now_ms=NOW)
        send(manager, 200)
    assert looked(world, NOW + DAY).is_healthy


def test_only_the_topics_asked_for_are_looked_at(world: World) -> None:
    with world.open() as manager:
        for topic in ("t", "u"):
            manager.create_topic(topic, 1, TIERED, now_ms=NOW)
            send(manager, 200, topic=topic)
    with world.open(read_only=True) as manager:
        report = status_report(manager, NOW + DAY, ["u"], storage=world.disk)
    assert list(report.partitions) == [TopicPartition("u", 0)]
    assert {each.where for each in report.stuck} == {"u/0"}


def test_deleted_topics_are_told_to_be_in_no_figure_until_nothing_of_them_is_left(world: World) -> None:
    with world.open() as manager:
        for topic, settings in (("t", TIERED), ("u", TIERED), ("here", {})):
            manager.create_topic(topic, 1, settings, now_ms=NOW)
            send(manager, 200, topic=topic)
        settle(manager)
        for topic in ("t", "here"):
            manager.delete_topic(topic, now_ms=NOW)
        settle(manager)
    report = looked(world, NOW)
    assert report.deleted == ("t",), "of one that was never tiered the bucket has nothing"
    assert deleted_lines(report)[0].startswith("1 deleted topic (t): what the bucket still has is paid for")
    with world.open(read_only=True) as manager:
        assert status_report(manager, NOW, ["u"], storage=world.disk).deleted == ()
    with world.open() as manager:
        for day in (2, 4, 6):
            settle(manager, NOW + day * DAY)
    assert deleted_lines(looked(world, NOW + 6 * DAY)) == []


def test_what_only_the_bucket_knows_has_no_figures_while_it_does_not_answer(world: World) -> None:
    with world.open() as manager:
        manager.create_topic("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        manager.create_topic("here", 1, now_ms=NOW)
        manager.create_topic("new", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        settle(manager)
        before = topic_row(status_report(manager, NOW, storage=world.disk), manager.topic("t"))
    with world.open(read_only=True, store=SwitchableStore(world.store)) as manager:
        report = status_report(manager, NOW, storage=world.disk)
        row, here = (topic_row(report, manager.topic(name)) for name in ("t", "here"))
    of_bucket = ("remote_segments", "remote_bytes", "lag_segments", "lag_bytes", "overdue_bytes", "lag")
    assert [row[name] for name in (*of_bucket, "dollars_per_month")] == [None] * 7
    assert before["local_bytes"] == row["local_bytes"] == row["at_risk_bytes"]
    assert int(str(before["at_risk_bytes"])) < int(str(row["at_risk_bytes"])), "the most that it can be"
    assert (here["remote_bytes"], here["dollars_per_month"]) == (0, 0)
    with world.open(read_only=True) as manager:
        report = status_report(manager, NOW, storage=world.disk)
        assert topic_row(report, manager.topic("t")) == before
        assert topic_row(report, manager.topic("new"))["remote_bytes"] == 0, "the bucket was asked, and has none"


@pytest.mark.parametrize("error", [AccessDenied, NotFound, Unavailable])
def test_a_bucket_that_refuses_or_is_not_there_takes_no_figure_of_the_disk(world: World, error: type[LogError]) -> None:
    with world.open() as manager:
        manager.create_topic("t", 2, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        manager.create_topic("here", 1, now_ms=NOW)
        send(manager, 200)
        send(manager, 200, topic="here")
        settle(manager)
        before = topic_row(status_report(manager, NOW, storage=world.disk), manager.topic("t"))
    store = RefusingStore(world.store, error)
    with world.open(read_only=True, store=store) as manager:  # type: ignore[arg-type]
        report = status_report(manager, NOW, storage=world.disk)
        row, here = (topic_row(report, manager.topic(name)) for name in ("t", "here"))
        assert row["local_bytes"] == row["at_risk_bytes"] == before["local_bytes"]
        assert (row["remote_bytes"], row["dollars_per_month"]) == (None, None)
        assert int(str(here["local_bytes"])) > 0
        assert [(each.where, each.kind) for each in report.stuck] == [(f"t/{at}", error.__name__) for at in (0, 1)]
        assert not report.is_healthy
        local = manager.partition(NAME).log.local_log_start_offset
        assert next(iter(manager.reader().records(NAME, local))).offset == local, "the disk alone answers"
    for refused in (AccessDenied, NotFound):
        with pytest.raises(refused):  # whoever works does not begin
            world.open(store=RefusingStore(world.store, refused))  # type: ignore[arg-type]


class RefusingStore:
    """Every call fails so."""

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


def test_a_topic_of_which_only_some_was_read_has_no_sum_of_its_remote_tier(world: World) -> None:
    with world.open() as manager:
        manager.create_topic("t", 2, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 200)
        settle(manager)
        other = manager.partition(TopicPartition("t", 1)).prefix
    store = SwitchableStore(world.store, is_down=False)

    class Half:
        """One partition's objects are out of reach."""

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
        row = topic_row(report, manager.topic("t"))
        parts = [partition_row(report, TopicPartition("t", number)) for number in (0, 1)]
    assert row["remote_bytes"] is None
    assert row["local_bytes"] == sum(int(str(each["local_bytes"])) for each in parts)
    assert int(str(parts[0]["remote_bytes"])) > 0
    assert parts[1]["remote_bytes"] is None
    assert list(report.unread) == [TopicPartition("t", 1)]
    assert len(row["problems"]) == 1  # type: ignore[arg-type]


# -- the report of a manager at work


def journal(disk: ModelDisk) -> WorkJournal:
    disk.make_directory("./data")
    return WorkJournal(lambda: (disk, "./data"), pid=7, started_ms=NOW, interval_ms=30_000)


def test_the_report_is_written_when_something_changes_and_once_in_a_while_otherwise() -> None:
    disk = ModelDisk()
    notes = journal(disk)
    written = []
    for at in range(0, 4 * KEEP_INTERVAL_MS, KEEP_INTERVAL_MS // 3):
        notes.note_round({}, NOW + at)
        written.append(read_report([(disk, "./data")]).round_ms - NOW)
    assert len(set(written)) == 4
    notes.note_round({NAME: Unavailable("writing", store="s")}, NOW + 4 * KEEP_INTERVAL_MS)
    assert [each.name for each in read_report([(disk, "./data")]).troubles] == [NAME]


def test_trouble_of_another_kind_begins_anew_and_another_text_of_the_same_does_not() -> None:
    notes = journal(ModelDisk())
    for at, error in enumerate([Unavailable("a"), Unavailable("b"), DiskFailed("c")]):
        notes.note_round({NAME: error}, NOW + at)
        (trouble,) = notes.report.troubles
        assert (trouble.since_ms - NOW, trouble.count) == [(0, 1), (0, 2), (2, 1)][at]
        assert trouble.message == str(error)


@pytest.mark.parametrize("body", [b"", b"{}", b"rubbish", b'{"version": 2}'])
def test_a_report_that_cannot_be_read_is_none(body: bytes) -> None:
    disk = ModelDisk()
    disk.make_directory("./data")
    disk.create(f"./data/{FILE}").append(body)
    assert read_report([(disk, "./data"), (disk, "./elsewhere")]) is None


def test_a_report_of_a_later_version_is_left_alone() -> None:
    disk = ModelDisk()
    notes = journal(disk)
    notes.note_round({}, NOW)
    body = msgspec.json.decode(disk.read(f"./data/{FILE}"))
    disk.create(f"./data/{FILE}").append(msgspec.json.encode({**body, "version": 2}))
    assert read_report([(disk, "./data")]) is None


def test_who_goes_by_another_time_than_the_machines_is_at_work() -> None:
    disk = ModelDisk()
    notes = journal(disk)
    doubt = Doubt(since_ms=NOW + 40 * DAY, seen_ms=NOW + 41 * DAY)
    notes.note_round({}, NOW, wall_ms=NOW + 41 * DAY, doubt=doubt)
    report = read_report([(disk, "./data")])
    assert report is not None
    assert report.doubt == doubt
    assert report.is_at_work(NOW + 41 * DAY)
    assert not report.is_at_work(NOW + 42 * DAY)


def test_a_disk_that_refuses_the_report_ends_no_work(world: World, monkeypatch) -> None:
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
        (WORKED, 4712, HOUR, True, "process 4712 is at work here, and has left no report"),
        (msgspec.structs.replace(WORKED, is_ended=True), 4712, HOUR, True, "left no report"),
        (msgspec.structs.replace(WORKED, is_ended=True), None, MINUTE, False, None),
        (None, 4712, 0, True, "left no report"),
        (None, None, 0, False, None),
    ],
)
def test_whoever_holds_the_directory_is_at_work_whatever_could_be_written(
    world: World, work: WorkReport | None, holder: int | None, after_ms: int, is_at_work: bool, told: str | None
) -> None:
    with world.open() as manager:
        manager.create_topic("t", 1, TIERED, now_ms=NOW)
        send(manager, 20)
    if work is not None:
        world.disk.create(f"./data/{FILE}").append(msgspec.json.encode(work))
    report = looked(world, NOW + after_ms, holder_of={"./data/.lock": holder}.get)
    assert report.is_at_work is is_at_work
    assert (told is None) is (report.silent_holder is None)
    assert (told or "") in (report.silent_holder or "")
    assert status_facts(report)["is_at_work"] is is_at_work


def test_a_round_that_the_disk_breaks_off_is_noted_and_the_next_one_goes_on(world: World, monkeypatch) -> None:
    with world.open() as manager:
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        with monkeypatch.context() as patch:
            patch.setattr(
                type(manager), "tick", lambda *words, **more: (_ for _ in ()).throw(DiskFailed("x", cause="enospc"))
            )
            assert not worker.round(NOW)
        (stuck,) = looked(world, NOW).stuck
        assert (stuck.kind, stuck.partition, stuck.since_ms) == ("DiskFailed", None, NOW)
        worker.round(NOW + MINUTE)
        assert worker.trouble is None
        assert looked(world, NOW + MINUTE).is_healthy
