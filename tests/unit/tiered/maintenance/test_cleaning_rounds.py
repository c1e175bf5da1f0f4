"""The cleaner in a manager: order of logs, threads, limits, uncleanable logs and aborted passes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from disk_model import ModelDisk
from manager_world import HOUR, NAME, NOW, World, send, settle, values

from local import names
from local.cleaner import cleaner
from local.errors import CleaningAborted, Corrupt, DiskFailed
from local.format.record import Record
from local.log import Log, checkpoints
from local.log.log_state import Cleaning as Gate
from local.names import TopicPartition
from local.storage.throttle import Throttle
from tiered.maintenance import cleaning
from tiered.maintenance.cleaning import LOGS_PER_THREAD
from tiered.manager.manager import LogManager
from tiered.service.worker import Worker
from tiered.status.status_report import status_report
from tiered.web.http.server import health_answer

LOCAL = {"cleanup.policy": "compact"}


@pytest.fixture
def world() -> World:
    return World()


def dirty(manager: LogManager, partitions: int = 1, topic: str = "t") -> None:

    manager.topics.create(topic, partitions, LOCAL, now_ms=NOW)
    for number in range(partitions):
        for at in range(0, 200, 10):
            records = [Record(b"k%d" % ((at + n) % 9), b"value %d" % (at + n), NOW - HOUR) for n in range(10)]
            manager.append(topic, records, number, now_ms=NOW)
    manager.partitions.roll(topic, now_ms=NOW)


def newest(manager: LogManager) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in manager.reader().records(NAME, 0, None)}


def test_cleaning_is_recorded_and_the_record_is_read_after_a_restart(world: World) -> None:
    with world.open() as manager:
        dirty(manager)
        before = newest(manager)
        settle(manager)
        (run,) = manager.cleaning.runs
        assert (run.name, run.at_ms, run.error) == (NAME, NOW, None)
        assert (run.first_dirty_offset, run.cleaner_offset) == (0, 200)
        assert run.bytes_after < run.bytes_before
        assert newest(manager) == before
    with world.open(read_only=True) as looking:
        assert looking.cleaning.runs == [run]


def test_maintenance_cleans_a_limited_number_of_logs_and_every_log_in_turn(world: World) -> None:
    count = 2 * LOGS_PER_THREAD + 1
    with world.open() as manager:
        dirty(manager, count)
        cleaned = []
        for _ in range(3):
            manager.tick(NOW)
            cleaned.append(len(manager.cleaning.runs))
        assert cleaned == [LOGS_PER_THREAD, 2 * LOGS_PER_THREAD, count]
        assert len({run.name for run in manager.cleaning.runs}) == count


def test_several_cleaner_threads_clean_at_once_with_the_same_result(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, together = cleaner.clean, threading.Barrier(3, timeout=60)

    def meet(*args: object, **kw: object) -> object:
        together.wait()  # waits until three passes run at once, or times out
        return real(*args, **kw)  # type: ignore[arg-type]

    with world.open(log_cleaner_threads="3") as manager:
        dirty(manager, 3)
        with monkeypatch.context() as patch:
            patch.setattr(cleaner, "clean", meet)
            manager.tick(NOW)
        assert manager.problems == {}
        assert sorted(run.name.partition for run in manager.cleaning.runs) == [0, 1, 2]
        assert {run.thread for run in manager.cleaning.runs} == {0, 1, 2}
        several = values(manager.reader())
    alone = World()
    with alone.open() as manager:
        dirty(manager, 3)
        settle(manager)
        assert values(manager.reader()) == several


def test_dedupe_buffer_is_divided_by_the_threads_with_at_most_2_gib_each(world: World) -> None:
    for size, threads, share in (("128MiB", "4", 32 << 20), ("64GiB", "2", 2 << 30)):
        settings = {"log_cleaner_dedupe_buffer_size": size, "log_cleaner_threads": threads}
        with world.open(**settings) as manager:
            assert manager.cleaning.settings.buffer_bytes == share


def broken(real: object, name: TopicPartition) -> object:
    def clean(log: Log, *args: object, **kw: object) -> object:
        if log.partition == name:
            raise Corrupt("cleaning a segment, planted", path="x")
        return real(log, *args, **kw)  # type: ignore[operator]

    return clean


def test_uncleanable_log_is_retried_later_and_still_known_after_a_restart(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = TopicPartition("t", 1)
    real = cleaner.clean
    with world.open() as manager:
        dirty(manager, 2)
        monkeypatch.setattr(cleaner, "clean", broken(real, NAME))
        manager.tick(NOW)
        assert isinstance(manager.problems[NAME], Corrupt)
        assert manager.cleaning.uncleanable[NAME].reason == "cleaning a segment, planted: path=x"
        assert [run.name for run in manager.cleaning.runs if run.error is None] == [other]
        failures = len(manager.cleaning.runs)
        for minutes in range(1, 10):
            manager.tick(NOW + minutes * 60_000)
        assert len(manager.cleaning.runs) == failures
    with world.open() as manager:
        assert manager.cleaning.uncleanable[NAME].retry_ms == NOW + 600_000
        assert manager.problems == {}
        (problem,) = status_report(manager, NOW + 1000, storage=world.disk).problems
        assert (problem.partition, problem.kind, problem.since_ms) == (NAME, "uncleanable", NOW)
        assert "planted" in problem.what
        assert not status_report(manager, NOW + 1000, storage=world.disk).is_healthy
        status, _, told = health_answer(Worker(manager, now_ms=NOW, interval_ms=1000).problem_lines)()
        assert (status, told) == (503, f"{NAME}: uncleanable: cleaning a segment, planted: path=x\n")
        manager.tick(NOW + 599_999)
        assert len(manager.cleaning.runs) == failures
        manager.tick(NOW + 600_000)
        assert len(manager.cleaning.runs) == failures + 1
        monkeypatch.setattr(cleaner, "clean", real)
        settle(manager, NOW + 2 * 600_000)
        assert manager.cleaning.uncleanable == {}
        assert status_report(manager, NOW + 2 * 600_000, storage=world.disk).is_healthy
        assert Worker(manager, now_ms=NOW, interval_ms=1000).problem_lines() == []


def test_disk_error_does_not_make_a_log_uncleanable(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kw: object) -> None:
        raise DiskFailed("cannot write to a file", path="x")

    with world.open() as manager:
        dirty(manager)
        with monkeypatch.context() as patch:
            patch.setattr(cleaner, "clean", fail)
            manager.tick(NOW)
        assert isinstance(manager.problems[NAME], DiskFailed)
        assert manager.cleaning.uncleanable == {}
        settle(manager)


def test_cleaning_continues_when_its_history_cannot_be_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.open() as manager:
        dirty(manager)
        real = ModelDisk._effect

        def refuse(disk: ModelDisk, what: str, act: object) -> None:
            if names.CLEANER_HISTORY in what:
                raise DiskFailed("cannot write to a file", path="history")
            real(disk, what, act)  # type: ignore[arg-type]

        monkeypatch.setattr(ModelDisk, "_effect", refuse)
        settle(manager)
        assert manager.snapshots(NOW)[0].cleaner_offset == 200


def test_cancelled_maintenance_aborts_a_cleaner_pass(world: World) -> None:
    with world.open() as manager:
        dirty(manager)
        before = newest(manager)
        planned = manager.plan(NOW)
        asked = iter([False] * 6 + [True] * 1000)
        manager.apply(planned, should_stop=lambda: next(asked))
        assert manager.snapshots(NOW)[0].cleaner_offset == 0
        assert manager.cleaning.runs == []
        assert newest(manager) == before
        settle(manager)
        assert newest(manager) == before


def wait_for_abort(log: Log, other: threading.Thread) -> None:
    while other.is_alive() and not log.cleaning.is_aborted:
        time.sleep(0)


@pytest.mark.parametrize("what", ["policy", "move"])
def test_cleaner_pass_is_aborted_by_a_policy_change_and_by_a_move(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    real = cleaner._decide
    with world.open() as manager:
        dirty(manager)

        def change() -> None:
            if what == "policy":
                manager.topics.alter("t", {"cleanup.policy": "delete"}, now_ms=NOW)
            else:
                with pytest.raises(Exception, match="directory"):
                    manager.maintenance.move(NAME, "/nowhere", now_ms=NOW)

        changing = threading.Thread(target=change)
        ended: list[str] = []

        def decide(log: Log, *args: object, **kw: object) -> object:
            changing.start()
            wait_for_abort(log, changing)
            try:
                return real(log, *args, **kw)  # type: ignore[arg-type]
            except Exception as error:
                ended.append(type(error).__name__)
                raise

        with monkeypatch.context() as patch:
            patch.setattr(cleaner, "_decide", decide)
            manager.tick(NOW)
        changing.join()
        assert ended == ["CleaningAborted"]
        assert manager.problems == {}
        assert manager.partitions.find(NAME).log.cleaning.now == Gate()


@pytest.mark.parametrize("wrong", [10_000, 3])
def test_cleaner_checkpoint_outside_its_log_is_corrected_without_a_cleaning(world: World, wrong: int) -> None:
    with world.open(min_cleanable_dirty_ratio="1") as manager:
        dirty(manager)
        log = manager.partitions.find(NAME).log
        log.raise_log_start(50)
        log.cleaner_offset = wrong
        manager.tick(NOW)
        path = "./data/" + names.CLEANER_OFFSETS
        assert checkpoints.read_offsets(world.disk, path) == {NAME: 50}


def test_cleaner_throttle_is_shared_by_all_threads_and_counts_reads_and_writes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.open(log_cleaner_threads="2", log_cleaner_io_max_bytes_per_second="1000") as manager:
        slept: list[float] = []
        throttle = partial(Throttle, clock=iter_clock(slept), sleep=slept.append)
        monkeypatch.setattr(cleaning, "Throttle", throttle)
        manager.cleaning = cleaning.Cleaning(cleaning.CleanerSettings.of(manager.config))
        manager.maintenance.cleaning = manager.cleaning
        dirty(manager, 2)
        settle(manager)
        moved = sum(run.bytes_read + run.bytes_written for run in manager.cleaning.runs)
        assert moved > 10_000
        assert sum(slept) >= moved / 1000 - 0.3 - 1e-6


def iter_clock(slept: list[float]) -> Callable[[], float]:
    return lambda: sum(slept)


def test_log_is_dirty_again_after_new_records(world: World) -> None:
    with world.open() as manager:
        dirty(manager)
        settle(manager)
        send(manager, 100, start=200)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        assert [run.first_dirty_offset for run in manager.cleaning.runs] == [0, 200]


def test_cleaner_pass_is_aborted_when_its_directory_becomes_offline(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ended = cleaner.clean, []

    def clean(log: Log, *args: object, **kw: object) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(manager.directories, "is_online", lambda name: False)
            try:
                return real(log, *args, **kw)  # type: ignore[arg-type]
            except CleaningAborted as error:
                ended.append(str(error))
                raise

    with world.open() as manager:
        dirty(manager)
        with monkeypatch.context() as patch:
            patch.setattr(cleaner, "clean", clean)
            manager.tick(NOW)
        assert ended == ["the cleaner was stopped on request: partition=t/0"]
        assert manager.snapshots(NOW)[0].cleaner_offset == 0


def test_appends_reads_and_truncation_work_while_several_threads_clean(world: World) -> None:
    """Uses a very short thread switch interval."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with world.open(log_cleaner_threads="3") as manager:
            dirty(manager, 3)
            sent = [list(manager.reader().records(TopicPartition("t", number), 0, None)) for number in range(3)]
            errors: list[BaseException] = []

            def guarded(work: Callable[[], None]) -> Callable[[], None]:
                def run() -> None:
                    try:
                        work()
                    except BaseException as error:  # noqa: BLE001 - asserted below
                        errors.append(error)

                return run

            def append() -> None:
                for at in range(300, 330):
                    manager.append("t", [Record(b"new%d" % at, b"v", NOW)], 0, now_ms=NOW)

            def read() -> None:
                for _ in range(4):
                    found = list(manager.reader().records(TopicPartition("t", 1), 0, None))
                    assert {each.key: each.value for each in found} == {each.key: each.value for each in sent[1]}

            def cut() -> None:
                manager.partitions.all()[2].log.truncate_to(195, now_ms=NOW)

            def clean() -> None:
                for _ in range(3):
                    manager.tick(NOW)

            threads = [threading.Thread(target=guarded(work)) for work in (append, read, cut, clean)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert errors == []
            manager.tick(NOW)  # a log truncated after the plan is cleaned by the next maintenance
            assert manager.problems == {}
            ends = [each.log.next_offset for each in manager.partitions.all()]
            # A batch of ten records is truncated as a whole, and no offset is given twice.
            assert ends == [230, 200, 195]
            left = list(manager.reader().records(TopicPartition("t", 2), 0, None))
            assert {each.offset: each for each in left}.items() <= {each.offset: each for each in sent[2]}.items()
    finally:
        sys.setswitchinterval(interval)


def tombstoned(manager: LogManager, settings: dict[str, str]) -> None:
    manager.topics.create("t", 1, {**LOCAL, **settings}, now_ms=NOW)
    for value in (b"v" * 300, None):
        records = [Record(b"gone", value, NOW)] + [Record(b"k%d" % at, b"x" * 100, NOW) for at in range(30)]
        manager.append("t", records, 0, now_ms=NOW)
        manager.partitions.roll("t", now_ms=NOW)


def keys_left(manager: LogManager) -> list[tuple[bytes | None, bytes | None]]:
    found = manager.reader().records(NAME, 0, None)
    return [(record.key, record.value) for record in found if record.key == b"gone"]


def test_tombstone_of_an_untiered_log_is_removed_after_its_delete_horizon(world: World) -> None:
    with world.open(delete_retention_ms="1h") as manager:
        tombstoned(manager, {})
        settle(manager)
        assert keys_left(manager) == [(b"gone", None)]
        for now in (NOW + HOUR, NOW + HOUR + 1):
            manager.append("t", [Record(b"more%d" % now, b"v", now)], 0, now_ms=now)
            manager.partitions.roll("t", now_ms=now)
            settle(manager, now)
        assert keys_left(manager) == []


@pytest.mark.parametrize(("is_tiered", "left"), [(True, [None]), (False, [])])
def test_tombstone_is_not_removed_while_the_bucket_has_an_older_record_of_its_key(
    world: World, is_tiered: bool, left: list[bytes | None]
) -> None:
    with world.open(delete_retention_ms="0") as manager:
        manager.topics.create("t", 1, {**LOCAL, "remote.storage.enable": str(is_tiered).lower()}, now_ms=NOW)
        manager.append("t", [Record(b"gone", b"v" * 300, NOW)], 0, now_ms=NOW)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        # From now on nothing is copied, so the cleaner may rewrite the tombstone on the disk.
        manager.topics.alter("t", {"remote.copy.lag.ms": "6d"}, now_ms=NOW)
        manager.append("t", [Record(b"gone", None, NOW)], 0, now_ms=NOW)
        for later in range(1, 4):
            manager.partitions.roll("t", now_ms=NOW + later)
            settle(manager, NOW + later * HOUR)
            manager.append("t", [Record(b"more%d" % later, b"v", NOW)], 0, now_ms=NOW)
        # The value was removed from the disk. The entry in the bucket still has it.
        assert [entry.record_count for entry in manager.snapshots(NOW)[0].remote] == [1] * is_tiered
        assert [value for _, value in keys_left(manager)] == left


def test_dedupe_buffer_smaller_than_one_segments_keys_cleans_in_parts_with_advice(world: World) -> None:
    from dataclasses import replace

    from tiered.status.compaction_status import compaction_advice

    with world.open() as manager:
        manager.cleaning.settings = replace(manager.cleaning.settings, buffer_bytes=64)
        dirty(manager)
        for _ in range(100):
            if not manager.tick(NOW):
                break
        assert manager.cleaning.uncleanable == {}
        runs = [run for run in manager.cleaning.runs if run.name == NAME]
        assert sum(run.is_cut for run in runs) > 1
        (advice,) = [each for each in compaction_advice(manager, NOW) if each.rule == "full-buffer"]
        assert advice.partition == NAME
        manager.cleaning.settings = replace(manager.cleaning.settings, buffer_bytes=1 << 20)
        assert "full-buffer" not in [each.rule for each in compaction_advice(manager, NOW)], (
            "there is no advice with a larger buffer"
        )
