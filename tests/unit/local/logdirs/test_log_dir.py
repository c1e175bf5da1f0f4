"""One log directory: the entries of its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from disk_model import ModelDisk
from log_world import SMALL

from local import names
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


def test_checkpoints_keep_the_entries_of_partitions_that_are_not_open() -> None:
    disk = _with_two_partitions()
    before = _checkpointed(disk)
    assert [offsets[LEFT] for offsets in before] == [20, 7, 5]
    for end in (LogDirectory.close, LogDirectory.abandon):
        directory = LogDirectory(disk, "./data")
        directory.open_log(OPENED, COMPACTED, now_ms=0)
        directory.write_checkpoints()
        end(directory)
        assert _checkpointed(disk) == before


def test_a_checkpoint_write_does_not_lower_a_log_start_that_was_noted_first() -> None:
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


def test_checkpoints_omit_partitions_whose_directory_was_deleted() -> None:
    disk = _with_two_partitions()
    for name in disk.list("./data/left-1"):
        disk.unlink(f"./data/left-1/{name}")
    disk.remove_directory("./data/left-1")
    directory = LogDirectory(disk, "./data")
    directory.open_log(OPENED, COMPACTED, now_ms=0)
    directory.write_checkpoints()
    assert [set(offsets) for offsets in _checkpointed(disk)] == [{OPENED}] * 3


@pytest.mark.parametrize(("written", "expected"), [(4, 4), (5, 5), (6, 0)])
def test_a_cleaner_checkpoint_above_the_log_end_is_ignored(written: int, expected: int) -> None:
    disk = ModelDisk()
    directory = LogDirectory(disk, "./data")
    log = directory.open_log(OPENED, COMPACTED, now_ms=0)
    log.append([Record(b"k", b"v", 0)] * 5, now_ms=0)
    log.cleaner_offset = written
    directory.close()
    again = LogDirectory(disk, "./data")
    assert again.open_log(OPENED, COMPACTED, now_ms=0).cleaner_offset == expected


def test_the_reach_of_an_unfinished_pass_survives_an_open_without_compaction() -> None:
    """The pass has removed records that newer records below the reach supersede. A change of policy does not undo
    this."""
    disk = ModelDisk()
    for settings in (COMPACTED, replace(COMPACTED, is_compacted=False), COMPACTED):
        directory = LogDirectory(disk, "./data")
        log = directory.open_log(OPENED, settings, now_ms=0)
        if not log.next_offset:
            log.append([Record(b"k", b"v", 0)] * 5, now_ms=0)
            log.cleaner_reach = 4
        assert log.cleaner_reach == 4
        directory.close()


def test_checkpoints_written_during_an_open_keep_the_entry_of_that_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition is opened between the list of open logs and the list of other partitions."""
    write_cleaned = partial(LogDirectory.write, file=names.CLEANER_OFFSETS)
    writes = (LogDirectory.write_checkpoints, LogDirectory.write_log_starts, write_cleaned)
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
def test_a_closed_or_abandoned_directory_writes_no_checkpoint(end: Callable[[LogDirectory], None]) -> None:
    """A task that waited for the store while its manager closed must not write: another process may use the directory
    now."""
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
        with pytest.raises(DiskFailed, match="the log directory was closed"):
            write(first)
    assert _checkpointed(disk) == before


@pytest.mark.parametrize("end", [LogDirectory.close, LogDirectory.abandon])
def test_a_second_close_of_a_directory_does_not_mark_it_as_cleanly_shut_down(
    end: Callable[[LogDirectory], None],
) -> None:
    """A `with` statement closes a directory that was closed already.
    If another process has opened the directory since, the second close must not write the clean shutdown marker."""
    disk = _with_two_partitions()
    first = LogDirectory(disk, "./data")
    first.open_log(OPENED, COMPACTED, now_ms=0)
    end(first)
    second = LogDirectory(disk, "./data")
    first.close()
    assert not disk.exists("./data/" + CLEAN_SHUTDOWN)
    second.close()
    assert disk.exists("./data/" + CLEAN_SHUTDOWN)
