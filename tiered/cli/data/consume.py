"""``tiered consume``: read records from any retained offset, from both tiers or from the bucket alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import click

from local.names import TopicPartition
from tiered.cli.arguments import Position, count_type, parse_partition, parse_position
from tiered.cli.errors import Exit
from tiered.cli.job_command import findings_code, report_findings
from tiered.cli.options import GROUP, REMOTE, REMOTE_OPTIONS, Layout, argument, command, option
from tiered.cli.records import ConsumedRecord, parse_template
from tiered.cli.render import to_json
from tiered.cli.session import UNNAMED, Session, now_ms

if TYPE_CHECKING:
    from local.format.record import StoredRecord
    from tiered.manager.manager import LogManager
    from tiered.read.bucket_reader import RemoteLog
    from tiered.read.reader import TieredReader

ISOLATIONS = ("read_uncommitted", "read_committed")  # values of `local.records.isolation.Isolation`, which needs numpy
VIEW = "compacted"  # `remote.manifest.view.DEFAULT_VIEW`


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where the records are: both tiers of this node, its disk alone, or any bucket."""

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

    def open(self, session: Session, topic: str) -> AbstractContextManager[LogManager | RemoteLog]:
        layout = self.layout.words()
        if self.url is None:
            return session.manager(read_only=True, is_alone=self.is_local, is_hasty=not self.is_local)
        session.set_up_logging()
        from tiered.read.bucket_reader import open_remote

        topic_ids = {topic: self.topic_id} if self.topic_id is not None else {}
        return open_remote(self.url, self.options, topic_ids=topic_ids, **layout)


@command("consume", example="consume orders/0 --from @-2h -n 10 -f '%o %k %v\\n'")
def consume(
    session: Session,
    target: str = argument("TOPIC[/PARTITION]"),
    start: str = option("--from", "First position: start, end, OFFSET, -N, @TIME or @-2h.", default="start"),
    count: int | None = option("-n, --count", "Stop after this many records.", type=count_type(0)),
    template: str = option(
        "-f, --format", "Set the output template: %T %p %o %k %v %t %d %h, \\n \\t.", default="%v\\n"
    ),
    output: str = option("-o, --output", "Set the output format.", choices=["text", "jsonl"], default="text"),
    isolation: str = option(
        "--isolation",
        "Set the isolation; read_committed stops at the first open transaction and omits aborted ones.",
        choices=ISOLATIONS,
        default=ISOLATIONS[0],
    ),
    read_compacted: bool = option(
        "--read-compacted", "Read a compacted view below its horizon, then the log; fails without a view."
    ),
    view: str | None = option("--view NAME", "Choose another view than 'compacted' for --read-compacted."),
    place: _Place = GROUP,
) -> int:
    """Print the records of a partition, or of all partitions of a topic one after another, up to the log end."""
    place.check(read_compacted=read_compacted)
    if view is not None and not read_compacted:
        raise click.UsageError("--view requires --read-compacted; without it the full log is read")
    topic, number = parse_partition(target)
    position = parse_position(start, now_ms())
    show = parse_template(template)
    write = sys.stdout.buffer.write
    from local.records.isolation import Isolation
    from tiered.read.bucket_reader import RemoteLog

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
        for partition, record in islice(_records(reader, partitions, position), count):
            if output == "jsonl":
                write(to_json(ConsumedRecord.of_stored(partition, record)).encode() + b"\n")
            else:
                write(show(partition, record))
        return _report_inconsistencies(source, partitions) if isinstance(source, RemoteLog) else Exit.DONE


def _print_lost(reader: TieredReader, partitions: list[TopicPartition]) -> None:
    """Print a line for each range that the log had lost before the view included it."""
    from tiered.read.view_reader import CompactedReader

    if not isinstance(reader, CompactedReader):
        return
    for partition in partitions:
        for start, end in reader.view(partition).lost:
            click.echo(f"! {partition}: records of [{start}, {end}) were lost before the view included them", err=True)


def _records(
    reader: TieredReader, partitions: list[TopicPartition], position: Position
) -> Iterator[tuple[TopicPartition, StoredRecord]]:
    for partition in partitions:
        for record in reader.records(partition, first_offset(reader, partition, position)):
            yield partition, record


def _report_inconsistencies(bucket: RemoteLog, partitions: list[TopicPartition]) -> Exit:
    """Print inconsistencies of a bucket of an external layout. Exit 4 if they made segments unreadable."""
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
