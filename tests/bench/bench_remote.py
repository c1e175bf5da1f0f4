"""The remote tier against bare clients, on one real server, in one run: ``bench_remote.py [--mib 256] [--rounds 9]``.

| row | measured | reference | goal |
|---|---|---|---|
| upload | `copy_segment` of a file: every batch decoded, checksums, verification | multipart, same parts | 0.9 |
| read | all batches of a segment, cold, checked, by `TieredReader`, then decoded too | ranged GETs, same sizes | 0.8 |
| random read | 64 KiB at an offset: nothing known, manifest known, indexes known | one GET of 64 KiB | |

References are obstore's functions, and where it is faster http.client on presigned URLs, which signs no bodies and
checks nothing. References discard the bytes of their GETs, while the reader uses a cache that is full of chunks of
another segment. Ranges are RANGE_BYTES, THREADS of them in parallel, for all. The server is Versity S3 Gateway on
loopback over files in memory. It shares the cores, so that only ratios are meaningful: 1.0 is as fast as the reference,
more is faster. Each takes a turn in each round. A ratio is the median of the ratios of the rounds, in brackets that of
the processor time of this process.

Random reads are measured twice: on loopback, where only processor time counts, and with FAR_S added to each answer of
both sides, where the number of dependent requests counts ("turns").
"""

from __future__ import annotations

import argparse
import http.client
import os
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import boto3
import obstore
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from obstore.store import S3Store

sys.path.insert(0, str(Path(__file__).parents[2] / "localstack"))
from local_servers import ACCESS_KEY, KINDS, SECRET_KEY, RunningServer

from local.format.record import Record
from local.names import TopicPartition
from local.records.batch import encode_batch
from remote.cache.chunk_cache import CACHE_BYTES, ChunkCache
from remote.fetch.range_reader import RANGE_BYTES, RangePredictor, RemotePartition
from remote.fetch.read_ahead import THREADS
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import add_segments
from remote.segment_entry import PART_BYTES, SegmentEntry
from remote.store import Body, GetRange, ObjectInfo
from remote.store.middleware.store_wrapper import MeteredStore
from remote.store.open_store import open_store
from remote.upload.segment_upload import SegmentToCopy, copy_segment
from tiered.partition.segment_inspection import SegmentInspector
from tiered.read.partition_source import PartitionSource
from tiered.read.reader import TieredReader

BUCKET, TOPIC_ID = "bench-bucket", "A" * 22
PREFIXES = [f"orders-{TOPIC_ID}/{number}/" for number in range(2)]
PREFIX = PREFIXES[0]
PARTITION = TopicPartition("orders", 0)
BATCH_BYTES, VALUE_BYTES = 16 << 10, 100  # Kafka's batch.size, and small records: the most work for each byte
SMALL_BYTES, SMALL_COUNT = 64 << 10, 20
FAR_S, FAR_COUNT, FAR_ROUNDS = 0.02, 5, 5  # S3 needs about 20 to 30 ms for a first byte
Work = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=["upload", "read", "random"])
    ranges = parser.parse_args()
    with workplace() as folder, RunningServer(KINDS["versitygw"], folder / "server") as server:
        server.create_bucket(BUCKET)
        segment = made_up_segment(folder / "00000000000000000000.log", ranges.mib)
        ours, raw = Ours(server, segment), Raw(server, segment)
        print(f"{ranges.mib} MiB, batches of 16 KiB with 100-byte values, {ranges.rounds} rounds; load {load()}\n")
        if ranges.only in (None, "upload"):
            uploads(ours, raw, ranges.rounds)
        if ranges.only in (None, "read"):
            reads(ours, raw, ranges.rounds)
        if ranges.only in (None, "random"):
            random_reads(ours, raw, ranges.rounds)
        print(f"load {load()}")


def uploads(ours: Ours, raw: Raw, rounds: int) -> None:
    works = {
        "obstore multipart of the file": raw.obstore_upload,
        "the same from memory": raw.obstore_upload_of_memory,
        "boto3 multipart of the file": raw.boto3_upload,
        "`copy_segment`": ours.upload,
    }
    taken = in_turns(works, rounds)
    for reference in list(works)[:2]:
        print_table(taken, reference, ours.segment.size_bytes)


def reads(ours: Ours, raw: Raw, rounds: int) -> None:
    works = {
        "obstore ranged GETs": raw.obstore_read,
        "http.client ranged GETs": raw.http_read,
        "`TieredReader.batches`": ours.batches,
        "`TieredReader.columns`": ours.columns,
    }
    taken = in_turns(works, rounds)
    for reference in list(works)[:2]:
        print_table(taken, reference, ours.segment.size_bytes)


def random_reads(ours: Ours, raw: Raw, rounds: int) -> None:
    works = {"one raw GET": raw.small, **ours.random_reads()}
    near = in_turns(repeated(works, SMALL_COUNT), rounds)
    ours.store.delay_s = raw.delay_s = FAR_S
    far = in_turns(repeated(works, FAR_COUNT), FAR_ROUNDS)
    ours.store.delay_s = raw.delay_s = 0
    told = f"ms, {FAR_S * 1e3:.0f} ms away"
    print(f"| 64 KiB by offset | ms | CPU ms | x one raw GET | {told} | x | turns | requests |")
    print("|---|---|---|---|---|---|---|---|")
    for name in works:
        wall, cpu = (median(column) * 1e3 / SMALL_COUNT for column in zip(*near[name], strict=True))
        away = median(wall for wall, _ in far[name]) * 1e3 / FAR_COUNT
        turns, requests = ours.requests_of(works[name]) if name != "one raw GET" else (1, "1 GET")
        ratios = ratio(near, "one raw GET", name), ratio(far, "one raw GET", name).partition(" ")[0]
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {ratios[0]} | {away:.1f} | {ratios[1]} | {turns} | {requests} |")
    print()


def repeated(works: dict[str, Work], count: int) -> dict[str, Work]:
    return {name: lambda work=work: [work() for _ in range(count)] for name, work in works.items()}


# --- measuring ------------------------------------------------------------------------------------------------------

Taken = dict[str, list[tuple[float, float]]]  # (seconds, seconds of processor time) of each round


def in_turns(works: dict[str, Work], rounds: int) -> Taken:
    for work in works.values():
        work()
    taken: Taken = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            begun, cpu = time.perf_counter(), time.process_time()
            work()
            taken[name].append((time.perf_counter() - begun, time.process_time() - cpu))
    return taken


def print_table(taken: Taken, reference: str, size_bytes: int) -> None:
    print(f"| | MB/s, median (best) | CPU ms/MiB | x {reference} |\n|---|---|---|---|")
    for name, each in taken.items():
        walls, cpus = zip(*each, strict=True)
        speed = f"{size_bytes / median(walls) / 1e6:.0f} ({size_bytes / min(walls) / 1e6:.0f})"
        print(f"| {name} | {speed} | {median(cpus) * 1e3 / (size_bytes >> 20):.2f} | {ratio(taken, reference, name)} |")
    print()


def ratio(taken: Taken, reference: str, name: str) -> str:
    pairs = list(zip(taken[reference], taken[name], strict=True))
    wall, cpu = (median(theirs[at] / ours[at] for theirs, ours in pairs) for at in (0, 1))
    return f"{wall:.2f} ({cpu:.2f})"


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


# --- the remote tier ------------------------------------------------------------------------------------------------


class Ours:
    def __init__(self, server: RunningServer, segment: SegmentToCopy) -> None:
        self.segment = segment
        self.cache, self.turn = ChunkCache(min(CACHE_BYTES, segment.size_bytes)), 0  # no space for both partitions
        self.store = FarStore(open_store(f"s3://{BUCKET}/ours", {**server.options(), "client": "obstore"}))
        self.logs = [MetadataLog(self.store, prefix) for prefix in PREFIXES]
        for number, log in enumerate(self.logs):
            log.become_writer("bench", 0, topic="orders", topic_id=TOPIC_ID, partition=number)
            log.commit(add_segments([self.copy(PREFIXES[number])]), now_ms=0)
        self.log, self.row = self.logs[0], self.logs[0].refresh().segments[0]

    def copy(self, prefix: str) -> SegmentEntry:
        return copy_segment(self.store, prefix, self.segment, epoch=1, now_ms=0)

    def upload(self) -> None:
        row = self.copy(PREFIX)
        self.store.delete([PREFIX + row.data_key, PREFIX + row.indexes_key])

    def batches(self) -> None:
        read = sum(map(len, self.reader().batches(PARTITION, 0)))
        assert read == self.segment.size_bytes

    def columns(self) -> None:
        count = sum(map(len, self.reader().columns(PARTITION, 0)))
        assert count == self.segment.next_offset

    def partition(self, cache: ChunkCache | None = None) -> RemotePartition:
        return RemotePartition(self.store, PREFIX, cache or ChunkCache(), metadata=self.log, guesses=RangePredictor())

    def reader(self) -> TieredReader:
        """A reader of both partitions in turn, so that the cache holds only chunks of the other partition."""
        self.turn += 1
        log, prefix = self.logs[self.turn % 2], PREFIXES[self.turn % 2]
        remote = RemotePartition(self.store, prefix, self.cache, metadata=log)
        return TieredReader(lambda partition: PartitionSource(partition, None, remote, log))

    def random_reads(self) -> dict[str, Work]:
        # `RemotePartition.indexes` finds the bundle under this key; no chunk is cached.
        indexes = {(PREFIX + self.row.indexes_key, -1): self.partition().indexes(self.row)}
        warm = self.partition(ChunkCache(2 * self.segment.size_bytes))
        warm.warm(self.row, 0, self.segment.size_bytes)

        def with_indexes() -> None:
            cache = ChunkCache()
            cache.keep(indexes)
            self.read_small(self.partition(cache))

        return {
            "nothing known": lambda: self.read_small(RemotePartition(self.store, PREFIX, guesses=RangePredictor())),
            "head known": lambda: self.read_small(self.partition()),
            "head and indexes known": with_indexes,
            "all known": lambda: self.read_small(warm),
        }

    def read_small(self, partition: RemotePartition) -> None:
        row = partition.manifest().segments[0]
        offset = random.randrange(row.next_offset * 9 // 10)
        assert len(partition.read(row, partition.position_of_offset(row, offset), SMALL_BYTES)) == SMALL_BYTES

    def requests_of(self, work: Work) -> tuple[int, str]:
        """(number of dependent requests, the requests by verb)."""
        before, self.store.turns = self.store.counts(), 0
        work()
        made = self.store.counts() - before
        counts = {"GET": made.gets, "LIST": made.lists, "PUT": made.puts}
        return self.store.turns, ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"


class FarStore(MeteredStore):
    """A store whose answers take `delay_s` longer. `turns` counts dependent requests."""

    delay_s = 0.0
    turns = 0

    def get(self, key: str) -> bytes:
        self._wait()
        return super().get(key)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Body]:
        self._wait()
        return super().get_ranges(key, ranges)

    def get_each(self, ranges: Sequence[GetRange]) -> Sequence[Body | None]:
        self._wait()
        return super().get_each(ranges)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        self._wait()
        return super().list(prefix, start_after=start_after)

    def _wait(self) -> None:
        self.turns += 1
        if self.delay_s:
            time.sleep(self.delay_s)


# --- references -----------------------------------------------------------------------------------------------------


class Raw:
    def __init__(self, server: RunningServer, segment: SegmentToCopy) -> None:
        assert segment.path is not None
        self.body, self.path = bytes(segment.read(0, segment.size_bytes)), Path(segment.path)
        size = len(self.body)
        self.ranges = [(start, min(RANGE_BYTES, size - start)) for start in range(0, size, RANGE_BYTES)]
        self.obstore = S3Store(
            BUCKET, endpoint=server.url, access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY, region="us-east-1",
            client_options={"allow_http": True},
        )  # fmt: skip
        self.boto3 = boto3.client(
            "s3", endpoint_url=server.url, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1", config=Config(signature_version="s3v4", proxies={}),
        )  # fmt: skip
        self.obstore_upload()
        place, names = urlsplit(server.url), {"Bucket": BUCKET, "Key": "obstore"}
        self.host, self.port = place.hostname, place.port
        url = self.boto3.generate_presigned_url("get_object", Params=names, ExpiresIn=36000)
        self.target = url.removeprefix(server.url)
        self.delay_s = 0.0
        self.idle: list[http.client.HTTPConnection] = []

    def obstore_upload(self) -> None:
        obstore.put(self.obstore, "obstore", self.path, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=4)

    def obstore_upload_of_memory(self) -> None:
        obstore.put(self.obstore, "obstore", self.body, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=4)

    def boto3_upload(self) -> None:
        config = TransferConfig(PART_BYTES, max_concurrency=4, multipart_chunksize=PART_BYTES)
        self.boto3.upload_file(str(self.path), BUCKET, "boto3", Config=config)

    def obstore_read(self) -> None:
        self.side_by_side(lambda ranges: len(self.obstore_get(*ranges)))

    def obstore_get(self, start: int, length: int) -> obstore.Bytes:
        return obstore.get_range(self.obstore, "obstore", start=start, length=length)

    def http_read(self) -> None:
        self.side_by_side(lambda ranges: len(self.http_get(*ranges)))

    def http_get(self, start: int, length: int) -> bytes:
        connection = self.idle.pop() if self.idle else http.client.HTTPConnection(self.host, self.port)
        connection.request("GET", self.target, None, {"Range": f"bytes={start}-{start + length - 1}"})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 206, body
        self.idle.append(connection)
        return body

    def side_by_side(self, get: Callable[[tuple[int, int]], int]) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            assert sum(pool.map(get, self.ranges)) == len(self.body)

    def small(self) -> None:
        if self.delay_s:
            time.sleep(self.delay_s)
        start = random.randrange(len(self.body) - SMALL_BYTES)
        assert len(self.http_get(start, SMALL_BYTES)) == SMALL_BYTES


# --- a segment ------------------------------------------------------------------------------------------------------


@contextmanager
def workplace() -> Iterator[Path]:
    """A directory, in memory if the system has such a place."""
    shared = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


def made_up_segment(path: Path, mib: int) -> SegmentToCopy:
    """Batches of BATCH_BYTES that differ only in their offsets, with an offset index of each fourth batch."""
    draw = random.Random(1)
    count = BATCH_BYTES // (VALUE_BYTES + 24)
    records = [Record(b"key-%08d" % n, draw.randbytes(VALUE_BYTES), 1_700_000_000_000 + n) for n in range(count)]
    batch, offset, entries = bytearray(encode_batch(records, base_offset=0)), 0, []
    with path.open("wb") as file:
        while file.tell() < mib << 20:
            if offset and offset // count % 4 == 0:
                entries.append(struct.pack(">ii", offset, file.tell()))
            struct.pack_into(">q", batch, 0, offset)
            file.write(batch)
            offset += count
    descriptor, epochs = os.open(path, os.O_RDONLY), ((0, 0),)
    return SegmentToCopy(
        base_offset=0,
        next_offset=offset,
        size_bytes=path.stat().st_size,
        epochs=epochs,
        offset_index=b"".join(entries),
        time_index=b"",
        read=lambda start, length: os.pread(descriptor, length, start),
        path=str(path),
        inspect=lambda: SegmentInspector(str(path), 0, offset, epochs),
    )


if __name__ == "__main__":
    main()
