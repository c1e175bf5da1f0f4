"""Transfer in figures: ``python tests/bench/bench_transfer.py upload|memory|local [--mib N] [--rounds N]``.

| part | ours | reference, in the same run |
|---|---|---|
| upload | `copy_segment` in each way of keeping it, every batch decoded | boto3 multipart upload, same parts |
| memory | peak resident memory of 1 and of 8 copies at once, each in a process of its own | the same process before |
| local | a local file read ahead by aiofiles, cold and warm, with the work of a copy | read where it is asked for |

The upload goes to moto on loopback unless ``--endpoint URL --bucket NAME`` name another server (credentials from the
environment): on a machine with few cores the server is the limit, and only ratios mean anything. The memory part
throws the parts away, so that no server's memory is in the figure.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from statistics import median

from local.batch import encode_batch
from local.compression import Codec, compress
from local.crc32c import crc32c
from local.record import Record
from remote.at_rest import AtRest
from remote.chunks import ZSTD
from remote.encryption import KeyRing
from remote.file_ahead import FileAhead
from remote.fsspec_store import open_store
from remote.memory_store import MemoryStore
from remote.part_sending import PARTS_MAX, PartSender, SentPart
from remote.segment import PART_BYTES
from remote.store import ObjectInfo, begun_parts
from remote.transfer import SegmentToCopy, copy_segment
from tiered.copying import SegmentWatch

KEYS = KeyRing({"bench": os.urandom(32)})
MODES = {
    "as it is": AtRest(),
    "zstd 1": AtRest(codec=ZSTD, level=1),
    "zstd 3": AtRest(codec=ZSTD, level=3),
    "encrypted": AtRest(key_id="bench", keys=KEYS),
    "zstd 1, encrypted": AtRest(codec=ZSTD, level=1, key_id="bench", keys=KEYS),
}
PREFIX = f"orders-{'A' * 22}/0/"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=["upload", "memory", "local", "memory-child"])
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--mode", default="as it is")
    parser.add_argument("--endpoint")
    parser.add_argument("--bucket", default="bench-bucket")
    asked = parser.parse_args()
    with segment_file(asked.mib) as (path, next_offset):
        match asked.part:
            case "upload":
                upload(asked, path, next_offset)
            case "memory":
                memory(asked)
            case "memory-child":
                memory_child(asked, path, next_offset)
            case _:
                local(path, asked.rounds)


# --- a segment ------------------------------------------------------------------------------------------------------


@contextmanager
def segment_file(mib: int) -> Iterator[tuple[str, int]]:
    """A file of about `mib` MiB of batches of JSON-like records, and the offset after its last."""
    value = b'{"id": %d, "name": "customer %d", "amount": %d.%02d}'
    records = [Record(b"key-%08d" % n, value % (n, n * 7, n * 13, n % 100), n) for n in range(2000)]
    offset = 0
    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        while file.tell() < mib << 20:
            batch = encode_batch(records, base_offset=offset)
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
        inspect=lambda: SegmentWatch(path, 0, next_offset, epochs),
    )


# --- parts ----------------------------------------------------------------------------------------------------------


def upload(asked: argparse.Namespace, path: str, next_offset: int) -> None:
    with server(asked) as (url, options, client):
        import boto3.s3.transfer as transfer

        config = transfer.TransferConfig(PART_BYTES, max_concurrency=PARTS_MAX, multipart_chunksize=PART_BYTES)
        store, size = open_store(url, options), os.path.getsize(path)
        runs: dict[str, Callable[[], object]] = {
            "boto3 multipart": lambda: client.upload_file(path, asked.bucket, "raw", Config=config),
            **{name: _copying(store, path, next_offset, mode) for name, mode in MODES.items()},
        }
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(asked.rounds):
            for name, run in runs.items():
                seconds[name].append(timed(run))
        best = min(seconds["boto3 multipart"])
        print(f"{size >> 20} MiB, best of {asked.rounds} interleaved rounds")
        for name, each in seconds.items():
            print(f"{name:20} {size / min(each) / 1e6:8.0f} MB/s   {best / min(each):5.2f} x boto3")
        store.close()


def _copying(store: object, path: str, next_offset: int, mode: AtRest) -> Callable[[], object]:
    segment = segment_of(path, next_offset)
    return lambda: copy_segment(store, PREFIX, segment, epoch=1, now_ms=0, at_rest=mode)  # type: ignore[arg-type]


@contextmanager
def server(asked: argparse.Namespace) -> Iterator[tuple[str, dict[str, object], object]]:
    import boto3

    if asked.endpoint:
        options: dict[str, object] = {"endpoint_url": asked.endpoint}
        yield f"s3://{asked.bucket}/bench", options, boto3.client("s3", endpoint_url=asked.endpoint)
        return
    from tiered.demo.s3_endpoint import S3Endpoint

    with S3Endpoint() as endpoint:
        endpoint.create_bucket(asked.bucket)
        login = {"aws_access_key_id": "loopback", "aws_secret_access_key": "loopback", "region_name": "us-east-1"}
        yield f"s3://{asked.bucket}/bench", endpoint.options(), boto3.client("s3", endpoint_url=endpoint.url, **login)


class Nowhere(MemoryStore):
    """Takes parts as a store does, several at once, and throws them away."""

    def __init__(self) -> None:
        super().__init__()
        self._sender = PartSender()
        self._sizes: dict[str, int] = {}

    def upload(self, key: str, source: object) -> None:
        def send(number: int, body: object) -> SentPart:
            time.sleep(len(body) / 400e6)  # type: ignore[arg-type]  # a link, so that parts pile up
            return SentPart(number=number, tag="", size_bytes=len(body))  # type: ignore[arg-type]

        parts = self._sender.send(begun_parts(key, source), send)  # type: ignore[arg-type]
        self._sizes[key] = sum(part.size_bytes for part in parts)

    def head(self, key: str) -> ObjectInfo:
        return ObjectInfo(key=key, size_bytes=self._sizes[key]) if key in self._sizes else super().head(key)


def memory(asked: argparse.Namespace) -> None:
    for mode in MODES:
        for copies in (1, 8):
            words = [sys.executable, __file__, "memory-child", f"--mib={asked.mib}", f"--copies={copies}"]
            subprocess.run([*words, f"--mode={mode}"], check=True)


def memory_child(asked: argparse.Namespace, path: str, next_offset: int) -> None:
    warm = segment_of(path, next_offset)
    warm.inspect().take(memoryview(warm.read(0, 1 << 20)))  # type: ignore[misc]  # imports and tables of the codecs
    before, store = peak_mib(), Nowhere()
    run = _copying(store, path, next_offset, MODES[asked.mode])
    with ThreadPoolExecutor(asked.copies) as pool:
        for each in [pool.submit(run) for _ in range(asked.copies)]:
            each.result()
    told = f"{asked.copies} x {asked.mib} MiB {asked.mode}"
    print(f"{told:34} peak {peak_mib():5.0f} MiB, {peak_mib() - before:5.0f} more than before", flush=True)


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
