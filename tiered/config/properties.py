"""The one table of properties of topics and of the manager, with their look-up and their parser.

Names and defaults are Kafka's where Kafka has the property. Values are text until this module parses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from local.errors import ErrorCode, InvalidRequest
from policies.rules import DailyWindow
from tiered.config.units import parse_bytes, parse_ms

Value = int | float | bool | str | frozenset[str] | DailyWindow


class Kind(Enum):
    """The type of a value; the text describes its form."""

    MS = "a duration such as 7d, 90s or a number of ms"
    BYTES = "a size such as 512MiB or a number of bytes"
    INT = "a whole number"
    FLOAT = "a number"
    BOOL = "true or false"
    ENUM = "one of"
    SET = "a comma-separated list of"
    WINDOW = "a daily time range in UTC such as 22:00-06:00"
    TEXT = "a name, or nothing"


class Source(Enum):
    """The project that defined the property, and documents its meaning."""

    KAFKA = "kafka"
    TIERED = "tiered"


@dataclass(frozen=True, slots=True)
class Property:
    """One property. `default` is text, as in a file; `minimum` and `maximum` are inclusive.

    | field | meaning |
    |---|---|
    | `rule` | the field of `PartitionRules` that has this value unchanged |
    | `needs_tier` | has no effect on a topic without a remote tier: lint reports it there |
    | `adopt_refusal` | why `tiered adopt` refuses another value than the default |
    | `broker_names` | names in Kafka's ``server.properties`` (ServerTopicConfigSynonyms); refused, since units differ |
    """

    name: str
    kind: Kind
    default: str
    doc: str = ""
    source: Source = Source.KAFKA
    is_per_topic: bool = True
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    broker_names: tuple[str, ...] = ()
    rule: str = ""
    needs_tier: bool = False
    adopt_refusal: str = ""

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


_TIME_RANGE = re.compile(r"([0-9]{2}):([0-5][0-9])-([0-9]{2}):([0-5][0-9])")
_DAY_MINUTES = 24 * 60
_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1
_TIERED = Source.TIERED
_MS, _BYTES, _INT, _FLOAT, _BOOL, _ENUM, _SET, _WINDOW, _TEXT = Kind

DELETE_ON_DISABLE = "remote.log.delete.on.disable"
IMMUTABLE = "remote.immutable"
APPEND_FREE_MIN = "log.dir.append.free.bytes.min"
RELIEF_FREE_MIN = "log.dir.relief.free.bytes.min"
JUMP_HOLD = "clock.jump.hold.ms"
_COPIES_AT_ONCE = "a sidecar copies each closed segment at once"

# fmt: off
TABLE = (
    Property("cleanup.policy", _SET, "delete", choices=("delete", "compact"), broker_names=("log.cleanup.policy",),
        doc="Treatment of old records: delete by age or size, compact to the newest record of each key, both, or "
            "neither."),
    Property("retention.ms", _MS, "7d", minimum=-1,
        broker_names=("log.retention.hours", "log.retention.minutes", "log.retention.ms"),
        doc="Time for which records are retained in both tiers; -1 for ever."),
    Property("retention.bytes", _BYTES, "-1", minimum=-1, broker_names=("log.retention.bytes",),
        doc="Bytes of a partition that are retained in both tiers; -1 without limit."),
    Property("local.retention.ms", _MS, "-2", minimum=-2, needs_tier=True, broker_names=("log.local.retention.ms",),
        doc="Time for which copied segments of a tiered topic stay on the disk; -2 follows retention.ms, -1 for ever."),
    Property("local.retention.bytes", _BYTES, "-2", minimum=-2, needs_tier=True,
        broker_names=("log.local.retention.bytes",),
        doc="Bytes of a tiered partition that stay on the disk; -2 follows retention.bytes, -1 without limit."),
    Property("segment.bytes", _BYTES, "1GiB", minimum=1024, maximum=_INT32_MAX, broker_names=("log.segment.bytes",),
        doc="Size at which the active segment rolls."),
    Property("segment.ms", _MS, "7d", minimum=1, broker_names=("log.roll.hours", "log.roll.ms"),
        doc="Age at which the active segment rolls."),
    Property("segment.jitter.ms", _MS, "0", minimum=0, broker_names=("log.roll.jitter.hours", "log.roll.jitter.ms"),
        doc="Random reduction of segment.ms, up to this time, so that logs do not all roll at once."),
    Property("segment.index.bytes", _BYTES, "10MiB", minimum=24, maximum=_INT32_MAX,
        broker_names=("log.index.size.max.bytes",), doc="Index size at which the active segment rolls."),
    Property("index.interval.bytes", _BYTES, "4096", minimum=0, maximum=_INT32_MAX,
        broker_names=("log.index.interval.bytes",), doc="Approximate bytes of log between two index entries."),
    Property("max.message.bytes", _BYTES, "1048588", minimum=0, maximum=_INT32_MAX,
        broker_names=("message.max.bytes",), doc="Size of the largest batch that an append accepts."),
    Property("message.timestamp.type", _ENUM, "CreateTime", choices=("CreateTime", "LogAppendTime"),
        broker_names=("log.message.timestamp.type",),
        doc="Clock that stamps records: the producer's (CreateTime) or the log's (LogAppendTime)."),
    Property("message.timestamp.before.max.ms", _MS, str(_INT64_MAX), minimum=0,
        broker_names=("log.message.timestamp.before.max.ms",),
        doc="Maximum age of the time of a record (CreateTime); an older record is refused."),
    Property("message.timestamp.after.max.ms", _MS, "1h", minimum=0,
        broker_names=("log.message.timestamp.after.max.ms",),
        doc="Maximum time of a record ahead of the clock (CreateTime). A later record is refused, because it would "
            "delay the expiry of its segment until then. Raise it for a topic with imported future times (forecasts, "
            "plans, wrong clocks)."),
    Property("compression.type", _ENUM, "producer",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        doc="Codec of batches that are encoded here; 'producer' stores arriving batches unchanged and does not "
            "compress."),
    Property("compression.gzip.level", _INT, "-1", minimum=-1, maximum=9,
        doc="Compression level of gzip; -1 is the default of gzip."),
    Property("compression.lz4.level", _INT, "9", minimum=1, maximum=17,
        doc="Compression level; a higher level is smaller and slower."),
    Property("compression.zstd.level", _INT, "3", minimum=-131072, maximum=22,
        doc="Compression level; a higher level is smaller and slower."),
    Property("flush.messages", _INT, str(_INT64_MAX), minimum=1, broker_names=("log.flush.interval.messages",),
        doc="fsync after this number of appended records."),
    Property("flush.ms", _MS, str(_INT64_MAX), minimum=0,
        broker_names=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        doc="fsync when the oldest unsynced record has this age."),
    Property("producer.id.expiration.ms", _MS, "86400000", minimum=1,
        doc="Time after its last batch for which a producer is remembered, longer while its transaction is open."),
    Property("min.cleanable.dirty.ratio", _FLOAT, "0.5", minimum=0, maximum=1, rule="min_cleanable_dirty_ratio",
        broker_names=("log.cleaner.min.cleanable.ratio",),
        doc="A compacted log is cleaned when its dirty share is larger than this."),
    Property("min.compaction.lag.ms", _MS, "0", minimum=0, rule="min_compaction_lag_ms",
        broker_names=("log.cleaner.min.compaction.lag.ms",),
        doc="Records younger than this are not compacted."),
    Property("max.compaction.lag.ms", _MS, str(_INT64_MAX), minimum=1,
        broker_names=("log.cleaner.max.compaction.lag.ms",),
        doc="A compacted log with a dirty record older than this is cleaned whatever its dirty share is; its active "
            "segment rolls at this age even if segment.ms is longer."),
    Property("delete.retention.ms", _MS, "1d", minimum=0, rule="delete_retention_ms",
        broker_names=("log.cleaner.delete.retention.ms",),
        doc="Time for which tombstones and transaction markers stay in a compacted log after a cleaner pass, for slow "
            "readers. A tombstone with older records of its key in the bucket stays longer."),
    Property("log.cleaner.threads", _INT, "1", minimum=1, maximum=1024, is_per_topic=False,
        doc="Number of logs that are cleaned at the same time."),
    Property("log.cleaner.dedupe.buffer.size", _BYTES, "128MiB", minimum=1048576, is_per_topic=False,
        rule="view_buffer_bytes",
        doc="Memory for the offset maps of all cleaner threads together; each thread has an equal share, at most 2 "
            "GiB."),
    Property("log.cleaner.io.buffer.load.factor", _FLOAT, "0.9", minimum=0, maximum=1, is_per_topic=False,
        doc="Maximum fill level of an offset map; further keys are cleaned in a later pass."),
    Property("log.cleaner.io.max.bytes.per.second", _BYTES, str(_INT64_MAX), minimum=1, is_per_topic=False,
        doc="Bytes per second that all cleaner threads together may read and write."),
    Property("log.cleaner.uncleanable.retry.ms", _MS, "10m", minimum=1, source=_TIERED, is_per_topic=False,
        doc="Time after which a log that could not be cleaned is tried again."),
    Property("file.delete.delay.ms", _MS, "1m", minimum=0, rule="file_delete_delay_ms",
        broker_names=("log.segment.delete.delay.ms",),
        doc="Time for which the files of a dropped local segment wait for readers before their deletion."),
    Property("num.recovery.threads.per.data.dir", _INT, "2", minimum=1, maximum=1024, is_per_topic=False,
        doc="Number of logs of one log directory that are loaded and recovered at the same time at the start."),
    Property("remote.storage.enable", _BOOL, "false", broker_names=("remote.log.storage.system.enable",),
        doc="Whether closed segments are copied to the object store."),
    Property("remote.log.copy.disable", _BOOL, "false", rule="copy_disabled", needs_tier=True,
        adopt_refusal="exclude the topic: name the topics to adopt",
        doc="Makes the remote tier read-only: no copies; expiry continues, and local files follow retention.* "
            "(KIP-950)."),
    Property("remote.copy.lag.ms", _MS, "0", minimum=-1, needs_tier=True, adopt_refusal=_COPIES_AT_ONCE,
        doc="Age of a closed segment from which it is copied; 0 at once, -1 follows local retention (KIP-1241)."),
    Property("remote.copy.lag.bytes", _BYTES, "-1", minimum=-1, needs_tier=True, adopt_refusal=_COPIES_AT_ONCE,
        doc="Bytes of newer local log from which a segment is copied; 0 at once, -1 follows local retention "
            "(KIP-1241)."),
    Property("remote.copy.window", _WINDOW, "00:00-24:00", source=_TIERED, rule="copy_window", needs_tier=True,
        adopt_refusal=_COPIES_AT_ONCE,
        doc="Time of each day in which uploads begin: copies of closed segments, replacements and compacted views. It "
            "may pass midnight. Outside it, segments wait on the disk; a plan that was made in it is completed."),
    Property("remote.log.delete.grace.ms", _MS, "1d", minimum=0, source=_TIERED, rule="delete_grace_ms",
        doc="Time for which the objects of an expired segment stay in the store for readers of an older manifest."),
    Property("remote.compression", _ENUM, "none", choices=("none", "zstd"), source=_TIERED, needs_tier=True,
        doc="Compression of new segments in the store; segments that do not shrink are stored unchanged."),
    Property("remote.compression.zstd.level", _INT, "3", minimum=-131072, maximum=22, source=_TIERED,
        doc="Compression level; a higher level is smaller and slower."),
    Property("remote.encryption.key.id", _TEXT, "", source=_TIERED, needs_tier=True,
        doc="Id of the key in the key ring that encrypts new objects; empty: no encryption. The ring is key_ring of "
            "[remote], TIERED_KEY_RING or TIERED_KEYS."),
    Property("remote.s3.client", _ENUM, "auto", choices=("auto", "s3fs", "obstore"), source=_TIERED,
        is_per_topic=False,
        doc="S3 client. auto uses obstore if it is installed and supports all options in use, else s3fs."),
    Property("remote.storage.class", _ENUM, "default",
        choices=("default", "STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR",
                 "EXPRESS_ONEZONE", "REDUCED_REDUNDANCY"),
        source=_TIERED, is_per_topic=False,
        doc="S3 storage class for new segments. Indexes and manifests are small and use the default class of the "
            "bucket."),
    Property("remote.sse", _ENUM, "default", choices=("default", "AES256", "aws:kms"), source=_TIERED,
        is_per_topic=False, doc="S3 server-side encryption of all objects; default uses the setting of the bucket."),
    Property("remote.sse.kms.key.id", _TEXT, "", source=_TIERED, is_per_topic=False,
        doc="KMS key of remote.sse=aws:kms; empty: the default key of the account."),
    Property("remote.fetch.cache.bytes", _BYTES, "256MiB", minimum=0, source=_TIERED, is_per_topic=False,
        doc="Memory for chunks and indexes of remote segments."),
    Property("remote.fetch.cache.dir", _TEXT, "", source=_TIERED, is_per_topic=False,
        doc="Directory, outside the log directories, that caches chunks and indexes of remote segments and the newest "
            "manifests across restarts; empty: none."),
    Property("remote.fetch.cache.dir.max.bytes", _BYTES, "10GiB", minimum=0, source=_TIERED, is_per_topic=False,
        doc="Maximum size of that directory; an eighth of it is for copies of manifests and manifest pages."),
    Property("remote.log.manager.copy.max.bytes.per.second", _BYTES, str(_INT64_MAX), minimum=1, is_per_topic=False,
        doc="Bytes per second that all copies together write to the store."),
    Property("remote.log.manager.fetch.max.bytes.per.second", _BYTES, str(_INT64_MAX), minimum=1, is_per_topic=False,
        doc="Bytes per second that all readers together read from the store."),
    Property("remote.recompaction.min.reduction.ratio", _FLOAT, "0.5", minimum=0, maximum=1, source=_TIERED,
        rule="recompaction_min_reduction",
        doc="A later cleaner pass on the disk replaces an uploaded segment if that saves this share of its size; 1 "
            "never."),
    Property("remote.recompaction.min.saved.bytes", _BYTES, "1MiB", minimum=0, source=_TIERED,
        rule="recompaction_min_saved_bytes",
        doc="Bytes that such a replacement must save at least; smaller savings do not pay for the requests."),
    Property("append.batch.bytes", _BYTES, "256KiB", minimum=1, maximum=_INT32_MAX, source=_TIERED,
        doc="Approximate bytes of records in one batch when many are appended at once."),
    Property("compaction.view.threshold", _BYTES, "0", minimum=0, source=_TIERED,
        doc="Builds the compacted view of a topic automatically, when more bytes than this are above the horizon of "
            "the view, in the bucket or on the disk of a topic without a remote tier (the compaction threshold of "
            "Pulsar), and before retention expires records that the view does not include yet. 0 builds views by "
            "command only."),
    Property("compaction.view.retain.null.key", _BOOL, "false", source=_TIERED, rule="view_retain_null_key",
        doc="Whether a compacted view keeps records without a key (topicCompactionRetainNullKey of Pulsar)."),
    Property("compaction.view.empty.value.deletes", _BOOL, "false", source=_TIERED, rule="view_empty_value_deletes",
        doc="Whether a record with an empty value deletes its key from a compacted view, as in Pulsar. The log does "
            "not change; a null value always deletes."),
    Property("compaction.records.without.key", _ENUM, "refuse", choices=("refuse", "drop"), source=_TIERED,
        doc="Treatment of records without key in a compacted topic: refuse the append as Kafka does, or accept them "
            "until the cleaner removes them. Both are counted."),
    Property("log.dir.free.bytes.min", _BYTES, "256MiB", minimum=0, source=_TIERED, is_per_topic=False,
        doc="A log directory with less free space takes no new partition."),
    Property("log.dir.free.share.min", _FLOAT, "0", minimum=0, maximum=1, source=_TIERED, is_per_topic=False,
        doc="A log directory with a smaller free share of its file system takes no new partition; 0.05 is 5 percent."),
    Property("remote.log.manager.task.interval.ms", _MS, "30s", minimum=1, is_per_topic=False,
        broker_names=("log.retention.check.interval.ms",), doc="Interval of the maintenance rounds of 'tiered run'."),
    Property("remote.single.writer", _BOOL, "false", source=_TIERED, is_per_topic=False,
        doc="Allows a store without create-if-absent; true only if no other manager ever writes to it."),
    Property(DELETE_ON_DISABLE, _BOOL, "false",
        doc="Allows remote.storage.enable to change from true to false by altering the topic: the objects in the "
            "bucket are deleted and the log starts at the first local record (KIP-950)."),
    Property("remote.log.manager.copier.thread.pool.size", _INT, "10", minimum=1, maximum=1000, is_per_topic=False,
        doc="Number of partitions that a manager copies at the same time."),
    Property("remote.log.manager.expiration.thread.pool.size", _INT, "10", minimum=1, maximum=1000, is_per_topic=False,
        doc="Number of partitions that a manager acquires, expires and deletes in the remote tier at the same time. "
            "These threads are separate from the copy threads, so hanging uploads delay no deletion."),
    Property(IMMUTABLE, _BOOL, "false", source=_TIERED, is_per_topic=False,
        doc="No object in the bucket is ever overwritten or deleted (object lock): expired segments leave the "
            "manifest and the lifecycle of the bucket deletes them; 'tiered gc' lists them."),
    Property("cost.prices", _TEXT, "", source=_TIERED, is_per_topic=False,
        doc="A JSON file with prices that differ from the built-in prices, relative to tiered.toml ('tiered cost "
            "prices' prints all of them as a start). Empty: the built-in prices."),
    Property(APPEND_FREE_MIN, _BYTES, "32MiB", minimum=0, source=_TIERED, is_per_topic=False,
        doc="With less free space in a log directory, appends to its partitions are refused, so that uploads, "
            "checkpoints and a clean stop still have space."),
    Property(RELIEF_FREE_MIN, _BYTES, "128MiB", minimum=0, source=_TIERED, is_per_topic=False,
        doc="With less free space in a log directory, segments that are in the bucket are dropped before their local "
            "retention ends, the oldest first. 0 never drops them early."),
    Property(JUMP_HOLD, _MS, "1d", minimum=0, source=_TIERED, is_per_topic=False,
        doc="Time for which a running manager uses the previous time after a jump of the system clock, and reports "
            "the jump: a clock that is corrected within this time expires no record. The time ends early when the "
            "clock of the store agrees with the system clock, and does not end while they differ. 0 trusts the clock "
            "at once."),
)
# Settings of Kafka 4.1 brokers without effect here, and the replacement; by prefix for families of brokers alone.
_DIRECTORIES = "log directories are not settings of topics; use dir or dirs in [local]"
_CHECKPOINTS = "checkpoints are written when their contents change"
_FORMAT = "batches are written in format 2, and older formats are read"
_METADATA = "the manifests in the bucket are the remote log metadata; there is no metadata topic"
_NO_EFFECT = {
    "log.dir": _DIRECTORIES,
    "log.dirs": _DIRECTORIES,
    "log.dir.failure.timeout.ms": "a log directory that fails is offline at once",
    "log.initial.task.delay.ms": "the first maintenance round starts immediately",
    "log.preallocate": "segments are not preallocated",
    "log.cleaner.enable": "the cleaner always runs; use cleanup.policy, by topic",
    "log.cleaner.backoff.ms": "each maintenance round cleans; use remote.log.manager.task.interval.ms",
    "log.cleaner.io.buffer.size": "segments are memory-mapped, so the cleaner has no I/O buffer",
    "log.cleaner.hash.algorithm": "the cleaner compares keys, or their keyed digests",
    "log.flush.offset.checkpoint.interval.ms": _CHECKPOINTS,
    "log.flush.start.offset.checkpoint.interval.ms": _CHECKPOINTS,
    "log.message.format.version": _FORMAT,
    "log.message.downconversion.enable": _FORMAT,
    "log.message.timestamp.difference.max.ms":
        "Kafka replaced it; use message.timestamp.before.max.ms and message.timestamp.after.max.ms",
    "num.partitions": "each topic states its number of partitions; use tiered topic create -p",
    "auto.create.topics.enable": "topics are created explicitly; use tiered topic create",
    "delete.topic.enable": "topics can always be deleted",
    "num.io.threads": "appends and reads run in the thread of the caller",
    "background.threads": "maintenance runs in one thread, transfers have their own threads",
    "remote.log.metadata.custom.metadata.max.bytes": _METADATA,
    "remote.log.index.file.cache.total.size.bytes":
        "indexes are a part of the read cache; use remote.fetch.cache.bytes",
    "remote.fetch.max.wait.ms": "a read of the remote tier waits for the deadline of the store",
    "remote.list.offsets.request.timeout.ms": "a lookup waits for the deadline of the store",
    "fetch.max.bytes": "readers choose how much they fetch",
    # Not by prefix: misspelt names of this project's settings begin with these.
    **{f"remote.log.{name}": "transfers have a fixed number of threads per kind" for name in (
        "manager.thread.pool.size", "manager.follower.thread.pool.size", "manager.task.retry.backoff.ms",
        "manager.task.retry.backoff.max.ms", "manager.task.retry.jitter", "manager.copy.quota.window.num",
        "manager.copy.quota.window.size.seconds", "manager.fetch.quota.window.num",
        "manager.fetch.quota.window.size.seconds", "reader.threads", "reader.max.pending.tasks",
    )},
}
_FAMILIES_WITHOUT_EFFECT = (  # the first match decides
    ("the remote tier is built in; use url and options in [remote]", ("remote.log.storage.manager.", "rsm.config.")),
    (_METADATA, ("remote.log.metadata.", "rlmm.config.")),
    ("metrics are exported for Prometheus; use tiered run --metrics",
     ("metric.", "metrics.", "kafka.metrics.", "auto.include.jmx.reporter")),
    ("there is no cluster and no controller", (
        "broker.", "node.id", "process.roles", "controller.", "controlled.shutdown.", "metadata.", "zookeeper.",
        "initial.broker.", "early.start.", "server.max.", "unstable.", "reserved.broker.",
    )),
    ("there is no replication, and one process writes a directory", (
        "replica.", "num.replica.", "default.replication.", "min.insync.", "unclean.", "auto.leader.", "leader.",
        "follower.", "inter.broker.", "alter.log.dirs.", "replication.",
    )),
    ("it concerns the group and transaction coordinators of the broker", (
        "group.", "offsets.", "offset.metadata.", "transaction.", "transactional.", "share.", "producer.purgatory.",
        "fetch.purgatory.", "delete.records.purgatory.", "streams.",
    )),
    ("it concerns the security of the broker's listeners", (
        "ssl.", "sasl.", "security.", "authorizer.", "principal.", "delegation.", "password.", "super.users",
        "allow.everyone.", "connections.max.reauth.",
    )),
    ("it concerns the network requests of the broker", (
        "listener", "advertised.", "host.name", "port", "socket.", "queued.", "request.", "connection",
        "max.connection", "num.network.", "quota.", "client.", "max.request.", "max.incremental.", "telemetry.",
        "alter.config.", "create.topic.",
    )),
)
# fmt: on

PROPERTIES: dict[str, Property] = {row.name: row for row in TABLE}
ENVIRONMENT: dict[str, Property] = {row.environment_variable: row for row in TABLE}
DEFAULTS: dict[str, str] = {row.name: row.default for row in TABLE}
BROKER_NAMES: dict[str, str] = dict(sorted((broker, row.name) for row in TABLE for broker in row.broker_names))
_NOWHERE: Mapping[str, object] = {}


def find_property(name: str, where: Mapping[str, object] = _NOWHERE, *, per_topic: bool = False) -> Property:
    """Return a property. Raises InvalidRequest, with `where` and the nearest known name."""
    row = PROPERTIES.get(name)
    if row is None and name in BROKER_NAMES:
        meant = PROPERTIES[BROKER_NAMES[name]]
        facts = {**where, "did_you_mean": meant.name, "expected": repr(meant.expected)}
        raise InvalidRequest("invalid setting, it is a setting of Kafka brokers and not of topics", key=name, **facts)
    if row is None and (why := broker_only(name)) is not None:
        what = "invalid setting, it is a setting of Kafka brokers that has no effect here"
        raise InvalidRequest(what, key=name, why=repr(why), **where)
    if row is None:
        raise InvalidRequest("invalid setting, unknown key", key=name, **where, did_you_mean=nearest(name, PROPERTIES))
    if per_topic and not row.is_per_topic:
        text = "invalid setting, it belongs to the manager and not to a topic"
        raise InvalidRequest(text, key=name, **where).with_code(ErrorCode.SETTING_OF_MANAGER)
    return row


def broker_only(name: str) -> str | None:
    """The reason why a broker setting has no effect here; None for other names."""
    families = (why for why, prefixes in _FAMILIES_WITHOUT_EFFECT if name.startswith(prefixes))
    return _NO_EFFECT.get(name) or next(families, None)


def names_of_logs() -> frozenset[str]:
    """The names without effect of the family ``log.``."""
    return frozenset(name for name in _NO_EFFECT if name.startswith("log."))


def parse(name: str, text: str, where: Mapping[str, object] = _NOWHERE) -> Value:
    """The value of one setting. Raises InvalidRequest with the key, the text and the expected form."""
    row = find_property(name, where)
    value = _sound(name, text)
    if value is None:
        raise InvalidRequest("invalid setting", key=name, value=repr(text), expected=repr(row.expected), **where)
    return value


def canonical(name: str, text: str) -> str:
    """Return a valid value as it is stored, in the spelling of the table."""
    row = PROPERTIES[name]
    if row.kind is Kind.BOOL:
        return text.strip().lower()
    return str(_parse(row, text)) if row.kind is Kind.ENUM else text.strip()


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name closest to a misspelt one; None if none is close."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


@lru_cache(maxsize=4096)
def _sound(name: str, text: str) -> Value | None:
    """The value; None if malformed or out of range. Cached: hundreds of topics share a few settings."""
    value = _parse(PROPERTIES[name], text)
    return value if value is not None and _is_in_range(PROPERTIES[name], value) else None


def _parse(row: Property, text: str) -> Value | None:
    match row.kind:
        case Kind.MS:
            return parse_ms(text)
        case Kind.BYTES:
            return parse_bytes(text)
        case Kind.INT:
            return _number(int, text)
        case Kind.FLOAT:
            return _number(float, text)
        case Kind.BOOL:
            return {"true": True, "false": False}.get(text.strip().lower())
        case Kind.ENUM:
            return next((choice for choice in row.choices if choice.lower() == text.strip().lower()), None)
        case Kind.SET:
            words = frozenset(part.strip().lower() for part in text.split(",") if part.strip())
            return words if words <= set(row.choices) else None
        case Kind.WINDOW:
            return _window(text)
        case Kind.TEXT:
            return text.strip()


def _window(text: str) -> DailyWindow | None:
    found = _TIME_RANGE.fullmatch(text.strip())
    if found is None:
        return None
    start, end = (int(found[at]) * 60 + int(found[at + 1]) for at in (1, 3))
    if start >= _DAY_MINUTES or end > _DAY_MINUTES or start == end:
        return None
    return DailyWindow(start_ms=start * 60_000, end_ms=end * 60_000)


def _number(kind: type[int] | type[float], text: str) -> int | float | None:
    try:
        return kind(text)
    except ValueError:
        return None


def _is_in_range(row: Property, value: Value) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return True
    return (row.minimum is None or value >= row.minimum) and (row.maximum is None or value <= row.maximum)
