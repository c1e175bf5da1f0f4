"""The fuzzing targets: each takes any bytes and may raise no error outside the project's error tree.

A target returns normally for bytes that it accepts and for bytes that it refuses. Any error that it raises is a
finding. The targets for batches run both kernels and compare verdicts and values. The compiled kernel reads a copy that
ends at a page boundary, with an inaccessible page behind it: a read of one byte too many kills the process.
The first byte of an input selects options. Recomputed checksums let damage pass to the check behind the checksum."""

from __future__ import annotations

import base64
import ctypes
import mmap
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cramjam
import kafka_targets
import numpy as np
from disk_model import ModelDisk
from legacy_samples import APPEND, many, message, wrapper
from log_world import opened_batches

from local.errors import Corrupt, InvalidRequest
from local.format.batch_header import HEADER_BYTES
from local.format.columns import COLUMN_DTYPES, TABLE_DTYPES
from local.format.compression import Codec, compress, decompress
from local.format.crc32c import crc32c
from local.format.record import Record, TimestampType
from local.index import offset_index, time_index, txn_index
from local.index.txn_index import AbortedTransaction
from local.kernels import dispatch as kernels
from local.kernels import pure_kernels
from local.log import checkpoints
from local.log.leader_epochs import LeaderEpochs
from local.log.producer_state import ProducerEntry, decode_snapshot, encode_snapshot
from local.names import TopicPartition
from local.records.batch import encode_batch, encode_marker
from remote.external.aiven_layout import CHUNKS_MAX, decode_aiven_manifest

try:
    from local.kernels import _kernels as compiled
except ImportError:  # pragma: no cover - built without a compiler
    compiled = None

INFLATED_MAX = 1 << 20  # instead of a gibibyte, so that campaigns reach the limit
RESEAL, VERIFY, CONTROL = 1, 2, 4


@dataclass(frozen=True)
class Target:
    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


@contextmanager
def small_limits() -> Iterator[None]:
    """Lower the limit of one batch to INFLATED_MAX."""
    before = kernels.INFLATED_BYTES_MAX
    kernels.INFLATED_BYTES_MAX = INFLATED_MAX
    try:
        yield
    finally:
        kernels.INFLATED_BYTES_MAX = before


# -- batches, both kernels


def run_batches(data: bytes) -> None:
    options, body = (data[0], data[1:]) if data else (0, b"")
    if options & RESEAL:
        body = resealed(body)
    verify, control = bool(options & VERIFY), bool(options & CONTROL)
    expected = verdict(pure_kernels, body, verify, control)
    if compiled is not None:
        with guarded(body) as copy:
            found = verdict(compiled, copy, verify, control)
        assert found == expected, f"the kernels differ: compiled {found!r:.500} pure {expected!r:.500}"


def verdict(twin: Any, data: Any, verify: bool, control: bool) -> list[Any]:
    """All results that a reader can get from these bytes, as comparable values. An error is its words and facts."""
    chosen = kernels._chosen
    kernels._chosen = twin
    try:
        table = kernels.scan_batches(data, verify=verify)
        answers = [_table(table)]
        answers.append(
            _or_error(lambda: _columns(kernels.decode_columns(data, verify=verify, include_control=control)))
        )
        answers.append(_or_error(lambda: _steps(data, verify)))
        answers.append(_or_error(lambda: arrow_rows(data, verify)))
        records = int(table.record_counts.sum(dtype=np.int64))
        if records < 1 << 16:
            flags = np.arange(records) % 3 > 0
            answers.append(_or_error(lambda: opened_batches(kernels.filter_batches(data, flags, keep_last_batch=True))))
        return answers
    finally:
        kernels._chosen = chosen


def _or_error(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (Corrupt, InvalidRequest) as error:
        return type(error).__name__, error.attempt, error.facts


def _table(table: Any) -> list[Any]:
    return [getattr(table, name).tolist() for name in TABLE_DTYPES] + [table.valid_bytes, table.problem]


def _columns(columns: Any) -> list[Any]:
    values = [getattr(columns, name).tolist() for name in COLUMN_DTYPES]
    return [*values, _table(columns.table), [tuple(record) for record in columns.records()]]


def _steps(data: Any, verify: bool) -> list[Any]:
    return [step.offsets.tolist() for step in kernels.decode_in_steps(data, verify=verify, step_bytes=1000)]


def arrow_rows(data: Any, verify: bool = True, first: int = 0, end: int = 2**63 - 1, **how: Any) -> list[Any]:
    """The records as a task of Spark returns them: by the fused kernel, or by columns with the twin."""
    from tiered.spark.source.task import built_batches

    names = how.pop("names", ("value", "timestamp", "key", "offset", "timestampType", "headers"))
    steps = kernels.sections_in_steps(data, verify=verify, step_bytes=1000)
    facts = {"names": names, "topic": "orders", "partition": 3, **how}
    built = [batch for step in steps for batch in built_batches(step, (), first, end, **facts)]
    for batch in built:
        batch.validate(full=True)
    as_int = {"timestamp": lambda column: column.cast("int64").to_pylist()}
    columns = [[as_int.get(name, list)(batch.column(name)) for batch in built] for name in names]
    return [
        [getattr(each, "as_py", lambda each=each: each)() for part in column for each in part] for column in columns
    ]


def resealed(data: bytes) -> bytes:
    """Recompute the checksum of every batch and message that has a valid length."""
    body, at = bytearray(data), 0
    while at + 18 <= len(body):
        size = 12 + int.from_bytes(body[at + 8 : at + 12], "big", signed=True)
        is_legacy = body[at + 16] < 2
        if size < (26 if is_legacy else HEADER_BYTES) or at + size > len(body):
            break
        if is_legacy:
            body[at + 12 : at + 16] = zlib.crc32(body[at + 16 : at + size]).to_bytes(4, "big")
        else:
            body[at + 17 : at + 21] = crc32c(bytes(body[at + 21 : at + size])).to_bytes(4, "big")
        at += size
    return bytes(body)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


@contextmanager
def guarded(data: bytes) -> Iterator[memoryview]:
    """A copy that ends at a page boundary, between two inaccessible pages."""
    page = mmap.PAGESIZE
    room = max(page, -(-len(data) // page) * page)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = _libc.mmap(None, room + 2 * page, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    assert base not in (None, ctypes.c_void_p(-1).value), "mmap must reserve the guarded copy"
    try:
        for at in (base, base + page + room):
            assert _libc.mprotect(at, page, 0) == 0
        start = base + page + room - len(data)
        ctypes.memmove(start, data, len(data))
        view = memoryview((ctypes.c_ubyte * len(data)).from_address(start)).cast("B") if data else memoryview(b"")
        yield view
    finally:
        _libc.munmap(base, room + 2 * page)


RECORDS = [
    Record(b"key", b"value", 1_700_000_000_000),
    Record(None, b"", 1_699_999_999_000, (("h", b"1"), ("h", None), ("", b""))),
    Record(b"", None, 1_700_000_000_900),
]


def batch_seeds() -> list[bytes]:
    seeds = [encode_batch(RECORDS, base_offset=100, codec=codec, producer_id=4, producer_epoch=1) for codec in Codec]
    append_time = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "append_time_ms": 5}
    seeds.append(encode_batch(RECORDS, **append_time))
    marker = encode_marker(base_offset=3, is_commit=True, timestamp_ms=5, producer_id=1, producer_epoch=0)
    seeds.append(encode_batch(RECORDS) + marker + encode_batch(RECORDS, base_offset=4, codec=Codec.LZ4))
    seeds.append(kernels.filter_batches(encode_batch(RECORDS), np.array([False] * 3), keep_last_batch=True))
    seeds.append(kernels.filter_batches(encode_batch(RECORDS), np.array([False, True, False]), keep_last_batch=True))
    return _with_options(seeds)


def legacy_seeds() -> list[bytes]:
    inner = [message(1, at, b"k", b"v%d" % at, timestamp_ms=at) for at in range(3)]
    absolute = [message(0, at, b"k", None) for at in (5, 6, 9)]
    framed = [
        message(1, 2, None, compress(codec, b"".join(inner)), timestamp_ms=5, attributes=codec)
        for codec in (Codec.SNAPPY, Codec.LZ4)
    ]
    seeds = [many(0, 2), many(1, 2), wrapper(0, absolute, 9), wrapper(1, inner, 102, timestamp_ms=7), *framed]
    seeds.append(wrapper(1, inner, 2, timestamp_ms=7, attributes=APPEND))
    seeds.append(many(0, 1) + many(1, 1, start=1) + encode_batch(RECORDS, base_offset=2) + many(1, 1, start=5))
    seeds.append(message(0, 9, None, compress(Codec.LZ4, b"".join(absolute)), attributes=3))
    return _with_options(seeds)


def _with_options(seeds: Sequence[bytes]) -> list[bytes]:
    return [bytes([options]) + seed for seed in seeds for options in (RESEAL | VERIFY, CONTROL)]


# -- columns to append


def run_columns(data: bytes) -> None:
    """Use the bytes as ranges into themselves."""
    words = np.frombuffer(data[: len(data) // 24 * 24], "<i4").reshape(-1, 6)
    small = [np.ascontiguousarray(words[:, at] >> 24).astype(np.int32) for at in range(6)]
    starts = [column.astype(np.int64) for column in small[:3]]
    times = np.ascontiguousarray(words[:, 0].astype(np.int64) * (1 << 31))
    times[times < -1] //= -3
    with guarded(data) as view:
        answers = []
        for twin in (pure_kernels, compiled or pure_kernels):
            source = (view, starts[0], small[3], view, starts[1], small[4], times, view, starts[2], small[5])
            answers.append(_or_error(lambda twin=twin, source=source: _cut_and_encoded(twin, source)))
    assert answers[0] == answers[1], f"the kernels differ: {answers!r:.500}"


def _cut_and_encoded(twin: Any, source: Any) -> Any:
    ends, sizes = twin.cut_columns(source, 120)
    if not len(ends):
        return None
    return ends.tolist(), twin.encode_columns(source, 0, ends, int(sizes.sum()), 0, -1).tobytes()


def column_seeds() -> list[bytes]:
    return [struct.pack("<6i", 0, 1 << 24, 2 << 24, 3 << 24, 4 << 24, 0) * 3, b"\2\0\0" + bytes(45)]


# -- index files and side files


def run_offset_index(data: bytes) -> None:
    _either(lambda: offset_index.check(data, 1 << 20, path="x"))
    found = offset_index.entries(data, 50)
    assert len(found) == len(data) // 8
    assert offset_index.sound_entries(data, 1 << 20) <= len(found)
    offset_index.lookup(data, 50, 60)


def run_time_index(data: bytes) -> None:
    _either(lambda: time_index.check(data, path="x"))
    found = time_index.entries(data, 50)
    assert len(found) == len(data) // 12
    assert time_index.sound_entries(data) <= len(found)
    time_index.lookup(data, 50, 60)


def run_txn_index(data: bytes) -> None:
    _either(lambda: txn_index.check(data, 5, path="x"))
    _either(lambda: txn_index.truncate(data, 10))
    found = _either(lambda: txn_index.entries(data))
    if found is not None:
        assert txn_index.encode(found) == data[: len(found) * txn_index.ENTRY_BYTES]
        txn_index.overlapping(found, 3, 9)


def run_producer_snapshot(data: bytes) -> None:
    if data and data[0] & RESEAL and len(data) > 7:
        data = data[1:7][:2] + struct.pack(">I", crc32c(data[7:])) + data[7:]
    found = _either(lambda: decode_snapshot(data))
    if found is not None:
        assert encode_snapshot(found) == data


def run_checkpoint(data: bytes) -> None:
    disk = ModelDisk()
    disk.create("./c").append(data)
    offsets = _either(lambda: checkpoints.read_offsets(disk, "./c"))
    if offsets is not None:
        checkpoints.write_offsets(disk, "./again", offsets)
        assert checkpoints.read_offsets(disk, "./again") == offsets
        assert all(-(2**63) <= offset < 2**63 and name.partition < 2**31 for name, offset in offsets.items())
    epochs = _either(lambda: checkpoints.read_epochs(disk, "./c"))
    if epochs is not None:
        assert all(-(2**31) <= epoch < 2**31 and -(2**63) <= start < 2**63 for epoch, start in epochs)
        _either(lambda: LeaderEpochs(tuple(epochs)))


def run_partition_metadata(data: bytes) -> None:
    disk = ModelDisk()
    disk.create("./partition.metadata").append(data)
    disk.create("./meta.properties").append(data)
    _either(lambda: checkpoints.read_topic_id(disk, "."))
    _either(lambda: checkpoints.read_meta_properties(disk, "."))


def _either(call: Callable[[], Any]) -> Any:
    """The value, or None if the call refused the bytes with an allowed error."""
    try:
        return call()
    except (Corrupt, InvalidRequest):
        return None


def snapshot_seeds() -> list[bytes]:
    entry = ProducerEntry(
        producer_id=7,
        producer_epoch=1,
        last_sequence=41,
        last_offset=99,
        offset_delta=2,
        timestamp_ms=1_700_000_000_000,
        coordinator_epoch=3,
        transaction_first_offset=-1,
    )
    bodies = [encode_snapshot([]), encode_snapshot([entry] * 2)]
    return [*bodies, *(b"\x01" + body for body in bodies)]


def txn_seeds() -> list[bytes]:
    rows = [
        AbortedTransaction(producer_id=1, first_offset=at, last_offset=at + 3, last_stable_offset=at + 4)
        for at in (5, 10, 20)
    ]
    return [txn_index.encode(rows), txn_index.encode(rows[:1]) + b"torn"]


def checkpoint_seeds() -> list[bytes]:
    disk = ModelDisk()
    checkpoints.write_offsets(disk, "./c", {TopicPartition("a-b", 0): 5, TopicPartition("c", 12): 2**40})
    return [disk.read("./c"), checkpoints.encode_epochs([(0, 0), (3, 100)]), b"0\n0\n", b""]


# -- codecs


def run_codec(codec: Codec) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        found = _either(lambda: decompress(codec, data, INFLATED_MAX))
        assert found is None or len(found) <= INFLATED_MAX

    return run


def codec_seeds(codec: Codec) -> Callable[[], list[bytes]]:
    def seeds() -> list[bytes]:
        texts = [b"", b"x", b"the quick brown fox " * 30, bytes(70_000)]
        made = [compress(codec, text) for text in texts]
        if codec is Codec.SNAPPY:
            made += [bytes(cramjam.snappy.compress_raw(text)) for text in texts]
        if codec is Codec.ZSTD:
            made.append(compress(codec, bytes(16 << 20)) * 64)  # a gibibyte in a hundred kilobytes
        return [*made, made[2] + made[2]]

    return seeds


def run_rsm_manifest(data: bytes) -> None:
    """A manifest of Aiven's plugin. An accepted manifest has at most the allowed number of chunks, and they fit
    together."""
    try:
        found = decode_aiven_manifest(data, "fuzzed")
    except Corrupt:
        return
    table = found.chunks
    assert 0 < len(table) <= CHUNKS_MAX
    assert table.size_bytes < 2**31
    assert table.is_as_it_is or len(table.stored_lengths or ()) == len(table)
    assert found.facts is None or found.facts.base_offset < found.facts.next_offset


def run_chunk_sizes(data: bytes) -> None:
    """The unpacked list of a variable chunk index."""
    (told,) = struct.unpack_from(">i", data.ljust(4, b"\0"))
    packed = base64.b64encode(bytes(compress(Codec.ZSTD, data)))
    size = max(1, min(told, 2**31 - 1))
    run_rsm_manifest(
        b'{"version":"1","chunkIndex":{"type":"variable","originalChunkSize":1,"originalFileSize":%d,'
        b'"transformedChunks":"%s"},"compression":true}' % (size, packed)
    )


def manifest_seeds() -> list[bytes]:
    whole = (
        b'{"version":"1","chunkIndex":{"type":"fixed","originalChunkSize":100,"originalFileSize":250,'
        b'"transformedChunkSize":128,"finalTransformedChunkSize":78},"compression":false,'
        b'"segmentIndexes":{"offset":{"position":0,"size":8},"transaction":null},'
        b'"encryption":{"dataKey":"key1:AAAA","aad":"AAAA"},"remoteLogSegmentMetadata":{"startOffset":5,"endOffset":9,'
        b'"maxTimestampMs":1,"eventTimestampMs":2,"segmentLeaderEpochs":{"0":5,"2":7}}}'
    )
    variable = (
        b'{"version":"1","chunkIndex":{"type":"variable","originalChunkSize":100,"originalFileSize":250,'
        b'"transformedChunks":"KLUv/SAPeQAAAAAAAwAAAAoBAAoAAAAe"},"compression":true}'
    )
    return [whole, variable]


TARGETS: dict[str, Target] = {
    "batches": Target(run_batches, batch_seeds),
    "legacy": Target(run_batches, legacy_seeds),
    "columns": Target(run_columns, column_seeds),
    "offset_index": Target(run_offset_index, lambda: [b"".join(offset_index.pack(0, at, 7 * at) for at in range(9))]),
    "time_index": Target(run_time_index, lambda: [b"".join(time_index.pack(0, 5 * at, at) for at in range(9))]),
    "txn_index": Target(run_txn_index, txn_seeds),
    "producer_snapshot": Target(run_producer_snapshot, snapshot_seeds),
    "rsm_manifest": Target(run_rsm_manifest, manifest_seeds),
    "chunk_sizes": Target(run_chunk_sizes, lambda: [bytes.fromhex("000000030000000a01000a0000001e")]),
    "checkpoint": Target(run_checkpoint, checkpoint_seeds),
    "kafka_request": Target(kafka_targets.run_request, kafka_targets.request_seeds),
    "kafka_sasl": Target(kafka_targets.run_sasl, kafka_targets.sasl_seeds),
    "partition_metadata": Target(
        run_partition_metadata,
        lambda: [b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw\n", b"#x\nversion=1\ncluster.id=a\nnode.id=1\n"],
    ),
    **{
        f"codec_{codec.name.lower()}": Target(run_codec(codec), codec_seeds(codec))
        for codec in Codec
        if codec is not Codec.NONE
    },
}
