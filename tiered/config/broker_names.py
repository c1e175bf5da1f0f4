"""Kafka's names of settings in ``server.properties``, with the topic setting of the same meaning.

Users of a broker's file type these names. They get a hint, but the names are refused: a broker's
``log.retention.hours`` counts hours, the settings here take a unit. From Kafka's ServerTopicConfigSynonyms.
"""

from __future__ import annotations

BROKER_NAMES = {
    "log.cleanup.policy": "cleanup.policy",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.flush.interval.messages": "flush.messages",
    "log.flush.interval.ms": "flush.ms",
    "log.flush.scheduler.interval.ms": "flush.ms",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.local.retention.bytes": "local.retention.bytes",
    "log.local.retention.ms": "local.retention.ms",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.retention.bytes": "retention.bytes",
    "log.retention.check.interval.ms": "remote.log.manager.task.interval.ms",
    "log.retention.hours": "retention.ms",
    "log.retention.minutes": "retention.ms",
    "log.retention.ms": "retention.ms",
    "log.roll.hours": "segment.ms",
    "log.roll.jitter.hours": "segment.jitter.ms",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.bytes": "segment.bytes",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "message.max.bytes": "max.message.bytes",
    "remote.log.storage.system.enable": "remote.storage.enable",
}
