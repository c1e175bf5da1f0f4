"""Which committed offsets are to be removed: of deleted topics, and those whose retention ended. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from local.names import TopicPartition
from tiered.serve.groups.commits import is_of_another_topic
from tiered.serve.groups.committed import CommittedOffsets
from tiered.serve.groups.consumer.membership import AnyGroup
from tiered.serve.groups.offsets_records import OffsetValue
from tiered.serve.record_source import ServedTopic


def of_topic(
    offsets: CommittedOffsets, group_id: str, topic: str, topics: Mapping[str, ServedTopic]
) -> list[TopicPartition]:
    """The offsets of a deleted topic, without those of a new topic of the same name."""
    new = topics.get(topic)
    new_id = new.topic_id if new is not None else None
    return [
        each
        for each, found in offsets.of(group_id).items()
        if each.topic == topic and (new_id is None or found.value.topic_id != new_id)
    ]


def obsolete(
    offsets: CommittedOffsets, group_id: str, topics: Mapping[str, ServedTopic] | None
) -> list[TopicPartition]:
    """Offsets of topics that do not exist. A topic that is restored later has its id, and so its offsets."""
    return [
        each
        for each, found in offsets.of(group_id).items()
        if is_of_another_topic(found.value, each.topic, topics)
        or (topics is not None and each.topic not in topics and found.value.topic_id is None)
    ]


def expired(offsets: CommittedOffsets, group: AnyGroup | None, now_ms: int, retention_ms: int) -> list[TopicPartition]:
    """Those whose retention ended, unless a transaction has another offset of the partition."""
    if group is None:
        return []
    name = group.group_id
    return [
        where
        for where, found in offsets.of(name).items()
        if not offsets.is_pending(name, where) and _is_expired(group, where, found.value, now_ms, retention_ms)
    ]


def _is_expired(group: AnyGroup, where: TopicPartition, value: OffsetValue, now_ms: int, retention_ms: int) -> bool:
    base_ms = group.expiry_base_ms(value.commit_ms, where.topic)
    if base_ms is None:
        return False
    if value.expire_ms is not None:
        return now_ms >= value.expire_ms
    return now_ms - base_ms >= retention_ms
