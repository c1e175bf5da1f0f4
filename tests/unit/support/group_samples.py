"""Committed offsets of consumer groups in the log of a manager, as a node that ended left them."""

from __future__ import annotations

from collections.abc import Mapping

from manager_world import NOW

from local.format.record import Record
from local.names import TopicPartition
from tiered.manager.manager import LogManager
from tiered.serve.groups.offsets_log import OFFSETS_TOPIC
from tiered.serve.groups.offsets_records import OffsetKey, OffsetValue, encode_key, encode_value


def commit(manager: LogManager, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    if all(each.name != OFFSETS_TOPIC for each in manager.topics.all()):
        manager.topics.create(OFFSETS_TOPIC, 1, {"cleanup.policy": "compact"}, now_ms=NOW)
    records = [
        Record(
            encode_key(OffsetKey(group, name.topic, name.partition)),
            encode_value(OffsetValue(offset=offset, commit_ms=NOW)),
            NOW,
        )
        for name, offset in offsets.items()
    ]
    manager.append(OFFSETS_TOPIC, records, 0, now_ms=NOW)
