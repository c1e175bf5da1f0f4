"""Tables of plans and results of ``tiered rewrite``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tiered.cli.render import Column, Row
from tiered.config.units import format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from tiered.jobs.bucket_copying import CopyOutcome, CopyPlan
    from tiered.jobs.rewriting import RewriteOutcome, RewritePlan


def to_copy(plan: CopyPlan) -> Row:
    cost, count = plan.cost, len(plan.rows)
    figures = {"segments": count, "groups": count, "read_bytes": cost.read_bytes, "write_bytes": cost.write_bytes}
    where = {"topic": plan.name.topic, "partition": plan.name.partition}
    return {**where, **figures, "gets": cost.gets, "puts": cost.puts, "dollars": cost.dollars}


def copied(each: CopyOutcome) -> Row:
    return {
        "topic": each.name.topic,
        "partition": each.name.partition,
        "segments": each.rows,
        "size_bytes": each.size_bytes,
        "behind": each.behind,
        "differences": len(each.differences),
        "is_complete": each.is_complete,
    }


def planned_row(plan: RewritePlan) -> Row:
    cost = plan.cost
    return {
        "topic": plan.name.topic,
        "partition": plan.name.partition,
        "groups": len(plan.groups),
        "segments": sum(len(group.rows) for group in plan.groups),
        "read_bytes": cost.read_bytes,
        "write_bytes": cost.write_bytes,
        "gets": cost.gets,
        "puts": cost.puts,
        "dollars": cost.dollars,
    }


def done_row(plan: RewritePlan, outcome: RewriteOutcome) -> Row:
    where = {"topic": plan.name.topic, "partition": plan.name.partition}
    return {**where, **asdict(outcome)}


PLANNED = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("segments", "SEGMENTS", format_count, is_number=True),
    Column("groups", "BECOME", format_count, is_number=True),
    Column("read_bytes", "READ", format_bytes, is_number=True),
    Column("write_bytes", "WRITE", format_bytes, is_number=True),
    Column("gets", "GET", format_count, is_number=True),
    Column("puts", "PUT", format_count, is_number=True),
    Column("dollars", "$", format_dollars, is_number=True),
)
DONE = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("rows_before", "SEGMENTS", format_count, is_number=True),
    Column("rows_after", "NOW", format_count, is_number=True),
    Column("stored_before", "BYTES", format_bytes, is_number=True),
    Column("stored_after", "NOW", format_bytes, is_number=True),
    Column("unchanged", "AS THEY WERE", format_count, is_number=True),
    Column("given_up", "NOT DONE", format_count, is_number=True),
    Column("expired"),
    Column("is_complete"),
    Column("groups"),
)
COPIED = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("segments", "COPIED", format_count, is_number=True),
    Column("size_bytes", "BYTES", format_bytes, is_number=True),
    Column("behind", "BEHIND", format_count, is_number=True),
    Column("differences", "DIFFERENCES", format_count, is_number=True),
    Column("is_complete"),
)
