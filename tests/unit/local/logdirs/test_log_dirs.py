"""Several log directories of one node: their identities, the placement of partitions, and offline directories."""

from __future__ import annotations

from contextlib import suppress

import pytest
from broken_disk import BrokenDisk
from disk_model import ModelDisk
from log_world import SMALL

from local.errors import Conflict, Corrupt, DiskFailed, InvalidRequest, NotFound
from local.format.record import Record
from local.log import checkpoints
from local.logdirs.log_dir import LogDirectory
from local.logdirs.log_dirs import LogDirectories
from local.names import TopicPartition
from local.storage import Space
from policies.placement import choose_log_dir

A, B, C = "./a", "./b", "./c"
PARTITIONS = [TopicPartition("t", number) for number in range(6)]
ID = "A" * 22
MARKER = ".kafka_cleanshutdown"


def _made(disk: BrokenDisk | ModelDisk, roots: tuple[str, ...] = (A, B)) -> LogDirectories:
    """Two directories with `PARTITIONS`, three in each, one record per partition. Partitions on a failing disk are left
    out."""
    dirs = LogDirectories(disk, roots)
    for name in PARTITIONS:
        with suppress(DiskFailed):
            dirs.create(name, ID, choose_log_dir)
            dirs.open_log(name, SMALL, now_ms=0).append([Record(b"k", b"v", 1)], now_ms=0)
    return dirs


def _opened(
    disk: BrokenDisk | ModelDisk, roots: tuple[str, ...] = (A, B), *, read_only: bool = False
) -> LogDirectories:
    dirs = LogDirectories(disk, roots, read_only=read_only)
    for name in sorted(name for root in dirs.roots for name in dirs.partitions_of(root)):
        dirs.open_log(name, SMALL, now_ms=0)
    return dirs


def test_partitions_are_spread_evenly_and_found_again_after_a_restart() -> None:
    disk = ModelDisk()
    dirs = _made(disk)
    assert [facts.partition_count for facts in dirs.facts()] == [3, 3]
    where = {name: dirs.root_of(name) for name in PARTITIONS}
    dirs.close()
    again = _opened(disk)
    assert {name: again.root_of(name) for name in PARTITIONS} == where
    assert all(again.open_log(name, SMALL, now_ms=0).next_offset == 1 for name in PARTITIONS)


def test_new_partitions_are_placed_in_an_added_empty_directory() -> None:
    disk = ModelDisk()
    _made(disk).close()
    disk.make_directory(C)
    dirs = LogDirectories(disk, (A, B, C))
    for number in range(3):
        name = TopicPartition("new", number)
        dirs.create(name, ID, choose_log_dir)
        assert dirs.root_of(name) == C


def test_each_directory_has_its_own_id_and_the_cluster_and_node_id_of_the_others() -> None:
    disk = ModelDisk()
    LogDirectories(disk, (A, B)).close()
    first, second = (checkpoints.read_meta_properties(disk, root) for root in (A, B))
    assert first is not None
    assert second is not None
    assert (first.cluster_id, first.node_id) == (second.cluster_id, second.node_id)
    assert first.directory_id != second.directory_id
    disk.make_directory(C)
    LogDirectories(disk, (A, B, C)).close()
    third = checkpoints.read_meta_properties(disk, C)
    assert third is not None
    assert third.cluster_id == first.cluster_id


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("cluster.id=", "cluster.id=x"), r"different values of cluster\.id"),
        (("node.id=1", "node.id=2"), r"different values of node\.id"),
        (None, r"the same directory\.id"),
    ],
)
def test_directories_with_contradicting_identities_are_refused_before_any_write(
    change: tuple[str, str] | None, said: str
) -> None:
    disk = ModelDisk()
    LogDirectories(disk, (A, B)).close()
    text = disk.read(f"{B if change else A}/meta.properties").decode()
    disk.create(f"{B}/meta.properties").append((text.replace(*change) if change else text).encode())
    before = disk.effects
    with pytest.raises(InvalidRequest, match=said):
        LogDirectories(disk, (A, B))
    assert disk.effects == before
    assert disk.locks == set()


def test_a_directory_that_another_process_locked_fails_the_open_of_all() -> None:
    disk = ModelDisk()
    LogDirectories(disk, (A, B)).close()
    other = LogDirectory(disk, B)
    with pytest.raises(Conflict, match=r"another manager.*\./b"):
        LogDirectories(disk, (A, B))
    assert disk.locks == {f"{B}/.lock"}
    other.close()
    LogDirectories(disk, (A, B)).close()


def test_a_partition_in_two_directories_is_refused_and_both_copies_are_kept() -> None:
    disk = ModelDisk()
    dirs = _made(disk)
    twice, others = PARTITIONS[0], PARTITIONS[1:]
    dirs.close()
    target = B if dirs.root_of(twice) == A else A
    disk.make_directory(f"{target}/{twice.directory}")
    disk.make_directory(f"{target}/t-1.{'0' * 32}-future")
    disk.make_directory(f"{target}/t-2.{'0' * 32}-delete")
    dirs = LogDirectories(disk, (A, B))
    with pytest.raises(Corrupt, match=r"more than one log directory.*\./a,\./b"):
        dirs.open_log(twice, SMALL, now_ms=0)
    with pytest.raises(Corrupt):
        dirs.create(twice, ID, choose_log_dir)
    assert all(dirs.open_log(name, SMALL, now_ms=0).next_offset == 1 for name in others)
    dirs.close(unrecovered=[twice])
    assert not disk.exists(f"{A}/{MARKER}")
    assert not disk.exists(f"{B}/{MARKER}")
    assert disk.is_directory(f"{A}/{twice.directory}")
    assert disk.is_directory(f"{B}/{twice.directory}")


def test_a_disk_failure_takes_only_its_own_directory_offline() -> None:
    disk = BrokenDisk()
    dirs = _made(disk)
    told: list[str] = []
    dirs.on_offline = lambda root, error: told.append(root)
    disk.broken[A] = "eio"
    for _ in range(2):
        for name in PARTITIONS:
            log = dirs._directories[dirs.root_of(name) or ""].logs[name]
            if dirs.root_of(name) == A:
                with pytest.raises(DiskFailed):
                    log.append([Record(b"k", b"v", 1)], now_ms=0)
                with pytest.raises(DiskFailed, match=r"offline.*\./a.*injected"):
                    dirs.of(name)
            else:
                log.append([Record(b"k", b"v", 1)], now_ms=0)
                log.flush()
    assert told == [A]
    dirs.try_checkpoints()
    dirs.create(TopicPartition("new", 0), ID, choose_log_dir)
    assert dirs.root_of(TopicPartition("new", 0)) == B
    dirs.close()
    assert disk.inner.exists(f"{B}/{MARKER}")
    assert not disk.inner.exists(f"{A}/{MARKER}")
    disk.broken.clear()
    again = _opened(disk)
    assert all(again.open_log(name, SMALL, now_ms=0).next_offset >= 1 for name in PARTITIONS)


def test_an_offline_directory_gets_no_further_writes_even_if_its_disk_recovers() -> None:
    disk = BrokenDisk()
    dirs = _made(disk)
    disk.break_after[A] = disk.calls[A] + 1
    name = next(each for each in PARTITIONS if dirs.root_of(each) == A)
    log = dirs.of(name).logs[name]
    with pytest.raises(DiskFailed):
        log.append([Record(b"k", b"v", 1)], now_ms=0)
    disk.broken.clear()
    effects = disk.inner.effects
    with pytest.raises(DiskFailed, match="offline"):
        dirs._directories[A].write_checkpoints()
    dirs.close()
    assert [line for line in disk.inner.journal[effects:] if f" {A}/" in line] == []


@pytest.mark.parametrize("cause", ["enospc", "emfile", "enomem"])
def test_lack_of_space_descriptors_or_memory_does_not_take_a_directory_offline(cause: str) -> None:
    disk = BrokenDisk()
    dirs = _made(disk)
    disk.broken[A] = cause
    name = next(each for each in PARTITIONS if dirs.root_of(each) == A)
    with pytest.raises(DiskFailed):
        dirs.of(name).storage.create(f"{A}/x")
    assert not dirs.offline
    disk.broken.clear()
    dirs.of(name).storage.create(f"{A}/x")


def test_a_failure_at_any_call_of_one_disk_does_not_affect_the_other() -> None:
    """Each call below root A is in turn the first to fail. Records flushed to root B must be there afterwards."""
    at = 0
    while True:
        at += 1
        disk = BrokenDisk()
        disk.inner.make_directory(A)
        disk.inner.make_directory(B)
        LogDirectories(disk, (A, B)).close()
        disk.break_after[A] = at + disk.calls[A]
        dirs = _made(disk)
        for name in PARTITIONS:
            with suppress(DiskFailed):
                dirs.create(name, ID, choose_log_dir)  # retry of a refused create
        good = [name for name in PARTITIONS if name in dirs._directories[B].logs]
        for name in good:
            log = dirs.of(name).logs[name]
            log.append([Record(b"k", b"v", 1)], now_ms=0)
            log.flush()
        if A in dirs.offline:
            assert [facts.is_offline for facts in dirs.facts()] == [True, False]
        dirs.try_checkpoints()
        dirs.close()
        assert disk.inner.exists(f"{B}/{MARKER}")
        again = _opened(BrokenDisk(disk.inner))
        assert all(again.of(name).logs[name].next_offset == 2 for name in good)
        if A not in disk.broken:
            break
    assert at > 100


@pytest.mark.parametrize("cause", ["eio", "erofs"])
def test_a_directory_that_fails_to_open_is_offline_and_its_partitions_unavailable(cause: str) -> None:
    disk = BrokenDisk()
    dirs = _made(disk)
    lost = [name for name in PARTITIONS if dirs.root_of(name) == A]
    dirs.close()
    disk.broken[A] = cause
    dirs = _opened(disk)
    assert list(dirs.offline) == [A]
    for name in lost:
        assert dirs.topic_id(name) is None
        with pytest.raises(DiskFailed, match="no log directory that is online"):
            dirs.create(name, ID, choose_log_dir, is_new=False)
    dirs.create(TopicPartition("new", 0), ID, choose_log_dir)
    dirs.close()
    disk.broken.clear()
    assert all(_opened(disk).of(name).logs[name].next_offset == 1 for name in lost[:1])


def test_a_missing_directory_is_offline_and_not_created() -> None:
    disk = ModelDisk()
    _made(disk, (A, B)).close()
    for read_only in (True, False):
        dirs = LogDirectories(disk, (A, B, C), read_only=read_only)
        assert isinstance(dirs.offline[C], NotFound)
        assert not disk.exists(C)
        dirs.close()


def test_an_open_raises_if_every_directory_fails() -> None:
    disk = BrokenDisk()
    LogDirectories(disk, (A, B)).close()
    disk.broken = {A: "eio", B: "eio"}
    with pytest.raises(DiskFailed):
        LogDirectories(disk, (A, B))


def test_a_single_directory_is_never_offline() -> None:
    disk = BrokenDisk()
    dirs = LogDirectories(disk, (A,))
    dirs.create(PARTITIONS[0], ID, choose_log_dir)
    disk.broken[A] = "eio"
    with pytest.raises(DiskFailed):
        dirs.open_log(PARTITIONS[0], SMALL, now_ms=0)
    disk.broken.clear()
    assert not dirs.offline
    assert dirs.open_log(PARTITIONS[0], SMALL, now_ms=0).next_offset == 0


def test_cordoned_and_full_directories_get_no_new_partitions() -> None:
    disk = BrokenDisk()
    disk.spaces = {A: Space(10, 100), B: Space(50, 100), C: Space(90, 100)}
    dirs = LogDirectories(disk, (A, B, C), cordoned=(C,))

    def choose(facts):
        return choose_log_dir(facts, free_bytes_min=20)

    for name in PARTITIONS:
        dirs.create(name, ID, choose)
        assert dirs.root_of(name) == B


def test_directories_of_one_file_system_report_equal_free_space_while_it_changes() -> None:
    """Both directories are on one file system, and its free space changes between two queries."""

    class Filling(ModelDisk):
        looks = 0

        def space(self, path: str) -> Space:
            self.looks += 1
            return Space(1000 + (-1) ** self.looks * self.looks, 2000, device=7)

    with_other = Filling()
    for _ in range(2):
        dirs = LogDirectories(with_other, (A, B))
        assert len({facts.free_bytes for facts in dirs.facts()}) == 1
        assert choose_log_dir(dirs.facts()).path == A
        with_other.looks += 1
        dirs.abandon()
