"""Verify: no warnings for healthy and live directories, and a finding for every planted damage."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from disk_model import ModelDisk
from manager_world import COMPACTED, NAME, NOW, TIERED, World, send, settle

from local import kernels
from local.errors import AccessDenied, DiskFailed, InvalidRequest, LogError, NotFound
from local.format.crc32c import crc32c
from local.format.record import Record
from local.index import time_index
from local.log import checkpoints
from local.log.producer_state import Producer, ProducerEntry, ProducerState, decode_snapshot, encode_snapshot
from local.names import TopicPartition
from local.verify.directories import VerifyOptions, size_of, verify
from local.verify.findings import Finding, Severity, worst
from tiered.cli.main import invoke
from tiered.manager.manager import LogManager

OPTIONS = VerifyOptions(
    deep=True, interval_bytes=200, known_names=frozenset(("topics.json", "remote-store.json", "remote-requests.json"))
)
MIXED = TopicPartition("mixed", 0)
DIRECTORY = "./data/mixed-0"


def transactions(manager: LogManager, sequences: dict[int, int]) -> None:
    """Plain batches and transactions of two alternating producers; some transactions are aborted."""
    log = manager.partitions.find(MIXED).log
    for at in range(12):
        send(manager, 10, topic="mixed")
        producer_id = 7 + at % 2
        sequence = sequences.get(producer_id, 0)
        records = [Record(b"k%d" % n, b"in transaction", NOW + at) for n in range(3)]
        producer = Producer(producer_id=producer_id, producer_epoch=1, base_sequence=sequence, is_transactional=True)
        log.append(records, now_ms=NOW, producer=producer)
        sequences[producer_id] = sequence + 3
        log.append_marker(producer_id, 1, commit=at % 3 != 0, now_ms=NOW + at)


def make() -> World:
    """Several topics over two starts, with records in both tiers and a cleaned topic."""
    world = World()
    sequences: dict[int, int] = {}
    for _ in range(2):
        with world.open() as manager:
            if not manager.topics.all():
                manager.topics.create("t", 2, {**TIERED, "retention.ms": "-1"}, now_ms=NOW)
                manager.topics.create("compacted", 1, COMPACTED, now_ms=NOW)
                manager.topics.create("mixed", 1, {"retention.ms": "-1"}, now_ms=NOW)
                manager.topics.create("empty", 1, {}, now_ms=NOW)
            send(manager, 100)
            send(manager, 100, topic="compacted")
            transactions(manager, sequences)
            manager.maintenance.delete_records({NAME: 20}, now_ms=NOW)
            settle(manager)
    write_snapshots(world.disk)
    return world


def write_snapshots(disk: ModelDisk) -> None:
    """Write the snapshots that a roll leaves: the producer state at each segment's base and at the log's end."""
    state, end = ProducerState(), 0
    for base in segments(disk):
        disk.create(f"{DIRECTORY}/{base:020d}.snapshot").append(encode_snapshot(state.entries()))
        data = memoryview(disk.read(f"{DIRECTORY}/{base:020d}.log"))
        table = kernels.scan_batches(data)
        state.replay(data, table)
        end = int(table.last_offsets[-1]) + 1 if len(table) else base
    disk.create(f"{DIRECTORY}/{end:020d}.snapshot").append(encode_snapshot(state.entries()))


def alarms(found: list[Finding]) -> list[Finding]:
    return [each for each in found if each.severity > Severity.INFO]


def copy_of(disk: ModelDisk) -> ModelDisk:
    """Another disk with the same files."""
    other = ModelDisk()
    for path in disk.directories:
        other.make_directory(path)
    for path in disk.names:
        other.create(path).append(disk.read(path))
    return other


@pytest.fixture(scope="module")
def healthy() -> ModelDisk:
    return make().disk


def test_verify_reports_no_warning_for_a_healthy_directory(healthy: ModelDisk) -> None:
    assert alarms(verify(healthy, "./data", OPTIONS)) == []
    assert verify(healthy, "./data/t-0", OPTIONS) == [] or worst(verify(healthy, "./data/t-0", OPTIONS)) == 0
    assert size_of(healthy, "./data") == sum(len(healthy.read(name)) for name in healthy.names if name[-4:] == ".log")


def test_verify_reports_no_warning_for_a_live_directory_at_any_disk_effect() -> None:
    world = make()
    real = world.disk._effect
    looks = 0

    def effect(what: str, act: Callable[[], None]) -> None:
        nonlocal looks
        real(what, act)
        looks += 1
        if looks % 7 == 0:
            found = alarms(verify(world.disk, "./data", OPTIONS))
            assert found == [], (what, found)

    with world.open() as manager:
        world.disk._effect = effect  # type: ignore[method-assign]
        send(manager, 60)
        send(manager, 60, topic="compacted")
        settle(manager)
        world.disk._effect = real  # type: ignore[method-assign]
    assert looks > 100


def test_a_torn_tail_is_information_after_a_crash_and_a_warning_after_a_clean_close() -> None:
    world = make()
    manager = world.open()
    send(manager, 30, topic="mixed")
    path = f"{DIRECTORY}/{segments(world.disk)[-1]:020d}.log"
    manager.abandon()
    inode = world.disk.names[path]
    del inode.data[-5:]
    found = verify(world.disk, "./data", OPTIONS)
    assert alarms(found) == []
    assert any("ends inside a batch" in each.what and each.where == path for each in found)
    world.disk.create("./data/.kafka_cleanshutdown").append(b"{}")
    (alarm, *_) = alarms(verify(world.disk, "./data", OPTIONS))
    assert (alarm.where, "ends inside a batch" in alarm.what) == (path, True)


@pytest.mark.parametrize("seed", range(20))
def test_an_unflushed_tail_after_a_power_cut_is_not_reported_as_corrupt(seed: int) -> None:
    world = make()
    manager = world.open()
    send(manager, 50, topic="mixed")
    manager.flush()
    send(manager, 50, topic="mixed")
    manager.abandon()
    found = alarms(verify(world.disk.crash(random.Random(seed)), "./data", OPTIONS))
    logs = [each for each in found if each.where.endswith(".log")]
    assert worst(logs) is not Severity.CORRUPT
    assert len(logs) < 10


# -- damage


def segments(disk: ModelDisk, directory: str = DIRECTORY) -> list[int]:
    return sorted(int(name[:20]) for name in disk.list(directory) if name.endswith(".log"))


def flip(disk: ModelDisk, path: str, at: int, bit: int = 1) -> None:
    disk.names[path].data[at] ^= bit


# Positions of the fields of a batch header, and of one byte of its records.
FIELDS = {
    "baseOffset": 3,
    "batchLength": 10,
    "magic": 16,
    "crc": 18,
    "attributes": 22,
    "lastOffsetDelta": 26,
    "baseTimestamp": 30,
    "maxTimestamp": 40,
    "producerId": 45,
    "producerEpoch": 52,
    "baseSequence": 55,
    "recordsCount": 60,
    "records": 75,
}


@pytest.mark.parametrize("field", list(FIELDS))
@pytest.mark.parametrize("batch", [0, 2])
def test_a_flipped_bit_in_any_field_of_a_batch_is_found(healthy: ModelDisk, field: str, batch: int) -> None:
    disk = copy_of(healthy)
    path = f"{DIRECTORY}/{segments(disk)[1]:020d}.log"
    at, body = 0, disk.read(path)
    for _ in range(batch):
        at += 12 + struct.unpack_from(">i", body, at + 8)[0]
    flip(disk, path, at + FIELDS[field], 0x08)
    found = alarms(verify(disk, "./data", OPTIONS))
    assert worst(found) is Severity.CORRUPT
    assert path in {each.where for each in found}


def test_a_wrong_leader_epoch_is_found_by_the_checkpoint_not_by_the_checksum(healthy: ModelDisk) -> None:
    disk = copy_of(healthy)
    flip(disk, f"{DIRECTORY}/{segments(disk)[1]:020d}.log", 15, 0x40)
    (found,) = alarms(verify(disk, "./data", OPTIONS))
    assert "leader epoch" in found.what


def test_random_bit_flips_in_log_files_are_found(healthy: ModelDisk) -> None:
    rng = random.Random(3)
    logs = [name for name in healthy.names if name.endswith(".log") and healthy.read(name)]
    disk = copy_of(healthy)
    for _ in range(300):
        path = rng.choice(logs)
        at, bit = rng.randrange(len(disk.names[path].data)), 1 << rng.randrange(8)
        flip(disk, path, at, bit)
        assert alarms(verify(disk, path.rpartition("/")[0], OPTIONS)), (path, at, bit)
        flip(disk, path, at, bit)


def is_still_true(disk: ModelDisk, path: str) -> bool:
    """Every entry of the time index is still correct: its time is the largest up to its offset.
    The entry may name another batch with the same time."""
    table = kernels.scan_batches(disk.read(path.replace(".timeindex", ".log")))
    largest = np.maximum.accumulate(table.max_timestamps)
    known = dict(zip(table.last_offsets.tolist(), largest.tolist(), strict=True))
    base = int(path.rpartition("/")[2][:20])
    return all(known.get(offset) == timestamp for timestamp, offset in time_index.entries(disk.read(path), base))


def test_random_bit_flips_in_indexes_snapshots_and_checkpoints_are_found(healthy: ModelDisk) -> None:
    rng = random.Random(4)
    suffixes = (".index", ".timeindex", ".txnindex", ".snapshot", "checkpoint", "metadata")
    files = [name for name in healthy.names if name.endswith(suffixes) and healthy.read(name) and name.count("/") == 3]
    assert {suffix for suffix in suffixes if any(name.endswith(suffix) for name in files)} == set(suffixes)
    disk, missed = copy_of(healthy), []
    for _ in range(300):
        path = rng.choice(files)
        at, bit = rng.randrange(len(disk.names[path].data)), 1 << rng.randrange(8)
        flip(disk, path, at, bit)
        told = verify(disk, path.rpartition("/")[0], OPTIONS)
        found = {each.where for each in alarms(told)}
        # A bit flip may give an entry that older brokers write: verify reports it as information.
        found |= {each.where for each in told if "as Kafka up to 4.0 writes them" in each.what}
        if path not in found and not (path.endswith(".timeindex") and is_still_true(disk, path)):
            missed.append((path, at))
        flip(disk, path, at, bit)
    # No other file proves these: an aborted transaction's stable offset, a topic id, an epoch's start between batches.
    unprovable = (".txnindex", "partition.metadata", "leader-epoch-checkpoint")
    assert [each for each in missed if not each[0].endswith(unprovable)] == []
    assert [at for path, at in missed if path.endswith(".txnindex") and at % 34 < 26] == []


def _cut(disk: ModelDisk) -> str:
    path = f"{DIRECTORY}/{segments(disk)[1]:020d}.log"
    del disk.names[path].data[-3:]
    return path


def _swapped(disk: ModelDisk) -> str:
    one, other = (f"{DIRECTORY}/{base:020d}.log" for base in segments(disk)[1:3])
    disk.names[one].data, disk.names[other].data = disk.names[other].data, disk.names[one].data
    return one


def _swapped_indexes(disk: ModelDisk) -> str:
    one, other = (f"{DIRECTORY}/{base:020d}.timeindex" for base in segments(disk)[1:3])
    disk.names[one].data, disk.names[other].data = disk.names[other].data, disk.names[one].data
    return one


def _missing_index(disk: ModelDisk) -> str:
    path = f"{DIRECTORY}/{segments(disk)[1]:020d}.index"
    disk.unlink(path)
    return path


def _last_time_entry(disk: ModelDisk) -> str:
    path = f"{DIRECTORY}/{segments(disk)[1]:020d}.timeindex"
    del disk.names[path].data[-12:]
    return path


def _index_half_entry(disk: ModelDisk) -> str:
    path = f"{DIRECTORY}/{segments(disk)[1]:020d}.index"
    disk.names[path].data += b"\1\2\3"
    return path


def _wrong_position(disk: ModelDisk) -> str:
    path = next(
        name
        for name in sorted(disk.names)
        if name.startswith(DIRECTORY) and name.endswith(".index") and disk.names[name].data
    )
    data = disk.names[path].data
    data[4:8] = struct.pack(">i", struct.unpack(">i", data[4:8])[0] - 1)
    return path


def _lost_abort(disk: ModelDisk) -> str:
    path = next(name for name in sorted(disk.names) if name.endswith(".txnindex") and disk.names[name].data)
    del disk.names[path].data[:34]
    return path


def _lost_txnindex(disk: ModelDisk) -> str:
    path = next(name for name in sorted(disk.names) if name.endswith(".txnindex") and disk.names[name].data)
    disk.unlink(path)
    return path


def _stale_snapshot(disk: ModelDisk) -> str:
    names = [name for name in sorted(disk.names) if name.startswith(DIRECTORY) and name.endswith(".snapshot")]
    older, newest = names[-3], names[-1]
    assert disk.names[older].data != disk.names[newest].data
    disk.names[newest].data = bytearray(disk.names[older].data)
    return newest


def _unknown_producer(disk: ModelDisk) -> str:
    path = [name for name in sorted(disk.names) if name.startswith(DIRECTORY) and name.endswith(".snapshot")][-1]
    entries = decode_snapshot(bytes(disk.names[path].data))
    stranger = ProducerEntry(
        producer_id=99,
        producer_epoch=0,
        last_sequence=0,
        last_offset=0,
        offset_delta=0,
        timestamp_ms=0,
        coordinator_epoch=0,
        transaction_first_offset=-1,
    )
    disk.names[path].data = bytearray(encode_snapshot([*entries, stranger]))
    return path


def _epochs_backwards(disk: ModelDisk) -> str:
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    disk.names[path].data = bytearray(checkpoints.encode_epochs([(5, 10), (4, 20)]))
    return path


def _hole_in_epochs(disk: ModelDisk) -> str:
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    disk.names[path].data = bytearray(checkpoints.encode_epochs([]))
    return path


def _checkpoint(name: str) -> Callable[[ModelDisk], str]:
    def past_the_end(disk: ModelDisk) -> str:
        path = f"./data/{name}-offset-checkpoint"
        offsets = checkpoints.read_offsets(disk, path) | {MIXED: 10**6}
        checkpoints.write_offsets(disk, path, offsets)
        return DIRECTORY

    past_the_end.__name__ = f"{name} past the end"
    return past_the_end


def _damaged_checkpoint(disk: ModelDisk) -> str:
    path = "./data/recovery-point-offset-checkpoint"
    disk.names[path].data[2:3] = b"9"
    return path


def _added(name: str) -> Callable[[ModelDisk], str]:
    def stray(disk: ModelDisk) -> str:
        disk.create(name).append(b"x")
        return name

    stray.__name__ = f"added {name.rpartition('/')[2]}"
    return stray


def _lost_segment(disk: ModelDisk) -> str:
    """Delete a log file; its indexes are then stray files."""
    base = segments(disk)[1]
    disk.unlink(f"{DIRECTORY}/{base:020d}.log")
    return f"{DIRECTORY}/{base:020d}.index"


def _records_of_nonsense(disk: ModelDisk) -> str:
    """A valid checksum over records that cannot be decoded: found only with --deep."""
    path = f"{DIRECTORY}/{segments(disk)[1]:020d}.log"
    data = disk.names[path].data
    size = 12 + struct.unpack_from(">i", data, 8)[0]
    data[61] = 0x7E
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:size])))
    return path


PLANTED: list[Callable[[ModelDisk], str]] = [
    *(_cut, _swapped, _swapped_indexes, _missing_index, _last_time_entry, _index_half_entry, _wrong_position),
    *(_lost_abort, _lost_txnindex, _stale_snapshot, _unknown_producer, _epochs_backwards, _hole_in_epochs),
    *(_checkpoint("recovery-point"), _checkpoint("log-start"), _damaged_checkpoint, _lost_segment),
    *(_added("./data/notes.txt"), _added(f"{DIRECTORY}/notes.txt"), _added(f"{DIRECTORY}/{7:020d}.log.swap")),
    *(_added(f"{DIRECTORY}/{7:020d}.log.cleaned"), _added(f"{DIRECTORY}/x.tmp"), _records_of_nonsense),
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
def test_planted_damage_is_reported_with_its_path(healthy: ModelDisk, plant: Callable[[ModelDisk], str]) -> None:
    disk = copy_of(healthy)
    named = plant(disk)
    found = alarms(verify(disk, "./data", OPTIONS))
    assert named in {each.where for each in found}, found


class BadSector:
    """A disk on which one file or directory cannot be read."""

    def __init__(self, disk: ModelDisk, bad: str, error: LogError) -> None:
        self._disk, self._bad, self._error = disk, bad, error

    def __getattr__(self, verb: str) -> Callable[..., object]:
        def call(path: str, *rest: object) -> object:
            if path == self._bad and verb not in ("exists", "is_directory", "size"):
                raise self._error
            return getattr(self._disk, verb)(path, *rest)

        return call


UNREADABLE = [
    *(f"{DIRECTORY}/{{base}}{suffix}" for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot")),
    *(f"{DIRECTORY}/leader-epoch-checkpoint", f"{DIRECTORY}/partition.metadata", DIRECTORY),
    *("./data/recovery-point-offset-checkpoint", "./data"),
]


@pytest.mark.parametrize("bad", UNREADABLE, ids=lambda bad: bad.rpartition("/")[2])
def test_an_unreadable_file_is_reported_and_hides_no_other_finding(healthy: ModelDisk, bad: str) -> None:
    disk = copy_of(healthy)
    bases = segments(disk)
    bad = bad.format(base=f"{bases[1]:020d}")
    damaged = f"{DIRECTORY}/{bases[0]:020d}.log"
    flip(disk, damaged, 75)
    disk.create("./data/notes").append(b"x")
    seen = {
        error: alarms(verify(BadSector(disk, bad, error("reading", path=bad, cause="eio")), "./data", OPTIONS))
        for error in (DiskFailed, AccessDenied)
    }
    for error, severity in ((DiskFailed, Severity.CORRUPT), (AccessDenied, Severity.WARNING)):
        assert [each.severity for each in seen[error] if each.where == bad] == [severity], seen
        hidden = {"./data/notes", damaged} if bad == "./data" else {damaged} if bad == DIRECTORY else set()
        assert {each.where for each in seen[error]} >= {"./data/notes", damaged} - hidden
    with pytest.raises(DiskFailed):
        verify(BadSector(disk, bad, DiskFailed("opening", path=bad, cause="emfile")), "./data", OPTIONS)


def test_an_empty_directory_gets_a_warning() -> None:
    disk = ModelDisk()
    disk.make_directory("./data")
    (found,) = verify(disk, "./data", OPTIONS)
    assert (found.severity, found.where) == (Severity.WARNING, "./data")


def test_leftover_files_of_deletions_are_information(healthy: ModelDisk) -> None:
    disk = copy_of(healthy)
    for name in (f"{DIRECTORY}/{7:020d}.log.deleted", "./data/t-0.abc-delete/x"):
        disk.make_directory(name.rpartition("/")[0])
        disk.create(name).append(b"x")
    found = verify(disk, "./data", OPTIONS)
    assert alarms(found) == []
    assert {each.where for each in found} >= {f"{DIRECTORY}/{7:020d}.log.deleted", "./data/t-0.abc-delete"}


def test_verify_writes_nothing(healthy: ModelDisk) -> None:
    disk = copy_of(healthy)
    effects = disk.effects
    verify(disk, "./data", OPTIONS)
    assert disk.effects == effects


def test_verify_refuses_a_path_that_is_not_a_log_directory(healthy: ModelDisk) -> None:
    with pytest.raises(NotFound):
        verify(healthy, "./nowhere")
    with pytest.raises(InvalidRequest):
        verify(healthy, "./data/topics.json")


# -- the command


@pytest.fixture
def home(tmp_path: Path, monkeypatch, capfd) -> Path:
    monkeypatch.chdir(tmp_path)
    assert invoke(["init"]) == 0
    assert invoke(["topic", "create", "orders", "-p", "2", "-X", "segment.bytes=1KiB"]) == 0
    (tmp_path / "lines").write_text("".join(f"k{at}:value {at}\n" for at in range(200)))
    assert invoke(["append", "orders", "lines", "-K", ":", "--batch", "10"]) == 0
    capfd.readouterr()
    return tmp_path


def rows(capfd, *words: str, code: int = 0) -> list[dict[str, object]]:
    capfd.readouterr()
    got = invoke(["verify", *words, "-o", "json"])
    out, err = capfd.readouterr()
    assert got == code, err + out
    return json.loads(out)["findings"]


def test_the_verify_command_accepts_paths_topics_and_no_argument(home: Path, capfd) -> None:
    for words in ([], ["orders"], ["orders/1"], ["data"], ["data/orders-0"], [str(home / "data"), "--deep"]):
        assert rows(capfd, *words) == []
    assert invoke(["verify", "nope"]) == 1
    assert invoke(["verify", "tiered.toml"]) == 2


def test_fix_index_rebuilds_a_wrong_index_unless_the_directory_is_locked(home: Path, capfd) -> None:
    from local.storage import DiskStorage
    from tiered.config.config import Config

    path = sorted((home / "data" / "orders-0").glob("*.timeindex"))[0]
    good = path.read_bytes()
    path.write_bytes(good[:-1] + b"\xff")
    (row,) = rows(capfd, "orders", code=4)
    assert (row["severity"], row["path"]) == ("corrupt", str(path))
    lock = DiskStorage().lock(str(home / "data" / ".lock"))
    assert invoke(["verify", "--fix-index"]) == 5
    assert path.read_bytes() != good
    lock.close()
    assert rows(capfd, "--fix-index") == []
    assert path.read_bytes() == good
    path.unlink()
    assert [row["severity"] for row in rows(capfd, code=3)] == ["warning"]
    assert rows(capfd, "orders/0", "--fix-index") == []
    assert Config.load(str(home / "tiered.toml")).data_dir


def test_a_missing_log_directory_does_not_hide_findings_of_the_others(home: Path, capfd) -> None:
    (home / "tiered.toml").write_text('[local]\ndirs = ["away", "data"]\n')
    (home / "data" / "notes").write_text("x")
    assert {row["path"] for row in rows(capfd, code=3)} == {str(home / "away"), str(home / "data" / "notes")}
    assert invoke(["verify", "./away"]) == 1
    shutil.copytree(home / "data" / "orders-0", home / "away" / "orders-0")
    assert rows(capfd, code=4)[0]["path"] == str(home / "data" / "orders-0")


def test_fix_index_rebuilds_other_indexes_although_one_log_is_damaged(home: Path, capfd) -> None:
    broken, sound = (sorted((home / "data" / f"orders-{at}").glob("*.log"))[0] for at in (0, 1))
    broken.write_bytes(broken.read_bytes()[:100] + b"\xff" * 500)
    for log in (broken, sound):
        log.with_suffix(".index").unlink()
    found = rows(capfd, "--fix-index", code=4)
    assert {row["path"] for row in found} >= {str(broken), str(broken.with_suffix(".index"))}
    assert str(sound.with_suffix(".index")) not in {row["path"] for row in found}
    assert sound.with_suffix(".index").exists()


def test_damage_exits_with_4_and_the_most_severe_finding_is_first(home: Path, capfd) -> None:
    log = sorted((home / "data" / "orders-1").glob("*.log"))[0]
    log.write_bytes(log.read_bytes()[:-1] + b"\xff")
    (home / "data" / "notes").write_text("x")
    found = rows(capfd, code=4)
    assert [row["severity"] for row in found] == ["corrupt", "warning"]
    assert found[0]["base_offset"] is not None


def test_verify_reports_no_warning_during_a_transaction_at_any_disk_effect() -> None:
    world = make()
    real = world.disk._effect
    alarmed: list[object] = []

    def effect(what: str, act: Callable[[], None]) -> None:
        real(what, act)
        alarmed.extend((what, each) for each in alarms(verify(world.disk, DIRECTORY, OPTIONS)))

    with world.open() as manager:
        world.disk._effect = effect  # type: ignore[method-assign]
        log = manager.partitions.find(MIXED).log
        for at in range(3):
            producer = Producer(producer_id=50, producer_epoch=0, base_sequence=at, is_transactional=True)
            log.append([Record(b"k", b"v", NOW)], now_ms=NOW, producer=producer)
            log.append_marker(50, 0, commit=False, now_ms=NOW)
        world.disk._effect = real  # type: ignore[method-assign]
    assert alarmed == []


def test_a_rebuilt_index_has_the_index_interval_of_its_topic(home: Path, capfd) -> None:
    assert invoke(["topic", "create", "dense", "-X", "index.interval.bytes=200"]) == 0
    (home / "records").write_text("".join(f"record number {at}\n" for at in range(400)))
    assert invoke(["append", "dense", str(home / "records"), "--batch", "5"]) == 0
    (index,) = (home / "data" / "dense-0").glob("*.index")
    good = index.read_bytes()
    assert len(good) > 20 * 8
    index.unlink()
    assert not [row for row in rows(capfd, "dense", "--fix-index") if row["severity"] != "info"]
    assert index.read_bytes() == good
