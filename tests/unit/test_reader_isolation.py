"""Reading committed records through the manager: the local tier answers, the remote tier refuses."""

from __future__ import annotations

import pytest
from manager_world import NAME, NOW, TIERED, World, send, settle

from local import kernels
from local.errors import InvalidRequest, OffsetOutOfRange
from local.isolation import Isolation
from local.log import Log
from local.producer_state import Producer
from local.record import Record
from tiered.manager import LogManager

COMMITTED = Isolation.READ_COMMITTED


def _log(manager: LogManager) -> Log:
    log = manager._source(NAME).log
    assert log is not None
    return log


def _transaction(log: Log, number: int, value: bytes, *, commit: bool | None) -> None:
    """Three records of a new producer; `commit` None leaves the transaction open."""
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
        manager.create_topic("t", 1, {}, now_ms=NOW)
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


def test_a_start_that_only_the_remote_tier_holds_is_refused_and_one_on_the_disk_is_not() -> None:
    world = World()
    with world.open() as manager:
        keep_some = {**TIERED, "local.retention.ms": "-2", "local.retention.bytes": "2500"}
        manager.create_topic("t", 1, keep_some, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        local_start = _log(manager).local_log_start_offset
        assert local_start > 0
        reader = manager.reader(COMMITTED)
        assert [r.offset for r in reader.records(NAME, local_start)] == list(range(local_start, 300))
        for stream in (reader.records, reader.columns, reader.batches):
            with pytest.raises(InvalidRequest, match=rf"offset=0 local_start_offset={local_start}"):
                next(stream(NAME, 0))


def test_a_stream_whose_records_leave_the_disk_under_it_is_refused_not_cut_short() -> None:
    world = World()
    with world.open() as manager:
        manager.create_topic("t", 1, {**TIERED, "local.retention.ms": "-2"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        stream = manager.reader(COMMITTED).columns(NAME, 0)
        next(stream)
        manager.alter_topic("t", {"local.retention.ms": "1ms"}, now_ms=NOW)
        settle(manager)
        with pytest.raises(InvalidRequest, match="remote tier does not tell"):
            list(stream)
