"""Lag of consumer groups, and the share of retention that their oldest unread records have used. No I/O.

Every output takes its figures from here: commands, metrics, pages. An unknown figure is None, never 0. A group without
a committed offset has no known lag.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate

from local.errors import NotFound
from local.names import TopicPartition
from policies.snapshot import PartitionSnapshot
from remote.segment_entry import SegmentEntry
from tiered.serve.endpoint_metrics import Figure

GROUPS_MAX = 1_000  # with metrics of their own, by name
SERIES_MAX = 2_000  # partitions of groups with metrics of their own


@dataclass(frozen=True, slots=True)
class Owner:
    """The member that has a partition."""

    member_id: str
    client_id: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGroup:
    """A group as its coordinator knows it. `state` has Kafka's name; `members` or `committed` None: unknown.

    `owners` has the partitions with a known member.
    """

    group: str
    state: str
    members: int | None
    committed: Mapping[TopicPartition, int] | None
    owners: Mapping[TopicPartition, Owner] = field(default_factory=dict)


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
class GroupRow:
    """A partition of a group as a page shows it. None: unknown; `member` None: also without a member."""

    partition: TopicPartition
    committed: int | None = None
    end: int | None = None
    lag: int | None = None
    expired: int | None = None
    retention_used: float | None = None
    member: Owner | None = None

    def facts(self) -> dict[str, object]:
        """For JSON."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "committed": self.committed,
            "end": self.end,
            "lag": self.lag,
            "expired_offsets": self.expired,
            "retention_used": self.retention_used,
            "member": asdict(self.member) if self.member is not None else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """A group with its partitions, by name. `partitions` None: unknown. `owners`: as of `SeenGroup`."""

    group: str
    state: str
    members: int | None
    partitions: tuple[PartitionLag, ...] | None
    owners: Mapping[TopicPartition, Owner] = field(default_factory=dict)

    @property
    def partition_count(self) -> int | None:
        return None if self.partitions is None else len(self.partitions)

    @property
    def lag(self) -> int | None:
        return _total([each.lag for each in self.partitions or ()])

    @property
    def expired(self) -> int | None:
        return _total([each.expired for each in self.partitions or ()])

    @property
    def retention_used(self) -> float | None:
        """The largest known share of its partitions."""
        shares = [each.retention_used for each in self.partitions or () if each.retention_used is not None]
        return max(shares, default=None)

    def rows(self) -> list[GroupRow]:
        """The partitions with a committed offset or a member, by name."""
        known = {each.partition: each for each in self.partitions or ()}
        found = []
        for name in sorted(known.keys() | self.owners.keys()):
            at, member = known.get(name), self.owners.get(name)
            if at is None:
                found.append(GroupRow(partition=name, member=member))
                continue
            row = GroupRow(
                partition=name,
                committed=at.committed,
                end=at.end,
                lag=at.lag,
                expired=at.expired,
                retention_used=at.retention_used,
                member=member,
            )
            found.append(row)
        return found

    def facts(self) -> dict[str, object]:
        """For JSON, under the names of ``tiered status``."""
        return {
            "group": self.group,
            "state": self.state,
            "members": self.members,
            "partitions": self.partition_count,
            "lag": self.lag,
            "expired_offsets": self.expired,
            "retention_used": self.retention_used,
        }


def find_group(groups: Sequence[GroupLag], name: str) -> GroupLag:
    """Raises NotFound."""
    for each in groups:
        if each.group == name:
            return each
    raise NotFound("consumer group not found", group=name)


def group_facts(groups: Sequence[GroupLag], names: Sequence[str]) -> dict[str, object]:
    """For JSON: the group in `names` with its partitions, or all groups without a name. Raises NotFound."""
    if not names:
        return {"groups": [each.facts() for each in groups]}
    group = find_group(groups, names[0])
    return {**group.facts(), "offsets": [each.facts() for each in group.rows()]}


def group_lags(
    groups: Sequence[SeenGroup], snapshots: Mapping[TopicPartition, PartitionSnapshot], topics: Sequence[str] = ()
) -> list[GroupLag]:
    """The lags of groups by name; with `topics` only of their partitions, and of groups that have or may have some."""
    lags = _Lags(snapshots)
    found = []
    for group in sorted(groups, key=lambda each: each.group):
        partitions = None
        if group.committed is not None:
            wanted = [each for each in sorted(group.committed.items()) if not topics or each[0].topic in topics]
            if topics and not wanted:
                continue
            partitions = tuple(lags.of(name, offset) for name, offset in wanted)
        owners = {name: each for name, each in group.owners.items() if not topics or name.topic in topics}
        lag = GroupLag(
            group=group.group, state=group.state, members=group.members, partitions=partitions, owners=owners
        )
        found.append(lag)
    return found


def lag_figures(groups: Sequence[SeenGroup], snapshots: Mapping[TopicPartition, PartitionSnapshot]) -> Iterator[Figure]:
    """The metrics of groups. Groups and partitions beyond the limits are counted, and neither computed nor exported."""
    shown = sorted(groups, key=lambda each: each.group)[:GROUPS_MAX]
    reported = min(SERIES_MAX, sum(len(each.committed or ()) for each in shown))
    yield "tiered_consumergroups", len(groups), ()
    partitions = sum(len(each.committed or ()) for each in groups)
    yield "tiered_consumergroup_unreported_partitions", partitions - reported, ()
    ends = {name: each.next_offset for name, each in snapshots.items()}
    for group in shown:
        label = ("consumergroup", group.group)
        yield "tiered_consumergroup_state", 1, (label, ("state", group.state))
        if group.members is not None:
            yield "tiered_consumergroup_members", group.members, (label,)
        lag = _lag_of(group.committed or {}, ends)
        if lag is not None:
            yield "tiered_consumergroup_lag_sum", lag, (label,)
    lags, remaining = _Lags(snapshots), SERIES_MAX
    for group in shown:
        if not remaining:
            return
        names = sorted(group.committed or ())[:remaining]
        remaining -= len(names)
        for name in names:
            yield from _partition_figures(group.group, lags.of(name, (group.committed or {})[name]))


def _lag_of(committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int | None:
    """As `GroupLag.lag`, without the retention of each partition."""
    if not committed or not committed.keys() <= ends.keys():
        return None
    return sum(max(0, ends[name] - offset) for name, offset in committed.items())


def _partition_figures(group: str, each: PartitionLag) -> Iterator[Figure]:
    labels = (("consumergroup", group), ("topic", each.partition.topic), ("partition", str(each.partition.partition)))
    yield "tiered_consumergroup_current_offset", each.committed, labels
    if each.lag is not None:
        yield "tiered_consumergroup_lag", each.lag, labels
    if each.expired is not None:
        yield "tiered_consumergroup_expired_offsets", each.expired, labels
    if each.retention_used is not None:
        yield "tiered_consumergroup_retention_used_ratio", each.retention_used, labels


def _total(values: Sequence[int | None]) -> int | None:
    known = [each for each in values if each is not None]
    return sum(known) if known and len(known) == len(values) else None


class _Lags:
    """The lags in partitions; the segments of a partition are read once."""

    def __init__(self, snapshots: Mapping[TopicPartition, PartitionSnapshot]) -> None:
        self._snapshots = snapshots
        self._known: dict[TopicPartition, _Retention] = {}

    def of(self, name: TopicPartition, committed: int) -> PartitionLag:
        snapshot = self._snapshots.get(name)
        if snapshot is None:
            return PartitionLag(partition=name, committed=committed, end=None)
        if name not in self._known:
            self._known[name] = _Retention(snapshot)
        return self._known[name].lag(committed)


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
