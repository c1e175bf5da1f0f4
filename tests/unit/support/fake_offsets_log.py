"""An `OffsetsLog` in memory, whose appends a test can hold back or fail. Its batches are those of a real log."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from local.errors import LogError
from tiered.serve.groups.offsets_log import LoadedBatch, LoadedRecord, LogRecord, Producer


class FakeOffsetsLog:
    """`gate` holds appends back until it is set; `error` fails them. `batches` are what a restart reads."""

    def __init__(self, partitions: int | None = None) -> None:
        self.partitions = partitions
        self.batches: dict[int, list[LoadedBatch]] = {}
        self.ends: dict[int, int] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()  # an append waits for the gate, or has passed it
        self.error: LogError | None = None
        self.error_after = 0  # appends that still succeed
        self.is_error_late = False  # the records are in the log
        self.appends: list[tuple[int, int]] = []  # partition, records

    def partition_count(self) -> int | None:
        return self.partitions

    def create(self, partitions: int) -> int:
        if self.error is not None:
            raise self.error
        self.partitions = self.partitions or partitions
        return self.partitions

    def read(self, partition: int) -> Iterator[LoadedBatch]:
        yield from self.batches.get(partition, ())

    def append(
        self, partition: int, records: Sequence[LogRecord], *, now_ms: int, producer: Producer | None = None
    ) -> int:
        self.waiting.set()
        assert self.gate.wait(60), "the test must open the gate"
        if self.error is not None and not self.is_error_late:
            self.error_after -= 1
            if self.error_after < 0:
                raise self.error
        base = self.ends.get(partition, 0)
        found = [LoadedRecord(base + at, key, value) for at, (key, value) in enumerate(records)]
        self._add(partition, LoadedBatch(producer_id=producer and producer.producer_id, records=found), len(records))
        if self.error is not None and self.is_error_late:
            raise self.error
        self.appends.append((partition, len(records)))
        return base

    def append_marker(self, partition: int, producer_id: int, *, is_commit: bool) -> None:
        self._add(partition, LoadedBatch(producer_id=producer_id, is_commit=is_commit), 1)

    def records(self) -> list[LoadedRecord]:
        return [record for batches in self.batches.values() for batch in batches for record in batch.records]

    def _add(self, partition: int, batch: LoadedBatch, count: int) -> None:
        self.batches.setdefault(partition, []).append(batch)
        self.ends[partition] = self.ends.get(partition, 0) + count
