"""Recovery of segments that exceed an index's offset range or have a wrong file name: every valid batch keeps its
offset."""

from __future__ import annotations

import copy
import random

import pytest
from disk_model import ModelDisk, PowerCut
from log_world import fill, open_log

from local import names
from local.errors import Corrupt
from local.format.record import Record
from local.log import Log, checkpoints
from local.records.batch import encode_batch, encode_marker
from local.records.isolation import Isolation
from local.verify import directories
from local.verify.findings import Severity, worst

WIDE = 2**31
FAR = [0, 5, WIDE - 1, WIDE, WIDE + 7, 2 * WIDE - 1, 3 * WIDE + 1, 5 * WIDE]


def _batch(offset: int, count: int = 1) -> bytes:
    return bytes(encode_batch([Record(b"k", b"v%d" % offset, 1000)] * count, base_offset=offset))


def _disk(files: dict[int, list[bytes]]) -> ModelDisk:
    disk = ModelDisk()
    open_log(disk).close()
    for name in list(disk.names):
        disk.unlink(name)
    for base, batches in files.items():
        file = disk.create(f"./t-0/{names.segment_file(base, names.LOG)}")
        file.append(b"".join(batches))
        file.sync()
        file.close()
    checkpoints.write_epochs(disk, f"./t-0/{names.LEADER_EPOCHS}", [(0, 0)])
    disk.sync_directory("./t-0")
    return disk


def _offsets(log: Log) -> list[int]:
    return [record.offset for record in log.records(log.local_log_start_offset)]


OPENINGS = [{"was_clean": True}, {"recovery_point": 0}, {"recovery_point": 2 * WIDE}, {"recovery_point": 6 * WIDE + 2}]


@pytest.mark.parametrize("opening", OPENINGS, ids=["clean", "nothing durable", "half durable", "all durable"])
@pytest.mark.parametrize("has_later", [False, True], ids=["last", "followed"])
def test_a_segment_with_too_large_an_offset_range_is_split_and_keeps_every_record(
    opening: dict, has_later: bool
) -> None:
    later = {6 * WIDE: [_batch(6 * WIDE), _batch(6 * WIDE + 1)]} if has_later else {}
    disk = _disk({0: [_batch(at) for at in FAR], **later})
    expected = [*FAR, *([6 * WIDE, 6 * WIDE + 1] if has_later else [])]
    log = open_log(disk, **opening)
    assert _offsets(log) == expected
    assert [log.read(at, 1)[:8] for at in expected] == [at.to_bytes(8, "big") for at in expected]
    assert [info.base_offset for info in log.segments()][:2] == [0, WIDE]
    assert all(info.next_offset - info.base_offset <= 6 * WIDE for info in log.segments())
    fill(log, 10)
    log.close()
    again = open_log(disk, was_clean=True)
    assert _offsets(again)[: len(expected)] == expected
    assert len(_offsets(again)) == len(expected) + 10
    assert worst(directories.verify(disk, "./t-0")) is Severity.INFO


def test_recovery_after_a_power_cut_at_any_step_of_a_split_keeps_every_record() -> None:
    sound = _disk({0: [_batch(at) for at in FAR], 6 * WIDE: [_batch(6 * WIDE)]})
    expected = [*FAR, 6 * WIDE]
    rehearsal = copy.deepcopy(sound)
    open_log(rehearsal, was_clean=True)
    assert rehearsal.effects - sound.effects > 20
    for at in range(sound.effects + 1, rehearsal.effects + 1):
        for first in (True, False):
            disk = copy.deepcopy(sound)
            disk.cut_at, disk.cut_before = at, first
            with pytest.raises(PowerCut):
                open_log(disk, was_clean=True)
            for seed in range(3):
                found = disk.crash(random.Random(f"{at} {first} {seed}"))
                assert _offsets(open_log(found, recovery_point=7 * WIDE)) == expected, (at, first, seed)


@pytest.mark.parametrize("survives", range(3), ids=["lowest alone", "one missing", "any subset"])
def test_split_renames_that_reach_the_disk_in_any_order_lose_no_record(survives: int) -> None:
    """A power cut before a sync of the directory keeps any subset of the renames before the cut."""
    sound = _disk({0: [_batch(at) for at in FAR]})
    rehearsal = copy.deepcopy(sound)
    open_log(rehearsal, was_clean=True)
    effects = range(sound.effects + 1, rehearsal.effects + 1)
    renames = [at for at in effects if rehearsal.journal[at - 1].startswith("rename ")]
    assert len(renames) > 6
    rng = random.Random(survives)
    for at in renames:
        for _ in range(1 if survives == 0 else 20):
            disk = copy.deepcopy(sound)
            disk.cut_at, disk.cut_before = at, False
            with pytest.raises(PowerCut):
                open_log(disk, was_clean=True)
            changes = disk.pending
            match survives:
                case 0:
                    disk.pending = changes[-1:]
                case 1:
                    doomed = rng.randrange(len(changes))
                    disk.pending = [*changes[:doomed], *changes[doomed + 1 :]]
                case _:
                    disk.pending = [each for each in changes if rng.random() < 0.5]
            disk.sync_directory("./t-0")
            found = disk.crash(rng)
            assert _offsets(open_log(found, recovery_point=7 * WIDE)) == FAR, rehearsal.journal[at - 1]


def test_aborted_transactions_stay_aborted_after_a_split() -> None:
    facts = {"producer_id": 4, "producer_epoch": 0}
    batches = []
    for at in (0, WIDE + 5):
        sent = encode_batch([Record(b"k", b"v", 1)], base_offset=at, base_sequence=0, is_transactional=True, **facts)
        batches.append(bytes(sent))
        batches.append(bytes(encode_marker(base_offset=at + 1, is_commit=False, timestamp_ms=1, **facts)))
        batches.append(_batch(at + 2))
    disk = _disk({0: batches})
    for opening in OPENINGS[:2]:
        log = open_log(copy.deepcopy(disk), **opening)
        committed = [record.offset for record in log.records(0, isolation=Isolation.READ_COMMITTED)]
        assert committed == [2, WIDE + 7], opening


@pytest.mark.parametrize("opening", [{"was_clean": True}, {"recovery_point": 0}], ids=["clean", "crashed"])
@pytest.mark.parametrize("base", [3, 9, 40])
def test_a_segment_with_records_below_its_file_name_is_renamed(opening: dict, base: int) -> None:
    disk = _disk({base: [_batch(0, 4), _batch(4, 4), _batch(8, 2)]})
    log = open_log(disk, **opening)
    assert _offsets(log) == list(range(10))
    assert [info.base_offset for info in log.segments()] == [0]
    fill(log, 10)
    log.close()
    assert _offsets(open_log(disk, was_clean=True)) == list(range(20))


def test_segments_with_overlapping_offsets_are_refused_and_not_changed() -> None:
    disk = _disk({0: [_batch(0, 6)], 20: [_batch(4, 4), _batch(8, 2)]})
    before = {name: bytes(inode.data) for name, inode in disk.names.items() if name.endswith(".log")}
    with pytest.raises(Corrupt, match="overlaps the"):
        open_log(disk, recovery_point=0)
    assert {name: bytes(inode.data) for name, inode in disk.names.items() if name.endswith(".log")} == before


def test_verify_warns_of_a_segment_that_the_next_start_will_split_or_rename() -> None:
    for files in ({0: [_batch(at) for at in FAR]}, {3: [_batch(0, 4), _batch(4, 4)]}):
        findings = directories.verify(_disk(files), "./t-0")
        assert any("the next start" in each.what and each.where.endswith(".log") for each in findings)
        assert worst(findings) is Severity.WARNING


def test_after_a_clean_shutdown_a_misnamed_segment_is_served_and_reported_by_verify() -> None:
    disk = _disk({0: [_batch(0, 4)], 6: [_batch(4, 4), _batch(8, 4)], 12: [_batch(12, 4)]})
    log = open_log(disk, was_clean=True)
    assert [info.base_offset for info in log.segments()] == [0, 6, 12]
    for at in range(16):
        assert [record.offset for record in log.records(at)] == list(range(at, 16)), at
    log.close()
    (told,) = (each for each in directories.verify(disk, "./t-0") if "file name" in each.what)
    assert (told.severity, told.where) == (Severity.WARNING, f"./t-0/{names.segment_file(6, names.LOG)}")
    assert told.what.startswith(
        "the segment begins below the offset of its file name; readers find its records under this name"
    )
    again = open_log(disk, recovery_point=0)
    assert [info.base_offset for info in again.segments()] == [0, 4, 12]
    assert _offsets(again) == list(range(16))


def test_verify_does_not_report_a_controllers_quorum_state_as_stray() -> None:
    disk = _disk({0: [_batch(0, 4)]})
    open_log(disk, was_clean=True).close()
    disk.create("./t-0/quorum-state").close()
    assert worst(directories.verify(disk, "./t-0")) in (None, Severity.INFO)
