"""How fast the cleaner is, as ratios to things done in the same run: ``python tests/bench/bench_clean.py [--large]``.

End to end on real files in the page cache: both passes, every CRC checked, the new files written, synced and swapped
in. References: a raw read and write of the same file (with the same sync), and a cleaner of one pass with a plain
dictionary over decoded records. Processor time as well as time on the wall, the former for busy machines. S are values
of about 100 bytes, L of about 1 KB; ten records a key, or nine of ten keys only once (88 % survive). ``--large`` adds
the map alone at 10 million keys. Under a minute without it.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from local import cleaner, kernels
from local.log import Log
from local.names import TopicPartition
from local.record import Record
from local.settings import LogSettings
from local.storage import DiskStorage

NAME = TopicPartition("t", 0)
FILE_BYTES = 64 << 20
ROUNDS = 3
NOW = 1_700_000_000_000


class Took(NamedTuple):
    wall_seconds: float
    processor_seconds: float


def took(work: Callable[[], object]) -> Took:
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return Took(time.perf_counter() - wall, time.process_time() - processor)


def median(runs: list[Took]) -> Took:
    return Took(*(statistics.median(column) for column in zip(*runs, strict=True)))


def filled(root: str, value_bytes: int, survivors: float) -> Log:
    """One sealed segment of FILE_BYTES in batches of 16 KB, keys of 20 bytes."""
    settings = LogSettings(segment_bytes=1 << 30, batch_bytes=16 << 10, is_compacted=True)
    log = Log.open(DiskStorage(), os.path.join(root, "t-0"), NAME, settings, now_ms=0)
    draw = random.Random(5)
    count = FILE_BYTES // (value_bytes + 35)
    keys = max(1, round(count * 0.1)) if survivors < 0.5 else None
    for start in range(0, count, 10_000):
        records = []
        for at in range(start, min(count, start + 10_000)):
            key = draw.randrange(keys) if keys else (at if draw.random() < survivors else max(0, at - 5))
            records.append(Record(b"key-%016d" % key, draw.randbytes(value_bytes), NOW + at))
        log.append(records, now_ms=NOW)
    log.roll(now_ms=NOW)
    log.cleaner_offset = 0
    return log


def cleaned(value_bytes: int, survivors: float, threads: int = 1) -> tuple[Took, int, int, cleaner.CleaningResult]:
    """(time, bytes cleaned, records, result of one) of `threads` logs cleaned side by side."""
    with tempfile.TemporaryDirectory() as root:
        logs = [filled(os.path.join(root, str(at)), value_bytes, survivors) for at in range(threads)]
        done: list[cleaner.CleaningResult] = []

        def one(log: Log) -> None:
            result = cleaner.clean(log, DiskStorage(), clean_from=0, now_ms=NOW, tombstones_below=None)
            assert result is not None
            done.append(result)

        def all_of_them() -> None:
            workers = [threading.Thread(target=one, args=(log,)) for log in logs]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

        spent = took(all_of_them)
        for log in logs:
            log.close()
    return spent, sum(each.bytes_before for each in done), sum(each.records_before for each in done), done[0]


def raw_copy(size_bytes: int) -> Took:
    with tempfile.TemporaryDirectory() as root:
        source, target = os.path.join(root, "a"), os.path.join(root, "b")
        with open(source, "wb") as file:
            file.write(os.urandom(1 << 20) * (size_bytes >> 20))

        def copy() -> None:
            with open(source, "rb", buffering=0) as reader, open(target, "wb", buffering=0) as writer:
                while part := reader.read(1 << 20):
                    writer.write(part)
                os.fsync(writer.fileno())

        return took(copy)


def by_dictionary(value_bytes: int, survivors: float) -> Took:
    """The two passes over record objects; without writing anything."""
    with tempfile.TemporaryDirectory() as root:
        log = filled(root, value_bytes, survivors)

        def clean() -> None:
            newest = {record.key: record.offset for record in log.records(0)}
            sum(1 for record in log.records(0) if newest[record.key] == record.offset)

        spent = took(clean)
        log.close()
    return spent


def large_map(count: int = 10_000_000) -> None:
    slots = count * 10 // 9 + 2
    made = kernels.KeyMap(slots, count, seed=3)
    keys = np.frombuffer(b"".join(b"\x28key-%016d" % at for at in range(count)), np.uint8)
    data = memoryview(keys)
    keep = np.full(count // 8 + 1, 0xFF, np.uint8)
    starts = np.arange(count, dtype=np.int64) * 21 + 1
    lengths, skip = np.full(count, 20, np.int32), np.zeros(count, np.bool_)
    held = made.hold(data)
    spent = took(lambda: made.add(data, starts, lengths, skip, 0, keep, buffer=held))
    print(f"map of {len(made):,} keys: {made.memory_bytes / len(made):.1f} bytes a key", end=", ")
    print(f"{spent.processor_seconds / count * 1e9:.0f} ns an insert")


def main() -> None:
    print(f"kernels: {kernels.implementation()}; figures: wall (processor) seconds and ratios of the same")
    kinds = (("S 10x", 100, 0.1), ("L 10x", 1000, 0.1), ("S 88 %", 100, 0.88), ("L 88 %", 1000, 0.88))
    for name, value_bytes, survivors in kinds:
        runs = [cleaned(value_bytes, survivors) for _ in range(ROUNDS)]
        ours, (_, size, records, result) = median([each[0] for each in runs]), runs[0]
        copy, plain = median([raw_copy(size) for _ in range(ROUNDS)]), by_dictionary(value_bytes, survivors)
        pair = cleaned(value_bytes, survivors, threads=2)[0]
        print(
            f"{name}: {size / ours.wall_seconds / 1e9:.2f} GB/s, {records / ours.wall_seconds / 1e6:.1f} Mrec/s, "
            f"{ours.wall_seconds:.3f} ({ours.processor_seconds:.3f}) s; {result.records_after / records:.0%} survive; "
            f"raw copy / ours {copy.wall_seconds / ours.wall_seconds:.2f} "
            f"({copy.processor_seconds / ours.processor_seconds:.2f}); "
            f"dictionary / ours {plain.wall_seconds / ours.wall_seconds:.0f}; "
            f"two threads {2 * ours.wall_seconds / pair.wall_seconds:.2f} x"
        )
    if "--large" in sys.argv:
        large_map()


if __name__ == "__main__":
    main()
