"""Lag of consumer groups, and the share of retention that their oldest unread records have used. No I/O.

Every output takes its figures from here: commands, metrics, pages. An unknown figure is None, never 0. A group without
a committed offset has no known lag.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from local.names import TopicPartition
from policies.snapshot import PartitionSnapshot
from remote.segment_entry import SegmentEntry
from tiered.serve.endpoint_metrics import Figure

GROUPS_MAX = 1_000  # with metrics of their own, by name
SERIES_MAX = 2_000  # partitions of groups with metrics of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGroup:
    """A group as its coordinator knows it. `state` has Kafka's name; `members` None: unknown."""

    group: str
    state: str
    members: int | None
    committed: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """A committed offset. `end` None: the partition is not open, or does not exist any more.

    `retention_used` is the share of retention.ms or retention.bytes that the oldest unread record has used; retention
    expires it at 1. 0: every record was read. None: unknown, or nothing expires.
    """

    partition: TopicPartition
    committed: int
    end: int | None
    log_start: int | None = None
    retention_used: float | None = None

    @property
    def lag(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.committed)

    @property
    def expired(self) -> int | None:
        """The number of offsets that left the log before the group read them."""
        return None if self.log_start is None else max(0, self.log_start - self.committed)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """A group with its partitions, by name."""

    group: str
    state: str
    members: int | None
    partitions: tuple[PartitionLag, ...]

    @property
    def lag(self) -> int | None:
        return _total([each.lag for each in self.partitions])

    @property
    def expired(self) -> int | None:
        return _total([each.expired for each in self.partitions])

    @property
    def retention_used(self) -> float | None:
        """The largest known share of its partitions."""
        return max((each.retention_used for each in self.partitions if each.retention_used is not None), default=None)


def group_lags(
    groups: Sequence[SeenGroup], snapshots: Mapping[TopicPartition, PartitionSnapshot], topics: Sequence[str] = ()
) -> list[GroupLag]:
    """The lags of groups by name; with `topics` only of their partitions, and of groups that have some."""
    known: dict[TopicPartition, _Retention] = {}
    found = []
    for group in sorted(groups, key=lambda each: each.group):
        wanted = {name: at for name, at in sorted(group.committed.items()) if not topics or name.topic in topics}
        if topics and not wanted:
            continue
        partitions = []
        for name, offset in wanted.items():
            snapshot = snapshots.get(name)
            if snapshot is None:
                partitions.append(PartitionLag(partition=name, committed=offset, end=None))
                continue
            if name not in known:
                known[name] = _Retention(snapshot)
            partitions.append(known[name].lag(offset))
        found.append(
            GroupLag(group=group.group, state=group.state, members=group.members, partitions=tuple(partitions))
        )
    return found


def lag_figures(groups: Sequence[GroupLag]) -> Iterator[Figure]:
    """The metrics of groups. Groups and partitions beyond the limits are counted, not exported."""
    partitions = sum(len(each.partitions) for each in groups)
    yield "tiered_consumergroups", len(groups), ()
    yield "tiered_consumergroup_unreported_partitions", partitions - _reported(groups), ()
    for group in groups[:GROUPS_MAX]:
        label = ("consumergroup", group.group)
        yield "tiered_consumergroup_state", 1, (label, ("state", group.state))
        if group.members is not None:
            yield "tiered_consumergroup_members", group.members, (label,)
        if group.lag is not None:
            yield "tiered_consumergroup_lag_sum", group.lag, (label,)
    for name, each in islice(_all(groups), SERIES_MAX):
        labels = (
            ("consumergroup", name),
            ("topic", each.partition.topic),
            ("partition", str(each.partition.partition)),
        )
        yield "tiered_consumergroup_current_offset", each.committed, labels
        if each.lag is not None:
            yield "tiered_consumergroup_lag", each.lag, labels
        if each.expired is not None:
            yield "tiered_consumergroup_expired_offsets", each.expired, labels
        if each.retention_used is not None:
            yield "tiered_consumergroup_retention_used_ratio", each.retention_used, labels


def _all(groups: Sequence[GroupLag]) -> Iterator[tuple[str, PartitionLag]]:
    return ((group.group, each) for group in groups[:GROUPS_MAX] for each in group.partitions)


def _reported(groups: Sequence[GroupLag]) -> int:
    return sum(1 for _ in islice(_all(groups), SERIES_MAX))


def _total(values: Sequence[int | None]) -> int | None:
    known = [each for each in values if each is not None]
    return sum(known) if known and len(known) == len(values) else None


class _Retention:
    """The parts of one partition over both tiers, oldest first, as retention counts them."""

    def __init__(self, snapshot: PartitionSnapshot) -> None:
        self._snapshot, self._limits = snapshot, snapshot.rules.log_limits
        remote_end = snapshot.remote_next_offset or 0
        parts = [(each.next_offset, each.size_bytes, each.age_timestamp_ms) for each in snapshot.segments]
        parts = [each for each in parts if each[0] > remote_end]
        for part in snapshot.committed_parts:
            if isinstance(part, SegmentEntry):
                stamp_ms = part.committed_ms if part.max_timestamp_ms is None else part.max_timestamp_ms
            else:
                stamp_ms = part.first_stamp_ms  # of its oldest entry: the entries are not read
            parts.append((part.next_offset, part.size_bytes, stamp_ms))
        parts.sort()
        self._ends = [end for end, _, _ in parts]
        self._stamps_ms = [stamp_ms for _, _, stamp_ms in parts]
        self._sizes_upto = list(accumulate(size for _, size, _ in parts))

    def lag(self, offset: int) -> PartitionLag:
        snapshot = self._snapshot
        is_known = not snapshot.is_remote_unknown
        return PartitionLag(
            partition=snapshot.partition,
            committed=offset,
            end=snapshot.next_offset,
            log_start=snapshot.log_start_offset if is_known else None,
            retention_used=self._used(offset) if is_known else None,
        )

    def _used(self, offset: int) -> float | None:
        """By time the age of the newest record of the oldest unread part, by size the bytes after this part.

        Source: `policies.retention.expirations`.
        """
        snapshot, limits = self._snapshot, self._limits
        if offset >= snapshot.next_offset:
            return 0.0
        at = bisect_right(self._ends, max(offset, snapshot.log_start_offset))
        if at == len(self._ends):
            return None
        shares = [1.0] if offset < snapshot.log_start_offset else []
        if limits.ms is not None:
            shares.append(max(0.0, (snapshot.now_ms - self._stamps_ms[at]) / max(1, limits.ms)))
        if limits.bytes is not None:
            shares.append((self._sizes_upto[-1] - self._sizes_upto[at]) / max(1, limits.bytes))
        return max(shares, default=None)
