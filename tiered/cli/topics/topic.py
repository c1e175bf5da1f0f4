"""``tiered topic``: create, alter, delete, list, describe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from local.errors import LogError
from tiered.cli.errors import Exit, unread_code
from tiered.cli.render import Column, Row, emit, output_option
from tiered.cli.session import Session, now_ms, settings_option
from tiered.config.units import format_bytes, format_count
from tiered.partition.partition_status import PartitionStatus, partition_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from local.names import TopicPartition
    from tiered.node.topic_registry import Topic

ENABLE = "remote.storage.enable"


@click.group("topic")
def topic() -> None:
    """Create, alter, delete, list and describe topics."""


@topic.command("create")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-p", "--partitions", type=click.IntRange(1), default=1, show_default=True, help="How many, of each.")
@settings_option("A property of these topics; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Only check, and show its settings and where they come from.")
@output_option()
@click.pass_obj
def create(
    session: Session, names: tuple[str, ...], partitions: int, settings: dict[str, str], dry_run: bool, output: str
) -> None:
    """Create the topic NAME, or several: all of them, or none where one is refused."""
    from local.names import check_topic

    for name in names:
        check_topic(name)
    if dry_run:
        _show_new(session, names, partitions, settings, output)
        return
    from tiered.topics.topic_creation import AskedTopic

    asked = [AskedTopic(name=name, partitions=partitions, properties=settings) for name in names]
    failure: LogError | None = None
    with session.manager() as manager:
        known = {each.name for each in manager.topics()}
        try:
            created = manager.create_topics(asked, now_ms=now_ms())
        except LogError as error:
            failure, created = error, [each for each in manager.topics() if each.name in {*names} - known]
            if not created:
                raise
        settings_of = manager.config.topic_properties
        tiered = [each for each in created if settings_of(each.name, each.properties)[ENABLE] == "true"]
    for each in created:
        session.say(f"created {each.name}: partitions={each.partition_count} topic_id={each.topic_id}")
    _print(created, output)
    if failure is not None:
        session.warn("the topics are there, not all of them could be begun: the next start begins what is missing")
        raise failure
    if tiered:
        _warn_of_namesakes(session, tiered)


def _show_new(session: Session, names: tuple[str, ...], partitions: int, settings: dict[str, str], output: str) -> None:
    from tiered.cli.topics.topic_dry_runs import show_new

    if len(names) > 1 and output == "json":
        raise click.UsageError("--dry-run -o json shows one topic: name one, or use -o jsonl")
    with session.manager(read_only=True, is_brief=True) as manager:
        planned = [manager.plan_new_topic(name, partitions, settings) for name in names]
    for each in planned:
        show_new(session, each, output)


def _warn_of_namesakes(session: Session, created: Sequence[Topic]) -> None:
    """Warn about topics of one name: a reader of the bucket alone must choose between them."""
    from remote.store.open_store import open_store
    from tiered.config.key_rings import keyed_store
    from tiered.read.bucket_reader import topic_ids
    from tiered.read.topic_id_resolution import living_ids
    from tiered.stores.configured_store import store_options

    config = session.config()
    if config.remote_url is None:
        return
    store = keyed_store(open_store(config.remote_url, store_options(config)), config.key_ring)
    try:
        found = {each.name: set(topic_ids(store, each.name)) - {each.topic_id} for each in created}
        others = {name: living_ids(store, name, ids) for name, ids in found.items()}
    except LogError as error:
        session.say(f"warning: whether the bucket holds another topic of this name could not be seen: {error}")
        return
    finally:
        store.close()
    for name, ids in others.items():
        if ids:
            session.say(
                "warning: the bucket already holds a topic of this name; whoever reads the bucket alone has to choose "
                f"with --topic-id or topic_ids: topic={name} topic_ids={','.join(sorted(ids))}"
            )


@topic.command("alter")
@click.argument("name")
@settings_option("A property to set; an empty value takes the topic's own back. May be repeated.")
@click.option("--yes", is_flag=True, help="Do not ask before a remote tier is given up.")
@click.option("--dry-run", is_flag=True, help="Only check, and show which settings would be others.")
@output_option()
@click.pass_obj
def alter(session: Session, name: str, settings: dict[str, str], yes: bool, dry_run: bool, output: str) -> None:
    """Change the topic NAME's own settings."""
    if not settings:
        raise click.UsageError("nothing to alter: give at least one -X KEY=VALUE")
    if dry_run:
        from tiered.cli.topics.topic_dry_runs import show_altered

        with session.manager(read_only=True, is_brief=True) as manager:
            planned = manager.plan_altered_topic(name, settings, now_ms=now_ms())
        show_altered(session, planned, output)
        return
    with session.manager() as manager:
        if gives_up(manager.topic(name), settings) and not yes:
            _confirm(f"give up all records of the topic {name} that are in the bucket alone, for good?")
        altered = manager.alter_topic(name, settings, now_ms=now_ms())
    session.say(f"altered {altered.name}: {_settings(altered.properties) or 'no settings of its own'}")
    _print([altered], output)


def gives_up(topic: Topic, settings: dict[str, str]) -> bool:
    """Whether these changes disable the remote tier of a tiered topic."""
    from tiered.config.properties import parse
    from tiered.partition.tier_disable import ENABLE

    asked = settings.get(ENABLE)
    return topic.was_tiered and bool(asked) and not parse(ENABLE, asked or "")


def _confirm(question: str) -> None:
    import sys

    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} say --yes")
    click.confirm(question, abort=True, err=True)


@topic.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be lost in both tiers, and what holds on to it.")
@output_option()
@click.pass_obj
def delete(session: Session, name: str, yes: bool, dry_run: bool, output: str) -> None:
    """Delete the topic NAME, in both tiers. Files and objects go with the next rounds of `tiered run`."""
    if dry_run:
        from tiered.cli.topics.topic_dry_runs import show_deleted

        with session.manager(read_only=True, is_brief=True) as manager:
            planned = manager.plan_deleted_topic(name, now_ms=now_ms())
        show_deleted(session, planned, output)
        return
    with session.manager() as manager:
        found = manager.topic(name)
        if not yes:
            _confirm(f"delete the topic {name} with all its records for good?")
        manager.delete_topic(name, now_ms=now_ms())
    session.say(f"deleted {name}: partitions={found.partition_count} topic_id={found.topic_id}")
    _print([found], output)


@topic.command("list")
@output_option()
@click.pass_obj
def list_topics(session: Session, output: str) -> None:
    """The topics of this directory."""
    emit("topics", [_topic_row(each, output) for each in session.topics().all()], _TOPIC_COLUMNS, output)


def _print(topics: Sequence[Topic], output: str) -> None:
    """Print the result for programs; people got it on stderr."""
    if output != "table":
        emit("topics", [_topic_row(each, output) for each in topics], _TOPIC_COLUMNS, output)


def _topic_row(each: Topic, output: str) -> Row:
    return {
        "topic": each.name,
        "partitions": each.partition_count,
        "topic_id": each.topic_id,
        "settings": dict(each.properties) if output in ("json", "jsonl") else _settings(each.properties),
    }


@topic.command("describe")
@click.argument("name")
@click.option("--settings", "show_settings", is_flag=True, help="Every effective setting and where it comes from.")
@output_option()
@click.pass_obj
def describe(session: Session, name: str, show_settings: bool, output: str) -> int:
    """The partitions of the topic NAME, or with --settings what it is set to."""
    if show_settings:
        effective = session.config().explain(name, session.topics().get(name).properties)
        settings = [{"property": each.name, "value": each.value, "origin": each.origin} for each in effective]
        columns = (Column("property", "PROPERTY"), Column("value", "VALUE"), Column("origin", "ORIGIN"))
        emit("settings", settings, columns, output, topic=name)
        return Exit.DONE
    from tiered.status.unknown_figures import unread_partitions, unread_rows

    with session.manager(read_only=True, is_brief=True) as manager:
        found = manager.topic(name)
        looked_at = {each.partition: partition_status(each) for each in manager.snapshots(now_ms(), [name])}
        unread = unread_partitions(manager, [name])
        rows = [_row(each, looked_at.get(each), is_unread=each in unread) for each in found.partitions()]
        problems = {each: problem for each, problem in manager.problems.items() if each.topic == name}
    facts = {"topic": name, "topic_id": found.topic_id, "unread": unread_rows(unread)}
    emit("partitions", rows, _PARTITION_COLUMNS, output, **facts)
    session.tell_problems(problems)
    return unread_code(unread.values())


def _row(name: TopicPartition, status: PartitionStatus | None, *, is_unread: bool) -> dict[str, object]:
    """A row; None for the figures of a tier that was not read."""
    fields = [column.name for column in _PARTITION_COLUMNS[1:]]
    row = {field: None if is_unread and field in _OF_BUCKET else getattr(status, field, None) for field in fields}
    return {"partition": name.partition, **row}


_TOPIC_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partitions", "PARTS", is_number=True),
    Column("topic_id", "ID"),
    Column("settings", "SETTINGS"),
)
_OF_BUCKET = ("remote_segments", "remote_bytes")
_PARTITION_COLUMNS = (
    Column("partition", "PARTITION", is_number=True),
    Column("log_start_offset", "START", format_count, is_number=True),
    Column("local_start_offset", "LOCAL FROM", format_count, is_number=True),
    Column("next_offset", "NEXT", format_count, is_number=True),
    Column("local_segments", "LOCAL SEGS", is_number=True),
    Column("local_bytes", "LOCAL", format_bytes, is_number=True),
    Column("remote_segments", "REMOTE SEGS", is_number=True),
    Column("remote_bytes", "REMOTE", format_bytes, is_number=True),
)


def _settings(properties: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in properties.items())
