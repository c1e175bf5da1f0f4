"""``tiered remote``: inspect any bucket by its address alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import click

from local.errors import LogError, Unavailable
from tiered.cli.bucket_options import findings_code, report_findings
from tiered.cli.errors import worst
from tiered.cli.options import layout_options, layout_words
from tiered.cli.render import PartitionRow, Result, number, output_option, print_result, text
from tiered.cli.session import Session, store_options
from tiered.config.units import format_bytes, format_count

if TYPE_CHECKING:
    from local.names import TopicPartition
    from local.verify.findings import Finding
    from tiered.read.bucket_reader import RemoteLog


class RemotePartition(PartitionRow):
    """`missing_offsets` are held by no segment; `topic_id` null: the layout has none.

    If the partition cannot be read, `error` says why, and the figures are null.
    """

    topic_id: Annotated[str | None, text("TOPIC ID")]
    log_start_offset: Annotated[int | None, number("START")]
    next_offset: Annotated[int | None, number("NEXT")]
    segments: Annotated[int | None, number("SEGMENTS", format_count)]
    size_bytes: Annotated[int | None, number("SIZE", format_bytes)]
    missing_offsets: Annotated[int | None, number("MISSING", format_count)]
    error: str | None


class RemoteListed(Result):
    """``tiered remote ls``."""

    partitions: list[RemotePartition]


@click.group("remote")
def remote() -> None:
    """Look at a bucket by its address alone, whosever it is. Nothing is written."""


@remote.command("ls")
@click.argument("url")
@click.argument("topics", nargs=-1, metavar="[TOPIC ...]")
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", callback=store_options, help="Option of the store."
)
@layout_options("auto", "Layout of the bucket:")
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
    session.set_up_logging(reports_problems=True)
    from tiered.read.bucket_reader import open_remote

    rows: list[RemotePartition] = []
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
    print_result(RemoteListed(rows), output)
    return worst(errors) if errors else findings_code(found)


def _row(view: RemoteLog, name: TopicPartition) -> RemotePartition:
    manifest, lost = view.manifest(name), view.gaps(name)
    report_findings(name, view.findings(name))
    for start, end in lost:
        click.echo(f"! {name}: no segment covers the offsets {start} to {end - 1}", err=True)
    return RemotePartition.of(
        name,
        manifest,
        topic_id=manifest.topic_id or None,
        # Readers read nothing of a disabled tier, even if its objects still exist.
        segments=0 if manifest.tier_disabled else manifest.segment_count,
        size_bytes=0 if manifest.tier_disabled else manifest.size_bytes,
        missing_offsets=sum(end - start for start, end in lost),
        error=None,
    )


def _unread(view: RemoteLog, name: TopicPartition, error: LogError) -> RemotePartition:
    """A partition of which only the name is known."""
    ids = view.topic_ids(name.topic)
    return RemotePartition.of(name, None, topic_id=ids[0] if len(ids) == 1 else None, error=str(error))
