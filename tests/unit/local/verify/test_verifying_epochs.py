"""Verify of the leader epoch checkpoint of a log whose log start is above the base offset of its first segment."""

from __future__ import annotations

from functools import partial

import pytest
from disk_model import ModelDisk
from log_world import open_log

from local import names
from local.format.record import Record
from local.log import checkpoints
from local.log.leader_epochs import LeaderEpochs
from local.names import TopicPartition
from local.records.batch import encode_batch
from local.records.batch_runs import BatchRuns
from local.verify import directories, segment_checks
from local.verify.directories import VerifyOptions
from local.verify.findings import Finding, Severity

EPOCHS_PATH = f"./t-0/{names.LEADER_EPOCHS}"
# Base offset of a segment: (base offset, leader epoch) of its batches, of four records each.
SEGMENTS = {0: [(0, 3), (4, 3), (8, 3)], 12: [(12, 3), (16, 5), (20, 5)], 24: [(24, 5), (28, 8)]}
EPOCHS = LeaderEpochs(((3, 0), (5, 16), (8, 28)))
END = 32


@pytest.fixture(params=[False, True], ids=["one chunk", "a chunk for each batch"], autouse=True)
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(segment_checks, "BatchRuns", partial(BatchRuns, chunk_bytes=100))


def _disk(
    epochs: LeaderEpochs, *, log_start_offset: int | None, segments: dict[int, list[tuple[int, int]]] | None = None
) -> ModelDisk:
    disk = ModelDisk()
    open_log(disk).close()
    for name in list(disk.names):
        disk.unlink(name)
    for base, batches in (segments or SEGMENTS).items():
        file = disk.create(f"./t-0/{names.segment_file(base, names.LOG)}")
        for offset, epoch in batches:
            records = [Record(b"k", b"v%d" % (offset + at), 1000) for at in range(4)]
            file.append(bytes(encode_batch(records, base_offset=offset, leader_epoch=epoch)))
        file.sync()
        file.close()
    open_log(disk, was_clean=True).close()  # builds the indexes
    checkpoints.write_epochs(disk, EPOCHS_PATH, epochs.entries)
    if log_start_offset is not None:
        checkpoints.write_offsets(disk, f"./{names.LOG_START_OFFSETS}", {TopicPartition("t", 0): log_start_offset})
    return disk


def _warnings(disk: ModelDisk) -> list[Finding]:
    found = directories.verify(disk, "./t-0", VerifyOptions(deep=True))
    return [each for each in found if each.severity > Severity.INFO]


def _offsets_of_epoch_warnings(disk: ModelDisk) -> list[tuple[int, int] | None]:
    found = _warnings(disk)
    assert {(each.where, each.severity) for each in found} <= {(EPOCHS_PATH, Severity.WARNING)}
    return [each.offsets for each in found]


@pytest.mark.parametrize("start", range(END + 1))
def test_verify_accepts_a_leader_epoch_checkpoint_that_begins_at_the_log_start(start: int) -> None:
    disk = _disk(EPOCHS.truncate_from_start(start), log_start_offset=start)
    assert _warnings(disk) == []


def test_verify_accepts_a_log_start_between_the_batches_of_a_cleaned_log() -> None:
    """Epoch 5 began at offset 10, and the cleaner removed its first records: the log start is in that gap."""
    disk = _disk(LeaderEpochs(((5, 14),)), log_start_offset=14, segments={0: [(0, 3), (4, 3), (20, 5)], 24: [(24, 5)]})
    assert _warnings(disk) == []


@pytest.mark.parametrize(
    ("entries", "start", "expected"),
    [
        pytest.param(((3, 6), (5, 16), (8, 28)), None, [(0, 1)], id="unknown log start"),
        pytest.param(((3, 6), (5, 16), (8, 28)), 0, [(0, 1)], id="log start at the base"),
        pytest.param(((3, 6), (5, 16), (8, 28)), 5, [(5, 6)], id="epochs begin above the log start"),
        pytest.param(((3, 14), (5, 16), (8, 28)), 8, [(8, 9), (12, 13)], id="epochs begin a segment above"),
        pytest.param(((4, 6), (5, 16), (8, 28)), 6, [(6, 7), (12, 13)], id="another epoch at the log start"),
        pytest.param(((2, 0), (5, 16), (8, 28)), 6, [(0, 1), (12, 13)], id="another epoch below the log start"),
        pytest.param(((3, 6), (8, 28)), 6, [(16, 17), (24, 25)], id="an epoch above the log start is missing"),
        pytest.param((), 6, [(6, 7), (12, 13), (24, 25)], id="no epochs"),
    ],
)
def test_verify_warns_of_batches_above_the_log_start_with_another_epoch(
    entries: tuple[tuple[int, int], ...], start: int | None, expected: list[tuple[int, int]]
) -> None:
    disk = _disk(LeaderEpochs(entries), log_start_offset=start)
    assert _offsets_of_epoch_warnings(disk) == expected


# --- a running or killed broker
# ----------------------------------------------------------------------------------------


def _at_work(disk: ModelDisk) -> ModelDisk:
    """The directory of a running or killed broker: it has the broker's id and no clean shutdown marker."""
    checkpoints.ensure_meta_properties(disk, ".")
    if disk.exists(f"./{names.CLEAN_SHUTDOWN}"):
        disk.unlink(f"./{names.CLEAN_SHUTDOWN}")
    return disk


@pytest.mark.parametrize("before", [None, 0, 5, 12])
@pytest.mark.parametrize("start", range(13, END + 1))
def test_verify_accepts_a_log_start_that_rose_after_its_checkpoint(start: int, before: int | None) -> None:
    disk = _at_work(_disk(EPOCHS.truncate_from_start(start), log_start_offset=before))
    assert _warnings(disk) == []
    (told,) = (each for each in directories.verify(disk, "./t-0") if each.where == EPOCHS_PATH)
    assert f"epochs_from={start}" in told.what


def test_verify_warns_of_a_log_start_above_its_checkpoint_after_a_clean_shutdown() -> None:
    disk = _at_work(_disk(EPOCHS.truncate_from_start(14), log_start_offset=5))
    file = disk.create(f"./{names.CLEAN_SHUTDOWN}")
    file.sync()
    file.close()
    assert _offsets_of_epoch_warnings(disk) == [(5, 6), (12, 13)]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param(((4, 6), (5, 16), (8, 28)), [(6, 7), (12, 13)], id="another epoch"),
        pytest.param(((3, 6), (8, 28)), [(16, 17), (24, 25)], id="an epoch is missing"),
        pytest.param((), [(0, 1), (12, 13), (24, 25)], id="no epochs"),
    ],
)
def test_verify_warns_of_wrong_epochs_above_the_first_epoch_of_a_running_broker(
    entries: tuple[tuple[int, int], ...], expected: list[tuple[int, int]]
) -> None:
    disk = _at_work(_disk(LeaderEpochs(entries), log_start_offset=0))
    assert _offsets_of_epoch_warnings(disk) == expected
