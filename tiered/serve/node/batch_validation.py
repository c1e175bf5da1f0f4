"""Check ready-made batches before an append, in Kafka's order, and rewrite the fields that the log determines.

| rule, in this order | refused with |
|---|---|
| a client's base offset is 0 | INVALID_RECORD |
| at most `max.message.bytes`, also after a change of the codec | MESSAGE_TOO_LARGE |
| checksum | CORRUPT_MESSAGE |
| records, one at each offset; a client's: no control batch, a producer id with epoch and sequence | INVALID_RECORD |
| a known codec | UNSUPPORTED_COMPRESSION_TYPE |
| the records can be decompressed and read; dense offsets | INVALID_RECORD |
| a compacted topic's records have keys, unless the topic drops records without a key | INVALID_RECORD, the records |
| CreateTime: now - before <= time <= now + after; -1 is "no time" and always allowed | INVALID_TIMESTAMP, the records |
| under LogAppendTime the batch has CreateTime: only the log assigns that type | INVALID_TIMESTAMP, the records |
| all batches together fit in a segment | RECORD_LIST_TOO_LARGE |

| rewritten | when |
|---|---|
| timestamp type, largest timestamp = now, checksum | the topic has LogAppendTime |
| timestamp type, largest timestamp, checksum | they differ from the topic's type and the largest time of the records |
| codec, records, checksum | ``compression.type`` names another codec than the batch has |

Values are never decoded: a pass over the records finds the lengths of keys, the times and the structure. A batch that
needs no change is not copied.

Memory: a batch that decompresses to more than INFLATED_BYTES_MAX, or has more than RECORDS_MAX records, is refused with
INVALID_RECORD. Batches that need more than LARGE_BYTES are checked one at a time.

Source: kafka `UnifiedLog.analyzeAndValidateRecords`, `LogValidator`. Differences: record errors are cut at ERRORS_MAX;
compressed bytes that cannot be read give INVALID_RECORD and not UNKNOWN_SERVER_ERROR; offset deltas that are not dense
are refused, Kafka rewrites or stores them.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from local import kernels
from local.errors import Corrupt, InvalidRequest
from local.format.batch_header import (
    CODEC_BITS,
    CRC_START,
    HEADER_BYTES,
    LENGTH_MIN,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    BatchHeader,
    read_header,
    seal,
)
from local.format.columns import COLUMNS_ROW_BYTES, Columns
from local.format.compression import Codec, decompress
from local.format.crc32c import crc32c
from local.format.record import TimestampType
from local.names import TopicPartition
from local.settings import LogSettings
from tiered.serve.messages.base import Error
from tiered.serve.record_sink import RecordError, RefusedBatch, whole_batches

INFLATED_BYTES_MAX = 256 << 20
RECORDS_MAX = 1 << 22
LARGE_BYTES = 32 << 20
ERRORS_MAX = 1000
_SHOWN_MAX = 3
_NO_TIME = -1
_INT64_MAX = 2**63 - 1


def checked_batches(
    data: memoryview, settings: LogSettings, *, partition: TopicPartition, now_ms: int, is_client: bool = True
) -> list[memoryview]:
    """The batches for `Log.append_encoded`: writable, without assigned offsets. Raises RefusedBatch.

    They are parts of `data`, changed in place, unless `data` is read-only or a batch changes its codec.
    """
    if data.readonly:
        data = memoryview(bytearray(data))
    check = _Check(settings, partition, now_ms, is_client)
    accepted = [check.accept(data[at : at + size], magic) for at, size, magic in whole_batches(data)]
    if not accepted:
        raise check.refused(Error.INVALID_RECORD, "there is no whole batch")
    if (total := sum(map(len, accepted))) > settings.segment_bytes:
        facts = {"size_bytes": total, "segment_bytes": settings.segment_bytes}
        raise check.refused(Error.RECORD_LIST_TOO_LARGE, "the batches are larger than a segment", **facts)
    return accepted


@dataclass(frozen=True, slots=True)
class _Check:
    settings: LogSettings
    partition: TopicPartition
    now_ms: int
    is_client: bool

    def refused(self, error: Error, why: str, **facts: object) -> RefusedBatch:
        return RefusedBatch(f"cannot append, {why}", error=error, partition=self.partition, **facts)

    def accept(self, batch: memoryview, magic: int) -> memoryview:
        if magic != MAGIC:
            raise self.refused(Error.INVALID_RECORD, "a batch has format 0 or 1", magic=magic)
        if len(batch) < LENGTH_MIN + LENGTH_OVERHEAD:
            raise self.refused(Error.CORRUPT_MESSAGE, "a batch is too short", size_bytes=len(batch))
        header = read_header(batch)
        assert header is not None, "a whole batch"
        if self.is_client and header.base_offset != 0:
            raise self.refused(Error.INVALID_RECORD, "the base offset is not 0", base_offset=header.base_offset)
        self._check_size(len(batch))
        if crc32c(batch[CRC_START:]) != header.crc:
            raise self.refused(Error.CORRUPT_MESSAGE, "the checksum of a batch differs", crc=f"{header.crc:08x}")
        self._check_header(header)
        is_by_log = self.settings.timestamp_type is TimestampType.LOG_APPEND_TIME
        if header.attributes & LOG_APPEND_TIME and is_by_log:
            self._refuse_records(_claimed_times(header), Error.INVALID_TIMESTAMP, header.record_count)
        times = header.attributes & LOG_APPEND_TIME, header.max_timestamp_ms
        if times[0]:  # its records have their own times from now on
            header = header._replace(attributes=header.attributes & ~LOG_APPEND_TIME)
            batch[:HEADER_BYTES] = header.pack()
        with _LargeTurn() as turn:
            plain, latest_ms = self._check_records(batch, header, turn)
            wanted = (LOG_APPEND_TIME, self.now_ms) if is_by_log else (0, latest_ms)
            header = header._replace(attributes=header.attributes | wanted[0], max_timestamp_ms=wanted[1])
            codec = self.settings.compression if self.settings.recompresses else header.codec
            if codec is not header.codec and not header.is_control:
                batch = self._recompressed(header, codec, plain)
                self._check_size(len(batch))
            elif wanted != times:
                batch[:HEADER_BYTES] = header.pack()
                struct.pack_into(">I", batch, 17, crc32c(batch[CRC_START:]))
        return batch

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > (limit := self.settings.max_message_bytes):
            facts = {"size_bytes": size_bytes, "max_message_bytes": limit}
            raise self.refused(Error.MESSAGE_TOO_LARGE, "a batch is larger than max.message.bytes", **facts)

    def _check_header(self, header: BatchHeader) -> None:
        facts = {"record_count": header.record_count, "last_offset_delta": header.last_offset_delta}
        if not 0 < header.record_count <= RECORDS_MAX or header.record_count != header.last_offset_delta + 1:
            raise self.refused(Error.INVALID_RECORD, "the record count contradicts the offsets", **facts)
        if header.attributes & CODEC_BITS > Codec.ZSTD:
            facts = {"attributes": header.attributes}
            raise self.refused(Error.UNSUPPORTED_COMPRESSION_TYPE, "the codec is unknown", **facts)
        if not self.is_client:
            return
        if header.is_control:
            raise self.refused(Error.INVALID_RECORD, "a client sent a control batch")
        if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
            facts = {"producer_epoch": header.producer_epoch, "base_sequence": header.base_sequence}
            raise self.refused(Error.INVALID_RECORD, "a producer has no epoch or no sequence", **facts)
        if header.is_transactional and header.producer_id < 0:
            raise self.refused(Error.INVALID_RECORD, "a transactional batch has no producer id")

    def _check_records(self, batch: memoryview, header: BatchHeader, turn: _LargeTurn) -> tuple[memoryview, int]:
        """(the uncompressed batch, the largest time of its records)."""
        try:
            plain = batch if header.codec is Codec.NONE else _inflated(batch, header, turn)
            if header.record_count * COLUMNS_ROW_BYTES > LARGE_BYTES:
                turn.take()
            columns = kernels.decode_columns(plain, verify=False, include_control=True)
        except (Corrupt, InvalidRequest) as error:
            raise self.refused(Error.INVALID_RECORD, "the records are damaged", cause=error.attempt) from error
        self._check_keys(columns)
        self._check_times(columns, header)
        return plain, int(columns.timestamps.max())

    def _check_keys(self, columns: Columns) -> None:
        if not self.settings.is_compacted or self.settings.drops_keyless:
            return
        missing = np.flatnonzero(columns.key_lengths < 0)
        if len(missing):
            name = f"{self.partition.topic}-{self.partition.partition}"
            message = f"Compacted topic cannot accept message without key in topic partition {name}"
            self._refuse_records(lambda at: message, Error.INVALID_RECORD, missing.tolist())

    def _check_times(self, columns: Columns, header: BatchHeader) -> None:
        before, after = self.settings.timestamp_before_max_ms, self.settings.timestamp_after_max_ms
        is_by_log = self.settings.timestamp_type is TimestampType.LOG_APPEND_TIME
        if is_by_log or header.is_control or (before is None and after is None):
            return
        earliest = -_INT64_MAX if before is None else max(self.now_ms - before, -_INT64_MAX)
        latest = _INT64_MAX if after is None else min(self.now_ms + after, _INT64_MAX)
        times = columns.timestamps
        outside = ((times < earliest) | (times > latest)) & (times != _NO_TIME)
        if not outside.any():
            return

        def message(at: int) -> str:
            where = f"Timestamp {times[at]} of message with offset {at} is out of range."
            return f"{where} The timestamp should be within [{earliest}, {latest}]"

        self._refuse_records(message, Error.INVALID_TIMESTAMP, np.flatnonzero(outside).tolist())

    def _refuse_records(self, message: Callable[[int], str], error: Error, indexes: int | Sequence[int]) -> None:
        found: Sequence[int] = range(indexes) if isinstance(indexes, int) else indexes
        errors = [RecordError(at, message(at)) for at in found[:ERRORS_MAX]]
        told = "One or more records have been rejected due to invalid timestamp"
        if error is Error.INVALID_RECORD:
            shown = ", ".join(f"RecordError(batchIndex={at}, message='{text}')" for at, text in errors[:_SHOWN_MAX])
            total = f"{len(found)} record errors in total, and only showing the first three errors at most"
            told = f"One or more records have been rejected due to {total}: [{shown}]"
        raise self.refused(error, "records are refused", count=len(found), message=told, records=errors)

    def _recompressed(self, header: BatchHeader, codec: Codec, plain: memoryview) -> memoryview:
        section = kernels.compress_section(codec, plain[HEADER_BYTES:], self.settings.compression_level)
        header = header._replace(attributes=header.attributes & ~CODEC_BITS | codec)
        return memoryview(bytearray(seal(header, section)))


def _inflated(batch: memoryview, header: BatchHeader, turn: _LargeTurn) -> memoryview:
    """The batch without its codec. Raises Corrupt."""
    arena = np.empty(0, np.uint8)

    def room(size_bytes: int) -> memoryview:
        nonlocal arena
        if size_bytes > LARGE_BYTES:
            turn.take()
        arena = np.empty(HEADER_BYTES + size_bytes, np.uint8)  # unwritten pages take no memory
        return arena[HEADER_BYTES:].data

    section = decompress(header.codec, batch[HEADER_BYTES:], INFLATED_BYTES_MAX, room)
    plain = arena[: HEADER_BYTES + len(section)].data
    bare = header._replace(attributes=header.attributes & ~CODEC_BITS, batch_length=len(plain) - LENGTH_OVERHEAD)
    plain[:HEADER_BYTES] = bare.pack()
    return plain


class _LargeTurn:
    """From `take` to the end of the context the only check that may need more than LARGE_BYTES."""

    _lock = threading.Lock()

    def __init__(self) -> None:
        self._has_it = False

    def take(self) -> None:
        if not self._has_it:
            self._lock.acquire()
            self._has_it = True

    def __enter__(self) -> _LargeTurn:
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_it:
            self._lock.release()


def _claimed_times(header: BatchHeader) -> Callable[[int], str]:
    time_ms = header.max_timestamp_ms

    def message(at: int) -> str:
        record = f"record {at} with timestamp {time_ms}"
        return f"Invalid timestamp type in message {record}. Producer should not set timestamp type to LogAppendTime."

    return message
