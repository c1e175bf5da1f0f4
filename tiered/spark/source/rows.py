"""Columns of records as Arrow record batches with the row schema of Spark's Kafka source.

| column | type | |
|---|---|---|
| key, value | binary | null as in the record |
| topic, partition, offset | string, int, long | |
| timestamp | timestamp | microseconds UTC, from the record's milliseconds |
| timestampType | int | 0 create time, 1 log append time |
| headers | array of struct of key string, value binary | null for a record without headers, as in Kafka's source |

Keys and values are copied from the decoded buffer to Arrow's without becoming Python objects. Headers, which are rare,
do become Python objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from local import kernels
from local.errors import InvalidRequest
from local.format.columns import Columns
from local.names import TopicPartition

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(_HEADER),
}
# Spark's speed is flat from 5 000 to 50 000 rows a batch and falls outside (1 000: -20 %, 200 000: -10 %).
BATCH_ROWS = 20_000
BATCH_BYTES = 8 << 20
_LOG_APPEND_TIME = 1 << 3  # of a batch's attributes
_MS_MAX = (2**63 - 1) // 1000


def record_batches(columns: Columns, names: Sequence[str], topic: str, partition: int) -> Iterator[pa.RecordBatch]:
    """The records in order, with the columns `names` of `TYPES`, in batches of bounded rows and bytes.

    A record larger than BATCH_BYTES has a batch of its own.
    """
    schema = pa.schema([(name, TYPES[name]) for name in names])
    for rows in _slices(columns, names):
        part = columns.select(rows)
        arrays = [_column(part, name, topic, partition) for name in names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _slices(columns: Columns, names: Sequence[str]) -> Iterator[slice]:
    """Runs of rows, each as long as the bounds allow; only bytes of the wanted columns count."""
    weights = np.zeros(len(columns), np.int64)
    for name in ("key", "value"):
        if name in names:
            weights += np.maximum(_lengths(columns, name), 0)
    through = np.cumsum(weights)
    start = 0
    while start < len(columns):
        before = int(through[start - 1]) if start else 0
        fits = int(np.searchsorted(through, before + BATCH_BYTES, side="right"))
        end = min(max(fits, start + 1), start + BATCH_ROWS)
        yield slice(start, end)
        start = end


def _column(columns: Columns, name: str, topic: str, partition: int) -> pa.Array[Any]:
    count = len(columns)
    match name:
        case "key":
            return _binary(columns.data, columns.key_starts, columns.key_lengths)
        case "value":
            return _binary(columns.data, columns.value_starts, columns.value_lengths)
        case "topic":
            return _repeated(topic.encode(), count)
        case "partition":
            return _numbers(TYPES[name], np.full(count, partition, np.int32))
        case "offset":
            return _numbers(TYPES[name], columns.offsets)
        case "timestamp":
            return _numbers(TYPES[name], _microseconds(columns, topic, partition))
        case "timestampType":
            attributes = columns.table.attributes[columns.batch_ordinals]
            return _numbers(TYPES[name], ((attributes & _LOG_APPEND_TIME) != 0).astype(np.int32))
    assert name == "headers"
    return _headers(columns)


def _microseconds(columns: Columns, topic: str, partition: int) -> NDArray[np.int64]:
    """The timestamps in microseconds. Raises InvalidRequest for a timestamp that does not fit.

    A producer that wrote nanoseconds must not get a wrong year.
    """
    strange = np.flatnonzero((columns.timestamps > _MS_MAX) | (columns.timestamps < -_MS_MAX))
    if len(strange):
        at = int(strange[0])
        raise InvalidRequest(
            ("cannot read with Spark, a timestamp does not fit in its column; leave the column out by .schema(...)"),
            partition=TopicPartition(topic, partition),
            offset=int(columns.offsets[at]),
            timestamp_ms=int(columns.timestamps[at]),
        )
    return columns.timestamps * 1000


def _lengths(columns: Columns, name: str) -> NDArray[np.int32]:
    return columns.key_lengths if name == "key" else columns.value_lengths


def _numbers(kind: pa.DataType, values: NDArray[Any]) -> pa.Array[Any]:
    return pa.Array.from_buffers(kind, len(values), [None, _buffer(values)])


def _repeated(word: bytes, count: int) -> pa.Array[Any]:
    """One word `count` times.

    `pyarrow.scalar` would import pandas into every worker: a quarter of a second.
    """
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(word))
    return pa.Array.from_buffers(pa.string(), count, [None, _buffer(ends), pa.py_buffer(word * count)])


def _binary(data: memoryview, starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> pa.Array[Any]:
    offsets, joined = kernels.gather(data, starts, lengths)
    buffers = [_validity(lengths >= 0), _buffer(offsets), _buffer(joined)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _headers(columns: Columns) -> pa.Array[Any]:
    counts = columns.header_counts
    pairs = [pair for row in np.flatnonzero(counts).tolist() for pair in columns.headers(row)]
    keys = pa.array([key for key, _ in pairs], pa.string())
    values = pa.array([value for _, value in pairs], pa.binary())
    flat = pa.StructArray.from_arrays([keys, values], fields=list(_HEADER))
    offsets = np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
    buffers = [_validity(counts > 0), _buffer(offsets)]
    return pa.Array.from_buffers(TYPES["headers"], len(counts), buffers, children=[flat])


def _validity(is_there: NDArray[np.bool_]) -> pa.Buffer | None:
    """Arrow's bit map; None if no value is null."""
    return None if is_there.all() else _buffer(np.packbits(is_there, bitorder="little"))


def _buffer(values: NDArray[Any]) -> pa.Buffer:
    """The array's own memory, which Arrow keeps alive."""
    return pa.py_buffer(np.ascontiguousarray(values).data)
