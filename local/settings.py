"""The topic settings of one log: Kafka's names with underscores, Kafka's defaults, parsed."""

from __future__ import annotations

from dataclasses import dataclass

from local.format.compression import Codec
from local.format.record import TimestampType

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Sizes in bytes, times in ms. None means no limit. Source of names and defaults: kafka `LogConfig`."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20
    max_message_bytes: int = 1_048_588
    append_acks: str = "local"  # not Kafka's: the tier that acknowledges a Kafka producer with acks=all
    batch_bytes: int = 256 << 10  # not Kafka's: the approximate size of the batches of one append
    compression: Codec = Codec.NONE  # of batches that this log encodes
    recompresses: bool = False  # ready-made batches get `compression` too: ``compression.type`` is not ``producer``
    compression_level: int | None = None
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int | None = None
    timestamp_after_max_ms: int | None = None
    is_compacted: bool = False
    drops_keyless: bool = False  # the cleaner of a compacted log removes records without a key
    max_compaction_lag_ms: int | None = None
    flush_messages: int | None = None
    flush_ms: int | None = None
    producer_id_expiration_ms: int = DAY_MS

    @property
    def roll_ms(self) -> int:
        """The age at which a segment rolls. A compacted log rolls no later than its maximum compaction lag."""
        lag = self.max_compaction_lag_ms if self.is_compacted else None
        return self.segment_ms if lag is None else min(self.segment_ms, lag)
