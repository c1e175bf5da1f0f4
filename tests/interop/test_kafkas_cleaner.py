"""Kafka's cleaner and this project's cleaner on the same files, pass by pass: equal batches and records remain.

The histories are those of the oracle tests: transactions committed, aborted and open, tombstones and horizons, headers,
all codecs, both timestamp types, idempotent producers, messages of formats 0 and 1. The directory is copied before each
pass. At the end one JVM cleans all copies with the clock of the history
(`org.apache.kafka.storage.internals.log.Cleaner`).
"""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cleaner_oracle import Batch, parsed
from old_formats import OldLog, old_log
from test_cleaner_rounds import LIMITS, RETENTION_MS, World, drawn

from local.cleaner import cleaner
from local.index import txn_index
from local.names import LOG
from local.storage import DiskStorage

STORIES = 40
OLD_STORIES = 20  # histories that begin with segments of formats 0 and 1
DRIVER = Path(__file__).with_name("CleanWithKafka.java")
_SECONDS_MAX = 300

pytestmark = [
    pytest.mark.xdist_group("kafkas cleaner"),  # the histories are made once
    pytest.mark.deep("histories compacted by the cleaner of Kafka"),
]


class Case(NamedTuple):
    """One pass: Kafka's copy of the files before it, and the files after this project's pass."""

    name: str
    copy: Path
    job: tuple[object, ...]
    next_offset: int
    segments: list[list[Batch]]
    aborted: list[tuple[int, int, int]]


class Recording(World):
    """A history on a real disk. Each pass that cleans something adds a `Case`."""

    def __init__(self, root: Path, name: str, old: OldLog) -> None:
        self.root, self.name, self.cases = root, name, list[Case]()
        super().__init__(disk=DiskStorage(), directory=str(root / "ours" / "t-0"), old=old)

    def clean(self, tombstones_below: int | None, buffer_bytes: int) -> None:
        self.log.roll(now_ms=self.now_ms)
        dirty_from = self.log.cleaner_offset or 0
        copy = self.root / f"kafka-{len(self.cases)}" / "t-0"
        for segment in self.log.view.segments:
            self.disk.set_modified_ms(segment.path(LOG), segment.modified_ms)  # the clock of the history
        shutil.copytree(self.directory, copy)
        round_: dict[str, Any] = {"now_ms": self.now_ms, "delete_retention_ms": RETENTION_MS}
        done = cleaner.clean(self.log, clean_from=0, tombstones_below=None, **round_)
        self.log.remove_deleted(self.now_ms)
        if done is None:
            shutil.rmtree(copy.parent)
            return
        job = (copy, dirty_from, done.cleaner_offset, self.now_ms, RETENTION_MS, LIMITS.segment_bytes)
        found = files(Path(self.directory))
        name = f"{self.name}, round {len(self.cases)}"
        self.cases.append(Case(name, copy, job, done.cleaner_offset, *found))


def files(directory: Path) -> tuple[list[list[Batch]], list[tuple[int, int, int]]]:
    """(batches by segment, entries of all transaction indexes)."""
    segments = [parsed(memoryview(path.read_bytes())) for path in sorted(directory.glob("*.log"))]
    indexes = [txn_index.entries(path.read_bytes()) for path in sorted(directory.glob("*.txnindex"))]
    return segments, [(e.producer_id, e.first_offset, e.last_offset) for index in indexes for e in index]


@pytest.fixture(scope="session")
def cases(kafka, tmp_path_factory) -> list[Case]:
    root = tmp_path_factory.mktemp("cleaned")
    cases: list[Case] = []
    for seed in range(STORIES + OLD_STORIES):
        old = old_log(random.Random(seed)) if seed >= STORIES else OldLog()
        story = Recording(root / str(seed), f"story {seed}", old)
        story.play(drawn(seed))
        cases += story.cases
    jobs = root / "jobs"
    jobs.write_text("".join("\t".join(map(str, case.job)) + "\n" for case in cases))
    words = [kafka.java, "-cp", kafka.class_path, str(DRIVER), str(jobs)]
    told = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS_MAX, cwd=root)
    assert told.returncode == 0, told.stderr[-3000:]
    nexts = [line.rpartition("\t")[2] for line in told.stdout.splitlines() if "\t" in line]
    assert nexts == [str(case.next_offset) for case in cases]
    return cases


def test_kafkas_cleaner_leaves_the_same_batches_in_every_pass(cases: list[Case]) -> None:
    """There are two differences.

    1. This project keeps the last batch of a segment that would become an empty file, without its records.
    2. A batch converted from a set of an old format keeps the offset range of the set. Kafka's range is that of the
       remaining records.
    """
    assert len(cases) > 2 * STORIES
    for case in cases:
        theirs = [batch for segment in files(case.copy)[0] for batch in segment]
        ours = [batch for segment in case.segments for batch in segment if not _is_alone(segment, theirs)]
        assert narrowed(ours) == narrowed(theirs), case.name


def test_kafkas_cleaner_leaves_the_same_entries_of_aborted_transactions(cases: list[Case]) -> None:
    for case in cases:
        assert case.aborted == files(case.copy)[1], case.name


def test_histories_cover_horizons_markers_and_empty_batches(cases: list[Case]) -> None:
    left = [batch for case in cases for segment in case.segments for batch in segment]
    assert any(batch.horizon_ms is not None and not batch.is_control for batch in left)
    assert any(batch.horizon_ms is not None and batch.is_control for batch in left)
    assert any(not batch.records for batch in left)
    assert any(case.aborted for case in cases)
    assert {batch.attributes & 7 for batch in left} == {0, 1, 2, 3, 4}
    assert any(batch.leader_epoch < 0 and batch.horizon_ms is not None for batch in left)


def narrowed(batches: list[Batch]) -> list[Batch]:
    """Batches converted from an old format, which have no leader epoch, limited to their first and last record."""
    return [
        replace(batch, base_offset=batch.records[0].offset, last_offset=batch.records[-1].offset)
        if batch.leader_epoch < 0 and batch.records
        else batch
        for batch in batches
    ]


def _is_alone(segment: list[Batch], theirs: list[Batch]) -> bool:
    return len(segment) == 1 and not segment[0].records and segment[0] not in theirs
