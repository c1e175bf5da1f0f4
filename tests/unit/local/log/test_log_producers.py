"""Idempotent and transactional appends to a log: duplicates, markers, the last stable offset, aborted ranges."""

from __future__ import annotations

import pytest
from disk_model import ModelDisk
from log_world import SMALL, open_log, read_all

from local.errors import InvalidRequest, OutOfOrderSequence, ProducerFenced
from local.format.record import Record
from local.index.txn_index import AbortedTransaction
from local.log import AppendResult, Durability, Log
from local.log.producer_state import Producer
from local.records.batch import encode_batch

RECORDS = [Record(b"k", b"v%d" % at, 500) for at in range(3)]


def producer(number: int = 1, sequence: int = 0, *, epoch: int = 0, transactional: bool = False) -> Producer:
    return Producer(producer_id=number, producer_epoch=epoch, base_sequence=sequence, is_transactional=transactional)


def append(log: Log, who: Producer | None = None, count: int = 3) -> AppendResult:
    return log.append(RECORDS[:count], now_ms=1000, producer=who)


def end(log: Log, number: int, *, commit: bool, coordinator_epoch: int = 0, epoch: int = 0) -> AppendResult:
    return log.append_marker(number, epoch, commit=commit, coordinator_epoch=coordinator_epoch, now_ms=1000)


def aborted(number: int, first: int, last: int, stable: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id=number, first_offset=first, last_offset=last, last_stable_offset=stable)


def test_a_retry_returns_the_first_offsets_and_appends_nothing() -> None:
    log = open_log(ModelDisk())
    assert append(log) == (0, 3, False)
    assert append(log, producer()) == (3, 6, False)
    assert append(log, producer(sequence=3)) == (6, 9, False)
    assert append(log, producer()) == (3, 6, True)
    ready_made = encode_batch(RECORDS, producer_id=1, producer_epoch=0, base_sequence=3)
    assert log.append_encoded([bytearray(ready_made)], now_ms=1000) == (6, 9, True)
    assert log.next_offset == 9
    with pytest.raises(OutOfOrderSequence):
        append(log, producer(sequence=7))
    assert log.next_offset == 9


def test_a_retry_that_asks_for_durability_is_not_acknowledged_before_it_is_durable() -> None:
    log = open_log(ModelDisk())
    append(log, producer())
    assert log.recovery_point == 0
    again = log.append(RECORDS, now_ms=1000, producer=producer(), durability=Durability.FLUSHED)
    assert again.is_duplicate
    assert log.recovery_point == 3


def test_the_records_of_a_producer_become_one_batch_or_are_refused() -> None:
    log = open_log(ModelDisk())
    many = [Record(b"k", b"x" * 80, 1)] * 20  # six batches of batch_bytes
    assert log.append(many, now_ms=0, producer=producer()) == (0, 20, False)
    assert log.append(many, now_ms=0, producer=producer()) == (0, 20, True)
    with pytest.raises(InvalidRequest, match=r"max\.message\.bytes"):
        log.append([Record(b"k", bytes(2 << 20), 1)], now_ms=0, producer=producer(sequence=20))


def test_the_last_stable_offset_stays_below_open_transactions() -> None:
    log = open_log(ModelDisk())
    append(log)
    assert log.last_stable_offset == 3
    append(log, producer(1, transactional=True))
    append(log, producer(2, transactional=True))
    append(log)
    assert log.last_stable_offset == 3
    assert end(log, 1, commit=True) == (12, 13, False)
    assert log.last_stable_offset == 6
    end(log, 2, commit=False)
    assert log.last_stable_offset == log.next_offset == 14
    assert log.aborted_transactions(0, 14) == [aborted(2, 6, 13, 14)]


def test_a_raised_log_start_raises_the_last_stable_offset() -> None:
    log = open_log(ModelDisk())
    append(log, producer(1, transactional=True))
    log.raise_log_start(2)
    assert log.last_stable_offset == 2


def test_a_read_lists_aborted_transactions_whose_markers_are_in_later_segments() -> None:
    log = open_log(ModelDisk())
    append(log, producer(1, transactional=True))
    log.roll(now_ms=0)
    append(log, producer(2, transactional=True))
    end(log, 2, commit=False)
    log.roll(now_ms=0)
    append(log)
    end(log, 1, commit=False)
    one, two = aborted(1, 0, 10, 11), aborted(2, 3, 6, 0)
    assert log.aborted_transactions(0, 3) == [one]
    assert log.aborted_transactions(3, 5) == [two, one]
    assert log.aborted_transactions(7, 11) == [one]
    assert log.aborted_transactions(11, 11) == []


def test_control_records_take_offsets_and_are_not_returned() -> None:
    log = open_log(ModelDisk())
    append(log, producer(1, transactional=True), 1)
    end(log, 1, commit=True)
    append(log, None, 1)
    assert [record.offset for record in read_all(log)] == [0, 2]


def test_a_marker_with_an_old_coordinator_or_producer_epoch_is_fenced() -> None:
    log = open_log(ModelDisk())
    append(log, producer(1, transactional=True, epoch=2))
    end(log, 1, commit=True, coordinator_epoch=5, epoch=2)
    for epoch, coordinator in ((2, 4), (1, 5)):
        with pytest.raises(ProducerFenced):
            end(log, 1, commit=False, coordinator_epoch=coordinator, epoch=epoch)
    assert log.next_offset == 4


def test_an_expired_producer_may_continue_with_any_sequence() -> None:
    log = open_log(ModelDisk())
    append(log, producer(1, 0))
    late = 1000 + SMALL.producer_id_expiration_ms + 600_000
    assert log.append(RECORDS, now_ms=late, producer=producer(1, 77)) == (3, 6, False)
