"""What a client commits, and the value of its record. No I/O."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from local.names import TopicPartition
from tiered.serve.groups.offsets_records import OffsetValue
from tiered.serve.record_source import ServedTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """The sender of a commit. `generation` -1 and no member: a client without membership."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOffset:
    """An offset to commit. `expire_after_ms` is the retention that an old client claims."""

    partition: TopicPartition
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None
    topic_id: uuid.UUID | None = None
    expire_after_ms: int | None = None


def is_of_another_topic(value: OffsetValue, name: str, topics: Mapping[str, ServedTopic] | None) -> bool:
    """Source: kafka `OffsetMetadataManager.isMismatchedTopicId`."""
    topic = topics.get(name) if topics is not None else None
    return topic is not None and None not in (value.topic_id, topic.topic_id) and value.topic_id != topic.topic_id


def value_of(offset: NewOffset, now_ms: int, topic: ServedTopic | None) -> OffsetValue:
    after_ms = offset.expire_after_ms
    return OffsetValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata or "",
        commit_ms=now_ms,
        expire_ms=None if after_ms is None else now_ms + after_ms,
        topic_id=topic.topic_id if offset.topic_id is None and topic is not None else offset.topic_id,
    )
