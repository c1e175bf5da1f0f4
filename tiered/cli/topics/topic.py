"""``tiered topic``: create, alter, delete, list, describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import click

from local.errors import LogError
from tiered.cli.errors import Exit, unread_code
from tiered.cli.options import OUTPUT, argument, command, option, settings_option
from tiered.cli.render import Result, Struct, number, pairs, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.config.units import format_bytes, format_count
from tiered.node.problem_groups import UnreadPartitions
from tiered.partition.partition_status import partition_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiered.node.topic_registry import Topic

ENABLE = "remote.storage.enable"
_UNREAD = {"remote_segments": None, "remote_bytes": None}  # the figures of a bucket that was not read


class ListedTopic(Struct):
    """A topic with its own settings."""

    topic: Annotated[str, text("TOPIC")]
    partitions: Annotated[int, number("PARTITIONS")]
    topic_id: Annotated[str, text("ID")]
    settings: Annotated[dict[str, str], text("SETTINGS", pairs)]


class Topics(Result):
    """``tiered topic list``, and the topics that ``create``, ``alter`` and ``delete`` changed."""

    topics: list[ListedTopic]


class EffectiveSetting(Struct):
    """An effective setting and its origin."""

    property: Annotated[str, text("PROPERTY")]
    value: Annotated[str, text("VALUE")]
    origin: Annotated[str, text("ORIGIN")]


class TopicSettings(Result):
    """``tiered topic describe --settings``."""

    topic: str
    settings: list[EffectiveSetting]


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


class DescribedTopic(Result):
    """``tiered topic describe``."""

    topic: str
    topic_id: str
    unread: list[UnreadPartitions]
    partitions: list[DescribedPartition]


@click.group("topic")
def topic() -> None:
    """Create, alter, delete, list and describe topics."""


@command("create", topic)
def create(
    session: Session,
    names: tuple[str, ...] = argument("NAME...", required=True),
    partitions: int = option(
        "-p, --partitions", "Set the number of partitions of each topic.", type=click.IntRange(1), default=1
    ),
    settings: dict[str, str] = settings_option("Set a property of these topics; may be repeated."),
    dry_run: bool = option("--dry-run", "Check only, and show the settings and their sources."),
    output: str = OUTPUT,
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
        session.warn(
            "the topics were created, some partitions could not be initialized: the next start initializes them"
        )
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
        session.say(f"warning: cannot check whether the bucket has another topic of this name: {error}")
        return
    finally:
        store.close()
    for name, ids in others.items():
        if ids:
            session.say(
                "warning: the bucket already has a topic of this name; readers of the bucket must choose "
                f"with --topic-id or topic_ids: topic={name} topic_ids={','.join(sorted(ids))}"
            )


@command("alter", topic)
def alter(
    session: Session,
    name: str = argument(),
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
        from tiered.cli.topics.topic_dry_runs import show_altered

        with session.manager(read_only=True, is_brief=True) as manager:
            planned = manager.plan_altered_topic(name, settings, now_ms=now_ms())
        show_altered(session, planned, output)
        return
    with session.manager() as manager:
        if gives_up(manager.topic(name), settings) and not yes:
            _confirm(f"delete all records of the topic {name} that are in the bucket only, permanently?")
        altered = manager.alter_topic(name, settings, now_ms=now_ms())
    session.say(f"altered {altered.name}: {pairs(altered.properties) or 'no own settings'}")
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
        raise click.UsageError(f"{question} add --yes")
    click.confirm(question, abort=True, err=True)


@command("delete", topic)
def delete(
    session: Session,
    name: str = argument(),
    yes: bool = option("--yes", "Do not ask for confirmation."),
    dry_run: bool = option(
        "--dry-run", "Show what would be deleted in both tiers and what delays the deletion, change nothing."
    ),
    output: str = OUTPUT,
) -> None:
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
            _confirm(f"delete the topic {name} with all its records permanently?")
        manager.delete_topic(name, now_ms=now_ms())
    session.say(f"deleted {name}: partitions={found.partition_count} topic_id={found.topic_id}")
    _print([found], output)


@command("list", topic)
def list_topics(session: Session, output: str = OUTPUT) -> None:
    """The topics of this directory."""
    print_result(_listed(session.topics().all()), output)


def _print(topics: Sequence[Topic], output: str) -> None:
    """Print the result for programs; people got it on stderr."""
    if output != "table":
        print_result(_listed(topics), output)


def _listed(topics: Sequence[Topic]) -> Topics:
    return Topics(
        [ListedTopic(each.name, each.partition_count, each.topic_id, each.properties) for each in topics],
    )


@command("describe", topic)
def describe(
    session: Session,
    name: str = argument(),
    show_settings: bool = option("--settings", "Show every effective setting and its source."),
    output: str = OUTPUT,
) -> int:
    """The partitions of the topic NAME, or with --settings what it is set to."""
    if show_settings:
        effective = session.config().explain(name, session.topics().get(name).properties)
        print_result(TopicSettings(name, [EffectiveSetting.of(each, property=each.name) for each in effective]), output)
        return Exit.DONE
    from tiered.status.unknown_figures import unread_partitions, unread_rows

    with session.manager(read_only=True, is_brief=True) as manager:
        found = manager.topic(name)
        looked_at = {each.partition: partition_status(each) for each in manager.snapshots(now_ms(), [name])}
        unread = unread_partitions(manager, [name])
        rows = [
            DescribedPartition.of(looked_at.get(each), partition=each.partition, **(_UNREAD if each in unread else {}))
            for each in found.partitions()
        ]
        problems = {each: problem for each, problem in manager.problems.items() if each.topic == name}
    print_result(DescribedTopic(name, found.topic_id, unread_rows(unread), rows), output)
    session.report_problems(problems)
    return unread_code(unread.values())
