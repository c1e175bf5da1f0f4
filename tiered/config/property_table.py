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
        doc="Treatment of old records: deleted by age or size, compacted to each key's newest, both, or neither.",
    ),
    Property(
        name="retention.ms",
        kind=Kind.MS,
        default="7d",
        minimum=-1,
        doc="Time for which records are retained over both tiers; -1 for ever.",
    ),
    Property(
        name="retention.bytes",
        kind=Kind.BYTES,
        default="-1",
        minimum=-1,
        doc="Bytes of a partition that are retained over both tiers; -1 without limit.",
    ),
    Property(
        name="local.retention.ms",
        kind=Kind.MS,
        default="-2",
        minimum=-2,
        doc="How long a tiered topic's copied segments stay on the disk; -2 follows retention.ms, -1 for ever.",
    ),
    Property(
        name="local.retention.bytes",
        kind=Kind.BYTES,
        default="-2",
        minimum=-2,
        doc="How much of a tiered partition stays on the disk; -2 follows retention.bytes, -1 without limit.",
    ),
    Property(
        name="segment.bytes",
        kind=Kind.BYTES,
        default="1GiB",
        minimum=1024,
        maximum=_INT32_MAX,
        doc="The size at which the active segment is closed.",
    ),
    Property(
        name="segment.ms",
        kind=Kind.MS,
        default="7d",
        minimum=1,
        doc="The age at which the active segment is closed.",
    ),
    Property(
        name="segment.jitter.ms",
        kind=Kind.MS,
        default="0",
        minimum=0,
        doc="Up to this much of segment.ms is taken away by chance, so that logs do not all roll at once.",
    ),
    Property(
        name="segment.index.bytes",
        kind=Kind.BYTES,
        default="10MiB",
        minimum=24,
        maximum=_INT32_MAX,
        doc="The size of an index at which the active segment is closed.",
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
        doc="The largest batch that an append accepts.",
    ),
    Property(
        name="message.timestamp.type",
        kind=Kind.ENUM,
        default="CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        doc="The clock that stamps records: the producer's or the log's.",
    ),
    Property(
        name="message.timestamp.before.max.ms",
        kind=Kind.MS,
        default=str(_INT64_MAX),
        minimum=0,
        doc="Maximum age of a record's time by the clock (CreateTime); an older one is refused.",
    ),
    Property(
        name="message.timestamp.after.max.ms",
        kind=Kind.MS,
        default="1h",
        minimum=0,
        doc="Maximum of a record's time ahead of the clock (CreateTime); a later one is refused, as it would "
        "prevent the expiry of its segment until then. Raise it for a topic with imported future times "
        "(forecasts, plans, clocks that were wrong).",
    ),
    Property(
        name="compression.type",
        kind=Kind.ENUM,
        default="producer",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        doc="The codec of batches encoded here; 'producer' keeps arriving batches and does not compress.",
    ),
    Property(
        name="compression.gzip.level", kind=Kind.INT, default="-1", minimum=-1, maximum=9, doc="-1 is gzip's default."
    ),
    Property(
        name="compression.lz4.level",
        kind=Kind.INT,
        default="9",
        minimum=1,
        maximum=17,
        doc="Higher is smaller, slower.",
    ),
    Property(
        name="compression.zstd.level",
        kind=Kind.INT,
        default="3",
        minimum=-131072,
        maximum=22,
        doc="Higher is smaller and slower.",
    ),
    Property(
        name="flush.messages",
        kind=Kind.INT,
        default=str(_INT64_MAX),
        minimum=1,
        doc="fsync after this many appended records.",
    ),
    Property(
        name="flush.ms",
        kind=Kind.MS,
        default=str(_INT64_MAX),
        minimum=0,
        doc="fsync when the oldest unsynced record is this old.",
    ),
    Property(
        name="producer.id.expiration.ms",
        kind=Kind.MS,
        default="86400000",
        minimum=1,
        doc="A producer is forgotten this long after its last batch, unless its transaction is open.",
    ),
    Property(
        name="min.cleanable.dirty.ratio",
        kind=Kind.FLOAT,
        default="0.5",
        minimum=0,
        maximum=1,
        doc="A compacted log is cleaned when a larger share of it than this is dirty.",
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
        doc="A compacted log with a record that waited longer than this is cleaned however clean it is; its active "
        "segment is closed at this age even if segment.ms is longer.",
    ),
    Property(
        name="delete.retention.ms",
        kind=Kind.MS,
        default="1d",
        minimum=0,
        doc="How long tombstones and transaction markers stay in a compacted log after it was cleaned, for readers "
        "that are behind. One with older records of its key in the bucket stays longer.",
    ),
    Property(
        name="log.cleaner.threads",
        kind=Kind.INT,
        default="1",
        minimum=1,
        maximum=1024,
        is_per_topic=False,
        doc="How many logs are cleaned at the same time.",
    ),
    Property(
        name="log.cleaner.dedupe.buffer.size",
        kind=Kind.BYTES,
        default="128MiB",
        minimum=1 << 20,
        is_per_topic=False,
        doc="Memory for the key maps of all cleaner threads together; a thread has its share, at most 2 GiB.",
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
        doc="How much all cleaner threads together may read and write in a second.",
    ),
    Property(
        name="log.cleaner.uncleanable.retry.ms",
        kind=Kind.MS,
        default="10m",
        minimum=1,
        is_per_topic=False,
        source=Source.TIERED,
        doc="How long a log that could not be cleaned is left alone before it is tried again.",
    ),
    Property(
        name="file.delete.delay.ms",
        kind=Kind.MS,
        default="1m",
        minimum=0,
        doc="How long a dropped local segment's files wait for readers before they are removed.",
    ),
    Property(
        name="num.recovery.threads.per.data.dir",
        kind=Kind.INT,
        default="2",
        minimum=1,
        maximum=1024,
        is_per_topic=False,
        doc="How many logs of one log directory are loaded, and recovered, at the same time at the start.",
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
        doc="Makes a tier read-only: no copies; expiry continues, and local files follow retention.* (KIP-950).",
    ),
    Property(
        name="remote.copy.lag.ms",
        kind=Kind.MS,
        default="0",
        minimum=-1,
        doc="How old a closed segment must be to be copied; 0 at once, -1 follows local retention (KIP-1241).",
    ),
    Property(
        name="remote.copy.lag.bytes",
        kind=Kind.BYTES,
        default="-1",
        minimum=-1,
        doc="Or copy it when this much newer log is local; 0 at once, -1 follows local retention (KIP-1241).",
    ),
    Property(
        name="remote.log.delete.grace.ms",
        kind=Kind.MS,
        default="1d",
        minimum=0,
        source=Source.TIERED,
        doc="How long an expired segment's objects stay in the store for readers that hold an older head.",
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
        doc="Higher is smaller and slower.",
    ),
    Property(
        name="remote.encryption.key.id",
        kind=Kind.TEXT,
        default="",
        source=Source.TIERED,
        doc="The key of the key ring that encrypts new objects; empty: no encryption. The ring is key_ring of "
        "[remote], TIERED_KEY_RING or TIERED_KEYS.",
    ),
    Property(
        name="remote.s3.client",
        kind=Kind.ENUM,
        default="auto",
        choices=("auto", "s3fs", "obstore"),
        is_per_topic=False,
        source=Source.TIERED,
        doc="Which client moves the bytes of S3; auto is obstore where it is installed and every option in use means "
        "something to it, else s3fs.",
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
        doc="S3's storage class for new segments; indexes and heads are small and stay where the bucket puts them.",
    ),
    Property(
        name="remote.sse",
        kind=Kind.ENUM,
        default="default",
        choices=("default", "AES256", "aws:kms"),
        is_per_topic=False,
        source=Source.TIERED,
        doc="S3's own encryption of everything written; default leaves it to the bucket.",
    ),
    Property(
        name="remote.sse.kms.key.id",
        kind=Kind.TEXT,
        default="",
        is_per_topic=False,
        source=Source.TIERED,
        doc="The KMS key of remote.sse=aws:kms; empty: the account's default key.",
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
        doc="A directory, outside the log directories, in which chunks and indexes of remote segments stay over "
        "restarts, as the bucket has them, and copies of the newest heads; empty: none.",
    ),
    Property(
        name="remote.fetch.cache.dir.max.bytes",
        kind=Kind.BYTES,
        default="10GiB",
        minimum=0,
        is_per_topic=False,
        source=Source.TIERED,
        doc="Maximum size of that directory; an eighth of it is for copies of manifests and pages.",
    ),
    Property(
        name="remote.log.manager.copy.max.bytes.per.second",
        kind=Kind.BYTES,
        default=str(_INT64_MAX),
        minimum=1,
        is_per_topic=False,
        doc="How much is written to the store in a second, over all copies.",
    ),
    Property(
        name="remote.log.manager.fetch.max.bytes.per.second",
        kind=Kind.BYTES,
        default=str(_INT64_MAX),
        minimum=1,
        is_per_topic=False,
        doc="How much is read from the store in a second, over all readers.",
    ),
    Property(
        name="remote.recompaction.min.reduction.ratio",
        kind=Kind.FLOAT,
        default="0.5",
        minimum=0,
        maximum=1,
        source=Source.TIERED,
        doc="A later cleaning of the disk replaces an uploaded segment when it is smaller by this share; 1 never.",
    ),
    Property(
        name="remote.recompaction.min.saved.bytes",
        kind=Kind.BYTES,
        default="1MiB",
        minimum=0,
        source=Source.TIERED,
        doc="And smaller by this much: less does not pay for the requests.",
    ),
    Property(
        name="append.batch.bytes",
        kind=Kind.BYTES,
        default="256KiB",
        minimum=1,
        maximum=_INT32_MAX,
        source=Source.TIERED,
        doc="About how many bytes of records go into one batch when many are appended at once.",
    ),
    Property(
        name="compaction.view.threshold",
        kind=Kind.BYTES,
        default="0",
        minimum=0,
        source=Source.TIERED,
        doc="Builds the compacted view of a topic automatically: whenever more than this is above the view's "
        "horizon in the bucket, or on the disk of a topic without a remote tier (Pulsar's compaction "
        "threshold), and before retention expires records that the view does not contain yet. 0 builds "
        "views by hand only.",
    ),
    Property(
        name="compaction.view.retain.null.key",
        kind=Kind.BOOL,
        default="false",
        source=Source.TIERED,
        doc="Whether a compacted view keeps records without a key (Pulsar's topicCompactionRetainNullKey).",
    ),
    Property(
        name="compaction.view.empty.value.deletes",
        kind=Kind.BOOL,
        default="false",
        source=Source.TIERED,
        doc="Whether a record with an empty value deletes its key from a compacted view, as in Pulsar. The log is not "
        "changed; a null value always deletes.",
    ),
    Property(
        name="compaction.records.without.key",
        kind=Kind.ENUM,
        default="refuse",
        choices=("refuse", "drop"),
        source=Source.TIERED,
        doc="Treatment of records without key in a compacted topic: refused at the append as Kafka does, or "
        "accepted and removed by the cleaner, which counts them in either case.",
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
        doc="Nor does one with a smaller share of its file system free; 0.05 is five in a hundred.",
    ),
    Property(
        name="remote.log.manager.task.interval.ms",
        kind=Kind.MS,
        default="30s",
        minimum=1,
        is_per_topic=False,
        doc="How often 'tiered run' looks for work.",
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
