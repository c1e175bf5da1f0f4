"""``tiered topic``: create, alter, add-partitions, delete, list, describe; ``tiered pause`` and ``tiered resume``.

A dry run prints its rows on stdout and its messages on stderr, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import LogError
from local.names import check_topic
from local.storage import DiskStorage
from policies.rules import Pause
from tiered.cli.errors import Exit
from tiered.cli.options import OUTPUT, TOPICS, YES, argument, command, option, settings_option
from tiered.cli.render import Column, Result, Struct, Work, columns_of, number, pairs, print_result, text
from tiered.cli.session import Session, complete_topics, confirm, now_ms, topic_problems
from tiered.config.units import format_bytes, format_count, format_lasted, format_ms
from tiered.node.problems import UnreadPartitions, unread_rows
from tiered.partition.partition_status import partition_status

if TYPE_CHECKING:
    from tiered.config.config import Setting
    from tiered.node.topic_registry import Places, Topic
    from tiered.topics import topic_dry_run
    from tiered.topics.topic_dry_run import PartitionLoss

ENABLE = "remote.storage.enable"
_UNREAD = {"remote_segments": None, "remote_bytes": None}  # the figures of a bucket that was not read


class ListedTopic(Struct):
    """A topic with its own settings."""

    topic: Annotated[str, text("TOPIC")]
    partitions: Annotated[int, number("PARTITIONS")]
    topic_id: Annotated[str, text("ID")]
    settings: Annotated[dict[str, str], text("SETTINGS", pairs)]


class EffectiveSetting(Struct):
    """An effective setting and its origin."""

    property: Annotated[str, text("PROPERTY")]
    value: Annotated[str, text("VALUE")]
    origin: Annotated[str, text("ORIGIN")]


class DescribedPartition(Struct):
    """A partition in both tiers; bytes are of ``.log`` data. Null: of a tier that could not be read."""

    partition: Annotated[int, number("PARTITION")]
    log_start_offset: Annotated[int | None, number("START", format_count)]
    local_start_offset: Annotated[int | None, number("LOCAL START", format_count)]
    next_offset: Annotated[int | None, number("NEXT", format_count)]
    local_segments: Annotated[int | None, number("LOCAL SEGMENTS")]
    local_bytes: Annotated[int | None, number("LOCAL", format_bytes)]
    remote_segments: Annotated[int | None, number("REMOTE SEGMENTS")]
    remote_bytes: Annotated[int | None, number("REMOTE", format_bytes)]


class Topics(Result):
    """``tiered topic list``, and the topics that ``create``, ``alter``, ``add-partitions`` and ``delete`` changed."""

    topics: list[ListedTopic]


class TopicSettings(Result):
    """``tiered topic describe --settings``."""

    topic: str
    settings: list[EffectiveSetting]


class DescribedTopic(Result):
    """``tiered topic describe``."""

    topic: str
    topic_id: str
    unread: list[UnreadPartitions]
    partitions: list[DescribedPartition]


@click.group("topic")
def topic() -> None:
    """Create, alter, delete, list and describe topics."""


@command("create", topic, example="topic create orders -p 4 -X retention.ms=30d")
def create(
    session: Session,
    names: tuple[str, ...] = argument("NAME...", required=True),
    partitions: int = option("-p, --partitions", "Set the number of partitions of each topic.", least=1, default=1),
    settings: dict[str, str] = settings_option("Set a property of these topics; may be repeated."),
    dry_run: bool = option("--dry-run", "Check only, and show the settings and their sources."),
    output: str = OUTPUT,
) -> None:
    """Create the topic NAME, or several: all of them, or none if one is refused."""
    for name in names:
        check_topic(name)
    if dry_run:
        if len(names) > 1 and output == "json":
            raise click.UsageError("--dry-run -o json shows one topic: name one, or use -o jsonl")
        with session.manager(read_only=True, is_brief=True) as manager:
            planned = [manager.topics.dry_run.new_topic(name, partitions, settings) for name in names]
        for new in planned:
            show_new(session, new, output)
        return
    from tiered.serve.commands.operation_jobs import error_of
    from tiered.serve.node.operations import create_topics
    from tiered.topics.topic_creation import AskedTopic

    requested = [AskedTopic(name=name, partitions=partitions, properties=settings) for name in names]
    with session.node() as node:
        done = node.run(create_topics, topics=requested)
    for each in done.created:
        session.say(f"created {each.name}: partitions={each.partition_count} topic_id={each.topic_id}")
    _print(done.created, output)
    if done.failure is not None:
        session.warn(
            "the topics were created, some partitions could not be initialized: the next start initializes them"
        )
        raise error_of(done.failure)
    if done.tiered:
        _warn_of_namesakes(session, [each for each in done.created if each.name in done.tiered])


def _warn_of_namesakes(session: Session, created: Sequence[Topic]) -> None:
    """Warn about topics of one name, between which a reader of the bucket alone must choose."""
    from tiered.read.bucket_reader import living_ids, topic_ids
    from tiered.stores.configured_store import configured_store

    if (store := configured_store(session.config())) is None:
        return
    try:
        with closing(store):
            found = {each.name: set(topic_ids(store, each.name)) - {each.topic_id} for each in created}
            others = {name: living_ids(store, name, ids) for name, ids in found.items()}
    except LogError as error:
        session.say(f"warning: cannot check whether the bucket has another topic of this name: {error}")
        return
    for name, ids in others.items():
        if ids:
            session.say(
                "warning: the bucket already has a topic of this name; readers of the bucket must choose "
                f"with --topic-id or topic_ids: topic={name} topic_ids={','.join(sorted(ids))}"
            )


@command("alter", topic, example="topic alter orders -X local.retention.ms=6h")
def alter(
    session: Session,
    name: str = argument(shell_complete=complete_topics),
    settings: dict[str, str] = settings_option(
        "Set a property; an empty value removes it from the topic. May be repeated."
    ),
    yes: bool = option("--yes", "Do not ask before a remote tier is disabled."),
    dry_run: bool = option("--dry-run", "Check only, and show which settings would change."),
    output: str = OUTPUT,
) -> None:
    """Change the topic NAME's own settings."""
    if not settings:
        raise click.UsageError("nothing to alter: add at least one -X KEY=VALUE")
    if dry_run:
        with session.manager(read_only=True, is_brief=True) as manager:
            planned = manager.topics.dry_run.altered_topic(name, settings, now_ms=now_ms())
        show_altered(session, planned, output)
        return
    from tiered.serve.node.operations import alter_topic

    with session.node() as node:
        if gives_up(session.topics().get(name), settings):
            confirm(f"delete all records of the topic {name} that are in the bucket only, permanently?", yes=yes)
        altered = node.run(alter_topic, name=name, settings=settings)
    session.say(f"altered {altered.name}: {pairs(altered.properties) or 'no own settings'}")
    _print([altered], output)


@command("add-partitions", topic, example="topic add-partitions orders 8 --dry-run")
def add_partitions(
    session: Session,
    name: str = argument(shell_complete=complete_topics),
    count: int = argument("COUNT", type=click.INT),
    dry_run: bool = option("--dry-run", "Check only, and show which partitions would be added."),
    output: str = OUTPUT,
) -> None:
    """Raise the number of partitions of the topic NAME to COUNT. Partitions cannot be removed again.

    Later records of a key may have another partition than its earlier ones.
    """
    from tiered.serve.node.operations import GrownTopic, add_partitions, is_compacted

    if dry_run:
        with session.manager(read_only=True, is_brief=True) as manager:
            before, after = manager.topics.get(name), manager.topics.dry_run.grown_topic(name, count)
            grown = GrownTopic(before=before, after=after, is_compacted=is_compacted(manager, after))
    else:
        with session.node() as node:
            grown = node.run(add_partitions, name=name, count=count)
    known = grown.before.partition_count
    added = grown.after.partitions()[known:]
    numbers = f"{added[0]}" if len(added) == 1 else f"{added[0]} to {added[-1]}"
    session.say(f"{'would add' if dry_run else 'added'} {numbers}: partitions={count} before={known}")
    if grown.is_compacted:
        session.say("warning: records of one key in two partitions are not compacted against each other")
    if dry_run:
        session.say("nothing changed")
    _print([grown.after], output)


def gives_up(topic: Topic, settings: dict[str, str]) -> bool:
    """Whether these changes disable the remote tier of a tiered topic."""
    from tiered.config.properties import parse

    value = settings.get(ENABLE)
    return topic.was_tiered and bool(value) and not parse(ENABLE, value or "")


@command("delete", topic, example="topic delete orders --dry-run")
def delete(
    session: Session,
    name: str = argument(shell_complete=complete_topics),
    yes: bool = YES,
    dry_run: bool = option(
        "--dry-run", "Show what would be deleted in both tiers and what delays the deletion, change nothing."
    ),
    output: str = OUTPUT,
) -> None:
    """Delete the topic NAME in both tiers. The next rounds of `tiered run` delete its files and objects."""
    if dry_run:
        with session.manager(read_only=True, is_brief=True) as manager:
            planned = manager.topics.dry_run.deleted_topic(name, now_ms=now_ms())
        show_deleted(session, planned, output)
        return
    from tiered.serve.node.operations import delete_topic

    with session.node() as node:
        session.topics().get(name)
        confirm(f"delete the topic {name} with all its records permanently?", yes=yes)
        found = node.run(delete_topic, name=name)
    session.say(f"deleted {name}: partitions={found.partition_count} topic_id={found.topic_id}")
    _print([found], output)


@command("list", topic, example="topic list -o json")
def list_topics(session: Session, output: str = OUTPUT) -> None:
    """List the topics of this directory."""
    print_result(_listed(session.topics().all()), output)


def _print(topics: Sequence[Topic], output: str) -> None:
    if output != "table":
        print_result(_listed(topics), output)


def _listed(topics: Sequence[Topic]) -> Topics:
    return Topics([ListedTopic(each.name, each.partition_count, each.topic_id, each.properties) for each in topics])


@command("describe", topic, example="topic describe orders --settings")
def describe(
    session: Session,
    name: str = argument(shell_complete=complete_topics),
    show_settings: bool = option("--settings", "Show every effective setting and its source."),
    output: str = OUTPUT,
) -> int:
    """Show the partitions of the topic NAME, or with --settings its settings."""
    if show_settings:
        effective = session.config().explain(name, session.topics().get(name).properties)
        print_result(TopicSettings(name, [EffectiveSetting.of(each, property=each.name) for each in effective]), output)
        return Exit.DONE
    from tiered.status.status_report import unread_partitions

    with session.manager(read_only=True, is_brief=True) as manager:
        found = manager.topics.get(name)
        known = {each.partition: partition_status(each) for each in manager.snapshots(now_ms(), [name])}
        unread = unread_partitions(manager, [name])
        rows = [
            DescribedPartition.of(known.get(each), partition=each.partition, **(_UNREAD if each in unread else {}))
            for each in found.partitions()
        ]
        problems = topic_problems(manager, [name])
    print_result(DescribedTopic(name, found.topic_id, unread_rows(unread), rows), output)
    return session.report(problems, unread)


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


class NewTopic(Work):
    """``tiered topic create --dry-run``; `namesakes` are ids of topics of this name in the bucket."""

    is_tiered: bool
    topic: str
    partitions: int
    namesakes: list[str]
    settings: list[EffectiveSetting]


def show_new(session: Session, planned: topic_dry_run.NewTopic, output: str) -> None:
    """Show every effective setting; in a table only those that differ from the built-in defaults."""
    topic = planned.topic
    shown = [each for each in planned.settings if output != "table" or each.origin != "default"]
    settings = [EffectiveSetting.of(each, property=each.name) for each in shown]
    namesakes = list(planned.namesakes)
    print_result(NewTopic(True, topic.was_tiered, topic.name, topic.partition_count, namesakes, settings), output)
    where = "on the disk and in the bucket" if topic.was_tiered else "on the disk only"
    session.say(f"would create {topic.name}: partitions={topic.partition_count}, {where}; other settings are defaults")
    _warn_of_outranked(session, planned.outranked)
    if planned.namesakes:
        session.say(
            "warning: the bucket already has a topic of this name: "
            f"topic_ids={','.join(planned.namesakes)}; readers of the bucket must choose one"
        )
    session.say("nothing changed")


def show_altered(session: Session, planned: topic_dry_run.AlteredTopic, output: str) -> None:
    changes = [
        ChangedSetting(after.name, before.value, after.value, after.origin, before.origin)
        for before, after in planned.changes
    ]
    named = {"topic": planned.topic.name, "lost": [_loss(each) for each in planned.lost], "settings": changes}
    print_result(AlteredTopic.of(planned, dry_run=True, **named), output)
    _warn_of_outranked(session, planned.outranked)
    if planned.begins_tiering:
        session.say("its closed segments would be copied to the bucket from the next round on")
    if planned.gives_up_tier:
        size, offsets = _sum(planned.lost, "remote_bytes"), _sum(planned.lost, "offsets")
        session.say(
            f"would disable the remote tier: {_known(size, format_bytes)} in the bucket, of them at most "
            f"{_known(offsets, format_count)} records that the disk does not have, NOT RECOVERABLE"
        )
    if not planned.changes:
        session.say("no effective setting would change")
    session.say("nothing changed")


def show_deleted(session: Session, planned: topic_dry_run.TopicLoss, output: str) -> None:
    """Show the data that each partition would lose, and the references that retain some of it."""
    topic = planned.topic
    totals = {name: _sum(planned.partitions, name) for name in ("offsets", "local_bytes", "remote_bytes")}
    delays = {"file_delete_delay_ms": planned.file_delay_ms, "delete_grace_ms": planned.grace_ms}
    partitions = [_loss(each) for each in planned.partitions]
    named = {"topic": topic.name, "topic_id": topic.topic_id, "partitions": partitions}
    print_result(DeletedTopic.of(dry_run=True, **named, **delays, **totals), output)
    for each in planned.partitions:
        if each.pins and each.pinned_until_ms is not None:
            expires = f"the last pin expires in {format_lasted(each.pinned_until_ms - now_ms())}"
            session.say(f"{each.partition}: {each.pins} readers pin its objects, {expires}")
        if each.forks:
            session.say(f"{each.partition}: forks retain the objects that they name: {', '.join(each.forks)}")
        if each.trouble is not None:
            session.say(f"! {each.partition}: some figures are unknown: {' '.join(each.trouble.split())}")
    local, remote = (_known(totals[name], format_bytes) for name in ("local_bytes", "remote_bytes"))
    after = f"files are deleted after {format_ms(planned.file_delay_ms)}, objects after {format_ms(planned.grace_ms)}"
    session.say(
        f"would delete {topic.name}: at most {_known(totals['offsets'], format_count)} records, {local} on the disk, "
        f"{remote} in the bucket, NOT RECOVERABLE; {after}, by the maintenance of tiered run"
    )
    session.say("nothing changed")


def _warn_of_outranked(session: Session, outranked: Sequence[Setting]) -> None:
    for each in outranked:
        session.say(f"warning: {each.name} would have no effect: {each.origin} sets {each.value}")


def _sum(losses: Sequence[PartitionLoss], name: str) -> int | None:
    known = [value for each in losses if (value := getattr(each, name)) is not None]
    return sum(known) if known else None


def _known(value: int | None, show: Callable[[int], str]) -> str:
    return "?" if value is None else show(value)


def _loss(each: PartitionLoss) -> PartitionLost:
    return PartitionLost.of(each, partition=each.partition.partition, forks=list(each.forks))


class PausedTopic(Struct):
    """A topic with paused uploads; `is_of_all`: those of all topics are. `paused_since_ms` null: not known."""

    topic: Annotated[str, text("TOPIC")]
    is_of_all: Annotated[bool, text("PAUSED WITH ALL", lambda value: "yes" if value else "no")]
    reason: Annotated[str, text("REASON")]
    paused_since_ms: int | None


class Paused(Result):
    """``tiered pause`` and ``tiered resume``: the topics that are paused now."""

    paused: list[PausedTopic]


@command("pause", example="pause orders --reason 'the bucket moves'")
def pause(
    session: Session,
    topics: tuple[str, ...] = TOPICS,
    reason: str = option("--reason TEXT", "Record a reason, shown by status.", default="", show_default=False),
    lists: bool = option("--list", "Show which uploads are paused."),
    dry_run: bool = option("--dry-run", "Show which uploads would be paused, change nothing."),
    output: str = OUTPUT,
) -> None:
    """Pause uploads of the topics, or of all topics, until `tiered resume`.

    A running manager obeys within a round. Closed segments wait on the disk; a segment that is not in the bucket is
    never dropped. Prints the paused topics.
    """
    from tiered.node.upload_pause import dry_run_pause, pause_uploads, paused_topics

    if lists and (topics or reason):
        raise click.UsageError("--list only shows paused uploads; remove the topics and --reason")
    change = partial(dry_run_pause if dry_run else pause_uploads, names=topics or None, now_ms=now_ms(), reason=reason)
    found = _show_paused(session, paused_topics if lists else change, output, dry_run=dry_run)
    if found and not dry_run:
        session.say("closed segments wait on the disk until then: tiered status shows the bytes at risk")


@command("resume", example="resume orders")
def resume(
    session: Session,
    topics: tuple[str, ...] = TOPICS,
    dry_run: bool = option("--dry-run", "Show which uploads would still be paused, change nothing."),
    output: str = OUTPUT,
) -> None:
    """Resume uploads of the topics, or of all topics, where they stopped. Prints the topics that are still paused."""
    from tiered.node.upload_pause import dry_run_resume, resume_uploads

    change = partial(dry_run_resume if dry_run else resume_uploads, names=topics or None)
    _show_paused(session, change, output, dry_run=dry_run)


def _show_paused(
    session: Session, change: Callable[[Places], Mapping[str, Pause]], output: str, *, dry_run: bool
) -> Mapping[str, Pause]:
    """Change or only read the pauses of all log directories; print and return the topics that are then paused."""
    found, at_ms = change([(DiskStorage(), root) for root in session.config().data_dirs]), now_ms()
    rows = [PausedTopic.of(each, topic=name, paused_since_ms=each.since_ms) for name, each in sorted(found.items())]

    def lasted_ms(row: PausedTopic) -> int | None:
        return None if row.paused_since_ms is None else max(0, at_ms - row.paused_since_ms) // 1000 * 1000

    lasted = Column("", "FOR", format_ms, is_number=True, of=lasted_ms)
    topic, *others = columns_of(PausedTopic)
    print_result(Paused(rows), output, columns=(topic, lasted, *others))
    if not rows:
        session.say("no topic is paused")
    if dry_run:
        session.say("nothing changed")
    return found
