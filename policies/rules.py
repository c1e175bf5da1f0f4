"""The resolved settings of one partition's topic. None always means *unlimited*."""

from __future__ import annotations

from dataclasses import dataclass

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyWindow:
    """A part of each day in UTC, ``[start_ms, end_ms)``, in ms after midnight; it may pass midnight."""

    start_ms: int
    end_ms: int

    @property
    def gap_ms(self) -> int:
        return (self.start_ms - self.end_ms) % DAY_MS

    def next_open_ms(self, at_ms: int) -> int:
        """Return the first ms at or after `at_ms` that is in the window."""
        wait_ms = (self.start_ms - at_ms) % DAY_MS
        return at_ms + wait_ms if 0 < wait_ms <= self.gap_ms else at_ms

    def __str__(self) -> str:
        return "-".join(f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}" for ms in (self.start_ms, self.end_ms))


ALL_DAY = DailyWindow(start_ms=0, end_ms=DAY_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRules:
    """Times in ms, sizes in bytes, None = unlimited. Defaults are Kafka's, if Kafka has the setting."""

    cleanup_delete: bool = True
    cleanup_compact: bool = False
    retention_ms: int | None = 7 * DAY_MS  # this and the next apply only with `cleanup_delete`: read `log_limits`
    retention_bytes: int | None = None
    local_retention_ms: int | None = 7 * DAY_MS
    local_retention_bytes: int | None = None
    segment_ms: int = 7 * DAY_MS
    copy_disabled: bool = False
    gives_up_remote: bool = False  # the remote tier was disabled, and its data is to be deleted (KIP-950)
    copy_lag_ms: int | None = 0  # KIP-1241: zero in it or the next copies at once, None in both never copies
    copy_lag_bytes: int | None = None
    copy_window: DailyWindow = ALL_DAY  # uploads begin in it only
    delete_grace_ms: int = DAY_MS
    file_delete_delay_ms: int = 60_000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int | None = None
    delete_retention_ms: int = DAY_MS
    recompaction_min_reduction: float = 0.5  # share (0..1) of an entry's bytes, 1 = never
    recompaction_min_saved_bytes: int = 1 << 20
    view_threshold_bytes: int | None = None  # None: compacted views are built by hand only
    view_retain_null_key: bool = False
    view_empty_value_deletes: bool = False
    view_buffer_bytes: int = 128 << 20

    @property
    def log_limits(self) -> Limits:
        """The retention of the whole log, both tiers together; unlimited without the delete policy."""
        return Limits(self.retention_ms, self.retention_bytes) if self.cleanup_delete else Limits(None, None)

    @property
    def local_limits(self) -> Limits:
        """The local retention while segments are copied, for any cleanup policy."""
        return Limits(self.local_retention_ms, self.local_retention_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause of uploads. `since_ms` is None if unknown. `is_of_all`: the pause applies to all topics."""

    since_ms: int | None
    reason: str = ""
    is_of_all: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    ms: int | None
    bytes: int | None


def deletion_due_ms(unlinked_ms: int, rules: PartitionRules) -> int:
    """The first ms at which an object unlinked at `unlinked_ms` may be deleted."""
    return unlinked_ms + rules.delete_grace_ms


def local_expiry_ms(newest_ms: int, limit_ms: int) -> int:
    """The first ms at which a local segment is older than a limit (strict, as in Kafka)."""
    return newest_ms + limit_ms + 1


def remote_expiry_ms(newest_ms: int, limit_ms: int) -> int:
    """The first ms at which a remote segment reaches a limit (not strict, as in Kafka)."""
    return newest_ms + limit_ms
