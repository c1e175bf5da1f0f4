"""Speed of the kernels, as ratios to references of the same run: ``python tests/bench/bench_codec.py``.

References: memcpy of the same bytes, a raw read of the same file from the page cache, the same work in plain Python,
and aiokafka's compiled reader and builder. Medians. Slices of 4 MiB, like in readers. Takes less than a minute.
"""

import os
import random
import statistics
import tempfile
import time

import aiokafka.record._crecords.default_records as aiokafka_compiled
import numpy as np
from aiokafka.record.memory_records import MemoryRecords

from local.format.compression import Codec
from local.kernels import dispatch as kernels
from local.kernels import pure_kernels
from local.records.batch import assign_offset, encode_batch, read_header

T0 = 1_700_000_000_000
FILE_BYTES = 96 << 20
SLICE_BYTES = 4 << 20
ROUNDS = 5


def seconds(work, rounds=ROUNDS):
    """The median after one warm-up."""
    work()
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def sample_records(count, value_bytes):
    """20-byte keys, and JSON-like values of half to one and a half times the nominal size."""
    draw = random.Random(7)
    row = '{{"id":{},"user":"u{}","state":"{}","amount":{:.4f}}},'
    text = "".join(row.format(i, i * 7 % 999, "paid" if i % 3 else "open", i * 0.37) for i in range(4000)).encode()
    records = []
    for i in range(count):
        start = draw.randrange(len(text) // 2)
        value = text[start : start + int(value_bytes * (0.5 + draw.random()))]
        records.append((b"key-%016d" % draw.randrange(10**6), value, T0 + i))
    return records


def sample_log(value_bytes, batch_bytes, codec=Codec.NONE, size=FILE_BYTES):
    per_batch = max(1, batch_bytes // (value_bytes + 30))
    made = [bytearray(encode_batch(sample_records(per_batch, value_bytes), codec=codec)) for _ in range(8)]
    parts, offset, written = [], 0, 0
    while written < size:
        batch = made[len(parts) % len(made)]
        assign_offset(batch, offset, 0)
        parts.append(bytes(batch))
        offset += per_batch
        written += len(batch)
    return b"".join(parts)


def slices(data):
    """Slices that end with a batch."""
    view, at = memoryview(data), 0
    while at < len(view):
        end = at + kernels.scan_batches(view[at : at + SLICE_BYTES], verify=False).valid_bytes
        yield view[at:end]
        at = end


def drain(results):
    """Release each result before the next one, like readers: retained results would cost new memory pages."""
    for _ in results:
        pass


def raw_read(path):
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(1 << 20)
        while file.readinto(buffer):
            pass


def iterate(data):
    records = MemoryRecords(data)
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        for _ in batch:
            pass


def show(what, rate, references):
    told = "  ".join(f"{name} {rate / other:6.2f}x" for name, other in references.items())
    print(f"  {what:<28} {rate / 1e9:7.2f} GB/s   {told}")


def bench_reading(name, value_bytes, batch_bytes):
    data = sample_log(value_bytes, batch_bytes)
    source, target = np.frombuffer(data, np.uint8), np.empty(len(data), np.uint8)
    parts = list(slices(data))
    keep = {
        share: [np.random.default_rng(1).random(len(kernels.decode_columns(p))) < share for p in parts]
        for share in (0.1, 0.88)
    }
    small = bytes(parts[0][: kernels.scan_batches(parts[0][: 1 << 20]).valid_bytes])
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        read = len(data) / seconds(lambda: raw_read(file.name))
    references = {
        "memcpy": len(data) / seconds(lambda: np.copyto(target, source)),
        "file read": read,
        "pure": len(small) / seconds(lambda: pure_decode(small), 1),
        "aiokafka": len(small) / seconds(lambda: iterate(small), 3),
    }
    print(f"{name}: {len(data) >> 20} MiB; GB/s:", {k: round(v / 1e9, 3) for k, v in references.items()})

    def each(work):
        return len(data) / seconds(lambda: drain(map(work, parts)))

    def filtered(share):
        pairs = list(zip(parts, keep[share], strict=True))
        return len(data) / seconds(lambda: drain(kernels.filter_batches(p, k, keep_last_batch=True) for p, k in pairs))

    show("verify every crc", each(kernels.scan_batches), references)
    show("decode, no crc", each(lambda part: kernels.decode_columns(part, verify=False)), references)
    show("decode with crc", each(kernels.decode_columns), references)
    show("filter, 10 % kept", filtered(0.1), references)
    show("filter, 88 % kept", filtered(0.88), references)


def pure_decode(data):
    chosen, kernels._chosen = kernels._chosen, pure_kernels
    try:
        kernels.decode_columns(data)
    finally:
        kernels._chosen = chosen


def bench_codecs():
    print("decode of compressed batches of 16 KiB (GB/s of inflated bytes):")
    for codec in list(Codec)[1:]:
        data = sample_log(100, 16 << 10, codec, 4 << 20)
        columns = kernels.decode_columns(data)
        rate = len(columns.data) / seconds(lambda data=data: kernels.decode_columns(data), 3)
        per_second = rate / columns.data.nbytes * len(columns) / 1e6
        print(f"  {codec.name.lower():<28} {rate / 1e9:7.2f} GB/s   {per_second:6.1f} Mrec/s")


def bench_encoding(count, value_bytes):
    records = sample_records(count, value_bytes)

    def aiokafka_build():
        builder = aiokafka_compiled.DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 24)
        for offset, (key, value, timestamp) in enumerate(records):
            builder.append(offset, timestamp, key, value, [])
        builder.build()

    ours = count / seconds(lambda: encode_batch(records), 50)
    theirs = count / seconds(aiokafka_build, 20)
    pure = count / seconds(lambda: pure_kernels.encode_records(records), 3)
    told = f"aiokafka {ours / theirs:5.2f}x   pure {ours / pure:6.1f}x"
    print(f"  {count} x {value_bytes} B: {ours / 1e6:6.2f} Mrec/s   {told}")


def main():
    print(f"kernels: {kernels.implementation()}, load {os.getloadavg()[0]:.2f}")
    for name, value_bytes, batch_bytes in (("S16K", 100, 16 << 10), ("L16K", 1000, 16 << 10), ("L1M", 1000, 1 << 20)):
        assert read_header(sample_log(value_bytes, batch_bytes, size=1)) is not None
        bench_reading(name, value_bytes, batch_bytes)
    bench_codecs()
    print("encode tuples into one batch, crc included:")
    for count, value_bytes in ((128, 100), (1000, 100), (8000, 100), (1000, 1000)):
        bench_encoding(count, value_bytes)


if __name__ == "__main__":
    main()
