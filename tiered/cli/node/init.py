"""``tiered init``: write a configuration, test the store; ``doctor``: check the node; ``demo``: show the features."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import ErrorCode, InvalidRequest, NotFound
from tiered.cli.errors import Exit
from tiered.cli.options import OUTPUT, argument, command, option
from tiered.cli.progress import Bars
from tiered.cli.render import Result, Struct, columns_of, number, print_result, print_table, text
from tiered.cli.session import Session, now_ms, store_options
from tiered.config.units import format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from tiered.demo.main_job import DemoResult, Report
    from tiered.health.broker_file import Entry


@command("init", example="init logs --remote s3://my-bucket/logs")
def init(
    session: Session,
    directory: str | None = argument(),
    url: str | None = option(
        "--remote URL",
        "Set the url of the store: s3://bucket/prefix or file:///path; default: DIR/bucket on this disk.",
    ),
    options: dict[str, object] = option("--option NAME=VALUE", "Option of the store.", callback=store_options),
    broker_file: str | None = option("--properties FILE", "Import the settings of a Kafka broker.", type=click.Path()),
    dry_run: bool = option("--dry-run", "Print what would be written; sends no request to the store."),
    no_probe: bool = option("--no-probe", "Write the file without testing the store."),
) -> None:
    """Write DIR/tiered.toml, after a check that the store creates and deletes objects.

    The store's credentials come from its own environment variables or profile; none is ever written here.
    """
    from tiered.config.config import FILE, file_url
    from tiered.config.secrets import check_no_secret

    root = os.path.abspath(directory or session.directory)
    path = os.path.join(root, FILE)
    if not os.path.isdir(root) and (above := _file_above(root)) is not None:
        raise InvalidRequest(
            "cannot write the configuration, the path is a file: name a directory", directory=root, file=above
        )
    if os.path.exists(path):
        raise InvalidRequest("cannot write the configuration, it already exists", file=path)
    check_no_secret(url, options, path)
    defaults, ignored = _defaults(broker_file)
    bucket = os.path.join(root, "bucket") if url is None else None
    url = url if url is not None else file_url(os.path.join(root, "bucket"))
    text = configuration(url, options, defaults)
    if dry_run:
        click.echo(text, nl=False)
        _print_ignored(session, broker_file, ignored)
        session.say(f"would write {path}; nothing changed")
        return
    if bucket is not None:
        os.makedirs(bucket, exist_ok=True)
    if not no_probe:
        _probe(session, url, options)
    os.makedirs(root, exist_ok=True)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
    click.echo(path)
    _print_ignored(session, broker_file, ignored)
    place = directory or session.directory
    session.say(f"next: tiered {'' if place == '.' else f'-C {shlex.quote(place)} '}topic create NAME")


def _defaults(broker_file: str | None) -> tuple[dict[str, str], list[tuple[Entry, str]]]:
    if broker_file is None:
        return {}, []
    from tiered.health.broker_file import broker_settings, read_entries, without_effect

    entries = read_entries(broker_file)
    return broker_settings(entries), without_effect(entries)


def _print_ignored(session: Session, broker_file: str | None, ignored: Sequence[tuple[Entry, str]]) -> None:
    for entry, why in ignored:
        session.say(f"no effect: {entry.name} ({broker_file}:{entry.line}): {why}")


def _file_above(path: str) -> str | None:
    """Return `path` or its nearest existing ancestor, if that is a file."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return None if os.path.isdir(path) else path


def configuration(url: str, options: Mapping[str, object], defaults: Mapping[str, str] | None = None) -> str:
    """The text of a new ``tiered.toml``: tiering for every topic, else `defaults` or those of Kafka."""
    from tiered.topics.config_export import toml_text

    own = {name: text for name, text in (defaults or {}).items() if name != "remote.storage.enable"}
    return "\n".join(
        (
            "# The log directories, the store of closed segments, and the default settings of topics.",
            "[local]",
            'dir = "data"',
            "",
            "[remote]",
            f"url = {toml_text(url)}",
            *([f"options = {toml_text(options)}"] if options else []),
            "",
            "[defaults]",
            '"remote.storage.enable" = true',
            *(f"{toml_text(name)} = {toml_text(text)}" for name, text in own.items()),
            "",
        )
    )


def _probe(session: Session, url: str, options: dict[str, object]) -> None:
    from remote.store.probe import probe_store
    from tiered.config.config import Config
    from tiered.stores.configured_store import addressed_store

    with closing(addressed_store(url, options, Config.load(None, session.overrides, os.environ))) as store:
        try:
            guarantees = probe_store(store, now_ms=now_ms(), is_racing=True)
        except NotFound as error:
            if error.code is ErrorCode.STORE_DIRECTORY_MISSING:
                error.add_note("create it, mount its disk, or correct the url of --remote")
            raise
    if guarantees.allows_writers:
        session.say(f"store is writable and supports create-if-absent: {store.url}")
    else:
        session.say(f"warning: this store overwrites existing objects; never run two managers on it: {store.url}")


class DoctorFinding(Struct):
    """The result of one check; `state` is ok, warning, error or skipped, `next` empty if there is nothing to do."""

    check: Annotated[str, text("CHECK")]
    state: Annotated[str, text("STATE")]
    what: Annotated[str, text("WHAT")]
    next: Annotated[str, text("NEXT")]
    code: str


class Doctor(Result):
    """``tiered doctor``."""

    findings: list[DoctorFinding]


@command("doctor", example="-C logs doctor")
def doctor(
    session: Session,
    no_probe: bool = option("--no-probe", "Write nothing to the disk or the store, not even temporarily."),
    only_problems: bool = option("--problems", "Print only warnings and errors."),
    output: str = OUTPUT,
) -> int:
    """Check versions, settings, disks, limits, the store and its content.

    Each finding has a next step. Exit 10 with errors, 3 with warnings.
    """
    from local.verify.findings import Severity
    from tiered.health.doctor import examine

    session.set_up_logging(reports_problems=True)
    found = list(examine(session.config(), may_write=not no_probe))
    rows = [
        DoctorFinding.of(each, what=f"{each.where}: {each.what}" if each.where else each.what, next=each.next_step)
        for each in found
        if not only_problems or each.severity >= Severity.WARNING
    ]
    print_result(Doctor(rows), output)
    if any(each.severity is Severity.ERROR for each in found):
        return Exit.UNHEALTHY
    return Exit.FINDINGS if any(each.severity is Severity.WARNING for each in found) else Exit.DONE


class DemoStep(Struct):
    """The work of a step."""

    step: Annotated[str, text("STEP")]
    seconds: Annotated[float, number("SECONDS", "{:.2f}".format)]
    records: Annotated[int | None, number("RECORDS", format_count)]
    size_bytes: Annotated[int | None, number("BYTES", format_bytes)]
    records_per_second: Annotated[int | None, number("RECORDS/S", format_count)]
    bytes_per_second: Annotated[int | None, number("BYTES/S", format_bytes)]
    note: Annotated[str, text("NOTE")]


class DemoTier(Struct):
    """The content of one tier of a topic."""

    topic: Annotated[str, text("TOPIC")]
    partitions: Annotated[int, number("PARTITIONS")]
    tier: Annotated[str, text("TIER")]
    records: Annotated[int, number("RECORDS", format_count)]
    segments: Annotated[int, number("SEGMENTS")]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]


class DemoBill(Struct):
    """The S3 price of a month's storage, and of the requests so far."""

    storage_per_month: float
    requests_once: float
    puts: int
    gets: int
    lists: int
    bucket_bytes: int
    prices_as_of: str
    region: str


class Demo(Result):
    """``tiered demo``."""

    tiers: list[DemoTier]
    bill: DemoBill
    steps: list[DemoStep]


@command("demo", example="demo")
def demo(
    session: Session,
    directory: str | None = option(
        "--dir DIR", "Name the folder; default: ./tiered-demo. Its contents are deleted first."
    ),
    limit: int | None = option("--limit N", "Use only the first N flights.", least=1),
    no_spark: bool = option("--no-spark", "Skip Spark; then Java is not needed."),
    output: str = OUTPUT,
) -> None:
    """Move a year of real flights through both tiers, compaction and Spark, check every record, and print the results.

    Starts an S3 server on loopback and stops it at the end. Safe to run twice.
    """
    session.set_up_logging()
    from tiered.demo.main_job import run_demo

    root = os.path.abspath(directory or os.path.join(session.directory, "tiered-demo"))
    with _progress(session) as report:
        result = run_demo(root, limit=limit, with_spark=not no_spark, report=report)
    tiers, bill = _tiers(result), _bill(result)
    print_result(Demo(tiers, bill, _steps(result)), output)
    if output != "table":
        return
    click.echo()
    print_table(tiers, columns_of(DemoTier))
    click.echo(f"\n{_bill_in_words(bill)}")
    session.say(f"\n{_look_around(result)}")


@contextmanager
def _progress(session: Session) -> Iterator[Report]:
    if session.is_quiet:
        yield lambda name, share: None
        return
    if not sys.stderr.isatty():
        yield lambda name, share: session.say(f"{name} ...") if share == 0 else None
        return
    with Bars(_step_columns, patience_s=0) as bars:
        yield lambda name, share: bars.report(name, share, 1 if share else None)


def _step_columns() -> Sequence[ProgressColumn]:
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    share = TextColumn("{task.percentage:>3.0f} %")
    return TextColumn("{task.description:<34}"), BarColumn(), share, TimeElapsedColumn()


def _steps(result: DemoResult) -> list[DemoStep]:
    return [
        DemoStep.of(
            each,
            step=each.name,
            seconds=round(each.seconds, 3),
            records_per_second=_rate(each.records, each.seconds),
            bytes_per_second=_rate(each.size_bytes, each.seconds),
        )
        for each in result.steps
    ]


def _rate(amount: int | None, seconds: float) -> int | None:
    return round(amount / seconds) if amount is not None and seconds > 0 else None


def _tiers(result: DemoResult) -> list[DemoTier]:
    rows = []
    for topic, records in result.records_by_tier.items():
        found = [each for each in result.status if each.partition.topic == topic]
        for tier, count in zip(("local", "remote"), records, strict=True):
            segments = sum(getattr(each, f"{tier}_segments") for each in found)
            size_bytes = sum(getattr(each, f"{tier}_bytes") for each in found)
            rows.append(DemoTier(topic, len(found), tier, count, segments, size_bytes))
    return rows


def _bill(result: DemoResult) -> DemoBill:
    from policies.cost.prices import S3_STANDARD
    from policies.cost.storage_cost import monthly_storage, request_cost

    sent = result.requests
    return DemoBill.of(
        result,
        sent,
        S3_STANDARD,
        storage_per_month=monthly_storage(result.bucket_bytes),
        requests_once=request_cost(puts=sent.puts, gets=sent.gets, lists=sent.lists),
        prices_as_of=S3_STANDARD.as_of,
    )


def _bill_in_words(bill: DemoBill) -> str:
    month, once = format_dollars(bill.storage_per_month), format_dollars(bill.requests_once)
    return (
        f"S3 bill: {month} USD a month for {format_bytes(bill.bucket_bytes)}, {once} USD once for {bill.puts} put, "
        f"{bill.gets} get, {bill.lists} list ({bill.region}, prices of {bill.prices_as_of})"
    )


def _look_around(result: DemoResult) -> str:
    from tiered.config.config import file_url

    where = os.path.relpath(result.directory)
    where = where if len(where) < len(result.directory) else result.directory
    command, bucket = _own_command(), shlex.quote(file_url(os.path.join(result.directory, "bucket")))
    lines = [
        ("Every record was read back and compared. The bucket was copied to a folder; next commands:"),
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
    local, remote = result.records_by_tier["flights"]
    if not local:
        return f"Spark reads only the bucket, which has all {remote:,} flights:"
    return (
        f"Spark reads only the bucket, which has {remote:,} of {remote + local:,} flights. "
        f"The other {local:,} are on the disk,\n"
        f"in segments that are not in the bucket yet; {command} consume flights reads both:"
    )


def _own_command() -> str:
    """This program's command, which also works without an active environment."""
    called, relative = sys.argv[0], os.path.relpath(sys.argv[0])
    if not called.endswith("tiered") or os.path.dirname(called) in os.get_exec_path()[1:]:
        return "tiered"
    return min(called, relative, key=len)
