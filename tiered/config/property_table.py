"""The one table of properties: name, kind, default, limits, source, meaning.

`tiered.config.properties` looks them up. Names and defaults are Kafka's where Kafka has the property; others follow the
same style.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

Value = int | float | bool | str | frozenset[str]


class Kind(Enum):
    """The type of a value; the text describes its form."""

    MS = "a duration such as 7d, 90s or a number of ms"
    BYTES = "a size such as 512MiB or a number of bytes"
    INT = "a whole number"
    FLOAT = "a number"
    BOOL = "true or false"
    ENUM = "one of"
    SET = "a comma-separated list of"
    TEXT = "a name, or nothing"


class Source(Enum):
    """The project that defined the property, and documents its meaning."""

    KAFKA = "kafka"
    TIERED = "tiered"


@dataclass(frozen=True, slots=True)
class Property:
    """One property. `default` is text, as a user would write it; `minimum` and `maximum` are inclusive."""

    name: str
    kind: Kind
    default: str
    doc: str = ""
    source: Source = Source.KAFKA
    is_per_topic: bool = True
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()

    def documented(self, doc: str) -> Property:
        return replace(self, doc=doc)

    @property
    def environment_variable(self) -> str:
        """``TIERED_RETENTION_MS`` for ``retention.ms``."""
        return "TIERED_" + self.name.replace(".", "_").upper()

    @property
    def expected(self) -> str:
        """The form of a value, for messages and docs."""
        text = f"{self.kind.value} {', '.join(self.choices)}" if self.choices else self.kind.value
        if self.minimum is not None:
            text += f", at least {self.minimum}"
        return text if self.maximum is None else f"{text}, at most {self.maximum}"


_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1
_TIERED = Source.TIERED
_MS, _BYTES, _INT, _FLOAT, _BOOL, _ENUM, _SET, _TEXT = Kind

DELETE_ON_DISABLE = "remote.log.delete.on.disable"
IMMUTABLE = "remote.immutable"
APPEND_FREE_MIN = "log.dir.append.free.bytes.min"
RELIEF_FREE_MIN = "log.dir.relief.free.bytes.min"
JUMP_HOLD = "clock.jump.hold.ms"

TABLE = (
    Property("cleanup.policy", _SET, "delete", choices=("delete", "compact")).documented(
        "Treatment of old records: delete by age or size, compact to the newest record of each key, both, or neither."
    ),
    Property("retention.ms", _MS, "7d", minimum=-1).documented(
        "Time for which records are retained in both tiers; -1 for ever."
    ),
    Property("retention.bytes", _BYTES, "-1", minimum=-1).documented(
        "Bytes of a partition that are retained in both tiers; -1 without limit."
    ),
    Property("local.retention.ms", _MS, "-2", minimum=-2).documented(
        "Time for which copied segments of a tiered topic stay on the disk; -2 follows retention.ms, -1 for ever."
    ),
    Property("local.retention.bytes", _BYTES, "-2", minimum=-2).documented(
        "Bytes of a tiered partition that stay on the disk; -2 follows retention.bytes, -1 without limit."
    ),
    Property("segment.bytes", _BYTES, "1GiB", minimum=1024, maximum=_INT32_MAX).documented(
        "Size at which the active segment rolls."
    ),
    Property("segment.ms", _MS, "7d", minimum=1).documented("Age at which the active segment rolls."),
    Property("segment.jitter.ms", _MS, "0", minimum=0).documented(
        "Random reduction of segment.ms, up to this time, so that logs do not all roll at once."
    ),
    Property("segment.index.bytes", _BYTES, "10MiB", minimum=24, maximum=_INT32_MAX).documented(
        "Index size at which the active segment rolls."
    ),
    Property("index.interval.bytes", _BYTES, "4096", minimum=0, maximum=_INT32_MAX).documented(
        "Approximate bytes of log between two index entries."
    ),
    Property("max.message.bytes", _BYTES, "1048588", minimum=0, maximum=_INT32_MAX).documented(
        "Size of the largest batch that an append accepts."
    ),
    Property("message.timestamp.type", _ENUM, "CreateTime", choices=("CreateTime", "LogAppendTime")).documented(
        "Clock that stamps records: the producer's (CreateTime) or the log's (LogAppendTime)."
    ),
    Property("message.timestamp.before.max.ms", _MS, str(_INT64_MAX), minimum=0).documented(
        "Maximum age of the time of a record (CreateTime); an older record is refused."
    ),
    Property("message.timestamp.after.max.ms", _MS, "1h", minimum=0).documented(
        "Maximum time of a record ahead of the clock (CreateTime). A later record is refused, because it would delay "
        "the expiry of its segment until then. Raise it for a topic with imported future times (forecasts, plans, "
        "wrong clocks)."
    ),
    Property(
        "compression.type", _ENUM, "producer", choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
    ).documented(
        "Codec of batches that are encoded here; 'producer' stores arriving batches unchanged and does not compress."
    ),
    Property("compression.gzip.level", _INT, "-1", minimum=-1, maximum=9).documented(
        "Compression level of gzip; -1 is the default of gzip."
    ),
    Property("compression.lz4.level", _INT, "9", minimum=1, maximum=17).documented(
        "Compression level; a higher level is smaller and slower."
    ),
    Property("compression.zstd.level", _INT, "3", minimum=-131072, maximum=22).documented(
        "Compression level; a higher level is smaller and slower."
    ),
    Property("flush.messages", _INT, str(_INT64_MAX), minimum=1).documented(
        "fsync after this number of appended records."
    ),
    Property("flush.ms", _MS, str(_INT64_MAX), minimum=0).documented(
        "fsync when the oldest unsynced record has this age."
    ),
    Property("producer.id.expiration.ms", _MS, "86400000", minimum=1).documented(
        "Time after its last batch for which a producer is remembered, longer while its transaction is open."
    ),
    Property("min.cleanable.dirty.ratio", _FLOAT, "0.5", minimum=0, maximum=1).documented(
        "A compacted log is cleaned when its dirty share is larger than this."
    ),
    Property("min.compaction.lag.ms", _MS, "0", minimum=0).documented("Records younger than this are not compacted."),
    Property("max.compaction.lag.ms", _MS, str(_INT64_MAX), minimum=1).documented(
        "A compacted log with a dirty record older than this is cleaned whatever its dirty share is; its active "
        "segment rolls at this age even if segment.ms is longer."
    ),
    Property("delete.retention.ms", _MS, "1d", minimum=0).documented(
        "Time for which tombstones and transaction markers stay in a compacted log after a cleaner pass, for slow "
        "readers. A tombstone with older records of its key in the bucket stays longer."
    ),
    Property("log.cleaner.threads", _INT, "1", minimum=1, maximum=1024, is_per_topic=False).documented(
        "Number of logs that are cleaned at the same time."
    ),
    Property("log.cleaner.dedupe.buffer.size", _BYTES, "128MiB", minimum=1048576, is_per_topic=False).documented(
        "Memory for the offset maps of all cleaner threads together; each thread has an equal share, at most 2 GiB."
    ),
    Property("log.cleaner.io.buffer.load.factor", _FLOAT, "0.9", minimum=0, maximum=1, is_per_topic=False).documented(
        "Maximum fill level of an offset map; further keys are cleaned in a later pass."
    ),
    Property("log.cleaner.io.max.bytes.per.second", _BYTES, str(_INT64_MAX), minimum=1, is_per_topic=False).documented(
        "Bytes per second that all cleaner threads together may read and write."
    ),
    Property("log.cleaner.uncleanable.retry.ms", _MS, "10m", minimum=1, source=_TIERED, is_per_topic=False).documented(
        "Time after which a log that could not be cleaned is tried again."
    ),
    Property("file.delete.delay.ms", _MS, "1m", minimum=0).documented(
        "Time for which the files of a dropped local segment wait for readers before their deletion."
    ),
    Property("num.recovery.threads.per.data.dir", _INT, "2", minimum=1, maximum=1024, is_per_topic=False).documented(
        "Number of logs of one log directory that are loaded and recovered at the same time at the start."
    ),
    Property("remote.storage.enable", _BOOL, "false").documented(
        "Whether closed segments are copied to the object store."
    ),
    Property("remote.log.copy.disable", _BOOL, "false").documented(
        "Makes the remote tier read-only: no copies; expiry continues, and local files follow retention.* (KIP-950)."
    ),
    Property("remote.copy.lag.ms", _MS, "0", minimum=-1).documented(
        "Age of a closed segment from which it is copied; 0 at once, -1 follows local retention (KIP-1241)."
    ),
    Property("remote.copy.lag.bytes", _BYTES, "-1", minimum=-1).documented(
        "Bytes of newer local log from which a segment is copied; 0 at once, -1 follows local retention (KIP-1241)."
    ),
    Property("remote.log.delete.grace.ms", _MS, "1d", minimum=0, source=_TIERED).documented(
        "Time for which the objects of an expired segment stay in the store for readers of an older manifest."
    ),
    Property("remote.compression", _ENUM, "none", choices=("none", "zstd"), source=_TIERED).documented(
        "Compression of new segments in the store; segments that do not shrink are stored unchanged."
    ),
    Property("remote.compression.zstd.level", _INT, "3", minimum=-131072, maximum=22, source=_TIERED).documented(
        "Compression level; a higher level is smaller and slower."
    ),
    Property("remote.encryption.key.id", _TEXT, "", source=_TIERED).documented(
        "Id of the key in the key ring that encrypts new objects; empty: no encryption. The ring is key_ring of "
        "[remote], TIERED_KEY_RING or TIERED_KEYS."
    ),
    Property(
        "remote.s3.client", _ENUM, "auto", choices=("auto", "s3fs", "obstore"), source=_TIERED, is_per_topic=False
    ).documented("S3 client. auto uses obstore if it is installed and supports all options in use, else s3fs."),
    Property(
        "remote.storage.class",
        _ENUM,
        "default",
        choices=(
            "default",
            "STANDARD",
            "STANDARD_IA",
            "ONEZONE_IA",
            "INTELLIGENT_TIERING",
            "GLACIER_IR",
            "EXPRESS_ONEZONE",
            "REDUCED_REDUNDANCY",
        ),
        source=_TIERED,
        is_per_topic=False,
    ).documented(
        "S3 storage class for new segments. Indexes and manifests are small and use the default class of the bucket."
    ),
    Property(
        "remote.sse", _ENUM, "default", choices=("default", "AES256", "aws:kms"), source=_TIERED, is_per_topic=False
    ).documented("S3 server-side encryption of all objects; default uses the setting of the bucket."),
    Property("remote.sse.kms.key.id", _TEXT, "", source=_TIERED, is_per_topic=False).documented(
        "KMS key of remote.sse=aws:kms; empty: the default key of the account."
    ),
    Property("remote.fetch.cache.bytes", _BYTES, "256MiB", minimum=0, source=_TIERED, is_per_topic=False).documented(
        "Memory for chunks and indexes of remote segments."
    ),
    Property("remote.fetch.cache.dir", _TEXT, "", source=_TIERED, is_per_topic=False).documented(
        "Directory, outside the log directories, that caches chunks and indexes of remote segments and the newest "
        "manifests across restarts; empty: none."
    ),
    Property(
        "remote.fetch.cache.dir.max.bytes", _BYTES, "10GiB", minimum=0, source=_TIERED, is_per_topic=False
    ).documented("Maximum size of that directory; an eighth of it is for copies of manifests and manifest pages."),
    Property(
        "remote.log.manager.copy.max.bytes.per.second", _BYTES, str(_INT64_MAX), minimum=1, is_per_topic=False
    ).documented("Bytes per second that all copies together write to the store."),
    Property(
        "remote.log.manager.fetch.max.bytes.per.second", _BYTES, str(_INT64_MAX), minimum=1, is_per_topic=False
    ).documented("Bytes per second that all readers together read from the store."),
    Property("remote.recompaction.min.reduction.ratio", _FLOAT, "0.5", minimum=0, maximum=1, source=_TIERED).documented(
        "A later cleaner pass on the disk replaces an uploaded segment if that saves this share of its size; 1 never."
    ),
    Property("remote.recompaction.min.saved.bytes", _BYTES, "1MiB", minimum=0, source=_TIERED).documented(
        "Bytes that such a replacement must save at least; smaller savings do not pay for the requests."
    ),
    Property("append.batch.bytes", _BYTES, "256KiB", minimum=1, maximum=_INT32_MAX, source=_TIERED).documented(
        "Approximate bytes of records in one batch when many are appended at once."
    ),
    Property("compaction.view.threshold", _BYTES, "0", minimum=0, source=_TIERED).documented(
        "Builds the compacted view of a topic automatically, when more bytes than this are above the horizon of the "
        "view, in the bucket or on the disk of a topic without a remote tier (the compaction threshold of Pulsar), "
        "and before retention expires records that the view does not include yet. 0 builds views by command only."
    ),
    Property("compaction.view.retain.null.key", _BOOL, "false", source=_TIERED).documented(
        "Whether a compacted view keeps records without a key (topicCompactionRetainNullKey of Pulsar)."
    ),
    Property("compaction.view.empty.value.deletes", _BOOL, "false", source=_TIERED).documented(
        "Whether a record with an empty value deletes its key from a compacted view, as in Pulsar. The log does not "
        "change; a null value always deletes."
    ),
    Property("compaction.records.without.key", _ENUM, "refuse", choices=("refuse", "drop"), source=_TIERED).documented(
        "Treatment of records without key in a compacted topic: refuse the append as Kafka does, or accept them until "
        "the cleaner removes them. Both are counted."
    ),
    Property("log.dir.free.bytes.min", _BYTES, "256MiB", minimum=0, source=_TIERED, is_per_topic=False).documented(
        "A log directory with less free space takes no new partition."
    ),
    Property(
        "log.dir.free.share.min", _FLOAT, "0", minimum=0, maximum=1, source=_TIERED, is_per_topic=False
    ).documented(
        "A log directory with a smaller free share of its file system takes no new partition; 0.05 is 5 percent."
    ),
    Property("remote.log.manager.task.interval.ms", _MS, "30s", minimum=1, is_per_topic=False).documented(
        "Interval of the maintenance rounds of 'tiered run'."
    ),
    Property("remote.single.writer", _BOOL, "false", source=_TIERED, is_per_topic=False).documented(
        "Allows a store without create-if-absent; true only if no other manager ever writes to it."
    ),
    Property(DELETE_ON_DISABLE, _BOOL, "false").documented(
        "Allows remote.storage.enable to change from true to false by altering the topic: the objects in the bucket "
        "are deleted and the log starts at the first local record (KIP-950)."
    ),
    Property(
        "remote.log.manager.copier.thread.pool.size", _INT, "10", minimum=1, maximum=1000, is_per_topic=False
    ).documented("Number of partitions that a manager copies at the same time."),
    Property(
        "remote.log.manager.expiration.thread.pool.size", _INT, "10", minimum=1, maximum=1000, is_per_topic=False
    ).documented(
        "Number of partitions that a manager acquires, expires and deletes in the remote tier at the same time. These "
        "threads are separate from the copy threads, so hanging uploads delay no deletion."
    ),
    Property(IMMUTABLE, _BOOL, "false", source=_TIERED, is_per_topic=False).documented(
        "No object in the bucket is ever overwritten or deleted (object lock): expired segments leave the manifest "
        "and the lifecycle of the bucket deletes them; 'tiered gc' lists them."
    ),
    Property("cost.prices", _TEXT, "", source=_TIERED, is_per_topic=False).documented(
        "A JSON file with prices that differ from the built-in prices, relative to tiered.toml ('tiered cost prices' "
        "prints all of them as a start). Empty: the built-in prices."
    ),
    Property(APPEND_FREE_MIN, _BYTES, "32MiB", minimum=0, source=_TIERED, is_per_topic=False).documented(
        "With less free space in a log directory, appends to its partitions are refused, so that uploads, checkpoints "
        "and a clean stop still have space."
    ),
    Property(RELIEF_FREE_MIN, _BYTES, "128MiB", minimum=0, source=_TIERED, is_per_topic=False).documented(
        "With less free space in a log directory, segments that are in the bucket are dropped before their local "
        "retention ends, the oldest first. 0 never drops them early."
    ),
    Property(JUMP_HOLD, _MS, "1d", minimum=0, source=_TIERED, is_per_topic=False).documented(
        "Time for which a running manager uses the previous time after a jump of the system clock, and reports the "
        "jump: a clock that is corrected within this time expires no record. The time ends early when the clock of "
        "the store agrees with the system clock, and does not end while they differ. 0 trusts the clock at once."
    ),
)
