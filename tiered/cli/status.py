"""``tiered status``: what each tier holds, what waits, what only this disk has, and what the bucket costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from local.errors import LogError
from local.names import TopicPartition
from tiered.cli.errors import Exit
from tiered.cli.render import Column, Row, emit, output_option
from tiered.cli.session import Session, now_ms
from tiered.status import PartitionStatus, partition_status
from tiered.units import format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from policies.prices import Prices
    from tiered.topics import Topic

_Found = Mapping[TopicPartition, PartitionStatus]
_Problems = Mapping[TopicPartition, LogError]
_SUMS = (
    "local_segments",
    "local_bytes",
    "remote_segments",
    "remote_bytes",
    "lag_segments",
    "lag_bytes",
    "at_risk_bytes",
)


@click.command("status")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("-p", "--partitions", "by_partition", is_flag=True, help="A line for each partition.")
@click.option("--check", is_flag=True, help="Exit 10 when a partition or a disk has a problem.")
@output_option()
@click.pass_obj
def status(session: Session, topics: tuple[str, ...], by_partition: bool, check: bool, output: str) -> int:
    """What each tier holds. AT RISK is what exists on this disk only; the price is for storage alone.

    A partition that cannot be opened has no figures; what it lacks is told on stderr.
    """
    from tiered.price_file import configured_prices

    with session.manager(read_only=True) as manager:
        prices = configured_prices(manager.config).of(None)
        chosen = [manager.topic(topic) for topic in topics] if topics else manager.topics()
        offline = manager.offline_directories()
        problems = {name: problem for name, problem in manager.problems.items() if not topics or name.topic in topics}
        found = {
            snapshot.partition: partition_status(snapshot) for snapshot in manager.snapshots(now_ms(), topics or None)
        }
    if by_partition:
        names = sorted({*found, *problems})
        emit(
            "partitions",
            [_partition_row(name, found, problems, prices) for name in names],
            _PARTITIONS,
            output,
            **_facts(prices),
        )
    else:
        rows = [_topic_row(topic, found, problems, prices) for topic in sorted(chosen, key=lambda each: each.name)]
        emit("topics", rows, _TOPICS, output, **_facts(prices))
    session.tell_problems(problems)
    for root, error in offline.items():
        click.echo(f"! {root}: log directory offline: {' '.join(str(error).split())}", err=True)
    return Exit.UNHEALTHY if check and (problems or offline) else Exit.DONE


def _topic_row(topic: Topic, found: _Found, problems: _Problems, prices: Prices) -> Row:
    names = topic.partitions()
    return {
        **_figures([found[name] for name in names if name in found], prices),
        "topic": topic.name,
        "partitions": topic.partition_count,
        "problems": [str(problems[name]) for name in names if name in problems],
    }


def _partition_row(name: TopicPartition, found: _Found, problems: _Problems, prices: Prices) -> Row:
    """Without figures for a partition that did not open."""
    return {
        **(_figures([found[name]], prices) | _offsets(found[name]) if name in found else {}),
        "topic": name.topic,
        "partition": name.partition,
        "problems": [str(problems[name])] if name in problems else [],
    }


def _figures(some: Sequence[PartitionStatus], prices: Prices) -> dict[str, object]:
    """The sums of some partitions; nothing for none."""
    from policies.cost import monthly_storage

    if not some:
        return {}
    sums = {name: sum(getattr(each, name) for each in some) for name in _SUMS}
    return {
        "is_tiered": some[0].is_tiered,
        # Offsets, not records: what compaction and gaps removed is still counted.
        "offsets": sum(each.next_offset - each.log_start_offset for each in some),
        **sums,
        "lag": (sums["lag_segments"], sums["lag_bytes"]) if some[0].is_tiered else None,
        "dollars_per_month": round(monthly_storage(sums["remote_bytes"], prices), 6),
    }


def _offsets(status: PartitionStatus) -> dict[str, object]:
    return {
        "log_start_offset": status.log_start_offset,
        "local_start_offset": status.local_start_offset,
        "next_offset": status.next_offset,
        "remote_next_offset": status.remote_next_offset,
        "cleaner_offset": status.cleaner_offset,
        "unlinked_bytes": status.unlinked_bytes,
    }


def _facts(prices: Prices) -> dict[str, object]:
    return {"prices": {"as_of": prices.as_of, "region": prices.region, "storage_class": prices.storage_class}}


def _lag(lag: tuple[int, int]) -> str:
    return f"{lag[0]} seg {format_bytes(lag[1])}" if lag[0] else "ok"


_SHARED = (
    Column("local_segments"),
    Column("local_bytes", "LOCAL", format_bytes, is_number=True),
    Column("remote_segments"),
    Column("remote_bytes", "REMOTE", format_bytes, is_number=True),
    Column("lag_segments"),
    Column("lag_bytes"),
    Column("lag", "UPLOAD LAG", _lag, only_table=True),
    Column("at_risk_bytes", "AT RISK", format_bytes, is_number=True),
    Column("dollars_per_month", "$/MONTH", format_dollars, is_number=True),
    Column("is_tiered"),
    Column("problems"),
)
_TOPICS = (
    Column("topic", "TOPIC"),
    Column("partitions", "PARTS", is_number=True),
    Column("offsets", "OFFSETS", format_count, is_number=True),
    *_SHARED,
)
_PARTITIONS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("log_start_offset", "START", format_count, is_number=True),
    Column("local_start_offset", "LOCAL FROM", format_count, is_number=True),
    Column("remote_next_offset", "REMOTE TO", format_count, is_number=True),
    Column("next_offset", "NEXT", format_count, is_number=True),
    Column("cleaner_offset"),
    Column("unlinked_bytes"),
    *_SHARED,
)
