"""``tiered plan``: the policies' decisions, with reasons, bytes and money. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tiered.cli.render import Column, emit, output_option
from tiered.cli.session import Session, now_ms, settings_option
from tiered.units import format_bytes, format_dollars

if TYPE_CHECKING:
    from local.names import TopicPartition
    from policies.decisions import Decision, Plan

# In the order of a plan. The sign tells what it does to bytes: + makes, - takes away, ~ changes.
_VERBS = {
    "RollActive": ("~", "roll"),
    "CleanLog": ("~", "clean"),
    "CopySegment": ("+", "upload"),
    "ReplaceRemote": ("~", "replace"),
    "RaiseCleaned": ("~", "note clean"),
    "DropLocal": ("-", "local"),
    "BuildView": ("+", "view"),
    "AdvanceLogStart": ("~", "log start"),
    "GiveUpRemote": ("-", "give up"),
    "ExpireRemote": ("-", "expire"),
    "ExpirePage": ("-", "expire page"),
    "DeleteUnlinked": ("-", "delete"),
    "DeletePage": ("-", "delete page"),
    "CollectHeads": ("-", "collect"),
}


@click.command("plan")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--summary", is_flag=True, help="Counts and bytes by kind only.")
@settings_option("Plan as if this property were set; may be repeated.")
@output_option()
@click.pass_obj
def plan(session: Session, topics: tuple[str, ...], summary: bool, settings: dict[str, str], output: str) -> None:
    """What a round of work would do now, and why."""
    with session.manager(read_only=True, overrides=settings) as manager:
        for topic in topics:
            manager.topic(topic)
        decided = manager.plan(now_ms(), topics or None)
        problems = {name: problem for name, problem in manager.problems.items() if not topics or name.topic in topics}
        before = sum(row.size_bytes for each in manager.snapshots(now_ms(), topics or None) for row in each.committed)
    if summary:
        emit("totals", _totals(decided), _TOTAL_COLUMNS, output)
    else:
        rows = [_row(name, one) for name, decisions in decided.decisions.items() for one in decisions]
        emit("decisions", rows, _COLUMNS, output)
    session.tell_problems(problems)
    if decided.is_empty:
        session.say("nothing to do" + (" for the others" if problems else ""))
    else:
        session.say(_money(decided, before) + "\nnothing changed; next: tiered run --once")


def _row(name: TopicPartition, decision: Decision) -> dict[str, object]:
    kind = type(decision).__name__
    sign, verb = _VERBS[kind]
    return {
        "sign": sign,
        "decision": kind,
        "verb": verb,
        "topic": name.topic,
        "partition": name.partition,
        "where": str(name),
        "what": _what(decision),
        "size_bytes": decision.size_bytes,
        "reason": decision.reason,
    }


def _what(decision: Decision) -> str:
    """The half-open offsets, or whatever else the decision is about."""
    from policies.decisions import (
        AdvanceLogStart,
        BuildView,
        CleanLog,
        CollectHeads,
        DeletePage,
        DeleteUnlinked,
        GiveUpRemote,
        RollActive,
    )

    match decision:
        case RollActive():
            return f"[{decision.base_offset}, ...)"
        case CleanLog():
            return f"[{decision.first_dirty_offset}, {decision.upto_offset})"
        case BuildView():
            return f"{decision.view} [{decision.from_offset}, {decision.upto_offset})"
        case AdvanceLogStart() | GiveUpRemote():
            return f"to {decision.offset}"
        case DeleteUnlinked() | DeletePage():
            return decision.key
        case CollectHeads():
            return f"heads up to {decision.upto_sequence}"
        case _:
            return f"[{decision.base_offset}, {decision.next_offset})"


def _totals(decided: Plan) -> list[dict[str, object]]:
    totals = decided.totals()
    return [
        {
            "sign": sign,
            "verb": verb,
            "decision": kind,
            "count": totals[kind].count,
            "size_bytes": totals[kind].size_bytes,
        }
        for kind, (sign, verb) in _VERBS.items()
        if kind in totals
    ]


def _money(decided: Plan, before: int) -> str:
    """What the bucket costs a month now and then, and what the requests cost once."""
    from policies.cost import S3_STANDARD, monthly_storage, request_cost, segment_requests
    from policies.decisions import CopySegment, ReplaceRemote

    totals = decided.totals()
    up = [
        one
        for decisions in decided.decisions.values()
        for one in decisions
        if isinstance(one, CopySegment | ReplaceRemote)
    ]
    copied = sum(one.size_bytes for one in up)
    gone = totals["ExpireRemote"].size_bytes if "ExpireRemote" in totals else 0
    gone += sum(one.remote_bytes for one in up if isinstance(one, ReplaceRemote))
    puts = sum(segment_requests(one.size_bytes) for one in up)
    now, then = format_dollars(monthly_storage(before)), format_dollars(monthly_storage(before + copied - gone))
    once = format_dollars(request_cost(puts=puts))
    prices = f"{S3_STANDARD.storage_class}, {S3_STANDARD.region}, prices of {S3_STANDARD.as_of}"
    return f"now {now} USD/month, then {then}; {puts} put {once} USD ({prices})"


_COLUMNS = (
    Column("sign", "", only_table=True),
    Column("verb", "WHAT", only_table=True),
    Column("where", "PARTITION", only_table=True),
    Column("what", "RANGE"),
    Column("size_bytes", "BYTES", format_bytes, is_number=True),
    Column("reason", "WHY"),
    Column("decision"),
    Column("topic"),
    Column("partition"),
)
_TOTAL_COLUMNS = (
    Column("sign", "", only_table=True),
    Column("verb", "WHAT", only_table=True),
    Column("count", "COUNT", is_number=True),
    Column("size_bytes", "BYTES", format_bytes, is_number=True),
    Column("decision"),
)
