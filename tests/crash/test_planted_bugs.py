"""The crash tests are only worth something if they die of durability bugs: each of these is planted, and caught."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
import test_log_crashes as crashes
from disk_model import ModelDisk, ModelFile

from local import cleaner, loading, recovery, swap
from local.errors import LogError
from local.names import CLEANED, SWAP
from local.segment import Segment

Plant = Callable[[pytest.MonkeyPatch], None]


def _no_fsync_before_acknowledging(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "sync_log", lambda self: None)


def _no_fsync_of_a_sealed_segment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "sync", lambda self: None)


def _no_directory_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelDisk, "sync_directory", lambda self, path: None)


def _acknowledged_before_written(patch: pytest.MonkeyPatch) -> None:
    def append(self: ModelFile, data: bytes) -> None:
        body = bytes(data)
        if self._path.endswith(".log") and len(body) > 61:
            body = body[:-1]
        self._inode.data.extend(body)
        self._disk._effect("append", lambda: None)

    patch.setattr(ModelFile, "append", append)


def _torn_tail_left_in_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_truncate_and_sync", lambda storage, path, size: None)


def _recovery_trusts_every_length(patch: pytest.MonkeyPatch) -> None:
    original = loading.load
    patch.setattr(loading, "load", lambda *rest, recovery_point: original(*rest, recovery_point=None))


def _cleaned_file_not_synced(patch: pytest.MonkeyPatch) -> None:
    def write_cleaned(storage: ModelDisk, directory: str, base_offset: int, body: object) -> str:
        path = f"{directory}/{base_offset:020d}.log{CLEANED}"
        file = storage.create(path)
        for part in body:  # type: ignore[attr-defined]
            file.append(part)
        return path

    patch.setattr(swap, "write_cleaned", write_cleaned)


def _originals_deleted_before_the_swap_is_announced(patch: pytest.MonkeyPatch) -> None:
    original = swap.announce

    def announce(storage: ModelDisk, directory: str, base_offset: int) -> None:
        for name in [n for n in storage.names if n.startswith(directory) and n.endswith(".log")]:
            if int(name.rpartition("/")[2][:20]) >= base_offset:
                storage.unlink(name)
                storage.sync_directory(directory)
                break
        original(storage, directory, base_offset)

    patch.setattr(swap, "announce", announce)


def _unfinished_swaps_thrown_away(patch: pytest.MonkeyPatch) -> None:
    def finish(storage: ModelDisk, directory: str) -> None:
        for name in storage.list(directory):
            if name.endswith((SWAP, CLEANED, ".deleted")):
                storage.unlink(f"{directory}/{name}")

    patch.setattr(recovery, "finish_swaps", finish)


def _newest_record_dropped_by_the_cleaner(patch: pytest.MonkeyPatch) -> None:
    original = cleaner._newest_offsets
    patch.setattr(cleaner, "_newest_offsets", lambda segments: {k: o + 1 for k, o in original(segments).items()})


DELETE, COMPACT = crashes.CASES[0], crashes.CASES[1]


@pytest.mark.parametrize(
    ("plant", "case"),
    [
        (_no_fsync_before_acknowledging, DELETE),
        (_no_fsync_of_a_sealed_segment, DELETE),
        (_no_directory_fsync, DELETE),
        (_acknowledged_before_written, DELETE),
        (_torn_tail_left_in_place, DELETE),
        (_recovery_trusts_every_length, DELETE),
        (_cleaned_file_not_synced, COMPACT),
        (_originals_deleted_before_the_swap_is_announced, COMPACT),
        (_unfinished_swaps_thrown_away, COMPACT),
        (_newest_record_dropped_by_the_cleaner, COMPACT),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else value[0],
)
def test_a_planted_durability_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, case: tuple[str, crashes.Workload, object, crashes.Check]
) -> None:
    _, workload, settings, check = case
    plant(monkeypatch)
    with pytest.raises((AssertionError, LogError, ArithmeticError, LookupError, ValueError, struct.error)):
        crashes.explore(workload, settings, check, seeds=8)  # type: ignore[arg-type]
