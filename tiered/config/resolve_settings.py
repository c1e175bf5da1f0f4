"""Convert a topic's effective settings (text) to typed settings, checked against each other.

Source of the cross checks: kafka `LogConfig.validateTopicLogConfigValues`, KIP-950, KIP-1241. As in Kafka, broker
defaults overlaid with the topic's values are checked, and settings of the remote tier only where it is on:
``local.retention.*`` has no effect elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from local.errors import InvalidRequest
from policies.rules import PartitionRules
from tiered.config.properties import DEFAULTS, TABLE, parse

if TYPE_CHECKING:
    from local.settings import LogSettings
    from remote.segments.encryption import KeyRing
    from remote.segments.object_encoding import ObjectEncoding

KEY_ID, STORAGE_CLASS = "remote.encryption.key.id", "remote.storage.class"
UNLIMITED, FOLLOW = -1, -2
_INT64_MAX = 2**63 - 1


def resolve_rules(settings: Mapping[str, str]) -> PartitionRules:
    """The policies' rules; missing settings have their defaults.

    A setting whose row has `rule` becomes that field unchanged; the others are resolved here.
    -1 becomes None, -2 the value of the setting that it follows. Without the delete policy that is *unlimited*: then
    `retention.*` does not apply, and must not apply to the disk either. Raises InvalidRequest for a value or a
    combination that Kafka refuses.
    """
    check_combination(settings)
    policy = _set(settings, "cleanup.policy")
    retention = {unit: _limit(settings, f"retention.{unit}") for unit in ("ms", "bytes")}
    effective = retention if "delete" in policy else {"ms": None, "bytes": None}
    local = {unit: _follow(settings, f"local.retention.{unit}", FOLLOW, effective[unit]) for unit in ("ms", "bytes")}
    lag = {unit: _follow(settings, f"remote.copy.lag.{unit}", UNLIMITED, local[unit]) for unit in ("ms", "bytes")}
    most_ms = _int(settings, "max.compaction.lag.ms") if "compact" in policy else _INT64_MAX
    unchanged: dict[str, Any] = {row.rule: _value(settings, row.name) for row in TABLE if row.rule}
    return PartitionRules(
        cleanup_delete="delete" in policy,
        cleanup_compact="compact" in policy,
        retention_ms=retention["ms"],
        retention_bytes=retention["bytes"],
        local_retention_ms=local["ms"],
        local_retention_bytes=local["bytes"],
        segment_ms=min(_int(settings, "segment.ms"), most_ms),
        copy_lag_ms=lag["ms"],
        copy_lag_bytes=lag["bytes"],
        max_compaction_lag_ms=_unless_max(most_ms),
        view_threshold_bytes=_int(settings, "compaction.view.threshold") or None,
        **unchanged,
    )


def log_settings(settings: Mapping[str, str]) -> LogSettings:
    """The local log's settings; missing ones have their defaults. Raises InvalidRequest."""
    from local.format.compression import Codec
    from local.format.record import TimestampType
    from local.settings import LogSettings

    codec = cast(str, _value(settings, "compression.type"))
    level = _int(settings, f"compression.{codec}.level") if codec in ("gzip", "lz4", "zstd") else None
    return LogSettings(
        segment_bytes=_int(settings, "segment.bytes"),
        segment_ms=_int(settings, "segment.ms"),
        index_interval_bytes=_int(settings, "index.interval.bytes"),
        segment_index_bytes=_int(settings, "segment.index.bytes"),
        max_message_bytes=_int(settings, "max.message.bytes"),
        batch_bytes=_int(settings, "append.batch.bytes"),
        compression=Codec.NONE if codec in ("producer", "uncompressed") else Codec[codec.upper()],
        compression_level=None if codec == "gzip" and level == -1 else level,
        timestamp_type=TimestampType.LOG_APPEND_TIME
        if _value(settings, "message.timestamp.type") == "LogAppendTime"
        else TimestampType.CREATE_TIME,
        timestamp_before_max_ms=_unless_max(_int(settings, "message.timestamp.before.max.ms")),
        timestamp_after_max_ms=_unless_max(_int(settings, "message.timestamp.after.max.ms")),
        segment_jitter_ms=_int(settings, "segment.jitter.ms"),
        max_compaction_lag_ms=_unless_max(_int(settings, "max.compaction.lag.ms")),
        is_compacted="compact" in _set(settings, "cleanup.policy"),
        drops_keyless=_value(settings, "compaction.records.without.key") == "drop",
        flush_messages=_unless_max(_int(settings, "flush.messages")),
        flush_ms=_unless_max(_int(settings, "flush.ms")),
        producer_id_expiration_ms=_int(settings, "producer.id.expiration.ms"),
    )


def object_encoding(settings: Mapping[str, str], keys: KeyRing) -> ObjectEncoding:
    """The object encoding of a topic's new objects. Raises InvalidRequest for a key that `keys` lacks."""
    from remote.segments.chunk_table import RAW, ZSTD
    from remote.segments.object_encoding import ObjectEncoding

    key_id = cast(str, _value(settings, KEY_ID)) or None
    if key_id is not None and key_id not in keys:
        wrong = "invalid object encoding, the key is not in the key ring"
        raise InvalidRequest(wrong, **{KEY_ID: key_id, "key_ring": keys})
    storage_class = cast(str, _value(settings, STORAGE_CLASS))
    return ObjectEncoding(
        codec=ZSTD if _value(settings, "remote.compression") == "zstd" else RAW,
        level=_int(settings, "remote.compression.zstd.level"),
        key_id=key_id,
        keys=keys,
        storage_class=None if storage_class == "default" else storage_class,
    )


def check_combination(settings: Mapping[str, str], *, may_tier: bool = False) -> None:
    """Check that no two settings contradict each other. Raises InvalidRequest, naming both keys.

    `may_tier`: these are defaults of future tiered topics, whatever ``remote.storage.enable`` is here.
    """
    if _value(settings, "remote.sse.kms.key.id") and _value(settings, "remote.sse") != "aws:kms":
        _refuse("remote.sse.kms.key.id", "given", "remote.sse", _value(settings, "remote.sse"), "only aws:kms has keys")
    least, most = _int(settings, "min.compaction.lag.ms"), _int(settings, "max.compaction.lag.ms")
    if least > most:
        _refuse("min.compaction.lag.ms", least, "max.compaction.lag.ms", most, "the minimum is larger than the maximum")
    if may_tier or _value(settings, "remote.storage.enable"):
        for unit in ("ms", "bytes"):
            _check_tier(settings, unit)


def _check_tier(settings: Mapping[str, str], unit: str) -> None:
    whole, local = _int(settings, f"retention.{unit}"), _int(settings, f"local.retention.{unit}")
    if whole != UNLIMITED and local != FOLLOW and (local == UNLIMITED or local > whole):
        _refuse(f"local.retention.{unit}", local, f"retention.{unit}", whole, "the disk would retain more than the log")
    if _value(settings, "remote.log.copy.disable") and local not in (FOLLOW, whole):
        _refuse(f"local.retention.{unit}", local, "remote.log.copy.disable", "true", "it must follow retention.*")
    lag, retained = _int(settings, f"remote.copy.lag.{unit}"), whole if local == FOLLOW else local
    if lag > 0 and retained != UNLIMITED and lag > retained:
        key = f"local.retention.{unit}"
        _refuse(f"remote.copy.lag.{unit}", lag, key, retained, "segments would be dropped before they are copied")


def _refuse(key: str, value: object, other: str, other_value: object, why: str) -> None:
    raise InvalidRequest(f"contradicting settings, {why}", **{key: value, other: other_value})


def _value(settings: Mapping[str, str], name: str) -> object:
    return parse(name, settings.get(name, DEFAULTS[name]))


def _int(settings: Mapping[str, str], name: str) -> int:
    return cast(int, _value(settings, name))


def _set(settings: Mapping[str, str], name: str) -> frozenset[str]:
    return cast(frozenset[str], _value(settings, name))


def _limit(settings: Mapping[str, str], name: str) -> int | None:
    value = _int(settings, name)
    return None if value == UNLIMITED else value


def _follow(settings: Mapping[str, str], name: str, follows: int, other: int | None) -> int | None:
    """The limit; `other` if the value is `follows`."""
    return other if _int(settings, name) == follows else _limit(settings, name)


def _unless_max(value: int) -> int | None:
    return None if value == _INT64_MAX else value
