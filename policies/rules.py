"""What one partition's topic asks for, already resolved: no -1, no -2, no inheritance left to think about.

None always means *unlimited*. The words behind each field (`retention.ms`, `local.retention.ms`, ...) and the resolving
live in `tiered.config.properties` and `tiered.config.config`; here are values only.
"""

from __future__ import annotations

from dataclasses import dataclass

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRules:
    """Times in ms, sizes in bytes, None = unlimited. Defaults are Kafka's, `delete_grace_ms` is ours.

    `copy_lag_ms` and `copy_lag_bytes` are KIP-1241's: zero in either copies at once, and with None in both nothing is
    ever copied. `recompaction_min_reduction` is a share (0..1) of a row's bytes, 1 = never.
    `retention_*` binds only where `cleanup_delete` is set: read it through `log_limits`.
    `gives_up_remote`: the tier was switched off, and what it holds is to be deleted (KIP-950).
    `view_threshold_bytes` None builds compacted views by hand only.
    """

    cleanup_delete: bool = True
    cleanup_compact: bool = False
    retention_ms: int | None = 7 * DAY_MS
    retention_bytes: int | None = None
    local_retention_ms: int | None = 7 * DAY_MS
    local_retention_bytes: int | None = None
    segment_ms: int = 7 * DAY_MS
    copy_disabled: bool = False
    gives_up_remote: bool = False
    copy_lag_ms: int | None = 0
    copy_lag_bytes: int | None = None
    delete_grace_ms: int = DAY_MS
    file_delete_delay_ms: int = 60_000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int | None = None
    delete_retention_ms: int = DAY_MS
    recompaction_min_reduction: float = 0.5
    recompaction_min_saved_bytes: int = 1 << 20
    view_threshold_bytes: int | None = None
    view_retain_null_key: bool = False
    view_empty_value_deletes: bool = False
    view_buffer_bytes: int = 128 << 20

    @property
    def log_limits(self) -> Limits:
        """How much of the whole log, both tiers together, is kept; without the delete policy everything is."""
        return Limits(self.retention_ms, self.retention_bytes) if self.cleanup_delete else Limits(None, None)

    @property
    def local_limits(self) -> Limits:
        """How much the disk keeps of a topic whose segments are being copied, whatever its cleanup policy."""
        return Limits(self.local_retention_ms, self.local_retention_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Uploads that somebody paused. `since_ms` None: not known; `is_of_all`: not of this topic alone."""

    since_ms: int | None
    reason: str = ""
    is_of_all: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """A limit by age in ms and one by size in bytes; None = unlimited."""

    ms: int | None
    bytes: int | None


def deletion_due_ms(unlinked_ms: int, rules: PartitionRules) -> int:
    """The first ms at which an object may be deleted that no manifest has named since `unlinked_ms`."""
    return unlinked_ms + rules.delete_grace_ms
