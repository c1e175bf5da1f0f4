"""`tiered dump` against Kafka's dump tool on the same segment: whole processes, wall and CPU seconds.

    python tests/bench/bench_dump.py [MiB]

Each process is started for each run, so Kafka's figures include the start of a JVM. The first row (an empty segment)
shows this share. `shallow` prints a line for each batch, `deep` for each record, `data` also its key and value. Maven
downloads the jars of the pinned Kafka once (tests/interop/kafka_artifacts.py).
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))

from kafka_artifacts import find_kafka

from local.format.record import Record
from local.log import Log
from local.logdirs.log_dir import LogDirectory
from local.names import TopicPartition, segment_file
from local.settings import LogSettings
from local.storage import DiskStorage

RUNS = 5
NOW = 1_700_000_000_000
NAME = TopicPartition("bench", 0)
KINDS = (("shallow", [], []), ("deep", ["--deep-iteration"], ["--deep"]), ("data", ["--print-data-log"], ["--print"]))


def main() -> None:
    size = int(sys.argv[1]) << 20 if len(sys.argv) > 1 else 64 << 20
    kafka = find_kafka()
    java = [kafka.java, "-Xmx512m", "-cp", kafka.class_path, "kafka.tools.DumpLogSegments"]
    ours = [sys.executable, "-m", "tiered", "dump", "-o", "text"]
    with tempfile.TemporaryDirectory() as work:
        empty = Path(work) / segment_file(0, ".log")
        empty.touch()
        full = _segment(Path(work) / "data", size)
        print(f"segment of {full.stat().st_size >> 20} MiB, 100-byte values, medians of {RUNS}, seconds wall (CPU)")
        print("| | Kafka's tool | tiered dump | ratio (wall) | ratio (CPU) |\n|---|---|---|---|---|")
        _row("empty segment", [*java, "--files", str(empty)], [*ours, str(empty)])
        for name, theirs, mine in KINDS:
            _row(name, [*java, *theirs, "--files", str(full)], [*ours, *mine, str(full)])


def _segment(root: Path, size: int) -> Path:
    directory = LogDirectory(DiskStorage(), str(root))
    directory.create(NAME, "A" * 22)
    log: Log = directory.open_log(NAME, LogSettings(batch_bytes=16 << 10, segment_bytes=1 << 30), now_ms=NOW)
    value = b"v" * 100
    while log.size_bytes < size:
        first = log.next_offset
        log.append([Record(b"%020d" % (first + i), value, NOW + first + i) for i in range(20_000)], now_ms=NOW)
    directory.close()
    return root / NAME.directory / segment_file(0, ".log")


def _row(name: str, theirs: list[str], mine: list[str]) -> None:
    kafka, tiered = [], []
    for _ in range(RUNS):
        kafka.append(_run(theirs))
        tiered.append(_run(mine))
    (kafka_wall, kafka_cpu), (wall, cpu) = _medians(kafka), _medians(tiered)
    ratios = f"{kafka_wall / wall:.1f} x | {kafka_cpu / cpu:.1f} x"
    print(f"| {name} | {kafka_wall:.2f} ({kafka_cpu:.2f}) | {wall:.2f} ({cpu:.2f}) | {ratios} |", flush=True)


def _run(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one process, without its output. Raises if it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _medians(runs: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(wall for wall, _ in runs), statistics.median(cpu for _, cpu in runs)


if __name__ == "__main__":
    main()
