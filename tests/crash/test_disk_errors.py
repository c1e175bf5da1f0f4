"""Every disk call of the local log fails once; then the process continues or restarts."""

from __future__ import annotations

from contextlib import suppress

import pytest
from disk_model import ModelDisk, ModelFile
from log_explorer import check, remembered
from log_programs import CASES, Case
from log_script import FLUSHED, MEMORY, ROOT, Story, World
from run_profile import each_call

from local.errors import DiskFailed, LogError

RETENTION, COMPACTION = (next(case for case in CASES if case.name == name) for name in ("retention", "compaction"))


def _steps(world: World, *, compact: bool) -> None:
    """Run steps that may each fail; only acknowledged records count."""
    for turn in range(4):
        for flushed in (FLUSHED, MEMORY, FLUSHED):
            with suppress(DiskFailed):
                world.append(9, flushed)
        with suppress(LogError):
            world.clean() if compact else world.roll()
        if turn == 2 and not compact:
            with suppress(DiskFailed):
                world.drop(1)
        with suppress(DiskFailed):
            world.remove()
            world.checkpoint()


def _run(case: Case, fail_at: int | None, *, before: bool) -> ModelDisk:
    disk, story = ModelDisk(), Story(keys=case.keys)
    world = World(disk, case.settings, story)
    if fail_at is not None:
        disk.fail_at, disk.cut_before = disk.effects + fail_at, before
    _steps(world, compact=case is COMPACTION)
    with suppress(DiskFailed):
        world.directory.close()
    disk.fail_at = None
    disk.locks.clear()
    world = World(disk, case.settings, story)
    kept = check(world.log, disk, story, case)
    story.found(kept, world.log.log_start_offset, world.log.next_offset, remembered(world.log))
    world.append(3, FLUSHED)
    check(world.log, disk, story, case)
    world.reopen()
    check(world.log, disk, story, case)
    return disk


@pytest.mark.parametrize("case", [RETENTION, COMPACTION], ids=lambda case: case.name)
@pytest.mark.parametrize("before", [True, False], ids=["before the effect", "after it"])
def test_a_single_disk_error_at_any_call_loses_or_duplicates_no_record(case: Case, before: bool) -> None:
    effects = _run(case, None, before=before).effects
    assert effects > 100
    for at in each_call(range(1, effects), case.name, before):
        _run(case, at, before=before)


@pytest.mark.parametrize("what", ["flush", "roll", "close"])
def test_a_failed_fsync_is_not_retried_and_does_not_move_the_recovery_point(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    disk = ModelDisk()
    world = World(disk, RETENTION.settings, Story())
    world.append(3, MEMORY)
    log, directory = world.log, world.directory
    point, path, real = log.recovery_point, log.segment(0).path(".log"), ModelFile.sync

    def fail(file: ModelFile) -> None:
        if file._path == path:
            raise DiskFailed("cannot sync a file", path=path)
        real(file)

    with monkeypatch.context() as patch:
        patch.setattr(ModelFile, "sync", fail)
        with pytest.raises(DiskFailed):
            directory.close() if what == "close" else getattr(world, what)()
    assert log.recovery_point == point
    if what != "close":
        with pytest.raises(DiskFailed, match="reopen"):
            log.flush()
        with pytest.raises(DiskFailed, match="cannot close the logs durably"):
            directory.close()
    assert f"{ROOT}/.kafka_cleanshutdown" not in disk.names
