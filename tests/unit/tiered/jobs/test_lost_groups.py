"""Jobs whose segments expire or are replaced by other jobs: commits, remaining work and messages."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from bucket_samples import NOW_MS
from bucket_truth import assert_sound
from disk_model import ModelDisk
from test_compaction_rounds import KEYS, NEWEST, ROWS, SETTINGS, Topic

from local.cleaner.offset_map import Buffer
from remote.manifest import commit_protocol
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import expire_segments, remove_pending_deletes
from remote.manifest.page_out import PageRule
from remote.segment_entry import SegmentEntry
from tiered.cli.main import invoke
from tiered.jobs import bucket_compaction, rewriting
from tiered.jobs.bucket_compaction import CompactionOutcome, CompactionPlan, GroupResult, commit_compaction
from tiered.jobs.compaction_passes import GroupWork, newest_by_group
from tiered.jobs.rewriting import commit_groups, plan_merge, rewrite_group, run_rewrite

GROUP = 4  # segments per group


class Job:
    """A compaction split into its steps, so that other processes can act between them."""

    def __init__(self, topic: Topic) -> None:
        self.topic, self.disk = topic, ModelDisk()
        self.disk.make_directory("./job")
        sizes = [entry.size_bytes for entry in topic.manifest().segments]
        size = max(sum(sizes[at : at + GROUP]) for at in range(0, ROWS, GROUP))
        self.plan: CompactionPlan = topic.plan(job_id="j", group_bytes=size)
        assert {len(group.entries) for group in self.plan.groups} == {GROUP}
        self.newest = newest_by_group(self.plan, (run for work in self.works() for run in work.newest_keys(Buffer())))

    @property
    def groups(self) -> tuple[bucket_compaction.RowGroup, ...]:
        return self.plan.groups

    def works(self) -> list[GroupWork]:
        """Each attempt reads the bucket again, as a task does."""
        store, plan, disk = self.topic.store, self.plan, self.disk
        return [GroupWork(store, plan, each, storage=disk, directory="./job") for each in self.groups]

    def rewritten(self) -> list[GroupResult]:
        return [work.rewrite(self.newest[group.number]) for work, group in zip(self.works(), self.groups, strict=True)]

    def commit(self, results: list[GroupResult]) -> CompactionOutcome:
        return commit_compaction(self.topic.store, self.plan, results, now_ms=NOW_MS)


def expire(topic: Topic, count: int, *, deletes: bool = False) -> None:
    """Expires the oldest `count` segments. With `deletes`, their objects are deleted too."""
    log = MetadataLog(topic.store, topic.name.prefix)
    entries = log.join().segments[:count]
    start = entries[-1].next_offset
    manifest = log.commit(
        expire_segments([entry.ulid for entry in entries], now_ms=NOW_MS, log_start_offset=start), NOW_MS
    )
    if deletes:
        topic.store.delete([topic.name.prefix + each.key for each in manifest.pending_deletes])
        log.commit(remove_pending_deletes([each.key for each in manifest.pending_deletes]), NOW_MS)


def merge_first_group(topic: Topic) -> None:
    """Merges the segments of the first group, as another job would."""
    size = sum(entry.size_bytes for entry in topic.manifest().segments[:GROUP])
    plan = plan_merge(topic.store, topic.name, now_ms=NOW_MS, target_bytes=size)
    done = [rewrite_group(plan, plan.groups[0], topic.store)]
    assert commit_groups(topic.store, plan, done, turn=1, now_ms=NOW_MS).rows_after == 1


def pending_deletes(topic: Topic) -> set[str]:
    return {each.key for each in topic.manifest().pending_deletes}


@pytest.mark.parametrize("count", range(1, ROWS + 1))
@pytest.mark.parametrize("when", ["before the rewriting", "with its objects", "before the commit"])
def test_compaction_commits_the_entries_that_have_not_expired(count: int, when: str) -> None:
    topic = Topic()
    job = Job(topic)
    if when != "before the commit":
        expire(topic, count, deletes=when == "with its objects")
    results = job.rewritten()
    if when == "before the commit":
        expire(topic, count)
    outcome = job.commit(results)
    assert (outcome.given_up, outcome.was_done) == (0, False)
    manifest = topic.manifest()
    start = count * 20
    assert manifest.log_start_offset == start
    left = [record for record in NEWEST if record[0] >= start]
    assert topic.records() == left
    assert {entry.cleaned_through for entry in manifest.segments} <= {ROWS * 20}
    assert (count == ROWS) == (not manifest.segments)
    assert job.commit(results).given_up == 0, "the repeated commit after a lost reply must report no lost group"
    assert topic.records() == left
    assert_sound(topic.store)


def test_both_compaction_passes_skip_entries_whose_objects_were_deleted() -> None:
    topic = Topic()
    plan = topic.plan(job_id="j")
    expire(topic, 3, deletes=True)
    disk = ModelDisk()
    disk.make_directory("./job")
    (work,) = [GroupWork(topic.store, plan, each, storage=disk, directory="./job") for each in plan.groups]
    newest = newest_by_group(plan, work.newest_keys(Buffer()))
    outcome = commit_compaction(topic.store, plan, [work.rewrite(newest[0])], now_ms=NOW_MS)
    assert (outcome.given_up, outcome.rows_before) == (0, ROWS - 3)
    assert topic.records() == NEWEST


def test_compaction_of_expired_entries_never_lowers_the_log_start_offset() -> None:
    topic = Topic()
    job = Job(topic)
    results = job.rewritten()
    expire(topic, GROUP + 1)
    job.commit(results)
    first = topic.manifest().segments[0]
    assert first.base_offset < topic.manifest().log_start_offset < first.next_offset
    assert [offset for offset, _ in topic.records()] == [offset for offset, _ in NEWEST]


def test_compaction_reports_a_replaced_group_and_stays_due() -> None:
    topic = Topic()
    job = Job(topic)
    results = job.rewritten()
    merge_first_group(topic)
    before = len(topic.records())
    outcome = job.commit(results)
    assert outcome.given_up == 1
    assert not outcome.was_done
    assert outcome.records_before == (ROWS - GROUP) * 20
    assert before - len(topic.records()) == outcome.records_before - outcome.records_after
    assert [note.job_id for note in topic.manifest().jobs if note.job_id == "j"] == []
    made = [entry for each in results[0].replaced for entry in each.entries]
    assert {entry.data_key for entry in made} <= pending_deletes(topic)
    again = topic.compact(job_id="j")
    assert (again.was_done, again.given_up) == (False, 0)
    assert topic.records() == NEWEST
    assert topic.compact(job_id="j").was_done
    assert_sound(topic.store)


@pytest.mark.parametrize("expired", [0, 1, GROUP])
def test_compaction_refuses_a_group_whose_task_found_other_entries_than_the_plan(expired: int) -> None:
    """Tasks read the newest manifest. The first group is replaced after the plan; entries of it, or more, expire."""
    topic = Topic()
    job = Job(topic)
    if expired == 1:
        expire(topic, 1)
        entries = topic.manifest().segments[: GROUP - 1]
        plan = plan_merge(topic.store, topic.name, now_ms=NOW_MS, target_bytes=sum(each.size_bytes for each in entries))
        done = [rewrite_group(plan, plan.groups[0], topic.store)]
        assert commit_groups(topic.store, plan, done, turn=1, now_ms=NOW_MS).rows_after == 1
    else:
        merge_first_group(topic)
    if expired == GROUP:
        expire(topic, 1)
    results = job.rewritten()
    start, before = topic.manifest().log_start_offset, set(pending_deletes(topic))
    outcome = job.commit(results)
    assert (outcome.given_up, outcome.was_done) == (int(expired < GROUP), False)
    assert outcome.rows_before == ROWS - GROUP
    made = {entry.data_key for each in results[0].replaced for entry in each.entries}
    assert bool(made) == (expired < GROUP)
    assert made <= pending_deletes(topic) - before
    assert topic.records()[-KEYS:] == NEWEST
    again = topic.compact(job_id="j")
    assert (again.was_done, again.given_up) == (expired == GROUP, 0)
    assert topic.records() == [record for record in NEWEST if record[0] >= start]
    assert_sound(topic.store)


def test_compaction_task_that_knows_only_offsets_finds_the_planned_entries_in_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = PageRule(manifest_bytes_max=1, page_rows_max=40, page_rows_min=10, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    topic = Topic(150)
    assert len(topic.manifest().pages) > 1
    job = Job.__new__(Job)
    job.topic, job.disk = topic, ModelDisk()
    job.disk.make_directory("./job")
    job.plan = topic.plan(job_id="j", group_bytes=8_000)
    groups = [replace(group, entries=()) for group in job.groups]
    common = {"storage": job.disk, "directory": "./job"}
    stripped = replace(job.plan, groups=())
    works = [GroupWork(topic.store, stripped, each, **common) for each in groups]  # type: ignore[arg-type]
    newest = newest_by_group(job.plan, (run for work in works for run in work.newest_keys(Buffer())))
    outcome = job.commit([work.rewrite(newest[each.number]) for work, each in zip(works, groups, strict=True)])
    assert (outcome.given_up, outcome.rows_before, len(groups) > 5) == (0, 150, True)
    assert topic.records() == [(at, b"v%d" % at) for at in range(150 * 20 - KEYS, 150 * 20)]
    assert_sound(topic.store)


def test_compaction_stays_due_when_a_vouched_segment_was_replaced() -> None:
    topic = Topic()
    topic.compact()
    fresh = Job.__new__(Job)
    fresh.topic, fresh.disk = topic, ModelDisk()
    fresh.disk.make_directory("./job")
    fresh.plan = topic.plan(job_id="j")
    (entry,) = topic.manifest().segments
    result = GroupResult(number=0, vouched=(entry.ulid,))
    _replace_by_a_copy(topic, entry)
    assert fresh.commit([result]).given_up == 1
    assert "j" not in {note.job_id for note in topic.manifest().jobs}


def _replace_by_a_copy(topic: Topic, entry: SegmentEntry) -> None:
    plan = rewriting.plan_recode(topic.store, topic.name, now_ms=NOW_MS, storage_class="STANDARD_IA")
    assert [group.entries for group in plan.groups] == [(entry,)]
    assert run_rewrite(topic.store, plan, now_ms=lambda: NOW_MS).rows_after == 1


def test_compaction_stays_due_without_the_result_of_a_group() -> None:
    topic = Topic()
    job = Job(topic)
    outcome = job.commit(job.rewritten()[1:])
    assert outcome.given_up == 1
    assert "j" not in {note.job_id for note in topic.manifest().jobs}
    topic.compact(job_id="j")
    assert topic.records() == NEWEST


def test_compaction_in_several_passes_stops_at_a_lost_group_and_repeats_the_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = Topic()
    commits = []

    def commit(*more: object, **given: object) -> CompactionOutcome:
        if not commits:
            merge_first_group(topic)
        commits.append(commit_compaction(*more, **given))  # type: ignore[arg-type]
        return commits[-1]

    monkeypatch.setattr(bucket_compaction, "commit_compaction", commit)
    outcome = topic.compact(job_id="j", rows_max=8)
    assert (outcome.given_up > 0, len(commits)) == (True, 1)
    assert topic.compact(job_id="j", rows_max=8).given_up == 0
    assert topic.records() == NEWEST


def test_merge_commits_the_entries_that_have_not_expired() -> None:
    for count in range(1, ROWS):
        topic = Topic()
        plan = plan_merge(topic.store, topic.name, now_ms=NOW_MS)
        done = [rewrite_group(plan, group, topic.store) for group in plan.groups]
        expire(topic, count)
        before = topic.records()
        outcome = commit_groups(topic.store, plan, done, turn=1, now_ms=NOW_MS)
        assert (outcome.given_up, outcome.expired, outcome.rows_after) == (0, 0, 1)
        assert topic.records() == before
        assert len(topic.manifest().segments) == 1
        assert_sound(topic.store)


def test_merge_whose_entries_all_expired_is_not_due_any_more() -> None:
    topic = Topic()
    plan = plan_merge(topic.store, topic.name, now_ms=NOW_MS)
    done = [rewrite_group(plan, group, topic.store) for group in plan.groups]
    expire(topic, ROWS)
    outcome = commit_groups(topic.store, plan, done, turn=1, now_ms=NOW_MS)
    assert (outcome.given_up, outcome.expired, outcome.rows_after) == (0, 1, 0)
    assert topic.manifest().segments == ()


def test_merge_figures_count_only_committed_groups() -> None:
    topic = Topic()
    plan = plan_merge(topic.store, topic.name, now_ms=NOW_MS)
    done = [rewrite_group(plan, group, topic.store) for group in plan.groups]
    merge_first_group(topic)
    outcome = commit_groups(topic.store, plan, done, turn=1, now_ms=NOW_MS)
    assert outcome.given_up == 1
    assert (outcome.rows_before, outcome.stored_before, outcome.stored_after) == (0, 0, 0)


def test_entries_do_not_overlap_when_a_merge_is_committed_after_an_expiry() -> None:
    topic = Topic()
    plan = plan_merge(topic.store, topic.name, now_ms=NOW_MS)
    done = [rewrite_group(plan, group, topic.store) for group in plan.groups]
    expire(topic, 2)
    commit_groups(topic.store, plan, done, turn=1, now_ms=NOW_MS)
    entries = MetadataLog(topic.store, topic.name.prefix).refresh().segments
    assert all(one.next_offset <= other.base_offset for one, other in pairwise(entries))


# --- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiered.toml").write_text(
        f'[local]\ndir = "data"\n[remote]\nurl = "file://{tmp_path}/bucket"\n'
        '[defaults]\n"segment.bytes" = "4KiB"\n"append.batch.bytes" = "512"\n"remote.storage.enable" = "true"\n'
    )
    (tmp_path / "bucket").mkdir()
    (tmp_path / "lines").write_text("".join(f"key{at % 20}:value {at}\n" for at in range(2000)))
    words = ["-C", str(tmp_path)]
    assert invoke([*words, "topic", "create", "t", "-p", "1"]) == 0
    assert invoke([*words, "append", "t", "lines", "-K", ":"]) == 0
    assert invoke([*words, "run", "--once"]) == 0
    capfd.readouterr()
    return words


def _merge_at_commit(monkeypatch: pytest.MonkeyPatch, module: object, name: str, node: list[str]) -> None:
    """Another job replaces all segments right before the first commit of `module.name`."""
    real, begun = getattr(module, name), []

    def commit(store: object, plan: object, *more: object, **given: object) -> object:
        if not begun:
            begun.append(True)
            other = plan_merge(store, plan.name, now_ms=NOW_MS, target_bytes=1 << 30)  # type: ignore[arg-type, attr-defined]
            run_rewrite(store, other, now_ms=lambda: NOW_MS)  # type: ignore[arg-type]
        return real(store, plan, *more, **given)

    monkeypatch.setattr(module, name, commit)


def test_compact_of_replaced_segments_exits_5_and_succeeds_when_resumed(node, monkeypatch, capfd) -> None:
    node = [*node, "-X", "cleanup.policy=compact"]
    _merge_at_commit(monkeypatch, bucket_compaction, "commit_compaction", node)
    assert invoke([*node, "compact", "t", "--bucket", "--resume", "nightly", "-o", "json"]) == 5
    told = capfd.readouterr()
    (entry,) = json.loads(told.out)["partitions"]
    assert (entry["given_up"], entry["is_done"]) == (1, False)
    assert (entry["records_before"], entry["records_after"], entry["segments_before"]) == (0, 0, 0)
    assert "another writer or job replaced" in told.err
    assert "--resume nightly" in told.err
    assert invoke([*node, "compact", "t", "--bucket", "--resume", "nightly", "-o", "json"]) == 0
    (entry,) = json.loads(capfd.readouterr().out)["partitions"]
    assert (entry["was_done"], entry["is_done"], entry["records_after"]) == (False, True, 20)


def test_rewrite_of_replaced_segments_warns_and_exits_5(node, monkeypatch, capfd) -> None:
    _merge_at_commit(monkeypatch, rewriting, "commit_groups", node)
    assert invoke([*node, "rewrite", "recode", "t", "--codec", "zstd", "--yes", "-o", "json"]) == 5
    told = capfd.readouterr()
    (entry,) = json.loads(told.out)["partitions"]
    assert entry["given_up"] == entry["groups"] > 1
    assert (entry["rows_before"], entry["rows_after"]) == (0, 0)
    assert "run the same command again" in told.err


def test_rewrite_without_room_for_pending_deletes_warns_and_exits_3(node, monkeypatch, capfd) -> None:
    monkeypatch.setattr(rewriting, "UNLINKED_MAX", 0)
    assert invoke([*node, "rewrite", "recode", "t", "--codec", "zstd", "--yes", "-o", "json"]) == 3
    told = capfd.readouterr()
    (entry,) = json.loads(told.out)["partitions"]
    assert (entry["is_complete"], entry["groups"]) == (False, 0)
    assert "after the grace period" in told.err


def test_pipeline_of_replaced_segments_stays_due_and_exits_3(node, monkeypatch, capfd) -> None:
    _merge_at_commit(monkeypatch, rewriting, "commit_groups", node)
    words = [*node, "pipeline", "run", "--spark", "none", "--yes", "--resume", "night", "-o", "json"]
    assert invoke(words) == 3
    told = capfd.readouterr()
    (unit,) = [each for each in json.loads(told.out)["units"] if each["stage"] == "merge"]
    assert unit["state"] == "due"
    assert "not merged" in unit["why"]
    assert "resume with: tiered pipeline run" in told.err
    assert invoke(words) == 0, "the repeated job must do the remaining work"


def test_pipeline_plan_gives_a_reason_for_every_unit(node, monkeypatch, capfd) -> None:
    more = ["-X", "retention.ms=1", "-X", "cleanup.policy=delete"]
    assert invoke([*node, *more, "pipeline", "plan", "-o", "json"]) == 0
    units = json.loads(capfd.readouterr().out)["units"]
    assert {unit["stage"] for unit in units} == {"retention", "merge"}
    assert all(unit["why"] for unit in units)


def test_samples_have_the_sizes_that_the_tests_assume() -> None:
    topic = Topic()
    assert len(topic.manifest().segments) == ROWS == 3 * GROUP
    assert len(NEWEST) == KEYS
    assert SETTINGS["cleanup.policy"] == "compact"
