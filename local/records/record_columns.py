"""Records to append, as columns: positions of keys and values in buffers that the caller owns.

No record becomes a Python object, except the headers of Arrow rows. pyarrow is imported only for Arrow data.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from local.errors import InvalidRequest
from local.format.batch_header import CONTROL
from local.format.columns import Columns, Flags, Ints, Longs
from local.format.record import header_bytes

if TYPE_CHECKING:
    import pyarrow as pa

_NOTHING = memoryview(b"")
_NO_STARTS, _NO_COUNTS = np.empty(0, np.int64), np.empty(0, np.int32)
_INT_MAX = 2**31 - 1
_CHUNK_ROWS_MIN = 4096  # chunks with fewer rows on average are combined first: each chunk makes its own batches


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordColumns:
    """One row per record. A start is a position in the buffer of the same prefix; a length of -1 is null.

    The buffers must not change during use.
    """

    key_data: memoryview
    key_starts: Longs
    key_lengths: Ints
    value_data: memoryview
    value_starts: Longs
    value_lengths: Ints
    timestamps: Longs  # milliseconds, -1 means none
    # The headers of a row start with the varint of their number. Without any headers both columns are empty.
    header_data: memoryview = _NOTHING
    header_starts: Longs = field(default_factory=lambda: _NO_STARTS)
    header_counts: Ints = field(default_factory=lambda: _NO_COUNTS)

    def __len__(self) -> int:
        return len(self.timestamps)

    def select(self, rows: slice | NDArray[np.integer] | Flags) -> RecordColumns:
        """Some of the records, in the order of `rows`; the buffers are shared."""
        names = ["key_starts", "key_lengths", "value_starts", "value_lengths", "timestamps"]
        names += ["header_starts", "header_counts"] if len(self.header_counts) else []
        selected: dict[str, Any] = {name: np.ascontiguousarray(getattr(self, name)[rows]) for name in names}
        return replace(self, **selected)


def record_columns(data: object, *, now_ms: int) -> list[RecordColumns]:
    """Convert `Columns`, `RecordColumns`, a list of them, or Arrow data. Raises InvalidRequest."""
    if isinstance(data, RecordColumns):
        return [data]
    if isinstance(data, list) and all(isinstance(each, RecordColumns) for each in data):
        return data
    return [of_columns(data)] if isinstance(data, Columns) else of_arrow(data, now_ms=now_ms)


def of_columns(columns: Columns) -> RecordColumns:
    """The records of another log without their offsets. Raises InvalidRequest for control records."""
    if len(columns) and (columns.table.attributes[columns.batch_ordinals] & CONTROL).any():
        raise InvalidRequest("cannot append columns, they contain control records")
    headers: dict[str, Any] = {}
    if columns.header_counts.any():
        starts, counts = columns.header_starts, columns.header_counts
        headers = {"header_data": columns.data, "header_starts": starts, "header_counts": counts}
    return RecordColumns(
        key_data=columns.data,
        key_starts=columns.key_starts,
        key_lengths=columns.key_lengths,
        value_data=columns.data,
        value_starts=columns.value_starts,
        value_lengths=columns.value_lengths,
        timestamps=columns.timestamps,
        **headers,
    )


# -- Arrow


def of_arrow(data: object, *, now_ms: int) -> list[RecordColumns]:
    """The chunks of a table with the columns key, value and optionally timestamp and headers.

    | column | types | if missing |
    |---|---|---|
    | key, value | any binary or string type, or a dictionary of one | null in every row |
    | timestamp | integer (ms), or Arrow timestamp, reduced to ms | `now_ms` in every row |
    | headers | list of structs (key, value), or map | no headers |

    Raises InvalidRequest for other columns, other types, or a null timestamp.
    """
    table = _table(data)
    unknown = sorted(set(table.column_names) - {"key", "value", "timestamp", "headers"})
    if unknown or len(set(table.column_names)) != len(table.column_names):
        expected = "key, value, timestamp, headers"
        facts = {"unknown": unknown or "twice", "expected": expected}
        raise InvalidRequest("cannot append an Arrow table, its columns differ from the allowed columns", **facts)
    chunks = table.to_batches()
    if len(chunks) > 1 and table.num_rows < _CHUNK_ROWS_MIN * len(chunks):
        chunks = table.combine_chunks().to_batches()
    return [_of_batch(chunk, now_ms) for chunk in chunks if chunk.num_rows]


def _table(data: object) -> pa.Table:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise InvalidRequest("cannot append columns, pyarrow is not installed", got=type(data).__name__) from error
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    try:
        return pa.table(data)  # any object with Arrow's C interface
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise InvalidRequest(
            "cannot append columns, the value is neither Columns nor an Arrow table", got=type(data).__name__
        ) from error


def _of_batch(batch: pa.RecordBatch, now_ms: int) -> RecordColumns:
    names = batch.schema.names
    fields: dict[str, Any] = {}
    for name in ("key", "value"):
        column = batch.column(name) if name in names else None
        data, starts, lengths = _binary(name, column, batch.num_rows)
        fields |= {f"{name}_data": data, f"{name}_starts": starts, f"{name}_lengths": lengths}
    if "timestamp" in names:
        fields["timestamps"] = _timestamps(batch.column("timestamp"))
    else:
        fields["timestamps"] = np.full(batch.num_rows, now_ms, np.int64)
    if "headers" in names:
        fields |= _headers(batch.column("headers"))
    return RecordColumns(**fields)


def _binary(name: str, column: pa.Array[Any] | None, rows: int) -> tuple[memoryview, Longs, Ints]:
    import pyarrow as pa

    if column is None or pa.types.is_null(column.type):
        return _NOTHING, np.zeros(rows, np.int64), np.full(rows, -1, np.int32)
    types, kind = pa.types, column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    binary = types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary
    text = types.is_string, types.is_large_string, types.is_string_view
    if not any(is_of(kind) for is_of in (*binary, *text)):
        attempt = "cannot append an Arrow table, a column is neither binary nor string"
        raise InvalidRequest(attempt, column=name, type=kind)
    try:
        array = column.cast(pa.large_binary())
    except pa.ArrowException as error:
        raise InvalidRequest("cannot append an Arrow table, a cast failed", column=name, type=column.type) from error
    _validity, offsets, data = array.buffers()
    assert offsets is not None, "an array with rows has offsets"
    bounds = np.frombuffer(memoryview(offsets), np.int64)[array.offset : array.offset + rows + 1]
    lengths = np.diff(bounds)
    if len(lengths) and int(lengths.max()) > _INT_MAX:
        raise InvalidRequest("cannot append an Arrow table, a field is larger than 2^31 bytes", column=name)
    lengths = lengths.astype(np.int32)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = -1
    return memoryview(data).cast("B") if data is not None else _NOTHING, bounds[:-1], lengths


def _timestamps(column: pa.Array[Any]) -> Longs:
    import pyarrow as pa

    if column.null_count:
        raise InvalidRequest("cannot append an Arrow table, a timestamp is null", nulls=column.null_count)
    kind = column.type
    if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
        raise InvalidRequest(
            "cannot append an Arrow table, the timestamp column holds neither timestamps nor integers",
            column="timestamp",
            type=kind,
        )
    try:
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp("ms", tz=kind.tz), safe=False)
        numbers: Longs = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise InvalidRequest("cannot append an Arrow table, a cast failed", column="timestamp", type=kind) from error
    return np.ascontiguousarray(numbers, np.int64)


def _headers(column: pa.Array[Any]) -> dict[str, Any]:
    import pyarrow as pa

    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    is_structs = is_list and pa.types.is_struct(kind.value_type)
    if not pa.types.is_map(kind) and not (is_structs and {each.name for each in kind.value_type} == {"key", "value"}):
        attempt = "cannot append an Arrow table, the headers column is neither a list of structs nor a map"
        raise InvalidRequest(attempt, column="headers", type=kind)
    data, starts, counts = bytearray(), [], []
    for row in column.to_pylist():
        pairs = [(each["key"], each["value"]) if isinstance(each, dict) else each for each in row or ()]
        starts.append(len(data))
        counts.append(len(pairs))
        if not all(isinstance(key, str) and isinstance(value, bytes | None) for key, value in pairs):
            raise InvalidRequest("cannot append an Arrow table, a header is not (string, binary)", row=len(starts) - 1)
        data += header_bytes([(key.encode(), value) for key, value in pairs])
    if not any(counts):
        return {}
    made = {"header_starts": np.array(starts, np.int64), "header_counts": np.array(counts, np.int32)}
    return {"header_data": memoryview(bytes(data)), **made}
