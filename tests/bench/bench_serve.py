"""The Kafka endpoint beside a Kafka broker: ``bench_serve.py [--mib 512] [--rounds 5] [--only PART ...]``.

Kafka 4.1.1 with the JVM options of its start script, `tiered run --kafka` and `tiered serve` serve the same batches of
16 KiB from one machine to the same raw clients. They take turns in each round. CPU is that of the server process; MB/s
is wall time and includes the client, which shares the cores. Ratios are medians of the rounds' ratios.

| part | measured |
|---|---|
| disk | catch-up from the local log, fetches of 1 MiB (a consumer's default) and of 8 MiB; also bare `sendfile` |
| remote | catch-up from the bucket or from LocalTieredStorage, both folders; with a cold and with a warm cache |
| produce | acks=all, five requests in flight, by batch size |
| tail | a batch every 10 ms from the producer to a waiting consumer, p50 and p99 |
| idle | 1,000 connections: resident memory, CPU of ten seconds |
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))
import kafka_clients as clients
from kafka_artifacts import find_tiered_kafka
from serve_clients import BATCH_RECORDS, RawClient, connected, tail_latencies, throughput
from serve_servers import TIERED, Broker, Server, bare_sendfile, tiered

from local.format.record import Record
from local.logdirs.log_dir import LogDirectory
from local.names import TopicPartition
from local.records.batch import encode_batch
from local.settings import LogSettings
from local.storage import DiskStorage
from tiered.config.config import Config, file_url
from tiered.manager.manager import LogManager

NOW_MS = 1_750_000_000_000
SEGMENT_BYTES = 64 << 20
PARTITION_BYTES = (1 << 20, 8 << 20)
REMOTE_MIB, CACHED_MIB = 512, 160  # the cache of a process has 256 MiB
CONNECTIONS, IDLE_S = 1000, 10
SETTINGS = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}
REMOTE = {**SETTINGS, "remote.storage.enable": "true", "local.retention.ms": "1"}
PARTS = ("disk", "remote", "produce", "tail", "idle")
Work = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--in", dest="folder", help="a folder on the disk to measure")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=wanted.folder) as name:
        place = Place(Path(name), wanted.mib)
        with place.broker() as broker, place.node() as node:
            print(f"load {os.getloadavg()[0]:.1f}")
            if "disk" in wanted.only:
                disk(place, broker, node, wanted.rounds)
            if "produce" in wanted.only:
                produce(broker, node, wanted.rounds)
            if "tail" in wanted.only:
                tail(broker, node, wanted.rounds)
            if "remote" in wanted.only:
                remote(place, broker, wanted.rounds)
            if "idle" in wanted.only:
                idle(broker, node)
            print(f"load {os.getloadavg()[0]:.1f}")


class Place:
    """A node's directory and bucket, and a broker with the same records in the same batches."""

    def __init__(self, root: Path, mib: int) -> None:
        self.root, self._home = root, root / "node"
        self._home.mkdir()
        (self._home / "bucket").mkdir()
        text = f'[local]\ndir = "data"\n[remote]\nurl = "{file_url(str(self._home / "bucket"))}"\n'
        (self._home / "tiered.toml").write_text(text)
        self.batch = bytes(encode_batch(_records()))
        self.counts = {"local": (mib << 20) // len(self.batch), "far": (REMOTE_MIB << 20) // len(self.batch)}
        self._fill()
        self.far_end = 0  # the end of the remote tiers, set by `broker`

    def bucket_url(self) -> str:
        return file_url(str(self._home / "bucket"))

    def _fill(self) -> None:
        config = Config.load(str(self._home / "tiered.toml"), {"file.delete.delay.ms": "0"}, {})
        with LogManager.open(config, now_ms=NOW_MS) as manager:
            for topic, settings in {"local": SETTINGS, "fresh": SETTINGS, "far": REMOTE}.items():
                manager.topics.create(topic, 1, settings, now_ms=NOW_MS)
            for topic, count in self.counts.items():
                for _ in range(count):
                    manager.append(topic, _records(), 0, now_ms=NOW_MS)
        # Before the node moves its closed segments to the bucket.
        shutil.copytree(self._home / "data", self.root / "copy")
        with LogManager.open(config, now_ms=NOW_MS) as manager:
            while manager.tick(NOW_MS + 10):
                pass

    @contextmanager
    def broker(self) -> Iterator[Server]:
        home, kafka = self.root / "broker", find_tiered_kafka()
        plain = Broker(kafka, home)
        plain.format()
        plain.start()
        try:
            clients.create_topics(plain.address, {"local": SETTINGS, "fresh": SETTINGS, "far": SETTINGS})
        finally:
            plain.stop()
        data = plain.log_dirs[0]
        directory = LogDirectory(DiskStorage(), str(data))
        for topic, count in self.counts.items():
            settings = LogSettings(segment_bytes=SEGMENT_BYTES)
            log = directory.open_log(TopicPartition(topic, 0), settings, now_ms=NOW_MS)
            for _ in range(count):
                log.append(_records(), now_ms=NOW_MS)
        directory.close()
        broker = Broker(kafka, home, settings=TIERED.format(remote=home / "remote"))
        broker.start()
        try:
            clients.wait_for_leaders(broker.address, ["local", "fresh", "far"])
            changes = "remote.storage.enable=true,local.retention.ms=1"
            words = ["--alter", "--entity-type", "topics", "--entity-name", "far", "--add-config", changes]
            broker.tool("kafka.admin.ConfigCommand", "--bootstrap-server", broker.address, *words)
            clients.wait_until(lambda: len(_logs(data, "far")) == 1, "only the active segment", 120)
            self.far_end = int(_logs(data, "far")[0].stem)
            yield Server("Kafka 4.1.1", broker.address, broker.pid)
        finally:
            broker.kill()  # a clean end waits for the broker's own remote metadata

    @contextmanager
    def node(self) -> Iterator[Server]:
        with tiered("tiered run", self._home, "run", "--kafka", "127.0.0.1:0") as server:
            yield server

    @contextmanager
    def replica(self) -> Iterator[Server]:
        with tiered("tiered serve", self.root, "serve", "--remote", self.bucket_url(), "--port", "0") as server:
            yield server

    @contextmanager
    def bare(self) -> Iterator[Server]:
        path = self.root / "whole"
        with path.open("wb") as whole:
            for log in _logs(self.root / "copy", "local"):
                whole.write(log.read_bytes())
        with bare_sendfile(path, len(self.batch)) as server:
            yield server


def disk(place: Place, broker: Server, node: Server, rounds: int) -> None:
    end = place.counts["local"] * BATCH_RECORDS
    with place.bare() as bare:
        for partition_bytes in PARTITION_BYTES:
            servers = [bare, broker, node]
            table = Table(f"catch-up from the disk, fetches of {partition_bytes >> 20} MiB")
            for round_ in range(rounds + 2):
                for server in servers:
                    with connected(server.address) as client:
                        read = reading(client, b"local", end, place, partition_bytes)
                        table.measure(server, read, is_warm_up=round_ < 2)
            table.print(["bare sendfile", "Kafka 4.1.1"])


def remote(place: Place, broker: Server, rounds: int) -> None:
    end, cached_end = place.far_end, (CACHED_MIB << 20) // len(place.batch) * BATCH_RECORDS
    table = Table("catch-up from the remote tier, fetches of 1 MiB")
    for round_ in range(rounds + 1):
        with connected(broker.address) as client:
            table.measure(broker, reading(client, b"far", end, place, 1 << 20), is_warm_up=not round_)
        with place.replica() as replica, connected(replica.address) as client:
            client.fetch(b"far", 0, partition_bytes=1)  # the modules of the first fetch
            replica.name = "tiered serve, cold"
            table.measure(replica, reading(client, b"far", end, place, 1 << 20), is_warm_up=not round_)
        with place.replica() as replica, connected(replica.address) as client:
            read = reading(client, b"far", cached_end, place, 1 << 20)
            read()
            replica.name = "tiered serve, cached"
            table.measure(replica, read, is_warm_up=not round_)
    table.print(["Kafka 4.1.1"])


def reading(client: RawClient, topic: bytes, end: int, place: Place, partition_bytes: int) -> Callable[[], int]:
    return lambda: client.read_all(topic, 0, end, len(place.batch), partition_bytes=partition_bytes)


def produce(broker: Server, node: Server, rounds: int) -> None:
    for records, total in ((1, 4 << 20), (16, 64 << 20), (256, 256 << 20)):
        batch = bytes(encode_batch(_records(records)))
        table = Table(f"produce, acks=all, batches of {len(batch) >> 10} KiB")
        for round_ in range(rounds + 1):
            for server in (broker, node):
                work = partial(throughput, server.address, b"fresh", batch, total)
                table.measure(server, work, is_warm_up=not round_)
        table.print(["Kafka 4.1.1"])


def tail(broker: Server, node: Server, rounds: int) -> None:
    print("\n## tail latency, a batch of 1 KiB every 10 ms, ms\n\n| | p50 | p99 |\n|---|---|---|")
    batch = bytes(encode_batch(_records()))
    for server in (broker, node):
        found = list[tuple[float, float]]()
        for round_ in range(rounds + 1):
            end = _end_of(server, b"fresh")
            cuts = quantiles(tail_latencies(server.address, b"fresh", batch, end, count=400, pause_s=0.01), n=100)
            if round_:
                found.append((cuts[49] * 1000, cuts[98] * 1000))
        p50, p99 = (median(each) for each in zip(*found, strict=True))
        print(f"| {server.name} | {p50:.2f} | {p99:.2f} |")


def idle(broker: Server, node: Server) -> None:
    print(f"\n## {CONNECTIONS} idle connections\n\n| | KiB each | CPU-ms a second |\n|---|---|---|")
    for server in (broker, node):
        before = server.resident_mib()
        with ExitStack() as stack:
            for _ in range(CONNECTIONS - 10):
                client = RawClient(server.address, buffer_bytes=1 << 12)
                stack.callback(client.close)
                client.versions()
            grown, cpu = server.resident_mib() - before, server.cpu_s()
            time.sleep(IDLE_S)
            used = server.cpu_s() - cpu
        print(f"| {server.name} | {grown * 1024 / CONNECTIONS:.0f} | {used * 1000 / IDLE_S:.1f} |")


class Table:
    """Rows of servers: bytes, wall and CPU seconds of each round."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._rounds: dict[str, list[tuple[int, float, float]]] = {}

    def measure(self, server: Server, work: Callable[[], int], *, is_warm_up: bool) -> None:
        cpu, wall = server.cpu_s(), time.perf_counter()
        size_bytes = work()
        wall, cpu = time.perf_counter() - wall, server.cpu_s() - cpu
        if not is_warm_up:
            self._rounds.setdefault(server.name, []).append((size_bytes, wall, cpu))

    def print(self, references: list[str]) -> None:
        heads = "".join(f" x {name}: wall, CPU |" for name in references)
        print(f"\n## {self._title}\n\n| | MB/s | server CPU-s/GB |{heads}\n|---|---|---|{'---|' * len(references)}")
        for name, rounds in self._rounds.items():
            speed = median(size / wall for size, wall, _ in rounds) / 1e6
            cpu = median(used / size for size, _, used in rounds) * 1e9
            cells = [self._ratio(name, each) for each in references]
            print(f"| {name} | {speed:.0f} | {cpu:.3f} | {' | '.join(cells)} |")

    def _ratio(self, name: str, reference: str) -> str:
        """More is better for both."""
        pairs = list(zip(self._rounds[name], self._rounds[reference], strict=True))
        wall = median((ours[0] / ours[1]) / (theirs[0] / theirs[1]) for ours, theirs in pairs)
        cpu = median((theirs[2] / theirs[0]) / max(ours[2] / ours[0], 1e-12) for ours, theirs in pairs)
        return f"{wall:.2f}, {cpu:.2f}"


def _records(count: int = BATCH_RECORDS) -> list[Record]:
    return [Record(None, b"v" * 1000, NOW_MS)] * count


def _logs(data: Path, topic: str) -> list[Path]:
    return sorted((data / f"{topic}-0").glob("*.log"))


def _end_of(server: Server, topic: bytes) -> int:
    return clients.bounds(server.address, [topic.decode()])[topic.decode()][1]


if __name__ == "__main__":
    main()
