"""Deferrals as rows and as text lines, shared by plan, status and web pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tiered.config.units import counted, format_bytes, format_ms
from tiered.node.problem_groups import group_line

if TYPE_CHECKING:
    from local.names import TopicPartition
    from policies.deferrals import Code, Deferral

_NOT_YET = {"copy": "not copied yet", "clean": "not cleaned yet", "drop": "not dropped yet"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferralCause:
    """Deferrals of one action for one reason, over partitions. `until_ms` is the earliest known end."""

    action: str
    code: Code
    why: str
    partitions: tuple[str, ...]
    segments: int
    size_bytes: int
    until_ms: int | None

    @property
    def words(self) -> str:
        """Words such as ``not copied yet``."""
        return _NOT_YET[self.action]


class DeferredSegment(msgspec.Struct, forbid_unknown_fields=True):
    """A segment that is not copied, cleaned or dropped yet. `code` is stable; `until_ms` null: no time is known."""

    action: str
    code: str
    topic: str
    partition: int
    base_offset: int
    next_offset: int
    size_bytes: int
    why: str
    until_ms: int | None


def deferral_rows(deferrals: Mapping[TopicPartition, Sequence[Deferral]]) -> list[DeferredSegment]:
    """Return a row for each deferred segment, in the order of partitions."""
    return [
        DeferredSegment(
            action=each.action.value,
            code=each.code.value,
            topic=name.topic,
            partition=name.partition,
            base_offset=each.base_offset,
            next_offset=each.next_offset,
            size_bytes=each.size_bytes,
            why=each.why,
            until_ms=each.until_ms,
        )
        for name, found in sorted(deferrals.items())
        for each in found
    ]


def causes(
    deferrals: Mapping[TopicPartition, Sequence[Deferral]], *, without: Iterable[Code] = ()
) -> list[DeferralCause]:
    """Group deferrals by action and reason: 200 partitions with one reason are one cause."""
    left_out = frozenset(without)
    found: dict[tuple[str, Code, str], list[tuple[str, Deferral]]] = {}
    for name, some in sorted(deferrals.items()):
        for each in some:
            if each.code not in left_out:
                found.setdefault((each.action.value, each.code, each.why), []).append((str(name), each))
    return [
        DeferralCause(
            action=action,
            code=code,
            why=why,
            partitions=tuple(dict.fromkeys(name for name, _ in some)),
            segments=len(some),
            size_bytes=sum(each.size_bytes for _, each in some),
            until_ms=min((each.until_ms for _, each in some if each.until_ms is not None), default=None),
        )
        for (action, code, why), some in found.items()
    ]


def deferral_lines(deferrals: Mapping[TopicPartition, Sequence[Deferral]], now_ms: int) -> list[str]:
    """Format a line for each reason; pauses and problems have their own lines."""
    from policies.deferrals import Code

    return [cause_line(each, now_ms) for each in causes(deferrals, without=(Code.PAUSED, Code.REMOTE_UNKNOWN))]


def cause_line(cause: DeferralCause, now_ms: int) -> str:
    """Format ``orders/0: 3 segments (3.00 MiB) not copied yet: a transaction is open from offset 7``."""
    what = f"{counted(cause.segments, 'segment')} ({format_bytes(cause.size_bytes)}) {cause.words}: {cause.why}"
    return group_line(cause.partitions, what + (f"; {ends(cause, now_ms)}" if cause.until_ms is not None else ""))


def ends(cause: DeferralCause, now_ms: int) -> str:
    """Return when the first deferral ends by itself; empty if unknown."""
    if cause.until_ms is None:
        return ""
    left_ms = max(0, cause.until_ms - now_ms)
    return f"ends in {format_ms(left_ms if left_ms < 1000 else left_ms // 1000 * 1000)}"
