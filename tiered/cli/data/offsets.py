"""Records and offsets over both tiers: ``consume``, ``get-offsets``, ``delete-records`` and ``transactions``."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Annotated

import click

from local.errors import InvalidRequest, LogError
from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.cli.errors import Exit, stopped_code
from tiered.cli.job_command import findings_code, report_findings
from tiered.cli.options import (
    GROUP,
    OUTPUT,
    PARTITIONS,
    REMOTE,
    REMOTE_OPTIONS,
    YES,
    Layout,
    Position,
    argument,
    command,
    count_type,
    option,
    parse_one_partition,
    parse_partition,
    parse_position,
    parse_time,
)
from tiered.cli.records import parse_template, show_json
from tiered.cli.render import PartitionRow, Result, Work, number, print_result, text
from tiered.cli.session import UNNAMED, Session, confirm, now_ms, stop_signals
from tiered.config.units import format_count, rfc3339
from tiered.node.problems import UnreadPartitions, unread_rows

if TYPE_CHECKING:
    from local.records.offset_spec import FoundOffset
    from tiered.manager.manager import LogManager
    from tiered.read.bucket_reader import RemoteLog
    from tiered.read.reader import TieredReader
    from tiered.serve.node.following import Following

# Kafka's names and codes (`tiered.read.offset_listing`), and the words of `consume --from`
_SPECS = {
    "latest": -1,
    "end": -1,
    "earliest": -2,
    "start": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}
_VERSION = 1  # of Kafka's JSON file
VIEW = "compacted"  # `remote.manifest.view.DEFAULT_VIEW`


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    is_local: bool = option("--local", "Read only the log on this disk, even if it diverged.")
    url: str | None = REMOTE
    topic_id: str | None = option("--topic-id ID", "Choose one of several topics of this name in that bucket.")
    options: dict[str, object] = REMOTE_OPTIONS
    layout: Layout = GROUP

    def check(self, *, read_compacted: bool) -> None:
        if self.topic_id is not None and self.url is None:
            raise click.UsageError("--topic-id requires --remote; a directory has one topic of a name")
        if self.url is None and self.options:
            raise click.UsageError(UNNAMED)
        if self.url is None and self.layout.is_given:
            raise click.UsageError("--layout, --layout-prefix and --layout-key require --remote")
        if self.is_local and (self.url is not None or read_compacted):
            raise click.UsageError("--local reads only the log on this disk; remove --remote and --read-compacted")

    def check_group(self, *, read_compacted: bool) -> None:
        if self.is_local or self.url is not None or self.options or read_compacted:
            raise click.UsageError("--group reads through the node; remove --local, --remote and --read-compacted")

    def following(self, session: Session, topic: str, isolation: Isolation) -> Following:
        from tiered.serve.node.following import Following

        if self.url is not None:
            return Following((), None, isolation)
        return Following(session.config().data_dirs, lambda: session.topics().get(topic).topic_id, isolation)

    def open(self, session: Session, topic: str) -> AbstractContextManager[LogManager | RemoteLog]:
        if self.url is None:
            return session.manager(read_only=True, is_alone=self.is_local, is_hasty=not self.is_local)
        return self.layout.open_bucket(session, self.url, self.options, topic, self.topic_id)


@command("consume", example="consume orders/0 --from @-2h -n 10 -f '%o %k %v\\n'")
def consume(
    session: Session,
    targets: tuple[str, ...] = argument("TOPIC[/PARTITION]...", required=True),
    start: str | None = option(
        "--from",
        "First position: start (the default), end, OFFSET, -N, @TIME or @-2h. With --group where no offset is "
        "committed: start, end (the default), @TIME or @-2h.",
    ),
    count: int | None = option("-n, --count", "Stop after this many records.", type=count_type(0)),
    template: str = option(
        "-f, --format", "Set the output template: %T %p %o %k %v %t %d %h, \\n \\t.", default="%v\\n"
    ),
    output: str = option("-o, --output", "Set the output format.", choices=["text", "jsonl"], default="text"),
    isolation: str = option(
        "--isolation",
        "Set the isolation; read_committed stops at the first open transaction and omits aborted ones.",
        choices=[each.value for each in Isolation],
        default=Isolation.READ_UNCOMMITTED.value,
    ),
    read_compacted: bool = option(
        "--read-compacted", "Read a compacted view below its horizon, then the log; fails without a view."
    ),
    view: str | None = option("--view NAME", "Choose another view than 'compacted' for --read-compacted."),
    follow: bool = option("--follow", "Continue with new records, until Ctrl-C or the count of -n."),
    group: str | None = option("--group NAME", "Read whole topics as a member of this consumer group, and commit."),
    place: _Place = GROUP,
) -> int:
    """Print the records of a partition, or of all partitions of a topic one after another, up to the log end.

    With --group print the records after the committed offsets, and commit the offsets of printed records.
    """
    place.check(read_compacted=read_compacted)
    if follow and read_compacted:
        raise click.UsageError("--follow reads the full log; remove --read-compacted")
    if view is not None and not read_compacted:
        raise click.UsageError("--view requires --read-compacted; without it the full log is read")
    show = parse_template(template) if output == "text" else show_json()
    if group is not None:
        place.check_group(read_compacted=read_compacted)
        from tiered.serve.node.group_member import Wish, consume_group

        at = _spec_of(parse_position(start or "end", now_ms()))
        wish = Wish(group, targets, start=at, isolation=Isolation(isolation), count=count, follows=follow)
        with stop_signals() as stop, session.node(stop, is_hasty=True) as node:
            consume_group(node, wish, show, sys.stdout.buffer, stop, session.warn)
        return stopped_code(stop) if stop.is_set else Exit.DONE
    if len(targets) > 1:
        raise click.UsageError(f"got unexpected extra argument ({targets[1]}); several topics require --group")
    topic, number = parse_partition(targets[0])
    position = parse_position(start or "start", now_ms())
    from tiered.read.bucket_reader import RemoteLog

    with place.following(session, topic, Isolation(isolation)) as following:
        while True:
            with place.open(session, topic) as source:
                if number is not None:
                    partitions = [TopicPartition(topic, number)]
                elif isinstance(source, RemoteLog):
                    partitions = source.partitions(topic)
                else:
                    partitions = source.topics.get(topic).partitions()
                if place.is_local and not isinstance(source, RemoteLog):
                    reader = source.partitions.local_reader(Isolation(isolation))
                else:
                    reader = source.reader(Isolation(isolation), read_compacted=read_compacted, view=view or VIEW)
                _print_lost(reader, partitions)
                if not isinstance(source, RemoteLog) and not place.is_local:
                    session.report_served_alone(source.problems, partitions)
                first = partial(first_offset, reader, position=position)
                for partition, columns in following.columns(reader, partitions, first, count):
                    sys.stdout.buffer.write(show(partition, columns))
                code = _report_inconsistencies(source, partitions) if isinstance(source, RemoteLog) else Exit.DONE
            if not follow or following.count == count:
                return code
            sys.stdout.buffer.flush()
            following.wait()


def _spec_of(position: Position) -> int:
    """A position of any partition as Kafka's code or a time in ms."""
    if position.offset is not None or position.last is not None:
        raise click.UsageError("--from with --group is start, end, @TIME or @-2h: partitions have different offsets")
    return _SPECS["start" if position.is_start else "end"] if position.timestamp_ms is None else position.timestamp_ms


def _print_lost(reader: TieredReader, partitions: list[TopicPartition]) -> None:
    from tiered.read.reader import CompactedReader

    if not isinstance(reader, CompactedReader):
        return
    for partition in partitions:
        for start, end in reader.view(partition).lost:
            click.echo(f"! {partition}: records of [{start}, {end}) were lost before the view included them", err=True)


def _report_inconsistencies(bucket: RemoteLog, partitions: list[TopicPartition]) -> Exit:
    found = {partition: bucket.findings(partition) for partition in partitions}
    for partition, findings in found.items():
        report_findings(partition, findings)
    code = findings_code([each for findings in found.values() for each in findings])
    return Exit.DONE if code is Exit.FINDINGS else code


def first_offset(reader: TieredReader, partition: TopicPartition, position: Position) -> int:
    """Return the offset of a position in one partition; a time after the newest record means the end."""
    if position.offset is not None:
        return position.offset
    if position.timestamp_ms is not None:
        found = reader.offset_for_timestamp(partition, position.timestamp_ms)
        return reader.next_offset(partition) if found is None else found
    if position.is_end:
        return reader.next_offset(partition)
    if position.last is not None:
        wanted = reader.next_offset(partition) - position.last
        return wanted if reader.source(partition).is_local(wanted) else max(reader.offsets(partition)[0], wanted)
    return reader.offsets(partition)[0]


class OffsetFound(PartitionRow):
    """The requested offset; null if there is none."""

    offset: Annotated[int | None, number("OFFSET")]
    timestamp: Annotated[int | None, text("TIME", rfc3339)]
    leader_epoch: Annotated[int | None, number("EPOCH")]


class Offsets(Result):
    """``tiered get-offsets``."""

    unread: list[UnreadPartitions]
    offsets: list[OffsetFound]


@command("get-offsets", example="get-offsets orders --time latest")
def get_offsets(
    session: Session,
    targets: tuple[str, ...] = PARTITIONS,
    spec: str = option(
        "--time SPEC",
        "Choose the offset: earliest, latest, max-timestamp, earliest-local, latest-tiered, "
        "earliest-pending-upload, @TIME, @-2h or a number of ms.",
        default="latest",
    ),
    committed: bool = option(
        "--committed",
        "Choose the isolation; with read_committed latest is the last stable offset, below every open transaction.",
    ),
    output: str = OUTPUT,
) -> int:
    """Print one offset of each partition; of all topics without arguments.

    The offset is empty if there is none. It is also empty if it could not be read: then a line on stderr gives the
    reason, and the exit code is 6 or 10.
    """
    requested = parse_spec(spec, now_ms())
    names = [parse_partition(target) for target in targets]
    with session.manager(read_only=True, is_brief=True) as manager:
        partitions = _partitions(manager, names)
        isolation = Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED
        found, unread = _found(manager, partitions, requested, isolation)
    rows = [
        OffsetFound.of(name, each, timestamp=each.timestamp_ms if each is not None else None)
        for name, each in found.items()
    ]
    print_result(Offsets(unread_rows(unread), rows), output)
    return session.report(unread, unread)


def _found(
    manager: LogManager, partitions: list[TopicPartition], requested: int, isolation: Isolation
) -> tuple[dict[TopicPartition, FoundOffset | None], dict[TopicPartition, LogError]]:
    found: dict[TopicPartition, FoundOffset | None] = {}
    unread: dict[TopicPartition, LogError] = {}
    for name in partitions:
        try:
            found |= manager.list_offsets({name: requested}, isolation=isolation)
        except LogError as error:
            if isinstance(error, InvalidRequest) or name not in manager.topics.get(name.topic).partitions():
                raise  # the request is invalid for every partition
            found[name], unread[name] = None, manager.problems.get(name, error)
    return found, unread


def parse_spec(text: str, now_ms: int) -> int:
    """Return Kafka's code for a name or code, or the ms of a time. Raises InvalidRequest."""
    if text in _SPECS:
        return _SPECS[text]
    codes = {str(code): code for code in _SPECS.values()}
    if text in codes:
        return codes[text]
    try:
        if text.startswith("-"):
            raise InvalidRequest("invalid time, a time before now begins with @-")
        return max(0, parse_time(text.removeprefix("@"), now_ms))
    except InvalidRequest:
        expected = f"'{' '.join(_SPECS)} @TIME @-2h or a number of ms'"
        raise InvalidRequest("invalid --time", text=repr(text), expected=expected) from None


def _partitions(manager: LogManager, names: list[tuple[str, int | None]]) -> list[TopicPartition]:
    found: dict[TopicPartition, None] = {}
    for topic, partition in names or [(each.name, None) for each in manager.topics.all()]:
        selected = manager.topics.get(topic).partitions() if partition is None else [TopicPartition(topic, partition)]
        found |= dict.fromkeys(selected)
    return list(found)


class DeletedRange(PartitionRow):
    """The log start offset before and now."""

    before: Annotated[int, number("OLD START OFFSET", format_count)]
    low_watermark: Annotated[int, number("START", format_count)]
    offsets: Annotated[int, number("OFFSETS DELETED", format_count)]


class DeletedRecords(Work):
    """``tiered delete-records``."""

    partitions: list[DeletedRange]


@command("delete-records", example="delete-records orders/0 --before 1000 --dry-run")
def delete_records(
    session: Session,
    target: str | None = argument("[TOPIC/PARTITION]"),
    before: int | None = option("--before OFFSET", "Delete the records below this offset; -1: all records.", least=-1),
    file: IO[bytes] | None = option(
        "--file", "Read offsets from offsets.json of Kafka, - for stdin.", type=click.File("rb")
    ),
    dry_run: bool = option("--dry-run", "Show what would be deleted, change nothing."),
    yes: bool = YES,
    output: str = OUTPUT,
) -> None:
    """Delete the records below an offset. The next rounds of `tiered run` delete their segments."""
    from tiered.serve.node.operations import delete_records, plan_record_deletion

    offsets = [*_requested(target, before, file).items()]
    if dry_run:
        with session.manager(read_only=True) as manager:
            planned = plan_record_deletion(manager, offsets=offsets)
    else:
        with session.node() as node:
            planned = node.run(plan_record_deletion, offsets=offsets)
            count = sum(each.low_watermark - each.before for each in planned)
            question = f"delete the records of {format_count(count)} offsets permanently?"
            without = "records would be deleted permanently; add --yes, or --dry-run to see which"
            confirm(question, yes=yes, without=without)
            planned = node.run(delete_records, offsets=offsets)
    rows = [DeletedRange.of(each.partition, each, offsets=each.low_watermark - each.before) for each in planned]
    print_result(DeletedRecords(dry_run=dry_run, partitions=rows), output)


def _requested(target: str | None, before: int | None, file: IO[bytes] | None) -> dict[TopicPartition, int]:
    if file is not None:
        if target is not None or before is not None:
            raise click.UsageError("--file contains the partitions and offsets; remove TOPIC/PARTITION and --before")
        try:
            return read_offsets(file.read())
        except InvalidRequest as error:
            raise InvalidRequest(error.attempt, **{**error.facts, "file": file.name}) from None
    if target is None or before is None:
        raise click.UsageError("name TOPIC/PARTITION and --before OFFSET, or --file")
    return {parse_one_partition(target, "cannot delete records"): before}


def read_offsets(text: bytes) -> dict[TopicPartition, int]:
    """Read Kafka's JSON file of offsets, version 1. Raises InvalidRequest, also for a duplicate partition."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest("cannot read the offsets file, it is not JSON") from None
    entries = body.get("partitions") if isinstance(body, dict) else None
    if not isinstance(entries, list) or body.get("version", _VERSION) != _VERSION:
        raise InvalidRequest("cannot read the offsets file, it has no partitions, or is not of version 1")
    found: dict[TopicPartition, int] = {}
    for at, entry in enumerate(entries):
        fields = [entry.get(name) for name in ("topic", "partition", "offset")] if isinstance(entry, dict) else []
        match fields:
            # bool is a subclass of int
            case [str(topic), int(partition), int(offset)] if bool not in map(type, fields):
                name = TopicPartition(topic, partition)
            case _:
                wrong = "cannot read the offsets file, an entry is not topic, partition and offset"
                raise InvalidRequest(wrong, entry=at)
        if name in found:
            raise InvalidRequest("cannot read the offsets file, a partition is repeated", partition=name)
        found[name] = offset
    return found


class OpenTransaction(PartitionRow):
    """A transaction without its end; `waiting` offsets are not returned to committed readers."""

    producer_id: Annotated[int, number("PRODUCER")]
    producer_epoch: Annotated[int, number("EPOCH")]
    first_offset: Annotated[int, number("FIRST OFFSET", format_count)]
    waiting: Annotated[int, number("DELAYED OFFSETS", format_count)]
    timestamp: Annotated[int, text("LAST RECORD", rfc3339)]


class Transactions(Result):
    """``tiered transactions list``."""

    unread: list[UnreadPartitions]
    transactions: list[OpenTransaction]


@click.group("transactions")
def transactions() -> None:
    """Find open transactions, and end them."""


@command("list", transactions, example="transactions list orders")
def list_open(session: Session, targets: tuple[str, ...] = PARTITIONS, output: str = OUTPUT) -> int:
    """List the open transactions of partitions; of all topics without arguments."""
    names = [parse_partition(target) for target in targets]
    from tiered.partition.hanging_transactions import open_transactions

    with session.manager(read_only=True, is_brief=True) as manager:
        partitions = manager.partitions.all()
        if names:
            partitions = [manager.partitions.find(name) for name in _partitions(manager, names)]
        problems = manager.problems if not names else {}
        opened = {each.name for each in partitions}
        unread = {name: error for name, error in problems.items() if name not in opened}
        rows = [
            OpenTransaction.of(
                partition.name,
                each,
                first_offset=each.transaction_first_offset,
                waiting=partition.log.next_offset - each.transaction_first_offset,
                timestamp=each.timestamp_ms,
            )
            for partition in partitions
            for each in open_transactions(partition)
        ]
    print_result(Transactions(unread_rows(unread), rows), output)
    return session.report(problems, unread)


@command("end", transactions, example="transactions end orders/0 --producer-id 7 --abort --dry-run")
def end(
    session: Session,
    target: str = argument("TOPIC/PARTITION"),
    producer_id: int = option("--producer-id", "Name the producer of the transaction.", least=0, required=True),
    aborts: bool = option("--abort", "Abort: committed readers do not see its records."),
    commits: bool = option("--commit", "Commit: committed readers see its records."),
    yes: bool = YES,
    dry_run: bool = option("--dry-run", "Show the transaction that would end, change nothing."),
) -> None:
    """Write the marker that ends a producer's open transaction: --abort or --commit."""
    if aborts == commits:
        raise click.UsageError(f"add --abort or --commit{(', not both' if aborts else '')}")
    outcome = "abort" if aborts else "commit"
    name = parse_one_partition(target, "cannot end a transaction")
    from tiered.partition.hanging_transactions import end_transaction, find_open

    if dry_run:
        with session.manager(read_only=True, is_brief=True) as manager:
            found = find_open(manager.partitions.find(name), producer_id)
        where = f"partition={name} producer_id={producer_id} first_offset={found.transaction_first_offset}"
        session.say(f"would {outcome}: {where}; nothing changed")
        return
    question = f"{outcome} the open transaction of producer {producer_id} in {name} permanently?"
    confirm(question, yes=yes, without="this is permanent; add --yes")
    with session.manager() as manager:
        ended = end_transaction(manager.partitions.find(name), producer_id, commit=commits, now_ms=now_ms())
    done = "committed" if commits else "aborted"
    session.say(f"{done}: partition={name} producer_id={producer_id} first_offset={ended.transaction_first_offset}")
