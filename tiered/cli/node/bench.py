"""``tiered bench``: measure machine, disk and bucket, and how close the log manager comes to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

from local.errors import InvalidRequest, LogError, NotFound
from tiered.cli.errors import Exit, stopped_code
from tiered.cli.options import OUTPUT, command, option, size_bytes
from tiered.cli.render import Result, Struct, Work, number, print_result, text
from tiered.cli.session import Session, confirm, now_ms, stop_signals
from tiered.config.units import format_bytes, format_count, format_dollars

if TYPE_CHECKING:
    from remote.store import ObjectStore
    from tiered.bench.benchmark import BenchOptions, Measured


def _rounded_bytes(value: float) -> str:  # a lambda in an annotation finds no name of this module
    return format_bytes(round(value))


def _percentiles(value: dict[str, float]) -> str:
    return " ".join(f"{name} {took:.3g}" for name, took in value.items())


class MeasuredFigure(Struct):
    """One figure and its reference; `ratio` 1.0 is as fast as the reference. Null: it was not measured."""

    name: Annotated[str, text("WHAT")]
    count: Annotated[int, number("COUNT", format_count)]
    size_bytes: Annotated[int, number("BYTES", format_bytes)]
    bytes_per_second: Annotated[float, number("PER SECOND", _rounded_bytes)]
    ms_each: Annotated[float, number("MS PER CALL", "{:.3g}".format)]
    ratio: Annotated[float | None, number("RATIO", "{:.2f}".format)]
    latencies_ms: Annotated[dict[str, float] | None, text("LATENCY MS", _percentiles)]
    reference: Annotated[str, text("REFERENCE")]
    what: str
    seconds: float
    reference_seconds: float | None
    reference_latencies_ms: dict[str, float] | None


class RequestsSent(Struct):
    """Requests and bytes, in the classes that are billed."""

    puts: Annotated[int, number("PUT", format_count)]
    gets: Annotated[int, number("GET", format_count)]
    lists: Annotated[int, number("LIST", format_count)]
    deletes: Annotated[int, number("DELETE", format_count)]
    bytes_in: Annotated[int, number("BYTES READ", format_bytes)]
    bytes_out: Annotated[int, number("BYTES WRITTEN", format_bytes)]


class BenchMeasured(Result):
    """``tiered bench``; `requests` null if the bucket was a local folder."""

    machine: dict[str, str]
    directory: str
    bucket: str
    is_complete: bool
    requests: RequestsSent | None
    measured: list[MeasuredFigure]


class BenchRequests(RequestsSent):
    """The requests to the bucket and their price."""

    dollars: Annotated[float, number("$", format_dollars)]


class BenchPlanned(Work):
    """``tiered bench --dry-run``."""

    bucket: str
    requests: list[BenchRequests]


@command("bench", has_progress=True, example="bench --size 64MiB")
def bench(
    session: Session,
    size: str = option("--size SIZE", "Set the amount of records for each part.", default="64MiB"),
    directory: str | None = option("--at DIR", "Measure the disk of DIR; default: the disk of the logs."),
    remote: bool = option("--remote", "Measure the configured bucket too, below its own prefix; costs requests."),
    dry_run: bool = option("--dry-run", "Show which requests --remote would send and what they cost, send none."),
    yes: bool = option("--yes", "Do not ask before requests are sent."),
    output: str = OUTPUT,
) -> int:
    """Measure appends, fsync, reads, lookups, compaction, upload and bucket reads, each with a raw reference.

    The benchmark uses a temporary directory and removes it. Without --remote the bucket is a folder in that directory.
    """
    from tiered.bench.benchmark import FIGURES, BenchOptions, run_benchmark

    options = BenchOptions.of(size_bytes("--size", size, "64MiB"))
    if remote or dry_run:
        _predict(session, options, output, remote=remote, dry_run=dry_run, yes=yes)
        if dry_run:
            return Exit.DONE
    root = _root(session, directory)
    session.progress.expect(FIGURES, "figures")

    def report_measured(each: Measured) -> None:
        session.progress.advance()
        session.say(f"measured: {each.name}")

    with stop_signals() as stop, _store(session, remote=remote) as store:
        report = run_benchmark(
            root,
            now_ms=now_ms(),
            options=options,
            store=store,
            on_measured=report_measured,
            should_stop=lambda: stop.is_set,
        )
    rows = [
        MeasuredFigure.of(
            each, latencies_ms=each.latencies_ms or None, reference_latencies_ms=each.reference_latencies_ms or None
        )
        for each in report.measured
    ]
    requests = RequestsSent.of(report.requests) if report.requests is not None else None
    print_result(BenchMeasured.of(report, requests=requests, measured=rows), output)
    ended = "ratio: 1 is as fast as the reference, 0.5 half as fast" if report.is_complete else "interrupted"
    session.say(f"{ended}; all created files and objects were deleted")
    return Exit.DONE if report.is_complete else stopped_code(stop)


def _root(session: Session, directory: str | None) -> str:
    if directory is not None:
        return os.path.abspath(directory)
    try:
        place = os.path.dirname(session.config().data_dir)
    except NotFound:
        return os.path.abspath(session.directory)
    return place if os.path.isdir(place) else os.path.abspath(session.directory)


@contextmanager
def _store(session: Session, *, remote: bool) -> Iterator[ObjectStore | None]:
    """The configured bucket under a prefix of this run, which is deleted at the end."""
    if not remote:
        yield None
        return
    from remote.keys import new_ulid
    from tiered.bench.benchmark import PREFIX
    from tiered.stores.configured_store import configured_store

    config = session.config()
    url = f"{(config.remote_url or '').rstrip('/')}/{PREFIX}{new_ulid(now_ms())}"
    # A colder class bills a minimum period.
    own = {**config.overrides, "remote.storage.class": "default"}
    folder = unquote(url.removeprefix("file://")) if url.startswith("file://") else None
    if folder is not None:
        os.mkdir(folder)
    try:
        store = configured_store(replace(config, remote_url=url, overrides=own))
        assert store is not None, "it has a url"
        try:
            yield store
        except LogError:
            session.say(f"objects that could not be deleted are below {url}")
            raise
        finally:
            store.close()
    finally:
        if folder is not None:
            import shutil

            shutil.rmtree(folder, ignore_errors=True)


def _predict(session: Session, options: BenchOptions, output: str, *, remote: bool, dry_run: bool, yes: bool) -> None:
    from policies.cost.storage_cost import request_cost
    from tiered.bench.benchmark import predict_requests

    config = session.config()
    if config.remote_url is None:
        raise InvalidRequest("cannot measure a bucket, none is configured: set url in [remote] of tiered.toml")
    if config.topic_properties("")["remote.immutable"] == "true":
        raise InvalidRequest(
            "cannot measure the bucket, it is immutable (remote.immutable): its objects could not be deleted"
        )
    counts = predict_requests(now_ms=now_ms(), options=options)
    dollars = request_cost(puts=counts.puts, gets=counts.gets, lists=counts.lists, prices=session.prices().of(None))
    if dry_run:
        requests = [BenchRequests.of(counts, dollars=dollars)]
        print_result(BenchPlanned(dry_run=True, bucket=config.remote_url, requests=requests), output)
    sent = f"{counts.puts:,} PUT, {counts.gets:,} GET, {counts.lists:,} LIST, {counts.deletes:,} DELETE"
    moved = f"{format_bytes(counts.bytes_in)} in, {format_bytes(counts.bytes_out)} out"
    session.say(f"about {sent}: ${format_dollars(dollars)}; {moved} of {config.remote_url}")
    if dry_run:
        session.say("nothing changed")
    elif remote:
        without = "requests would be sent to the bucket; add --yes, or --dry-run to see which"
        confirm("send them?", yes=yes, without=without)
