"""``tiered append``: append lines of a file, or JSON lines, as records. Input that was read is never discarded."""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated

import click

from local.errors import DiskFailed, InvalidRequest, LogError
from local.format.record import Record
from tiered.cli.errors import Exit, stopped_code
from tiered.cli.options import GROUP, OUTPUT, argument, command, duration_ms, option, parse_partition
from tiered.cli.progress import copy_progress
from tiered.cli.records import ReadLines, jsonl_reader, line_reader
from tiered.cli.render import PartitionRow, Result, number, print_result
from tiered.cli.session import Session, Stop, now_ms, stop_signals
from tiered.config.units import format_count

CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
RUN_S = 1.0  # maximum delay of a line of an open pipe
RUN_BYTES = 16 << 20  # long lines make shorter runs
CHUNK_BYTES = 1 << 20


class AppendedRange(PartitionRow):
    """The first offset, one past the last, and the number of records; other producers' records may be between."""

    base_offset: Annotated[int, number("FROM", format_count)]
    next_offset: Annotated[int, number("NEXT", format_count)]
    records: Annotated[int, number("RECORDS", format_count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LineForm:
    separator: str | None = option("-K SEP", "Set the separator of key and value in a line; default: no keys.")
    is_empty_null: bool = option("-Z", "Treat an empty value as null: a tombstone.")
    is_jsonl: bool = option("--jsonl", "Read lines as JSON objects: key, value, timestamp, headers.")

    def reader(self, partition: int | None) -> ReadLines:
        if self.is_jsonl and self.separator is not None:
            raise click.UsageError("--jsonl lines contain their keys; remove -K")
        if self.separator == "":
            raise click.UsageError("-K is empty; remove it for records without keys")
        if self.is_jsonl:
            return jsonl_reader(now_ms, partition)
        return line_reader(self.separator, self.is_empty_null, now_ms)


class Appended(Result):
    """``tiered append``."""

    appended: list[AppendedRange]


@command("append", has_progress=True, example="append orders lines.txt -K :")
def append(
    session: Session,
    target: str = argument("TOPIC[/PARTITION]"),
    source: str = argument(
        "[FILE|-]", type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True), default="-"
    ),
    form: _LineForm = GROUP,
    batch: int = option("--batch", "Set the records per append.", least=1, default=10000),
    compression: str | None = option(
        "--compression", "Set the codec of the batches; default: of the topic.", choices=CODECS
    ),
    acks: str | None = option(
        "--acks",
        "Wait until the records are on the disk (local) or in the bucket (remote); default: append.acks of the topic.",
        choices=("local", "remote"),
    ),
    timeout: str | None = option("--timeout TIME", "Limit the time that --acks remote waits; default: 5m."),
    output: str = OUTPUT,
) -> int:
    """Append one record for each line, to the named partition or split by key as Kafka does.

    When the command ends, the records are on the disk, and with --acks remote in the bucket. An invalid line or a
    signal ends the command; earlier records stay and are counted.
    """
    from tiered.serve.commands.operation_jobs import errors_of
    from tiered.serve.node.appending import AppendedRecords, RemoteAppend, begin_append

    topic, partition = parse_partition(target)
    read = form.reader(partition)
    overrides = {"compression.type": compression} if compression else {}
    is_remote = (acks or _acks_of(session, topic)) == "remote"
    timeout_ms = _timeout_ms(timeout, is_remote=is_remote)
    failure: LogError | None = None
    with open_lines(source) as lines, stop_signals() as stop:
        # Appends that only the disk acknowledges do not wait for an unavailable store.
        with session.node(stop, overrides=overrides, is_hasty=not is_remote) as node:
            goal = node.run(
                begin_append, topic=topic, partition=partition, compression=compression, is_remote=is_remote
            )
            store_errors = errors_of(goal.problems)
            session.report_problems(store_errors)
            appended = AppendedRecords(node, goal, partition)
            try:
                remote = RemoteAppend(node, goal, partition, session.say) if is_remote else None
                known = remote.appended_before(source, asdict(form)) if remote is not None else None
                if known is not None:
                    appended.take(known)
                else:
                    for records in _records(_counted(session, lines, line_runs(lines, batch, stop)), read):
                        appended.append(records)
                if remote is not None and not stop.is_set:
                    session.progress.wait_for("the bucket")
                    with copy_progress(session, node.manager):
                        remote.wait(appended.shares(), timeout_ms)
            except LogError as error:
                failure = error
            failure = appended.make_durable() or failure
        # The records are durable and the manager is closed.
        rows = [AppendedRange.of(each) for each in appended.shares()]
        if rows or (output == "json" and failure is None):
            print_result(Appended(rows), output)
        if rows and store_errors:
            session.say("appended to this disk; 'tiered run' copies the records when the store replies")
        if failure is not None or stop.is_set:
            session.say(f"appended before the error: records={appended.count}")
        if failure is not None:
            raise failure
        return stopped_code(stop) if stop.is_set else Exit.DONE


def _acks_of(session: Session, topic: str) -> str:
    from tiered.config.config import log_settings

    properties = session.topics().get(topic).properties
    return log_settings(session.config().topic_properties(topic, properties)).append_acks


def _timeout_ms(text: str | None, *, is_remote: bool) -> int:
    from tiered.manager.remote_acks import TIMEOUT_MS

    if text is None:
        return TIMEOUT_MS
    if not is_remote:
        raise click.UsageError("--timeout requires --acks remote")
    return duration_ms("--timeout", text, "5m")


def _counted(session: Session, fd: int, runs: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    if not session.progress.sends_events:
        yield from runs
        return
    facts = os.fstat(fd)
    remaining = facts.st_size if stat.S_ISREG(facts.st_mode) else None
    session.progress.expect(remaining or 0, "bytes")
    for run in runs:
        yield run
        size = sum(map(len, run)) + len(run)
        if remaining is not None:
            size = min(size, remaining)  # the last line may have no end
            remaining -= size
        session.progress.advance(size)


def _records(runs: Iterator[list[bytes]], read: ReadLines) -> Iterator[list[Record]]:
    first = 1
    for run in runs:
        records: list[Record] = []
        try:
            records.extend(read(run, first))  # after an error it holds the records before the wrong line
        except InvalidRequest:
            if records:
                yield records
            raise
        yield records
        first += len(run)


@contextmanager
def open_lines(path: str) -> Iterator[int]:
    """Yield the descriptor of a file, or of stdin for ``-``. Raises InvalidRequest if stdin is closed."""
    if path == "-":
        if sys.stdin is None:
            raise InvalidRequest("cannot read lines, stdin is closed: name a file")
        yield 0
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def line_runs(fd: int, size: int, stop: Stop) -> Iterator[list[bytes]]:
    r"""Yield runs of 1 to `size` lines without ``\n``. Raises DiskFailed for unreadable input.

    A run ends when it is full, a second after its first line, at the end of the input, or at a stop signal. Only a line
    that a signal cuts short is discarded.
    """
    lines: list[bytes] = []
    pieces: list[bytes] = []  # of a line that is still incomplete
    read_bytes = 0
    due = float("inf")
    while not stop.is_set:
        data = _read(fd, stop, due)
        if data:
            first, *others = data.split(b"\n")
            pieces.append(first)
            if others:
                due = min(due, time.monotonic() + RUN_S)
                lines += [b"".join(pieces), *others[:-1]]
                pieces = others[-1:]
            read_bytes += len(data)
        elif data is not None:
            lines += [last] if (last := b"".join(pieces)) else []
            break
        complete = len(lines)
        if time.monotonic() < due and read_bytes < RUN_BYTES:
            complete -= complete % size
        if complete:
            yield from _sliced(lines[:complete], size)
            lines, read_bytes, due = lines[complete:], 0, float("inf")
            if lines:
                due = time.monotonic() + RUN_S
    yield from _sliced(lines, size)


def _read(fd: int, stop: Stop, due: float) -> bytes | None:
    """Return the available bytes, empty at the end; None when `due` (monotonic) or a signal came first."""
    wait_s = None if due == float("inf") else due - time.monotonic()
    if not stop.wait(wait_s, fd):
        return None
    try:
        return os.read(fd, CHUNK_BYTES)
    except OSError as error:
        cause = errno.errorcode.get(error.errno or 0, "unknown").lower()
        raise DiskFailed("cannot read lines", descriptor=fd, cause=cause) from error


def _sliced(lines: list[bytes], size: int) -> Iterator[list[bytes]]:
    for at in range(0, len(lines), size):
        yield lines[at : at + size]
