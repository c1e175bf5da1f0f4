"""Compaction of more entries than one plan takes: several passes, each with its own manifest."""

from __future__ import annotations

import pytest
from bucket_samples import NOW_MS, SampleBucket
from bucket_truth import assert_sound
from disk_model import ModelDisk

from local.cleaner.offset_map import Buffer
from local.records.batch import encode_batch
from remote.keys import PAGES
from remote.manifest import commit_protocol
from remote.manifest.catalog import RemotePartitionName, list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.page_out import PageRule
from remote.store.memory_store import MemoryStore
from tiered.cli.topics.compact import _compacted_in_bucket
from tiered.jobs.bucket_compaction import (
    CompactionOutcome,
    CompactionPlan,
    commit_compaction,
    compact_partitions,
    plan_compaction,
)
from tiered.jobs.compaction_passes import GroupWork, compact_partition, newest_by_group
from tiered.jobs.job_bucket import OpenBucket
from tiered.jobs.runner import Here
from tiered.read.bucket_reader import RemoteLog

SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "65536"}
ROWS, KEYS = 12, 5


class Topic:
    """Twelve segments, or `rows`, with twenty records each, of five keys."""

    def __init__(self, rows: int = ROWS) -> None:
        self.store = MemoryStore()
        bucket = SampleBucket(self.store)
        for number in range(rows):
            base = number * 20
            records = [(b"k%d" % (at % KEYS), b"v%d" % at, NOW_MS + at, ()) for at in range(base, base + 20)]
            bucket.add("t", 0, [encode_batch(records, base_offset=base)])

    @property
    def name(self) -> RemotePartitionName:
        return list_partitions(self.store)[0]

    def manifest(self) -> Manifest:
        return MetadataLog(self.store, self.name.prefix).refresh(exact=True)

    def plan(self, **more: object) -> CompactionPlan:
        return plan_compaction(self.store, self.name, now_ms=NOW_MS, settings=SETTINGS, **more)  # type: ignore[arg-type]

    def compact(self, **more: object) -> CompactionOutcome:
        disk = ModelDisk()
        disk.make_directory("./job")
        given = {"now_ms": NOW_MS, "settings": SETTINGS, "storage": disk, "directory": "./job", **more}
        return compact_partition(self.store, self.name, **given)  # type: ignore[arg-type]

    def round(self, **more: object) -> CompactionPlan:
        """One pass, committed twice, as if the reply to the first commit was lost."""
        made, disk = self.plan(**more), ModelDisk()
        disk.make_directory("./job")
        works = [GroupWork(self.store, made, each, storage=disk, directory="./job") for each in made.groups]
        newest = newest_by_group(made, (run for work in works for run in work.newest_keys(Buffer())))
        results = [work.rewrite(newest[group.number]) for work, group in zip(works, made.groups, strict=True)]
        assert not commit_compaction(self.store, made, results, now_ms=NOW_MS).was_done
        assert commit_compaction(self.store, made, results, now_ms=NOW_MS).was_done
        return made

    def records(self) -> list[tuple[int, bytes | None]]:
        start = self.manifest().log_start_offset
        with RemoteLog(self.store) as log:
            return [(r.offset, r.value) for r in log.reader().records(self.name.topic_partition, start)]


NEWEST = [(at, b"v%d" % at) for at in range(ROWS * 20 - KEYS, ROWS * 20)]


def test_compaction_plan_takes_a_limited_number_of_entries_and_is_marked_as_cut() -> None:
    topic = Topic()
    entries = topic.manifest().segments
    first = topic.plan(rows_max=2)
    assert first.is_cut
    assert [entry.ulid for group in first.groups for entry in group.entries] == [entry.ulid for entry in entries[:2]]
    assert first.upto_offset == entries[1].next_offset
    rest = topic.plan(start_offset=first.upto_offset)
    assert not rest.is_cut
    assert sum(len(group.entries) for group in rest.groups) == ROWS - 2


def test_compaction_plan_of_many_pages_reads_only_those_of_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = PageRule(manifest_bytes_max=1, page_rows_max=10, page_rows_min=2, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    topic, asked = Topic(160), list[str]()
    pages = topic.manifest().pages
    get = topic.store.get
    monkeypatch.setattr(topic.store, "get", lambda key: asked.append(key) or get(key))
    first = topic.plan(rows_max=20)
    assert (first.is_cut, sum(len(group.entries) for group in first.groups)) == (True, 20)
    needed = [page for page in pages if page.base_offset <= first.upto_offset]  # and one entry more
    assert len([key for key in asked if PAGES in key]) == len(needed) < len(pages) // 4
    done = topic.compact(job_id="j", rows_max=60)
    assert not done.is_cut
    assert topic.records() == [(at, b"v%d" % at) for at in range(160 * 20 - KEYS, 160 * 20)]
    assert_sound(topic.store)


@pytest.mark.parametrize("rows_max", [4, 5, 11])
def test_compaction_job_with_more_entries_than_a_plan_compares_all_of_them(rows_max: int) -> None:
    topic = Topic()
    done = topic.compact(job_id="j", rows_max=rows_max)
    assert (done.is_cut, done.was_done) == (False, False)
    assert topic.records() == NEWEST
    manifest = topic.manifest()
    assert {entry.cleaned_through for entry in manifest.segments} == {ROWS * 20}
    assert topic.compact(job_id="j", rows_max=ROWS).was_done
    assert_sound(topic.store)


def test_repeated_compaction_jobs_with_small_plans_compare_all_entries() -> None:
    topic, jobs = Topic(), 1
    while topic.compact(rows_max=2).is_cut:
        jobs += 1
    assert 1 < jobs < 16
    assert topic.records() == NEWEST
    assert_sound(topic.store)


def test_compaction_job_of_several_passes_has_one_note_and_is_done_once() -> None:
    topic = Topic()
    done = topic.compact(job_id="j", rows_max=5)
    assert (done.is_cut, done.was_done, done.upto_offset) == (False, False, ROWS * 20)
    assert done.rows_before > ROWS, "merged entries of the first passes must be compared again"
    assert [(note.job_id, note.turn) for note in topic.manifest().jobs] == [("j", 0)]
    before = topic.manifest()
    assert topic.compact(job_id="j", rows_max=5).was_done
    assert topic.manifest() == before


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_compaction_job_killed_between_passes_resumes_at_the_last_offset(rounds: int) -> None:
    topic, reached = Topic(), 0
    for _ in range(rounds):
        made = topic.round(job_id="j", rows_max=4, group_bytes=1)
        assert (made.start_offset, made.is_cut) == (reached, True)
        reached = made.upto_offset
    assert topic.records()[-KEYS:] == NEWEST
    done = topic.compact(job_id="j", rows_max=ROWS)
    assert topic.records() == NEWEST
    assert not done.was_done
    assert_sound(topic.store)


def test_compaction_without_merges_cleans_each_entry_through_the_end_of_its_pass() -> None:
    topic = Topic()
    done = topic.compact(rows_max=4, group_bytes=1)
    assert (done.is_cut, done.upto_offset) == (True, ROWS * 20)
    assert [entry.cleaned_through for entry in topic.manifest().segments] == [80] * 4 + [160] * 4 + [240] * 4
    assert len(topic.records()) == 3 * KEYS
    assert_sound(topic.store)


def test_compaction_stops_when_too_many_pending_deletes_wait() -> None:
    """Otherwise a manifest would list an unlimited number of pending deletes.
    The next job continues after the grace period."""
    topic = Topic()
    done = topic.compact(rows_max=1, group_bytes=1)
    manifest = topic.manifest()
    assert (done.is_cut, len(manifest.pending_deletes)) == (True, 4 * 2)
    assert done.upto_offset == 4 * 20
    assert not topic.compact().is_cut
    assert topic.records() == NEWEST


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_stopped_compaction_job_says_that_rounds_remain_and_continues_under_its_id(rounds: int) -> None:
    """A request from before the job stops it before its first partition."""
    topic, job = Topic(), {"now_ms": NOW_MS, "settings": SETTINGS, "job_id": "j", "rows_max": 4}
    bucket, asked = OpenBucket.of(topic.store), iter([False] * rounds)
    before = topic.manifest()
    done = compact_partitions(Here(), bucket, [topic.name], should_stop=lambda: next(asked, True), **job)  # type: ignore[arg-type]
    assert [(each.is_stopped, each.upto_offset) for each in done] == [(True, rounds * 4 * 20)] * (rounds > 0)
    assert rounds or topic.manifest() == before
    (rest,) = compact_partitions(Here(), bucket, [topic.name], **job)  # type: ignore[arg-type]
    assert not rest.is_stopped
    assert [_compacted_in_bucket(each).is_done for each in (*done, rest)] == [False] * len(done) + [True]
    assert topic.records() == NEWEST
