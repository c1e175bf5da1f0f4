"""What commands do with a directory, as functions of a `LogManager`: one code path with and without a running node.

A command without a node opens a manager and calls them; beside a node it names one to the node, which calls it with its
own manager (`tiered.serve.node.command_node`). Parameters and results are types that msgspec writes as JSON.

Each function is as durable, and at a crash as safe, as the library call in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from types import MappingProxyType
from typing import Any, get_type_hints

import msgspec

from local.cleaner.cleaner_history import CleaningFigures
from local.errors import InvalidRequest, LogError, Unavailable
from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.jobs.topic_compaction import compact_topic
from tiered.jobs.view_jobs import ViewStatus, build_views, drop_views, plan_views, view_status
from tiered.maintenance.delete_records import plan_deletion
from tiered.manager.manager import LogManager
from tiered.node.topic_registry import Topic
from tiered.serve.commands.operation_jobs import Problem, Work, failure_of, problems_of
from tiered.serve.messages.operations import Failure
from tiered.serve.node.appending import await_bucket, begin_append, find_append
from tiered.topics.topic_creation import AskedTopic

COMPACT = "cleanup.policy"
TIERED = "remote.storage.enable"
Operation = Callable[..., Any]


class CreatedTopics(msgspec.Struct, frozen=True, kw_only=True):
    """`tiered` are names. With a `failure` the topics exist, and some of their partitions are not initialized yet."""

    created: list[Topic]
    tiered: list[str]
    failure: Failure | None = None


class GrownTopic(msgspec.Struct, frozen=True, kw_only=True):
    before: Topic
    after: Topic
    is_compacted: bool


class DeletedRange(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets, and with `DeletedRecords` of `tiered.maintenance.delete_records` the log starts."""

    partition: TopicPartition
    before: int
    low_watermark: int


class Cleaned(msgspec.Struct, frozen=True, kw_only=True):
    """`figures` None: there was nothing to clean."""

    partition: TopicPartition
    figures: CleaningFigures | None


class CompactedTopic(msgspec.Struct, frozen=True, kw_only=True):
    cleaned: list[Cleaned]
    problems: list[Problem]


class BuiltViews(msgspec.Struct, frozen=True, kw_only=True):
    views: list[ViewStatus]
    problems: list[Problem]


def create_topics(manager: LogManager, work: Work, *, topics: list[AskedTopic]) -> CreatedTopics:
    """Create all of these topics, or none if one is refused."""
    known = {each.name for each in manager.topics.all()}
    failure: Failure | None = None
    try:
        created = manager.topics.create_all(topics, now_ms=work.now_ms())
    except InvalidRequest:
        raise  # refused before the registration
    except LogError as error:
        names = {each.name for each in topics} - known
        created, failure = [each for each in manager.topics.all() if each.name in names], failure_of(error)
        if not created:
            raise
    settings_of = manager.config.topic_properties
    tiered = [each.name for each in created if settings_of(each.name, each.properties)[TIERED] == "true"]
    return CreatedTopics(created=created, tiered=tiered, failure=failure)


def alter_topic(manager: LogManager, work: Work, *, name: str, settings: dict[str, str]) -> Topic:
    return manager.topics.alter(name, settings, now_ms=work.now_ms())


def add_partitions(manager: LogManager, work: Work, *, name: str, count: int) -> GrownTopic:
    before = manager.topics.get(name)
    after = manager.topics.add_partitions(name, count, now_ms=work.now_ms())
    return GrownTopic(before=before, after=after, is_compacted=is_compacted(manager, after))


def delete_topic(manager: LogManager, work: Work, *, name: str) -> Topic:
    """Delete the topic and return it as it was."""
    found = manager.topics.get(name)
    manager.topics.delete(name, now_ms=work.now_ms())
    return found


def plan_record_deletion(
    manager: LogManager, work: object = None, *, offsets: list[tuple[TopicPartition, int]]
) -> list[DeletedRange]:
    """What `delete_records` would delete; changes nothing."""
    found = ((name, plan_deletion(manager.partitions.find(name), offset)) for name, offset in offsets)
    return [DeletedRange(partition=name, before=each.before, low_watermark=each.low_watermark) for name, each in found]


def delete_records(manager: LogManager, work: Work, *, offsets: list[tuple[TopicPartition, int]]) -> list[DeletedRange]:
    done = manager.maintenance.delete_records(dict(offsets), now_ms=work.now_ms())
    return [
        DeletedRange(partition=name, before=each.before, low_watermark=each.low_watermark)
        for name, each in done.items()
    ]


def find_batch(
    manager: LogManager,
    work: object,
    *,
    partition: TopicPartition,
    offset: int,
    end: int | None,
    isolation: Isolation,
) -> bool:
    """Whether the partition has a batch at or above `offset`, below `end` (None: its end), over both tiers."""
    with closing(manager.reader(isolation).batches(partition, offset, end)) as found:
        return any(map(len, found))


def compact(manager: LogManager, work: Work, *, topic: str, roll: bool) -> CompactedTopic:
    """Clean the closed segments of a topic on the disk."""
    names = manager.topics.get(topic).partitions()
    work.expect(len(names), "partitions")
    reported: list[TopicPartition] = []

    def report(name: TopicPartition, decision: object) -> None:
        reported.append(name)
        work.advance()

    done = compact_topic(manager, topic, now_ms=work.now_ms(), roll=roll, should_stop=work.should_stop, progress=report)
    problems = _problems(manager, topic)
    failed = {each.partition for each in problems}
    figures = {name: each.cleaned[-1] for name, each in done.items() if each.cleaned}
    if not work.should_stop():
        work.advance(
            max(0, len(names) - len(failed) - len(reported))
        )  # partitions with nothing to clean report no progress
    cleaned = [Cleaned(partition=name, figures=figures.get(name)) for name in names if name not in failed]
    return CompactedTopic(cleaned=cleaned, problems=problems)


def build_view(manager: LogManager, work: Work, *, topic: str, view: str, accepts_loss: bool) -> BuiltViews:
    plan = plan_views(manager, topic, name=view, accepts_loss=accepts_loss, now_ms=work.now_ms())
    work.expect(len(plan.decisions), "partitions")
    build_views(manager, plan, should_stop=work.should_stop, progress=lambda partition, decision: work.advance())
    problems = _problems(manager, topic)
    failed = {each.partition for each in problems}
    found = view_status(manager, work.now_ms(), [topic], name=view)
    return BuiltViews(views=[each for each in found if each.partition not in failed], problems=problems)


def drop_view(manager: LogManager, work: Work, *, topic: str, view: str) -> list[TopicPartition]:
    return drop_views(manager, topic, name=view, now_ms=work.now_ms())


def move_partition(manager: LogManager, work: Work, *, partition: TopicPartition, directory: str) -> None:
    size_bytes = sum(info.size_bytes for info in manager.partitions.find(partition).log.segments())
    work.expect(size_bytes, "bytes")
    reached = 0

    def report(done: int, everything: int) -> None:
        nonlocal reached  # a segment that is cleaned during the copy is subtracted and copied again
        if work.should_stop():
            raise Unavailable("the move was stopped, the partition stays where it was", partition=partition)
        work.advance(max(0, done - reached))
        reached = max(reached, done)

    manager.maintenance.move(partition, directory, now_ms=work.now_ms(), progress=report)


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        each.__name__: each
        for each in (
            add_partitions,
            alter_topic,
            await_bucket,
            begin_append,
            build_view,
            compact,
            create_topics,
            delete_records,
            delete_topic,
            drop_view,
            find_append,
            find_batch,
            move_partition,
            plan_record_deletion,
        )
    }
)


def is_compacted(manager: LogManager, topic: Topic) -> bool:
    return "compact" in manager.config.topic_properties(topic.name, topic.properties)[COMPACT]


def run_operation(manager: LogManager, name: str, parameters: bytes, work: Work) -> bytes:
    """Do an operation by its name and JSON; return the JSON of its result. Raises as it, and InvalidRequest."""
    if name not in OPERATIONS:
        known = ",".join(sorted(OPERATIONS))
        raise InvalidRequest("the running node does not know the operation", operation=name, operations=known)
    try:
        given = _PARAMETERS[name].decode(parameters)
    except msgspec.DecodeError as error:
        raise InvalidRequest("invalid parameters of an operation", operation=name, cause=str(error)) from None
    fields = {each: getattr(given, each) for each in given.__struct_fields__}
    return msgspec.json.encode(OPERATIONS[name](manager, work, **fields))


def decode_result(name: str, result: bytes) -> Any:  # noqa: ANN401 - by the operation
    return _RESULTS[name].decode(result)


def _hints(operation: Operation) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(operation).items() if name not in ("manager", "work")}


def _parameters(operation: Operation) -> msgspec.json.Decoder[Any]:
    fields = [(name, hint) for name, hint in _hints(operation).items() if name != "return"]
    return msgspec.json.Decoder(msgspec.defstruct(f"{operation.__name__}_parameters", fields, kw_only=True))


# Built at import: building them in two threads in parallel ends the process (msgspec 0.22).
_PARAMETERS = {name: _parameters(each) for name, each in OPERATIONS.items()}
_RESULTS = {name: msgspec.json.Decoder(_hints(each)["return"]) for name, each in OPERATIONS.items()}


def _problems(manager: LogManager, topic: str) -> list[Problem]:
    return problems_of({name: error for name, error in manager.problems.items() if name.topic == topic})
