"""Logs for the benchmarks of the cleaner, and their timing.

Each log is one closed segment of 16 KB batches with keys of 20 bytes, made once for a run. Every measurement cleans a
copy of its files, and the raw copy reads the same segment. Values have 100 bytes (S) or 1000 bytes (L). A key has ten
records, or nearly nine of ten records survive.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from local.cleaner import cleaner
from local.cleaner.cleaner_history import CleaningFigures
from local.format.record import Record
from local.log import Log
from local.names import LOG, TopicPartition, segment_file
from local.settings import LogSettings
from local.storage import DiskStorage

NAME = TopicPartition("t", 0)
FILE_BYTES = 64 << 20
NOW = 1_700_000_000_000
SEGMENT_BYTES = 1 << 30
LIMITS = LogSettings(segment_bytes=SEGMENT_BYTES, batch_bytes=16 << 10, is_compacted=True)


class Took(NamedTuple):
    wall_seconds: float
    processor_seconds: float


@dataclass(frozen=True)
class Kind:
    name: str
    value_bytes: int
    survivors: float
    goal: float  # multiple of the speed of the raw copy


KINDS = (
    Kind("100-byte values, ten records a key", 100, 0.1, 0.7),
    Kind("1 KB values, ten records a key", 1000, 0.1, 1.6),
    Kind("100-byte values, 88 % survive", 100, 0.88, 0.4),
    Kind("1 KB values, 88 % survive", 1000, 0.88, 0.7),
)


@dataclass(frozen=True)
class Sample:
    """The files of a closed log. `next_offset` is the end of its only closed segment."""

    kind: Kind
    directory: str
    next_offset: int
    records: int

    @property
    def segment(self) -> str:
        return os.path.join(self.directory, segment_file(0, LOG))

    @property
    def size_bytes(self) -> int:
        return os.path.getsize(self.segment)


def took(work: Callable[[], object]) -> Took:
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return Took(time.perf_counter() - wall, time.process_time() - processor)


def best(runs: list[Took]) -> Took:
    return Took(*(min(column) for column in zip(*runs, strict=True)))


def ratios(reference: list[Took], subject: list[Took]) -> Took:
    """Speed of the subject relative to the reference, best to best, because disturbances only slow a run down."""
    one, other = best(reference), best(subject)
    return Took(one.wall_seconds / other.wall_seconds, one.processor_seconds / other.processor_seconds)


def made(kind: Kind, root: str) -> Sample:
    directory = os.path.join(root, f"{kind.value_bytes}-{kind.survivors}", "t-0")
    log = Log.open(DiskStorage(), directory, NAME, LIMITS, now_ms=0)
    draw = random.Random(5)
    count = FILE_BYTES // (kind.value_bytes + 35)
    keys = max(1, round(count * 0.1)) if kind.survivors < 0.5 else None
    for start in range(0, count, 10_000):
        records = []
        for at in range(start, min(count, start + 10_000)):
            key = draw.randrange(keys) if keys else (at if draw.random() < kind.survivors else max(0, at - 5))
            records.append(Record(b"key-%016d" % key, draw.randbytes(kind.value_bytes), NOW + at))
        log.append(records, now_ms=NOW)
    log.roll(now_ms=NOW)
    sample = Sample(kind, directory, log.next_offset, count)
    log.close()
    return sample


@contextmanager
def copied(sample: Sample, copies: int = 1) -> Iterator[list[str]]:
    """Directories with the files of a sample, on the disk."""
    # Kafka may be deleting files at the same time
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        made = [os.path.join(root, str(at), "t-0") for at in range(copies)]
        for each in made:
            shutil.copytree(sample.directory, each)
        os.sync()
        yield made


def opened(directory: str) -> Log:
    log = Log.open(DiskStorage(), directory, NAME, LIMITS, now_ms=0, was_clean=True)
    log.cleaner_offset = 0
    return log


def clean(log: Log) -> CleaningFigures:
    """Both passes, with every checksum checked and the new files synced and swapped in."""
    result = cleaner.clean(log, clean_from=0, now_ms=NOW, tombstones_below=None)
    assert result is not None
    return result


def cleaned(sample: Sample) -> Took:
    with copied(sample) as (directory,):
        log = opened(directory)
        spent = took(lambda: clean(log))
        log.close()
    return spent


def copy(sample: Sample) -> Took:
    """The raw copy: read and write of the segment, a mebibyte at a time, and a sync."""
    with tempfile.TemporaryDirectory() as root:

        def work() -> None:
            target = os.path.join(root, "copy")
            with open(sample.segment, "rb", buffering=0) as reader, open(target, "wb", buffering=0) as writer:
                while part := reader.read(1 << 20):
                    writer.write(part)
                os.fsync(writer.fileno())

        return took(work)
