"""Planted durability bugs: each breaks one rule of the log, and the crash tests must detect it.

Each plant breaks one rule about the order of effects, or about the data that recovery may trust. `BUGS` is the table
that ``docs/reference/reliability.md`` repeats.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from disk_model import ModelDisk, ModelFile
from log_explorer import Tally, explore
from log_programs import CASES
from log_script import NAME, ROOT
from run_profile import CRASH_STATES_SOUND

from local import names
from local.cleaner import cleaner, offset_map, record_retention
from local.cleaner.record_retention import CleanedTransactions, RecordFilter
from local.errors import LogError
from local.index import txn_index
from local.log import Log, checkpoints, loading, producer_state, recovery
from local.log.leader_epochs import LeaderEpochs
from local.log.log_removal import LogRemoval
from local.log.log_state import GroupCommit, LogState
from local.log.producer_state import ProducerFiles, decode_snapshot
from local.logdirs.log_dir import LogDirectory
from local.names import CLEANED, LOG, SWAP
from local.segment import swap
from local.segment.segment import Segment
from local.storage import SegmentFiles, storage

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
STATES_MAX = 6_000
BY_NAME = {case.name: case for case in CASES}
# The signs of a broken rule: a broken promise, a refused open, or an open that fails on wrong bytes.
CAUGHT = (AssertionError, LogError, ArithmeticError, LookupError, ValueError, struct.error)


# -- appending and rolling ---------------------------------------------------------------------------------------------


def _no_fsync_before_acknowledging(patch: Patch) -> None:
    """A segment that is closed is synced, an append is not."""
    real = Segment.sync

    def sync(self: Segment, *suffixes: str) -> None:
        if not suffixes:
            real(self)

    patch.setattr(Segment, "sync", sync)


def _acknowledged_before_written(patch: Patch) -> None:
    real = ModelFile.append

    def append(self: ModelFile, data: bytes) -> None:
        body = bytes(data)
        real(self, body[:-1] if self._path.endswith(LOG) and len(body) > 61 else body)

    patch.setattr(ModelFile, "append", append)


def _no_fsync_of_a_sealed_segment(patch: Patch) -> None:
    real = Segment.sync

    def sync(self: Segment, *suffixes: str) -> None:
        if suffixes:
            real(self, *suffixes)

    patch.setattr(Segment, "sync", sync)


def _no_directory_fsync_when_a_segment_is_made(patch: Patch) -> None:
    real = Segment.create.__func__  # type: ignore[attr-defined]

    def create(cls: type[Segment], *rest: object, **more: object) -> Segment:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ModelDisk, "sync_directory", lambda self, path: None)
            made: Segment = real(cls, *rest, **more)
        return made

    patch.setattr(Segment, "create", classmethod(create))


def _no_directory_fsync_at_all(patch: Patch) -> None:
    patch.setattr(ModelDisk, "sync_directory", lambda self, path: None)


def _memory_counts_as_flushed_in_the_recovery_point(patch: Patch) -> None:
    """The checkpoint of the recovery points is ahead of its fsyncs."""
    real = LogDirectory.write_checkpoints

    def write_checkpoints(self: LogDirectory) -> None:
        for log in self.logs.values():
            log.recovery_point = log.next_offset
        real(self)

    patch.setattr(LogDirectory, "write_checkpoints", write_checkpoints)


# -- side files --------------------------------------------------------------------------------------------------------


def _checkpoint_renamed_before_it_is_synced(patch: Patch) -> None:
    def replace_file(disk: ModelDisk, path: str, body: bytes, *, syncs_name: bool = True) -> None:
        disk.create(path + ".tmp").append(body)
        disk.rename(path + ".tmp", path)
        disk.sync_directory(storage.parent(path))

    patch.setattr(checkpoints, "replace_file", replace_file)


def _checkpoint_written_in_place(patch: Patch) -> None:
    def replace_file(disk: ModelDisk, path: str, body: bytes, *, syncs_name: bool = True) -> None:
        file = disk.create(path)
        file.append(body)
        file.sync()
        disk.sync_directory(storage.parent(path))

    patch.setattr(checkpoints, "replace_file", replace_file)


def _clean_marker_outlives_the_first_write(patch: Patch) -> None:
    real = ModelDisk.unlink

    def unlink(self: ModelDisk, path: str) -> None:
        if not path.endswith(names.CLEAN_SHUTDOWN):
            real(self, path)

    patch.setattr(ModelDisk, "unlink", unlink)


def _clean_marker_without_sealing(patch: Patch) -> None:
    patch.setattr(Log, "close", lambda self: True)


def _log_start_told_before_it_is_written_down(patch: Patch) -> None:
    patch.setattr(LogDirectory, "write_log_starts", lambda self, raised=None: None)


def _epochs_written_lazily(patch: Patch) -> None:
    """The epoch checkpoint waits for a checkpoint round, and recovery does not read the batches' epochs."""

    def save(self: LogState, epochs: LeaderEpochs) -> None:
        self.epochs = epochs

    patch.setattr(LogState, "save_epochs", save)
    recover = recovery.recover_segment
    patch.setattr(recovery, "recover_segment", lambda *rest, **more: replace(recover(*rest, **more), epochs=()))


# -- deletion ----------------------------------------------------------------------------------------------------------


def _segments_dropped_without_a_directory_fsync(patch: Patch) -> None:
    real = LogRemoval.drop_before

    def drop_before(self: LogRemoval, *rest: object, **more: object) -> int:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ModelDisk, "sync_directory", lambda self, path: None)
            return real(self, *rest, **more)  # type: ignore[arg-type]

    patch.setattr(LogRemoval, "drop_before", drop_before)


def _producers_not_settled_before_their_batches_go(patch: Patch) -> None:
    patch.setattr(ProducerFiles, "write_snapshot", lambda self, offset, bases: None)


# -- producers ---------------------------------------------------------------------------------------------------------


def _clean_marker_before_the_snapshot_is_durable(patch: Patch) -> None:
    patch.setattr(ProducerFiles, "_make_durable", lambda self, offset: None)


def _damaged_snapshot_trusted(patch: Patch) -> None:
    """An unreadable snapshot counts as a snapshot without producers."""
    real = decode_snapshot

    def decode(data: bytes, **more: object) -> object:
        try:
            return real(data, **more)  # type: ignore[arg-type]
        except LogError:
            return []

    patch.setattr(producer_state, "decode_snapshot", decode)


def _aborted_transactions_neither_synced_with_the_seal_nor_held_against_markers(patch: Patch) -> None:
    """Each rule alone hides records of an aborted transaction after a crash (`local.index.txn_index`)."""
    real = ModelFile.sync
    patch.setattr(ModelFile, "sync", lambda self: None if self._path.endswith(names.TXN_INDEX) else real(self))
    patch.setattr(recovery, "check_txn_index", lambda files: None)
    patch.setattr(txn_index.SegmentTransactions, "problem", lambda self, entries: None)
    patch.setattr(txn_index.CarriedTransactions, "problem", lambda *given: None)


def _acknowledged_before_the_shared_fsync(patch: Patch) -> None:
    patch.setattr(GroupCommit, "wait_for", lambda self, position: None)


# -- recovery ----------------------------------------------------------------------------------------------------------


def _torn_tail_left_in_place(patch: Patch) -> None:
    patch.setattr(recovery, "sync_file", lambda disk, path, *, truncate_to: None)


def _recovered_tail_not_synced(patch: Patch) -> None:
    def truncate(disk: ModelDisk, path: str, *, truncate_to: int | None) -> None:
        if truncate_to is not None:
            disk.open(path).truncate(truncate_to)

    patch.setattr(recovery, "sync_file", truncate)


def _recovery_trusts_every_length(patch: Patch) -> None:
    real = loading.load
    patch.setattr(loading, "load", lambda *rest, recovery_point: real(*rest, recovery_point=None))


def _recovery_does_not_check_crcs(patch: Patch) -> None:
    real = recovery.kernels.scan_batches
    kernels = type("Kernels", (), {"scan_batches": staticmethod(lambda data, verify=True: real(data, verify=False))})
    patch.setattr(recovery, "kernels", kernels)


def _indexes_trusted_after_a_crash(patch: Patch) -> None:
    def write_indexes(files: SegmentFiles, *rest: object) -> None:
        for suffix in (names.OFFSET_INDEX, names.TIME_INDEX):
            if not files.storage.exists(files.path(suffix)):
                files.storage.create(files.path(suffix))

    patch.setattr(recovery, "_write_indexes", write_indexes)


# -- compaction --------------------------------------------------------------------------------------------------------


def _cleaned_file_not_synced(patch: Patch) -> None:
    def write_cleaned(files: SegmentFiles, body: Iterable[bytes], **rest: object) -> int:
        file = files.storage.create(files.path(LOG) + CLEANED)
        for part in body:
            file.append(part)
        return file.size()

    patch.setattr(swap, "write_cleaned", write_cleaned)


def _originals_deleted_before_the_swap_is_announced(patch: Patch) -> None:
    real = swap.announce

    def announce(files: SegmentFiles) -> None:
        for name in [n for n in files.storage.list(files.directory) if n.endswith(LOG)]:
            if int(name[:20]) >= files.base_offset:
                files.storage.unlink(f"{files.directory}/{name}")
                files.sync_names()
                break
        real(files)

    patch.setattr(swap, "announce", announce)


def _unfinished_swaps_thrown_away(patch: Patch) -> None:
    def finish(disk: ModelDisk, directory: str) -> None:
        for name in disk.list(directory):
            if name.endswith((SWAP, CLEANED, names.DELETED)):
                disk.unlink(f"{directory}/{name}")

    patch.setattr(recovery, "finish_swaps", finish)


def _newest_record_dropped_by_the_cleaner(patch: Patch) -> None:
    real = RecordFilter._batches

    def batches(self: RecordFilter, found: Any, data: Any, table: Any, keep: Any, tombstones: Any) -> None:
        real(self, found, data, table, np.roll(keep, 1), tombstones)

    patch.setattr(RecordFilter, "_batches", batches)


def _tombstones_leave_at_once(patch: Patch) -> None:
    patch.setattr(RecordFilter, "_due", lambda self, segment, columns: np.ones(len(columns), np.bool_))


def _last_batches_of_producers_taken(patch: Patch) -> None:
    patch.setattr(RecordFilter, "_must_stay", lambda self, table: table.last_offsets + 1 == self._facts.upto_offset)


def _aborted_records_count_as_newest(patch: Patch) -> None:
    none = lambda table, aborted: np.zeros(len(table), np.bool_)  # noqa: E731
    patch.setattr(offset_map, "aborted_batches", none)
    patch.setattr(record_retention, "aborted_batches", none)


def _open_transactions_cleaned(patch: Patch) -> None:
    patch.setattr(cleaner, "_first_unstable_base", lambda log: log.segments()[-1].base_offset)


def _markers_leave_before_their_data(patch: Patch) -> None:
    patch.setattr(CleanedTransactions, "end", lambda self, producer_id, last_offset, marker: True)
    patch.setattr(RecordFilter, "_due_markers", lambda self, table, useless: np.flatnonzero(useless).tolist())
    patch.setattr(cleaner, "grouped", lambda judged, *rest, **more: [[each] for each in judged][::-1])


def _cleaner_checkpoint_ahead_of_the_swap(patch: Patch) -> None:
    """The dirty part counts as clean: an old value stays there after its tombstone was removed."""
    real = cleaner.clean

    def clean(log: Log, **rules: Any) -> object:
        body = f"0\n1\n{NAME.topic} {NAME.partition} {log.segments()[-1].base_offset}\n"
        storage.replace_file(log.storage, f"{ROOT}/{names.CLEANER_OFFSETS}", body.encode())
        return real(log, **rules)

    patch.setattr(cleaner, "clean", clean)


def _snapshots_above_a_cut_left_behind(patch: Patch) -> None:
    patch.setattr(ProducerFiles, "remove_above", lambda self, offset: None)


def _snapshots_above_the_end_believed_at_a_start(patch: Patch) -> None:
    patch.setattr(ProducerFiles, "remove_above", lambda self, offset: None)
    patch.setattr(ProducerFiles, "keep", lambda self, bases, next_offset: None)


def _recovery_point_left_above_a_cut(patch: Patch) -> None:
    patch.setattr(LogRemoval, "_certify_no_further_than", lambda self, offset: None)


def _cut_file_not_synced(patch: Patch) -> None:
    def cut(files: SegmentFiles, size: int, *rest: object) -> None:
        files.storage.open(files.path(LOG)).truncate(size)
        recovery._write_indexes(files, rest[0], rest[2])  # type: ignore[arg-type]

    patch.setattr(recovery, "cut_segment", cut)


BUGS: list[tuple[Plant, str]] = [
    (_no_fsync_before_acknowledging, "retention"),
    (_acknowledged_before_written, "retention"),
    (_no_fsync_of_a_sealed_segment, "retention"),
    (_no_directory_fsync_when_a_segment_is_made, "retention"),
    (_no_directory_fsync_at_all, "retention"),
    (_memory_counts_as_flushed_in_the_recovery_point, "producers and retention"),
    (_checkpoint_renamed_before_it_is_synced, "retention"),
    (_checkpoint_written_in_place, "retention"),
    (_clean_marker_outlives_the_first_write, "retention"),
    (_clean_marker_without_sealing, "retention"),
    (_log_start_told_before_it_is_written_down, "delete records and epochs"),
    (_epochs_written_lazily, "delete records and epochs"),
    (_segments_dropped_without_a_directory_fsync, "retention"),
    (_producers_not_settled_before_their_batches_go, "producers and retention"),
    (_clean_marker_before_the_snapshot_is_durable, "a producer and a roll before the end"),
    (_damaged_snapshot_trusted, "transactions"),
    (_aborted_transactions_neither_synced_with_the_seal_nor_held_against_markers, "transactions"),
    (_acknowledged_before_the_shared_fsync, "retention"),
    (_torn_tail_left_in_place, "retention"),
    (_recovered_tail_not_synced, "delete records and epochs"),
    (_recovery_trusts_every_length, "retention"),
    (_recovery_does_not_check_crcs, "retention"),
    (_indexes_trusted_after_a_crash, "retention"),
    (_cleaned_file_not_synced, "compaction"),
    (_originals_deleted_before_the_swap_is_announced, "compaction"),
    (_unfinished_swaps_thrown_away, "compaction"),
    (_newest_record_dropped_by_the_cleaner, "compaction"),
    (_tombstones_leave_at_once, "tombstones"),
    (_cleaner_checkpoint_ahead_of_the_swap, "tombstones"),
    (_last_batches_of_producers_taken, "compaction of transactions"),
    (_aborted_records_count_as_newest, "compaction of transactions"),
    (_open_transactions_cleaned, "compaction of transactions"),
    (_markers_leave_before_their_data, "compaction of transactions"),
    (_snapshots_above_a_cut_left_behind, "truncation"),
    (_snapshots_above_the_end_believed_at_a_start, "truncation"),
    (_recovery_point_left_above_a_cut, "truncation"),
    (_cut_file_not_synced, "truncation"),
]


def _explore_until_caught(name: str) -> None:
    tally = Tally()
    for seed in range(4):
        explore(BY_NAME[name], draws=3, seed=seed, tally=tally, states_max=STATES_MAX)


@pytest.mark.deep("planted bugs of durability")
@pytest.mark.parametrize(("plant", "name"), BUGS, ids=[plant.__name__.strip("_") for plant, _ in BUGS])
def test_a_planted_durability_bug_is_detected(monkeypatch: Patch, plant: Plant, name: str) -> None:
    plant(monkeypatch)
    with pytest.raises(CAUGHT):
        _explore_until_caught(name)


def test_the_same_programs_pass_without_a_planted_bug() -> None:
    for name in ("retention", "delete records and epochs", "transactions", "truncation", "compaction"):
        explore(BY_NAME[name], draws=3, states_max=CRASH_STATES_SOUND)
