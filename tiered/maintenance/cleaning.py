"""Run the cleaner: order of logs, exclusion, throttling and history.

An *uncleanable* log (damage, a refused segment) is tried again after `log.cleaner.uncleanable.retry.ms`, also across
restarts (Kafka waits for the restart). One run cleans at most `LOGS_PER_THREAD` logs per thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from local.cleaner.cleaner_history import CleaningFigures, CleaningHistory, CleaningRun, run_of, summary
from local.errors import CleaningAborted, DiskFailed, LogError
from local.logdirs.log_dir import LogDirectory
from local.names import CLEANER_OFFSETS, CLEANER_REACHES, TopicPartition
from local.storage.throttle import Throttle

if TYPE_CHECKING:
    from policies.decisions import CleanLog, Plan
    from policies.snapshot import PartitionSnapshot
    from tiered.config.config import Config
    from tiered.partition.partition import Partition

_log = logging.getLogger(__name__)

LOGS_PER_THREAD = 4
_BUFFER_MAX_BYTES = 2 << 30  # of a thread's offset map, as in Kafka
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """`buffer_bytes` is one thread's share of the dedupe buffer; `bytes_per_second` None for no limit."""

    threads: int = 1
    buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    bytes_per_second: int | None = None
    retry_ms: int = 600_000

    @classmethod
    def of(cls, config: Config) -> CleanerSettings:
        threads, rate = config.int_of("log.cleaner.threads"), config.int_of("log.cleaner.io.max.bytes.per.second")
        return cls(
            threads=threads,
            buffer_bytes=min(config.int_of("log.cleaner.dedupe.buffer.size") // threads, _BUFFER_MAX_BYTES),
            load_factor=float(config.topic_properties("")["log.cleaner.io.buffer.load.factor"]),
            bytes_per_second=None if rate == _INT64_MAX else rate,
            retry_ms=config.int_of("log.cleaner.uncleanable.retry.ms"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncleanable:
    reason: str
    since_ms: int
    retry_ms: int


class Cleaning:
    """The cleaner of one manager. Thread safe."""

    def __init__(self, settings: CleanerSettings) -> None:
        self.settings = settings
        self._throttle = Throttle(settings.bytes_per_second)
        self._lock = threading.Lock()
        self._waited: dict[TopicPartition, int] = {}
        self._uncleanable: dict[TopicPartition, Uncleanable] = {}
        self._histories: dict[str, CleaningHistory] = {}
        self._threads: dict[int, int] = {}

    @property
    def uncleanable(self) -> Mapping[TopicPartition, Uncleanable]:
        return dict(self._uncleanable)

    def uncleanable_of(self, partitions: Iterable[Partition]) -> dict[TopicPartition, Uncleanable]:
        known = self.uncleanable
        compacted = (held.name for held in partitions if held.name in known and held.rules.cleanup_compact)
        return {name: known[name] for name in compacted}

    @property
    def runs(self) -> list[CleaningRun]:
        """The last passes over all log directories, oldest first."""
        with self._lock:
            histories = list(self._histories.values())
        return sorted((run for history in histories for run in history.runs), key=lambda run: run.at_ms)

    def load(self, directory: LogDirectory) -> None:
        """Load a directory's history. A log whose last pass failed is uncleanable. Never raises for damage."""
        try:
            history = CleaningHistory(directory.storage, directory.root)
        except LogError as error:
            _log.warning("cannot read the cleaner history: directory=%s error=%s", directory.root, error)
            return
        with self._lock:
            self._histories[directory.root] = history
            for name, run in {run.name: run for run in history.runs}.items():
                if run.error is not None:
                    self._uncleanable[name] = self._left_alone(run.error, run.at_ms)

    def waiting(self, now_ms: int) -> frozenset[TopicPartition]:
        """The uncleanable logs whose retry is not due yet."""
        return frozenset(name for name, each in self.uncleanable.items() if now_ms < each.retry_ms)

    def take_turns(self, plan: Plan, take_snapshots: Callable[[], Iterable[PartitionSnapshot]]) -> Plan:
        """The plan with only the cleanings of one run; a log that waits has a higher priority in the next one."""
        from policies.compaction import by_priority, log_to_clean
        from policies.decisions import CleanLog

        wants = [name for name, decided in plan.decisions.items() if any(isinstance(one, CleanLog) for one in decided)]
        if len(wants) < 2:
            self._waited = {}
            return plan
        by_name = {snapshot.partition: snapshot for snapshot in take_snapshots()}
        with self._lock:
            order = by_priority((log_to_clean(by_name[name]) for name in wants if name in by_name), self._waited)
            selected = [log.partition for log in order[: self.settings.threads * LOGS_PER_THREAD]]
            self._waited = {name: self._waited.get(name, 0) + 1 for name in wants if name not in selected}
        rank = {name: at for at, name in enumerate(selected)}
        decisions = {
            name: [one for one in decided if name in rank or not isinstance(one, CleanLog)]
            for name, decided in plan.decisions.items()
        }
        ordered = sorted(decisions, key=lambda name: rank.get(name, -1))  # stable: partitions without a cleaning first
        return replace(plan, decisions={name: decisions[name] for name in ordered if decisions[name]})

    def clean(
        self,
        held: Partition,
        directory: LogDirectory,
        decision: CleanLog,
        *,
        now_ms: int,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> CleaningFigures | None:
        """Run one pass; its figures, or None if nothing was to clean or it was cancelled. The caller holds the lock.

        Order of effects: the end of the pass (`local.cleaner.cleaner`) → the cleaner's swaps → the checkpoint → the
        history. Raises the error that made the log uncleanable.
        """
        from local.cleaner.cleaner import clean
        from local.cleaner.offset_map import Buffer
        from policies.compaction import log_to_clean, tombstones_below

        snapshot, manifest, settings = held.snapshot(now_ms), held.manifest(), self.settings
        delay_ms = log_to_clean(snapshot).delay_ms
        try:
            result = clean(
                held.log,
                apart_at=manifest.next_offset if manifest is not None else 0,
                upto_offset=decision.upto_offset,
                now_ms=now_ms,
                delete_delay_ms=held.rules.file_delete_delay_ms,
                delete_retention_ms=held.rules.delete_retention_ms,
                tombstones_below=tombstones_below(snapshot, is_bucket_known=manifest is not None),
                buffer=Buffer(size_bytes=settings.buffer_bytes, load_factor=settings.load_factor),
                should_stop=should_stop,
                throttle=lambda size_bytes: self._throttle.take(
                    size_bytes, lambda: held.log.cleaning.is_aborted or should_stop()
                ),
                clock=time.monotonic,
                announce=lambda: directory.write(CLEANER_REACHES),
            )
        except CleaningAborted as error:
            _log.info("cleaner pass aborted: partition=%s why=%s", held.name, error)
            return None
        except DiskFailed:
            raise
        except LogError as error:
            self._give_up(held.name, directory, str(error), now_ms)
            raise
        self._checkpoint(directory)
        self._uncleanable.pop(held.name, None)
        if result is not None:
            more = {"delay_ms": delay_ms, "buffer_bytes": settings.buffer_bytes}
            run = run_of(held.name, result, at_ms=now_ms, thread=self._thread(), **more)
            _log.info("%s", summary(run))
            self._note(directory, run)
        return result

    def _checkpoint(self, directory: LogDirectory) -> None:
        """Write the cleaner checkpoint. On a full disk a later one replaces it; after a crash the pass is repeated."""
        try:
            directory.write(CLEANER_OFFSETS)
        except DiskFailed as error:
            if not error.lacks_room:
                raise
            what = "cannot write the cleaner checkpoint, the disk is full; the next round retries"
            _log.warning("%s: directory=%s error=%s", what, directory.root, error)

    def _give_up(self, name: TopicPartition, directory: LogDirectory, reason: str, now_ms: int) -> None:
        self._uncleanable[name] = self._left_alone(reason, now_ms)
        _log.error("log is uncleanable: partition=%s retry_in_ms=%d error=%s", name, self.settings.retry_ms, reason)
        failed = CleaningRun(topic=name.topic, partition=name.partition, at_ms=now_ms, error=reason)
        self._note(directory, replace(failed, thread=self._thread()))

    def _left_alone(self, reason: str, at_ms: int) -> Uncleanable:
        return Uncleanable(reason=reason, since_ms=at_ms, retry_ms=at_ms + self.settings.retry_ms)

    def _note(self, directory: LogDirectory, run: CleaningRun) -> None:
        """Add a run to the history. A failed write is only logged, because it does not harm the partition."""
        with self._lock:
            history = self._histories.get(directory.root)
        try:
            if history is None:
                history = CleaningHistory(directory.storage, directory.root)
                with self._lock:
                    self._histories[directory.root] = history
            history.add(run)
        except LogError as error:
            _log.warning("cannot write the cleaner history: directory=%s error=%s", directory.root, error)

    def _thread(self) -> int:
        with self._lock:
            return self._threads.setdefault(threading.get_ident(), len(self._threads) % self.settings.threads)


def reset_misplaced(held: Partition, directory: LogDirectory) -> None:
    """Set a cleaner checkpoint outside its log to the log start, on the disk too. Raises DiskFailed."""
    at, manifest = held.log.cleaner_offset, held.manifest()
    start = max(held.log.log_start_offset, manifest.log_start_offset if manifest is not None else 0)
    if not held.rules.cleanup_compact or at is None or start <= at <= held.log.next_offset:
        return
    with held.lock, held.log.cleaning.paused():
        held.log.set_cleaner_offset(start)
        directory.write(CLEANER_OFFSETS)
