"""A small log on a model disk, records to fill it, and a reader of the whole log, shared by the tests of the log."""

from __future__ import annotations

from disk_model import ModelDisk

from local import kernels
from local.format.batch_header import HEADER_BYTES, BatchHeader
from local.format.compression import Codec, decompress
from local.format.record import Record, StoredRecord
from local.log import Log
from local.names import TopicPartition
from local.settings import LogSettings
from local.storage import DiskStorage

NAME = TopicPartition("t", 0)
SMALL = LogSettings(segment_bytes=2000, index_interval_bytes=200, batch_bytes=300)


def open_log(disk: ModelDisk | DiskStorage, settings: LogSettings = SMALL, *, root: str = "./t-0", **kw: object) -> Log:
    return Log.open(disk, root, NAME, settings, now_ms=1000, **kw)  # type: ignore[arg-type]


def fill(log: Log, count: int, *, start: int = 0, step_ms: int = 1) -> list[Record]:
    records = [Record(b"k%d" % (at % 9), b"value %d" % at, 5000 + at * step_ms) for at in range(start, start + count)]
    for at in range(0, count, 10):
        log.append(records[at : at + 10], now_ms=1000)
    return records


def header_of(batch: bytes | bytearray | memoryview) -> BatchHeader:
    """The header of the first batch, which is sound."""
    table = kernels.scan_batches(batch)
    assert table.problem is None, table.problem
    return table.row(0)


def opened_batches(data: bytes) -> list[tuple[BatchHeader, bytes]]:
    """Header and records of each batch, decompressed: two libraries compress the same records to different bytes."""
    table, found = kernels.scan_batches(data), []
    for row, at in enumerate(table.positions.tolist()):
        header, section = table.row(row), data[at + HEADER_BYTES : at + int(table.sizes[row])]
        if header.codec is not Codec.NONE and not header.is_legacy:
            section = bytes(decompress(header.codec, section, 1 << 30))
            header = header._replace(crc=0, batch_length=0)
        found.append((header, section))
    return found


def read_all(log: Log, offset: int | None = None, bytes_max: int = 1000) -> list[StoredRecord]:
    at = log.local_log_start_offset if offset is None else offset
    found: list[StoredRecord] = []
    while data := log.read(at, bytes_max):
        columns = kernels.decode_columns(data)
        found += [record for record in columns.records() if record.offset >= at]
        at = columns.next_offset
    return found
