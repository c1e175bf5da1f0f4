"""Loading many logs in parallel: one result for each log, directories side by side, progress in order."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from local.errors import Corrupt
from local.format.record import Record
from local.log import Durability
from local.names import TopicPartition
from tiered.cli import progress
from tiered.cli.session import Session
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.partition.partition_table import LoadProgress, load_logs

NOW = 1_800_000_000_000
JOBS = {root: [TopicPartition(root, number) for number in range(5)] for root in ("a", "b")}


def opened(name: TopicPartition):
    return SimpleNamespace(name=name, log=SimpleNamespace(recovered_segments=name.partition))


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_every_log_is_loaded_once_and_reported(threads: int) -> None:
    told: list[LoadProgress] = []
    calls: list[TopicPartition] = []

    def open_log(name: TopicPartition):
        calls.append(name)
        if name.partition == 3:
            raise Corrupt("loading", partition=name)
        return opened(name)

    found = load_logs(JOBS, open_log, threads_per_directory=threads, progress=told.append)
    assert sorted(calls) == list(found) == [name for names in JOBS.values() for name in names]
    assert [name for name, result in found.items() if isinstance(result, Corrupt)] == [JOBS["a"][3], JOBS["b"][3]]
    for root in JOBS:
        mine = [each for each in told if each.directory == root]
        assert [(each.done, each.total) for each in mine] == [(at, 5) for at in range(6)]
        assert mine[-1].recovered_segments == 0 + 1 + 2 + 4


def test_directories_and_their_threads_load_in_parallel() -> None:
    """Two directories with two threads each: the barrier opens only if four threads load at the same time."""
    barrier = threading.Barrier(4, timeout=60)

    def open_log(name: TopicPartition):
        barrier.wait()
        return opened(name)

    jobs = {root: names[:4] for root, names in JOBS.items()}
    assert len(load_logs(jobs, open_log, threads_per_directory=2)) == 8


def test_configured_thread_count_is_the_limit_for_one_directory() -> None:
    lock, at_work, most = threading.Lock(), 0, 0

    def open_log(name: TopicPartition):
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        with lock:
            at_work -= 1
        return opened(name)

    load_logs({"a": [TopicPartition("a", at) for at in range(200)]}, open_log, threads_per_directory=3)
    assert most <= 3


@pytest.mark.parametrize("threads", [1, 2])
def test_error_of_another_kind_than_log_error_ends_the_loading(threads: int) -> None:
    def open_log(name: TopicPartition):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_logs(JOBS, open_log, threads_per_directory=threads)


@pytest.mark.parametrize("threads", ["1", "4"])
def test_many_logs_on_two_disks_are_recovered_after_a_crash(tmp_path: Path, threads: str) -> None:
    (tmp_path / "tiered.toml").write_text('[local]\ndirs = ["one", "two"]\n[defaults]\n"segment.bytes" = 1024\n')
    config = Config.load(str(tmp_path / "tiered.toml"), {"num.recovery.threads.per.data.dir": threads})
    manager = LogManager.open(config, now_ms=NOW)
    manager.topics.create("t", 12, now_ms=NOW)
    for number in range(12):
        for _ in range(4):
            records = [Record(b"k", b"v" * 100, NOW)] * 5
            manager.append("t", records, number, now_ms=NOW, durability=Durability.FLUSHED)
    manager.abandon()
    told: list[LoadProgress] = []
    with LogManager.open(config, now_ms=NOW, progress=told.append) as manager:
        assert manager.problems == {}
        assert [manager.reader().offsets(TopicPartition("t", at)) for at in range(12)] == [(0, 20)] * 12
    ends = {each.directory: each for each in told}
    assert [(each.done, each.total) for each in ends.values()] == [(6, 6), (6, 6)]
    assert all(each.recovered_segments >= 6 * 2 for each in ends.values())
    told.clear()
    with LogManager.open(config, now_ms=NOW, progress=told.append):
        assert sum(each.recovered_segments for each in told) == 0, "a clean shutdown must leave no segment to recover"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_shown_only_when_loading_takes_long(monkeypatch, capfd, is_terminal: bool) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    told = LoadProgress(directory="/disk1", done=3, total=9, recovered_segments=4)
    with progress.load_progress(Session(directory=".")) as tell:
        tell(told)
    assert capfd.readouterr() == ("", "")
    with progress.load_progress(Session(directory=".")) as tell:
        tell(told)
        clock.now += 11
        tell(told)
    out, err = capfd.readouterr()
    assert out == ""
    assert "/disk1" in err
    assert "3/9" in err or "3 of 9 logs, 4 segments recovered" in err
    with progress.load_progress(Session(directory=".", is_quiet=True)) as tell:
        clock.now += 11
        tell(told)
    assert capfd.readouterr() == ("", "")
