"""``tiered import`` an external bucket, ``tiered adopt`` a broker's directory, ``tiered remote`` any bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import InvalidRequest, LogError, NotFound, Unavailable
from local.names import TopicPartition
from tiered.cli.errors import Exit, worst
from tiered.cli.job_command import DRY_RUN, Bucket, BucketCommand, findings_code, report_findings
from tiered.cli.options import (
    GROUP,
    LAYOUTS,
    OUTPUT,
    PARTITIONS,
    YES,
    Layout,
    LayoutWords,
    Number,
    argument,
    command,
    option,
    parse_partition,
    settings_option,
)
from tiered.cli.progress import copy_progress_of
from tiered.cli.render import PartitionRow, PricedWork, Result, Work, number, print_result, text
from tiered.cli.session import Session, now_ms, store_options
from tiered.config.units import counted, format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from local.verify.findings import Finding
    from policies.cost.prices import PriceTable
    from remote.external.external_layout import ExternalFormat, ExternalName
    from remote.store import ObjectStore
    from tiered.migrate.adopt import AdoptedPartition, AdoptMetrics
    from tiered.migrate.import_bucket import ImportPlan
    from tiered.read.bucket_reader import RemoteLog


class PlannedImport(PartitionRow):
    """Segments to read there and to write here, in requests and dollars."""

    segments: Annotated[int, number("SEGMENTS", format_count)]
    read_bytes: Annotated[int, number("READ", format_bytes)]
    write_bytes: Annotated[int, number("WRITE", format_bytes)]
    gets: Annotated[int, number("GET", format_count)]
    puts: Annotated[int, number("PUT", format_count)]
    dollars: Annotated[float, number("$", format_dollars)]


class ImportedPartition(PartitionRow):
    """The imported segments and records."""

    topic_id: Annotated[str, text("TOPIC ID")]
    segments: Annotated[int, number("SEGMENTS", format_count)]
    records: Annotated[int, number("RECORDS", format_count)]
    size_bytes: Annotated[int, number("SIZE", format_bytes)]
    next_offset: Annotated[int, number("NEXT")]
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceLayout(Layout):
    layout: str = option(
        "--layout",
        "Set the layout of the bucket at URL, by the software that wrote it.",
        choices=LAYOUTS,
        default="auto",
    )


class ImportPlanned(PricedWork):
    """``tiered import --dry-run``, and an import without due segments."""

    partitions: list[PlannedImport]


class Imported(Work):
    """``tiered import``."""

    partitions: list[ImportedPartition]


@command("import", example="import s3://their-bucket orders --dry-run", has_progress=True)
def import_(
    session: Session,
    source_url: str = argument("URL"),
    targets: tuple[str, ...] = PARTITIONS,
    source_options: dict[str, object] = option(
        "--from-option NAME=VALUE", "Option of the store at URL.", callback=store_options
    ),
    layout: _SourceLayout = GROUP,
    codec: str | None = option(
        "--codec", "Set the object encoding of the copies; default: from the settings.", choices=["none", "zstd"]
    ),
    key_id: str | None = option("--key-id ID", "Encrypt with this key of the key ring; default: from the settings."),
    scratch: str | None = option(
        "--scratch DIRECTORY", "Directory for temporary files of one segment; default: of the system."
    ),
    dry_run: bool = DRY_RUN,
    yes: bool = YES,
    job: BucketCommand = GROUP,
) -> int:
    """Import topics from a bucket that other software wrote, with the same offsets.

    The target is --remote, or the configured bucket.
    """
    from remote.store.open_store import open_store
    from tiered.migrate.import_bucket import ImportJob

    words = layout.words()
    with closing(open_store(source_url, source_options)) as source, job.opened(writes_segments=True) as bucket:
        external = _layout(source, words)
        plans = _plans(source, external, bucket, targets, job.topic_id, codec, key_id, session.prices())
        _report_source(plans)
        code = findings_code([each for plan in plans for each in plan.findings])
        due, dollars = [plan for plan in plans if plan.entries], sum(plan.cost.dollars for plan in plans)
        rows = [PlannedImport.of(plan.name, plan.cost, segments=len(plan.entries)) for plan in due]
        planned = ImportPlanned(dry_run=dry_run, dollars=dollars, partitions=rows)
        count, size = sum(len(plan.entries) for plan in due), sum(plan.size_bytes for plan in due)
        summary = f"{counted(count, 'segment')}, {format_bytes(size)}, for about ${format_dollars(dollars)}"
        nothing = None if due else "nothing to import"
        if not job.proceeds(planned, "import", "imported", summary, yes=yes, nothing=nothing):
            return code
        work = ImportJob(
            source=source,
            layout=external,
            target=bucket.store,
            plans=due,
            now_ms=now_ms,
            keys=bucket.keys,
            scratch=scratch,
        )
        done = job.carry_out(work, size, done="imported", description="import")
    rows_done = [
        ImportedPartition.of(each.name, each, segments=each.entries, records=each.record_count) for each in done
    ]
    job.print(Imported(dry_run=False, partitions=rows_done))
    if job.should_stop():
        return job.interrupted("finished segments are committed, run the same command to resume")
    return code


def _report_source(plans: list[ImportPlan]) -> None:
    for plan in plans:
        for start, end in plan.gaps:
            click.echo(f"! {plan.source.topic_partition}: the source lacks {start} to {end - 1}", err=True)
        report_findings(plan.source.topic_partition, plan.findings)
        if plan.blocked_from is not None:
            text = f"the import ends before offset {plan.blocked_from}: repair the named objects, or move"
            click.echo(f"! {plan.source.topic_partition}: {text} them away to leave a gap", err=True)


def _layout(store: ObjectStore, words: LayoutWords) -> ExternalFormat:
    from remote.external.external_formats import external_format
    from remote.external.external_layout import LayoutOptions

    found = external_format(store, LayoutOptions(**words))
    if found is None:
        wrong = "cannot import the bucket, it has the layout of tiered: use tiered rewrite copy"
        raise InvalidRequest(wrong, store=store.url)
    return found


def _plans(
    source: ObjectStore,
    external: ExternalFormat,
    bucket: Bucket,
    targets: tuple[str, ...],
    topic_id: str | None,
    codec: str | None,
    key_id: str | None,
    prices: PriceTable,
) -> list[ImportPlan]:
    from tiered.config.config import KEY_ID
    from tiered.migrate.import_bucket import plan_import, topic_id_for
    from tiered.stores.object_encoding import encoding_of_settings

    names = _named(external.partitions(source), targets, source.url)
    topics = {name.topic: name.topic_id for name in names}
    ids = {topic: topic_id_for(source, bucket.store, topic, own, requested=topic_id) for topic, own in topics.items()}
    flags = {KEY_ID: key_id or "", "remote.compression": codec or ""}
    own = {name: value for name, value in flags.items() if value}
    encodings = {topic: encoding_of_settings(bucket.settings_of(topic, {}, **own)) for topic in topics}
    plan = partial(plan_import, source, external, target=bucket.store, properties=own, prices=prices)
    return [plan(name, topic_id=ids[name.topic], now_ms=now_ms(), encoding=encodings[name.topic]) for name in names]


def _named(there: list[ExternalName], targets: tuple[str, ...], url: str) -> list[ExternalName]:
    requested = [parse_partition(each) for each in targets]
    found = [
        name
        for name in there
        if not requested or any(name.topic == topic and number in (None, name.partition) for topic, number in requested)
    ]
    for target, (topic, partition) in zip(targets, requested, strict=True):
        if not any(name.topic == topic and partition in (None, name.partition) for name in found):
            raise NotFound("cannot import, the partition is not in the bucket", name=target, store=url)
    for name in found:
        ids = sorted({each.topic_id for each in found if each.topic == name.topic})
        if len(ids) > 1:
            wrong = "cannot import the bucket, several topics have this name: import each one from its own url"
            raise InvalidRequest(wrong, topic=name.topic, topic_ids=",".join(ids))
    return found


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
    """Inspect any bucket by its address. Nothing is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BucketLayout(Layout):
    layout: str = option(
        "--layout", "Set the layout of the bucket, by the software that wrote it.", choices=LAYOUTS, default="auto"
    )


@command("ls", remote, example="remote ls s3://my-bucket/logs orders")
def ls(
    session: Session,
    url: str = argument(),
    topics: tuple[str, ...] = argument("[TOPIC ...]"),
    options: dict[str, object] = option("--option NAME=VALUE", "Option of the store.", callback=store_options),
    layout: _BucketLayout = GROUP,
    output: str = OUTPUT,
) -> int:
    """List the partitions of a bucket: offsets, segments, bytes, and offsets that no segment holds."""
    session.set_up_logging(reports_problems=True)
    from tiered.tables.remote_tables import open_remote

    rows: list[RemotePartition] = []
    errors: list[LogError] = []
    found: list[Finding] = []
    with open_remote(url, options, **layout.words()) as bucket:
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
                    ids = view.topic_ids(name.topic)
                    topic_id = ids[0] if len(ids) == 1 else None
                    rows.append(RemotePartition.of(name, None, topic_id=topic_id, error=str(error)))
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
    """Copy the closed segments of a running Kafka broker to the bucket; the broker's files are only read."""
    from local.storage import DiskStorage
    from tiered.config.config import Config
    from tiered.migrate.adopt import Adopter, AdoptMetrics
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
    from tiered.node.problems import group_problems, problems_of

    for group in group_problems(problems_of({each.partition: each.problem for each in done if each.problem})):
        click.echo(f"! {group.line}", err=True)


@contextmanager
def _serving(address: str | None, figures: AdoptMetrics, hosts: tuple[str, ...]) -> Iterator[tuple[str, int] | None]:
    if address is None:
        yield None
        return
    from http import HTTPStatus

    from tiered.serve.security.addresses import parse_address
    from tiered.web.http.server import MetricsServer, metrics_answer

    def health(accept: str) -> tuple[HTTPStatus, str, str]:
        status = HTTPStatus.OK if figures.is_well else HTTPStatus.SERVICE_UNAVAILABLE
        return status, "text/plain", "ok\n" if figures.is_well else "a partition has a problem\n"

    answers = {"/metrics": metrics_answer(lambda form: figures.text(now_ms(), form)), "/health": health}
    server = MetricsServer(*parse_address(address), answers, hosts=hosts)
    server.start()
    with closing(server):
        yield server.address
