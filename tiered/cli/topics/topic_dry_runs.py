"""Output of ``tiered topic create|alter|delete --dry-run``: rows on stdout, messages on stderr, no changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from tiered.cli.render import Struct, Work, number, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.cli.topics.topic import EffectiveSetting
from tiered.config.units import format_bytes, format_count, format_ms

if TYPE_CHECKING:
    from tiered.config.config import Setting
    from tiered.topics import topic_dry_run
    from tiered.topics.topic_dry_run import PartitionLoss


class NewTopic(Work):
    """``tiered topic create --dry-run``; `namesakes` are ids of topics of this name in the bucket."""

    is_tiered: bool
    topic: str
    partitions: int
    namesakes: list[str]
    settings: list[EffectiveSetting]


class ChangedSetting(Struct):
    """An effective setting that would change."""

    property: Annotated[str, text("PROPERTY")]
    before: Annotated[str, text("BEFORE")]
    after: Annotated[str, text("AFTER")]
    after_origin: Annotated[str, text("ORIGIN")]
    before_origin: str


class PartitionLost(Struct):
    """What a partition would lose. Null: not known, and `trouble` says why. `offsets` is an upper bound of records."""

    partition: Annotated[int, number("PARTITION")]
    log_start_offset: Annotated[int | None, number("START", format_count)]
    next_offset: Annotated[int | None, number("NEXT", format_count)]
    offsets: Annotated[int | None, number("MAX RECORDS", format_count)]
    local_bytes: Annotated[int | None, number("LOCAL", format_bytes)]
    remote_bytes: Annotated[int | None, number("STORED", format_bytes)]
    only_local_bytes: Annotated[int | None, number("LOCAL ONLY", format_bytes)]
    pins: Annotated[int | None, number("PINS")]
    pinned_until_ms: int | None
    forks: Annotated[list[str], text("FORKS", " ".join)]
    trouble: str | None


class AlteredTopic(Work):
    """``tiered topic alter --dry-run``; `lost` if it would give its remote tier up."""

    topic: str
    own: dict[str, str]
    begins_tiering: bool
    gives_up_tier: bool
    lost: list[PartitionLost]
    settings: list[ChangedSetting]


class DeletedTopic(Work):
    """``tiered topic delete --dry-run``."""

    topic: str
    topic_id: str
    file_delete_delay_ms: int
    delete_grace_ms: int
    offsets: int | None
    local_bytes: int | None
    remote_bytes: int | None
    partitions: list[PartitionLost]


def show_new(session: Session, planned: topic_dry_run.NewTopic, output: str) -> None:
    """Every effective setting; as a table only the settings that differ from the built-in defaults."""
    topic = planned.topic
    settings = [
        EffectiveSetting.of(each, property=each.name)
        for each in planned.settings
        if output != "table" or each.origin != "default"
    ]
    print_result(
        NewTopic(
            dry_run=True,
            is_tiered=topic.was_tiered,
            topic=topic.name,
            partitions=topic.partition_count,
            namesakes=list(planned.namesakes),
            settings=settings,
        ),
        output,
    )
    where = "on the disk and in the bucket" if topic.was_tiered else "on the disk only"
    session.say(f"would create {topic.name}: partitions={topic.partition_count}, {where}; other settings are defaults")
    _warn_of_outranked(session, planned.outranked)
    if planned.namesakes:
        session.say(
            "warning: the bucket already has a topic of this name: "
            f"topic_ids={','.join(planned.namesakes)}; readers of the bucket must choose one"
        )
    _nothing(session)


def show_altered(session: Session, planned: topic_dry_run.AlteredTopic, output: str) -> None:
    """The effective settings that would change."""
    settings = [
        ChangedSetting(
            property=each.after.name,
            before=each.before.value,
            after=each.after.value,
            after_origin=each.after.origin,
            before_origin=each.before.origin,
        )
        for each in planned.changes
    ]
    lost = [_loss(each) for each in planned.lost]
    named = {"topic": planned.topic.name, "own": dict(planned.own), "lost": lost, "settings": settings}
    print_result(AlteredTopic.of(planned, dry_run=True, **named), output)
    _warn_of_outranked(session, planned.outranked)
    if planned.begins_tiering:
        session.say("its closed segments would be copied to the bucket from the next round on")
    if planned.gives_up_tier:
        size, offsets = _sum(planned.lost, "remote_bytes"), _sum(planned.lost, "offsets")
        session.say(
            f"would disable the remote tier: {_bytes(size)} in the bucket, of them at most "
            f"{_count(offsets)} records that the disk does not have, NOT RECOVERABLE"
        )
    if not planned.changes:
        session.say("no effective setting would change")
    _nothing(session)


def show_deleted(session: Session, planned: topic_dry_run.TopicLoss, output: str) -> None:
    """The data that each partition would lose, and the references that retain some of it."""
    topic = planned.topic
    totals = {name: _sum(planned.partitions, name) for name in ("offsets", "local_bytes", "remote_bytes")}
    delays = {"file_delete_delay_ms": planned.file_delay_ms, "delete_grace_ms": planned.grace_ms}
    partitions = [_loss(each) for each in planned.partitions]
    named = {"topic": topic.name, "topic_id": topic.topic_id, "partitions": partitions}
    print_result(DeletedTopic.of(dry_run=True, **named, **delays, **totals), output)
    for each in planned.partitions:
        for line in _held(each):
            session.say(f"{each.partition}: {line}")
        if each.trouble is not None:
            session.say(f"! {each.partition}: some figures are unknown: {' '.join(each.trouble.split())}")
    held = f"{_bytes(totals['local_bytes'])} on the disk, {_bytes(totals['remote_bytes'])} in the bucket"
    after = f"files are deleted after {format_ms(planned.file_delay_ms)}, objects after {format_ms(planned.grace_ms)}"
    session.say(
        f"would delete {topic.name}: at most {_count(totals['offsets'])} records, {held}, NOT "
        f"RECOVERABLE; {after}, by the maintenance of tiered run"
    )
    _nothing(session)


def _warn_of_outranked(session: Session, outranked: Sequence[Setting]) -> None:
    for each in outranked:
        session.say(f"warning: {each.name} would have no effect: {each.origin} sets {each.value}")


def _held(each: PartitionLoss) -> list[str]:
    lines = []
    if each.pins and each.pinned_until_ms is not None:
        left = format_ms(max(0, each.pinned_until_ms - now_ms()) // 1000 * 1000)
        lines.append(f"{each.pins} readers pin its objects, the last pin expires in {left}")
    if each.forks:
        lines.append(f"forks retain the objects that they name: {', '.join(each.forks)}")
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


def _loss(each: PartitionLoss) -> PartitionLost:
    return PartitionLost.of(each, partition=each.partition.partition, forks=list(each.forks))
