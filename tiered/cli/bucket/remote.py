"""``tiered remote``: inspect any bucket by its address alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from local.errors import LogError, Unavailable
from tiered.cli.errors import worst
from tiered.cli.layouts import findings_code, layout_options, layout_words, report_findings
from tiered.cli.render import Column, Row, emit, output_option
from tiered.cli.session import Session, store_options
from tiered.config.units import format_bytes, format_count

if TYPE_CHECKING:
    from local.names import TopicPartition
    from local.verify.findings import Finding
    from tiered.read.bucket_reader import RemoteLog

_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("topic_id", "TOPIC ID"),
    Column("log_start_offset", "START", is_number=True),
    Column("next_offset", "NEXT", is_number=True),
    Column("segments", "SEGMENTS", format_count, is_number=True),
    Column("size_bytes", "SIZE", format_bytes, is_number=True),
    Column("missing_offsets", "MISSING", format_count, is_number=True),
    Column("error"),
)


@click.group("remote")
def remote() -> None:
    """Look at a bucket by its address alone, whosever it is. Nothing is written."""


@remote.command("ls")
@click.argument("url")
@click.argument("topics", nargs=-1, metavar="[TOPIC ...]")
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", callback=store_options, help="For the bucket."
)
@layout_options("auto", "The bucket's layout:")
@output_option()
@click.pass_obj
def ls(
    session: Session,
    url: str,
    topics: tuple[str, ...],
    options: dict[str, object],
    layout: str,
    prefixes: tuple[str, ...],
    private_keys: tuple[str, ...],
    output: str,
) -> int:
    """List the partitions of a bucket: offsets, segments, bytes, and offsets that no segment holds."""
    session.set_up_logging(tells_problems=True)
    from tiered.read.bucket_reader import open_remote

    rows: list[Row] = []
    errors: list[LogError] = []
    found: list[Finding] = []
    with open_remote(url, options, **layout_words(layout, prefixes, private_keys)) as bucket:
        each_of = [(topic, view) for topic in topics or bucket.topics() for view in bucket.each_of(topic)]
        for topic, view in each_of:
            for name in view.partitions(topic):
                try:
                    rows.append(_row(view, name))
                    found += view.findings(name)
                except Unavailable:
                    raise
                except LogError as error:
                    errors.append(error)
                    rows.append(_unread(view, name, error))
                    click.echo(f"! {name}: {error}", err=True)
    if errors and len(errors) == len(rows):
        raise errors[0]
    emit("partitions", rows, _COLUMNS, output)
    return worst(errors) if errors else findings_code(found)


def _row(view: RemoteLog, name: TopicPartition) -> Row:
    head, lost = view.head(name), view.gaps(name)
    report_findings(name, view.findings(name))
    for start, end in lost:
        click.echo(f"! {name}: no segment holds the offsets {start} to {end - 1}", err=True)
    return {
        "topic": name.topic,
        "partition": name.partition,
        "topic_id": head.topic_id or None,
        "log_start_offset": head.log_start_offset,
        "next_offset": head.next_offset,
        # Readers read nothing of a disabled tier, even if its objects still exist.
        "segments": 0 if head.given_up else head.segment_count,
        "size_bytes": 0 if head.given_up else head.size_bytes,
        "missing_offsets": sum(end - start for start, end in lost),
        "error": None,
    }


def _unread(view: RemoteLog, name: TopicPartition, error: LogError) -> Row:
    """A partition of which only the name is known."""
    ids = view.topic_ids(name.topic)
    unknown = dict.fromkeys(("log_start_offset", "next_offset", "segments", "size_bytes", "missing_offsets"))
    where = {"topic": name.topic, "partition": name.partition, "topic_id": ids[0] if len(ids) == 1 else None}
    return {**where, **unknown, "error": str(error)}
