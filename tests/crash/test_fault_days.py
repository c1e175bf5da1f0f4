"""Days with a fault for an hour: the manager continues, reports the problem and recovers.

A day runs on a virtual clock: rounds without waiting, and appends all day. The fault lasts from nine to ten.
`Day.check_well` and `Day.check_nothing_lost` are the checks afterwards: no problem is left, and every acknowledged
record is readable from both tiers and from the bucket alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from bucket_truth import assert_sound
from disk_model import ModelDisk
from manager_world import DAY, HOUR, NOW, World

from local.errors import AccessDenied, Corrupt, DiskFailed, LogError, NotFound, Unavailable
from local.format.record import Record
from local.log import Durability
from local.names import TopicPartition
from local.storage import Space
from remote.keys import manifest_key
from tiered.config.clock_guard import ClockGuard
from tiered.maintenance.remote_tasks import RemoteTasks
from tiered.node.problems import ReportedProblem
from tiered.observe.metrics import Metrics
from tiered.partition.partition_table import PartitionTable
from tiered.read.bucket_reader import RemoteLog
from tiered.service.observations import Observations, open_observed
from tiered.service.worker import DiskRelief, Worker
from tiered.status.status_report import StatusReport, status_report
from tiered.web.http.server import health_answer

MINUTE = 60_000
STEP = 15 * MINUTE
EACH = 24  # records of one step and partition
NINE, TEN, ELEVEN, EVENING = 4, 5, 6, 7  # day starts at five: local segments older than two hours are dropped
TOTAL = 1 << 30
TIERED = {"remote.storage.enable": "true", "local.retention.ms": "2h", "retention.ms": "7d"}
TOPICS = {
    "orders": TIERED,
    "latest": {
        **TIERED,
        "cleanup.policy": "compact",
        "segment.bytes": "1100",
        "local.retention.ms": "-1",
        "retention.ms": "-1",
    },
    "here": {"retention.ms": "7d"},
}
ORDERS, OTHERS = TopicPartition("orders", 0), TopicPartition("orders", 1)
LATEST, HERE = TopicPartition("latest", 0), TopicPartition("here", 0)
ALL = (HERE, LATEST, ORDERS, OTHERS)
WRITES = ("append", "create", "truncate", "mkdir")


class Disk(ModelDisk):
    """A disk that can be full: calls that need space fail, calls that free space succeed."""

    is_full = False

    def space(self, path: str) -> Space:
        return Space(0 if self.is_full else TOTAL // 2, TOTAL)

    def _effect(self, what: str, act: Callable[[], None]) -> None:
        if self.is_full and what.startswith(WRITES):
            raise DiskFailed("cannot write to a file", what=what, cause="enospc")
        super()._effect(what, act)


class Bucket:
    """A store that refuses every verb in one way, as a client reports it.

    The facts of the error differ from call to call.

    Refusals wait for `answers`.
    """

    def __init__(self, inner: object) -> None:
        self.inner = inner
        self.refusal: Callable[[str, object], LogError] | None = None
        self.answers = threading.Event()
        self.answers.set()

    @property
    def url(self) -> str:
        return "memory://bucket"

    def close(self) -> None: ...

    def __getattr__(self, verb: str) -> Callable[..., object]:
        act = getattr(self.inner, verb)

        def call(*args: Any, **more: Any) -> object:
            if self.refusal is not None:
                assert self.answers.wait(60), "the test's end of the round did not come"
                raise self.refusal(verb, args[0] if args and isinstance(args[0], str) else None)
            return act(*args, **more)

        return call


class Day:
    """A manager at work, its observers, and its promises to producers."""

    def __init__(self) -> None:
        self.world = World()
        self.disk = self.world.disk = Disk()
        self.bucket = Bucket(self.world.store)
        self.world.config = replace(
            self.world.config, overrides={**self.world.config.overrides, "segment.bytes": "1100"}
        )
        self.acked: dict[TopicPartition, list[Record]] = {name: [] for name in ALL}
        self.passed_ms = self.skew_ms = 0
        self.start()
        for topic, properties in TOPICS.items():
            self.manager.topics.create(topic, 2 if topic == "orders" else 1, properties, now_ms=NOW)

    @property
    def clock_ms(self) -> int:
        """The time of the machine's clock."""
        return NOW + self.passed_ms + self.skew_ms

    def start(self) -> None:
        self.seen = Observations()
        self.manager = open_observed(
            self.world.config, self.seen, now_ms=self.clock_ms, storage=self.disk, store=self.bucket
        )
        self.worker = Worker(
            self.manager,
            now_ms=self.clock_ms,
            interval_ms=30_000,
            waits=False,
            observations=self.seen,
            clock_guard=ClockGuard(DAY, counted=lambda: self.passed_ms),
        )
        self.metrics = Metrics(self.manager, self.seen, self.worker, by_partition=True)

    def until(self, hour: int) -> list[tuple[ReportedProblem, ...]]:
        """Append and run rounds until this hour of the day; return the problems reported after each round."""
        told: list[tuple[ReportedProblem, ...]] = []
        while self.passed_ms < hour * HOUR:
            self.passed_ms += STEP
            for name in ALL:
                self.append(name)
            told += self.round()
        return told

    def append(self, name: TopicPartition, count: int = EACH) -> bool:
        """Whether the records were acknowledged."""
        told = self.acked[name]
        records = [
            Record(b"k%d" % (at % 5), b"%s %d" % (str(name).encode(), at), self.clock_ms)
            for at in range(len(told), len(told) + count)
        ]
        try:
            self.manager.append(
                name.topic, records, name.partition, now_ms=self.clock_ms, durability=Durability.FLUSHED
            )
        except LogError:
            end = self.manager.partitions.find(name).log.next_offset  # unacknowledged records may be in the log too
            told += records[: end - len(told)]
            return False
        told += records
        return True

    def round(self) -> list[tuple[ReportedProblem, ...]]:
        """Run rounds until no work is left, and one more, which reports the problems of tasks."""
        told = []
        is_busy = True
        while is_busy:
            assert len(told) < 20, "the rounds do not end"
            is_busy = self.work()
            told.append(self.worker.report.troubles)
        self.work()
        return [*told, self.worker.report.troubles]

    def work(self) -> bool:
        """Run one round. Answers of the store come after it, as a refusal does after several attempts."""
        self.bucket.answers.clear()
        try:
            is_busy = self.worker.round(self.clock_ms)
        finally:
            self.bucket.answers.set()
        assert self.manager.maintenance.tasks.wait_idle(60)
        return is_busy

    # -- observers

    def health(self) -> tuple[int, str]:
        status, _, text = health_answer(self.worker.problem_lines)()
        return int(status), text

    def status(self) -> StatusReport:
        with self.world.open(read_only=True, now_ms=self.clock_ms, disk=self.disk, store=self.bucket) as manager:
            return status_report(manager, self.clock_ms, storage=self.disk)

    def metric(self, name: str, **labels: str) -> float:
        wanted = tuple(sorted(labels.items()))
        found = [each for each in self.metrics.samples(self.clock_ms) if each.name == name]
        return sum(each.value for each in found if set(wanted) <= set(each.labels))

    def expired_end_offset(self, name: TopicPartition) -> int:
        manifest = self.manager.partitions.find(name).manifest()
        assert manifest is not None
        return manifest.allocated_end_offset

    # -- checks

    def check_well(self) -> None:
        assert self.worker.problem_lines() == []
        assert self.health()[0] == 200
        report = self.status()
        assert report.is_healthy, report.problems

    def check_nothing_lost(self) -> None:
        self.check_read(self.manager.reader())
        assert_sound(self.world.store)
        bucket = RemoteLog(self.world.store)
        for name in (ORDERS, OTHERS):
            told, upto = self.acked[name], self.expired_end_offset(name)
            assert upto > 0.9 * len(told), "uploads did not continue"
            assert [each.value for each in bucket.reader().records(name, 0)] == [each.value for each in told[:upto]]

    def check_read(self, reader: Any) -> None:
        for name, told in self.acked.items():
            found = {record.offset: record.value for record in reader.records(name, 0)}
            if name == LATEST:
                newest = {record.key: record.value for record in told}
                assert set(newest.values()) <= set(found.values()), name
            else:
                assert found == {at: record.value for at, record in enumerate(told)}, name


@pytest.fixture
def day() -> Iterator[Day]:
    found = Day()
    found.until(NINE)
    found.check_well()
    yield found
    found.disk.is_full = False
    found.manager.close()


def refusing(error: type[LogError], text: str, cause: str) -> Callable[[str, object], LogError]:
    return lambda verb, key: error(f"{verb}, {text}", store="memory://bucket", key=key, cause=cause)


REFUSALS = {
    "out of reach": refusing(Unavailable, "the store cannot be reached", "timeout"),
    "deleted": refusing(NotFound, "the bucket does not exist", "NoSuchBucket"),
    "credentials expired": refusing(AccessDenied, "access was denied or the credentials are wrong", "ExpiredToken"),
}


@pytest.mark.parametrize("how", REFUSALS)
def test_manager_continues_and_recovers_when_the_bucket_is_unavailable_for_an_hour(
    day: Day, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    day.bucket.refusal = REFUSALS[how]
    before = {name: day.expired_end_offset(name) for name in (ORDERS, OTHERS)}
    kept = {name: len(day.acked[name]) for name in ALL}
    reports = day.until(TEN)
    # the other work continues
    assert {name: len(day.acked[name]) - kept[name] for name in ALL} == dict.fromkeys(ALL, EACH * HOUR // STEP)
    assert day.metric("tiered_round_failures_total") == 0
    # the problem is reported
    code, text = day.health()
    kind = type(REFUSALS[how]("", None)).__name__
    assert (code, text.count("\n")) == (503, 1), "expected one line for one cause"
    assert text.startswith(f"3 partitions ({LATEST}, {ORDERS}, {OTHERS}): ")
    assert str(REFUSALS[how]("", None).facts["cause"]) in text
    assert day.metric("tiered_partition_problems", **{"class": kind}) == 3
    assert day.metric("tiered_remote_copy_lag_bytes", topic="orders") > 0
    told = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert len(told) == 2, [each.getMessage() for each in told]  # first occurrence, and number of partitions
    since: dict[TopicPartition | None, int] = {}
    for troubles in reports:
        now = {each.name: each.since_ms for each in troubles}
        assert {each.kind for each in troubles} <= {kind}
        assert {name: now.get(name) for name in since} == since, "the problem was reported as ended in between"
        since |= now
    assert set(since) == {LATEST, ORDERS, OTHERS}
    # no record is lost, and the manager recovers without help
    assert {name: day.expired_end_offset(name) for name in (ORDERS, OTHERS)} == before
    day.bucket.refusal = None
    day.until(ELEVEN)
    day.check_well()
    day.until(EVENING)
    day.check_well()
    day.check_nothing_lost()


@pytest.mark.parametrize("how", ["deleted", "credentials expired"])
def test_opening_while_the_bucket_refuses_fails_and_a_later_open_continues(day: Day, how: str) -> None:
    """The supervisor (systemd, every 30 s) restarts the process until the bucket answers."""
    day.bucket.refusal = REFUSALS[how]
    day.until(TEN)
    day.manager.close()
    for _ in range(2):
        with pytest.raises((NotFound, AccessDenied)):
            day.start()
    day.bucket.refusal = None
    day.start()
    day.until(EVENING)
    day.check_well()
    day.check_nothing_lost()


def test_manager_continues_and_recovers_when_a_disk_is_full_for_an_hour(
    day: Day, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kept = {name: len(told) for name, told in day.acked.items()}
    day.disk.is_full = True
    reports = day.until(TEN)
    # Only durable records are acknowledged. Work that needs no space continues: copied segments are dropped from the
    # disk.
    assert {name: len(told) for name, told in day.acked.items()} == kept
    assert [each.is_active for each in day.manager.partitions.find(ORDERS).log.segments()] == [True]
    # the problem is reported
    code, text = day.health()
    assert (code, "enospc" in text) == (503, True), text
    assert all(reports[1:]) or day.status().problems
    assert day.metric("tiered_log_dir_free_bytes") == 0
    told = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert 1 <= len(told) <= 2 + len(ALL), [each.getMessage() for each in told]
    # the manager recovers without help
    day.disk.is_full = False
    day.until(ELEVEN)
    assert len(day.acked[ORDERS]) == kept[ORDERS] + EACH * HOUR // STEP
    day.check_well()
    day.until(EVENING)
    day.check_well()
    day.check_nothing_lost()


@pytest.mark.parametrize("days", [30, -3], ids=["a month ahead", "three days back"])
def test_manager_reports_a_clock_jump_of_an_hour_and_expires_nothing(
    day: Day, days: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    day.skew_ms = days * DAY
    day.until(TEN)
    # records are appended and copied, by the time before the jump
    assert len(day.acked[ORDERS]) == EACH * TEN * HOUR // STEP
    for name in (ORDERS, OTHERS):
        assert day.expired_end_offset(name) > EACH * NINE * HOUR // STEP
    # the problem is reported
    code, text = day.health()
    assert (code, text.count("\n")) == (503, 1)
    assert ("ahead=30d" if days > 0 else "back=3d") in text
    assert day.metric("tiered_clock_jump_seconds") == days * 86_400
    (trouble,) = day.worker.report.troubles
    assert (trouble.topic, trouble.since_ms <= NOW + NINE * HOUR + STEP) == (None, True)
    assert len([each for each in caplog.records if each.levelno >= logging.ERROR]) == 1
    assert [each.where for each in day.status().problems if "set the clock" in each.next_step] == ["./data"]
    # the manager recovers without help, and no record has expired
    day.skew_ms = 0
    day.until(EVENING)
    day.check_well()
    assert day.metric("tiered_clock_jump_seconds") == 0
    day.check_nothing_lost()


@pytest.mark.parametrize("days", [30, -3], ids=["a month ahead", "three days back"])
def test_a_clock_jump_that_lasts_a_day_is_accepted(day: Day, days: int) -> None:
    """The time before the jump was wrong: the machine had started with an empty clock battery."""
    day.skew_ms = days * DAY
    day.passed_ms += DAY - STEP
    day.round()
    assert "jumped" in day.health()[1]
    before = len(day.acked[ORDERS])
    day.passed_ms += DAY + STEP
    day.round()
    assert day.worker.problem_lines() == []
    day.append(ORDERS, 40)
    day.append(HERE, 40)
    day.round()
    expected = before if days > 0 else 0
    assert day.manager.reader().offsets(ORDERS) == (expected, before + 40)
    day.passed_ms += HOUR
    day.round()
    day.check_well()
    checkpoint = day.disk.read("./data/recovery-point-offset-checkpoint").decode()
    assert f"orders 0 {before + 40}" in checkpoint or days > 0, "a clock that was set back writes no checkpoints"


class RightClock:
    """A store with a right clock."""

    def __init__(self, day: Day) -> None:
        self.day = day

    def ask(self, told: Callable[[int], None], wait_s: float = 0.0) -> None:
        told(NOW + self.day.passed_ms)


@pytest.mark.parametrize("days", [3650, -3, -19_000], ids=["ten years ahead", "three days back", "1970"])
@pytest.mark.parametrize("knows", ["the last process", "the store", "both"])
def test_manager_opened_with_a_wrong_clock_continues_and_expires_nothing(day: Day, days: int, knows: str) -> None:
    day.manager.close()
    last_ms, day.skew_ms = day.clock_ms, days * DAY
    day.start()
    day.worker.clock_guard = ClockGuard(
        DAY,
        counted=lambda: day.passed_ms,
        last_ms=last_ms if knows != "the store" else None,
        has_store=knows != "the last process",
    )
    day.worker._store_clock = RightClock(day)  # type: ignore[assignment]
    day.until(TEN)
    kept = len(day.acked[ORDERS])
    assert day.expired_end_offset(OTHERS) > 0.9 * kept, "uploads stopped"
    for name in (HERE, ORDERS, OTHERS):
        assert day.manager.reader().offsets(name) == (0, len(day.acked[name])), "records have expired"
    if knows != "the store" or days > 0:  # a clock behind all known times expires nothing anyway
        assert day.health()[0] == 503
        assert day.metric("tiered_clock_jump_seconds") != 0
    day.skew_ms = 0
    day.until(EVENING)
    day.check_well()
    day.check_nothing_lost()


def test_manager_continues_with_the_rest_when_a_local_segment_is_damaged(
    day: Day, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    day.append(ORDERS, 200)
    waiting = [
        each
        for each in day.manager.partitions.find(ORDERS).log.segments()
        if each.base_offset >= day.expired_end_offset(ORDERS)
    ]
    assert len(waiting) > 2
    path = f"./data/orders-0/{waiting[1].base_offset:020}.log"
    day.disk.names[path].data[150] ^= 1
    before = {name: day.expired_end_offset(name) for name in (ORDERS, OTHERS)}
    day.until(TEN)
    # the other partitions and the appends continue
    assert day.expired_end_offset(ORDERS) <= waiting[1].base_offset
    assert day.expired_end_offset(OTHERS) > before[OTHERS]
    assert len(day.acked[ORDERS]) == len(day.acked[OTHERS]) + 200
    # the problem is reported with its place
    code, text = day.health()
    assert (code, text.count("\n"), text.startswith("orders/0: ")) == (503, 1, True), text
    assert day.metric("tiered_partition_problems", **{"class": "Corrupt"}) == 1
    (problem,) = day.status().problems
    assert (problem.where, problem.kind) == ("orders/0", "Corrupt")
    assert "tiered verify" in problem.next_step
    assert len([each for each in caplog.records if each.levelno >= logging.ERROR]) == 1
    with pytest.raises(Corrupt):
        list(day.manager.reader().records(ORDERS, waiting[1].base_offset))
    # with the right bytes restored it continues without help
    day.disk.names[path].data[150] ^= 1
    day.until(EVENING)
    day.check_well()
    day.check_nothing_lost()


def test_manager_continues_with_the_rest_when_a_manifest_is_damaged(day: Day, caplog: pytest.LogCaptureFixture) -> None:
    """The damaged object is the newest manifest, which an open reads."""
    caplog.set_level(logging.INFO)
    held = day.manager.partitions.find(ORDERS)
    manifest = held.manifest()
    assert manifest is not None
    key = held.prefix + manifest_key(manifest.sequence)
    good = day.world.store.get(key)
    day.manager.close()
    day.world.store.put(key, good[:-2] + b"?" + good[-1:])
    day.start()
    before = day.expired_end_offset(OTHERS)
    kept = len(day.acked[ORDERS])
    day.until(TEN)
    assert day.expired_end_offset(OTHERS) > before
    assert len(day.acked[ORDERS]) == kept, "an append succeeded although the offsets in the bucket are unreadable"
    code, text = day.health()
    assert (code, text.count("\n"), text.startswith("orders/0: ")) == (503, 1, True), text
    assert manifest_key(manifest.sequence) in text
    assert day.metric("tiered_partition_problems", **{"class": "Corrupt"}) == 1
    assert len([each for each in caplog.records if each.levelno >= logging.ERROR]) == 1
    assert [each.where for each in day.status().problems] == ["orders/0"]
    day.world.store.put(key, good)
    day.until(EVENING)
    day.check_well()
    day.check_nothing_lost()


# -- planted bugs are detected


def _go_by_the_clock(patch: pytest.MonkeyPatch, day: Day) -> None:
    patch.setattr(day.worker, "clock_guard", None)


def _believe_in_the_clock_at_once(patch: pytest.MonkeyPatch, day: Day) -> None:
    assert day.worker.clock_guard is not None
    day.worker.clock_guard.hold_ms = 0


def _a_roll_ends_an_uploads_trouble(patch: pytest.MonkeyPatch, day: Day) -> None:
    patch.setattr(RemoteTasks, "has_failed", lambda self, name: False)


def _each_try_is_a_line_in_the_log(patch: pytest.MonkeyPatch, day: Day) -> None:
    note = PartitionTable.note

    def noted(self: PartitionTable, name: TopicPartition, error: LogError) -> None:
        self.problems = {}
        note(self, name, error)

    patch.setattr(PartitionTable, "note", noted)
    day.manager.close()
    day.start()


def _a_task_gives_up_for_good(patch: pytest.MonkeyPatch, day: Day) -> None:
    work = day.manager.maintenance.tasks.copier_pool._work
    failed: set[object] = set()

    def once(key: object) -> bool:
        if key in failed:
            return False
        more = work(key)
        if key in day.manager.problems:
            failed.add(key)
        return more

    patch.setattr(day.manager.maintenance.tasks.copier_pool, "_work", once)


def _the_first_damage_stops_all(patch: pytest.MonkeyPatch, day: Day) -> None:
    work = day.manager.maintenance.tasks.copier_pool._work
    patch.setattr(
        day.manager.maintenance.tasks.copier_pool,
        "_work",
        lambda key: False if any(isinstance(each, Corrupt) for each in day.manager.problems.values()) else work(key),
    )


def _nobody_relieves_the_disk(patch: pytest.MonkeyPatch, day: Day) -> None:
    patch.setattr(DiskRelief, "relieve", lambda self, now_ms: 0)


def _a_full_disk_ends_the_loop(patch: pytest.MonkeyPatch, day: Day) -> None:
    """Like a round that raises: no more work is done."""
    worked = day.worker.round

    def round_(now_ms: int) -> bool:
        return False if day.worker.round_error is not None else worked(now_ms)

    patch.setattr(day.worker, "round", round_)


GONE, FULL, JUMP, DAMAGE = (
    test_manager_continues_and_recovers_when_the_bucket_is_unavailable_for_an_hour,
    test_manager_continues_and_recovers_when_a_disk_is_full_for_an_hour,
    test_manager_reports_a_clock_jump_of_an_hour_and_expires_nothing,
    test_manager_continues_with_the_rest_when_a_local_segment_is_damaged,
)
PLANTS: tuple[tuple[Callable[[pytest.MonkeyPatch, Day], None], Callable[..., None], dict[str, Any]], ...] = (
    (_a_roll_ends_an_uploads_trouble, GONE, {"how": "out of reach"}),
    (_each_try_is_a_line_in_the_log, GONE, {"how": "out of reach"}),
    (_a_task_gives_up_for_good, GONE, {"how": "deleted"}),
    (_a_task_gives_up_for_good, GONE, {"how": "credentials expired"}),
    (_nobody_relieves_the_disk, FULL, {}),
    (_a_full_disk_ends_the_loop, FULL, {}),
    (_go_by_the_clock, JUMP, {"days": 30}),
    (_go_by_the_clock, JUMP, {"days": -3}),
    (_believe_in_the_clock_at_once, JUMP, {"days": 30}),
    (_the_first_damage_stops_all, DAMAGE, {}),
    (_a_task_gives_up_for_good, DAMAGE, {}),
)


@pytest.mark.deep("planted bugs of days with faults")
@pytest.mark.damages_bucket
@pytest.mark.parametrize(("plant", "scene", "words"), PLANTS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_planted_bug_fails_its_day(
    day: Day,
    plant: Callable[[pytest.MonkeyPatch, Day], None],
    scene: Callable[..., None],
    words: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch, day)
    with pytest.raises((AssertionError, LogError, ValueError)):
        scene(day, **words, caplog=caplog)
