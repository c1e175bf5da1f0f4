"""Producer snapshots and transaction indexes on disk: written, loaded, rebuilt when damaged, deleted with their
segments."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

import pytest
from disk_model import ModelDisk, PowerCut
from log_world import open_log, read_all

from local.cleaner import cleaner
from local.format.record import Record
from local.index import txn_index
from local.log import Log
from local.log.leader_epochs import LeaderEpochs
from local.log.producer_state import Producer, ProducerEntry, ProducerState, decode_snapshot, encode_snapshot
from local.names import PRODUCER_SNAPSHOT, TXN_INDEX, segment_file
from local.records.isolation import Isolation
from local.settings import LogSettings
from tiered.partition.segment_inspection import segment_to_copy

COMPACTED = LogSettings(segment_bytes=2000, index_interval_bytes=200, batch_bytes=300, is_compacted=True)


def put(log: Log, number: int, *, key: bytes = b"k", transactional: bool = True) -> None:
    """Append one record of producer `number` with its next sequence."""
    known = {entry.producer_id: entry.last_sequence for entry in log.producer_state.entries()}
    producer = Producer(
        producer_id=number, producer_epoch=0, base_sequence=known.get(number, -1) + 1, is_transactional=transactional
    )
    log.append([Record(key, b"v%d" % log.next_offset, 500)], now_ms=1000, producer=producer)


def end(log: Log, number: int, *, commit: bool) -> None:
    log.append_marker(number, 0, commit=commit, now_ms=1000)


def story(log: Log) -> None:
    """Append four segments with three producers.
    Transactions end in later segments, one transaction stays open, and one producer is only idempotent."""
    put(log, 1)
    put(log, 2)
    log.append([Record(b"plain", b"", 500)], now_ms=1000)
    log.roll(now_ms=0)
    end(log, 1, commit=False)
    put(log, 9, transactional=False)
    log.roll(now_ms=0)
    put(log, 3)
    end(log, 2, commit=False)
    log.roll(now_ms=0)
    put(log, 1)
    end(log, 1, commit=True)
    put(log, 9, transactional=False)


def facts(log: Log) -> tuple[object, ...]:
    upper = log.last_stable_offset
    return log.producer_state.entries(), upper, log.aborted_transactions(0, upper), log.next_offset


def names_of(disk: ModelDisk, suffix: str) -> list[int]:
    return sorted(int(name.rpartition("/")[2][:20]) for name in disk.names if name.endswith(suffix))


def snapshot(offset: int) -> str:
    return "./t-0/" + segment_file(offset, PRODUCER_SNAPSHOT)


def index(offset: int) -> str:
    return "./t-0/" + segment_file(offset, TXN_INDEX)


def told(disk: ModelDisk) -> tuple[Log, tuple[object, ...]]:
    log = open_log(disk)
    story(log)
    return log, facts(log)


@pytest.mark.parametrize("how", ["clean", "unclean", "with a recovery point"])
def test_producer_state_is_the_same_after_a_restart(how: str) -> None:
    disk = ModelDisk()
    log, before = told(disk)
    if how == "clean":
        assert log.close()
        again = open_log(disk, was_clean=True)
    else:
        log.flush()
        log.release()
        again = open_log(disk, recovery_point=log.recovery_point if how != "unclean" else 0)
    assert facts(again) == before
    put(again, 3)
    end(again, 3, commit=True)
    assert again.last_stable_offset == again.next_offset


def test_a_roll_writes_a_snapshot_at_the_new_base_and_a_close_writes_one_at_the_end() -> None:
    disk = ModelDisk()
    log, _ = told(disk)
    bases = [info.base_offset for info in log.segments()]
    assert bases == [0, 3, 5, 7]
    assert names_of(disk, PRODUCER_SNAPSHOT) == bases[1:]
    at = [entry.producer_id for entry in decode_snapshot(disk.read(snapshot(5)))]
    assert at == [1, 2, 9]
    log.close()
    assert names_of(disk, PRODUCER_SNAPSHOT) == [3, 5, 7, 10]


def test_only_segments_with_aborted_transactions_have_a_transaction_index() -> None:
    disk = ModelDisk()
    told(disk)
    assert names_of(disk, TXN_INDEX) == [3, 5]
    assert [(each.producer_id, each.last_offset) for each in txn_index.entries(disk.read(index(5)))] == [(2, 6)]


def test_after_a_clean_shutdown_no_log_file_is_read_for_producer_state() -> None:
    disk = ModelDisk()
    log, before = told(disk)
    log.close()
    read: list[str] = []
    original = disk.map
    disk.map = lambda path: (read.append(path), original(path))[1]  # type: ignore[method-assign]
    assert facts(open_log(disk, was_clean=True)) == before
    assert [path for path in read if path.endswith(".log")] == []


@pytest.mark.parametrize("damage", [b"", b"\0\1" + bytes(8), None], ids=["empty", "wrong crc", "gone"])
@pytest.mark.parametrize("was_clean", [True, False])
def test_without_the_newest_snapshots_older_ones_and_the_log_give_the_same_state(
    damage: bytes | None, was_clean: bool
) -> None:
    disk = ModelDisk()
    log, before = told(disk)
    log.close()
    for doomed in ([10], [7, 10], [5, 7, 10], [3, 5, 7, 10] if damage is not None else []):
        for offset in doomed:
            if damage is None:
                disk.names.pop(snapshot(offset), None)
            else:
                disk.create(snapshot(offset)).append(damage)
        again = open_log(disk, was_clean=was_clean)
        assert facts(again) == before
        again.close()


def test_without_snapshots_only_an_unclean_start_replays_the_log_for_producers() -> None:
    disk = ModelDisk()
    log, before = told(disk)
    log.close()
    for offset in names_of(disk, PRODUCER_SNAPSHOT):
        del disk.names[snapshot(offset)]
    unclean = open_log(disk)
    assert facts(unclean) == before
    unclean.release()
    for offset in names_of(disk, PRODUCER_SNAPSHOT):
        del disk.names[snapshot(offset)]
    assert facts(open_log(disk, was_clean=True))[0] == []
    assert names_of(disk, PRODUCER_SNAPSHOT) == [5, 7, 10]


def test_stray_snapshots_are_deleted_except_the_newest_above_all_segments() -> None:
    disk = ModelDisk()
    log, _ = told(disk)
    log.close()
    for offset in (2, 6, 8, 9, 11, 400):
        disk.create(snapshot(offset)).append(encode_snapshot([]))
    open_log(disk, was_clean=True)
    assert names_of(disk, PRODUCER_SNAPSHOT) == [3, 5, 7, 10]


def test_a_snapshot_above_a_truncated_tail_is_deleted() -> None:
    disk = ModelDisk()
    log, _ = told(disk)
    log.close()
    path = "./t-0/" + segment_file(7, ".log")
    disk.names[path].data[-1] ^= 1  # the last batch: the second of producer 9
    again = open_log(disk)
    assert again.next_offset == 9
    assert names_of(disk, PRODUCER_SNAPSHOT) == [3, 5, 7]
    assert {e.producer_id: e.last_sequence for e in again.producer_state.entries()}[9] == 0


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:34] * 2, lambda data: b"\0\1" + data[2:], lambda data: bytes(34)],
    ids=["repeats", "another version", "zeros"],
)
def test_a_damaged_transaction_index_is_rebuilt_even_after_a_clean_shutdown(
    damage: Callable[[bytes], bytes],
) -> None:
    disk = ModelDisk()
    log, before = told(disk)
    log.close()
    good = disk.read(index(5))
    disk.create(index(5)).append(damage(good))
    assert facts(open_log(disk, was_clean=True)) == before
    assert disk.read(index(5)) == good


def test_recovery_rebuilds_a_lost_transaction_index_and_deletes_one_without_entries() -> None:
    disk = ModelDisk()
    log, before = told(disk)
    log.close()
    del disk.names[index(3)]
    disk.create(index(7)).append(txn_index.encode(log.aborted_transactions(0, 5)))
    assert facts(open_log(disk)) == before
    assert names_of(disk, TXN_INDEX) == [3, 5]


def test_a_drop_deletes_the_snapshots_and_transaction_indexes_of_its_segments() -> None:
    disk = ModelDisk()
    log, _ = told(disk)
    log.drop_before(7, now_ms=0, delay_ms=0, raises_log_start=True)
    assert names_of(disk, PRODUCER_SNAPSHOT) == [7]
    assert names_of(disk, TXN_INDEX) == []
    assert log.remove_deleted(0) == 9 + 2 + 2
    assert facts(log)[1] == 7


def test_producers_of_dropped_records_stay_known_through_two_crashes_after_a_truncation_left_no_record() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    put(log, 9, transactional=False)
    log.roll(now_ms=0)
    log.append([Record(b"plain", b"", 500)] * 4, now_ms=1000)
    log.drop_before(1, now_ms=0, delay_ms=0, raises_log_start=True)
    log.truncate_to(3, now_ms=1000)
    log.append([Record(b"plain", b"", 500)], now_ms=1000)
    before = facts(log)
    for _ in range(2):
        log.flush()
        log.release()
        log = open_log(disk)
        assert [info.base_offset for info in log.segments()] == [3]
        assert facts(log) == before
    assert names_of(disk, PRODUCER_SNAPSHOT) == [3]


def test_a_snapshot_below_the_first_segment_is_deleted_after_the_state_is_durable_at_that_segment() -> None:
    disk = ModelDisk()
    log = open_log(disk)
    put(log, 9, transactional=False)
    log.roll(now_ms=0)
    log.append([Record(b"plain", b"", 500)] * 4, now_ms=1000)
    log.drop_before(1, now_ms=0, delay_ms=0, raises_log_start=True)
    log.truncate_to(3, now_ms=1000)
    log.append([Record(b"plain", b"", 500)], now_ms=1000)
    log.roll(now_ms=0)
    log.append([Record(b"plain", b"", 500)], now_ms=1000)
    before = facts(log)
    for _ in range(2):
        log.flush()
        log.release()
        disk.names.pop(snapshot(4), None)  # it was not synced, so a crash may lose it
        log = open_log(disk, recovery_point=4)
        assert [info.base_offset for info in log.segments()] == [3, 4]
        assert facts(log) == before


def test_restart_at_another_offset_removes_all_producers() -> None:
    disk = ModelDisk()
    log, _ = told(disk)
    log.restart_at(50, LeaderEpochs(((0, 0),)), now_ms=0)
    assert names_of(disk, PRODUCER_SNAPSHOT) == []
    assert facts(log) == ([], 50, [], 50)


def test_restart_at_another_offset_with_given_producers_keeps_them_after_a_power_cut() -> None:
    disk = ModelDisk()
    log, _ = told(disk)
    known = log.producers()
    assert known
    log.restart_at(50, LeaderEpochs(((0, 0),)), now_ms=0, producers=ProducerState(known))
    assert names_of(disk, PRODUCER_SNAPSHOT) == [50]
    assert log.producers() == known
    log.release()
    assert open_log(disk.crash(random.Random(1))).producers() == known


def _ends_below_its_start() -> tuple[ModelDisk, list[ProducerEntry]]:
    """One durable batch; a power cut left the log's end below the checkpointed log start, 5."""
    disk = ModelDisk()
    log = open_log(disk)
    put(log, 1)
    log.flush()
    known = log.producers()
    log.release()
    return disk, known


def test_a_log_reset_to_its_log_start_keeps_producers_after_a_power_cut_at_any_step() -> None:
    disk, known = _ends_below_its_start()
    before = disk.effects
    again = open_log(disk, log_start_offset=5)
    assert (again.log_start_offset, again.next_offset, again.producers()) == (5, 5, known)
    again.release()
    assert names_of(disk, PRODUCER_SNAPSHOT) == [5]
    for cut in range(before + 1, disk.effects + 1):
        for is_before, seed in product((True, False), range(8)):
            lost, _ = _ends_below_its_start()
            lost.cut_at, lost.cut_before = cut, is_before
            with pytest.raises(PowerCut):
                open_log(lost, log_start_offset=5)
            found = open_log(lost.crash(random.Random(seed)), log_start_offset=5)
            assert (found.next_offset, found.producers()) == (5, known), (cut, is_before, seed)


def test_after_a_failed_write_producer_state_equals_a_replay_of_the_file() -> None:
    for before in (True, False):
        disk = ModelDisk()
        log, _ = told(disk)
        disk.fail_at, disk.cut_before = disk.effects + 1, before
        with pytest.raises(Exception, match="injected"):
            put(log, 9, transactional=False)
        live = facts(log)
        log.release()
        assert facts(open_log(disk)) == live


def test_a_read_only_log_computes_the_last_stable_offset_and_deletes_nothing() -> None:
    disk = ModelDisk()
    log, before = told(disk)
    disk.create(snapshot(7)).append(b"damaged")
    effects = disk.effects
    onlooker = open_log(disk, read_only=True)
    assert onlooker.last_stable_offset == before[1]
    assert onlooker.aborted_transactions(0, 5) == log.aborted_transactions(0, 5)
    assert disk.effects == effects
    end(log, 3, commit=True)
    effects = disk.effects
    assert onlooker.last_stable_offset == before[1]
    onlooker.reload_files()
    assert onlooker.last_stable_offset == log.next_offset == 11
    assert disk.effects == effects


def test_a_copied_segment_includes_its_transaction_index_and_its_producer_snapshot() -> None:
    disk = ModelDisk()
    log, _ = told(disk)
    expected = disk.read(snapshot(7))
    for gone in (False, True):
        if gone:
            for offset in names_of(disk, PRODUCER_SNAPSHOT):
                del disk.names[snapshot(offset)]
        copied = segment_to_copy(log, log.segments()[2])
        assert copied.txn_index == disk.read(index(5))
        assert copied.producer_snapshot == expected
        assert segment_to_copy(log, log.segments()[0]).txn_index == b""


# -- the cleaner -----------------------------------------------------------------------------------------------------


def committed(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for r in log.records(0, isolation=Isolation.READ_COMMITTED)]


def test_an_aborted_record_never_supersedes_a_committed_one() -> None:
    disk = ModelDisk()
    log = open_log(disk, COMPACTED)
    log.append([Record(b"a", b"old", 500)], now_ms=1000)
    log.append([Record(b"a", b"good", 500)], now_ms=1000)
    put(log, 1, key=b"a")
    end(log, 1, commit=False)
    log.roll(now_ms=0)
    cleaner.clean(log, clean_from=0, now_ms=0)
    assert committed(log) == [(1, b"a", b"good")]
    assert [record.offset for record in read_all(log)] == [1]
    log.release()
    assert committed(open_log(disk, COMPACTED)) == [(1, b"a", b"good")]


def test_cleaning_stops_at_the_segment_with_the_last_stable_offset() -> None:
    disk = ModelDisk()
    log = open_log(disk, COMPACTED)
    for _ in range(2):
        log.append([Record(b"a", b"x", 500)], now_ms=1000)
        log.append([Record(b"a", b"x", 500)], now_ms=1000)
        log.roll(now_ms=0)
    put(log, 1, key=b"a")
    log.roll(now_ms=0)
    log.append([Record(b"a", b"y", 500)], now_ms=1000)
    log.roll(now_ms=0)
    found = cleaner.clean(log, clean_from=0, now_ms=0)
    assert found is not None
    assert found.cleaner_offset == log.cleaner_offset == 4
    assert [record.offset for record in read_all(log)] == [3, 4, 5]


def test_a_merged_segment_has_the_transaction_index_entries_of_all_its_sources() -> None:
    disk = ModelDisk()
    log = open_log(disk, COMPACTED)
    story(log)
    end(log, 3, commit=True)
    log.roll(now_ms=0)
    before = facts(log)
    cleaner.clean(log, clean_from=0, now_ms=0)
    assert [info.base_offset for info in log.segments()] == [0, 11]
    assert names_of(disk, TXN_INDEX) == [0]
    assert names_of(disk, PRODUCER_SNAPSHOT) == [11]
    assert facts(log) == before
    log.release()
    assert facts(open_log(disk, COMPACTED, recovery_point=11)) == before
