"""``tiered scrub``: a bucket held against itself, to the last byte where asked for; reads only."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tiered.cli.bucket import Bucket, bucket_options, open_bucket
from tiered.cli.errors import Exit
from tiered.cli.render import Column, Row, emit, output_option
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import Stop, stop_signals
from tiered.units import format_bytes

if TYPE_CHECKING:
    from tiered.scrub import ScrubPlan
    from tiered.scrub_report import ScrubReport

STATE = "scrub-state.jsonl"
_LINE_EVERY_S = 10.0


@click.command("scrub")
@click.argument("targets", nargs=-1, metavar="[TOPIC[/PARTITION] ...]")
@click.option("--deep", is_flag=True, help="Read every byte: chunks, batches, the rows' facts, indexes against data.")
@click.option("--rate", metavar="SIZE/s", help="Read no faster than this, such as 50MB/s.")
@click.option("--resume", is_flag=True, help="Go on where an interrupted deep scrub was.")
@click.option("--threads", type=click.IntRange(1, 64), default=4, show_default=True, help="Segments at a time.")
@click.option(
    "--report", metavar="FILE", help="Where the report goes; default: scrub-<time>.json when there is a finding."
)
@bucket_options
@output_option()
@click.pass_obj
def scrub(
    session: Session,
    targets: tuple[str, ...],
    deep: bool,
    rate: str | None,
    resume: bool,
    threads: int,
    report: str | None,
    url: str | None,
    options: dict[str, object],
    topic_id: str | None,
    output: str,
) -> int:
    """Check a bucket: heads and their chain, pages, tiling, names, sizes; with --deep every byte. Changes nothing."""
    from tiered.scrub import plan_scrub

    if resume and not deep:
        raise click.UsageError("--resume is for --deep; a shallow scrub is always done from the beginning")
    started_ms = now_ms()
    with stop_signals() as stop, open_bucket(session, url, options, rate=rate, copies=True) as bucket:
        plan = plan_scrub(bucket.store, bucket.partitions(targets, topic_id), deep=deep)
        found = _scrubbed(session, bucket, plan, stop, threads=threads, resume=resume, started_ms=started_ms)
    if found is None:
        session.say("interrupted; go on with: tiered scrub --deep --resume")
        return Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED
    told = [each for each in found.findings if each.severity != "info"]
    path = report or (_default_report(session, found) if told else None)
    if path is not None:
        _write(path, found)
    emit("findings", [_row(each) for each in found.findings], _COLUMNS, output, **_facts(found, path))
    _tell(session, found, path)
    return Exit.CORRUPTION if found.of("corrupt") else Exit.FINDINGS if told else Exit.DONE


def _scrubbed(
    session: Session, bucket: Bucket, plan: ScrubPlan, stop: Stop, *, threads: int, resume: bool, started_ms: int
) -> ScrubReport | None:
    """The report; None when told to stop before the end: then the state stays."""
    from local.storage import DiskStorage
    from tiered.scrub import report_of, run_scrub
    from tiered.scrub_state import ScrubState

    state = None
    if plan.is_deep:
        path = os.path.join(session.directory, STATE)
        state = ScrubState(DiskStorage(), path, plan.store_url, now_ms=started_ms, resume=resume)
        started_ms = state.started_ms
    with _progress(session, plan) as progress:
        results = run_scrub(
            bucket.store,
            plan,
            keys=bucket.keys,
            state=state,
            threads=threads,
            should_stop=lambda: stop.is_set,
            progress=progress,
        )
    if results is None:
        return None
    copies = bucket.copies if bucket.copies is not None else lambda name, row: False
    found = report_of(bucket.store, plan, results, started_ms=started_ms, now_ms=now_ms(), local_copy=copies)
    if state is not None:
        state.remove()
    return found


def _default_report(session: Session, found: ScrubReport) -> str:
    told = time.strftime("%Y%m%d-%H%M%S", time.gmtime(found.finished_ms / 1000))
    return os.path.join(session.directory, f"scrub-{told}.json")


def _write(path: str, found: ScrubReport) -> None:
    from local.storage import DiskStorage, replace_file
    from tiered.scrub_report import encode_report

    replace_file(DiskStorage(), os.path.abspath(path), encode_report(found))


def _tell(session: Session, found: ScrubReport, path: str | None) -> None:
    objects = sum(count for each in found.partitions for count in each.objects.values())
    size = sum(each.size_bytes for each in found.partitions)
    depth = f"every byte of {format_bytes(found.read_bytes)} read" if found.is_deep else "metadata only, see --deep"
    session.say(f"{len(found.partitions)} partitions, {objects} objects, {format_bytes(size)}: {depth}")
    counts = {weight: len(found.of(weight)) for weight in ("corrupt", "warning", "info")}
    session.say(" ".join(f"{weight}={count}" for weight, count in counts.items()))
    if found.of("corrupt"):
        session.say(f"next: tiered repair {path} --dry-run")


@contextmanager
def _progress(session: Session, plan: ScrubPlan) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, elsewhere a line every ten seconds."""
    if session.is_quiet or not plan.jobs:
        yield lambda read_bytes: None
        return
    if not sys.stderr.isatty():
        yield _Lines(session, plan.size_bytes).tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("scrub", total=plan.size_bytes)
        yield lambda read_bytes: progress.advance(task, read_bytes)


class _Lines:
    def __init__(self, session: Session, size_bytes: int) -> None:
        self._session, self._size_bytes = session, size_bytes
        self._done = 0
        self._due_s = time.monotonic() + _LINE_EVERY_S

    def tell(self, read_bytes: int) -> None:
        self._done += read_bytes
        if time.monotonic() >= self._due_s:
            self._due_s += _LINE_EVERY_S
            self._session.say(f"scrubbed {format_bytes(self._done)} of {format_bytes(self._size_bytes)}")


def _facts(found: ScrubReport, path: str | None) -> dict[str, object]:
    return {
        "store": found.store,
        "is_deep": found.is_deep,
        "started_ms": found.started_ms,
        "finished_ms": found.finished_ms,
        "read_bytes": found.read_bytes,
        "report": path,
    }


def _row(each: object) -> Row:
    import msgspec

    row: dict[str, object] = msgspec.structs.asdict(each)  # type: ignore[arg-type]
    return row


_COLUMNS = (
    Column("severity", "SEVERITY"),
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("object", "OBJECT"),
    Column("what", "WHAT"),
    Column("at", "AT", is_number=True),
    Column("base_offset", "FROM", is_number=True),
    Column("next_offset", "TO", is_number=True),
    Column("good_copy", "GOOD COPY"),
    Column("topic_id"),
    Column("length"),
    Column("ulid"),
)
