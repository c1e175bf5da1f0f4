"""Many partitions in one daemon: start, memory, idle CPU, requests, a scrape, a status.

    python tests/bench/bench_partitions.py [PARTITIONS] [SEGMENTS] [ROUNDS]

Creates partitions with segments (default 1,000 of 100) in a temporary directory with a bucket as a directory, without
syncs. All but the newest ten segments of each partition are in the bucket only. Then it measures a new process. CPU is
that of the process itself, so that other processes have little influence.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from local.format.record import Record
from tiered.config.config import Config, file_url
from tiered.manager.manager import LogManager

NOW = 1_800_000_000_000
DAY = 86_400_000


def config_of(root: str) -> Config:
    return Config.load(f"{root}/tiered.toml", {}, {})


def make(root: str, partitions: int, segments: int) -> None:
    """Ten records for each segment, 100 partitions for each topic."""
    Path(root, "bucket").mkdir(parents=True)
    Path(root, "tiered.toml").write_text(f'[local]\ndir = "data"\n[remote]\nurl = "{file_url(f"{root}/bucket")}"\n')
    os.fsync = lambda fd: None
    config = Config.load(f"{root}/tiered.toml", {"file.delete.delay.ms": "0"}, {})
    settings = {
        "remote.storage.enable": "true",
        "retention.ms": "-1",
        "local.retention.ms": "-1",
        "local.retention.bytes": "12000",
        "segment.bytes": "1024",
    }
    per_topic = min(100, partitions)
    with LogManager.open(config, now_ms=NOW) as manager:
        for number in range(partitions // per_topic):
            topic = f"t{number}"
            manager.topics.create(topic, per_topic, settings, now_ms=NOW)
            for partition in range(per_topic):
                for at in range(segments):
                    records = [Record(b"k", b"v" * 80, NOW + at)] * 10
                    manager.append(topic, records, partition, now_ms=NOW)
            while manager.tick(NOW):
                pass
            print(f"made {topic}", file=sys.stderr)


def rss_mib() -> float:
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def measure(root: str, rounds: int) -> dict[str, float]:
    from tiered.observe.metrics import Metrics
    from tiered.service.observations import Observations, open_observed
    from tiered.service.worker import Worker
    from tiered.status.status_report import status_report

    seen = Observations()
    wall, cpu = time.perf_counter(), time.process_time()
    with open_observed(config_of(root), seen, now_ms=NOW) as manager:
        found = {"start_s": time.perf_counter() - wall, "start_cpu_s": time.process_time() - cpu}
        found["start_mib"] = rss_mib()
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000, waits=False, observations=seen)
        cpu = time.process_time()
        while worker.round(NOW):
            pass
        found["first_round_cpu_s"] = time.process_time() - cpu
        before, cpu = manager.store.counts(), time.process_time()
        for at in range(rounds):
            worker.round(NOW + at * 30_000)
        found["idle_round_cpu_s"] = (time.process_time() - cpu) / rounds
        found["idle_requests"] = sum(
            getattr(manager.store.counts() - before, each) for each in ("puts", "gets", "lists", "deletes")
        )
        metrics = Metrics(manager, seen, worker)
        cpu = time.process_time()
        text = metrics.text(NOW)
        found["scrape_cpu_s"] = time.process_time() - cpu
        found["scrape_kib"] = len(text) / 1024
        cpu = time.process_time()
        report = status_report(manager, NOW)
        found["status_cpu_s"] = time.process_time() - cpu
        found["segments"] = sum(each.remote_segments for each in report.partitions.values())
        found["local_segments"] = sum(each.local_segments for each in report.partitions.values())
        found["mib"] = rss_mib()
        found["mib_max"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        cpu, wall = time.process_time(), time.perf_counter()
    found["close_s"] = time.perf_counter() - wall
    return found


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["measure"]:
        print(json.dumps(measure(words[1], int(words[2]))))
        return
    partitions, segments, rounds = (
        int(words[at]) if len(words) > at else each for at, each in enumerate((1000, 100, 20))
    )
    with tempfile.TemporaryDirectory() as root:
        cpu = time.process_time()
        make(root, partitions, segments)
        print(f"made in {time.process_time() - cpu:.0f} CPU-seconds", file=sys.stderr)
        done = subprocess.run(
            [sys.executable, __file__, "measure", root, str(rounds)], check=True, capture_output=True, text=True
        )
    for name, value in json.loads(done.stdout).items():
        print(f"{name:20} {value:12.3f}")


if __name__ == "__main__":
    main()
