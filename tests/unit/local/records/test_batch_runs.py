"""Every read path returns the records before a damaged batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from disk_model import ModelDisk
from log_world import NAME, fill, open_log

from local import kernels
from local.errors import Corrupt
from local.format.compression import Codec
from local.format.record import Record
from local.records.batch import encode_batch
from local.records.batch_runs import decode_up_to_damage
from local.records.isolation import Isolation
from tiered.read.partition_source import PartitionSource
from tiered.read.reader import TieredReader


def _batches(codec: Codec, count: int = 12) -> tuple[bytearray, list[int]]:
    made = [
        encode_batch([Record(b"k", b"v%d" % at, at) for _ in range(3)], base_offset=3 * at, codec=codec)
        for at in range(count)
    ]
    starts = [sum(map(len, made[:at])) for at in range(count)]
    return bytearray(b"".join(made)), starts


def _given(offsets: Iterator[int]) -> tuple[list[int], Corrupt | None]:
    """The offsets before the error, and the error."""
    given: list[int] = []
    try:
        for offset in offsets:
            given.append(offset)
    except Corrupt as error:
        return given, error
    return given, None


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("place", ["crc", "attributes", "last byte"])
def test_every_record_before_a_damaged_batch_is_returned(codec: Codec, place: str) -> None:
    for bad in range(12):
        data, starts = _batches(codec)
        end = starts[bad + 1] if bad < 11 else len(data)
        at = {"crc": starts[bad] + 17, "attributes": starts[bad] + 40, "last byte": end - 1}[place]
        data[at] ^= 0x55
        given, error = _given(offset for columns in decode_up_to_damage(data) for offset in columns.offsets.tolist())
        assert given == list(range(3 * bad)), (bad, place)
        assert error is not None
        assert error.facts["at"] == starts[bad]


def test_records_of_mixed_codecs_before_a_damaged_batch_are_returned() -> None:
    plain, _ = _batches(Codec.NONE, 4)
    packed = b"".join(encode_batch([Record(b"k", b"v", 1)], base_offset=12 + at, codec=Codec.GZIP) for at in range(4))
    data = plain + packed
    data[-1] ^= 1
    given, error = _given(offset for columns in decode_up_to_damage(data) for offset in columns.offsets.tolist())
    assert given == list(range(15))
    assert error is not None


def test_batches_without_damage_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = _batches(Codec.ZSTD)
    asked: list[int] = []
    real = kernels.decode_in_steps
    monkeypatch.setattr(kernels, "decode_in_steps", lambda *a, **kw: asked.append(1) or real(*a, **kw))
    assert sum(len(each) for each in decode_up_to_damage(data)) == 36
    assert len(asked) == 1


@pytest.mark.parametrize("isolation", list(Isolation))
def test_a_consumer_gets_every_record_before_a_damaged_batch(isolation: Isolation) -> None:
    disk = ModelDisk()
    log = open_log(disk)
    fill(log, 60)
    segment = log.view.segments[0]
    body = segment.read(0, segment.size_bytes)
    table = kernels.scan_batches(body)
    disk.names[segment.path(".log")].data[int(table.positions[3]) + 30] ^= 1
    good = int(table.base_offsets[3])
    reader = TieredReader(lambda _: PartitionSource(NAME, log, None, None), isolation)
    for records in (log.records(0, isolation=isolation), reader.records(NAME, 0)):
        given, error = _given(record.offset for record in records)
        assert given == list(range(good))
        assert error is not None
