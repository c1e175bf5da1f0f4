"""The small files of a log as sheets of rows, with the field names of Kafka's dump tool if it has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from local.errors import Corrupt, InvalidRequest
from local.format.columns import joined_tables
from local.index import offset_index, time_index, txn_index
from local.log.checkpoints import parse_entries
from local.log.producer_state import decode_snapshot, sequence_before
from local.records.batch_runs import BatchRuns
from local.verify.findings import Finding
from local.verify.segment_checks import check_offset_index, check_time_index, without_zeros
from remote.keys import MANIFESTS
from remote.manifest.manifest import STORED_MANIFEST, PageEntry, PendingDelete, PendingPageDelete, decode_manifest
from remote.manifest.sealing import Sealer
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.segments.stored_segment import ChunkTable, IndexBundle, decode_bundle
from tiered.inspect.dump_sources import FileSource, Kind


class _Entry(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A row. `section` names the sheet, in a line of JSON of a file with several sheets."""

    section: str | UnsetType = UNSET


class OffsetEntry(_Entry, kw_only=True):
    """Of an ``.index``."""

    offset: int
    position: int


class TimeEntry(_Entry, kw_only=True):
    """Of a ``.timeindex``."""

    timestamp: int
    offset: int


class AbortedTransaction(_Entry, kw_only=True):
    """Of a ``.txnindex``."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ProducerEntry(_Entry, kw_only=True):
    """Of a ``.snapshot``; null if no batch of the producer is remembered."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    current_txn_first_offset: int | None
    last_timestamp: int
    first_sequence: int | None
    last_sequence: int | None
    last_offset: int | None
    offset_delta: int | None
    timestamp: int | None


class EpochEntry(_Entry, kw_only=True):
    """Of a ``leader-epoch-checkpoint``."""

    epoch: int
    start_offset: int


class CheckpointEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a checkpoint of a log directory."""

    topic: str
    partition: int
    offset: int


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A name and a value of a small file."""

    name: str
    value: Any


class ChunkEntry(_Entry, kw_only=True):
    """A run of bytes that is checked, compressed and encrypted by itself."""

    chunk: int
    position: int
    length: int
    crc32c: int
    stored_position: int
    stored_length: int
    stored_crc32c: int = msgspec.field(name="storedCrc32c")  # the rule would write Crc32C


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows of one kind: structs, or stored fields of a manifest. `facts` concern the whole file."""

    name: str
    rows: Sequence[msgspec.Struct | dict[str, object]]
    fields: tuple[str, ...]
    facts: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, kind: type[msgspec.Struct], rows: Iterable[msgspec.Struct]) -> Section:
        names = tuple(each for each in kind.__struct_encode_fields__ if each != "section")
        return cls(name=name, rows=list(rows), fields=names)


def sections_of(source: FileSource, keys: Callable[[], KeyRing] = lambda: NO_KEYS) -> list[Section]:
    """The rows of a file that is no segment; `keys` open a manifest. Raises Corrupt, InvalidRequest, AccessDenied."""
    kind, path, base = source.kind, source.place, source.base_offset
    data = source.read_all() if kind is not None else b""
    if kind in WITH_BASE:
        if base is None:
            raise InvalidRequest("cannot dump the index, its name does not begin with 20 digits", path=path)
        return [WITH_BASE[kind](data, base)]
    if kind is Kind.INDEXES:
        return _bundle(decode_bundle(data), base or 0, path)
    if kind is Kind.MANIFEST:
        return _manifest(data, Sealer(path.partition(MANIFESTS)[0], keys()))
    if kind not in _OF_FILE:
        raise InvalidRequest("cannot dump the file, it is not a file of a log", path=path)
    return [_OF_FILE[kind](data, path)]


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
            decode_snapshot(data, path=path)
        case _:
            raise InvalidRequest("cannot check the index, it is not an index file", path=path)


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
        batches = joined_tables([run.table.moved(run.position) for run in BatchRuns(log.read, log.size_bytes)])
        is_newest = max(source.neighbours(), default=base) <= base  # it may be active, and its indexes incomplete
    if source.kind is Kind.OFFSET_INDEX:
        return check_offset_index(data, base, batches, path=source.place)
    return check_time_index(data, base, batches, path=source.place, is_active=is_newest)


def _whole(data: bytes, entry_bytes: int) -> bytes:
    return data if len(data) % entry_bytes else without_zeros(data, entry_bytes)


def _offsets(data: bytes, base: int) -> Section:
    found = offset_index.entries(without_zeros(data, offset_index.ENTRY_BYTES), base)
    return Section.of("entries", OffsetEntry, (OffsetEntry(offset=offset, position=at) for offset, at in found))


def _times(data: bytes, base: int) -> Section:
    found = time_index.entries(without_zeros(data, time_index.ENTRY_BYTES), base)
    return Section.of("entries", TimeEntry, (TimeEntry(timestamp=timestamp, offset=at) for timestamp, at in found))


WITH_BASE: dict[Kind | None, Callable[[bytes, int], Section]] = {Kind.OFFSET_INDEX: _offsets, Kind.TIME_INDEX: _times}


def _transactions(data: bytes, path: str) -> Section:
    found = txn_index.entries(data, path=path)
    rows = (AbortedTransaction(version=txn_index.VERSION, **each._asdict()) for each in found)
    return Section.of("transactions", AbortedTransaction, rows)


def _producers(data: bytes, path: str) -> Section:
    """Decode a producer snapshot; `firstSequence` is computed from the last one. A marker alone has no batch fields."""
    rows = []
    for each in decode_snapshot(data, path=path):
        first = sequence_before(each.last_sequence, each.offset_delta) if each.last_sequence >= 0 else -1
        has_batch = each.last_offset >= 0
        rows.append(
            ProducerEntry(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                coordinator_epoch=each.coordinator_epoch,
                current_txn_first_offset=None if each.transaction_first_offset < 0 else each.transaction_first_offset,
                last_timestamp=each.timestamp_ms,
                first_sequence=first if has_batch else None,
                last_sequence=each.last_sequence if has_batch else None,
                last_offset=each.last_offset if has_batch else None,
                offset_delta=each.offset_delta if has_batch else None,
                timestamp=each.timestamp_ms if has_batch else None,
            )
        )
    return Section.of("producers", ProducerEntry, rows)


def _bundle(bundle: IndexBundle, base: int, path: str) -> list[Section]:
    chunks = bundle.chunks
    producers = bytes(bundle.producers)
    return [
        replace(_offsets(bytes(bundle.offset), base), name="offset"),
        replace(_times(bytes(bundle.time), base), name="time"),
        replace(_transactions(bytes(bundle.txn), path), name="txn"),
        _producers(producers, path) if producers else Section.of("producers", ProducerEntry, ()),
        replace(_epochs(bytes(bundle.epochs), path), name="epochs"),
        Section.of("chunks", ChunkEntry, (_chunk(chunks, at) for at in range(len(chunks)))),
    ]


def _chunk(chunks: ChunkTable, at: int) -> ChunkEntry:
    (position, length), (stored_position, stored_length) = chunks.chunk_range(at), chunks.stored_range(at)
    return ChunkEntry(
        chunk=at,
        position=position,
        length=length,
        crc32c=chunks.crcs[at],
        stored_position=stored_position,
        stored_length=stored_length,
        stored_crc32c=chunks.stored_crc(at),
    )


def _manifest(data: bytes, sealer: Sealer) -> list[Section]:
    manifest = msgspec.to_builtins(STORED_MANIFEST.stored(decode_manifest(data, sealer=sealer)))
    lists = {name: manifest.pop(name) for name in ("segments", "unlinked", "unlinked_pages", "spills")}
    lists["unlinked_pages"] = [{**page.pop("spill"), **page} for page in lists["unlinked_pages"]]
    return [
        Section(name=name, fields=_MANIFEST_FIELDS[name], rows=rows, facts=manifest if name == "segments" else {})
        for name, rows in lists.items()
    ]


_MANIFEST_FIELDS = {  # fields of the types, not of the present rows: scripts rely on the columns
    "segments": tuple(SegmentEntry.__dataclass_fields__),
    "unlinked": tuple(PendingDelete.__dataclass_fields__),
    "unlinked_pages": (
        *PageEntry.__dataclass_fields__,
        *(name for name in PendingPageDelete.__dataclass_fields__ if name != "page"),
    ),
    "spills": tuple(PageEntry.__dataclass_fields__),
}


def _epochs(data: bytes, path: str) -> Section:
    rows = _entries(data, path, 2, lambda epoch, start: EpochEntry(epoch=int(epoch), start_offset=int(start)))
    return Section.of("entries", EpochEntry, rows)


def _checkpoint(data: bytes, path: str) -> Section:
    rows = _entries(data, path, 3, lambda topic, number, at: CheckpointEntry(topic, int(number), int(at)))
    return Section.of("entries", CheckpointEntry, rows)


def _entries(data: bytes, path: str, count: int, entry: Callable[..., msgspec.Struct]) -> Iterator[msgspec.Struct]:
    for line, words in parse_entries(data, path, count):
        try:
            yield entry(*words)
        except ValueError:
            raise Corrupt("cannot read a checkpoint, a line is not an entry", path=path, line=line) from None


def _pairs(data: bytes, path: str, *, separator: str) -> Section:
    lines = [line for line in data.decode("utf-8", "replace").split("\n") if line.strip() and not line.startswith("#")]
    if any(separator not in line for line in lines):
        raise Corrupt("cannot read names and values, a line lacks one of them", path=path)
    return Section.of("fields", Pair, (Pair(*line.rstrip("\r").partition(separator)[::2]) for line in lines))


def _clean_shutdown(data: bytes, path: str) -> Section:
    """Decode the clean-shutdown marker: JSON since Kafka 3.7, empty before."""
    try:
        body = msgspec.json.decode(data, type=dict[str, object]) if data else {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt("cannot read the clean-shutdown marker, it is not JSON", path=path) from error
    return Section.of("fields", Pair, (Pair(name, value) for name, value in body.items()))


_OF_FILE: dict[Kind | None, Callable[[bytes, str], Section]] = {
    Kind.TXN_INDEX: _transactions,
    Kind.PRODUCER_SNAPSHOT: _producers,
    Kind.LEADER_EPOCHS: _epochs,
    Kind.OFFSET_CHECKPOINT: _checkpoint,
    Kind.PARTITION_METADATA: partial(_pairs, separator=": "),
    Kind.META_PROPERTIES: partial(_pairs, separator="="),
    Kind.CLEAN_SHUTDOWN: _clean_shutdown,
}
