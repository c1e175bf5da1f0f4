"""Compaction of a topic on request, and an estimate of its effect.

`compact_topic` ignores the dirty ratio, but not the lags and open transactions. `estimate` reads every key of the dirty
section and `SAMPLES_MAX` evenly spread slices of the clean one. Bytes are assumed proportional to records; markers and
aborted transactions are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from local import kernels
from local.cleaner.offset_map import SECRET_BYTES, digest_keys
from local.errors import InvalidRequest
from local.format.columns import Columns
from local.log import Log
from local.names import TopicPartition
from local.segment.segment import Segment
from local.segment.segment_reading import batch_slices
from policies.compaction import LogToClean, forced_cleaning, log_to_clean
from policies.decisions import Decision, Plan
from policies.formatting import counted
from tiered.maintenance.upload_and_commit import Applied
from tiered.manager.manager import LogManager

SAMPLES_MAX = 8
_SECRET = bytes(SECRET_BYTES)  # the digests never leave the process


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimated effect of one pass. `dirty_*` are counted; `sampled_*` are from a sample of the clean section."""

    log: LogToClean
    dirty_bytes: int
    dirty_records: int
    distinct_keys: int
    keyless_records: int
    clean_bytes: int
    sampled_bytes: int
    sampled_records: int
    sampled_superseded: int
    tiered_bytes: int

    @property
    def bytes_before(self) -> int:
        return self.dirty_bytes + self.clean_bytes

    @property
    def bytes_after(self) -> int:
        dirty = self.dirty_bytes * self.distinct_keys / self.dirty_records if self.dirty_records else 0.0
        superseded = self.sampled_superseded / self.sampled_records if self.sampled_records else 0.0
        return round(dirty + self.clean_bytes * (1 - superseded))

    @property
    def size_reduction(self) -> float:
        """From 0 to 1."""
        return 1 - self.bytes_after / self.bytes_before if self.bytes_before else 0.0

    @property
    def basis(self) -> str:
        words = f"all {counted(self.dirty_records, 'record')} of the dirty part"
        if self.clean_bytes:
            words += f", a sample of {self.sampled_bytes} of {self.clean_bytes} clean bytes"
        return words


def compact_topic(
    manager: LogManager,
    topic: str,
    *,
    now_ms: int,
    roll: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[TopicPartition, Decision], None] = lambda partition, decision: None,
) -> dict[TopicPartition, Applied]:
    """Clean the dirty closed segments of every partition; with `roll` the active one is closed first.

    Failed partitions are in `manager.problems`. Raises NotFound, and InvalidRequest for a topic that is not compacted.
    """
    check_compacted(manager, topic, now_ms)
    if roll:
        manager.partitions.roll(topic, now_ms=now_ms)
    found = {each.partition: forced_cleaning(each) for each in manager.snapshots(now_ms, [topic])}
    decisions = {name: [decision] for name, decision in found.items() if decision is not None}
    return manager.apply(Plan(now_ms=now_ms, decisions=decisions), should_stop=should_stop, progress=progress)


def estimate_topic(manager: LogManager, topic: str, *, now_ms: int) -> list[Estimate]:
    """Estimate the result of `compact_topic` without `roll`. Raises its errors, and Corrupt for damaged batches."""
    check_compacted(manager, topic, now_ms)
    logs = {each.partition: log_to_clean(each) for each in manager.snapshots(now_ms, [topic])}
    found = []
    for held in manager.partitions.all([topic]):
        manifest = held.manifest()
        bucket_end = manifest.next_offset if manifest is not None else 0
        found.append(estimate(held.log, logs[held.name], bucket_end=bucket_end))
    return found


def check_compacted(manager: LogManager, topic: str, now_ms: int) -> None:
    manager.topics.get(topic)
    if any(not each.rules.cleanup_compact for each in manager.snapshots(now_ms, [topic])):
        raise InvalidRequest("cannot compact the topic, its cleanup.policy does not include compact", topic=topic)


def estimate(log: Log, found: LogToClean, *, bucket_end: int = 0) -> Estimate:
    """Estimate one log; see the module text. Raises Corrupt as reading the log does."""
    closed = [info for info in log.segments() if not info.is_active and not info.is_empty]
    upto, dirty_from = found.first_uncleanable_offset, found.first_dirty_offset
    dirty = [info for info in closed if dirty_from < info.next_offset <= upto]
    clean = [info for info in closed if info.next_offset <= dirty_from]
    keys: set[int] = set()
    dirty_records = keyless = 0
    for info in dirty:
        for _, data in batch_slices(log.segment(info.base_offset)):
            for columns in kernels.decode_in_steps(data):
                dirty_records += len(columns)
                digests = _key_digests(columns)
                keyless += len(columns) - len(digests)
                keys.update(digests)
    spread = clean[:: max(1, -(-len(clean) // SAMPLES_MAX))]
    sampled = [_sample(log.segment(info.base_offset), keys) for info in spread]
    return Estimate(
        log=found,
        dirty_bytes=sum(info.size_bytes for info in dirty),
        dirty_records=dirty_records,
        distinct_keys=len(keys),
        keyless_records=keyless,
        clean_bytes=sum(info.size_bytes for info in clean),
        sampled_bytes=sum(size for size, _, _ in sampled),
        sampled_records=sum(records for _, records, _ in sampled),
        sampled_superseded=sum(superseded for _, _, superseded in sampled),
        tiered_bytes=sum(info.size_bytes for info in closed if info.base_offset < bucket_end),
    )


def _sample(segment: Segment, keys: set[int]) -> tuple[int, int, int]:
    for _, data in batch_slices(segment):
        records = superseded = 0
        for columns in kernels.decode_in_steps(data):
            records += len(columns)
            superseded += sum(each in keys for each in _key_digests(columns))
        return len(data), records, superseded
    return 0, 0, 0


def _key_digests(columns: Columns) -> list[int]:
    keyed = columns.key_lengths >= 0
    low, _ = digest_keys(columns.data, columns.key_starts[keyed], columns.key_lengths[keyed], _SECRET)
    found: list[int] = low.tolist()
    return found
