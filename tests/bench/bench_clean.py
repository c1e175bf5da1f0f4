"""Speed of the cleaner, as ratios to references of the same run: ``bench_clean.py [rounds] [--copies]``.

End to end on real files in the page cache: both passes, every CRC checked, the new files written, synced and swapped
in. References run in turn with the cleaner on the same segment: a raw read and write with a sync, Kafka's cleaner, and
a plain Python dictionary over records as tuples. Ratios are best to best over rounds in which each takes a turn, of
wall time and of processor time, the latter for busy machines. Kafka's cleaner is the class of 4.1.1 in a JVM that has
cleaned the same log before (`TimeKafkasCleaner.java`), with one thread, no throttle and a dedupe buffer of 128 MiB. It
is left out without its jars. Takes some minutes; with ``--copies`` only the raw copy, in half a minute.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))

from clean_samples import (
    KINDS,
    NOW,
    SEGMENT_BYTES,
    Sample,
    Took,
    best,
    clean,
    cleaned,
    copied,
    copy,
    made,
    opened,
    ratios,
    took,
)
from kafka_artifacts import KafkaMissing, find_kafka

from local import kernels

ROUNDS = 5
WARM_UPS = 4
DRIVER = Path(__file__).with_name("TimeKafkasCleaner.java")


class KafkasCleaner:
    """A JVM that cleans the given directories, one by one."""

    def __init__(self) -> None:
        kafka = find_kafka()
        words = [kafka.java, "-Xmx2g", "-cp", kafka.class_path, str(DRIVER)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def clean(self, sample: Sample) -> tuple[Took, int]:
        """(time of the cleaning alone, remaining records)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with copied(sample) as (directory,):
            self._process.stdin.write(f"{directory}\t{sample.next_offset}\t{NOW}\t{SEGMENT_BYTES}\n")
            self._process.stdin.flush()
            while not (line := self._process.stdout.readline()).startswith("cleaned\t"):
                assert line, "the JVM of Kafka's cleaner must still run"
            wall, processor = (int(word) / 1e9 for word in line.split("\t")[1:])
            left = sum(records_in(path) for path in Path(directory).glob("*.log"))
        return Took(wall, processor), left

    def close(self) -> None:
        self._process.communicate("")


def records_in(path: Path) -> int:
    return int(kernels.scan_batches(path.read_bytes()).record_counts.sum())


def by_dictionary(sample: Sample) -> tuple[Took, list[tuple]]:
    """(time, remaining records as tuples): two passes over tuples, without a write."""
    left: list[tuple] = []
    with copied(sample) as (directory,):
        log = opened(directory)

        def work() -> None:
            newest = {record.key: record.offset for record in log.records(0)}
            left.extend(
                (record.offset, record.key, record.value, record.timestamp_ms)
                for record in log.records(0)
                if newest[record.key] == record.offset
            )

        spent = took(work)
        log.close()
    return spent, left


def left_by_ours(sample: Sample) -> list[tuple]:
    with copied(sample) as (directory,):
        log = opened(directory)
        clean(log)
        left = [(record.offset, record.key, record.value, record.timestamp_ms) for record in log.records(0)]
        log.close()
    return left


def side_by_side(sample: Sample) -> float:
    """Speed of two logs cleaned by two threads, relative to one after the other."""
    with copied(sample, copies=4) as directories:
        logs = [opened(each) for each in directories]
        alone = took(lambda: [clean(log) for log in logs[:2]])
        workers = [threading.Thread(target=clean, args=(log,)) for log in logs[2:]]
        together = took(lambda: ([worker.start() for worker in workers], [worker.join() for worker in workers]))
        for log in logs:
            log.close()
    return alone.wall_seconds / together.wall_seconds


def row(sample: Sample, kafka: KafkasCleaner | None, rounds: int) -> str:
    ours, copies, theirs = [], [], []
    cleaned(sample), copy(sample)  # the first runs warm the caches
    for _ in range(WARM_UPS if kafka else 0):
        kafka.clean(sample)
    plain, left = by_dictionary(sample)
    assert left == left_by_ours(sample)
    for _ in range(rounds):
        copies.append(copy(sample))
        ours.append(cleaned(sample))
        if kafka:
            spent, count = kafka.clean(sample)
            assert count == len(left)
            theirs.append(spent)
    pairs = sorted(side_by_side(sample) for _ in range(rounds))
    mine, against = best(ours), ratios(copies, ours)
    told = f"{ratios(theirs, ours)[0]:.1f} x ({ratios(theirs, ours)[1]:.1f})" if kafka else "-"
    return (
        f"| {sample.kind.name}, {len(left) / sample.records:.0%} left "
        f"| {mine.wall_seconds:.3f} ({mine.processor_seconds:.3f}) s, "
        f"{sample.size_bytes / mine.wall_seconds / 1e9:.2f} ({sample.size_bytes / mine[1] / 1e9:.2f}) GB/s "
        f"| {against.wall_seconds:.2f} ({against.processor_seconds:.2f}) | {sample.kind.goal} | {told} "
        f"| {plain.wall_seconds / mine.wall_seconds:.0f} x ({plain[1] / mine[1]:.0f}) "
        f"| {pairs[len(pairs) // 2]:.2f} (best {pairs[-1]:.2f}) |"
    )


def against_copies(rounds: int) -> None:
    print("| | ours, s | raw copy, s | x raw copy | goal |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as root:
        for kind in KINDS:
            sample = made(kind, root)
            runs = [(copy(sample), cleaned(sample)) for _ in range(rounds + 1)][1:]
            copies, ours = (list(column) for column in zip(*runs, strict=True))
            told = " | ".join(
                f"{wall:.3f} ({cpu:.3f})" for wall, cpu in (best(ours), best(copies), ratios(copies, ours))
            )
            print(f"| {kind.name} | {told} | {kind.goal} |", flush=True)


def main() -> None:
    words = sys.argv[1:]
    rounds = next((int(word) for word in words if word.isdigit()), ROUNDS)
    print(f"kernels: {kernels.implementation()}; wall (processor); best of {rounds}")
    if "--copies" in words:
        against_copies(rounds)
        return
    try:
        kafka = KafkasCleaner()
    except KafkaMissing as error:
        kafka = None
        print(error)
    print("| | ours | x raw copy | goal | x Kafka's cleaner | x a dictionary | two threads |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as root:
        for kind in KINDS:
            print(row(made(kind, root), kafka, rounds), flush=True)
    if kafka:
        kafka.close()


if __name__ == "__main__":
    main()
