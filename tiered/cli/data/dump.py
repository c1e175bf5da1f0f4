"""``tiered dump``: stored data by batch, record or entry, under Kafka's field names.

It prints the readable part of a damaged file and then names the damage (exit 4).

| a ``.log`` that ends inside a batch | result |
|---|---|
| on the disk | a finding (exit 3): a crash tore it, recovery truncates it |
| in the bucket | damage (exit 4): an upload is atomic |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import click
import msgspec

from local.errors import Corrupt, InvalidRequest
from tiered.cli.errors import Exit
from tiered.cli.options import (
    GROUP,
    OWN_LAYOUT,
    Layout,
    argument,
    command,
    count_type,
    option,
    parse_partition_at,
    parse_time,
)
from tiered.cli.render import FORMATS, Column, print_fields, print_result, write_lines
from tiered.cli.session import Session, now_ms, store_options

if TYPE_CHECKING:
    from local.names import TopicPartition
    from local.verify.findings import Finding
    from remote.segments.encryption import KeyRing
    from tiered.inspect.dump_files import Section
    from tiered.inspect.dump_rows import DecodeRecord
    from tiered.inspect.dump_sources import FileSource
    from tiered.inspect.dumping import Filter, LogDump
    from tiered.manager.manager import LogManager
    from tiered.read.bucket_reader import RemoteLog
    from tiered.read.reader import TieredReader

_DECODERS = ("utf8", "hex", "base64", "json", "short", "integer", "long", "float", "double")
_SECTIONS = [
    "offset",
    "time",
    "txn",
    "producers",
    "epochs",
    "chunks",
    "segments",
    "unlinked",
    "unlinked_pages",
    "spills",
]
_HIDDEN = ("base_sequence", "last_sequence", "producer_epoch", "is_transactional", "delete_horizon_ms", "magic")
_RECORD_COLUMNS = ["offset", "timestamp", "key_size", "value_size", "sequence", "header_keys", "key", "value"]
_TEXT_COLUMNS = ["is_control", "timestamp_type", "compresscodec", "isvalid", "header_keys", "key", "value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoding:
    encoding: str = option(
        "--encoding", "Set the encoding of keys and values.", choices=["utf8", "base64", "hex"], default="utf8"
    )
    key_decoder: str | None = option(
        "--key-decoder", "Set the encoding of keys; default: --encoding.", choices=_DECODERS
    )
    value_decoder: str | None = option(
        "--value-decoder", "Set the encoding of values; default: --encoding.", choices=_DECODERS
    )
    offsets_decoder: bool = option("--offsets-decoder", "Decode records of __consumer_offsets.")
    transaction_log_decoder: bool = option("--transaction-log-decoder", "Decode records of __transaction_state.")

    @property
    def is_given(self) -> bool:
        return bool(self.key_decoder or self.value_decoder or self.offsets_decoder or self.transaction_log_decoder)

    def decoder(self) -> DecodeRecord:
        from local.records import coordinator_records
        from tiered.inspect.dump_rows import DECODERS, decode_coordinator, decode_with

        if self.offsets_decoder and self.transaction_log_decoder:
            raise click.UsageError("--offsets-decoder and --transaction-log-decoder exclude each other")
        if self.offsets_decoder:
            return decode_coordinator(coordinator_records.decode_offsets_record)
        if self.transaction_log_decoder:
            return decode_coordinator(coordinator_records.decode_transaction_record)
        key, value = self.key_decoder or self.encoding, self.value_decoder or self.encoding
        return decode_with(DECODERS[key], DECODERS[value])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selection:
    from_offset: int | None = option("--from-offset", "Select records at or above this offset.", type=click.IntRange(0))
    to_offset: int | None = option("--to-offset", "Select records below this offset.", type=click.IntRange(0))
    key: str | None = option("--key", "Select records with exactly this key, written in --encoding.")
    key_prefix: str | None = option("--key-prefix", "Select records whose key begins with this.")
    since: str | None = option(
        "--since @TIME", "Select records at or after this time: @2026-11-20T12:00:00Z, @MS, @-2h."
    )
    until: str | None = option("--until @TIME", "Select records before this time.")

    def filter(self, encoding: str) -> Filter:
        from tiered.inspect.dump_rows import encode
        from tiered.inspect.dumping import Filter

        if self.key is not None and self.key_prefix is not None:
            raise click.UsageError("--key and --key-prefix exclude each other")
        key = self.key if self.key_prefix is None else self.key_prefix
        since_ms, until_ms = _time(self.since), _time(self.until)
        if self.from_offset is not None and self.to_offset is not None and self.to_offset <= self.from_offset:
            raise click.UsageError("--to-offset must be above --from-offset: the records below it are printed")
        if since_ms is not None and until_ms is not None and until_ms <= since_ms:
            raise click.UsageError("--until must be later than --since: the records before it are printed")
        return Filter(
            from_offset=self.from_offset,
            to_offset=self.to_offset,
            since_ms=since_ms,
            until_ms=until_ms,
            key=None if key is None else encode(key, encoding),
            is_key_prefix=self.key_prefix is not None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """With `url` a partition of that bucket, else the target."""

    options: dict[str, object] = option(
        "--option NAME=VALUE", "Option of the store of the URL.", callback=store_options
    )
    url: str | None = option("--remote URL", "Read a partition of this bucket only; needs no configuration.")
    topic_id: str | None = option("--topic-id ID", "Choose one of several topics of this name in that bucket.")
    layout: Layout = GROUP

    @property
    def is_any_bucket(self) -> bool:
        """Whether an option is set that needs the `url` of a bucket."""
        return bool(self.topic_id) or self.layout.is_given

    def open(self, session: Session, topic: str) -> AbstractContextManager[LogManager | RemoteLog]:
        if self.url is None:
            return session.manager(read_only=True, is_hasty=True)
        session.set_up_logging()
        from tiered.read.bucket_reader import open_remote

        layout = self.layout.words()
        topic_ids = {topic: self.topic_id} if self.topic_id is not None else {}
        return open_remote(self.url, self.options, topic_ids=topic_ids, **layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    target: str = argument("FILE|URL|TOPIC/PARTITION[@OFFSET]")
    output: str | None = option(
        "-o, --output", "Set the output format. text: the lines of Kafka's own tool.", choices=[*FORMATS, "text"]
    )
    batches: bool = option("--batches", "Print batches only, in any output format.")
    by_record: bool = option("--records", "Print records as JSON lines, without control records.")
    by_index: bool = option("--index", "Print the offset index of the segment instead of its batches.")
    by_byte: bool = option("--hex", "Print every byte with the name of its field; with --batches headers only.")
    deep_iteration: bool = option("--deep-iteration, --deep", "Print every batch and its records.")
    print_data_log: bool = option("--print-data-log, --print", "Print keys and values too; implies --deep-iteration.")
    count: int | None = option("-n, --count", "Stop after this many rows.", type=count_type(1))
    decoding: _Decoding = GROUP
    selection: _Selection = GROUP
    index_sanity_check: bool = option("--index-sanity-check", "Check whether an index is well formed, without its log.")
    verify_index_only: bool = option("--verify-index-only", "Compare an index with its log, print nothing else.")
    section: str | None = option(
        "--section", "Print one section of an .indexes object or of a manifest.", choices=_SECTIONS
    )
    place: _Place = GROUP

    @property
    def prints_data(self) -> bool:
        return self.print_data_log or self.decoding.is_given

    @property
    def is_deep(self) -> bool:
        return not self.batches and (
            self.by_record or self.deep_iteration or self.prints_data or (self.output == "jsonl" and not self.by_byte)
        )

    @property
    def form(self) -> str:
        return self.output or ("jsonl" if self.by_record else "text" if self.is_deep else "table")


@command("dump", example="dump orders/0 --records --from-offset 100 --to-offset 110")
def dump(session: Session, request: _Request = GROUP) -> int:
    """Print a segment, an index, a snapshot or a checkpoint of the disk or a bucket, or a partition of both tiers."""
    if request.by_index:
        request = _index_request(session, request)
    if request.place.url is not None:
        return _dump_partition(session, request)
    if request.place.is_any_bucket:
        raise click.UsageError("--topic-id, --layout, --layout-prefix and --layout-key require --remote")
    if request.by_byte and (request.by_record or request.deep_iteration or request.prints_data):
        raise click.UsageError("--hex prints all of a record; remove --records, --deep-iteration, --print-data-log")
    if request.place.options and "://" not in request.target:
        raise click.UsageError("--option requires --remote URL or the url of an object")
    if "://" not in request.target and not _is_file(request.target):
        return _dump_partition(session, request)
    with _opened(session, request) as source:
        from tiered.inspect.dump_sources import Kind

        if source.kind in (Kind.LOG, Kind.STORED_LOG):
            return _dump_log(session, request, source)
        return _dump_file(session, request, source)


def _index_request(session: Session, request: _Request) -> _Request:
    """The same options for the index of the segment that is named or holds the offset."""
    from dataclasses import replace

    from tiered.inspect.dump_sources import index_of_offset, index_of_segment

    if request.batches or request.is_deep or request.by_byte or request.section:
        raise click.UsageError("--index prints an index: remove the options for batches, records, bytes or a --section")
    if request.place.url is None and ("://" in request.target or _is_file(request.target)):
        found = index_of_segment(request.target)
    else:
        partition, offset = parse_partition_at(request.target)
        url = request.place.url if request.place.url is not None else session.config().remote_url
        with request.place.open(session, partition.topic) as bucket:
            found = index_of_offset(bucket.reader().source(partition), url, offset)
    place = replace(request.place, url=None, topic_id=None, layout=OWN_LAYOUT)
    return replace(request, target=found.target, section=found.section, by_index=False, place=place)


def _is_file(target: str) -> bool:
    import os

    from tiered.inspect.dump_sources import kind_of

    return kind_of(target) is not None or os.path.isfile(target)


@contextmanager
def _opened(session: Session, request: _Request) -> Iterator[FileSource]:
    """Open the target. Options of the configured store apply to a url in that store."""
    from tiered.inspect.dump_sources import is_encrypted, open_file, open_object, split_object_url, url_in_bucket

    target = request.target
    if "://" not in target and is_encrypted(target):
        target = url_in_bucket(target) or target  # its key is in the bucket's manifests
    if "://" not in target:
        with closing(open_file(target)) as source:
            yield source
        return
    from remote.store.open_store import open_store
    from tiered.config.secrets import keyed_store

    url, key = split_object_url(target)
    if not key:
        raise InvalidRequest("cannot dump an object, the url names none", url=url)
    store = keyed_store(open_store(url, request.place.options or session.store_options_of(target)), _key_ring(session))
    with closing(store):
        yield open_object(store, key)


def _dump_log(session: Session, request: _Request, source: FileSource) -> int:
    from tiered.inspect.dump_sources import Kind, open_stored
    from tiered.inspect.dumping import LogDump

    if request.index_sanity_check or request.verify_index_only or request.section:
        raise InvalidRequest("cannot dump a segment, the option applies to other files", path=source.place)
    if source.size_bytes == 0:
        session.say(f"the file is empty: path={source.place}")
    stored = open_stored(source, _keys(session)) if source.kind is Kind.STORED_LOG else None
    selected = request.selection.filter(request.decoding.encoding)
    log = LogDump.of_stored(stored, source, selected) if stored else LogDump.of_file(source, selected)
    base = source.base_offset
    _print_log(request, log, [f"Dumping {source.place}", *([] if base is None else [f"Log starting offset: {base}"])])
    _print_gaps(session, log, source.place)
    if log.invalid_bytes and request.count is None:
        name = source.place.rpartition("/")[2]
        session.say(f"found {log.invalid_bytes} invalid bytes at the end of {name}")
    facts = {"path": source.place, "at": log.at, "size_bytes": source.size_bytes}
    if stored is not None and stored.damage is not None:
        raise stored.damage
    if log.problem is None:
        return Exit.DONE
    if not log.is_torn or source.is_object or stored is not None:
        raise Corrupt(f"cannot dump a segment, {log.problem}", **facts)
    session.say(f"the file ends inside a batch: path={source.place} at={log.at} size_bytes={source.size_bytes}")
    return Exit.FINDINGS


def _start_offset(reader: TieredReader, partition: TopicPartition, wanted: int | None) -> int:
    """Return `wanted`, clamped to the log. An offset on the disk needs no request."""
    if wanted is not None and reader.source(partition).is_local(wanted):
        return wanted
    start, following = reader.offsets(partition)
    return start if wanted is None else min(max(wanted, start), following)


def _key_ring(session: Session) -> str | None:
    from local.errors import NotFound

    try:
        return session.config().key_ring
    except NotFound:
        return None


def _keys(session: Session) -> KeyRing:
    """The configured key ring, or that of the environment."""
    import os

    from tiered.config.secrets import load_key_ring

    return load_key_ring(_key_ring(session), os.environ)


def _dump_partition(session: Session, request: _Request) -> int:
    """Dump both tiers of a partition with one run of batches in memory at a time."""
    if "/" not in request.target:
        expected = "'a file of a log, a url, or TOPIC/PARTITION[@OFFSET]'"
        raise InvalidRequest(
            "cannot dump the target, it is neither a file of a log nor a partition",
            target=repr(request.target),
            expected=expected,
        )
    partition, offset = parse_partition_at(request.target)
    from dataclasses import replace

    from tiered.inspect.dumping import LogDump
    from tiered.manager.manager import LogManager

    with request.place.open(session, partition.topic) as bucket:
        reader = bucket.reader()
        selection = request.selection.filter(request.decoding.encoding)
        lower_bounds = [each for each in (offset, selection.from_offset) if each is not None]
        selection = replace(selection, from_offset=max(lower_bounds, default=None))
        if isinstance(bucket, LogManager):
            session.report_served_alone(bucket.problems, [partition])
        start = offset if offset is not None else _start_offset(reader, partition, selection.from_offset)
        log = LogDump.of_batches(reader.batches(partition, start, selection.to_offset), partition, selection)
        facts = {"topic": partition.topic, "partition": partition.partition}
        _print_log(request, log, [f"Dumping {partition}"], partition)
    if log.problem is not None:
        raise Corrupt(f"cannot dump a partition, {log.problem}", **facts, at=log.at)
    return Exit.DONE


def _print_log(request: _Request, log: LogDump, title: list[str], *where: TopicPartition) -> None:
    from tiered.cli.data.dump_results import DumpedBatches, DumpedRecords, lines_of, print_hex
    from tiered.inspect import dump_rows
    from tiered.inspect.dump_rows import DECODERS

    form, count = request.form, request.count
    if request.by_byte:
        print_hex(islice(log.hex_batches(with_records=not request.batches), count), title, form, where)
        return
    headers = DECODERS[request.decoding.encoding]
    if form == "text":
        rows = (
            log.batches_and_records(request.decoding.decoder(), headers=headers) if request.is_deep else log.batches()
        )
        write_lines(title)
        write_lines(lines_of(islice(rows, count), with_data=request.prints_data))
    elif not request.is_deep:
        batches = DumpedBatches.of(*where, batches=[])
        shown = [name for name in dump_rows.BatchRow.__struct_fields__ if name not in _HIDDEN]
        print_result(batches, form, columns=_columns(dump_rows.BatchRow, shown), rows=islice(log.batches(), count))
    else:
        records = log.records(request.decoding.decoder(), headers=headers, with_control=not request.by_record)
        if form == "jsonl":
            dump_rows.write_jsonl(islice(records, count))
        else:
            flat = dump_rows.flat(islice(records, count))
            print_result(
                DumpedRecords.of(*where, records=[]),
                form,
                columns=_columns(dump_rows.FlatRecord, _RECORD_COLUMNS),
                rows=flat,
            )


def _time(text: str | None) -> int | None:
    return None if text is None else parse_time(text.removeprefix("@"), now_ms())


def _columns(row: type[msgspec.Struct], names: list[str]) -> list[Column]:
    titles = dict(zip(row.__struct_fields__, row.__struct_encode_fields__, strict=True))
    titles["partition_leader_epoch"] = "epoch"
    return [Column(name, titles[name], is_number=name not in _TEXT_COLUMNS) for name in names]


def _print_gaps(session: Session, log: LogDump, path: str) -> None:
    if log.gaps:
        session.say(f"{log.gaps} non-consecutive offsets in {path}; compaction leaves such gaps")
        for first, second in log.first_gaps:
            session.say(f"  {first} is followed by {second}")


def _dump_file(session: Session, request: _Request, source: FileSource) -> int:
    from tiered.inspect import dump_files

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
        raise InvalidRequest(
            "cannot compare an index with its log, the log is not in the same directory", path=source.place
        )
    if source.kind in dump_files.WITH_BASE:
        dump_files.check_sanity(source)
    return Exit.DONE


def _selected(request: _Request, sections: list[Section]) -> list[Section]:
    if request.section is None:
        if len(sections) > 1 and request.form == "csv":
            raise click.UsageError(
                f"csv prints one kind of rows: choose a --section of {[each.name for each in sections]}"
            )
        return sections
    selected = [each for each in sections if each.name == request.section]
    if not selected:
        raise InvalidRequest(
            "the section does not exist", section=request.section, there_are=[each.name for each in sections]
        )
    return selected


def _print_sections(request: _Request, sections: list[Section], source: FileSource) -> None:
    from tiered.cli.data.dump_results import entry_line

    form = request.form
    rows_of: dict[str, list[dict[str, object]]] = {
        section.name: [msgspec.to_builtins(row) for row in islice(section.rows, request.count)] for section in sections
    }
    if form == "json":
        first, *others = sections
        rest = {section.name: rows_of[section.name] for section in others}
        rows = rows_of[first.name]
        print_fields(first.name, rows, first.fields, form, path=source.place, **first.facts, **rest)
        return
    for section in sections:
        rows, names = rows_of[section.name], section.fields
        if form == "text":
            write_lines([f"{section.name}:"] if len(sections) > 1 else [])
            write_lines(map(entry_line, rows))
            continue
        if len(sections) > 1 and form == "jsonl":
            names = ("section", *names)
            rows = [{"section": section.name, **row} for row in rows]
        if form == "table":
            write_lines(f"{name}: {value}" for name, value in section.facts.items())
            write_lines([f"{section.name}:"] if len(sections) > 1 else [])
        print_fields(section.name, rows, names, form)


def _print_findings(session: Session, findings: Iterable[Finding]) -> int:
    from local.verify.findings import Severity

    ordered = sorted(findings, key=lambda each: -each.severity)
    worst = ordered[0] if ordered else None
    is_corrupt = worst is not None and worst.severity is Severity.CORRUPT
    for each in ordered[1:] if is_corrupt else ordered:
        session.say(f"{each.state}: {each.what}: path={each.where} at={each.at}")
    if worst is not None and is_corrupt:
        raise Corrupt(f"cannot dump the index, {worst.what}", path=worst.where, at=worst.at, offsets=worst.offsets)
    return Exit.FINDINGS if worst is not None and worst.severity is Severity.WARNING else Exit.DONE
