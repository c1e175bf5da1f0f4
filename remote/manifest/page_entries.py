"""The entries of a page, decoded on demand: a lookup needs one of thousands.

A page is columns. Two or three of them determine which entries overlap an offset range, and which have a late enough
timestamp. Only requested entries are decoded, a block of neighbours at a time, and cached. Decoding all entries of a
page takes forty times as long as reading its columns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, overload

import msgspec

from local.errors import Corrupt
from remote.manifest.manifest_validation import entry_contradiction
from remote.segment_entry import SegmentEntry

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BLOCK_ROWS = 32
_ROWS = tuple[SegmentEntry, ...]
# msgspec's type information for rows, created at import: creation in two threads at once ends the process (0.22).
msgspec.json.Decoder(_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContradiction:
    """An entry of a page that readers refuse: its row number, the offsets in its columns, and the reason."""

    entry: int
    offsets: tuple[int, int]
    error: Corrupt


class DecodedPage(Sequence[SegmentEntry]):
    """All entries of a page, ascending. Thread safe.

    Methods that return an entry raise Corrupt if its columns hold no valid entry.
    """

    def __init__(self, key: str, table: pa.Table) -> None:
        """`key` is the page's. Raises Corrupt if a searched column is missing."""
        self._key = key
        self._table = table
        self._base_offsets, self._next_offsets = self._offsets("base_offset"), self._offsets("next_offset")
        self._max_timestamps = self._numbers("max_timestamp_ms")
        self._check_columns()
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
        """The first base offset, and the last next offset."""
        return int(self._base_offsets[0]), int(self._next_offsets[-1])

    def touching(self, start: int, end: int | None) -> Iterator[SegmentEntry]:
        """The entries with offsets in ``[start, end)``, decoded block by block."""
        first, last = self._range(start, end)
        return (self[at] for at in range(first, last))

    def first_at(self, timestamp_ms: int, start: int, end: int | None) -> SegmentEntry | None:
        """The first entry in ``[start, end)`` with a record at or after `timestamp_ms`.

        Skips entries with an unknown largest timestamp.
        """
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

    def _check_columns(self) -> None:
        """Check the offsets of all entries without decoding one. Raises Corrupt."""
        bases, ends = self._base_offsets, self._next_offsets
        is_sound = bases[0] >= 0 and bool((bases < ends).all()) and bool((ends[:-1] <= bases[1:]).all())
        if not is_sound:
            raise Corrupt("the entries of a manifest page overlap or are out of order", key=self._key)

    def _range(self, start: int, end: int | None) -> tuple[int, int]:
        """Row numbers ``[first, last)`` that overlap the offsets.

        Entries never overlap, so their ends ascend too.
        """
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
