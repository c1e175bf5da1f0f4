"""Verify reports no warning for cleaned transactional logs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from disk_model import ModelDisk
from log_world import SMALL, open_log
from run_profile import one_of_each

from local import names
from local.cleaner import cleaner
from local.format.record import Record
from local.index import txn_index
from local.index.txn_index import TransactionScan
from local.log import Log
from local.log.producer_state import Producer
from local.records.isolation import Isolation
from local.verify import directories
from local.verify.findings import Finding, Severity

COMPACTED = replace(SMALL, segment_bytes=900, is_compacted=True)


class Story:
    """Interleaved transactions of a few producers with plain records between them, drawn from a seed."""

    def __init__(self, log: Log, draw: random.Random) -> None:
        self.log = log
        self.draw = draw
        self.sequences = dict.fromkeys(range(4), 0)
        self.epochs = dict.fromkeys(range(4), 0)
        self.open: set[int] = set()
        self.at = 0

    def step(self, now_ms: int) -> None:
        self.at += 1
        producer = self.draw.randrange(4)
        match self.draw.randrange(6):
            case 0 | 1 | 2:
                count = self.draw.randint(1, 4)
                facts = {"producer_epoch": self.epochs[producer], "base_sequence": self.sequences[producer]}
                self.log.append(
                    [self._record() for _ in range(count)],
                    now_ms=now_ms,
                    producer=Producer(producer_id=producer, is_transactional=True, **facts),
                )
                self.sequences[producer] += count
                self.open.add(producer)
            case 3 | 4:
                commit = self.draw.random() < 0.5
                self.log.append_marker(producer, self.epochs[producer], commit=commit, now_ms=now_ms)
                self.open.discard(producer)
            case _:
                self.log.append([self._record()], now_ms=now_ms)

    def end_all(self, now_ms: int) -> None:
        for producer in sorted(self.open):
            self.log.append_marker(producer, self.epochs[producer], commit=self.draw.random() < 0.5, now_ms=now_ms)
        self.open.clear()

    def _record(self) -> Record:
        value = None if self.draw.random() < 0.15 else b"value %d" % self.at
        return Record(b"k%d" % self.draw.randrange(12), value, 5000 + self.at)


def cleaned(seed: int, dirty_steps: int = 0) -> tuple[ModelDisk, Log]:
    draw = random.Random(seed)
    disk = ModelDisk()
    log = open_log(disk, COMPACTED)
    story, now_ms = Story(log, draw), 10_000
    for _ in range(draw.randint(1, 4)):
        for _ in range(draw.randint(10, 80)):
            story.step(now_ms)
        if draw.random() < 0.7:
            story.end_all(now_ms)
        log.roll(now_ms=now_ms)
        bases = [info.base_offset for info in log.segments()]
        cleaner.clean(
            log,
            now_ms=now_ms,
            delete_retention_ms=draw.choice([0, 1000, 10**9]),
            tombstones_below=draw.choice([None, None, 0, *bases]),
        )
        log.remove_deleted(now_ms + 10**6)
        now_ms += 100_000
    for _ in range(dirty_steps):
        story.step(now_ms)
    if dirty_steps:
        story.end_all(now_ms)
        log.roll(now_ms=now_ms)
    return disk, log


def alarms(disk: ModelDisk, *, deep: bool = True) -> Iterator[Finding]:
    options = directories.VerifyOptions(deep=deep, interval_bytes=COMPACTED.index_interval_bytes)
    return (each for each in directories.verify(disk, "./t-0", options) if each.severity > Severity.INFO)


@pytest.mark.parametrize("seed", one_of_each(4, range(60)))
def test_verify_reports_no_warning_for_a_cleaned_transactional_log(seed: int) -> None:
    disk, log = cleaned(seed)
    assert list(alarms(disk)) == []
    log.close()
    again = open_log(disk, COMPACTED, was_clean=True)
    assert list(alarms(disk)) == []
    again.close()
    assert list(alarms(disk)) == []


@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_verify_reports_no_warning_for_a_recovered_cleaned_log(seed: int) -> None:
    disk, log = cleaned(seed)
    log.flush()
    log.release()
    open_log(disk, COMPACTED, recovery_point=log.recovery_point).close()
    assert list(alarms(disk)) == []


@pytest.mark.parametrize("seed", one_of_each(4, range(0, 60, 2)))
def test_read_committed_reports_no_wrong_transaction_index_of_a_cleaned_log(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    _, log = cleaned(seed)
    log.aborted_transactions(0, log.last_stable_offset)
    list(log.records(log.local_log_start_offset, isolation=Isolation.READ_COMMITTED))
    assert "is wrong" not in caplog.text


def test_a_missing_entry_in_the_transaction_index_of_a_cleaned_log_is_found() -> None:
    """Each entry that covers records behind the cleaned part is removed in turn."""
    found = 0
    for seed in range(4):
        disk, log = cleaned(seed, dirty_steps=40)
        assert list(alarms(disk)) == [], seed
        for segment in log.view.segments[:-1]:
            entries = segment.aborted()
            said = TransactionScan().upto(segment.size_bytes, segment.read)
            for at, each in enumerate(entries):
                if said.aborts[each.producer_id, each.last_offset].first_record is None:
                    continue
                path = segment.path(names.TXN_INDEX)
                whole = bytes(disk.names[path].data)
                disk.names[path].data[:] = txn_index.encode([*entries[:at], *entries[at + 1 :]])
                assert any(e.where == path and e.severity is Severity.CORRUPT for e in alarms(disk)), (seed, each)
                disk.names[path].data[:] = whole
                found += 1
    assert found > 5
