"""The rows of a page, made when somebody looks at them: a lookup wants one of thousands.

A page is columns. Which rows touch a range of offsets, and which have a late enough timestamp, is told by two or three
of them; objects are made for the rows that are given out, a block of neighbours at a time, and kept. Making all of a
page's takes forty times as long as reading its columns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, overload

import msgspec

from local.errors import Corrupt
from remote.manifest.manifest_validation import row_contradiction
from remote.segment_entry import RemoteSegment

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BLOCK_ROWS = 32
_ROWS = tuple[RemoteSegment, ...]
# What msgspec knows of rows is made at import: made in two threads at once it ends the process (0.22).
msgspec.json.Decoder(_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContradiction:
    """A row of a page that readers refuse: its number, the offsets of its columns, and why."""

    row: int
    offsets: tuple[int, int]
    error: Corrupt


class PageRows(Sequence[RemoteSegment]):
    """All rows of a page, ascending. Thread safe. What gives a row raises Corrupt when its columns hold none."""

    def __init__(self, key: str, table: pa.Table) -> None:
        """`key` is the page's. Raises Corrupt when the columns that are searched are not there."""
        self._key = key
        self._table = table
        self._base_offsets, self._next_offsets = self._offsets("base_offset"), self._offsets("next_offset")
        self._max_timestamps = self._numbers("max_timestamp_ms")
        self._check_columns()
        self._blocks: list[tuple[RemoteSegment, ...] | None] = [None] * -(-len(self._base_offsets) // BLOCK_ROWS)

    def __len__(self) -> int:
        return len(self._base_offsets)

    @overload
    def __getitem__(self, index: int) -> RemoteSegment: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RemoteSegment, ...]: ...
    def __getitem__(self, index: int | slice) -> RemoteSegment | tuple[RemoteSegment, ...]:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        at = range(len(self))[index]
        return self._block(at // BLOCK_ROWS)[at % BLOCK_ROWS]

    def __iter__(self) -> Iterator[RemoteSegment]:
        return chain.from_iterable(map(self._block, range(len(self._blocks))))

    @property
    def bounds(self) -> tuple[int, int]:
        """The first base offset, and the last next offset."""
        return int(self._base_offsets[0]), int(self._next_offsets[-1])

    def touching(self, start: int, end: int | None) -> Iterator[RemoteSegment]:
        """Those with offsets in ``[start, end)``, made one block after the other."""
        first, last = self._range(start, end)
        return (self[at] for at in range(first, last))

    def first_at(self, timestamp_ms: int, start: int, end: int | None) -> RemoteSegment | None:
        """The first of those with a record at or after `timestamp_ms`; a row that does not tell has none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        first, last = self._range(start, end)
        stamps = self._max_timestamps.slice(first, max(0, last - first))
        late = pc.index(pc.greater_equal(stamps, pa.scalar(timestamp_ms, pa.int64())), True).as_py()
        return self[first + late] if late >= 0 else None

    def salvaged(self) -> tuple[list[RemoteSegment], list[PageContradiction]]:
        """The sound rows, and what is wrong with each of the others: for a scrub, which goes on after damage."""
        rows: list[RemoteSegment] = []
        found: list[PageContradiction] = []
        for number in range(len(self._blocks)):
            try:
                rows += self._block(number)
            except Corrupt:
                first = number * BLOCK_ROWS
                for at in range(first, min(first + BLOCK_ROWS, len(self))):
                    try:
                        rows += self._made(self._table.slice(at, 1))
                    except Corrupt as error:
                        offsets = int(self._base_offsets[at]), int(self._next_offsets[at])
                        found.append(PageContradiction(row=at, offsets=offsets, error=error))
        return rows, found

    def _check_columns(self) -> None:
        """The offsets of all rows, without making a row. Raises Corrupt."""
        bases, ends = self._base_offsets, self._next_offsets
        is_sound = bases[0] >= 0 and bool((bases < ends).all()) and bool((ends[:-1] <= bases[1:]).all())
        if not is_sound:
            raise Corrupt("reading a page of rows, its rows overlap or run backwards", key=self._key)

    def _range(self, start: int, end: int | None) -> tuple[int, int]:
        """They never overlap, so their ends ascend too."""
        first = bisect_right(self._next_offsets, start)
        return first, len(self) if end is None else bisect_right(self._base_offsets, end - 1)

    def _block(self, number: int) -> tuple[RemoteSegment, ...]:
        found = self._blocks[number]
        if found is None:
            found = self._blocks[number] = self._made(self._table.slice(number * BLOCK_ROWS, BLOCK_ROWS))
        return found

    def _made(self, table: pa.Table) -> tuple[RemoteSegment, ...]:
        try:
            rows = msgspec.convert(_plain_rows(table), _ROWS)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise Corrupt("reading a page of rows, it is no such page", key=self._key, cause=str(error)) from error
        for row in rows:
            if (wrong := row_contradiction(row)) is not None:
                facts = {"object": row.data_key, "base_offset": row.base_offset, "next_offset": row.next_offset}
                raise Corrupt(f"reading a page of rows, {wrong}", key=self._key, **facts)
        return rows

    def _offsets(self, name: str) -> np.ndarray:
        column = self._numbers(name)
        if column.null_count or not len(column):
            raise Corrupt("reading a page of rows, it is no such page", key=self._key, column=name)
        return column.to_numpy()

    def _numbers(self, name: str) -> pa.ChunkedArray[pa.Int64Scalar]:
        import pyarrow as pa

        column = self._table.column(name) if name in self._table.column_names else None
        if column is None or column.type != pa.int64():
            raise Corrupt("reading a page of rows, it is no such page", key=self._key, column=name)
        return column


def _plain_rows(table: pa.Table) -> list[dict[str, object]]:
    """Column by column, and maps by hand: a tenth of the time of pyarrow's own way to rows."""
    import pyarrow as pa

    columns = []
    for column in table.columns:
        values = column.to_pylist()
        columns.append([dict(each or ()) for each in values] if pa.types.is_map(column.type) else values)
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
