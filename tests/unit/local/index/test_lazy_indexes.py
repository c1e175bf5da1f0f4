"""Lazy indexes: an open lists files only; an index is checked on first use, rebuilt if wrong, and few are mapped."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from disk_model import ModelDisk, PowerCut
from log_world import fill, open_log, read_all

from local import kernels, names
from local.errors import Corrupt, NotFound
from local.format.record import Record
from local.index import index_files, offset_index, time_index
from local.index.index_files import INDEXES, build_indexes
from local.index.sealed_indexes import INDEX_MAPS, IndexMaps
from local.log import Log
from local.records.batch import encode_batch
from local.segment import swap
from local.settings import LogSettings
from local.storage import DiskStorage

ROOT = Path(__file__).parents[4]
DAMAGES = ["missing", "empty", "torn", "zeros", "of another log"]


class _Counting(ModelDisk):
    """A disk that also records every read access."""

    def __init__(self, disk: ModelDisk) -> None:
        super().__init__()
        self.__dict__.update(disk.__dict__)
        self.questions: list[str] = []

    def __getattribute__(self, name: str) -> object:
        if name in ("open", "open_reader", "read", "map", "exists", "size", "modified_ms", "list", "list_files"):
            object.__getattribute__(self, "questions").append(name)
        return object.__getattribute__(self, name)


def _closed_log(count: int) -> tuple[ModelDisk, list[Record]]:
    disk = ModelDisk()
    log = open_log(disk)
    sent = fill(log, count)
    log.close()
    return disk, sent


def _damage(disk: ModelDisk, name: str, damage: str) -> None:
    inode = disk.names[name]
    match damage:
        case "missing":
            disk.unlink(name)
        case "empty":
            inode.data = bytearray()
        case "torn":
            inode.data = inode.data[:-3]
        case "zeros":
            inode.data += bytes(24)
        case _:
            inode.data = bytearray(b"\x7f" * 24)
    inode.sync()


def _indexes(disk: ModelDisk) -> dict[str, bytes]:
    return {name: bytes(inode.data) for name, inode in disk.names.items() if name.endswith(tuple(INDEXES))}


def test_the_number_of_disk_accesses_of_a_clean_open_is_independent_of_segments() -> None:
    asked = []
    for count in (300, 3000):
        disk = _Counting(_closed_log(count)[0])
        log = open_log(disk, was_clean=True)
        assert log.next_offset == count
        asked.append(len(disk.questions))
        assert len(log.segments()) > count // 100
    assert asked[0] == asked[1]


def test_the_disk_accesses_of_an_open_that_recovers_one_segment_are_independent_too() -> None:
    asked = []
    for count in (300, 3000):
        disk = _Counting(_closed_log(count)[0])
        open_log(disk, recovery_point=count)
        asked.append(len(disk.questions))
    assert asked[0] == asked[1]


# An empty offset index is valid: lookups start at the segment's first byte.
OFF = [(damage, suffix) for damage in DAMAGES for suffix in INDEXES if (damage, suffix) != ("empty", ".index")]


@pytest.mark.parametrize(("damage", "suffix"), OFF)
@pytest.mark.parametrize("use", ["offset", "time", "copy"])
def test_a_wrong_index_is_rebuilt_on_first_use(damage: str, suffix: str, use: str) -> None:
    disk, sent = _closed_log(300)
    good = _indexes(disk)
    _damage(disk, next(name for name in sorted(good) if name.endswith(suffix) and good[name]), damage)
    log = open_log(disk, was_clean=True)
    match use:
        case "offset":
            assert [record.value for record in read_all(log)] == [record.value for record in sent]
        case "time":
            assert [log.offset_for_timestamp(5000 + at) for at in range(300)] == list(range(300))
        case _:
            for info in log.segments():
                assert (
                    log.segment(info.base_offset).index(names.OFFSET_INDEX) == good[_name(info.base_offset, ".index")]
                )
                assert (
                    log.segment(info.base_offset).index(names.TIME_INDEX) == good[_name(info.base_offset, ".timeindex")]
                )
    assert _indexes(disk) == good
    assert not any(name.endswith(names.TEMPORARY) for name in disk.names)


def _name(base_offset: int, suffix: str) -> str:
    return f"./t-0/{names.segment_file(base_offset, suffix)}"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_damaged_time_index_never_changes_the_largest_timestamp_of_a_segment(damage: str, read_only: bool) -> None:
    disk, _ = _closed_log(300)
    whole = [info.max_timestamp_ms for info in open_log(disk, was_clean=True).segments()]
    disk, _ = _closed_log(300)
    for name in [name for name, data in _indexes(disk).items() if name.endswith(".timeindex") and data]:
        _damage(disk, name, damage)
    log = open_log(disk, was_clean=True, read_only=read_only)
    assert [info.max_timestamp_ms for info in log.segments()][: len(whole)] == whole


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_read_only_log_scans_instead_of_using_a_wrong_index_and_writes_nothing(damage: str) -> None:
    disk, sent = _closed_log(300)
    for name in [name for name, data in _indexes(disk).items() if data]:
        _damage(disk, name, damage)
    effects = disk.effects
    log = open_log(disk, read_only=True)
    assert [record.value for record in read_all(log)] == [record.value for record in sent]
    assert [log.offset_for_timestamp(5000 + at) for at in range(300)] == list(range(300))
    assert log.newest() == (299, 5299, 0)
    assert disk.effects == effects


def test_if_a_rebuild_fails_reads_reach_the_damaged_batch_and_name_it() -> None:
    disk, _ = _closed_log(300)
    base = sorted(int(name[6:26]) for name in disk.names if name.endswith(".log"))[1]
    data = disk.names[_name(base, ".log")].data
    table = kernels.scan_batches(data)
    third = int(table.positions[2])
    data[third + 16] = 99  # the magic of the third batch
    _damage(disk, _name(base, ".index"), "of another log")
    log = open_log(disk, was_clean=True)
    assert kernels.scan_batches(log.read(base, 10_000)).valid_bytes == third
    with pytest.raises(Corrupt, match=rf"path=\./t-0/{base:020d}\.log at={third}"):
        log.read(int(table.base_offsets[2]))
    with pytest.raises(Corrupt, match="this process may not rebuild it"):
        log.segment(base).index(names.OFFSET_INDEX)


def test_a_rebuild_that_the_disk_refuses_does_not_fail_reads() -> None:
    disk, sent = _closed_log(300)
    _damage(disk, _name(0, ".index"), "zeros")
    log = open_log(disk, was_clean=True)
    disk.fail_at = disk.effects + 1
    assert [record.value for record in read_all(log)] == [record.value for record in sent]
    assert disk.fail_at <= disk.effects


@pytest.mark.parametrize("replaced", [False, True], ids=["dropped", "replaced by the cleaner"])
def test_a_rebuild_during_a_drop_or_a_swap_writes_no_index(replaced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, _ = _closed_log(300)
    _damage(disk, _name(0, ".index"), "zeros")
    log = open_log(disk, LogSettings(segment_bytes=2000, batch_bytes=300, is_compacted=replaced), was_clean=True)
    victim = log.segment(0)
    real = index_files.write_aside
    left: list[dict[str, bytes]] = []

    def overtaken(*args: object) -> None:
        real(*args)  # type: ignore[arg-type]
        if replaced:
            _swap_first(log, disk)
        else:
            log.drop_before(log.segments()[1].base_offset, now_ms=0, delay_ms=0, raises_log_start=True)
            log.remove_deleted(0)
        left.append(_indexes(disk))

    monkeypatch.setattr(index_files, "write_aside", overtaken)
    with pytest.raises(NotFound, match="replaced or deleted"):
        victim.entry_before(5)[1]
    monkeypatch.undo()
    assert _indexes(disk) == left[0]
    assert not any(name.endswith(names.TEMPORARY) for name in disk.names)
    start = log.local_log_start_offset
    assert [record.offset for record in read_all(log)] == list(range(start, 300))


def _swap_first(log: Log, disk: ModelDisk) -> None:
    """Swap the first segment with an identical copy, as a pass does that removes no record."""
    body = bytes(disk.names[_name(0, ".log")].data)
    swap.write_cleaned(log.segment(0).files, [body])
    swap.write_cleaned_indexes(log.segment(0).files, build_indexes(kernels.scan_batches(body), 0, 200))
    log.swap_in([log.segment(0)], 0, now_ms=0, delay_ms=0)


def test_a_closed_log_rebuilds_no_index() -> None:
    disk, _ = _closed_log(300)
    _damage(disk, _name(0, ".index"), "zeros")
    log = open_log(disk, was_clean=True)
    segment = log.segment(0)
    log.close()
    effects = disk.effects
    assert segment.entry_before(50)[1] == 0
    assert disk.effects == effects


@pytest.mark.parametrize("eager", [True, False], ids=["at the open", "at the first use"])
def test_lookups_are_correct_after_a_power_cut_at_any_step_of_a_rebuild(eager: bool) -> None:
    """The segment is below the recovery point and is not scanned again, so a partly written index must be detected."""

    def work(disk: ModelDisk) -> None:
        log = open_log(disk, was_clean=True)
        log.segment(0).entry_before(5)[1]

    def world() -> ModelDisk:
        disk, _ = _closed_log(120)
        _damage(disk, _name(0, ".timeindex"), "missing" if eager else "of another log")
        disk.sync_directory("./t-0")
        return disk

    pristine = world()
    rehearsal = copy.deepcopy(pristine)
    before = rehearsal.effects
    work(rehearsal)
    assert rehearsal.effects - before > 4
    for at in range(before + 1, rehearsal.effects + 1):
        for first in (True, False):
            disk = copy.deepcopy(pristine)
            disk.cut_at, disk.cut_before = at, first
            with pytest.raises(PowerCut):
                work(disk)
            found = [disk.crash(random.Random(f"{at} {first} {seed}")) for seed in range(4)]
            found += [_found_torn(disk, keep) for keep in range(0, 100, 12)]
            for each in found:
                log = open_log(each, recovery_point=120)
                infos = log.segments()
                assert infos[0].max_timestamp_ms == 5000 + infos[1].base_offset - 1
                offsets = (0, 37, infos[1].base_offset - 1, 119)
                assert tuple(log.offset_for_timestamp(5000 + at) for at in offsets) == offsets


def _found_torn(disk: ModelDisk, keep: int) -> ModelDisk:
    """The disk after a power cut that kept every name, and of each file the synced bytes and the bytes below `keep`."""
    found = ModelDisk()
    found.make_directory("./t-0")
    for name, inode in disk.names.items():
        synced = len(inode.synced) if inode.data.startswith(inode.synced) else 0
        file = found.create(name)
        file.append(bytes(inode.data[: max(synced, keep)]))
        file.sync()
    found.sync_directory("./t-0")
    return found


def test_the_index_map_used_least_recently_is_closed() -> None:
    maps = IndexMaps(2)
    made: list[str] = []

    def get(owner: str) -> memoryview:
        def make() -> memoryview:
            made.append(owner)
            return memoryview(owner.encode())

        return maps.get(owner, ".index", make)

    first = get("a")
    for owner in "babcab":
        get(owner)
    assert made == ["a", "b", "c", "a", "b"]
    assert len(maps._maps) == 2
    assert bytes(first) == b"a"
    maps.forget("b", (".index",))
    assert len(maps._maps) == 1


def test_a_drop_closes_the_index_maps_of_the_segment() -> None:
    disk, _ = _closed_log(300)
    log = open_log(disk, was_clean=True)
    segment = log.segment(0)
    segment.entry_before(5)[1]
    assert any(owner is segment._indexes for owner, _ in INDEX_MAPS._maps)
    log.drop_before(log.segments()[1].base_offset, now_ms=0, delay_ms=0, raises_log_start=True)
    assert not any(owner is segment._indexes for owner, _ in INDEX_MAPS._maps)


DESCRIPTORS_MAX = 200
BOUNDED = """
import json, os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (%d, %d))
from local.index.sealed_indexes import INDEX_MAPS, MAPS_MAX
from local.log.log import Log
from local.names import OFFSET_INDEX, TIME_INDEX, TopicPartition
from local.settings import LogSettings
from local.storage.storage import DiskStorage
log = Log.open(DiskStorage(), sys.argv[1], TopicPartition("t", 0), LogSettings(), now_ms=0, was_clean=True)
most = 0
segments = log.segments()
for at, info in enumerate(segments):
    assert log.read(info.base_offset + 3, 1)
    assert log.offset_for_timestamp(info.base_offset + 3) == info.base_offset + 3
    if at %% 100 == 0:
        most = max(most, len(os.listdir("/proc/self/fd")))
assert len(INDEX_MAPS._maps) <= MAPS_MAX
print(json.dumps({"segments": len(segments), "most": most}))
""" % (DESCRIPTORS_MAX, DESCRIPTORS_MAX)  # noqa: UP031 - the program has braces


def _many_segments(directory: Path, count: int) -> None:
    directory.mkdir()
    for base in range(0, count * 4, 4):
        batches = [
            encode_batch([Record(None, b"v", at), Record(None, b"w", at + 1)], base_offset=at)
            for at in (base, base + 2)
        ]
        (directory / names.segment_file(base, ".log")).write_bytes(b"".join(batches))
        entry = offset_index.pack(base, base + 3, len(batches[0]))
        (directory / names.segment_file(base, ".index")).write_bytes(entry)
        times = time_index.pack(base, base + 1, base + 1) + time_index.pack(base, base + 3, base + 3)
        (directory / names.segment_file(base, ".timeindex")).write_bytes(times)


def test_reads_of_thousands_of_segments_use_a_bounded_number_of_descriptors(tmp_path: Path) -> None:
    _many_segments(tmp_path / "t-0", 3000)
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(tmp_path / "t-0")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["segments"] == 3000
    assert told["most"] < DESCRIPTORS_MAX


def test_a_listing_contains_sizes_and_times_of_regular_files_only(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "a.log").write_bytes(b"12345")
    storage = DiskStorage()
    found = storage.list_files(str(tmp_path))
    path = str(tmp_path / "a.log")
    assert found == {"a.log": (storage.size(path), storage.modified_ms(path))}
    assert (
        storage.list_files(str(tmp_path), (".log",)) == storage.list_files(str(tmp_path), (".index", ".log")) == found
    )
    assert not storage.list_files(str(tmp_path), (".index", ".lo"))
    with pytest.raises(NotFound):
        storage.list_files(str(tmp_path / "none"))
