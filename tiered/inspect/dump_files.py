"""The small files of a log as sheets of rows: indexes, snapshots, checkpoints, objects of a bucket.

Each file is small and read completely. Fields have the names of Kafka's dump tool, if it has them. An index is compared
with the ``.log`` file of its segment, which is read for this purpose (`local.verify.index_checks`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field

import msgspec

from local.errors import Corrupt, InvalidRequest
from local.format.columns import BatchTable
from local.index import offset_index, time_index, txn_index
from local.log import producer_snapshot
from local.log.checkpoints import parse_entries
from local.records.batch_runs import BatchRuns
from local.verify.findings import Finding
from local.verify.index_checks import BatchPlaces, check_offset_index, check_time_index, places_of, without_zeros
from remote.keys import HEADS
from remote.manifest.manifest import PageEntry, PendingDelete, PendingPageDelete, decode_manifest
from remote.manifest.sealing import Sealer
from remote.segment_entry import SegmentEntry
from remote.segments.chunk_table import ChunkTable
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.segments.index_bundle import IndexBundle, decode_bundle
from tiered.inspect.dump_sources import FileSource, Kind

Row = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Rows of one kind. `facts` are facts of the file that are not rows."""

    name: str
    fields: tuple[str, ...]
    rows: list[Row]
    facts: Row = field(default_factory=dict)


def sheets_of(source: FileSource, keys: KeyRing = NO_KEYS) -> list[Sheet]:
    """Return the content of a file that is no segment; `keys` open a sealed manifest.

    Raises Corrupt; InvalidRequest for a name without a base offset; AccessDenied without the key of a seal.
    """
    kind, path = source.kind, source.place
    if kind is None:
        raise InvalidRequest("dumping a file, not a file of a log", path=path)
    data = source.read_all()
    if kind in WITH_BASE:
        base = source.base_offset
        if base is None:
            raise InvalidRequest("dumping an index, the name does not begin with 20 digits", path=path)
        return [WITH_BASE[kind](data, base)]
    match kind:
        case Kind.TXN_INDEX:
            return [_transactions(data, path)]
        case Kind.PRODUCER_SNAPSHOT:
            return [_producers(data, path)]
        case Kind.INDEXES:
            return _bundle(decode_bundle(data), source.base_offset or 0, path)
        case Kind.HEAD:
            return _head(data, Sealer(path.partition(HEADS)[0], keys))
        case Kind.LEADER_EPOCHS | Kind.OFFSET_CHECKPOINT:
            return [_checkpoint(data, path, is_epochs=kind is Kind.LEADER_EPOCHS)]
        case Kind.PARTITION_METADATA:
            return [_pairs(data, ": ", path)]
        case Kind.META_PROPERTIES:
            return [_pairs(data, "=", path)]
        case Kind.CLEAN_SHUTDOWN:
            return [_clean_shutdown(data, path)]
        case _:
            raise InvalidRequest("dumping a file, not a file of a log", path=path)


def check_sanity(source: FileSource) -> None:
    """Check that an index has whole entries in order, without its log. Raises Corrupt."""
    data, path = source.read_all(), source.place
    match source.kind:
        case Kind.OFFSET_INDEX:
            offset_index.check(_whole(data, offset_index.ENTRY_BYTES), 1 << 62, path=path)
        case Kind.TIME_INDEX:
            time_index.check(_whole(data, time_index.ENTRY_BYTES), path=path)
        case Kind.TXN_INDEX:
            txn_index.check(data, source.base_offset or 0, path=path)
        case Kind.PRODUCER_SNAPSHOT:
            producer_snapshot.decode(data, path=path)
        case _:
            raise InvalidRequest("checking an index, not an index file", path=path)


def compare_with_log(source: FileSource) -> list[Finding] | None:
    """Compare an ``.index`` or ``.timeindex`` with its log; None if there is no log.

    The index is read before the log, which grows first, so a running writer causes no finding.
    """
    if source.kind not in (Kind.OFFSET_INDEX, Kind.TIME_INDEX):
        return None
    data, base = source.read_all(), source.base_offset
    log = source.sibling(Kind.LOG.value)
    if log is None or base is None:
        return None
    with closing(log):
        places = log_places(log)
        is_active = _is_newest(source)
    if source.kind is Kind.OFFSET_INDEX:
        return check_offset_index(data, base, places, path=source.place)
    return check_time_index(data, base, places, path=source.place, is_active=is_active)


def log_places(log: FileSource) -> BatchPlaces:
    """Return the positions of a segment's batches, up to the first invalid bytes."""
    tables: list[tuple[int, BatchTable]] = []
    walk = BatchRuns(log.read, log.size_bytes)
    for run in walk:
        tables.append((run.position, run.table))
    return places_of(tables, walk.position)


def _is_newest(source: FileSource) -> bool:
    """Return whether no segment follows: it may be active, and its indexes incomplete."""
    following = [base for base in source.neighbours() if base > (source.base_offset or 0)]
    return not following


def _whole(data: bytes, entry_bytes: int) -> bytes:
    return data if len(data) % entry_bytes else without_zeros(data, entry_bytes)


def _offsets(data: bytes, base: int) -> Sheet:
    found = offset_index.entries(without_zeros(data, offset_index.ENTRY_BYTES), base)
    rows: list[Row] = [{"offset": offset, "position": position} for offset, position in found]
    return Sheet(name="entries", fields=("offset", "position"), rows=rows)


def _times(data: bytes, base: int) -> Sheet:
    found = time_index.entries(without_zeros(data, time_index.ENTRY_BYTES), base)
    rows: list[Row] = [{"timestamp": timestamp, "offset": offset} for timestamp, offset in found]
    return Sheet(name="entries", fields=("timestamp", "offset"), rows=rows)


WITH_BASE: dict[Kind | None, Callable[[bytes, int], Sheet]] = {Kind.OFFSET_INDEX: _offsets, Kind.TIME_INDEX: _times}


def _transactions(data: bytes, path: str) -> Sheet:
    fields = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
    rows: list[Row] = [
        dict(
            zip(
                fields,
                (txn_index.VERSION, each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset),
                strict=True,
            )
        )
        for each in txn_index.entries(data, path=path)
    ]
    return Sheet(name="transactions", fields=fields, rows=rows)


def _producers(data: bytes, path: str) -> Sheet:
    """Decode producers. `firstSequence` is computed back from the last one, with wrap-around at 2^31-1.

    A producer without a remembered batch (only a marker is left) has no fields of a batch.
    """
    rows: list[Row] = []
    for each in producer_snapshot.decode(data, path=path):
        has_batch = each.last_offset >= 0
        first = (each.last_sequence - each.offset_delta) % (1 << 31) if each.last_sequence >= 0 else -1
        rows.append(
            {
                "producerId": each.producer_id,
                "producerEpoch": each.producer_epoch,
                "coordinatorEpoch": each.coordinator_epoch,
                "currentTxnFirstOffset": _or_none(each.transaction_first_offset),
                "lastTimestamp": each.timestamp_ms,
                "firstSequence": first if has_batch else None,
                "lastSequence": each.last_sequence if has_batch else None,
                "lastOffset": each.last_offset if has_batch else None,
                "offsetDelta": each.offset_delta if has_batch else None,
                "timestamp": each.timestamp_ms if has_batch else None,
            }
        )
    return Sheet(name="producers", fields=_PRODUCER_FIELDS, rows=rows)


_PRODUCER_FIELDS = (
    "producerId",
    "producerEpoch",
    "coordinatorEpoch",
    "currentTxnFirstOffset",
    "lastTimestamp",
    "firstSequence",
    "lastSequence",
    "lastOffset",
    "offsetDelta",
    "timestamp",
)


def _bundle(bundle: IndexBundle, base: int, path: str) -> list[Sheet]:
    chunks = bundle.chunks
    rows: list[Row] = [_chunk(chunks, at) for at in range(len(chunks))]
    producers = _producers(bytes(bundle.producers), path) if len(bundle.producers) else _NO_PRODUCERS
    return [
        _named("offset", _offsets(bytes(bundle.offset), base)),
        _named("time", _times(bytes(bundle.time), base)),
        _named("txn", _transactions(bytes(bundle.txn), path)),
        _named("producers", producers),
        _named("epochs", _checkpoint(bytes(bundle.epochs), path, is_epochs=True)),
        Sheet(name="chunks", fields=_CHUNK_FIELDS, rows=rows),
    ]


_CHUNK_FIELDS = ("chunk", "position", "length", "crc32c", "storedPosition", "storedLength", "storedCrc32c")


def _chunk(chunks: ChunkTable, at: int) -> Row:
    stored = (*chunks.stored_range(at), chunks.stored_crc(at))
    return dict(zip(_CHUNK_FIELDS, (at, *chunks.chunk_range(at), chunks.crcs[at], *stored), strict=True))


_NO_PRODUCERS = Sheet(name="producers", fields=_PRODUCER_FIELDS, rows=[])


def _head(data: bytes, sealer: Sealer) -> list[Sheet]:
    """Return a sheet for each list of a manifest; the other fields of the manifest are facts."""
    head = msgspec.to_builtins(decode_manifest(data, sealer=sealer))
    lists = {name: head.pop(name) for name in ("segments", "unlinked", "unlinked_pages", "spills")}
    lists["unlinked_pages"] = [{**page.pop("spill"), **page} for page in lists["unlinked_pages"]]
    return [
        Sheet(name=name, fields=_MANIFEST_FIELDS[name], rows=rows, facts=head if name == "segments" else {})
        for name, rows in lists.items()
    ]


def _fields(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(kind))


_MANIFEST_FIELDS = {  # fields of the types, not of the present rows: scripts rely on the columns
    "segments": _fields(SegmentEntry),
    "unlinked": _fields(PendingDelete),
    "unlinked_pages": (*_fields(PageEntry), *(name for name in _fields(PendingPageDelete) if name != "spill")),
    "spills": _fields(PageEntry),
}


def _checkpoint(data: bytes, path: str, *, is_epochs: bool) -> Sheet:
    fields = ("epoch", "startOffset") if is_epochs else ("topic", "partition", "offset")
    rows: list[Row] = []
    for line, words in parse_entries(data, path, len(fields)):
        try:
            values: Iterable[object] = map(int, words) if is_epochs else (words[0], int(words[1]), int(words[2]))
            rows.append(dict(zip(fields, values, strict=True)))
        except ValueError:
            raise Corrupt("reading a checkpoint, not an entry", path=path, line=line) from None
    return Sheet(name="entries", fields=fields, rows=rows)


def _pairs(data: bytes, separator: str, path: str) -> Sheet:
    lines = [line for line in data.decode("utf-8", "replace").split("\n") if line.strip() and not line.startswith("#")]
    if any(separator not in line for line in lines):
        raise Corrupt("reading names and values, a line without both", path=path)
    pairs = [line.rstrip("\r").partition(separator)[::2] for line in lines]
    return Sheet(name="fields", fields=("name", "value"), rows=[{"name": n, "value": v} for n, v in pairs])


def _clean_shutdown(data: bytes, path: str) -> Sheet:
    """Decode the marker: JSON since Kafka 3.7, empty before."""
    try:
        body = msgspec.json.decode(data, type=dict[str, object]) if data else {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt("reading a clean-shutdown marker, not json", path=path) from error
    return Sheet(name="fields", fields=("name", "value"), rows=[{"name": n, "value": v} for n, v in body.items()])


def _named(name: str, sheet: Sheet) -> Sheet:
    return Sheet(name=name, fields=sheet.fields, rows=sheet.rows, facts=sheet.facts)


def _or_none(number: int) -> int | None:
    return None if number < 0 else number
