"""The table of properties: name, kind, default, meaning, source.

`tiered.config.properties` looks them up.
Names and defaults are Kafka's where Kafka has the property; others follow the same style. The module is long because it
is one table.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """One property. `default` is text, as a user would write it; `minimum` and `maximum` are inclusive."""

    name: str
    kind: Kind
    default: str
    doc: str
    source: Source = Source.KAFKA
    is_per_topic: bool = True
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()

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

TABLE = (
    Property(
        name="cleanup.policy",
        kind=Kind.SET,
        default="delete",
        choices=("delete", "compact"),
        doc=(
            "Treatment of old records: delete by age or size, compact to the newest record of each "
            "key, both, or neither."
        ),
    ),
    Property(
        name="retention.ms",
        kind=Kind.MS,
        default="7d",
        minimum=-1,
        doc="Time for which records are retained in both tiers; -1 for ever.",
    ),
    Property(
        name="retention.bytes",
        kind=Kind.BYTES,
        default="-1",
        minimum=-1,
        doc="Bytes of a partition that are retained in both tiers; -1 without limit.",
    ),
    Property(
        name="local.retention.ms",
        kind=Kind.MS,
        default="-2",
        minimum=-2,
        doc=(
            "Time for which copied segments of a tiered topic stay on the disk; -2 follows retention.ms, -1 for ever."
        ),
    ),
    Property(
        name="local.retention.bytes",
        kind=Kind.BYTES,
        default="-2",
        minimum=-2,
        doc=("Bytes of a tiered partition that stay on the disk; -2 follows retention.bytes, -1 without limit."),
    ),
    Property(
        name="segment.bytes",
        kind=Kind.BYTES,
        default="1GiB",
        minimum=1024,
        maximum=_INT32_MAX,
        doc="Size at which the active segment rolls.",
    ),
    Property(
        name="segment.ms",
        kind=Kind.MS,
        default="7d",
        minimum=1,
        doc="Age at which the active segment rolls.",
    ),
    Property(
        name="segment.jitter.ms",
        kind=Kind.MS,
        default="0",
        minimum=0,
        doc="Random reduction of segment.ms, up to this time, so that logs do not all roll at once.",
    ),
    Property(
        name="segment.index.bytes",
        kind=Kind.BYTES,
        default="10MiB",
        minimum=24,
        maximum=_INT32_MAX,
        doc="Index size at which the active segment rolls.",
    ),
    Property(
        name="index.interval.bytes",
        kind=Kind.BYTES,
        default="4096",
        minimum=0,
        maximum=_INT32_MAX,
        doc="Approximate bytes of log between two index entries.",
    ),
    Property(
        name="max.message.bytes",
        kind=Kind.BYTES,
        default="1048588",
        minimum=0,
        maximum=_INT32_MAX,
        doc="Size of the largest batch that an append accepts.",
    ),
    Property(
        name="message.timestamp.type",
        kind=Kind.ENUM,
        default="CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        doc="Clock that stamps records: the producer's (CreateTime) or the log's (LogAppendTime).",
    ),
    Property(
        name="message.timestamp.before.max.ms",
        kind=Kind.MS,
        default=str(_INT64_MAX),
        minimum=0,
        doc="Maximum age of the time of a record (CreateTime); an older record is refused.",
    ),
    Property(
        name="message.timestamp.after.max.ms",
        kind=Kind.MS,
        default="1h",
        minimum=0,
        doc=(
            "Maximum time of a record ahead of the clock (CreateTime). A later record is refused, "
            "because it would delay the expiry of its segment until then. Raise it for a topic with "
            "imported future times (forecasts, plans, wrong clocks)."
        ),
    ),
    Property(
        name="compression.type",
        kind=Kind.ENUM,
        default="producer",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        doc=(
            "Codec of batches that are encoded here; 'producer' stores arriving batches unchanged "
            "and does not compress."
        ),
    ),
    Property(
        name="compression.gzip.level",
        kind=Kind.INT,
        default="-1",
        minimum=-1,
        maximum=9,
        doc="Compression level of gzip; -1 is the default of gzip.",
    ),
    Property(
        name="compression.lz4.level",
        kind=Kind.INT,
        default="9",
        minimum=1,
        maximum=17,
        doc="Compression level; a higher level is smaller and slower.",
    ),
    Property(
        name="compression.zstd.level",
        kind=Kind.INT,
        default="3",
        minimum=-131072,
        maximum=22,
        doc="Compression level; a higher level is smaller and slower.",
    ),
    Property(
        name="flush.messages",
        kind=Kind.INT,
        default=str(_INT64_MAX),
        minimum=1,
        doc="fsync after this number of appended records.",
    ),
    Property(
        name="flush.ms",
        kind=Kind.MS,
        default=str(_INT64_MAX),
        minimum=0,
        doc="fsync when the oldest unsynced record has this age.",
    ),
    Property(
        name="producer.id.expiration.ms",
        kind=Kind.MS,
        default="86400000",
        minimum=1,
        doc=("Time after its last batch for which a producer is remembered, longer while its transaction is open."),
    ),
    Property(
        name="min.cleanable.dirty.ratio",
        kind=Kind.FLOAT,
        default="0.5",
        minimum=0,
        maximum=1,
        doc="A compacted log is cleaned when its dirty share is larger than this.",
    ),
    Property(
        name="min.compaction.lag.ms",
        kind=Kind.MS,
        default="0",
        minimum=0,
        doc="Records younger than this are not compacted.",
    ),
    Property(
        name="max.compaction.lag.ms",
        kind=Kind.MS,
        default=str(_INT64_MAX),
        minimum=1,
        doc=(
            "A compacted log with a dirty record older than this is cleaned whatever its dirty share "
            "is; its active segment rolls at this age even if segment.ms is longer."
        ),
    ),
    Property(
        name="delete.retention.ms",
        kind=Kind.MS,
        default="1d",
        minimum=0,
        doc=(
            "Time for which tombstones and transaction markers stay in a compacted log after a "
            "cleaner pass, for slow readers. A tombstone with older records of its key in the bucket "
            "stays longer."
        ),
    ),
    Property(
        name="log.cleaner.threads",
        kind=Kind.INT,
        default="1",
        minimum=1,
        maximum=1024,
        is_per_topic=False,
        doc="Number of logs that are cleaned at the same time.",
    ),
    Property(
        name="log.cleaner.dedupe.buffer.size",
        kind=Kind.BYTES,
        default="128MiB",
        minimum=1 << 20,
        is_per_topic=False,
        doc=(
            "Memory for the offset maps of all cleaner threads together; each thread has an equal share, at most 2 GiB."
        ),
    ),
    Property(
        name="log.cleaner.io.buffer.load.factor",
        kind=Kind.FLOAT,
        default="0.9",
        minimum=0,
        maximum=1,
        is_per_topic=False,
        doc="Maximum fill level of an offset map; further keys are cleaned in a later pass.",
    ),
    Property(
        name="log.cleaner.io.max.bytes.per.second",
        kind=Kind.BYTES,
        default=str(_INT64_MAX),
        minimum=1,
        is_per_topic=False,
        doc="Bytes per second that all cleaner threads together may read and write.",
    ),
    Property(
        name="log.cleaner.uncleanable.retry.ms",
        kind=Kind.MS,
        default="10m",
        minimum=1,
        is_per_topic=False,
        source=Source.TIERED,
        doc="Time after which a log that could not be cleaned is tried again.",
    ),
    Property(
        name="file.delete.delay.ms",
        kind=Kind.MS,
        default="1m",
        minimum=0,
        doc=("Time for which the files of a dropped local segment wait for readers before their deletion."),
    ),
    Property(
        name="num.recovery.threads.per.data.dir",
        kind=Kind.INT,
        default="2",
        minimum=1,
        maximum=1024,
        is_per_topic=False,
        doc=("Number of logs of one log directory that are loaded and recovered at the same time at the start."),
    ),
    Property(
        name="remote.storage.enable",
        kind=Kind.BOOL,
        default="false",
        doc="Whether closed segments are copied to the object store.",
    ),
    Property(
        name="remote.log.copy.disable",
        kind=Kind.BOOL,
        default="false",
        doc=(
            "Makes the remote tier read-only: no copies; expiry continues, and local files follow "
            "retention.* (KIP-950)."
        ),
    ),
    Property(
        name="remote.copy.lag.ms",
        kind=Kind.MS,
        default="0",
        minimum=-1,
        doc=("Age of a closed segment from which it is copied; 0 at once, -1 follows local retention (KIP-1241)."),
    ),
    Property(
        name="remote.copy.lag.bytes",
        kind=Kind.BYTES,
        default="-1",
        minimum=-1,
        doc=(
            "Bytes of newer local log from which a segment is copied; 0 at once, -1 follows local retention (KIP-1241)."
        ),
    ),
    Property(
        name="remote.log.delete.grace.ms",
        kind=Kind.MS,
        default="1d",
        minimum=0,
        source=Source.TIERED,
        doc=("Time for which the objects of an expired segment stay in the store for readers of an older manifest."),
    ),
    Property(
        name="remote.compression",
        kind=Kind.ENUM,
        default="none",
        choices=("none", "zstd"),
        source=Source.TIERED,
        doc="Compression of new segments in the store; segments that do not shrink are stored unchanged.",
    ),
    Property(
        name="remote.compression.zstd.level",
        kind=Kind.INT,
        default="3",
        minimum=-131072,
        maximum=22,
        source=Source.TIERED,
        doc="Compression level; a higher level is smaller and slower.",
    ),
    Property(
        name="remote.encryption.key.id",
        kind=Kind.TEXT,
        default="",
        source=Source.TIERED,
        doc=(
            "Id of the key in the key ring that encrypts new objects; empty: no encryption. The ring "
            "is key_ring of [remote], TIERED_KEY_RING or TIERED_KEYS."
        ),
    ),
    Property(
        name="remote.s3.client",
        kind=Kind.ENUM,
        default="auto",
        choices=("auto", "s3fs", "obstore"),
        is_per_topic=False,
        source=Source.TIERED,
        doc=("S3 client. auto uses obstore if it is installed and supports all options in use, else s3fs."),
    ),
    Property(
        name="remote.storage.class",
        kind=Kind.ENUM,
        default="default",
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
        is_per_topic=False,
        source=Source.TIERED,
        doc=(
            "S3 storage class for new segments. Indexes and manifests are small and use the default "
            "class of the bucket."
        ),
    ),
    Property(
        name="remote.sse",
        kind=Kind.ENUM,
        default="default",
        choices=("default", "AES256", "aws:kms"),
        is_per_topic=False,
        source=Source.TIERED,
        doc="S3 server-side encryption of all objects; default uses the setting of the bucket.",
    ),
    Property(
        name="remote.sse.kms.key.id",
        kind=Kind.TEXT,
        default="",
        is_per_topic=False,
        source=Source.TIERED,
        doc="KMS key of remote.sse=aws:kms; empty: the default key of the account.",
    ),
    Property(
        name="remote.fetch.cache.bytes",
        kind=Kind.BYTES,
        default="256MiB",
        minimum=0,
        is_per_topic=False,
        source=Source.TIERED,
        doc="Memory for chunks and indexes of remote segments.",
    ),
    Property(
        name="remote.fetch.cache.dir",
        kind=Kind.TEXT,
        default="",
        is_per_topic=False,
        source=Source.TIERED,
        doc=(
            "Directory, outside the log directories, that caches chunks and indexes of remote "
            "segments and the newest manifests across restarts; empty: none."
        ),
    ),
    Property(
        name="remote.fetch.cache.dir.max.bytes",
        kind=Kind.BYTES,
        default="10GiB",
        minimum=0,
        is_per_topic=False,
        source=Source.TIERED,
        doc=("Maximum size of that directory; an eighth of it is for copies of manifests and manifest pages."),
    ),
    Property(
        name="remote.log.manager.copy.max.bytes.per.second",
        kind=Kind.BYTES,
        default=str(_INT64_MAX),
        minimum=1,
        is_per_topic=False,
        doc="Bytes per second that all copies together write to the store.",
    ),
    Property(
        name="remote.log.manager.fetch.max.bytes.per.second",
        kind=Kind.BYTES,
        default=str(_INT64_MAX),
        minimum=1,
        is_per_topic=False,
        doc="Bytes per second that all readers together read from the store.",
    ),
    Property(
        name="remote.recompaction.min.reduction.ratio",
        kind=Kind.FLOAT,
        default="0.5",
        minimum=0,
        maximum=1,
        source=Source.TIERED,
        doc=(
            "A later cleaner pass on the disk replaces an uploaded segment if that saves this share "
            "of its size; 1 never."
        ),
    ),
    Property(
        name="remote.recompaction.min.saved.bytes",
        kind=Kind.BYTES,
        default="1MiB",
        minimum=0,
        source=Source.TIERED,
        doc=("Bytes that such a replacement must save at least; smaller savings do not pay for the requests."),
    ),
    Property(
        name="append.batch.bytes",
        kind=Kind.BYTES,
        default="256KiB",
        minimum=1,
        maximum=_INT32_MAX,
        source=Source.TIERED,
        doc="Approximate bytes of records in one batch when many are appended at once.",
    ),
    Property(
        name="compaction.view.threshold",
        kind=Kind.BYTES,
        default="0",
        minimum=0,
        source=Source.TIERED,
        doc=(
            "Builds the compacted view of a topic automatically, when more bytes than this are above "
            "the horizon of the view, in the bucket or on the disk of a topic without a remote tier "
            "(the compaction threshold of Pulsar), and before retention expires records that the "
            "view does not include yet. 0 builds views by command only."
        ),
    ),
    Property(
        name="compaction.view.retain.null.key",
        kind=Kind.BOOL,
        default="false",
        source=Source.TIERED,
        doc=("Whether a compacted view keeps records without a key (topicCompactionRetainNullKey of Pulsar)."),
    ),
    Property(
        name="compaction.view.empty.value.deletes",
        kind=Kind.BOOL,
        default="false",
        source=Source.TIERED,
        doc=(
            "Whether a record with an empty value deletes its key from a compacted view, as in "
            "Pulsar. The log does not change; a null value always deletes."
        ),
    ),
    Property(
        name="compaction.records.without.key",
        kind=Kind.ENUM,
        default="refuse",
        choices=("refuse", "drop"),
        source=Source.TIERED,
        doc=(
            "Treatment of records without key in a compacted topic: refuse the append as Kafka does, "
            "or accept them until the cleaner removes them. Both are counted."
        ),
    ),
    Property(
        name="log.dir.free.bytes.min",
        kind=Kind.BYTES,
        default="256MiB",
        minimum=0,
        is_per_topic=False,
        source=Source.TIERED,
        doc="A log directory with less free space takes no new partition.",
    ),
    Property(
        name="log.dir.free.share.min",
        kind=Kind.FLOAT,
        default="0",
        minimum=0,
        maximum=1,
        is_per_topic=False,
        source=Source.TIERED,
        doc=("A log directory with a smaller free share of its file system takes no new partition; 0.05 is 5 percent."),
    ),
    Property(
        name="remote.log.manager.task.interval.ms",
        kind=Kind.MS,
        default="30s",
        minimum=1,
        is_per_topic=False,
        doc="Interval of the maintenance rounds of 'tiered run'.",
    ),
    Property(
        name="remote.single.writer",
        kind=Kind.BOOL,
        default="false",
        is_per_topic=False,
        source=Source.TIERED,
        doc="Allows a store without create-if-absent; true only if no other manager ever writes to it.",
    ),
)
