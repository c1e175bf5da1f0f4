"""``tiered demo``: the main features on real data, without configuration."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tiered.cli.render import Column, emit, output_option
from tiered.cli.session import Session
from tiered.config.units import format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from tiered.demo.main_job import DemoResult
    from tiered.demo.steps import Tell


@click.command("demo")
@click.option(
    "--dir", "directory", metavar="DIR", help="A folder of its own; default: ./tiered-demo. Emptied every time."
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N flights.")
@click.option("--no-spark", is_flag=True, help="Leave Spark out; then no Java is needed.")
@output_option()
@click.pass_obj
def demo(session: Session, directory: str | None, limit: int | None, no_spark: bool, output: str) -> None:
    """Take a year of real flights through both tiers, compaction and Spark, check all of it, and show what it took.

    Starts an S3 server on loopback for itself and stops it again. Safe to run twice.
    """
    session.set_up_logging()
    from tiered.demo.main_job import run_demo

    root = os.path.abspath(directory or os.path.join(session.directory, "tiered-demo"))
    with _progress(session) as tell:
        result = run_demo(root, limit=limit, with_spark=not no_spark, tell=tell)
    if output != "table":
        emit("steps", _steps(result), _STEP_COLUMNS, output, tiers=_tiers(result), bill=_bill(result))
        return
    emit("steps", _steps(result), _STEP_COLUMNS, output)
    click.echo()
    emit("tiers", _tiers(result), _TIER_COLUMNS, output)
    click.echo(f"\n{_bill_in_words(result)}")
    session.say(f"\n{_look_around(result)}")


@contextmanager
def _progress(session: Session) -> Iterator[Tell]:
    """A bar for each step on a terminal, elsewhere a line at its start; on stderr."""
    if session.is_quiet:
        yield lambda name, share: None
        return
    if not sys.stderr.isatty():
        yield lambda name, share: session.say(f"{name} ...") if share == 0 else None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<34}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        tasks = {}

        def tell(name: str, share: float) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=None if share == 0 else 1)
            progress.update(tasks[name], total=1 if share else None, completed=share)

        yield tell


def _steps(result: DemoResult) -> list[dict[str, object]]:
    return [
        {
            "step": step.name,
            "seconds": round(step.seconds, 3),
            "records": step.records,
            "size_bytes": step.size_bytes,
            "records_per_second": _rate(step.records, step.seconds),
            "bytes_per_second": _rate(step.size_bytes, step.seconds),
            "note": step.note,
        }
        for step in result.steps
    ]


def _rate(amount: int | None, seconds: float) -> int | None:
    return round(amount / seconds) if amount is not None and seconds > 0 else None


def _tiers(result: DemoResult) -> list[dict[str, object]]:
    """Two rows for each topic: the content of the disk and of the bucket."""
    rows: list[dict[str, object]] = []
    for topic, records in result.records_by_tier.items():
        found = [each for each in result.status if each.partition.topic == topic]
        for tier, count in zip(("local", "remote"), records, strict=True):
            rows.append(
                {
                    "topic": topic,
                    "partitions": len(found),
                    "tier": tier,
                    "records": count,
                    "segments": sum(getattr(each, f"{tier}_segments") for each in found),
                    "size_bytes": sum(getattr(each, f"{tier}_bytes") for each in found),
                }
            )
    return rows


def _bill(result: DemoResult) -> dict[str, object]:
    """The S3 price of a month's storage, and of the requests so far."""
    from policies.cost.storage_cost import S3_STANDARD, monthly_storage, request_cost

    made = result.requests
    return {
        "storage_per_month": monthly_storage(result.bucket_bytes),
        "requests_once": request_cost(puts=made.puts, gets=made.gets, lists=made.lists),
        "puts": made.puts,
        "gets": made.gets,
        "lists": made.lists,
        "bucket_bytes": result.bucket_bytes,
        "prices_as_of": S3_STANDARD.as_of,
        "region": S3_STANDARD.region,
    }


def _bill_in_words(result: DemoResult) -> str:
    from policies.cost.storage_cost import S3_STANDARD, monthly_storage, request_cost

    made = result.requests
    month = format_dollars(monthly_storage(result.bucket_bytes))
    once = format_dollars(request_cost(puts=made.puts, gets=made.gets, lists=made.lists))
    return (
        f"S3 bill: {month} USD a month for {format_bytes(result.bucket_bytes)}, {once} USD once for {made.puts} put, "
        f"{made.gets} get, {made.lists} list ({S3_STANDARD.region}, prices of {S3_STANDARD.as_of})"
    )


def _look_around(result: DemoResult) -> str:
    """Commands to copy and run, and a Spark job."""
    from tiered.config.config import file_url

    where = os.path.relpath(result.directory)
    where = where if len(where) < len(result.directory) else result.directory
    command, bucket = _own_command(), shlex.quote(file_url(os.path.join(result.directory, "bucket")))
    lines = [
        "Every record was read back and compared. The bucket is kept as a folder; look around:",
        f"  {command} -C {shlex.quote(where)} status",
        f"  {command} -C {shlex.quote(where)} consume flights/0 -n 3",
        f"  {command} consume aircraft --remote {bucket} -n 3 -f '%k %v\\n'",
    ]
    if result.with_spark:
        lines += [
            _elsewhere(result, f"{command} -C {shlex.quote(where)}"),
            f"  {command.removesuffix('tiered') + 'python'} - <<'PY'",
            "  from tiered.spark.session import spark_session",
            "  spark = spark_session('look-around')",
            "  rows = spark.read.format('tiered').option('subscribe', 'flights')",
            f"  rows.load({file_url(os.path.join(result.directory, 'bucket'))!r}).groupBy('partition').count().show()",
            "  PY",
        ]
    return "\n".join(lines)


def _elsewhere(result: DemoResult, command: str) -> str:
    """Where to find the records that are not in the bucket for Spark."""
    local, remote = result.records_by_tier["flights"]
    if not local:
        return f"Spark reads the bucket alone, which has all {remote:,} flights:"
    return (
        f"Spark reads the bucket alone, which has {remote:,} of {remote + local:,} flights. "
        f"The other {local:,} are on the disk,\n"
        f"in segments that are not in the bucket yet; {command} consume flights reads both:"
    )


def _own_command() -> str:
    """This program's command in short form; it also works without an active environment."""
    called, relative = sys.argv[0], os.path.relpath(sys.argv[0])
    if not called.endswith("tiered") or os.path.dirname(called) in os.get_exec_path()[1:]:
        return "tiered"
    return min(called, relative, key=len)


_STEP_COLUMNS = (
    Column("step", "STEP"),
    Column("seconds", "SECONDS", lambda seconds: f"{seconds:.2f}", is_number=True),
    Column("records", "RECORDS", format_count, is_number=True),
    Column("size_bytes", "BYTES", format_bytes, is_number=True),
    Column("records_per_second", "RECORDS/S", format_count, is_number=True),
    Column("bytes_per_second", "BYTES/S", format_bytes, is_number=True),
    Column("note", "NOTE"),
)
_TIER_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partitions", "PARTS", is_number=True),
    Column("tier", "TIER"),
    Column("records", "RECORDS", format_count, is_number=True),
    Column("segments", "SEGMENTS", is_number=True),
    Column("size_bytes", "BYTES", format_bytes, is_number=True),
)
