"""``tiered group``: consumer groups of the node, their offsets and their lag."""

from __future__ import annotations

from typing import Annotated

import click

from tiered.cli.data.offsets import parse_spec
from tiered.cli.options import OUTPUT, YES, argument, command, option, parse_partition
from tiered.cli.render import PartitionRow, Result, Struct, Work, number, print_result, text
from tiered.cli.session import Session, confirm, now_ms
from tiered.config.units import format_count


class ListedGroup(Struct):
    """A group and its state by Kafka's name. `type` is its protocol: classic or consumer."""

    group: Annotated[str, text("GROUP")]
    state: Annotated[str, text("STATE")]
    protocol_type: Annotated[str, text("PROTOCOL TYPE")]
    type: Annotated[str, text("TYPE")]


class Groups(Result):
    """``tiered group list``."""

    groups: list[ListedGroup]


class GroupOffset(PartitionRow):
    """A committed offset. Null: the partition was deleted."""

    committed: Annotated[int, number("COMMITTED", format_count)]
    end: Annotated[int | None, number("END", format_count)]
    lag: Annotated[int | None, number("LAG", format_count)]


class DescribedGroup(Result):
    """``tiered group describe``."""

    group: str
    type: str
    state: str
    members: int
    offsets: list[GroupOffset]


class ResetOffset(PartitionRow):
    """`before` null: no offset was committed."""

    before: Annotated[int | None, number("BEFORE", format_count)]
    committed: Annotated[int, number("COMMITTED", format_count)]


class OffsetsReset(Work):
    """``tiered group reset-offsets``."""

    group: str
    offsets: list[ResetOffset]


@click.group("group")
def group() -> None:
    """Show consumer groups and their lag, and reset their offsets."""


@command("list", group, example="group list")
def list_groups(session: Session, output: str = OUTPUT) -> None:
    """List the consumer groups of this node."""
    from tiered.serve.node import group_calls

    with session.node(read_only=True) as node:
        found = group_calls.list_groups(node.client)
    rows = [ListedGroup(each.group_id, each.group_state, each.protocol_type, each.group_type) for each in found]
    print_result(Groups(sorted(rows, key=lambda row: row.group)), output)


@command("describe", group, example="group describe readers")
def describe(session: Session, name: str = argument(), output: str = OUTPUT) -> None:
    """Show the committed offsets of the group NAME, and how many offsets each partition has after them."""
    from tiered.serve.node import group_calls

    with session.node(read_only=True) as node:
        found, offsets = group_calls.describe_group(node.client, name), group_calls.group_offsets(node.client, name)
    rows = [GroupOffset.of(each.partition, each) for each in offsets]
    print_result(DescribedGroup(name, found.type, found.state, found.members, rows), output)
    session.say(f"group {name}: type={found.type} state={found.state} members={found.members}")


@command("reset-offsets", group, example="group reset-offsets readers orders --to earliest --dry-run")
def reset_offsets(
    session: Session,
    name: str = argument(),
    targets: tuple[str, ...] = argument("TOPIC[/PARTITION]...", required=True),
    to: str = option("--to SPEC", "Set the offset: earliest, latest, @TIME or @-2h.", required=True),
    dry_run: bool = option("--dry-run", "Show the new offsets, change nothing."),
    yes: bool = YES,
    output: str = OUTPUT,
) -> None:
    """Commit other offsets for the group NAME, which must have no members."""
    from tiered.serve.node import group_calls

    spec, names = parse_spec(to, now_ms()), [parse_partition(target) for target in targets]
    with session.node(read_only=dry_run) as node:
        found = group_calls.find_targets(node.client, names, spec)
        before = {each.partition: each.committed for each in group_calls.group_offsets(node.client, name)}
        if not dry_run:
            confirm(f"reset {len(found)} offsets of the group {name}?", yes=yes)
            group_calls.commit_offsets(node.client, name, found)
    rows = [ResetOffset.of(each, before=before.get(each), committed=offset) for each, offset in sorted(found.items())]
    print_result(OffsetsReset(dry_run=dry_run, group=name, offsets=rows), output)
    if dry_run:
        session.say("nothing changed")
