"""Transfer benchmarks: ``python tests/bench/bench_transfer.py upload|memory|local [--mib N] [--rounds N]``.

| part | measured | reference, in the same run |
|---|---|---|
| upload | `copy_segment` in each object encoding, every batch decoded | multipart uploads of the file, same parts |
| memory | peak resident memory of parallel copies, in its own process; 1024 MiB unless --mib | the process before |
| local | a local file read ahead by aiofiles, cold and warm, with the work of a copy | reads on demand |

The upload uses Versity S3 Gateway on loopback, over files in memory. Each takes a turn in each round, and a ratio is
the median of the ratios of the rounds. The memory part copies to the same server in another process, over files on the
disk. Its figure includes clients, their buffers and queued data, but not the memory of the server.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from bench_remote import BUCKET, KINDS, PREFIX, Raw, RunningServer, in_turns, print_table, workplace

from local.format.compression import Codec, compress
from local.format.crc32c import crc32c
from local.format.record import Record
from local.records.batch import encode_batch
from remote.segment_entry import PART_BYTES
from remote.segments.encryption import KeyRing
from remote.segments.stored_segment import ZSTD, ObjectEncoding
from remote.store.open_store import open_store
from remote.upload.segment_upload import SegmentToCopy, copy_segment
from remote.upload.segment_upload_stream import FileAhead
from tiered.partition.segment_inspection import SegmentInspector

KEYS = KeyRing({"bench": os.urandom(32)})
MODES = {
    "as it is": ObjectEncoding(),
    "zstd 1": ObjectEncoding(codec=ZSTD, level=1),
    "zstd 3": ObjectEncoding(codec=ZSTD, level=3),
    "encrypted": ObjectEncoding(key_id="bench", keys=KEYS),
    "zstd 1, encrypted": ObjectEncoding(codec=ZSTD, level=1, key_id="bench", keys=KEYS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=["upload", "memory", "local", "memory-child"])
    parser.add_argument("--mib", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--mode", default="as it is")
    parser.add_argument("--options", default="{}")
    asked = parser.parse_args()
    if asked.part == "memory":
        memory(asked)
        return
    with segment_file(asked.mib or 64) as (path, next_offset):
        match asked.part:
            case "upload":
                upload(asked, path, next_offset)
            case "memory-child":
                memory_child(asked, path, next_offset)
            case _:
                local(path, asked.rounds)


# --- a segment ------------------------------------------------------------------------------------------------------


@contextmanager
def segment_file(mib: int) -> Iterator[tuple[str, int]]:
    """A file of about `mib` MiB of batches of JSON-like records, and its next offset."""
    value = b'{"id": %d, "name": "customer %d", "amount": %d.%02d}'
    records = [Record(b"key-%08d" % n, value % (n, n * 7, n * 13, n % 100), n) for n in range(2000)]
    batch, offset = bytearray(encode_batch(records, base_offset=0)), 0
    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        while file.tell() < mib << 20:
            struct.pack_into(">q", batch, 0, offset)
            file.write(batch)
            offset += len(records)
        file.flush()
        yield file.name, offset


def segment_of(path: str, next_offset: int) -> SegmentToCopy:
    def read(start: int, length: int) -> bytes:
        with open(path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), length, start)

    epochs = ((0, 0),)
    return SegmentToCopy(
        base_offset=0,
        next_offset=next_offset,
        size_bytes=os.path.getsize(path),
        epochs=epochs,
        offset_index=bytes(8),
        time_index=bytes(12),
        read=read,
        path=path,
        inspect=lambda: SegmentInspector(path, 0, next_offset, epochs),
    )


# --- parts ----------------------------------------------------------------------------------------------------------


def upload(asked: argparse.Namespace, path: str, next_offset: int) -> None:
    with workplace() as folder, RunningServer(KINDS["versitygw"], folder / "server") as server:
        server.create_bucket(BUCKET)
        raw = Raw(server, segment_of(path, next_offset))
        store = open_store(f"s3://{BUCKET}/ours", {**server.options(), "client": "obstore"})
        runs: dict[str, Callable[[], object]] = {
            "obstore multipart": raw.obstore_upload,
            "boto3 multipart": raw.boto3_upload,
            **{name: _copying(store, path, next_offset, mode) for name, mode in MODES.items()},
        }
        print(f"{os.path.getsize(path) >> 20} MiB of JSON-like records, {asked.rounds} rounds\n")
        print_table(in_turns(runs, asked.rounds), "obstore multipart", os.path.getsize(path))
        store.close()


def _copying(store: object, path: str, next_offset: int, mode: ObjectEncoding) -> Callable[[], object]:
    segment = segment_of(path, next_offset)

    def copy() -> None:
        row = copy_segment(store, PREFIX, segment, epoch=1, now_ms=0, object_encoding=mode)  # type: ignore[arg-type]
        store.delete([PREFIX + row.data_key, PREFIX + row.indexes_key])  # type: ignore[attr-defined]

    return copy


def memory(asked: argparse.Namespace) -> None:
    print("| | client | peak | more than before |\n|---|---|---|---|", flush=True)
    for client in ("obstore", "s3fs"):
        for copies, mode in ((1, "as it is"), (8, "as it is"), (1, "zstd 1, encrypted"), (8, "zstd 1, encrypted")):
            with tempfile.TemporaryDirectory() as folder, RunningServer(KINDS["versitygw"], Path(folder)) as server:
                server.create_bucket(BUCKET)
                words = [sys.executable, __file__, "memory-child", f"--mib={asked.mib or 1024}", f"--copies={copies}"]
                patient = {"proxies": {}, "read_timeout": 300}  # a gateway over a disk needs long to complete 1 GiB
                options = json.dumps({**server.options(), "client": client, "config_kwargs": patient})
                subprocess.run([*words, f"--mode={mode}", f"--options={options}"], check=True)


def memory_child(asked: argparse.Namespace, path: str, next_offset: int) -> None:
    store = open_store(f"s3://{BUCKET}/ours", json.loads(asked.options))
    store.put("warm", b"x")  # load imports, clients and codec tables
    warm = segment_of(path, next_offset)
    warm.inspect().take(memoryview(warm.read(0, 1 << 20)))  # type: ignore[misc]
    before = peak_mib()
    run = _copying(store, path, next_offset, MODES[asked.mode])
    with ThreadPoolExecutor(asked.copies) as pool:
        for each in [pool.submit(run) for _ in range(asked.copies)]:
            each.result()
    told = f"{asked.copies} x {asked.mib} MiB, {asked.mode}"
    client = json.loads(asked.options)["client"]
    print(f"| {told} | {client} | {peak_mib():.0f} MiB | {peak_mib() - before:.0f} MiB |", flush=True)
    store.close()


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def local(path: str, rounds: int) -> None:
    size = os.path.getsize(path)
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())
        for does_compress in (False, True):
            for is_cold in (False, True):
                seconds: dict[str, list[float]] = {"asked for": [], "read ahead": []}
                for _ in range(rounds):
                    for name, each in seconds.items():
                        if is_cold:
                            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                        each.append(timed(partial(_walk, path, size, name, does_compress)))
                what = f"{'crc, zstd' if does_compress else 'crc':10} {'cold' if is_cold else 'warm'}"
                figures = {name: (round(min(each), 3), round(median(each), 3)) for name, each in seconds.items()}
                print(what, figures)


def _walk(path: str, size: int, name: str, does_compress: bool) -> None:
    with open(path, "rb", buffering=0) as file:

        def read(start: int, length: int) -> bytes:
            return os.pread(file.fileno(), length, start)

        ahead = FileAhead(path, size, read)
        for start in range(0, size, PART_BYTES):
            part = (ahead.read if name == "read ahead" else read)(start, min(PART_BYTES, size - start))
            crc32c(part)
            if does_compress:
                for at in range(0, len(part), 1 << 20):
                    compress(Codec.ZSTD, memoryview(part)[at : at + (1 << 20)], 3)
        ahead.close()


def timed(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
