"""A reference implementation of a cleaner pass in plain Python, from Kafka's rules only.

A batch is a tuple of all fields of the format. The functions take the batches before a pass and return the batches
that must remain. The code is simple on purpose: no bit sets, no columns, and no kernel except the one that decodes
records.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import NamedTuple

from local import kernels
from local.format.record import StoredRecord, TimestampType
from local.log import Log
from local.records.batch import read_header, read_marker

HORIZON = 0x40
CODECS = 0x07


@dataclass(frozen=True)
class Batch:
    base_offset: int
    last_offset: int
    leader_epoch: int
    producer: tuple[int, int, int]
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    records: tuple[StoredRecord, ...]
    is_commit: bool | None
    magic: int = 2

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 0x10)

    @property
    def horizon_ms(self) -> int | None:
        return self.base_timestamp_ms if self.attributes & HORIZON else None


class Round(NamedTuple):
    """The facts of one pass.
    `aborted` has (producer, first offset, offset of the marker) of each aborted transaction.
    `producers` maps an id to (epoch, offset of the last data or None).
    `legacy_due` has the offsets of messages of old formats whose segments are old enough to remove their tombstones."""

    dirty_from: int
    upto: int
    now_ms: int
    retention_ms: int
    tombstones_below: int | None
    aborted: list[tuple[int, int, int]]
    producers: dict[int, tuple[int, int | None]]
    legacy_due: frozenset[int] = frozenset()


def batches_of(log: Log) -> list[list[Batch]]:
    """The batches of each segment; the active segment is the last one."""
    return [parsed(memoryview(segment.read(0, segment.size_bytes))) for segment in log.view.segments]


def parsed(data: memoryview) -> list[Batch]:
    found, at = [], 0
    while (header := read_header(data, at)) is not None:
        body = data[at : at + header.size_bytes]
        if header.is_legacy:
            found.append(_parsed_legacy(body))
            at += header.size_bytes
            continue
        marker = read_marker(body) if header.is_control else None
        found.append(
            Batch(
                base_offset=header.base_offset,
                last_offset=header.last_offset,
                leader_epoch=header.leader_epoch,
                producer=(header.producer_id, header.producer_epoch, header.base_sequence),
                attributes=header.attributes,
                base_timestamp_ms=header.base_timestamp_ms,
                max_timestamp_ms=header.max_timestamp_ms,
                records=tuple(kernels.decode_columns(body, include_control=True).records()),
                is_commit=None if marker is None else marker.is_commit,
            )
        )
        at += header.size_bytes
    return found


def _parsed_legacy(body: memoryview) -> Batch:
    """A message or a compressed message set of an old format, with the records that the reader returns."""
    last_offset, _, _, magic, bits = struct.unpack_from(">qiIbB", body)
    time_ms = struct.unpack_from(">q", body, 18)[0] if magic else -1
    records = tuple(kernels.decode_columns(body).records())
    return Batch(
        base_offset=records[0].offset,
        last_offset=last_offset,
        leader_epoch=-1,
        producer=(-1, -1, -1),
        attributes=bits,
        base_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
        records=records,
        is_commit=None,
        magic=magic,
    )


def expected(batches: list[Batch], facts: Round) -> list[Batch]:
    """The batches that must remain of those below `facts.upto`."""
    newest: dict[bytes, int] = {}
    for batch in batches:
        if batch.last_offset >= facts.dirty_from and not batch.is_control and not _is_aborted(batch, facts):
            newest.update({record.key: record.offset for record in batch.records if record.key is not None})
    left: list[Batch] = []
    met: set[tuple[int, int | None]] = set()  # (producer, first offset of its aborted transaction; None: committed)
    for batch in batches:
        made = _judged(batch, facts, newest, met)
        if made is not None:
            left.append(made)
    return left


def _judged(batch: Batch, facts: Round, newest: dict[bytes, int], met: set[tuple[int, int | None]]) -> Batch | None:
    if batch.is_control:
        is_useless = _is_useless(batch, facts, met)
        goes = is_useless and _is_due(batch, facts) and _may_leave(batch.last_offset, facts)
        records = () if goes else batch.records
        wants_horizon = is_useless
    else:
        if batch.is_transactional:
            met.add((batch.producer[0], _transaction(batch, facts)))
        records = tuple(record for record in batch.records if _stays(record, batch, facts, newest))
        wants_horizon = any(record.value is None for record in records)
    if not records:
        return _emptied(batch) if _must_stay(batch, facts) else None
    if wants_horizon and batch.horizon_ms is None and _may_leave(batch.last_offset, facts):
        horizon = facts.now_ms + facts.retention_ms
        return _rebuilt(replace(batch, attributes=batch.attributes | HORIZON, base_timestamp_ms=horizon), records)
    if len(records) == len(batch.records) and batch.magic == 2:
        return batch
    if batch.horizon_ms is None:
        batch = replace(batch, base_timestamp_ms=records[0].timestamp_ms)
    return _rebuilt(batch, records)


def _rebuilt(batch: Batch, records: tuple[StoredRecord, ...]) -> Batch:
    largest = max(record.timestamp_ms for record in records)
    is_append_time = records[0].timestamp_type is TimestampType.LOG_APPEND_TIME
    return replace(
        batch, magic=2, records=records, max_timestamp_ms=batch.max_timestamp_ms if is_append_time else largest
    )


def _emptied(batch: Batch) -> Batch:
    bits = batch.attributes & ~(CODECS | HORIZON)
    return replace(batch, attributes=bits, base_timestamp_ms=-1, records=(), is_commit=None, magic=2)


def _stays(record: StoredRecord, batch: Batch, facts: Round, newest: dict[bytes, int]) -> bool:
    if record.key is None or _is_aborted(batch, facts) or record.offset < newest.get(record.key, -1):
        return False
    if batch.magic < 2:
        return (
            record.value is not None
            or batch.last_offset not in facts.legacy_due
            or not _may_leave(record.offset, facts)
        )
    return record.value is not None or not _is_due(batch, facts) or not _may_leave(record.offset, facts)


def _is_due(batch: Batch, facts: Round) -> bool:
    return batch.horizon_ms is not None and facts.now_ms >= batch.horizon_ms


def _may_leave(offset: int, facts: Round) -> bool:
    return facts.tombstones_below is None or offset < facts.tombstones_below


def _transaction(batch: Batch, facts: Round) -> int | None:
    """The first offset of the aborted transaction that contains this data batch, or None."""
    for producer, first, marker in facts.aborted:
        if batch.is_transactional and batch.producer[0] == producer and first <= batch.base_offset < marker:
            return first
    return None


def _is_aborted(batch: Batch, facts: Round) -> bool:
    return not batch.is_control and _transaction(batch, facts) is not None


def _is_useless(batch: Batch, facts: Round, met: set[tuple[int, int | None]]) -> bool:
    if batch.is_commit is None:
        return not batch.records
    producer = batch.producer[0]
    if batch.is_commit:
        is_met = (producer, None) in met
        met.discard((producer, None))
        return not is_met
    for entry, first, marker in facts.aborted:
        if entry == producer and marker == batch.last_offset:
            return (producer, first) not in met
    return True


def _must_stay(batch: Batch, facts: Round) -> bool:
    if batch.last_offset + 1 == facts.upto:
        return True
    known = facts.producers.get(batch.producer[0])
    if batch.producer[0] < 0 or known is None:
        return False
    epoch, last_data = known
    return batch.last_offset == last_data if last_data is not None else batch.is_control and batch.producer[1] == epoch
