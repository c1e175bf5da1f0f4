"""Record columns as Arrow record batches: exact types, nulls, bounded batches, all records."""

from __future__ import annotations

import subprocess
import sys

import pytest
from bucket_samples import NOW_MS, batch_at

from local import kernels
from local.errors import InvalidRequest
from local.records.batch import encode_batch

pa = pytest.importorskip("pyarrow")
from tiered.spark.source import rows  # noqa: E402 - needs pyarrow

ALL = tuple(rows.TYPES)


def batches_of(*data, names=ALL):
    return list(rows.record_batches(kernels.decode_columns(b"".join(data)), names, "orders", 3))


def test_schema_equals_the_one_spark_expects():
    (batch,) = batches_of(batch_at(0, 10))
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    assert batch.schema.equals(
        pa.schema(
            {
                "key": pa.binary(),
                "value": pa.binary(),
                "topic": pa.string(),
                "partition": pa.int32(),
                "offset": pa.int64(),
                "timestamp": pa.timestamp("us", tz="UTC"),
                "timestampType": pa.int32(),
                "headers": pa.list_(header),
            }
        )
    )
    batch.validate(full=True)


@pytest.mark.parametrize("codec", [0, 4])
def test_every_field_of_every_record_arrives(codec):
    data = batch_at(0, 40, codec=codec) + batch_at(50, 5, log_append=True)
    columns = kernels.decode_columns(data)
    table = pa.Table.from_batches(batches_of(data)).to_pydict()
    expected = list(columns.records())
    assert table["key"] == [record.key for record in expected]
    assert table["value"] == [record.value for record in expected]
    assert table["topic"] == ["orders"] * len(expected)
    assert table["partition"] == [3] * len(expected)
    assert table["offset"] == [record.offset for record in expected]
    assert [round(each.timestamp() * 1000) for each in table["timestamp"]] == [r.timestamp_ms for r in expected]
    assert table["timestampType"] == [0] * 40 + [1] * 5
    pairs = [each and [(header["key"], header["value"]) for header in each] for each in table["headers"]]
    assert pairs == [list(record.headers) or None for record in expected]


def test_null_and_empty_values_stay_distinct():
    data = encode_batch([(None, b"", NOW_MS), (b"", None, NOW_MS), (b"k", b"v", NOW_MS)])
    table = pa.Table.from_batches(batches_of(data)).to_pydict()
    assert table["key"] == [None, b"", b"k"]
    assert table["value"] == [b"", None, b"v"]
    assert table["headers"] == [None, None, None]


def test_timestamp_that_overflows_microseconds_is_refused_and_named():
    largest = (2**63 - 1) // 1000
    fits = encode_batch([(b"k", b"v", largest)])
    assert batches_of(fits, names=("timestamp",))[0]["timestamp"].cast("int64").to_pylist() == [largest * 1000]
    nanoseconds = encode_batch([(b"k", b"v", NOW_MS), (b"k", b"v", largest + 1)])
    with pytest.raises(InvalidRequest, match=r"leave the column out by .schema.*partition=orders/3 offset=1"):
        batches_of(nanoseconds)
    assert batches_of(nanoseconds, names=("offset", "key"))[0].num_rows == 2


def test_only_the_named_columns_are_built_in_their_order():
    (batch,) = batches_of(batch_at(0, 10), names=("offset", "key"))
    assert batch.schema.names == ["offset", "key"]


def test_batches_are_bounded_in_rows(monkeypatch):
    monkeypatch.setattr(rows, "BATCH_ROWS", 7)
    parts = batches_of(batch_at(0, 20))
    assert [part.num_rows for part in parts] == [7, 7, 6]
    assert pa.Table.from_batches(parts)["offset"].to_pylist() == list(range(20))


def test_batches_are_bounded_in_bytes_and_a_large_record_has_its_own_batch(monkeypatch):
    monkeypatch.setattr(rows, "BATCH_BYTES", 100)
    sizes = [10, 50, 40, 1, 500, 100, 1]
    data = encode_batch([(None, b"x" * size, NOW_MS) for size in sizes])
    parts = [[len(value) for value in part["value"].to_pylist()] for part in batches_of(data)]
    assert parts == [[10, 50, 40], [1], [500], [100], [1]]
    assert len(batches_of(data, names=("offset",))) == 1


def test_no_records_give_no_batch():
    assert batches_of(b"") == []


def test_selection_of_records_is_converted_without_the_others():
    columns = kernels.decode_columns(batch_at(0, 30))
    part = columns.select((columns.offsets >= 7) & (columns.offsets < 9))
    (batch,) = rows.record_batches(part, ("offset", "key", "timestampType"), "orders", 3)
    assert batch.to_pydict() == {"offset": [7, 8], "key": [b"key-7", b"key-8"], "timestampType": [0, 0]}


def test_reading_worker_does_not_import_pandas():
    """The import costs a quarter of a second in the first task of each Python worker, and 25 MB."""
    program = """
import sys
from local import kernels
from local.records.batch import encode_batch
from local.errors import InvalidRequest
from tiered.spark.source.rows import TYPES, record_batches

columns = kernels.decode_columns(encode_batch([(b"k", b"v", 7)]))
names = [name for name in TYPES if name != "headers"]
(batch,) = record_batches(columns, names, "orders", 3)
assert (batch["topic"][0].as_py(), batch["partition"][0].as_py()) == ("orders", 3)
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
