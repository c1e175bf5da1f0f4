"""``tiered placement``: the replica placement of a topic on a described fleet. Changes nothing."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Mapping

import click
import msgspec

from local.errors import InvalidRequest
from policies.placement import Broker, alternate_racks, assign_replicas
from tiered.cli.options import argument, command, option
from tiered.cli.render import Column, PartitionRow, Struct, print_table
from tiered.cli.session import Session
from tiered.config.user_files import read_given


class Replicas(PartitionRow):
    """The brokers of a partition, the preferred leader first."""

    replicas: list[int]


class Placement(Struct):
    """``tiered placement``: the input of ``kafka-reassign-partitions``, and so without `schema_version`."""

    version: int
    partitions: list[Replicas]


@command("placement", example="placement brokers.txt -p 8 -r 3")
def placement(
    session: Session,
    file: str | None = argument("[FILE|-]", type=click.Path(allow_dash=True)),
    brokers: str | None = option("--brokers ID[:RACK],...", "List the brokers, in place of FILE."),
    topic: str = option("--topic NAME", "Set the topic name in the JSON.", default="topic"),
    partitions: int = option(
        "-p, --partitions N", "Set the number of partitions.", type=click.IntRange(min=1), required=True
    ),
    replication_factor: int = option(
        "-r, --replication-factor R",
        "Set the number of replicas of each partition.",
        type=click.IntRange(min=1),
        required=True,
    ),
    start: int | None = option(
        "--start N", "Set the index of the first leader; default: random.", type=click.IntRange(min=0)
    ),
    shift: int | None = option(
        "--shift N", "Set the shift of the followers; default: random.", type=click.IntRange(min=0)
    ),
    output: str = option("-o, --output", "Set the output format.", choices=("table", "json"), default="table"),
) -> None:
    """Assign replicas as Kafka does: leaders in turn, followers on the next brokers, spread over racks.

    FILE has one broker a line, or several separated by commas: ID or ID:RACK. The JSON is the input of Kafka's
    kafka-reassign-partitions.
    """
    from local.names import check_topic

    fleet = parse_fleet(_text(file, brokers))
    check_topic(topic)
    # Random as in Kafka; printed, so that the same assignment can be requested again.
    draw = random.Random().randrange  # noqa: S311 - no secret hangs on it
    start = draw(len(fleet)) if start is None else start
    shift = draw(len(fleet)) if shift is None else shift
    assigned = assign_replicas(
        fleet, partitions=partitions, replication_factor=replication_factor, start_index=start, shift=shift
    )
    order = ",".join(str(each.broker_id) for each in alternate_racks(fleet))
    session.say(f"brokers in turn: {order} --start {start} --shift {shift}")
    rows = [Replicas(topic, number, list(each)) for number, each in assigned.items()]
    if output == "json":
        # The file of ``kafka-reassign-partitions --reassignment-json-file``.
        click.echo(json.dumps(msgspec.to_builtins(Placement(1, rows))))
    else:
        print_table(rows, _columns({each.broker_id: each.rack for each in fleet}))


def parse_fleet(text: str) -> list[Broker]:
    """Parse ``0:rack1,1:rack2`` or one broker a line; ``#`` starts a comment. Raises InvalidRequest."""

    fleet = []
    for line in text.splitlines():
        for word in filter(None, (part.strip() for part in line.partition("#")[0].split(","))):
            number, colon, rack = word.partition(":")
            if not re.fullmatch(r"[0-9]{1,9}", number.strip()) or (colon and not rack.strip()):
                raise InvalidRequest("invalid brokers", text=repr(word), expected="an id such as 0, or 0:rack1")
            fleet.append(Broker(broker_id=int(number), rack=rack.strip() or None))
    if not fleet:
        raise InvalidRequest("invalid brokers, there is none", expected="'0:rack1,1:rack2' or a file with one a line")
    return fleet


def _text(file: str | None, brokers: str | None) -> str:
    if (file is None) == (brokers is None):
        raise InvalidRequest("invalid brokers, name either --brokers or a file")
    if brokers is not None or file is None:
        return brokers or ""

    hint = "one broker a line, such as 0:rack1"
    body = sys.stdin.buffer.read() if file == "-" else read_given(file, "invalid brokers", hint)
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("cannot read the brokers, the file is not UTF-8", file=file) from None


def _columns(racks: Mapping[int, str | None]) -> tuple[Column, ...]:
    def of_replicas(row: Replicas) -> str | None:
        found = [racks[each] for each in row.replicas]
        return ",".join(str(each) for each in found) if None not in found else None

    return (
        Column("partition", "PARTITION", is_number=True),
        Column("", "LEADER", is_number=True, of=lambda row: row.replicas[0]),
        Column("replicas", "REPLICAS", lambda each: ",".join(map(str, each))),
        Column("", "RACKS", of=of_replicas),
    )
