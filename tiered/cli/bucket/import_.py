"""``tiered import``: import an external bucket; shows a plan first."""

from __future__ import annotations

import signal
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import InvalidRequest, NotFound
from tiered.cli.arguments import parse_partition
from tiered.cli.bucket_options import Bucket, bucket_options, findings_code, open_bucket, report_findings
from tiered.cli.errors import Exit
from tiered.cli.options import layout_options, layout_words
from tiered.cli.progress import byte_progress, progress_option
from tiered.cli.render import PartitionRow, PricedWork, Work, number, output_option, print_result, text
from tiered.cli.session import Session, now_ms, store_options
from tiered.cli.signals import Stop, stop_signals
from tiered.config.units import counted, format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from policies.cost.prices import PriceTable
    from remote.external.external_layout import ExternalFormat, ExternalName
    from remote.store import ObjectStore
    from tiered.migrate.import_bucket import ImportOutcome, ImportPlan


class PlannedImport(PartitionRow):
    """Segments to read there and to write here, in requests and dollars."""

    segments: Annotated[int, number("SEGMENTS", format_count)]
    read_bytes: Annotated[int, number("READ", format_bytes)]
    write_bytes: Annotated[int, number("WRITE", format_bytes)]
    gets: Annotated[int, number("GET", format_count)]
    puts: Annotated[int, number("PUT", format_count)]
    dollars: Annotated[float, number("$", format_dollars)]


class ImportPlanned(PricedWork):
    """``tiered import --dry-run``, and an import without due segments."""

    partitions: list[PlannedImport]


class ImportedPartition(PartitionRow):
    """The imported segments and records."""

    topic_id: Annotated[str, text("TOPIC ID")]
    segments: Annotated[int, number("SEGMENTS", format_count)]
    records: Annotated[int, number("RECORDS", format_count)]
    size_bytes: Annotated[int, number("SIZE", format_bytes)]
    next_offset: Annotated[int, number("NEXT")]
    is_complete: bool


class Imported(Work):
    """``tiered import``."""

    partitions: list[ImportedPartition]


@click.command("import")
@click.argument("source_url", metavar="URL")
@click.argument("targets", nargs=-1, metavar="[TOPIC[/PARTITION] ...]")
@click.option(
    "--from-option",
    "source_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=store_options,
    help="Option of the store at URL.",
)
@layout_options("auto", "Layout at URL:")
@click.option(
    "--codec",
    type=click.Choice(["none", "zstd"]),
    help="Set the object encoding of the copies; default: from the settings.",
)
@click.option("--key-id", metavar="ID", help="Encrypt with this key of the key ring; default: from the settings.")
@click.option(
    "--scratch", metavar="DIRECTORY", help="Directory for temporary files of one segment; default: of the system."
)
@click.option("--dry-run", is_flag=True, help="Show requests, bytes and dollars, change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@bucket_options
@output_option()
@progress_option
@click.pass_obj
def import_(
    session: Session,
    source_url: str,
    targets: tuple[str, ...],
    source_options: dict[str, object],
    layout: str,
    prefixes: tuple[str, ...],
    private_keys: tuple[str, ...],
    codec: str | None,
    key_id: str | None,
    scratch: str | None,
    dry_run: bool,
    yes: bool,
    url: str | None,
    options: dict[str, object],
    topic_id: str | None,
    output: str,
) -> int:
    """Bring topics of a bucket that others filled into ours (--remote, or the configured one), offsets as they are."""
    from remote.store.open_store import open_store

    words = layout_words(layout, prefixes, private_keys)
    with (
        stop_signals() as stop,
        closing(open_store(source_url, source_options)) as source,
        open_bucket(session, url, options, writes_segments=True) as bucket,
    ):
        theirs = _layout(source, words["layout"], words["prefixes"], words["private_keys"])
        plans = _plans(source, theirs, bucket, targets, topic_id, codec, key_id, session.prices())
        for plan in plans:
            for start, end in plan.gaps:
                click.echo(f"! {plan.source.topic_partition}: the source lacks {start} to {end - 1}", err=True)
            report_findings(plan.source.topic_partition, plan.findings)
            if plan.blocked_from is not None:
                text = f"the import ends before offset {plan.blocked_from}: repair the named objects, or move"
                click.echo(f"! {plan.source.topic_partition}: {text} them away to leave a gap", err=True)
        code = findings_code([each for plan in plans for each in plan.findings])
        due, dollars = [plan for plan in plans if plan.entries], sum(plan.cost.dollars for plan in plans)
        if dry_run or not due:
            rows = [_planned(plan) for plan in due]
            print_result(ImportPlanned(dry_run=dry_run, dollars=dollars, partitions=rows), output)
            session.say("nothing to import" if not due else f"${format_dollars(dollars)}; nothing changed")
            return code
        if not yes:
            _ask(due, dollars)
        done = _imported(session, source, theirs, bucket, due, stop, scratch)
    print_result(Imported(dry_run=False, partitions=[_imported_row(each) for each in done]), output)
    if stop.is_set:
        session.say("interrupted; finished segments are committed, run the same command to resume")
        return Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED
    return code


def _layout(store: ObjectStore, layout: str, prefixes: tuple[str, ...], keys: dict[str, str]) -> ExternalFormat:
    from remote.external.external_layout import LayoutOptions
    from remote.external.layout_detection import external_format

    found = external_format(store, LayoutOptions(layout=layout, prefixes=prefixes, private_keys=keys))
    if found is None:
        raise InvalidRequest(
            "cannot import the bucket, it has the layout of tiered: use tiered rewrite copy", store=store.url
        )
    return found


def _plans(
    source: ObjectStore,
    theirs: ExternalFormat,
    bucket: Bucket,
    targets: tuple[str, ...],
    topic_id: str | None,
    codec: str | None,
    key_id: str | None,
    prices: PriceTable,
) -> list[ImportPlan]:
    from tiered.migrate.import_bucket import plan_import, topic_id_for
    from tiered.stores.object_encoding import KEY_ID, encoding_of_settings

    names = _named(theirs.partitions(source), targets, source.url)
    topics = {name.topic: name.topic_id for name in names}
    ids = {topic: topic_id_for(source, bucket.store, topic, own, asked=topic_id) for topic, own in topics.items()}
    flags = {KEY_ID: key_id or "", "remote.compression": codec or ""}
    own = {name: value for name, value in flags.items() if value}
    settings = {topic: bucket.settings_of(topic, {}, **own) for topic in topics}
    return [
        plan_import(
            source,
            theirs,
            name,
            bucket.store,
            topic_id=ids[name.topic],
            now_ms=now_ms(),
            encoding=encoding_of_settings(settings[name.topic]),
            properties=own,
            prices=prices,
        )
        for name in names
    ]


def _named(there: list[ExternalName], targets: tuple[str, ...], url: str) -> list[ExternalName]:
    """Return the partitions that the words name, all without a word.

    Raises NotFound, and InvalidRequest for two topics of one name.
    """
    asked = [parse_partition(each) for each in targets]
    found = [
        name
        for name in there
        if not asked or any(name.topic == topic and number in (None, name.partition) for topic, number in asked)
    ]
    for target, (topic, partition) in zip(targets, asked, strict=True):
        if not any(name.topic == topic and partition in (None, name.partition) for name in found):
            raise NotFound("cannot import, the partition is not in the bucket", name=target, store=url)
    for name in found:
        ids = sorted({each.topic_id for each in found if each.topic == name.topic})
        if len(ids) > 1:
            wrong = "cannot import the bucket, several topics have this name: import each one from its own url"
            raise InvalidRequest(wrong, topic=name.topic, topic_ids=",".join(ids))
    return found


def _imported(
    session: Session,
    source: ObjectStore,
    theirs: ExternalFormat,
    bucket: Bucket,
    plans: list[ImportPlan],
    stop: Stop,
    scratch: str | None,
) -> list[ImportOutcome]:
    from tiered.migrate.import_bucket import run_import

    done: list[ImportOutcome] = []
    with byte_progress(session, "imported", sum(plan.size_bytes for plan in plans)) as progress:
        for plan in plans:
            if not stop.is_set:
                done.append(
                    run_import(
                        source,
                        theirs,
                        bucket.store,
                        plan,
                        now_ms=now_ms,
                        keys=bucket.keys,
                        scratch=scratch,
                        should_stop=lambda: stop.is_set,
                        progress=progress,
                    )
                )
    return done


def _planned(plan: ImportPlan) -> PlannedImport:
    return PlannedImport.of(plan.name, plan.cost, segments=len(plan.entries))


def _imported_row(each: ImportOutcome) -> ImportedPartition:
    return ImportedPartition.of(each.name, each, segments=each.entries, records=each.record_count)


def _ask(plans: list[ImportPlan], dollars: float) -> None:
    count, size = sum(len(plan.entries) for plan in plans), format_bytes(sum(plan.size_bytes for plan in plans))
    summary = f"{counted(count, 'segment')}, {size}, for about ${format_dollars(dollars)}"
    if not sys.stdin.isatty():
        raise click.UsageError(f"{summary} would be imported; add --yes")
    click.confirm(f"import {summary}?", abort=True, err=True)
