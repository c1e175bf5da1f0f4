"""Message formats 0 and 1 built by aiokafka and kafka-python, read by this project's codec."""

import struct
import warnings
import zlib

import aiokafka.record._crecords.legacy_records as aiokafka_compiled
import pytest
from aiokafka.record import legacy_records as aiokafka_python
from disk_model import ModelDisk
from log_world import open_log, read_all

from local import kernels
from local.format.compression import Codec
from local.format.record import TimestampType

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # raised by kafka-python at import
    import kafka.record.legacy_records as kafka_python

T0 = 1_700_000_000_000
BUILDERS = {
    "aiokafka": aiokafka_compiled.LegacyRecordBatchBuilder,
    "aiokafka, python": aiokafka_python._LegacyRecordBatchBuilderPy,
    "kafka-python": kafka_python.LegacyRecordBatchBuilder,
}
OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
# aiokafka never wrote lz4 in format 0. kafka-python's snappy needs a library that the set-up does not have.
CASES = [
    (library, magic, codec)
    for library in BUILDERS
    for magic in (0, 1)
    for codec in OLD_CODECS
    if (library == "kafka-python", codec) != (True, Codec.SNAPPY)
    and (library.startswith("aiokafka"), magic, codec) != (True, 0, Codec.LZ4)
]
RECORDS = [
    (b"key", b"value", T0),
    (None, b"no key", T0 + 5),
    (b"tombstone", None, T0 - 3),
    (b"", b"", T0 + 1),
    (b"long", bytes(range(256)) * 1000, T0 + 2),
]


def built_by(library, magic, codec, records=RECORDS, *, base_offset=0, append_ms=None):
    """A set as stored by a broker: the bytes of a producer's builder, offset and time of the broker."""
    builder = BUILDERS[library](magic, int(codec), 1 << 22)
    for at, (key, value, timestamp) in enumerate(records):
        # Offsets in a compressed set of format 1 stay relative. All others are absolute.
        offset = at if codec and magic else base_offset + at
        assert builder.append(offset, timestamp, key, value) is not None
    data = bytearray(builder.build())
    if codec:
        struct.pack_into(">q", data, 0, base_offset + len(records) - 1)
        if magic:
            largest = max(timestamp for _, _, timestamp in records)
            data[17] |= 8 if append_ms is not None else 0
            struct.pack_into(">q", data, 18, append_ms if append_ms is not None else largest)
            struct.pack_into(">I", data, 12, zlib.crc32(data[16:]))
    return bytes(data)


def read(data):
    return [(r.offset, r.timestamp_ms, r.key, r.value) for r in kernels.decode_columns(data).records()]


def expected(magic, records=RECORDS, base_offset=0):
    return [(base_offset + at, time if magic else -1, key, value) for at, (key, value, time) in enumerate(records)]


@pytest.mark.parametrize(("library", "magic", "codec"), CASES)
def test_messages_of_other_libraries_are_read(library, magic, codec):
    data = built_by(library, magic, codec, base_offset=1000)
    assert read(data) == expected(magic, base_offset=1000)
    table = kernels.scan_batches(data)
    assert table.problem is None
    assert (table.magics == magic).all()
    assert int(table.record_counts.sum()) == len(RECORDS)
    assert (int(table.base_offsets[0]), int(table.last_offsets[-1])) == (1000, 1004)
    if codec:
        assert (len(table), table.row(0).codec) == (1, codec)


@pytest.mark.parametrize("library", BUILDERS)
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_append_time_of_a_wrapper_applies_to_every_record(library, codec):
    data = built_by(library, 1, codec, append_ms=T0 + 77)
    records = list(kernels.decode_columns(data).records())
    assert {(r.timestamp_ms, r.timestamp_type) for r in records} == {(T0 + 77, TimestampType.LOG_APPEND_TIME)}


@pytest.mark.parametrize(("library", "magic", "codec"), CASES)
def test_every_changed_byte_after_the_offset_is_detected(library, magic, codec):
    data = built_by(library, magic, codec, RECORDS[:3])
    for at in range(8, len(data)):  # the checksum does not cover the offset, which a set of format 0 does not even need
        damaged = bytearray(data)
        damaged[at] ^= 0x01
        if read_or_none(damaged) == read(data):
            raise AssertionError(f"byte {at} was changed and not detected")


def read_or_none(data):
    table = kernels.scan_batches(data)
    return None if table.problem is not None else read(data)


@pytest.mark.parametrize(("library", "magic", "codec"), CASES)
def test_every_truncation_is_detected(library, magic, codec):
    data = built_by(library, magic, codec, RECORDS[:3])
    whole = set(kernels.scan_batches(data).positions.tolist()) | {len(data)}
    for cut in range(len(data)):
        table = kernels.scan_batches(data[:cut])
        assert (table.problem is None) == (cut in whole)
        assert table.valid_bytes == max(at for at in whole if at <= cut)


@pytest.mark.parametrize(("library", "magic", "codec"), CASES)
def test_log_of_an_old_broker_is_read_and_continued(library, magic, codec):
    disk = ModelDisk()
    disk.make_directory("./t-0")
    sets = [built_by(library, magic, codec, RECORDS[:4], base_offset=4 * at) for at in range(10)]
    disk.create("./t-0/00000000000000000000.log").append(b"".join(sets))
    log = open_log(disk)
    assert log.next_offset == 40
    log.append([(b"new", b"v", T0)], now_ms=T0)
    wanted = [row for at in range(10) for row in expected(magic, RECORDS[:4], 4 * at)] + [(40, T0, b"new", b"v")]
    for first in (0, 1, 5, 38, 40):
        assert [(r.offset, r.timestamp_ms, r.key, r.value) for r in read_all(log, first)] == wanted[first:]
