"""Recent cleaner passes of one log directory: ``cleaner-history.jsonl``, oldest first.

One JSON object a line, for operators and advice; no decision depends on it. The newest `RUNS_MAX` passes stay. The file
is replaced whole after each pass; unreadable lines are skipped.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import msgspec

from local import names
from local.errors import InvalidRequest
from local.names import TopicPartition
from local.storage import Storage, join, replace_file

RUNS_MAX = 200
_MB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningFigures:
    """The figures of one pass. Bytes are those of ``.log`` files."""

    first_dirty_offset: int = 0
    cleaner_offset: int = 0  # the next dirty offset
    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    distinct_keys: int = 0
    invalid_records: int = 0
    indexed_bytes: int = 0  # read to build the offset map
    bytes_read: int = 0  # `indexed_bytes` included
    bytes_written: int = 0
    index_seconds: float = 0.0  # of the reads of `indexed_bytes`
    clean_seconds: float = 0.0  # of the other reads and all writes
    buffer_utilization: float = 0.0  # the used part of the slots of the offset map (0..1, as in Kafka)
    is_cut: bool = False  # the buffer had no room for all dirty keys, so the pass ended at `cleaner_offset`


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningRun(CleaningFigures):
    """One pass over a log."""

    topic: str
    partition: int
    at_ms: int
    thread: int = 0  # counted from 0
    delay_ms: int = 0  # past `max.compaction.lag.ms`
    buffer_bytes: int = 0  # 0: unknown
    error: str | None = None  # the cause of a failure; most figures are 0 then

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def seconds(self) -> float:
        return self.index_seconds + self.clean_seconds

    @property
    def size_reduction(self) -> float:
        """The removed share of the bytes, 0..1; negative if the log grew."""
        return 1 - self.bytes_after / self.bytes_before if self.bytes_before else 0.0

    @property
    def record_reduction(self) -> float:
        return 1 - self.records_after / self.records_before if self.records_before else 0.0


def run_of(
    name: TopicPartition, result: CleaningFigures, *, at_ms: int, thread: int, delay_ms: int, buffer_bytes: int
) -> CleaningRun:
    """A finished pass as a run."""
    run = CleaningRun(topic=name.topic, partition=name.partition, at_ms=at_ms, **asdict(result))
    return replace(run, thread=thread, delay_ms=delay_ms, buffer_bytes=buffer_bytes)


def summary(run: CleaningRun) -> str:
    """The block that Kafka's log cleaner logs after a pass; one line for a failed pass."""
    name = f"{run.topic}-{run.partition}"
    if run.error is not None:
        return f"Log cleaner thread {run.thread} could not clean log {name}: {run.error}"
    processed, share = run.bytes_before, run.index_seconds / run.seconds if run.seconds else 0.0
    lines = [
        f"Log cleaner thread {run.thread} cleaned log {name} "
        f"(dirty section = [{run.first_dirty_offset}, {run.cleaner_offset}])",
        f"{_mb(processed)} of log processed in {run.seconds:,.1f} seconds ({_rate(processed, run.seconds)} MB/sec).",
        f"Indexed {_mb(run.indexed_bytes)} in {run.index_seconds:,.1f} seconds "
        f"({_rate(run.indexed_bytes, run.index_seconds)} MB/sec, {share:.1%} of total time)",
        f"Buffer utilization: {run.buffer_utilization:.1%}",
        f"Cleaned {_mb(processed)} in {run.clean_seconds:,.1f} seconds "
        f"({_rate(processed, run.clean_seconds)} MB/sec, {1 - share:.1%} of total time)",
        f"Start size: {_mb(processed)} ({run.records_before:,} messages)",
        f"End size: {_mb(run.bytes_after)} ({run.records_after:,} messages)",
        f"{run.size_reduction:.1%} size reduction ({run.record_reduction:.1%} fewer messages)",
    ]
    if run.delay_ms:
        lines.append(f"Compaction was {run.delay_ms / 1000:,.1f} seconds past max.compaction.lag.ms")
    if run.invalid_records:
        lines.append(f"Found {run.invalid_records:,} invalid messages during compaction.")
    return "\n\t".join(lines)


class CleaningHistory:
    """The passes of one log directory. Thread safe; only one process writes."""

    def __init__(self, storage: Storage, root: str) -> None:
        """Raises DiskFailed if the file cannot be read."""
        self._storage = storage
        self._path = join(root, names.CLEANER_HISTORY)
        self._lock = threading.Lock()
        self._runs = _read(storage, self._path)

    @property
    def runs(self) -> Sequence[CleaningRun]:
        """The passes, oldest first."""
        return self._runs

    def add(self, run: CleaningRun) -> None:
        """Add a run and replace the file. Raises DiskFailed; the run is in `runs` nevertheless."""
        with self._lock:
            self._runs = (*self._runs, run)[-RUNS_MAX:]
            body = "".join(json.dumps(asdict(each)) + "\n" for each in self._runs)
            replace_file(self._storage, self._path, body.encode())


_RUN = msgspec.json.Decoder(CleaningRun)


def _read(storage: Storage, path: str) -> tuple[CleaningRun, ...]:
    if not storage.exists(path):
        return ()
    found = (_parse(line) for line in storage.read(path).splitlines())
    return tuple(run for run in found if run is not None)[-RUNS_MAX:]


def _parse(line: bytes) -> CleaningRun | None:
    try:
        run = _RUN.decode(line)
        return run if run.name.partition >= 0 else None
    except (ValueError, RecursionError, InvalidRequest):
        return None


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / _MB:,.1f} MB"


def _rate(size_bytes: int, seconds: float) -> str:
    return f"{size_bytes / _MB / seconds:,.1f}" if seconds > 0 else "-"
