"""One directory of logs: what its checkpoints keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from disk_model import ModelDisk
from log_world import SMALL

from local.errors import DiskFailed
from local.format.record import Record
from local.log.checkpoints import read_offsets
from local.logdirs.log_dir import LogDirectory
from local.names import CLEAN_SHUTDOWN, TopicPartition, new_topic_id

OPENED, LEFT = TopicPartition("opened", 0), TopicPartition("left", 1)
COMPACTED = replace(SMALL, is_compacted=True)
FILES = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint")


def _checkpointed(disk: ModelDisk) -> list[dict[TopicPartition, int]]:
    return [read_offsets(disk, f"./data/{name}") for name in FILES]


def _with_two_partitions() -> ModelDisk:
    disk = ModelDisk()
    directory = LogDirectory(disk, "./data")
    for name in (OPENED, LEFT):
        directory.create(name, new_topic_id())
        log = directory.open_log(name, COMPACTED, now_ms=0)
        log.append([Record(b"k", b"v", at) for at in range(20)], now_ms=0)
        log.raise_log_start(7)
        log.cleaner_offset = 5
    directory.close()
    return disk


def test_checkpoints_keep_what_they_know_of_partitions_that_are_not_open() -> None:
    disk = _with_two_partitions()
    before = _checkpointed(disk)
    assert [offsets[LEFT] for offsets in before] == [20, 7, 5]
    for end in (LogDirectory.close, LogDirectory.abandon):
        directory = LogDirectory(disk, "./data")
        directory.open_log(OPENED, COMPACTED, now_ms=0)
        directory.write_checkpoints()
        end(directory)
        assert _checkpointed(disk) == before


def test_a_raised_log_start_that_readers_were_not_told_yet_is_not_taken_back_by_another_writer() -> None:
    disk = ModelDisk()
    directory = LogDirectory(disk, "./data")
    directory.create(OPENED, new_topic_id())
    log = directory.open_log(OPENED, SMALL, now_ms=0)
    log.append([Record(b"k", b"v", at) for at in range(20)], now_ms=0)
    directory.write_log_starts({OPENED: 12})
    directory.write_checkpoints()
    assert _checkpointed(disk)[1] == {OPENED: 12}
    log.raise_log_start(15)
    directory.write_log_starts()
    assert _checkpointed(disk)[1] == {OPENED: 15}
    directory.abandon()


def test_checkpoints_forget_partitions_whose_directory_is_gone() -> None:
    disk = _with_two_partitions()
    for name in disk.list("./data/left-1"):
        disk.unlink(f"./data/left-1/{name}")
    disk.remove_directory("./data/left-1")
    directory = LogDirectory(disk, "./data")
    directory.open_log(OPENED, COMPACTED, now_ms=0)
    directory.write_checkpoints()
    assert [set(offsets) for offsets in _checkpointed(disk)] == [{OPENED}] * 3


@pytest.mark.parametrize(("written", "expected"), [(4, 4), (5, 5), (6, 0)])
def test_a_cleaner_checkpoint_past_the_end_of_its_log_vouches_for_nothing(written: int, expected: int) -> None:
    disk = ModelDisk()
    directory = LogDirectory(disk, "./data")
    log = directory.open_log(OPENED, COMPACTED, now_ms=0)
    log.append([Record(b"k", b"v", 0)] * 5, now_ms=0)
    log.cleaner_offset = written
    directory.close()
    again = LogDirectory(disk, "./data")
    assert again.open_log(OPENED, COMPACTED, now_ms=0).cleaner_offset == expected


def test_how_far_an_unfinished_pass_has_looked_is_known_still_after_a_start_under_another_policy() -> None:
    """Records went for the sake of newer ones below the reach: the log is no cleaner for having been uncompacted."""
    disk = ModelDisk()
    for settings in (COMPACTED, replace(COMPACTED, is_compacted=False), COMPACTED):
        directory = LogDirectory(disk, "./data")
        log = directory.open_log(OPENED, settings, now_ms=0)
        if not log.next_offset:
            log.append([Record(b"k", b"v", 0)] * 5, now_ms=0)
            log.cleaner_reach = 4
        assert log.cleaner_reach == 4
        directory.close()


def test_checkpoints_that_are_written_while_a_log_is_opened_know_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened when the open logs were looked at, and is none of the others any more."""
    writes = (LogDirectory.write_checkpoints, LogDirectory.write_log_starts, LogDirectory.write_cleaner_offsets)
    for at, write in enumerate(writes):
        disk = _with_two_partitions()
        before = _checkpointed(disk)[at]
        directory = LogDirectory(disk, "./data")
        directory.open_log(OPENED, COMPACTED, now_ms=0)
        real = directory._open_logs

        def open_logs(directory: LogDirectory = directory, real=real) -> list:  # type: ignore[no-untyped-def,type-arg]
            found = real()
            directory.open_log(LEFT, COMPACTED, now_ms=0)
            return found

        monkeypatch.setattr(directory, "_open_logs", open_logs)
        write(directory)
        assert set(directory.logs) == {OPENED, LEFT}
        assert _checkpointed(disk)[at] == before


@pytest.mark.parametrize("end", [LogDirectory.close, LogDirectory.abandon])
def test_who_has_let_go_of_a_directory_writes_no_checkpoint_of_it(end: Callable[[LogDirectory], None]) -> None:
    """A task that waited for the store while its manager closed: the directory may be somebody else's by now."""
    disk = _with_two_partitions()
    first = LogDirectory(disk, "./data")
    first.open_log(OPENED, COMPACTED, now_ms=0)
    end(first)
    second = LogDirectory(disk, "./data")
    log = second.open_log(OPENED, COMPACTED, now_ms=0)
    second.write_log_starts({OPENED: 15})
    log.raise_log_start(15)
    second.write_checkpoints()
    before = _checkpointed(disk)
    for write in (LogDirectory.write_checkpoints, lambda each: each.write_log_starts({OPENED: 9})):
        with pytest.raises(DiskFailed, match="let go"):
            write(first)
    assert _checkpointed(disk) == before


@pytest.mark.parametrize("end", [LogDirectory.close, LogDirectory.abandon])
def test_a_directory_that_was_let_go_of_may_be_closed_once_more_and_is_left_alone(
    end: Callable[[LogDirectory], None],
) -> None:
    """As by `with`, of somebody who had closed it: whoever has it open since must not find it marked clean."""
    disk = _with_two_partitions()
    first = LogDirectory(disk, "./data")
    first.open_log(OPENED, COMPACTED, now_ms=0)
    end(first)
    second = LogDirectory(disk, "./data")
    first.close()
    assert not disk.exists("./data/" + CLEAN_SHUTDOWN)
    second.close()
    assert disk.exists("./data/" + CLEAN_SHUTDOWN)
