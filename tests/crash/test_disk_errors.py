"""Every disk call of the local log fails once (before or after its effect); the process goes on, or is restarted."""

from __future__ import annotations

from contextlib import suppress

import pytest
import test_log_crashes as crashes
from disk_model import ModelDisk

from local import cleaner
from local.errors import DiskFailed, LogError
from local.log import Durability, Log
from local.log_dirs import LogDirectory


def _steps(directory: LogDirectory, log: Log, disk: ModelDisk, story: crashes.Story, *, compact: bool) -> None:
    """Each step may fail by itself; only what was acknowledged counts. The next goes on all the same."""
    for turn in range(4):
        for durability in (Durability.FLUSHED, Durability.MEMORY, Durability.FLUSHED):
            with suppress(DiskFailed):
                crashes._append(log, story, 9, durability, keys=5 if compact else 1 << 30)
        with suppress(DiskFailed):
            log.roll(now_ms=story.clock)
        if compact:
            with suppress(LogError):
                cleaner.clean(log, disk, clean_from=0, now_ms=story.clock)
                directory.write_cleaner_offsets()
        elif turn == 2 and len(log.segments()) > 1:
            boundary = log.segments()[1].base_offset
            story.start = max(story.start, boundary)
            with suppress(DiskFailed):
                log.drop_before(boundary, now_ms=story.clock, delay_ms=0, raises_log_start=True)
        with suppress(DiskFailed):
            log.remove_deleted(story.clock)
            directory.write_checkpoints()


def _run(case: int, fail_at: int | None, *, before: bool) -> ModelDisk:
    _, _, settings, check = crashes.CASES[case]
    disk, story = ModelDisk(), crashes.Story()
    directory, log = crashes._open(disk, settings, story)
    if fail_at is not None:
        disk.fail_at, disk.cut_before = disk.effects + fail_at, before
    _steps(directory, log, disk, story, compact=case == 1)
    with suppress(DiskFailed):
        directory.close()
    disk.fail_at = None
    disk.locks.clear()
    directory, log = crashes._open(disk, settings, story)
    check(log, story)
    ends = log.next_offset
    assert ends > max(story.acked, default=-1), "an acknowledged offset would be given again"
    story.sent = {offset: record for offset, record in story.sent.items() if offset < ends}
    crashes._append(log, story, 3, Durability.FLUSHED, keys=5 if case == 1 else 1 << 30)
    check(log, story)
    directory.close()
    _, log = crashes._open(disk, settings, story)
    check(log, story)
    return disk


@pytest.mark.parametrize("case", [0, 1], ids=["delete", "compact"])
@pytest.mark.parametrize("before", [True, False], ids=["before the effect", "after it"])
def test_no_single_disk_error_loses_or_doubles_a_record(case: int, before: bool) -> None:
    effects = _run(case, None, before=before).effects
    assert effects > 100
    for at in range(1, effects):
        _run(case, at, before=before)


def test_an_fsync_that_failed_is_not_tried_again_and_vouches_for_nothing() -> None:
    _, _, settings, _ = crashes.CASES[0]
    for what in ("flush", "roll", "close"):
        disk, story = ModelDisk(), crashes.Story()
        directory, log = crashes._open(disk, settings, story)
        crashes._append(log, story, 3, Durability.MEMORY)
        point = log.recovery_point
        disk.fail_at = None
        path = log.segment(0).path(".log")
        real = type(log.segment(0)._writers[".log"]).sync

        def fail(file: object, path: str = path, real: object = real) -> None:
            if file._path == path:  # type: ignore[attr-defined]
                raise DiskFailed("syncing a file", path=path)
            real(file)  # type: ignore[operator]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(log.segment(0)._writers[".log"]), "sync", fail)
            with pytest.raises(DiskFailed):
                directory.close() if what == "close" else getattr(log, what)(
                    **({"now_ms": 0} if what == "roll" else {})
                )
        assert log.recovery_point == point
        if what != "close":
            with pytest.raises(DiskFailed, match="reopen"):
                log.flush()
            with pytest.raises(DiskFailed, match="not sealed"):
                directory.close()
        assert f"{crashes.ROOT}/.kafka_cleanshutdown" not in disk.names
