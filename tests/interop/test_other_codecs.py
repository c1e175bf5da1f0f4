"""Codecs of aiokafka and kafka-python read this project's batches, and this project reads theirs."""

import warnings

import aiokafka.record._crecords.default_records as aiokafka_compiled
import numpy as np
import pytest
from aiokafka.record.memory_records import MemoryRecords as AioKafkaRecords

from local import kernels
from local.format.compression import Codec
from local.format.record import Record, StoredRecord, TimestampType
from local.records.batch import encode_batch, encode_marker

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # raised by kafka-python at import
    import kafka.record.default_records as kafka_python
    from kafka.record import MemoryRecords as KafkaPythonRecords

T0 = 1_700_000_000_000
READERS = {"aiokafka": AioKafkaRecords, "kafka-python": KafkaPythonRecords}
# kafka-python's snappy needs a library that the set-up does not have.
PAIRS = [(name, codec) for name in READERS for codec in Codec if (name, codec) != ("kafka-python", Codec.SNAPPY)]
RECORDS = [
    Record(b"key", b"value", T0),
    Record(None, b"no key", T0 + 5),
    Record(b"tombstone", None, T0 - 3),
    Record(b"", b"", T0 + 1, (("first", b"1"), ("first", b"2"), ("null", None), ("ä", b""))),
    Record(b"long", bytes(range(256)) * 1000, T0 + 2),
]


def read_by(reader, data):
    """(offset, timestamp, key, value, headers) of every record, with verified checksums."""
    records, read = READERS[reader](data), []
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        for record in batch:
            headers = tuple((key, value) for key, value in record.headers)
            read.append((record.offset, record.timestamp, record.key, record.value, headers))
    return read


def expected(records, base_offset=0):
    return [(base_offset + i, r.timestamp_ms, *r[:2], r.headers) for i, r in enumerate(records)]


@pytest.mark.parametrize(("reader", "codec"), PAIRS)
def test_other_libraries_read_encoded_batches(reader, codec):
    data = encode_batch(RECORDS, base_offset=1000, codec=codec)
    assert read_by(reader, data) == expected(RECORDS, 1000)


@pytest.mark.parametrize(("reader", "codec"), PAIRS)
def test_other_libraries_read_filtered_batches(reader, codec):
    data = encode_batch(RECORDS, codec=codec) + encode_batch(RECORDS, base_offset=5, codec=codec)
    keep = np.array([0, 1, 0, 1, 0, 1, 1, 1, 1, 1], bool)
    made = kernels.filter_batches(data, keep, keep_last_batch=True)
    wanted = expected(RECORDS * 2)
    assert read_by(reader, made) == [row for row, flag in zip(wanted, keep, strict=True) if flag]


@pytest.mark.parametrize("reader", READERS)
def test_other_libraries_read_the_log_append_time(reader):
    data = encode_batch(RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=T0 + 77)
    assert {row[1] for row in read_by(reader, data)} == {T0 + 77}


@pytest.mark.parametrize("reader", READERS)
def test_other_libraries_recognise_a_marker_as_a_control_batch(reader):
    data = encode_marker(base_offset=9, is_commit=True, timestamp_ms=T0, producer_id=1, producer_epoch=0)
    batch = READERS[reader](data).next_batch()
    assert (batch.is_control_batch, batch.is_transactional, batch.base_offset) == (True, True, 9)


def built_by(library, codec, records):
    if library == "aiokafka":
        builder = aiokafka_compiled.DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    else:
        builder = kafka_python.DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for offset, record in enumerate(records):
        headers = list(record.headers)
        assert builder.append(offset, record.timestamp_ms, record.key, record.value, headers) is not None
    return bytes(builder.build())


@pytest.mark.parametrize(("library", "codec"), PAIRS)
def test_batches_of_other_libraries_are_read(library, codec):
    data = built_by(library, int(codec), RECORDS)
    columns = kernels.decode_columns(data)
    created = TimestampType.CREATE_TIME
    assert list(columns.records()) == [StoredRecord(i, r[2], created, *r[:2], r.headers) for i, r in enumerate(RECORDS)]
    assert columns.table.row(0).codec is codec


@pytest.mark.parametrize("library", READERS)
def test_uncompressed_batch_equals_that_of_other_libraries_byte_for_byte(library):
    ours = encode_batch(RECORDS, leader_epoch=-1)
    theirs = bytearray(built_by(library, 0, RECORDS))
    theirs[12:16] = ours[12:16]  # the leader epoch is outside of the checksum and set by the broker
    assert bytes(theirs) == ours
