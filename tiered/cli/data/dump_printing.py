"""Output of ``tiered dump``: as JSON, as a table, as the lines of Kafka's own tool, and byte by byte."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain, islice

import click
import msgspec
from msgspec import UNSET, UnsetType

from local.errors import Corrupt, InvalidRequest, NotFound
from local.format.batch_header import MAGIC
from local.names import TopicPartition
from local.verify.findings import Finding, Severity
from remote.segments.encryption import KeyRing
from remote.store.open_store import open_store
from tiered.cli.data.dump import Request
from tiered.cli.errors import Exit
from tiered.cli.options import parse_partition_at
from tiered.cli.render import Column, Result, Struct, print_fields, print_result, write_lines
from tiered.cli.session import Session
from tiered.config.secrets import keyed_store, load_key_ring
from tiered.inspect import dump_files
from tiered.inspect.dump_files import Section
from tiered.inspect.dump_sources import (
    FileSource,
    Kind,
    is_encrypted,
    open_file,
    open_object,
    open_stored,
    split_object_url,
    url_in_bucket,
)
from tiered.inspect.dumping import BatchRow, HeaderRow, LogDump, RecordRow
from tiered.inspect.hex_fields import HexField, text_of
from tiered.manager.manager import LogManager
from tiered.read.reader import TieredReader

_BYTES = 8  # in a line, so that it fits in 80 columns
_MOMENTS = {"baseTimestamp", "maxTimestamp", "timestamp", "timestampDelta"}
_LINES_MAX = 16  # of one field in the table; other forms have every byte
_OPTIONAL = {"currentTxnFirstOffset", "deleteHorizonMs"}
_HIDDEN = ("base_sequence", "last_sequence", "producer_epoch", "is_transactional", "delete_horizon_ms", "magic")
_RECORD_COLUMNS = ["offset", "timestamp", "key_size", "value_size", "sequence", "header_keys", "key", "value"]
_TEXT_COLUMNS = ["is_control", "timestamp_type", "compresscodec", "isvalid", "header_keys", "key", "value"]
Plain = str | int | float | bool | None


class DumpedField(Struct, rename="camel"):
    """A field of a batch, byte by byte; `at` is a position in the file or, if `isInflated`, in the inflated bytes."""

    base_offset: int
    position: int | None
    at: int
    is_inflated: bool
    depth: int
    field: str
    bytes: str
    value: str


class FlatRecord(Struct, rename="camel"):
    """A record and the facts of its batch side by side."""

    offset: int
    timestamp: int
    timestamp_type: int
    key_size: int
    value_size: int
    sequence: int
    header_keys: str
    key: str | int | float | bool | None
    value: str | int | float | bool | None
    headers: list[HeaderRow]
    end_txn_marker: str | None
    coordinator_epoch: int | None
    base_offset: int
    position: int | None
    partition_leader_epoch: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    is_control: bool
    compresscodec: str

    @classmethod
    def of_record(cls, row: RecordRow) -> FlatRecord:
        """The flat form of a record: objects become JSON, undecoded bytes ``base64:...``."""
        return cls.of(
            row,
            row.batch,
            header_keys=",".join(each.key for each in row.headers),
            key=_plain(row.key),
            value=_plain(row.value),
            end_txn_marker=row.control.type if row.control is not None else None,
            coordinator_epoch=row.control.coordinator_epoch if row.control is not None else None,
        )


class _OfLog(Result):
    """Topic and partition are set for a partition, not for a file."""

    topic: str | UnsetType = UNSET
    partition: int | UnsetType = UNSET


class DumpedBatches(_OfLog, kw_only=True):
    """``tiered dump``, ``tiered dump --batches``."""

    batches: list[BatchRow]


class DumpedRecords(_OfLog, kw_only=True):
    """``tiered dump --deep-iteration``."""

    records: list[FlatRecord]


class DumpedBytes(_OfLog, kw_only=True):
    """``tiered dump --hex``."""

    fields: list[DumpedField]


def dump_file(session: Session, request: Request) -> int:
    with _opened(session, request) as source:
        return (_dump_log if source.kind in (Kind.LOG, Kind.STORED_LOG) else _dump_rows)(session, request, source)


@contextmanager
def _opened(session: Session, request: Request) -> Iterator[FileSource]:
    target = request.target
    if "://" not in target and is_encrypted(target):
        target = url_in_bucket(target) or target  # the data key of the target is in the bucket's manifests
    if "://" not in target:
        with closing(open_file(target)) as source:
            yield source
        return
    url, key = split_object_url(target)
    if not key:
        raise InvalidRequest("cannot dump an object, the url names none", url=url)
    store = keyed_store(open_store(url, request.place.options or session.store_options_of(target)), _key_ring(session))
    with closing(store):
        yield open_object(store, key)


def _dump_log(session: Session, request: Request, source: FileSource) -> int:
    if request.index_sanity_check or request.verify_index_only or request.section:
        raise InvalidRequest("cannot dump a segment, the option applies to other files", path=source.place)
    if source.size_bytes == 0:
        session.say(f"the file is empty: path={source.place}")
    stored = open_stored(source, _keys(session)) if source.kind is Kind.STORED_LOG else None
    selected, decoders = request.selection.filter(request.decoding.encoding), request.decoding.decoders()
    log = LogDump.of_file(source if stored is None else stored, selected, decoders)
    base, name = source.base_offset, source.place.rpartition("/")[2]
    _print_log(request, log, [f"Dumping {source.place}", *([] if base is None else [f"Log starting offset: {base}"])])
    if log.gaps:
        session.say(f"{log.gaps} non-consecutive offsets in {source.place}; compaction leaves such gaps")
    for first, second in log.first_gaps:
        session.say(f"  {first} is followed by {second}")
    if log.invalid_bytes and request.count is None:
        session.say(f"found {log.invalid_bytes} invalid bytes at the end of {name}")
    if stored is not None and stored.damage is not None:
        raise stored.damage
    if log.problem is None:
        return Exit.DONE
    facts = {"path": source.place, "at": log.at, "size_bytes": source.size_bytes}
    if not log.is_torn or source.store is not None or stored is not None:
        raise Corrupt(f"cannot dump a segment, {log.problem}", **facts)
    session.say(f"the file ends inside a batch: path={source.place} at={log.at} size_bytes={source.size_bytes}")
    return Exit.FINDINGS


def dump_partition(session: Session, request: Request) -> int:
    """Dump both tiers of a partition, one run of batches in memory at a time. Returns the exit code."""
    if "/" not in request.target:
        expected = "'a file of a log, a url, or TOPIC/PARTITION[@OFFSET]'"
        wrong = "cannot dump the target, it is neither a file of a log nor a partition"
        raise InvalidRequest(wrong, target=repr(request.target), expected=expected)
    partition, offset = parse_partition_at(request.target)
    with request.place.open(session, partition.topic) as bucket:
        reader = bucket.reader()
        selection = request.selection.filter(request.decoding.encoding)
        lower_bounds = [each for each in (offset, selection.from_offset) if each is not None]
        selection = replace(selection, from_offset=max(lower_bounds, default=None))
        if isinstance(bucket, LogManager):
            session.report_served_alone(bucket.problems, [partition])
        start = offset if offset is not None else _start_offset(reader, partition, selection.from_offset)
        runs = reader.batches(partition, start, selection.to_offset)
        log = LogDump.of_batches(runs, partition, selection, request.decoding.decoders())
        _print_log(request, log, [f"Dumping {partition}"], partition)
    if log.problem is not None:
        facts = {"topic": partition.topic, "partition": partition.partition, "at": log.at}
        raise Corrupt(f"cannot dump a partition, {log.problem}", **facts)
    return Exit.DONE


def _start_offset(reader: TieredReader, partition: TopicPartition, wanted: int | None) -> int:
    if wanted is not None and reader.source(partition).is_local(wanted):
        return wanted
    start, following = reader.offsets(partition)
    return start if wanted is None else min(max(wanted, start), following)


def _key_ring(session: Session) -> str | None:
    try:
        return session.config().key_ring
    except NotFound:
        return None


def _keys(session: Session) -> KeyRing:
    return load_key_ring(_key_ring(session), os.environ)


def _print_log(request: Request, log: LogDump, title: list[str], *where: TopicPartition) -> None:
    form, count, is_deep = request.form, request.count, request.is_deep
    if request.by_byte:
        batches = islice(log.hex_batches(with_records=not request.batches), count)
        if form in ("table", "text"):
            write_lines(chain(title, _hex_lines(batches)))
            return
        fields = (
            DumpedField.of(row, field, field=field.name, bytes=field.data.hex())
            for row, each in batches
            for field in each
        )
        print_result(DumpedBytes.of(*where, fields=[]), form, rows=fields)
    elif form == "text":
        lines = (
            _batch_line(row) if isinstance(row, BatchRow) else _record_line(row, with_data=request.prints_data)
            for row in islice(log.batches_and_records() if is_deep else log.batches(), count)
        )
        write_lines(chain(title, lines))
    elif not is_deep:
        columns = _columns(BatchRow, [name for name in BatchRow.__struct_fields__ if name not in _HIDDEN])
        print_result(DumpedBatches.of(*where, batches=[]), form, columns=columns, rows=islice(log.batches(), count))
    else:
        records = islice(log.records(with_control=not request.by_record), count)
        if form == "jsonl":
            _write_jsonl(records)
            return
        columns = _columns(FlatRecord, _RECORD_COLUMNS)
        flat = map(FlatRecord.of_record, records)
        print_result(DumpedRecords.of(*where, records=[]), form, columns=columns, rows=flat)


def _columns(row: type[msgspec.Struct], names: list[str]) -> list[Column]:
    titles = dict(zip(row.__struct_fields__, row.__struct_encode_fields__, strict=True))
    titles["partition_leader_epoch"] = "epoch"
    return [Column(name, titles[name], is_number=name not in _TEXT_COLUMNS) for name in names]


def _write_jsonl(rows: Iterable[RecordRow]) -> None:
    encode = msgspec.json.Encoder().encode
    sys.stdout.flush()
    write = sys.stdout.buffer.write
    for row in rows:
        write(encode(row) + b"\n")


def _dump_rows(session: Session, request: Request, source: FileSource) -> int:
    if request.by_byte:
        raise InvalidRequest("cannot dump bytes, only a segment has batches: remove --hex", path=source.place)
    if request.index_sanity_check:
        dump_files.check_sanity(source)
        session.say(f"{source.place} passed the sanity check")
        return Exit.DONE
    if not request.verify_index_only:
        sections = dump_files.sections_of(source, lambda: _keys(session))
        _print_sections(request, _selected(request, sections), source)
    compared = dump_files.compare_with_log(source)
    if compared is not None:
        return _print_findings(session, compared)
    if request.verify_index_only:
        wrong = "cannot compare an index with its log, the log is not in the same directory"
        raise InvalidRequest(wrong, path=source.place)
    if source.kind in dump_files.WITH_BASE:
        dump_files.check_sanity(source)
    return Exit.DONE


def _selected(request: Request, sections: list[Section]) -> list[Section]:
    names = [each.name for each in sections]
    if request.section is None:
        if len(sections) > 1 and request.form == "csv":
            raise click.UsageError(f"csv prints one kind of rows: choose a --section of {names}")
        return sections
    selected = [each for each in sections if each.name == request.section]
    if not selected:
        raise InvalidRequest("the section does not exist", section=request.section, there_are=names)
    return selected


def _print_sections(request: Request, sections: list[Section], source: FileSource) -> None:
    form, has_several = request.form, len(sections) > 1
    rows_of: dict[str, list[dict[str, object]]] = {
        section.name: [msgspec.to_builtins(row) for row in islice(section.rows, request.count)] for section in sections
    }
    if form == "json":
        first, *others = sections
        rest = {section.name: rows_of[section.name] for section in others}
        print_fields(first.name, rows_of[first.name], first.fields, form, path=source.place, **first.facts, **rest)
        return
    for section in sections:
        rows, names = rows_of[section.name], section.fields
        if form == "table":
            write_lines(f"{name}: {value}" for name, value in section.facts.items())
        if form in ("table", "text") and has_several:
            write_lines([f"{section.name}:"])
        if form == "text":
            write_lines(map(_entry_line, rows))
            continue
        if has_several and form == "jsonl":
            names = ("section", *names)
            rows = [{"section": section.name, **row} for row in rows]
        print_fields(section.name, rows, names, form)


def _print_findings(session: Session, findings: Iterable[Finding]) -> int:
    ordered = sorted(findings, key=lambda each: -each.severity)
    worst = ordered[0] if ordered else None
    is_corrupt = worst is not None and worst.severity is Severity.CORRUPT
    for each in ordered[1:] if is_corrupt else ordered:
        session.say(f"{each.state}: {each.what}: path={each.where} at={each.at}")
    if worst is not None and is_corrupt:
        raise Corrupt(f"cannot dump the index, {worst.what}", path=worst.where, at=worst.at, offsets=worst.offsets)
    return Exit.FINDINGS if worst is not None and worst.severity is Severity.WARNING else Exit.DONE


def _hex_lines(batches: Iterable[tuple[BatchRow, Iterable[HexField]]]) -> Iterator[str]:
    for row, fields in batches:
        where = "" if row.position is None else f" at {row.position}"
        yield f"batch{where}: offsets {row.base_offset}..{row.last_offset}, {row.size} bytes"
        for field in fields:
            yield from _field_lines(field)


def _field_lines(field: HexField) -> Iterator[str]:
    place = "+" if field.is_inflated else " "
    is_text = field.value == text_of(field.data) and len(field.data) > _BYTES
    for number, at in enumerate(range(0, max(1, len(field.data)), _BYTES)):
        data = field.data[at : at + _BYTES]
        if number == _LINES_MAX:
            yield f"{'':34}{'  ' * field.depth}... {len(field.data) - at} bytes more"
            return
        name = field.name if number == 0 else ""
        # a moment without the number, which the bytes show
        whole = field.value.rpartition(": ")[2] if field.name in _MOMENTS else field.value
        value = text_of(data) if is_text else whole if number == 0 else ""
        words = f"{'  ' * field.depth}{name:<{20 - 2 * field.depth}} {value}".rstrip()
        yield f"{place}{field.at + at:08x}  {data.hex(' '):<23} {words}"


def _batch_line(row: BatchRow) -> str:
    """Format a batch; a message of format 0 or 1 has an offset in place of the producer's fields."""
    fields = msgspec.to_builtins(row)
    fields = {row.timestamp_type if name == "maxTimestamp" else name: value for name, value in fields.items()}
    del fields["timestampType"]
    if row.magic < MAGIC:
        names = list(fields)
        fields = {"offset": row.last_offset, **{name: fields[name] for name in names[names.index("position") :]}}
    return _entry_line(fields)


def _record_line(row: RecordRow, *, with_data: bool) -> str:
    line = (
        f"| offset: {row.offset} {row.batch.timestamp_type}: {row.timestamp} keySize: {row.key_size}"
        f" valueSize: {row.value_size}"
    )
    if row.batch.magic >= MAGIC:
        line += f" sequence: {row.sequence} headerKeys: [{','.join(each.key for each in row.headers)}]"
    if row.control is not None:
        if row.control.coordinator_epoch is None:
            return f"{line} controlType: {row.control.type}"
        return f"{line} endTxnMarker: {row.control.type} coordinatorEpoch: {row.control.coordinator_epoch}"
    if with_data:
        line += "" if row.key is None else f" key: {_shown(row.key)}"
        line += "" if row.value is None else f" payload: {_shown(row.value)}"
    return line


def _entry_line(row: Mapping[str, object]) -> str:
    """``offset: 5 position: 4096``"""
    optional = {name: row[name] for name in _OPTIONAL & row.keys()}
    texts = {name: "OptionalLong.empty" if at is None else f"OptionalLong[{at}]" for name, at in optional.items()}
    return " ".join(f"{name}: {_shown(value)}" for name, value in {**row, **texts}.items() if value is not None)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and set(value) == {"base64"}:
        return f"base64:{value['base64']}"
    return msgspec.json.encode(value).decode()


def _plain(value: object) -> Plain:
    return value if value is None or isinstance(value, int | float) else _shown(value)
