"""A damaged or missing ``.txnindex``: read_committed and the cleaner follow the markers in the log."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from disk_model import ModelDisk
from log_world import SMALL, fill, open_log
from run_profile import CALL_STRIDE

from local.format.record import Record
from local.index import txn_index
from local.log import Log
from local.log.producer_state import Producer
from local.records.isolation import Isolation
from remote.segments.stored_segment import decode_bundle
from remote.store.memory_store import MemoryStore
from remote.upload.segment_upload import copy_segment
from tiered.partition.segment_inspection import segment_to_copy

FLIPS = (0x01, 0x80)
COMMITTED = Isolation.READ_COMMITTED


def _closed_log() -> ModelDisk:
    """Interleaved transactions of two producers over several segments; every third one is aborted."""
    disk = ModelDisk()
    log = open_log(disk, replace(SMALL, segment_bytes=900))
    sequences = {1: 0, 2: 0}

    def send(producer: int, count: int) -> None:
        batch = [Record(b"k%d" % producer, b"v%d" % at, 5000) for at in range(count)]
        facts = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences[producer]}
        log.append(batch, now_ms=1000, producer=Producer(**facts, is_transactional=True))
        sequences[producer] += count

    for number in range(9):
        send(1, 2)
        send(2, 1)
        log.append_marker(1, 0, commit=number % 3 != 0, now_ms=1000)
        send(2, 2)
        fill(log, 2)
        log.append_marker(2, 0, commit=number % 3 != 1, now_ms=1000)
    log.close()
    return disk


DISK = _closed_log()


def _names() -> list[str]:
    return sorted(name for name in DISK.names if name.endswith(".txnindex"))


def _damaged() -> Iterator[tuple[object, ModelDisk]]:
    for name in _names():
        for at, flip in itertools.product(range(len(DISK.names[name].data)), FLIPS):
            disk = copy.deepcopy(DISK)
            disk.names[name].data[at] ^= flip
            disk.names[name].sync()
            yield (name, at, flip), disk
        for kept in range(0, len(DISK.names[name].data), 34):
            disk = copy.deepcopy(DISK)
            if kept:
                del disk.names[name].data[kept:]
                disk.names[name].sync()
            else:
                disk.unlink(name)
            yield (name, "cut to", kept), disk


def _committed(log: Log, start: int = 0) -> list[int]:
    return [record.offset for record in log.records(start, isolation=COMMITTED)]


def _aborted(log: Log) -> list[tuple[int, int]]:
    found = log.aborted_transactions(0, log.last_stable_offset)
    return [(each.producer_id, each.last_offset) for each in found]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_wrong_transaction_index_neither_shows_aborted_nor_hides_committed_records(read_only: bool) -> None:
    assert len(_names()) > 2
    good = open_log(copy.deepcopy(DISK), was_clean=True)
    expected, aborted = _committed(good), _aborted(good)
    assert len(aborted) == 6
    for where, disk in itertools.islice(_damaged(), int(read_only) % CALL_STRIDE, None, CALL_STRIDE):
        log = open_log(disk, was_clean=True, read_only=read_only)
        assert _committed(log) == expected, where
        assert _aborted(log) == aborted, where
        again = open_log(disk, was_clean=True, read_only=read_only)
        assert [_committed(again, at) for at in expected[::5]] == [expected[at:] for at in range(0, len(expected), 5)]


def test_a_wrong_transaction_index_is_logged_and_rebuilt(caplog: pytest.LogCaptureFixture) -> None:
    good = {name: bytes(DISK.names[name].data) for name in _names()}
    for where, disk in _damaged():
        caplog.clear()
        log = open_log(disk, was_clean=True)
        _aborted(log)
        _committed(log)
        now = {name: bytes(disk.names[name].data) for name in good}
        if now != good:
            # Two changes stay because they are harmless: a lower first offset without a record between the two offsets,
            # and a last stable offset that is too low.
            assert 10 <= where[1] % 34 < 18 or where[1] % 34 >= 26, where
            continue
        assert any(record.levelno == logging.WARNING for record in caplog.records), where


def test_read_committed_of_a_log_without_transactions_needs_no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 100)
    monkeypatch.setattr("local.index.txn_index.TransactionScan.upto", None)
    assert _committed(log) == list(range(100))


def test_the_remote_copy_of_a_segment_never_has_a_wrong_transaction_index() -> None:
    good = {
        segment.base_offset: segment.aborted()
        for segment in open_log(copy.deepcopy(DISK), was_clean=True).view.segments
    }
    for where, disk in itertools.islice(_damaged(), 0, None, 5):
        log = open_log(disk, was_clean=True)
        store = MemoryStore()
        for info in log.segments():
            if info.is_active:
                continue
            row = copy_segment(store, "t-id/0/", segment_to_copy(log, info), epoch=1, now_ms=0)
            bundle = decode_bundle(store.get("t-id/0/" + row.indexes_key))
            found = {(each.producer_id, each.last_offset) for each in txn_index.entries(bundle.txn)}
            assert found == {(each.producer_id, each.last_offset) for each in good[info.base_offset]}, where
