"""Output of ``tiered topic create|alter|delete --dry-run``: rows on stdout, messages on stderr, no changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiered.cli.render import Column, Row, emit
from tiered.cli.session import Session, now_ms
from tiered.config.units import format_bytes, format_count, format_ms

if TYPE_CHECKING:
    from tiered.config.config import Setting
    from tiered.topics.topic_dry_run import AlteredTopic, NewTopic, PartitionLoss, TopicLoss


def show_new(session: Session, planned: NewTopic, output: str) -> None:
    """Every effective setting; as a table only the settings that differ from the built-in defaults."""
    topic = planned.topic
    rows = [
        {"property": each.name, "value": each.value, "origin": each.origin}
        for each in planned.settings
        if output != "table" or each.origin != "default"
    ]
    facts = {"topic": topic.name, "partitions": topic.partition_count, "namesakes": list(planned.namesakes)}
    emit("settings", rows, _SETTINGS, output, dry_run=True, is_tiered=topic.was_tiered, **facts)
    where = "on the disk and in the bucket" if topic.was_tiered else "on the disk alone"
    session.say(f"would create {topic.name}: partitions={topic.partition_count}, {where}; other settings are defaults")
    _warn_of_outranked(session, planned.outranked)
    if planned.namesakes:
        session.say(
            f"warning: the bucket already holds a topic of this name: topic_ids={','.join(planned.namesakes)}; "
            "whoever reads the bucket alone would have to choose"
        )
    _nothing(session)


def show_altered(session: Session, planned: AlteredTopic, output: str) -> None:
    """The effective settings that would change."""
    rows = [
        {
            "property": each.after.name,
            "before": each.before.value,
            "before_origin": each.before.origin,
            "after": each.after.value,
            "after_origin": each.after.origin,
        }
        for each in planned.changes
    ]
    facts: dict[str, object] = {"dry_run": True, "topic": planned.topic.name, "own": dict(planned.own)}
    facts |= {"begins_tiering": planned.begins_tiering, "gives_up_tier": planned.gives_up_tier}
    emit("settings", rows, _CHANGES, output, **facts, lost=[_loss(each) for each in planned.lost])
    _warn_of_outranked(session, planned.outranked)
    if planned.begins_tiering:
        session.say("its closed segments would go to the bucket from the next round on")
    if planned.gives_up_tier:
        size, offsets = _sum(planned.lost, "remote_bytes"), _sum(planned.lost, "offsets")
        session.say(
            f"would give up the tier: {_bytes(size)} in the bucket, of them at most {_count(offsets)} records that the "
            "disk does not have, NOT RECOVERABLE"
        )
    if not planned.changes:
        session.say("no effective setting would change")
    _nothing(session)


def show_deleted(session: Session, planned: TopicLoss, output: str) -> None:
    """The data that each partition would lose, and the references that retain some of it."""
    topic = planned.topic
    totals = {name: _sum(planned.partitions, name) for name in ("offsets", "local_bytes", "remote_bytes")}
    delays = {"file_delete_delay_ms": planned.file_delay_ms, "delete_grace_ms": planned.grace_ms}
    facts = {"dry_run": True, "topic": topic.name, "topic_id": topic.topic_id, **delays, **totals}
    emit("partitions", [_row(each) for each in planned.partitions], _LOSSES, output, **facts)
    for each in planned.partitions:
        for line in _held(each):
            session.say(f"{each.partition}: {line}")
        if each.trouble is not None:
            session.say(f"! {each.partition}: not all is known: {' '.join(each.trouble.split())}")
    held = f"{_bytes(totals['local_bytes'])} on the disk, {_bytes(totals['remote_bytes'])} in the bucket"
    after = f"files go after {format_ms(planned.file_delay_ms)}, objects after {format_ms(planned.grace_ms)}"
    session.say(
        f"would delete {topic.name}: at most {_count(totals['offsets'])} records, {held}, NOT RECOVERABLE; "
        f"{after}, with the rounds of tiered run"
    )
    _nothing(session)


def _warn_of_outranked(session: Session, outranked: Sequence[Setting]) -> None:
    for each in outranked:
        session.say(f"warning: {each.name} would not hold: {each.origin} says {each.value}")


def _held(each: PartitionLoss) -> list[str]:
    lines = []
    if each.pins and each.pinned_until_ms is not None:
        left = format_ms(max(0, each.pinned_until_ms - now_ms()) // 1000 * 1000)
        lines.append(f"{each.pins} readers hold on to its objects, the last one's pin ends in {left}")
    if each.forks:
        lines.append(f"forks keep the objects that they name: {', '.join(each.forks)}")
    return lines


def _nothing(session: Session) -> None:
    session.say("nothing changed")


def _sum(losses: Sequence[PartitionLoss], name: str) -> int | None:
    """The sum of the known values; None if none is known."""
    known = [value for each in losses if (value := getattr(each, name)) is not None]
    return sum(known) if known else None


def _bytes(value: int | None) -> str:
    return "?" if value is None else format_bytes(value)


def _count(value: int | None) -> str:
    return "?" if value is None else format_count(value)


def _row(each: PartitionLoss) -> Row:
    return {**_loss(each), "fork_names": " ".join(each.forks)}


def _loss(each: PartitionLoss) -> Row:
    """The facts for programs; the table joins the names in one text."""
    known = {name: getattr(each, name) for name in _FIELDS}
    return {"partition": each.partition.partition, **known, "forks": list(each.forks)}


_FIELDS = (
    *("log_start_offset", "next_offset", "offsets", "local_bytes", "remote_bytes", "only_local_bytes"),
    *("pins", "pinned_until_ms", "trouble"),
)
_SETTINGS = (Column("property", "PROPERTY"), Column("value", "VALUE"), Column("origin", "ORIGIN"))
_CHANGES = (
    Column("property", "PROPERTY"),
    Column("before", "BEFORE"),
    Column("after", "AFTER"),
    Column("after_origin", "ORIGIN"),
    Column("before_origin"),
)
_LOSSES = (
    Column("partition", "PARTITION", is_number=True),
    Column("log_start_offset", "START", format_count, is_number=True),
    Column("next_offset", "NEXT", format_count, is_number=True),
    Column("offsets", "RECORDS <=", format_count, is_number=True),
    Column("local_bytes", "LOCAL", format_bytes, is_number=True),
    Column("remote_bytes", "STORED", format_bytes, is_number=True),
    Column("only_local_bytes", "ONLY LOCAL", format_bytes, is_number=True),
    Column("pins", "PINS", is_number=True),
    Column("fork_names", "FORKS", only_table=True),
    Column("pinned_until_ms"),
    Column("forks"),
    Column("trouble"),
)
