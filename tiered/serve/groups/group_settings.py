"""The settings of consumer groups, under Kafka's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from local.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Defaults are Kafka's, but for the two sizes, which Kafka does not bound, and few `offsets_partitions`.

    Source: kafka `GroupCoordinatorConfig`.
    """

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    max_size: int = 1_000  # group.max.size; Kafka: 2^31 - 1
    offsets_retention_ms: int = 7 * 24 * 3_600_000  # offsets.retention.minutes
    retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    offset_metadata_max_bytes: int = 4_096  # offset.metadata.max.bytes
    offsets_partitions: int = 8  # offsets.topic.num.partitions, before the topic exists; Kafka: 50
    offsets_segment_bytes: int = 100 << 20  # offsets.topic.segment.bytes
    consumer_session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    consumer_heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    consumer_max_size: int = 1_000  # group.consumer.max.size; Kafka: 2^31 - 1
    consumer_regex_refresh_interval_ms: int = 600_000  # group.consumer.regex.refresh.interval.ms

    @classmethod
    def of(cls, int_of: Callable[[str], int]) -> GroupSettings:
        """The settings of a node; `int_of` gives the value of a property. Raises InvalidRequest."""
        found = {field: int_of(name) * unit_ms for name, (field, unit_ms) in _PROPERTIES.items()}
        settings = cls(**found)
        if settings.min_session_timeout_ms > settings.max_session_timeout_ms:
            facts = {"min": settings.min_session_timeout_ms, "max": settings.max_session_timeout_ms}
            raise InvalidRequest("invalid group.min.session.timeout.ms, it is above the maximum", **facts)
        if settings.consumer_heartbeat_interval_ms >= settings.consumer_session_timeout_ms:
            facts = {
                "heartbeat": settings.consumer_heartbeat_interval_ms,
                "session": settings.consumer_session_timeout_ms,
            }
            raise InvalidRequest(
                "invalid group.consumer.heartbeat.interval.ms, it is not below the session timeout", **facts
            )
        return settings


_PROPERTIES: Mapping[str, tuple[str, int]] = {  # name: field, factor
    "group.min.session.timeout.ms": ("min_session_timeout_ms", 1),
    "group.max.session.timeout.ms": ("max_session_timeout_ms", 1),
    "group.initial.rebalance.delay.ms": ("initial_rebalance_delay_ms", 1),
    "group.max.size": ("max_size", 1),
    "offsets.retention.minutes": ("offsets_retention_ms", 60_000),
    "offsets.retention.check.interval.ms": ("retention_check_interval_ms", 1),
    "offset.metadata.max.bytes": ("offset_metadata_max_bytes", 1),
    "offsets.topic.num.partitions": ("offsets_partitions", 1),
    "offsets.topic.segment.bytes": ("offsets_segment_bytes", 1),
    "group.consumer.session.timeout.ms": ("consumer_session_timeout_ms", 1),
    "group.consumer.heartbeat.interval.ms": ("consumer_heartbeat_interval_ms", 1),
    "group.consumer.max.size": ("consumer_max_size", 1),
    "group.consumer.regex.refresh.interval.ms": ("consumer_regex_refresh_interval_ms", 1),
}
