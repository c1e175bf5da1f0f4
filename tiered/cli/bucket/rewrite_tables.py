"""Plans and results of ``tiered rewrite``, as printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tiered.cli.render import PartitionRow, PricedWork, Work, number
from tiered.config.units import format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from tiered.jobs.bucket_copying import CopyOutcome, CopyPlan
    from tiered.jobs.rewriting import RewritePlan


class PlannedCopy(PartitionRow):
    """Segments to read and to write, in requests and dollars."""

    segments: Annotated[int, number("SEGMENTS", format_count)]
    groups: Annotated[int, number("NEW SEGMENTS", format_count)]
    read_bytes: Annotated[int, number("BYTES READ", format_bytes)]
    write_bytes: Annotated[int, number("BYTES WRITTEN", format_bytes)]
    gets: Annotated[int, number("GET", format_count)]
    puts: Annotated[int, number("PUT", format_count)]
    dollars: Annotated[float, number("$", format_dollars)]


class RewritePlanned(PricedWork):
    """``tiered rewrite merge|recode|copy --dry-run``."""

    partitions: list[PlannedCopy]


class RewrittenPartition(PartitionRow):
    """Segments and bytes of the committed groups, before and after.

    `given_up` groups were replaced by another writer, `expired` groups are no longer in the bucket. Without
    `is_complete` some groups are still due.
    """

    rows_before: Annotated[int, number("SEGMENTS", format_count)]
    rows_after: Annotated[int, number("SEGMENTS NOW", format_count)]
    stored_before: Annotated[int, number("BYTES", format_bytes)]
    stored_after: Annotated[int, number("BYTES NOW", format_bytes)]
    unchanged: Annotated[int, number("UNCHANGED", format_count)]
    given_up: Annotated[int, number("NOT REWRITTEN", format_count)]
    expired: int
    is_complete: bool
    groups: int


class Rewritten(Work):
    """``tiered rewrite merge|recode``."""

    partitions: list[RewrittenPartition]


class CopiedPartition(PartitionRow):
    """`behind` segments were added to the source during the copy."""

    segments: Annotated[int, number("COPIED", format_count)]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]
    behind: Annotated[int, number("BEHIND", format_count)]
    differences: Annotated[int, number("DIFFERENCES", format_count)]
    is_complete: bool


class Copied(Work):
    """``tiered rewrite copy``."""

    partitions: list[CopiedPartition]


def to_copy(plan: CopyPlan) -> PlannedCopy:
    count = len(plan.entries)
    return PlannedCopy.of(plan.name, plan.cost, segments=count, groups=count)


def to_rewrite(plan: RewritePlan) -> PlannedCopy:
    segments = sum(len(group.entries) for group in plan.groups)
    return PlannedCopy.of(plan.name, plan.cost, segments=segments, groups=len(plan.groups))


def copied(each: CopyOutcome) -> CopiedPartition:
    return CopiedPartition.of(each.name, each, segments=each.entries, differences=len(each.differences))
