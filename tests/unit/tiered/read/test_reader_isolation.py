"""Reading with `read_committed` over both tiers, and from the bucket only."""

from __future__ import annotations

import pytest
from manager_world import HOUR, NAME, NOW, TIERED, World, send, settle, values

from local import kernels
from local.errors import OffsetOutOfRange, OutOfOrderSequence
from local.format.batch_header import CONTROL
from local.format.record import Record
from local.log import Log
from local.log.producer_state import Producer, ProducerEntry, decode_snapshot
from local.records.isolation import Isolation, aborted_batches
from remote.store.middleware.store_wrapper import MeteredStore
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog

COMMITTED = Isolation.READ_COMMITTED


def _log(manager: LogManager) -> Log:
    log = manager._source(NAME).log
    assert log is not None
    return log


def _transaction(log: Log, number: int, value: bytes, *, commit: bool | None) -> None:
    """Append three records of a new producer. `commit` None leaves the transaction open."""
    who = Producer(producer_id=number, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append([Record(b"k", value, NOW)] * 3, now_ms=NOW, producer=who)
    if commit is not None:
        log.append_marker(number, 0, commit=commit, coordinator_epoch=0, now_ms=NOW)


def _fill(log: Log) -> None:
    for turn in range(20):
        _transaction(log, 2 * turn, b"kept", commit=True)
        _transaction(log, 2 * turn + 1, b"gone", commit=False)
    _transaction(log, 99, b"open", commit=None)
    log.append([Record(b"k", b"later", NOW)], now_ms=NOW)


@pytest.mark.parametrize("read_only", [False, True])
def test_committed_records_end_before_the_first_open_transaction(read_only: bool) -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        _fill(_log(manager))
        _log(manager).flush()
        with world.open(read_only=True) as looking:
            reader = (looking if read_only else manager).reader(COMMITTED)
            assert [record.value for record in reader.records(NAME, 0)] == [b"kept"] * 60
            assert [record.offset for record in reader.records(NAME, 1, 9)] == [1, 2, 8]
            start, end = reader.offsets(NAME)
            assert (start, end) == (0, 160)
            assert list(reader.records(NAME, end)) == []
            runs = [kernels.scan_batches(data) for data in reader.batches(NAME, 0)]
            assert int(runs[-1].last_offsets[-1]) + 1 == end
            with pytest.raises(OffsetOutOfRange, match="offset=165 first_offset=0 next_offset=164"):
                list(reader.records(NAME, 165))
            everything = (looking if read_only else manager).reader()
            assert {record.value for record in everything.records(NAME, 0)} == {b"kept", b"gone", b"open", b"later"}


def _tell(manager: LogManager, start: int = 0, end: int | None = None) -> list[tuple[int, bytes | None]]:
    return [(each.offset, each.value) for each in manager.reader(COMMITTED).records(NAME, start, end)]


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("local_bytes", ["1", "2500", "4000"])
def test_committed_records_are_the_same_in_either_tier(policy: str, local_bytes: str) -> None:
    world = World()
    keep = {**TIERED, "cleanup.policy": policy, "local.retention.ms": "-2", "local.retention.bytes": local_bytes}
    with world.open() as manager:
        manager.topics.create("t", 1, {**keep, "local.retention.bytes": "-2"}, now_ms=NOW)
        _fill(_log(manager))
        settle(manager)
        if policy == "delete":
            assert manager.reader().offsets(NAME)[0] == 0
        want = _tell(manager)
        assert want
        assert {value for _, value in want} == {b"kept"}
        assert _log(manager).local_log_start_offset == 0
        manager.topics.alter("t", keep, now_ms=NOW)
        settle(manager)
        assert _log(manager).local_log_start_offset > 0
        assert _tell(manager) == want
        for start in range(161):
            assert _tell(manager, start) == [each for each in want if each[0] >= start]
        assert _tell(manager, 10, 50) == [each for each in want if 10 <= each[0] < 50]
        with world.open(read_only=True) as looking:
            assert _tell(looking) == want


def test_batches_of_both_tiers_include_aborted_data_and_end_at_the_stable_offset() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create(
            "t", 1, {**TIERED, "local.retention.ms": "-2", "local.retention.bytes": "2500"}, now_ms=NOW
        )
        _fill(_log(manager))
        settle(manager)
        reader = manager.reader(COMMITTED)
        start, end = reader.offsets(NAME)
        assert (start, end) == (0, 160)
        seen: list[int] = []
        for data in reader.batches(NAME, 0):
            table = kernels.scan_batches(data)
            lowest, highest = int(table.base_offsets[0]), int(table.last_offsets[-1]) + 1
            assert highest <= end
            told = reader.aborted_transactions(NAME, lowest, highest)
            flags = aborted_batches(table, told)
            kept = ~flags & (table.attributes & CONTROL == 0)
            seen += [int(each) for each in table.base_offsets[kept]]
        assert seen == [8 * turn for turn in range(20)]
        told = reader.aborted_transactions(NAME, 0, end)
        assert [each.last_offset for each in told] == [8 * turn + 7 for turn in range(20)]


def _long_transactions(log: Log, first_producer: int = 1) -> None:
    """Three producers whose transactions span several segments and end in another order than they began."""
    decided = ((True, False, False, True), (False, True, False), (False, False, True, True, False))
    lengths = (17, 23, 13)
    for turn in range(120):
        for at, (length, outcomes) in enumerate(zip(lengths, decided, strict=True)):
            number = first_producer + at
            who = Producer(producer_id=number, producer_epoch=0, base_sequence=turn, is_transactional=True)
            log.append([Record(b"%d" % turn, b"%d-%d" % (number, turn), NOW)], now_ms=NOW, producer=who)
            if turn % length == length - 1:
                commit = outcomes[turn // length % len(outcomes)]
                log.append_marker(number, 0, commit=commit, coordinator_epoch=0, now_ms=NOW)


@pytest.mark.parametrize("rounds", [1, 3])
def test_bucket_alone_gives_the_committed_records_up_to_its_stable_offset(rounds: int) -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        log = _log(manager)
        for turn in range(rounds):
            _long_transactions(log, 10 * turn)
            settle(manager)
        want = [(each.offset, each.value) for each in log.records(0, isolation=COMMITTED)]
        with RemoteLog(world.store) as bucket:
            entries = bucket.manifest(NAME).next_offset
            reader = bucket.reader(COMMITTED)
            _, end = reader.offsets(NAME)
            assert 0 < end <= min(entries, log.last_stable_offset)
            got = [(each.offset, each.value) for each in reader.records(NAME, 0)]
            assert got == [each for each in want if each[0] < end]
            # A transaction that is open at the end of the entries may still abort, whatever the local log knows.
            begun = min(
                (
                    each.transaction_first_offset
                    for each in _open_at(log, entries)
                    if each.transaction_first_offset >= 0
                ),
                default=entries,
            )
            assert end == begun
            for start in range(0, end, 7):
                got = [(each.offset, each.value) for each in reader.records(NAME, start, start + 40)]
                assert got == [each for each in want if start <= each[0] < min(start + 40, end)]
            everything = [each.offset for each in bucket.reader().records(NAME, 0)]
            assert len(everything) > len(want)


def _open_at(log: Log, offset: int) -> list[ProducerEntry]:
    return decode_snapshot(log.producer_snapshot(offset))


def test_stream_continues_in_the_bucket_when_its_segments_are_dropped() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        log = _log(manager)
        _long_transactions(log)
        settle(manager)
        want = [(each.offset, each.value) for each in log.records(0, isolation=COMMITTED)]
        stream = manager.reader(COMMITTED).columns(NAME, 0)
        got = [(each.offset, each.value) for each in next(stream).records()]
        manager.topics.alter("t", {"local.retention.ms": "1ms"}, now_ms=NOW)
        settle(manager, NOW + HOUR)
        assert log.local_log_start_offset > got[-1][0]
        got += [(each.offset, each.value) for columns in stream for each in columns.records()]
        assert got == want


def test_entries_without_aborted_transactions_cost_no_request_for_them() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
    with RemoteLog(MeteredStore(world.store)) as bucket:
        meter = bucket.store
        assert isinstance(meter, MeteredStore)
        entries = bucket.manifest(NAME).segments
        assert len(entries) == 3
        before = meter.counts()
        assert bucket.reader(COMMITTED).offsets(NAME) == (0, entries[-1].next_offset)
        assert bucket.reader(COMMITTED).aborted_transactions(NAME, 0, entries[-1].next_offset) == []
        assert (meter.counts() - before).gets == 1, "the only request must be the producer snapshot of the last entry"


def test_node_with_a_lost_disk_restores_producer_state_from_the_bucket() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        log = _log(manager)
        _long_transactions(log)
        settle(manager)
        committed = _tell(manager)
    for restarts in range(3):
        disk = world.other_disk()
        with world.open(disk=disk) as manager:
            log, reader = _log(manager), manager.reader(COMMITTED)
            entries = log.log_start_offset, log.local_log_start_offset
            known = {each.producer_id: each for each in log.producers()}
            assert sorted(known) == [1, 2, 3]
            undecided = [each for each in known.values() if each.transaction_first_offset >= 0]
            assert undecided
            assert (
                reader.offsets(NAME)[1] == log.last_stable_offset == min(e.transaction_first_offset for e in undecided)
            )
            assert log.last_stable_offset < entries[1] == log.next_offset
            told = _tell(manager)
            assert told == [each for each in committed if each[0] < log.last_stable_offset]
            # A retry of the last batch is recognised, a sequence gap is refused, and open transactions can still end.
            last = known[1]
            who = Producer(producer_id=1, producer_epoch=0, base_sequence=last.last_sequence + 5, is_transactional=True)
            with pytest.raises(OutOfOrderSequence):
                log.append([Record(b"k", b"gap", NOW)], now_ms=NOW, producer=who)
            for each in undecided:
                commit = restarts == 1
                log.append_marker(each.producer_id, 0, commit=commit, coordinator_epoch=0, now_ms=NOW)
            assert log.last_stable_offset == log.next_offset
            seen = _tell(manager)
            assert seen[: len(told)] == told
            begun = {each.producer_id: each.transaction_first_offset for each in undecided}
            for offset, value in values(manager.reader(), min(begun.values())):
                number = int((value or b"0-").split(b"-")[0])
                if offset >= begun.get(number, offset + 1):
                    assert ((offset, value) in seen) == commit
        with world.open(disk=disk) as manager:
            assert _tell(manager) == seen
