"""A manifest page: an immutable Parquet object with the older entries of a manifest.

A row is one `SegmentEntry`, a column one of its fields, zstd. Column types follow from the annotations, so pages of
different versions agree in their common fields. `DecodedPage` decodes entries on demand: decoding all takes forty times
as long as reading the searched columns.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints, overload

import msgspec

from local.errors import Corrupt
from local.format.crc32c import crc32c
from remote.keys import page_key, parse_page_key
from remote.manifest.manifest import PageEntry
from remote.manifest.manifest_validation import entry_contradiction
from remote.manifest.sealing import Sealer
from remote.segment_entry import SegmentEntry
from remote.store import Body

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Rows = Sequence[SegmentEntry]

LATER = ("indexes_bytes", "other_classes")  # fields of `PageEntry` that came after the first release
_PAGE_FIELDS = tuple(each.name for each in dataclasses.fields(PageEntry))
_NAME, _VERSION = b"tiered.spill", b"1"
_FORMAT: dict[bytes | str, bytes | str] = {_NAME: _VERSION}
BLOCK_ROWS = 32
_ROWS = tuple[SegmentEntry, ...]
# msgspec's type information for rows, created at import: creation in two threads at once ends the process (0.22).
msgspec.json.Decoder(_ROWS)


def encode_page(
    entries: Rows, epoch: int, ulid: str, *, sealer: Sealer | None = None, seal_key_id: str | None = None
) -> tuple[PageEntry, bytes]:
    """The entry and the bytes of a page of ascending `entries`. Raises AccessDenied without the seal's key."""
    import pyarrow as pa
    from pyarrow import parquet

    assert entries
    table = pa.Table.from_pylist(msgspec.to_builtins(list(entries)), schema=_schema())
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd", use_dictionary=False)
    body = sink.getvalue().to_pybytes()
    if seal_key_id is not None:
        assert sealer is not None, "a page is sealed for its partition"
        body = sealer.seal(_summary(entries, (epoch, ulid), 1, 0).key, body, seal_key_id)
    return replace(_summary(entries, (epoch, ulid), len(body), crc32c(body)), seal_key_id=seal_key_id), body


def summary_contradiction(page: PageEntry, entries: Rows, names: Iterable[str] = _PAGE_FIELDS) -> str | None:
    """The first of `names` in which a page's entry differs from its rows, or None. `LATER` fields may be None."""
    name = parse_page_key(page.key)
    if name is None:
        return f"key={page.key}"
    true = _summary(entries, (name.epoch, name.ulid), page.page_bytes, page.page_crc32c)
    true = replace(true, seal_key_id=page.seal_key_id)
    for field in names:
        says, found = getattr(page, field), getattr(true, field)
        if says != found and not (says is None and field in LATER):
            return f"{field}={says} found={found}"
    return None


def decode_page(page: PageEntry, body: Body, sealer: Sealer | None = None) -> DecodedPage:
    """The entries of a page, ascending. Raises Corrupt for another page, AccessDenied without the key."""
    import pyarrow as pa
    from pyarrow import parquet

    facts = {"key": page.key, "expected_bytes": page.page_bytes, "found_bytes": len(body)}
    if len(body) != page.page_bytes or crc32c(body) != page.page_crc32c:
        raise Corrupt("a manifest page is damaged, its size or checksum differs", **facts)
    if page.seal_key_id is None and sealer is not None and sealer.is_required:
        wrong = "a manifest page is not sealed, and the key ring requires a seal: `tiered rotate-keys` is due"
        raise Corrupt(wrong, key=page.key)
    if page.seal_key_id is not None:
        seal = (sealer or Sealer("")).open(body)
        if (seal.key_id, seal.key) != (page.seal_key_id, page.key):
            raise Corrupt("a manifest page has another seal", key=page.key, key_id=seal.key_id)
        body = seal.body
    try:
        table = parquet.ParquetFile(pa.BufferReader(pa.py_buffer(body))).read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt("the object is not a manifest page", key=page.key, cause=str(error)) from error
    version = (table.schema.metadata or {}).get(_NAME)
    if version != _VERSION:
        versions = {"version": version, "known": _VERSION}
        raise Corrupt("cannot read a manifest page, it is damaged or of a newer format", key=page.key, **versions)
    entries = DecodedPage(page.key, table)
    found = *entries.bounds, len(entries)
    if found != (page.base_offset, page.next_offset, page.segment_count):
        raise Corrupt("a manifest page belongs to another partition or range", key=page.key, found=found)
    return entries


def _summary(entries: Rows, name: tuple[int, str], page_bytes: int, page_crc32c: int) -> PageEntry:
    base, following = entries[0].base_offset, entries[-1].next_offset
    earliest = _least(each for entry in entries for each in (entry.min_timestamp_ms, entry.max_timestamp_ms))
    latest = max((entry.max_timestamp_ms for entry in entries if entry.max_timestamp_ms is not None), default=None)
    cleaned = [entry.cleaned_through for entry in entries]
    first = entries[0]
    return PageEntry(
        key=page_key(base, following, (earliest, latest), *name),
        base_offset=base,
        next_offset=following,
        min_timestamp_ms=earliest,
        max_timestamp_ms=latest,
        first_stamp_ms=first.committed_ms if first.max_timestamp_ms is None else first.max_timestamp_ms,
        segment_count=len(entries),
        record_count=sum(entry.record_count for entry in entries),
        size_bytes=sum(entry.size_bytes for entry in entries),
        stored_bytes=sum(entry.stored_bytes for entry in entries),
        cleaned_through=None if None in cleaned else _least(cleaned),
        aborted_bytes=sum(entry.aborted_bytes for entry in entries),
        gaps=gaps_between(entries),
        epochs=_first_starts(entries),
        page_bytes=page_bytes,
        page_crc32c=page_crc32c,
        indexes_bytes=sum(entry.indexes_bytes for entry in entries),
        other_classes=_other_classes(entries),
    )


def gaps_between(entries: Rows) -> tuple[tuple[int, int], ...]:
    between = ((one.next_offset, other.base_offset) for one, other in pairwise(entries))
    return tuple((start, end) for start, end in between if start < end)


def _other_classes(entries: Rows) -> tuple[tuple[str, int, int], ...]:
    sizes: dict[str, list[int]] = {}
    for entry in entries:
        if entry.storage_class is not None:
            sizes.setdefault(entry.storage_class, []).append(entry.stored_bytes)
    return tuple((name, len(each), sum(each)) for name, each in sorted(sizes.items()))


def _first_starts(entries: Rows) -> tuple[tuple[int, int], ...]:
    starts: dict[int, int] = {}
    for epoch, start in (start for entry in entries for start in entry.epochs):
        starts[epoch] = min(start, starts.get(epoch, start))
    return tuple(starts.items())


def _least(values: Iterable[int | None]) -> int | None:
    return min((each for each in values if each is not None), default=None)


@cache
def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(_fields_of(SegmentEntry), metadata=_FORMAT)


def _fields_of(kind: type) -> list[pa.Field[Any]]:
    import pyarrow as pa

    hints = get_type_hints(kind)
    return [pa.field(each.name, _arrow_type(hints[each.name])) for each in dataclasses.fields(kind)]


def _arrow_type(hint: Any) -> pa.DataType:  # noqa: ANN401 - an annotation is anything
    """The column type of an annotation. Ignores `None` in a union: every column may hold nulls."""
    import pyarrow as pa

    arguments = [each for each in get_args(hint) if each not in (type(None), Ellipsis)]
    origin = get_origin(hint)
    if origin is tuple:
        return pa.list_(_arrow_type(arguments[0]))
    if origin is dict:
        return pa.map_(_arrow_type(arguments[0]), _arrow_type(arguments[1]))
    if origin is not None:
        return _arrow_type(arguments[0])
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return pa.struct(_fields_of(hint))
    if issubclass(hint, IntEnum):
        return pa.int64()
    plain: dict[type, pa.DataType] = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    return plain[hint]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContradiction:
    entry: int  # its row number
    offsets: tuple[int, int]
    error: Corrupt


class DecodedPage(Sequence[SegmentEntry]):
    """All entries of a page, ascending. Thread safe. Raises Corrupt for columns without a valid entry."""

    def __init__(self, key: str, table: pa.Table) -> None:
        self._key = key
        self._table = table
        self._base_offsets, self._next_offsets = self._offsets("base_offset"), self._offsets("next_offset")
        self._max_timestamps = self._numbers("max_timestamp_ms")
        bases, ends = self._base_offsets, self._next_offsets
        if not (bases[0] >= 0 and (bases < ends).all() and (ends[:-1] <= bases[1:]).all()):
            raise Corrupt("the entries of a manifest page overlap or are out of order", key=key)
        self._blocks: list[tuple[SegmentEntry, ...] | None] = [None] * -(-len(self._base_offsets) // BLOCK_ROWS)

    def __len__(self) -> int:
        return len(self._base_offsets)

    @overload
    def __getitem__(self, index: int) -> SegmentEntry: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SegmentEntry, ...]: ...
    def __getitem__(self, index: int | slice) -> SegmentEntry | tuple[SegmentEntry, ...]:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        at = range(len(self))[index]
        return self._block(at // BLOCK_ROWS)[at % BLOCK_ROWS]

    def __iter__(self) -> Iterator[SegmentEntry]:
        return chain.from_iterable(map(self._block, range(len(self._blocks))))

    @property
    def bounds(self) -> tuple[int, int]:
        return int(self._base_offsets[0]), int(self._next_offsets[-1])

    def touching(self, start: int, end: int | None) -> Iterator[SegmentEntry]:
        """The entries with offsets in ``[start, end)``, decoded block by block."""
        first, last = self._range(start, end)
        return (self[at] for at in range(first, last))

    def first_at(self, timestamp_ms: int, start: int, end: int | None) -> SegmentEntry | None:
        """The first entry in ``[start, end)`` with a known largest timestamp at or after `timestamp_ms`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        first, last = self._range(start, end)
        stamps = self._max_timestamps.slice(first, max(0, last - first))
        late = pc.index(pc.greater_equal(stamps, pa.scalar(timestamp_ms, pa.int64())), True).as_py()
        return self[first + late] if late >= 0 else None

    def salvaged(self) -> tuple[list[SegmentEntry], list[PageContradiction]]:
        """The sound entries, and the error of each other entry: for a scrub, which continues after damage."""
        entries: list[SegmentEntry] = []
        found: list[PageContradiction] = []
        for number in range(len(self._blocks)):
            try:
                entries += self._block(number)
            except Corrupt:
                first = number * BLOCK_ROWS
                for at in range(first, min(first + BLOCK_ROWS, len(self))):
                    try:
                        entries += self._made(self._table.slice(at, 1))
                    except Corrupt as error:
                        offsets = int(self._base_offsets[at]), int(self._next_offsets[at])
                        found.append(PageContradiction(entry=at, offsets=offsets, error=error))
        return entries, found

    def _range(self, start: int, end: int | None) -> tuple[int, int]:
        """Row numbers ``[first, last)`` that overlap the offsets; entries never overlap."""
        first = bisect_right(self._next_offsets, start)
        return first, len(self) if end is None else bisect_right(self._base_offsets, end - 1)

    def _block(self, number: int) -> tuple[SegmentEntry, ...]:
        found = self._blocks[number]
        if found is None:
            found = self._blocks[number] = self._made(self._table.slice(number * BLOCK_ROWS, BLOCK_ROWS))
        return found

    def _made(self, table: pa.Table) -> tuple[SegmentEntry, ...]:
        try:
            entries = msgspec.convert(_plain_rows(table), _ROWS)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise Corrupt("the object is not a manifest page", key=self._key, cause=str(error)) from error
        for entry in entries:
            if (wrong := entry_contradiction(entry)) is not None:
                facts = {"object": entry.data_key, "base_offset": entry.base_offset, "next_offset": entry.next_offset}
                raise Corrupt(f"invalid manifest page, {wrong}", key=self._key, **facts)
        return entries

    def _offsets(self, name: str) -> np.ndarray:
        column = self._numbers(name)
        if column.null_count or not len(column):
            raise Corrupt("the object is not a manifest page", key=self._key, column=name)
        return column.to_numpy()

    def _numbers(self, name: str) -> pa.ChunkedArray[pa.Int64Scalar]:
        import pyarrow as pa

        column = self._table.column(name) if name in self._table.column_names else None
        if column is None or column.type != pa.int64():
            raise Corrupt("the object is not a manifest page", key=self._key, column=name)
        return column


def _plain_rows(table: pa.Table) -> list[dict[str, object]]:
    """The table's rows as dicts. Converting by column takes a tenth of the time of pyarrow's conversion."""
    import pyarrow as pa

    columns = []
    for column in table.columns:
        values = column.to_pylist()
        columns.append([dict(each or ()) for each in values] if pa.types.is_map(column.type) else values)
    return [dict(zip(table.column_names, entry, strict=True)) for entry in zip(*columns, strict=True)]
