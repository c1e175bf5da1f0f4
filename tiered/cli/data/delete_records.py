"""``tiered delete-records``: raise the log start offset, so that the oldest records expire."""

from __future__ import annotations

import sys
from typing import IO, Annotated

import click

from local.errors import InvalidRequest
from local.names import TopicPartition
from tiered.cli.arguments import parse_partition
from tiered.cli.options import OUTPUT, argument, command, option
from tiered.cli.render import PartitionRow, Work, number, print_result
from tiered.cli.session import Session, now_ms
from tiered.config.units import format_count

_VERSION = 1  # of Kafka's JSON file


class DeletedRange(PartitionRow):
    """The log start offset before and now."""

    before: Annotated[int, number("OLD START OFFSET", format_count)]
    low_watermark: Annotated[int, number("START", format_count)]
    offsets: Annotated[int, number("OFFSETS DELETED", format_count)]


class DeletedRecords(Work):
    """``tiered delete-records``."""

    partitions: list[DeletedRange]


@command("delete-records")
def delete_records(
    session: Session,
    target: str | None = argument("[TOPIC/PARTITION]"),
    before: int | None = option(
        "--before OFFSET", "Delete the records below this offset; -1: all records.", type=click.IntRange(-1)
    ),
    file: IO[bytes] | None = option(
        "--file", "Read offsets from offsets.json of Kafka, - for stdin.", type=click.File("rb")
    ),
    dry_run: bool = option("--dry-run", "Show what would be deleted, change nothing."),
    yes: bool = option("--yes", "Do not ask for confirmation."),
    output: str = OUTPUT,
) -> None:
    """Delete the records below an offset. Their segments go with the next rounds of `tiered run`."""
    offsets = _asked(target, before, file)
    with session.manager(read_only=dry_run) as manager:
        planned = manager.plan_deletion(offsets)
        if not dry_run:
            _confirm(sum(each.low_watermark - each.before for each in planned.values()), yes)
            planned = manager.delete_records(offsets, now_ms=now_ms())
    rows = [DeletedRange.of(name, each, offsets=each.low_watermark - each.before) for name, each in planned.items()]
    print_result(DeletedRecords(dry_run=dry_run, partitions=rows), output)


def _asked(target: str | None, before: int | None, file: IO[bytes] | None) -> dict[TopicPartition, int]:
    if file is not None:
        if target is not None or before is not None:
            raise click.UsageError("--file contains the partitions and offsets; remove TOPIC/PARTITION and --before")
        try:
            return read_offsets(file.read())
        except InvalidRequest as error:
            raise InvalidRequest(error.attempt, **{**error.facts, "file": file.name}) from None
    if target is None or before is None:
        raise click.UsageError("name TOPIC/PARTITION and --before OFFSET, or --file")
    topic, number = parse_partition(target)
    if number is None:
        raise InvalidRequest(
            "cannot delete records, name TOPIC/PARTITION", text=repr(target), expected="TOPIC/PARTITION"
        )
    return {TopicPartition(topic, number): before}


def read_offsets(text: bytes) -> dict[TopicPartition, int]:
    """Read Kafka's ``{"partitions": [{"topic": .., "partition": .., "offset": ..}], "version": 1}``.

    Raises InvalidRequest for anything else, and for a duplicate partition.
    """
    import json

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
            case [str(topic), int(partition), int(offset)] if bool not in map(
                type, fields
            ):  # bool is a subclass of int
                name = TopicPartition(topic, partition)
            case _:
                raise InvalidRequest(
                    "cannot read the offsets file, an entry is not topic, partition and offset", entry=at
                )
        if name in found:
            raise InvalidRequest("cannot read the offsets file, a partition is repeated", partition=name)
        found[name] = offset
    return found


def _confirm(count: int, yes: bool) -> None:
    """Ask at a terminal; otherwise require --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("records would be deleted permanently; add --yes, or --dry-run to see which")
    click.confirm(f"delete the records of {format_count(count)} offsets permanently?", abort=True, err=True)
