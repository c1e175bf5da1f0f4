"""The remote tier against the bare client, in one run: ``python tests/bench/bench_remote.py [--mib 64] [--rounds 5]``.

| row | ours | reference |
|---|---|---|
| upload | `copy_segment`: checksums, verification, indexes | boto3 multipart upload, same part size and threads |
| read | `RemotePartition.read` of all, cold cache, checked | boto3 GETs of the same ranges, same threads |
| cold random read | open a partition (head), look an offset up, read 64 KiB | one raw ranged GET of 64 KiB |
| warm random read | the same again, everything cached | one raw ranged GET of 64 KiB |

The server is moto on loopback, one process: it is the limit of every figure here, so only ratios mean anything; 1.0 is
as fast as the reference, more is faster. The rounds are interleaved; medians and best of each.
"""

from __future__ import annotations

import argparse
import random
import statistics
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import boto3
from boto3.s3.transfer import TransferConfig

from remote.chunk_cache import ChunkCache
from remote.fsspec_store import open_store
from remote.head_changes import add_segments
from remote.metadata_log import MetadataLog
from remote.metered_store import MeteredStore
from remote.part_sending import PARTS_MAX
from remote.range_reader import RANGE_BYTES, RemotePartition
from remote.s3_store import READ_CONCURRENCY
from remote.segment import PART_BYTES
from remote.transfer import SegmentToCopy, copy_segment
from tiered.demo.s3_endpoint import S3Endpoint

BUCKET, TOPIC_ID = "bench-bucket", "A" * 22
PREFIX = f"orders-{TOPIC_ID}/0/"
STEP = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    body = random.Random(1).randbytes(1 << 20) * arguments.mib
    with S3Endpoint() as endpoint:
        endpoint.create_bucket(BUCKET)
        Bench(endpoint, body, arguments.rounds).run()


class Bench:
    def __init__(self, endpoint: S3Endpoint, body: bytes, rounds: int) -> None:
        self.body, self.rounds = body, rounds
        self.raw = boto3.client(
            "s3",
            endpoint_url=endpoint.url,
            aws_access_key_id="loopback",
            aws_secret_access_key="loopback",
            region_name="us-east-1",
        )
        self.inner = open_store(f"s3://{BUCKET}/ours", endpoint.options())
        self.store = MeteredStore(self.inner)
        self.log = MetadataLog(self.store, PREFIX)

    def run(self) -> None:
        self.log.become_writer("bench", 0, topic="orders", topic_id=TOPIC_ID, partition=0)
        row = copy_segment(self.store, PREFIX, self.segment(), epoch=1, now_ms=0)
        before = self.store.counts()
        self.log.commit(add_segments([row]), now_ms=0)
        commit = self.store.counts() - before
        print(f"{len(self.body) >> 20} MiB, {self.rounds} rounds; medians (best); ratio of bests, 1.0 = reference")
        self.compare("upload", self.upload, self.raw_upload, len(self.body))
        self.compare("read", lambda: self.read(row), self.raw_read, len(self.body))
        self.compare("cold random read", self.cold, self.raw_one)
        reader, row = self.opened()
        self.compare("warm random read", lambda: self.random_read(reader, row, 3 << 20), self.raw_one)
        print()
        self.count("copy one segment", lambda: copy_segment(self.store, PREFIX, self.segment(), epoch=1, now_ms=0))
        print(f"{'commit':22} puts={commit.puts} gets={commit.gets}")
        self.count("cold random read", self.cold)
        self.count("read all, cold", lambda: self.read(row))
        self.inner.close()

    # --- ours --------------------------------------------------------------------------------------------------------

    def segment(self) -> SegmentToCopy:
        view, entry = memoryview(self.body), struct.Struct(">ii")
        offsets = b"".join(entry.pack(at // 100, at) for at in range(STEP, len(view), STEP))
        times = b"".join(struct.pack(">qi", at, at // 100) for at in range(STEP, len(view), STEP))
        return SegmentToCopy(
            base_offset=0,
            next_offset=len(view) // 100 + 1,
            size_bytes=len(view),
            record_count=len(view) // 100,
            max_timestamp_ms=len(view),
            min_timestamp_ms=0,
            epochs=((0, 0),),
            offset_index=offsets,
            time_index=times,
            read=lambda start, length: view[start : start + length],
        )

    def upload(self) -> None:
        copy_segment(self.store, PREFIX, self.segment(), epoch=1, now_ms=0)

    def read(self, row) -> None:
        reader = RemotePartition(self.store, PREFIX, ChunkCache(2 * len(self.body)))
        assert len(reader.read(row, 0, len(self.body))) == len(self.body)

    def opened(self):
        reader = RemotePartition(self.store, PREFIX, ChunkCache(), read_ahead_chunks=0)
        row = reader.head().segments[0]
        return reader, row

    def random_read(self, reader, row, position) -> None:
        found = reader.position_of_offset(row, position // 100)
        assert reader.read(row, found, 64 << 10) == self.body[found : found + (64 << 10)]

    def cold(self) -> None:
        self.random_read(*self.opened(), random.randrange(len(self.body) - (1 << 20)))

    # --- the reference -----------------------------------------------------------------------------------------------

    def raw_upload(self) -> None:
        import io

        config = TransferConfig(PART_BYTES, max_concurrency=PARTS_MAX, multipart_chunksize=PART_BYTES)
        self.raw.upload_fileobj(io.BytesIO(self.body), BUCKET, "raw", Config=config)

    def raw_range(self, start: int, length: int) -> bytes:
        answer = self.raw.get_object(Bucket=BUCKET, Key="raw", Range=f"bytes={start}-{start + length - 1}")
        return answer["Body"].read()

    def raw_read(self) -> None:
        starts = range(0, len(self.body), RANGE_BYTES)
        with ThreadPoolExecutor(READ_CONCURRENCY) as pool:
            whole = b"".join(
                pool.map(lambda start: self.raw_range(start, min(RANGE_BYTES, len(self.body) - start)), starts)
            )
        assert len(whole) == len(self.body)

    def raw_one(self) -> None:
        assert len(self.raw_range(random.randrange(len(self.body) - (1 << 20)), 64 << 10)) == 64 << 10

    # --- measuring ---------------------------------------------------------------------------------------------------

    def compare(self, name, ours, reference, size_bytes=None) -> None:
        reference()
        ours()
        took = ([], [])
        for _ in range(self.rounds):
            for kept, work in zip(took, (ours, reference), strict=True):
                begun = time.perf_counter()
                work()
                kept.append(time.perf_counter() - begun)
        told = [
            f"{self.told(statistics.median(each), size_bytes)} ({self.told(min(each), size_bytes)})" for each in took
        ]
        print(f"{name:22} ours {told[0]:26} reference {told[1]:26} ratio {min(took[1]) / min(took[0]):.2f}")

    def told(self, seconds, size_bytes) -> str:
        return f"{size_bytes / seconds / 1e6:.0f} MB/s" if size_bytes else f"{seconds * 1e3:.1f} ms"

    def count(self, name, work) -> None:
        before = self.store.counts()
        work()
        made = self.store.counts() - before
        print(f"{name:22} puts={made.puts} gets={made.gets} in={made.bytes_in} out={made.bytes_out}")


if __name__ == "__main__":
    main()
