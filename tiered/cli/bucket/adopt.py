"""``tiered adopt``: a sidecar that tiers the closed segments of a live Kafka broker's log directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import click

from tiered.cli.arguments import Number
from tiered.cli.errors import Exit
from tiered.cli.job_command import BucketCommand
from tiered.cli.options import GROUP, argument, command, option, settings_option
from tiered.cli.progress import copy_progress_of
from tiered.cli.render import PartitionRow, Result, number
from tiered.cli.session import Session, now_ms
from tiered.config.units import counted, format_bytes, format_count

if TYPE_CHECKING:
    from tiered.migrate.adopt_metrics import AdoptedPartition, AdoptMetrics


class BrokerPartition(PartitionRow):
    """The copied part of a broker's partition; `ahead` offsets are above the broker's high watermark.

    Null: the figure is not known, because the partition stopped before the end of the bucket was read.
    """

    tiered_upto: Annotated[int | None, number("REMOTE END OFFSET")]
    copied: Annotated[int, number("SEGMENTS COPIED", format_count)]
    copied_bytes: Annotated[int, number("BYTES COPIED", format_bytes)]
    lag_segments: Annotated[int | None, number("LAG SEGMENTS", format_count)]
    lag_bytes: Annotated[int | None, number("LAG BYTES", format_bytes)]
    ahead: int | None
    at_risk_bytes: Annotated[int | None, number("BYTES AT RISK", format_bytes)]


class Adopted(Result):
    """``tiered adopt``."""

    partitions: list[BrokerPartition]


@command("adopt", example="adopt /var/kafka/data orders --remote s3://my-bucket/kafka", has_progress=True)
def adopt(
    session: Session,
    directory: str = argument("KAFKA_LOG_DIR"),
    topics: tuple[str, ...] = argument("[TOPIC ...]"),
    work: str | None = option(
        "--work DIR", "Directory in which compacted topics are cleaned; default: tiered-adopt below -C."
    ),
    every: float = option("--every", "Set the seconds between rounds.", type=Number(0.1), default=30.0),
    dry_run: bool = option("--dry-run", "Show what the next round would copy, change nothing."),
    once: bool = option("--once", "Run one round, then print the table."),
    metadata: str | None = option("--metadata DIR", "Name metadata.log.dir of the broker if it is another directory."),
    metrics: str | None = option("--metrics [HOST]:PORT", "Serve metrics for Prometheus at this address."),
    hosts: tuple[str, ...] = option("--host NAME", "Accept a further host name; repeatable."),
    settings: dict[str, str] = settings_option(
        "Override a broker setting for all topics; [TOPIC:]KEY=VALUE for one topic; may be repeated."
    ),
    job: BucketCommand = GROUP,
) -> int:
    """Copy the closed segments of a Kafka broker's log directory, beside the broker; its files are only read."""
    from local.storage import DiskStorage
    from tiered.config.config import Config
    from tiered.migrate.adopt import Adopter
    from tiered.migrate.adopt_metrics import AdoptMetrics
    from tiered.migrate.broker import AdoptSettings, adopted_topics, check_log_directory
    from tiered.stores.object_encoding import encoding_of

    root = os.path.abspath(directory)
    check_log_directory(DiskStorage(), root, topics)
    place = os.path.abspath(work or os.path.join(session.directory, "tiered-adopt"))
    config = session.config() if job.url is None else Config.load(None, session.overrides, os.environ)
    adopt_settings = AdoptSettings(DiskStorage(), os.path.abspath(metadata or directory), settings, config)
    if not adopt_settings.has_broker:
        for topic in adopted_topics(DiskStorage(), root, topics):
            adopt_settings.effective(topic)
        session.say("topic settings of the broker were not found: -X and the configuration apply")
    done: list[AdoptedPartition] = []
    figures = AdoptMetrics()
    with (
        job.opened(writes_segments=True) as bucket,
        _serving(metrics, figures, hosts),
        copy_progress_of(session) as on_copied,
    ):
        encoding_of(adopt_settings.effective(""), bucket.keys)  # report invalid settings before any write
        adopter = Adopter(
            bucket.store,
            DiskStorage(),
            root,
            place,
            properties=adopt_settings.of,
            effective=adopt_settings.effective,
            keys=bucket.keys,
            retention=adopt_settings.retention,
            topics=topics,
            is_single_writer=bucket.is_single_writer,
            on_copied=on_copied,
        )
        if dry_run:
            done = adopter.look()
            _print_problems(done)
            session.say("nothing changed")
        while not (job.should_stop() or dry_run):
            adopt_settings.refresh()
            done = adopter.tick(now_ms(), should_stop=job.should_stop)
            figures.note(done, now_ms())
            _print_problems(done)
            for each in done:
                for start, end in each.lost:
                    lost = f"the broker deleted offsets {start} to {end - 1} before they were copied"
                    click.echo(f"! {each.partition}: {lost}", err=True)
                if each.ahead:
                    ahead = counted(each.ahead, "offset")
                    behind = f"the high watermark of the broker is {ahead} below the end of the bucket"
                    click.echo(f"! {each.partition}: {behind}", err=True)
            copied = sum(each.copied for each in done)
            lag, risk = _total(done, "lag_bytes"), _total(done, "at_risk_bytes")
            session.say(f"{counted(copied, 'segment')} copied, {lag} wait, {risk} at risk")
            if once:
                break
            job.stop.wait(every)
    job.print(Adopted([BrokerPartition.of(each.partition, each) for each in done]))
    return Exit.FAILED if any(each.problem for each in done) else Exit.DONE


def _total(done: Sequence[AdoptedPartition], figure: str) -> str:
    """The sum over all partitions, a lower bound: an unknown figure is reported, not counted as 0."""
    known = [value for each in done if (value := getattr(each, figure)) is not None]
    unknown = len(done) - len(known)
    more = f" and an unknown amount of {counted(unknown, 'partition')}" if unknown else ""
    return f"{format_bytes(sum(known))}{more}"


def _print_problems(done: Sequence[AdoptedPartition]) -> None:
    """Print one line for each cause."""
    from tiered.node.problems import group_problems, problems_of

    for group in group_problems(problems_of({each.partition: each.problem for each in done if each.problem})):
        click.echo(f"! {group.line}", err=True)


@contextmanager
def _serving(address: str | None, figures: AdoptMetrics, hosts: tuple[str, ...]) -> Iterator[tuple[str, int] | None]:
    """Serve ``/metrics`` and ``/health`` within the block, if requested, and print their address."""
    if address is None:
        yield None
        return
    from http import HTTPStatus

    from tiered.web.http.metrics_server import MetricsServer, metrics_answer, parse_address

    def health(accept: str) -> tuple[HTTPStatus, str, str]:
        status = HTTPStatus.OK if figures.is_well else HTTPStatus.SERVICE_UNAVAILABLE
        return status, "text/plain", "ok\n" if figures.is_well else "a partition has a problem\n"

    answers = {"/metrics": metrics_answer(lambda form: figures.text(now_ms(), form)), "/health": health}
    server = MetricsServer(*parse_address(address), answers, hosts=hosts)
    server.start()
    try:
        yield server.address
    finally:
        server.close()
