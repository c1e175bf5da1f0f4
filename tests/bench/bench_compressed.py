"""Cleaning and decoding of compressed batches, against the bare codec: ``bench_compressed.py [rounds] [options]``.

CPU-seconds, the best of interleaved rounds. The shapes are those of `bench_clean.py`, with values like JSON instead of
random bytes, in batches of 16 KiB before compression. The bare codec is the machine's own C library, called by `ctypes`
with one context and one output buffer for all batches: every batch decompressed once, and every batch that loses a
record compressed once at Kafka's level. Without the C library the bare codec is cramjam. The options are names of
codecs, ``--profile`` (divides the time of a pass) and ``--kafka`` (adds Kafka's cleaner in a warm JVM).
"""

from __future__ import annotations

import ctypes
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace

import cramjam
import numpy as np
from bench_clean import WARM_UPS, KafkasCleaner
from clean_samples import KINDS, LIMITS, NAME, NOW, Kind, Sample, best, clean, copied, opened, took

from local import kernels
from local.cleaner import cleaner, offset_map
from local.format import compression
from local.format.batch_header import HEADER_BYTES
from local.format.compression import Codec
from local.format.record import Record
from local.kernels import dispatch
from local.log import Log
from local.storage import DiskStorage

FILE_BYTES = 32 << 20  # before compression
ROUNDS = 3
ROOM = 1 << 18
_TEXT = "".join(
    f'{{"id":{at},"user":"u{at * 7 % 999}","state":"{"paid" if at % 3 else "open"}","amount":{at * 0.37:.4f}}},'
    for at in range(4000)
).encode()


def made(kind: Kind, codec: Codec, root: str) -> Sample:
    """A log of one closed segment whose batches have `codec`."""
    directory = f"{root}/{codec.name}-{kind.value_bytes}-{kind.survivors}/t-0"
    log = Log.open(DiskStorage(), directory, NAME, replace(LIMITS, compression=codec), now_ms=0)
    draw = random.Random(5)
    count = FILE_BYTES // (kind.value_bytes + 35)
    keys = max(1, round(count * 0.1)) if kind.survivors < 0.5 else None
    for start in range(0, count, 10_000):
        records = []
        for at in range(start, min(count, start + 10_000)):
            key = draw.randrange(keys) if keys else (at if draw.random() < kind.survivors else max(0, at - 5))
            place = draw.randrange(len(_TEXT) - kind.value_bytes)
            records.append(Record(b"key-%016d" % key, _TEXT[place : place + kind.value_bytes], NOW + at))
        log.append(records, now_ms=NOW)
    log.roll(now_ms=NOW)
    sample = Sample(kind, directory, log.next_offset, count)
    log.close()
    return sample


# -- the bare codec


class Bare:
    """One codec of the machine's C library, with reused contexts. Sizes in and out are of one batch's records."""

    def __init__(self, codec: Codec) -> None:
        self.room = ctypes.create_string_buffer(ROOM)
        self.source = "C library"
        try:
            self.decompress, self.compress = getattr(self, f"_{codec.name.lower()}")()
        except OSError:
            self.source = "cramjam"
            out = memoryview(bytearray(ROOM))
            self.decompress = lambda data: compression.decompress_into(codec, memoryview(data), out)
            self.compress = lambda data: compression.compress(codec, data)

    def _zstd(self) -> tuple[Callable[[bytes], int], Callable[[bytes], object]]:
        library = _library("libzstd.so.1", "ZSTD_createDCtx", "ZSTD_createCCtx")
        library.ZSTD_decompressDCtx.argtypes = [ctypes.c_void_p, *[ctypes.c_void_p, ctypes.c_size_t] * 2]
        library.ZSTD_compressCCtx.argtypes = [*library.ZSTD_decompressDCtx.argtypes, ctypes.c_int]
        reader, writer = library.ZSTD_createDCtx(), library.ZSTD_createCCtx()
        return (
            lambda data: library.ZSTD_decompressDCtx(reader, self.room, ROOM, data, len(data)),
            lambda data: library.ZSTD_compressCCtx(writer, self.room, ROOM, data, len(data), 3),
        )

    def _gzip(self) -> tuple[Callable[[bytes], int], Callable[[bytes], object]]:
        library = _library("libdeflate.so.0", "libdeflate_alloc_decompressor", "libdeflate_alloc_compressor")
        library.libdeflate_gzip_compress.argtypes = [ctypes.c_void_p, *[ctypes.c_void_p, ctypes.c_size_t] * 2]
        library.libdeflate_gzip_decompress.argtypes = [*library.libdeflate_gzip_compress.argtypes, ctypes.c_void_p]
        library.libdeflate_gzip_compress.restype = ctypes.c_size_t
        reader, writer, size = (
            library.libdeflate_alloc_decompressor(),
            library.libdeflate_alloc_compressor(6),
            ctypes.c_size_t(),
        )

        def decompress(data: bytes) -> int:
            library.libdeflate_gzip_decompress(reader, data, len(data), self.room, ROOM, ctypes.byref(size))
            return size.value

        return decompress, lambda data: library.libdeflate_gzip_compress(writer, data, len(data), self.room, ROOM)

    def _lz4(self) -> tuple[Callable[[bytes], int], Callable[[bytes], object]]:
        """Of the one block of a batch of less than 64 KiB, without its frame."""
        library = _library("liblz4.so.1")
        return (
            lambda data: library.LZ4_decompress_safe(data[11:-4], self.room, len(data) - 15, ROOM),
            lambda data: library.LZ4_compress_default(data, self.room, len(data), ROOM),
        )

    def _snappy(self) -> tuple[Callable[[bytes], int], Callable[[bytes], object]]:
        out = memoryview(bytearray(ROOM))
        self.source = "cramjam"
        return (
            lambda data: cramjam.snappy.decompress_raw_into(memoryview(data)[20:], out),
            lambda data: cramjam.snappy.compress_raw(data),
        )


def _library(name: str, *makers: str) -> ctypes.CDLL:
    library = ctypes.CDLL(name)
    for maker in makers:
        getattr(library, maker).restype = ctypes.c_void_p
    return library


def sections(path: str) -> list[bytes]:
    """The compressed records of each batch."""
    with open(path, "rb") as file:
        data = file.read()
    table = kernels.scan_batches(data)
    return [
        data[at + HEADER_BYTES : at + size]
        for at, size, bits in zip(
            table.positions.tolist(), table.sizes.tolist(), table.attributes.tolist(), strict=True
        )
        if bits & 7
    ]


def changed(sample: Sample, codec: Codec) -> tuple[list[bytes], list[bytes], int]:
    """(compressed batches, uncompressed results of the batches that lose records, bytes of the cleaned segment)."""
    before = set(sections(sample.segment))
    with copied(sample) as (directory,):
        log = opened(directory)
        clean(log)
        log.close()
        path = sample.segment.replace(sample.directory, directory)
        after, size = sections(path), len(open(path, "rb").read())  # noqa: SIM115
    return (
        sections(sample.segment),
        [bytes(compression.decompress(codec, each, 1 << 24)) for each in after if each not in before],
        size,
    )


# -- ours


def cleaned(sample: Sample, parts: dict[str, float] | None = None):
    with copied(sample) as (directory,):
        log = opened(directory)
        if parts is None:
            spent = took(lambda: clean(log))
        else:
            with divided(parts):
                spent = took(lambda: clean(log))
        log.close()
    return spent


@contextmanager
def divided(parts: dict[str, float]):
    """Adds the CPU-seconds of each part of a pass to `parts`. A part inside another counts for itself alone."""
    stack: list[float] = []
    changed: list[tuple[object, str, object]] = []

    def watch(owner: object, name: str, part: str) -> None:
        work = getattr(owner, name)

        def timed(*args, **options):
            stack.append(0.0)
            began = time.process_time()
            try:
                return work(*args, **options)
            finally:
                spent = time.process_time() - began
                parts[part] = parts.get(part, 0.0) + spent - stack.pop()
                if stack:
                    stack[-1] += spent

        changed.append((owner, name, work))
        setattr(owner, name, timed)

    class Watched:
        def __init__(self, module: object) -> None:
            self.__dict__.update({name: getattr(module, name) for name in dir(module) if not name.startswith("__")})

    codecs, kernel = Watched(cramjam), Watched(dispatch._chosen)
    for name in ("gzip", "snappy", "lz4", "zstd"):
        setattr(codecs, name, Watched(getattr(cramjam, name)))
        for each in dir(getattr(cramjam, name)):
            if each.startswith(("decompress", "compress")):
                watch(getattr(codecs, name), each, "codec decompress" if each.startswith("de") else "codec compress")
    for name, part in (
        ("decode_batches", "decode"),
        ("rebuild_batches", "rebuild, checksums"),
        ("scan_batches", "scan"),
        ("inflate_batches", "codec decompress"),
        ("rebuild_packed", "codec compress"),
    ):
        if hasattr(kernel, name):
            watch(kernel, name, part)
    for owner, name, value in ((compression, "cramjam", codecs), (dispatch, "_chosen", kernel)):
        changed.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)
    watch(dispatch, "decompress", "Python round the decompressor")
    watch(dispatch, "compress", "Python round the compressor")
    watch(dispatch, "_inflated", "copies and Python of inflating")
    watch(dispatch, "_apart", "copies and Python of a rebuilt batch")
    watch(offset_map.OffsetMap, "_enter", "offset map")
    watch(offset_map.OffsetMap, "_add_plain", "offset map")
    watch(offset_map.OffsetMap, "_add", "offset map, numpy")
    watch(cleaner.swap, "write_cleaned", "I/O")
    watch(cleaner.swap, "write_cleaned_indexes", "I/O")
    try:
        yield
    finally:
        for owner, name, work in reversed(changed):
            setattr(owner, name, work)


def profile(sample: Sample, rounds: int) -> None:
    tables = []
    for _ in range(rounds):
        parts: dict[str, float] = {}
        spent = cleaned(sample, parts)
        parts["the rest: Python"] = spent.processor_seconds - sum(parts.values())
        tables.append(parts)
    least = min(tables, key=lambda parts: sum(parts.values()))
    total = sum(least.values())
    for part, seconds in sorted(least.items(), key=lambda item: -item[1]):
        if seconds > 0.004 * total:
            print(f"    {part:<40} {seconds * 1e3:7.1f} ms  {seconds / total:5.1%}")


def row(sample: Sample, codec: Codec, rounds: int, kafka: KafkasCleaner | None) -> str:
    bare, data = Bare(codec), np.fromfile(sample.segment, np.uint8).data
    packed, rebuilt, size = changed(sample, codec)
    plain = [bytes(compression.decompress(codec, each, 1 << 24)) for each in packed]
    assert all(bare.decompress(each) == len(one) for each, one in zip(packed, plain, strict=True))
    for _ in range(WARM_UPS if kafka else 0):
        kafka.clean(sample)
    runs: dict[str, list] = {}

    def run(name: str, work: Callable[[], object]) -> None:
        runs.setdefault(name, []).append(took(work))

    for _ in range(rounds):
        run("decompress", lambda: [bare.decompress(each) for each in packed])
        run("compress", lambda: [bare.compress(each) for each in rebuilt])
        run("decode", lambda: [None for _ in kernels.decode_in_steps(data, include_control=True, step_bytes=8 << 20)])
        runs.setdefault("clean", []).append(cleaned(sample))
        if kafka:
            runs.setdefault("kafka", []).append(kafka.clean(sample)[0])
    spent = {name: best(each).processor_seconds for name, each in runs.items()}
    reference = spent["decompress"] + spent["compress"]
    told = f"{spent['clean'] / spent['kafka']:.2f}" if kafka else "-"
    return (
        f"| {codec.name.lower()} ({bare.source}), {sample.kind.name} | {len(rebuilt)} of {len(packed)} "
        f"| {spent['decompress'] * 1e3:.0f} + {spent['compress'] * 1e3:.0f} | {spent['decode'] * 1e3:.0f} "
        f"| {spent['decompress'] / spent['decode']:.2f} | {spent['clean'] * 1e3:.0f} "
        f"| {reference / spent['clean']:.2f} | {told} | {len(data) / 1e6:.2f} -> {size / 1e6:.2f} |"
    )


def main() -> None:
    words = sys.argv[1:]
    rounds = next((int(word) for word in words if word.isdigit()), ROUNDS)
    codecs = [codec for codec in list(Codec)[1:] if codec.name.lower() in words] or list(Codec)[1:]
    kafka = KafkasCleaner() if "--kafka" in words else None
    print(f"kernels: {kernels.implementation()}; CPU-milliseconds, best of {rounds}")
    print(
        "| | batches changed | bare decompress + compress | decode | bare / decode | clean | bare / clean "
        "| clean / Kafka's | MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for codec in codecs:
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as root:
                sample = made(kind, codec, root)
                print(row(sample, codec, rounds, kafka), flush=True)
                if "--profile" in words:
                    profile(sample, rounds)
    if kafka:
        kafka.close()


if __name__ == "__main__":
    main()
