"""Effects of creating, altering or deleting a topic, without a change; with the errors of the operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from local.errors import LogError
from local.names import TopicPartition
from policies.snapshot import PartitionSnapshot
from remote.keys import parse_topic_directory, partition_prefix
from remote.manifest.catalog import list_topics
from tiered.config.config import Setting
from tiered.node.topic_registry import Topic
from tiered.partition.partition import is_tier_disabled
from tiered.partition.partition_status import partition_status
from tiered.partition.partition_table import PartitionTable
from tiered.topics.topic_creation import AskedTopic, check_more_partitions, check_new_topic


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """`settings` are all effective ones; `namesakes` are the ids of topics of that name in the bucket."""

    topic: Topic
    settings: tuple[Setting, ...]
    outranked: tuple[Setting, ...] = ()
    namesakes: tuple[str, ...] = ()


class ChangedSetting(NamedTuple):
    before: Setting
    after: Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredTopic:
    """`own`: the topic's own settings; `outranked`: those that the environment or ``-X`` overrides."""

    topic: Topic
    own: dict[str, str]
    changes: tuple[ChangedSetting, ...]
    outranked: tuple[Setting, ...] = ()
    begins_tiering: bool = False
    gives_up_tier: bool = False
    lost: tuple[PartitionLoss, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoss:
    """The loss of one partition. None: unknown, because it cannot be opened or the bucket does not answer."""

    partition: TopicPartition
    log_start_offset: int | None = None
    next_offset: int | None = None
    offsets: int | None = None  # an upper bound of the records: compaction and markers leave fewer
    local_bytes: int | None = None  # of ``.log`` files
    remote_bytes: int | None = None  # segments as stored, with their indexes
    only_local_bytes: int | None = None
    pins: int | None = None
    pinned_until_ms: int | None = None
    forks: tuple[str, ...] = ()  # as ``topic/partition``: they still read objects of this one
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLoss:
    """The loss of a deletion, which deletes files after `file_delay_ms`, objects after `grace_ms`."""

    topic: Topic
    partitions: tuple[PartitionLoss, ...]
    file_delay_ms: int
    grace_ms: int


class TopicDryRun:
    """Shows what a change of a topic would do. Thread safe; a read-only open suffices."""

    def __init__(self, table: PartitionTable) -> None:
        self._table = table
        self._opener = table.opener

    def new_topic(self, name: str, partitions: int = 1, properties: Mapping[str, str] | None = None) -> NewTopic:
        requested = AskedTopic(name=name, partitions=partitions, properties=properties or {})
        topic, store = check_new_topic(self._table, requested), self._opener.store
        settings = self._opener.config.explain(name, topic.properties)
        found = list_topics(store, name) if store is not None and topic.was_tiered else []
        namesakes, outranked = tuple(topic_id for _, topic_id in found), _outranked(settings, topic.properties)
        return NewTopic(topic=topic, settings=tuple(settings), outranked=outranked, namesakes=namesakes)

    def grown_topic(self, name: str, count: int) -> Topic:
        """The topic after `TopicAdmin.add_partitions`. Raises as it does."""
        return check_more_partitions(self._table, name, count)

    def altered_topic(self, name: str, properties: Mapping[str, str], *, now_ms: int) -> AlteredTopic:
        before = self._table.registry.get(name)
        after, begins = self._opener.altered(before, properties)
        if begins:
            self._opener.check_reachable(after)
        old, new = (self._opener.config.explain(name, each.properties) for each in (before, after))
        was_disabled, is_disabled = (
            is_tier_disabled(topic, {each.name: each.value for each in settings})
            for topic, settings in ((before, old), (after, new))
        )
        gives_up = is_disabled and not was_disabled
        return AlteredTopic(
            topic=before,
            own=dict(after.properties),
            changes=tuple(ChangedSetting(*pair) for pair in zip(old, new, strict=True) if pair[0] != pair[1]),
            outranked=_outranked(new, properties),
            begins_tiering=begins,
            gives_up_tier=gives_up,
            lost=tuple(self._tier_losses(after, now_ms)) if gives_up else (),
        )

    def deleted_topic(self, name: str, *, now_ms: int) -> TopicLoss:
        """The loss that `TopicAdmin.delete` would cause, and the delaying pins and forks. Raises NotFound."""
        topic = self._table.registry.deletable(name)
        rules = self._opener.rules(topic)
        losses = tuple(self._held_by(topic, each, now_ms) for each in self._losses(topic, now_ms))
        delay_ms, grace_ms = rules.file_delete_delay_ms, rules.delete_grace_ms
        return TopicLoss(topic=topic, partitions=losses, file_delay_ms=delay_ms, grace_ms=grace_ms)

    def _losses(self, topic: Topic, now_ms: int) -> Iterator[PartitionLoss]:
        seen = {each.partition: each for each in self._snapshots(topic, now_ms)}
        for name in topic.partitions():
            problem = self._table.problems.get(name)
            if name in seen and problem is None:
                yield _loss(seen[name])
            else:
                yield PartitionLoss(partition=name, trouble=str(problem or "the topic does not exist"))

    def _tier_losses(self, topic: Topic, now_ms: int) -> Iterator[PartitionLoss]:
        for each in self._snapshots(topic, now_ms):
            start = max(each.log_start_offset, each.segments[0].base_offset if each.segments else each.next_offset)
            offsets = start - each.log_start_offset
            yield replace(_loss(each), next_offset=start, offsets=offsets, local_bytes=0, only_local_bytes=0)

    def _snapshots(self, topic: Topic, now_ms: int) -> list[PartitionSnapshot]:
        return self._table.snapshots(now_ms, self._table.all([topic.name]))

    def _held_by(self, topic: Topic, loss: PartitionLoss, now_ms: int) -> PartitionLoss:
        from remote.gc.fork_references import forks_of, is_over
        from remote.gc.pins import list_pins

        if (store := self._opener.store) is None or not topic.was_tiered:
            return replace(loss, pins=0)
        try:
            pins = list_pins(store, partition_prefix(topic.name, topic.topic_id, loss.partition.partition))
            forks = [each for each in sorted(forks_of(pins)) if not is_over(store, each)]
        except LogError as error:
            return replace(loss, trouble=loss.trouble or str(error))
        held = [each.expires_ms for each in pins if each.fork is None and each.expires_ms > now_ms]
        return replace(loss, pins=len(held), pinned_until_ms=max(held, default=None), forks=tuple(map(_name_of, forks)))


def _loss(snapshot: PartitionSnapshot) -> PartitionLoss:
    status = partition_status(snapshot)
    return PartitionLoss(
        partition=snapshot.partition,
        log_start_offset=status.log_start_offset,
        next_offset=status.next_offset,
        offsets=status.next_offset - status.log_start_offset,
        local_bytes=status.local_bytes,
        remote_bytes=sum(part.stored_bytes + (part.indexes_bytes or 0) for part in snapshot.committed_parts),
        only_local_bytes=status.at_risk_bytes,
    )


def _outranked(effective: Iterable[Setting], own: Mapping[str, str]) -> tuple[Setting, ...]:
    return tuple(each for each in effective if own.get(each.name) and each.origin in ("environment", "-X"))


def _name_of(prefix: str) -> str:
    directory, _, number = prefix.rstrip("/").rpartition("/")
    parsed = parse_topic_directory(directory)
    return f"{parsed[0] if parsed else directory}/{number}"
