"""Recovery of a log: rebuilt indexes, truncated tails, reported damage, and disk failures during a change."""

from __future__ import annotations

import pytest
from disk_model import ModelDisk
from log_world import fill, open_log, read_all

from local.errors import Corrupt, DiskFailed
from local.format.record import Record
from local.log import Durability
from local.records.batch import encode_batch


def test_a_rebuilt_index_equals_the_one_written_while_appending() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 300)
    log.close()
    before = {name: bytes(inode.data) for name, inode in disk.names.items() if "index" in name}
    for name in before:
        disk.unlink(name)
    open_log(disk, was_clean=True)
    assert {name: bytes(disk.names[name].data) for name in before} == before


@pytest.mark.parametrize("damage", ["missing", "torn", "zeros", "of another log"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_damaged_index_is_rebuilt_even_after_a_clean_shutdown(damage: str, suffix: str) -> None:
    disk = ModelDisk()
    log = open_log(disk)
    sent = fill(log, 200)
    log.close()
    name = next(name for name in sorted(disk.names) if name.endswith(suffix) and disk.names[name].data)
    good = bytes(disk.names[name].data)
    inode = disk.names[name]
    match damage:
        case "missing":
            disk.unlink(name)
        case "torn":
            inode.data = inode.data[:-3]
        case "zeros":
            inode.data += bytes(24)
        case _:
            inode.data = bytearray(b"\x7f" * 24)
    log = open_log(disk, was_clean=True)
    assert len(read_all(log)) == len(sent)
    assert bytes(disk.names[name].data) == good


def test_recovery_truncates_a_torn_tail_and_the_log_accepts_appends() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 55)
    active = log.segments()[-1]
    path = log.segment(active.base_offset).path(".log")
    disk.names[path].data = disk.names[path].data[:-7]
    log = open_log(disk)
    assert log.next_offset == 50
    fill(log, 10, start=50)
    assert [record.offset for record in read_all(open_log(disk))] == list(range(60))


def test_a_wrong_crc_above_the_recovery_point_ends_the_log_there() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 300)
    second = log.segments()[1]
    path = log.segment(second.base_offset).path(".log")
    disk.names[path].data[200] ^= 1
    log = open_log(disk)
    assert second.base_offset <= log.next_offset < second.next_offset
    assert [r.offset for r in read_all(log)] == list(range(log.next_offset))
    assert log.segments()[-1].base_offset == second.base_offset


def test_damage_below_the_recovery_point_is_reported_by_reads_and_not_truncated() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 300)
    log.close()
    path = log.segment(0).path(".log")
    disk.names[path].data[200] ^= 1
    log = open_log(disk, recovery_point=300)
    assert log.next_offset == 300
    with pytest.raises(Corrupt, match="crc"):
        read_all(log)


def test_a_failed_fsync_is_never_retried_nor_acknowledged() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 10)

    def fail(*suffixes: str) -> None:
        raise DiskFailed("cannot sync a file", path="x")

    log.segment(0).sync = fail  # type: ignore[method-assign]
    with pytest.raises(DiskFailed):
        log.append([Record(None, b"v", 0)], now_ms=0, durability=Durability.FLUSHED)
    del log.segment(0).sync
    with pytest.raises(DiskFailed, match="reopen"):
        log.append([Record(None, b"v", 0)], now_ms=0)


@pytest.mark.parametrize("cause", ["enospc", "eio"])
def test_a_failed_write_is_cut_off_and_later_appends_succeed(cause: str) -> None:
    disk = ModelDisk()
    log = open_log(disk)
    sent = fill(log, 10)
    segment = log.segment(0)
    file = segment._writers[".log"]

    class Full:
        is_full = True

        def append(self, data: bytes) -> None:
            file.append(bytes(data)[:20] if self.is_full else data)
            if self.is_full:
                self.is_full = False
                raise DiskFailed("cannot write to a file", path="x", cause=cause)

        def __getattr__(self, name: str) -> object:
            return getattr(file, name)

    segment._writers[".log"] = Full()  # type: ignore[assignment]
    with pytest.raises(DiskFailed, match=cause):
        log.append([Record(None, b"v", 0)], now_ms=0)
    log.append([Record(None, b"after", 0)], now_ms=0)
    assert [r.value for r in read_all(log)] == [*(r.value for r in sent), b"after"]


def test_a_log_opened_read_only_writes_nothing_and_shows_whole_batches() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 55)
    path = log.segment(log.segments()[-1].base_offset).path(".log")
    disk.names[path].data = disk.names[path].data[:-7]
    effects = disk.effects
    seen = open_log(disk, read_only=True)
    assert seen.next_offset == 50
    assert len(read_all(seen)) == 50
    with pytest.raises(DiskFailed):
        seen.append([Record(None, b"v", 0)], now_ms=0)
    assert disk.effects == effects


def test_a_failed_roll_leaves_no_segment_that_hides_later_records() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    log.append([Record(b"k", b"v" * 100, 1)] * 3, now_ms=0)
    real = disk.create

    def no_room(path: str) -> object:
        if path.endswith("3.index"):
            raise DiskFailed("cannot open a file", path=path, cause="emfile")
        return real(path)

    disk.create = no_room  # type: ignore[method-assign,assignment]
    with pytest.raises(DiskFailed, match="emfile"):
        log.roll(now_ms=0)
    disk.create = real  # type: ignore[method-assign]
    log.append([Record(b"k", b"w", 1)] * 8, now_ms=0, durability=Durability.FLUSHED)
    log.close()
    reopened = open_log(disk, was_clean=True)
    assert reopened.next_offset == 11
    assert [record.offset for record in read_all(reopened)] == list(range(11))


def test_an_overlapping_empty_segment_is_deleted_and_one_with_records_is_corrupt() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 10)
    log.close()
    for suffix in (".log", ".index", ".timeindex"):
        disk.create(f"./t-0/00000000000000000003{suffix}")
    assert open_log(disk, was_clean=True).next_offset == 10
    disk.create("./t-0/00000000000000000003.log").append(encode_batch([Record(b"a", b"b", 1)], base_offset=3))
    for suffix in (".index", ".timeindex"):
        disk.create(f"./t-0/00000000000000000003{suffix}")
    with pytest.raises(Corrupt, match="overlaps the next segment"):
        open_log(disk)


def test_damage_in_an_old_segment_truncates_no_later_segment() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 300)
    log.close()
    second = log.segments()[1].base_offset
    path = f"./t-0/{second:020d}"
    disk.names[path + ".log"].data[200] ^= 1
    disk.unlink(path + ".timeindex")
    before = {name: bytes(inode.data) for name, inode in disk.names.items() if name.endswith(".log")}
    for clean in (True, False):
        log = open_log(disk, was_clean=clean, recovery_point=300)
        assert log.next_offset == 300
        assert {n: bytes(i.data) for n, i in disk.names.items() if n.endswith(".log") and i.data} == before
        with pytest.raises(Corrupt):
            read_all(log)
        assert read_all(log, log.segments()[2].base_offset)[-1].offset == 299
        log.release()


def test_damage_below_the_recovery_point_in_the_last_segment_stops_recovery() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 20)
    log.flush()
    path = "./t-0/00000000000000000000.log"
    disk.names[path].data[100] ^= 1
    before = bytes(disk.names[path].data)
    with pytest.raises(Corrupt, match=r"below the recovery point: path=\./t-0/00000000000000000000\.log"):
        open_log(disk, recovery_point=20)
    assert bytes(disk.names[path].data) == before


def test_a_read_only_open_hides_a_tail_of_zeros_or_garbage() -> None:
    for tail in (bytes(500), b"\x7f" * 500):
        disk = ModelDisk()
        log = open_log(disk)
        fill(log, 50)
        disk.names["./t-0/" + f"{log.segments()[-1].base_offset:020d}.log"].data += tail
        seen = open_log(disk, read_only=True)
        assert [record.offset for record in read_all(seen)] == list(range(50))


@pytest.mark.parametrize("checkpointed", [None, 0, 30, 50, 70])
@pytest.mark.parametrize("is_expired", [False, True])
def test_a_read_only_open_shows_the_same_offsets_as_the_next_recovery(
    checkpointed: int | None, is_expired: bool
) -> None:
    """The checkpointed log start is missing, at or below the log's end, or above it."""
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 50)
    if is_expired:
        log.roll(now_ms=1000)
        log.drop_before(50, now_ms=1000, delay_ms=0, raises_log_start=True)
        assert [each.base_offset for each in log.segments()] == [50]
    seen = open_log(disk, read_only=True, log_start_offset=checkpointed)
    started = open_log(disk, log_start_offset=checkpointed)
    for name in ("log_start_offset", "local_log_start_offset", "next_offset"):
        assert getattr(seen, name) == getattr(started, name), name
    assert seen.log_start_offset <= seen.next_offset
    assert [record.offset for record in read_all(seen)] == [record.offset for record in read_all(started)]
