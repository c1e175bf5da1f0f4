"""A log moves to another disk with a fault at every call; an open finishes or undoes the move."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from broken_disk import BrokenDisk
from disk_model import ModelDisk, PowerCut
from log_world import SMALL, fill, read_all
from run_profile import deep_only, each_call

from local.cleaner import cleaner
from local.errors import Conflict, Corrupt, DiskFailed, InvalidRequest, LogError, NotFound
from local.format.record import Record
from local.log import Durability, Log
from local.log.producer_state import Producer
from local.logdirs import log_dirs, log_moves
from local.logdirs.log_dirs import LogDirectories
from local.names import LOG, TXN_INDEX, TopicPartition, deleted_directory, future_directory, parse_marked_directory
from local.records.batch import read_marker
from policies.placement import choose_log_dir

A, B = "./a", "./b"
NAME = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
ID = "A" * 22
START = 100
VIEWS = {"view-catalog": b"catalog", "view/compacted/0.log": b"part" * 3, "view/compacted/0.indexes": b"i"}


@pytest.fixture(autouse=True)
def _many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs here are small, and must still be copied in several rounds."""
    monkeypatch.setattr(log_moves, "LITTLE_BYTES", 1)


def opened(disk: ModelDisk | BrokenDisk) -> LogDirectories:
    disk_ = disk.inner if isinstance(disk, BrokenDisk) else disk
    disk_.locks.clear()
    dirs = LogDirectories(disk, (A, B))
    for name in (NAME, OTHER):
        if dirs.root_of(name) is None:
            dirs.create(name, ID, choose_log_dir, is_new=False)
        dirs.open_log(name, SMALL, now_ms=0)
    return dirs


def log_of(dirs: LogDirectories, name: TopicPartition = NAME) -> Log:
    return dirs.of(name).logs[name]


def begun(disk: ModelDisk | BrokenDisk) -> LogDirectories:
    """A log of several segments in A with a raised log start offset, and another log in B."""
    dirs = opened(disk)
    assert (dirs.root_of(NAME), dirs.root_of(OTHER)) == (A, B)
    fill(log_of(dirs), 120)
    log_of(dirs).raise_log_start(START)
    log_of(dirs).flush()
    fill(log_of(dirs, OTHER), 10)
    log_of(dirs, OTHER).flush()
    disk.make_directory(f"{A}/t-0/view/compacted")
    for path, body in VIEWS.items():
        file = disk.create(f"{A}/t-0/{path}")
        file.append(body)
        file.sync()
        disk.sync_directory(f"{A}/t-0/{path}".rpartition("/")[0])
    dirs.try_checkpoints()
    return dirs


class Story:
    """Flushed records that are appended during the move; `acked` is the acknowledged log end offset."""

    def __init__(self, dirs: LogDirectories) -> None:
        self.dirs = dirs
        self.log = log_of(dirs)
        self.acked = self.log.next_offset
        self.rounds = 0

    def write(self, done: int = 0, total: int = 0) -> None:
        """Append, roll and drop during the move; passed as the progress callback."""
        self.rounds += 1
        if self.rounds > 12:
            return
        records = [Record(b"k%d" % at, b"value %d" % at, 5000 + at) for at in range(3)]
        self.acked = self.log.append(records, now_ms=1000, durability=Durability.FLUSHED).next_offset
        if self.rounds == 4:
            self.log.roll(now_ms=1000)
        if self.rounds == 5:
            self.log.drop_before(self.log.view.segments[1].base_offset, now_ms=0, delay_ms=0, raises_log_start=True)

    def run(self) -> None:
        self.dirs.move(NAME, B, now_ms=0, delay_ms=0, progress=self.write)
        self.write()
        self.dirs.remove_deleted(0)
        self.dirs.try_checkpoints()


def check(disk: ModelDisk | BrokenDisk, acked: int) -> LogDirectories:
    """There is one live copy with every promised record, no leftover, and the log takes appends."""
    dirs = opened(disk)
    assert not dirs.offline
    log = log_of(dirs)
    assert log.next_offset >= acked
    assert log.log_start_offset >= START, "the log start offset did not move along"
    offsets = [record.offset for record in read_all(log)]
    assert offsets == list(range(offsets[0], log.next_offset))
    assert offsets[0] <= log.log_start_offset
    assert log_of(dirs, OTHER).next_offset == 10
    left = [name for root in (A, B) for name in disk.list(root) if parse_marked_directory(name)]
    assert left == []
    assert [disk.is_directory(f"{root}/t-0") for root in (A, B)].count(True) == 1
    assert {path: disk.read(f"{dirs.root_of(NAME)}/t-0/{path}") for path in VIEWS} == VIEWS, (
        "the views did not move along"
    )
    log.append([Record(b"k", b"v", 1)], now_ms=0, durability=Durability.FLUSHED)
    return dirs


def effects_of_a_move() -> int:
    disk = ModelDisk()
    story = Story(begun(disk))
    before = disk.effects
    story.run()
    assert story.rounds > 12
    return disk.effects - before


def test_a_log_moves_during_appends() -> None:
    disk = ModelDisk()
    story = Story(begun(disk))
    before = [(record.offset, record.value) for record in read_all(story.log)]
    story.run()
    assert story.dirs.root_of(NAME) == B
    assert log_of(story.dirs) is story.log, "holders of the log have another object"
    assert disk.list(A) == [name for name in disk.list(A) if not name.startswith("t-0")]
    found = [(record.offset, record.value) for record in read_all(story.log)]
    assert found[-1][0] == story.acked - 1
    assert set(before) & set(found) == {pair for pair in before if pair[0] >= found[0][0]}
    story.dirs.close()
    again = opened(disk)
    assert again.root_of(NAME) == B
    assert [(record.offset, record.value) for record in read_all(log_of(again))] == found
    assert log_of(again).recovered_segments == 0


def test_a_log_moves_to_another_directory_and_back() -> None:
    disk = ModelDisk()
    dirs = begun(disk)
    for root in (B, A, B, A):
        dirs.move(NAME, root, now_ms=0, delay_ms=0)
        dirs.remove_deleted(0)
        assert dirs.root_of(NAME) == root
    assert log_of(dirs).next_offset == 120
    dirs.close()
    check(disk, 120)


def test_reads_in_segments_of_the_old_directory_continue_in_the_new_one() -> None:
    disk = ModelDisk()
    dirs = begun(disk)
    log = log_of(dirs)
    first = log.read(101, 300)
    dirs.move(NAME, B, now_ms=10**12, delay_ms=1000)
    assert log.read(101, 300) == first
    dirs.remove_deleted(0)  # the clock was wrong during the move, and is right now
    assert [name for name in disk.list(A) if parse_marked_directory(name)], (
        "the old directory was deleted before its delay"
    )
    dirs.remove_deleted(999)
    assert [name for name in disk.list(A) if parse_marked_directory(name)]
    dirs.remove_deleted(1000)
    assert not [name for name in disk.list(A) if parse_marked_directory(name)]


def test_producer_state_survives_a_move_and_the_next_open() -> None:
    disk = ModelDisk()
    dirs = begun(disk)
    log = log_of(dirs)
    records = [Record(b"k", b"v", 1)] * 3
    producer = Producer(producer_id=7, producer_epoch=0, base_sequence=0)
    first = log.append(records, now_ms=0, producer=producer)
    log.roll(now_ms=0)
    dirs.move(NAME, B, now_ms=0, delay_ms=0)
    assert log.append(records, now_ms=0, producer=producer) == first._replace(is_duplicate=True)
    dirs.close()
    again = log_of(opened(disk))
    assert again.append(records, now_ms=0, producer=producer) == first._replace(is_duplicate=True)


def test_a_cleaner_pass_during_a_move_is_not_lost() -> None:
    disk = ModelDisk()
    dirs = begun(disk)
    log = log_of(dirs)
    done: list[int] = []

    def clean(copied: int, total: int) -> None:
        if not done:
            done.append(1)
            log.roll(now_ms=0)
            cleaner.clean(log, clean_from=0, now_ms=0)

    dirs.move(NAME, B, now_ms=0, delay_ms=0, progress=clean)
    want = [(record.offset, record.value) for record in read_all(log)]
    assert 0 < len(want) < 40
    dirs.close()
    assert [(record.offset, record.value) for record in read_all(log_of(opened(disk)))] == want


def test_a_truncation_after_a_move_lowers_the_recovery_point_in_the_new_directory() -> None:
    """Otherwise new records there that a power cut tore would count as damage of durable records."""
    disk = ModelDisk()
    dirs = begun(disk)
    log = log_of(dirs)
    dirs.move(NAME, B, now_ms=0, delay_ms=0)
    assert log.truncate_to(110, now_ms=0) == 110
    fill(log, 10)
    dirs.abandon()
    path = log.view.segments[-1].path(LOG)
    assert path.startswith(B)
    del disk.names[path].data[-1:]
    assert 110 <= log_of(opened(disk)).next_offset < 120


@pytest.mark.parametrize("at", range(1, 12))
def test_a_read_only_open_during_a_move_finds_the_log_in_one_directory(at: int) -> None:
    """The directories are listed one after the other, so the log could seem to be in both or in none."""
    disk = ModelDisk()
    dirs = begun(disk)
    listings, names_of = [], disk.list

    def listed(path: str) -> list[str]:
        listings.append(path)
        if len(listings) == at and dirs.root_of(NAME) == A:
            dirs.move(NAME, B, now_ms=0, delay_ms=0)
        return names_of(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "list", listed)
        beside = LogDirectories(disk, (A, B), read_only=True)
    assert beside.root_of(NAME) in (A, B)
    listings.clear()
    if beside.root_of(NAME) == dirs.root_of(NAME):
        log = beside.open_log(NAME, SMALL, now_ms=0)
        assert log.next_offset == 120


def test_a_read_only_log_that_has_moved_raises_not_found_and_is_not_shown_empty() -> None:
    disk = ModelDisk()
    dirs = begun(disk)
    log = LogDirectories(disk, (A, B), read_only=True).open_log(NAME, SMALL, now_ms=0)
    dirs.move(NAME, B, now_ms=0, delay_ms=0)
    with pytest.raises(NotFound, match="moved"):
        list(log.records(log.local_log_start_offset))
    with pytest.raises(NotFound, match="moved"):
        log.reload_files()


class Pausing(ModelDisk):
    """Refuses one effect of the first disk for lack of space, after the mover has worked."""

    refuses = ""
    in_between: Callable[[], object] = staticmethod(lambda: None)

    def _effect(self, what: str, act: Callable[[], None]) -> None:
        if self.refuses and what.startswith(self.refuses):
            self.refuses = ""
            self.in_between()
            raise DiskFailed("injected", path=what, cause="enospc")
        super()._effect(what, act)


def moved_while_it_is_refused(
    disk: Pausing, dirs: LogDirectories, refused: str, act: Callable[[], object], then: Callable[[], object]
) -> None:
    """Let the mover copy while `act` is refused and not yet undone; then run `then`.

    Afterwards the move finishes.

    `act` is refused at the effect `refused`.
    """
    log, begun_ones = log_of(dirs), []
    real = log_moves._Copy.__init__

    def begin(copy: log_moves._Copy, *given: object) -> None:
        real(copy, *given)  # type: ignore[arg-type]
        begun_ones.append(copy)

    def meanwhile(done: int, total: int) -> None:
        if not disk.refuses and disk.in_between is not look:
            disk.refuses, disk.in_between = refused, look
            with pytest.raises(DiskFailed):
                act()
            then()

    def look() -> None:
        begun_ones[0].catch_up(log.view.segments, lambda done, total: None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_moves._Copy, "__init__", begin)
        dirs.move(NAME, B, now_ms=0, delay_ms=0, progress=meanwhile)
    assert disk.in_between is look, "the mover did not run in between"
    assert not disk.refuses


def test_a_segment_closed_by_a_failed_roll_moves_with_its_final_indexes() -> None:
    disk = Pausing()
    dirs = begun(disk)
    log = log_of(dirs)
    moved_while_it_is_refused(
        disk,
        dirs,
        f"create {A}/t-0/",
        lambda: log.roll(now_ms=0),
        lambda: log.append([Record(b"newest", b"x", 9000)], now_ms=0),
    )
    assert log.segments()[-1].base_offset < 120
    log.roll(now_ms=0)
    assert log.segments()[-2].max_timestamp_ms == 9000, "the moved segment has the wrong largest timestamp"
    assert log.offset_for_timestamp(9000) == 120


def test_a_batch_undone_for_lack_of_space_does_not_move() -> None:
    """The abort marker has no space for its index entry. A commit marker of the same length replaces it."""
    disk = Pausing()
    dirs = begun(disk)
    log = log_of(dirs)
    who = Producer(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append([Record(b"k", b"v", 1)] * 3, now_ms=0, producer=who)
    path = log.view.segments[-1].path(TXN_INDEX)
    moved_while_it_is_refused(
        disk,
        dirs,
        f"append {path}",
        lambda: log.append_marker(7, 0, commit=False, now_ms=0),
        lambda: log.append_marker(7, 0, commit=True, now_ms=0),
    )
    marker = read_marker(log.read(123))
    assert marker is not None
    assert marker.is_commit
    dirs.close()
    assert log_of(opened(disk)).aborted_transactions(0, 124) == []


@pytest.mark.parametrize("before", [True, False], ids=["before the effect", "after it"])
def test_a_crash_at_any_effect_of_a_move_leaves_exactly_one_live_copy(before: bool) -> None:
    effects = effects_of_a_move()
    assert effects > 100
    for at in each_call(range(1, effects + 1), before):
        cut_and_check(at, before, random.Random(at), states=4)


def cut_and_check(at: int, before: bool, rng: random.Random, *, states: int) -> None:
    disk = ModelDisk()
    story = Story(begun(disk))
    disk.cut_at, disk.cut_before = disk.effects + at, before
    with suppress(PowerCut):
        story.run()
    for _ in range(states):
        check(disk.crash(rng), story.acked)


def test_a_crash_during_the_clean_up_after_a_move_leaves_exactly_one_live_copy() -> None:
    """Every third call of a move is the last one, then every call of the open after it."""
    rng = random.Random(7)
    for at in each_call(range(1, effects_of_a_move(), 3)):
        disk = ModelDisk()
        story = Story(begun(disk))
        disk.cut_at = disk.effects + at
        with suppress(PowerCut):
            story.run()
        found = disk.crash(rng)
        start = 0
        while True:
            start += 1
            if start % 4 != at % 4:
                continue
            again = clone(found)
            again.cut_at, again.cut_before = start, bool(start % 8 // 4)
            try:
                opened(again)
            except PowerCut:
                check(again.crash(rng), story.acked)
                continue
            break


def test_a_process_killed_during_a_move_and_a_later_power_cut_leave_one_live_copy() -> None:
    """Kill, open, and then a power cut: names that the open saw were not durable yet."""
    rng = random.Random(11)
    for at in each_call(range(1, effects_of_a_move() + 1)):
        disk = ModelDisk()
        story = Story(begun(disk))
        disk.cut_at = disk.effects + at
        with suppress(PowerCut):
            story.run()
        disk.cut_at = None
        opened(disk)
        check(disk.crash(rng), story.acked)


def clone(disk: ModelDisk) -> ModelDisk:
    """The same disk again, with everything synced."""
    return disk.crash(random.Random(0))


@pytest.mark.parametrize("root", [A, B])
@pytest.mark.parametrize("cause", [None, *deep_only("enospc")])
def test_a_disk_failure_at_any_call_of_a_move_loses_nothing(root: str, cause: str | None) -> None:
    at = 0
    while True:
        at += 1
        disk = BrokenDisk()
        story = Story(begun(disk))
        calls = disk.calls[root]
        if cause is None:
            disk.break_after[root] = calls + at
        else:
            disk.fail_once(root, calls + at, cause)
        with suppress(LogError):
            story.run()
        was_hit = disk.calls[root] >= calls + at
        with suppress(LogError):
            story.dirs.close()
        disk.broken.clear()
        disk.break_after.clear()
        check(disk, story.acked)
        if not was_hit:
            break
    assert at > 60


def test_a_full_target_disk_ends_the_move_and_the_log_continues_at_its_place() -> None:
    disk = BrokenDisk()
    dirs = begun(disk)
    disk.fail_once(B, disk.calls[B] + 12, "enospc")
    with pytest.raises(DiskFailed):
        dirs.move(NAME, B, now_ms=0, delay_ms=0)
    assert dirs.root_of(NAME) == A
    assert not [name for name in disk.list(B) if parse_marked_directory(name)]
    fill(log_of(dirs), 10, start=120)
    dirs.move(NAME, B, now_ms=0, delay_ms=0)
    assert log_of(dirs).next_offset == 130


def test_invalid_moves_are_refused() -> None:
    dirs = begun(ModelDisk())
    with pytest.raises(InvalidRequest, match="already in this log directory"):
        dirs.move(NAME, A, now_ms=0, delay_ms=0)
    with pytest.raises(InvalidRequest, match="the log directory is not configured"):
        dirs.move(NAME, "./c", now_ms=0, delay_ms=0)


def test_the_only_copy_is_never_deleted_and_the_partition_not_created_again() -> None:
    """A ``-delete`` directory without the log that replaced it, as after a removed target."""
    disk = ModelDisk()
    begun(disk).close()
    doomed = f"{A}/{deleted_directory(NAME, 'f' * 32)}"
    disk.rename(f"{A}/t-0", doomed)
    disk.sync_directory(A)
    files = disk.list(doomed)
    dirs = LogDirectories(disk, (A, B))
    assert dirs.root_of(NAME) is None
    with pytest.raises(Conflict, match="a move left a copy"):
        dirs.create(NAME, ID, choose_log_dir, is_new=False)
    assert disk.list(doomed) == files
    dirs.close()
    disk.rename(doomed, f"{A}/t-0")
    check(disk, 120)


def test_a_future_replica_is_not_deleted_while_its_log_is_on_an_offline_directory() -> None:
    disk = BrokenDisk()
    begun(disk).close()
    future = f"{B}/{future_directory(NAME, 'f' * 32)}"
    disk.make_directory(future)
    disk.broken[A] = "eio"
    LogDirectories(disk, (A, B)).close()
    disk.broken.clear()
    assert disk.is_directory(future)
    opened(disk).close()
    assert not disk.is_directory(future)


def _delete_before_the_future_is_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_moves._Copy, "side_files", lambda self, source: None)


def _views_stay_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_moves, "copy_view_files", lambda *_: None)


def _segments_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("disk_model.ModelFile.sync", _unless_future(_real_sync))


def _no_checkpoint_in_the_target(patch: pytest.MonkeyPatch) -> None:
    real = log_dirs.LogDirectory.write_checkpoints
    patch.setattr(
        log_dirs.LogDirectory,
        "write_checkpoints",
        lambda self: (
            None if self.root == B and NAME in self.logs and self.storage.is_directory(f"{A}/t-0") else real(self)
        ),
    )


def _unfinished_switch_is_undone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        log_moves,
        "_finish_switch",
        lambda source, future: log_moves.remove_tree(future.storage, future.root, future.path),
    )


def _futures_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_moves, "_discard", lambda *_: False)


_real_sync = __import__("disk_model").ModelFile.sync


def _unless_future(real: Callable[..., None]) -> Callable[..., None]:
    def sync(self) -> None:
        if "-future" not in self._path:
            real(self)

    return sync


@pytest.mark.deep("planted bugs of moves between disks")
@pytest.mark.usefixtures("every_call")
@pytest.mark.parametrize(
    "plant",
    [
        _delete_before_the_future_is_whole,
        _segments_not_synced,
        _views_stay_behind,
        _no_checkpoint_in_the_target,
        _unfinished_switch_is_undone,
        _futures_stay,
    ],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_a_planted_bug_is_detected(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    effects = effects_of_a_move()

    def hunt() -> None:
        for at in range(1, effects + 1):
            cut_and_check(at, at % 2 == 0, random.Random(at), states=3)
        test_a_process_killed_during_a_move_and_a_later_power_cut_leave_one_live_copy()

    plant(monkeypatch)
    with pytest.raises((AssertionError, LogError)):
        hunt()


@pytest.mark.parametrize("segment", [1, -1])
def test_a_damaged_batch_stops_the_move_and_the_log_stays_at_its_place(segment: int) -> None:
    disk = ModelDisk()
    dirs = begun(disk)
    log = log_of(dirs)
    path = f"{A}/t-0/{log.view.segments[segment].base_offset:020d}.log"
    disk._inode(path).data[80] ^= 1
    with pytest.raises(Corrupt, match="cannot move the log") as error:
        dirs.move(NAME, B, now_ms=0, delay_ms=0)
    assert (error.value.facts["path"], error.value.facts["at"]) == (path, 0)
    assert dirs.root_of(NAME) == A
    assert disk.is_directory(f"{A}/t-0")
    assert not [name for name in disk.list(B) if parse_marked_directory(name)]
    disk._inode(path).data[80] ^= 1
    fill(log, 10, start=120)
    dirs.move(NAME, B, now_ms=0, delay_ms=0)
    assert (dirs.root_of(NAME), log_of(dirs).next_offset) == (B, 130)
