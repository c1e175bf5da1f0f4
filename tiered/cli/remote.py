"""``tiered remote``: a bucket looked at by its address alone, whosever it is."""

from __future__ import annotations

import click

from tiered.cli.layouts import layout_options, layout_words
from tiered.cli.render import Column, Row, emit, output_option
from tiered.cli.session import Session, store_options
from tiered.units import format_bytes, format_count

_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("topic_id", "TOPIC ID"),
    Column("log_start_offset", "START", is_number=True),
    Column("next_offset", "NEXT", is_number=True),
    Column("segments", "SEGMENTS", format_count, is_number=True),
    Column("size_bytes", "SIZE", format_bytes, is_number=True),
    Column("missing_offsets", "MISSING", format_count, is_number=True),
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
) -> None:
    """The partitions of a bucket: offsets, segments, bytes, and offsets that no segment holds."""
    session.set_up_logging(tells_problems=True)
    from tiered.remote_view import open_remote

    rows: list[Row] = []
    with open_remote(url, options, **layout_words(layout, prefixes, private_keys)) as bucket:
        each_of = [(topic, view) for topic in topics or bucket.topics() for view in bucket.each_of(topic)]
        for topic, view in each_of:
            for name in view.partitions(topic):
                head, lost = view.head(name), view.gaps(name)
                row: dict[str, object] = {"topic": name.topic, "partition": name.partition}
                row |= {"topic_id": head.topic_id or None, "log_start_offset": head.log_start_offset}
                row |= {"next_offset": head.next_offset}
                # Of a tier that was given up nobody reads anything, whatever has not left yet.
                segments, size = (0, 0) if head.given_up else (head.segment_count, head.size_bytes)
                row |= {"segments": segments, "size_bytes": size}
                rows.append({**row, "missing_offsets": sum(end - start for start, end in lost)})
                for start, end in lost:
                    click.echo(f"! {name}: no segment holds the offsets {start} to {end - 1}", err=True)
    emit("partitions", rows, _COLUMNS, output)
