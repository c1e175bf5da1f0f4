"""Plans to rewrite a bucket and their results: the same bytes and offsets, in the requested encoding."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

import pytest
from care_world import KEYS, MODES, NOW, CareWorld, batches, named, small_chunks
from remote_samples import entry
from rewrite_flows import records, small_segments

from local.errors import AccessDenied, Corrupt, Fenced, InvalidRequest, NotFound
from local.index import offset_index
from local.records.batch import encode_batch
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import add_segments, expire_segments
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import KeyRing
from remote.segments.stored_segment import CHUNK_BYTES, SEALED_CHUNK_BYTES
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore
from tiered.jobs.joined_segments import check_same_bytes
from tiered.jobs.rewriting import (
    RewritePlan,
    commit_groups,
    cost_of,
    plan_merge,
    plan_recode,
    rewrite_group,
    run_rewrite,
    small_runs,
)


@pytest.fixture(autouse=True)
def _several_chunks() -> Iterator[None]:
    with small_chunks():
        yield


def _merge_plan(world: CareWorld, target_bytes: int = 10_000) -> RewritePlan:
    return plan_merge(world.store, named("t"), now_ms=NOW, target_bytes=target_bytes)


def _manifest(world: CareWorld) -> Manifest:
    return MetadataLog(world.store, named("t").prefix).refresh()


def _run(world: CareWorld, plan: RewritePlan, **more: object):
    return run_rewrite(world.store, plan, now_ms=lambda: NOW, keys=KEYS, **more)  # type: ignore[arg-type]


# --- choice of entries -----------------------------------------------------------------------------------------------


def _entries(*sizes: int, **changes: object) -> list[SegmentEntry]:
    return [
        entry(f"U{number}", 10 * number, 10 * number + 10, size_bytes=size, **changes)
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        ((), []),
        ((10,), []),
        ((10, 10), [2]),
        ((10, 60, 10), []),
        ((10, 10, 60, 10, 10), [2, 2]),
        ((40, 40, 40, 40), [2, 2]),
        ((49, 49, 2, 1), [3]),
        ((50, 50), []),
    ],
)
def test_adjacent_small_segments_are_merged_up_to_the_target_size(sizes: tuple[int, ...], runs: list[int]) -> None:
    assert [len(run) for run in small_runs(_entries(*sizes), 100)] == runs


@pytest.mark.parametrize(
    "changes",
    [
        {"base_offset": 12},
        {"codec": "zstd"},
        {"key_id": "a", "wrapped_key": "w"},
        {"storage_class": "GLACIER_IR"},
        {"cleaned_through": 5},
        {"next_offset": 2**31 + 30},
    ],
)
def test_segments_with_a_gap_or_other_encoding_or_cleaning_are_not_merged(changes: dict[str, object]) -> None:
    one, other = _entries(10, 10)
    assert len(list(small_runs([one, other], 100))) == 1
    assert list(small_runs([one, replace(other, **changes)], 100)) == []  # type: ignore[arg-type]


# --- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("paged", [False, True])
def test_merge_keeps_all_records_and_builds_every_index(mode: str, paged: bool) -> None:
    world = small_segments(mode, 7, paged=paged)
    before, old = records(world.store), list(_rows_of(world))
    outcome = _run(world, _merge_plan(world))
    assert records(world.store) == before
    merged = list(_rows_of(world))
    assert (outcome.rows_before - outcome.rows_after, outcome.given_up) == (len(old) - len(merged), 0)
    assert len(merged) == 3  # split at an offset gap, and between cleaned and dirty entries
    assert [each.base_offset for each in merged] == [0, 31, 43]
    assert [each.next_offset for each in merged] == [24, 43, 91]
    assert [each.cleaned_through for each in merged] == [5, 7, None]
    assert sum(each.record_count for each in merged) == sum(each.record_count for each in old)
    assert all(each.made_by is None for each in merged)
    remote = RemotePartition(world.store, named("t").prefix, keys=KEYS)
    for each in merged:
        assert [start for _, start in each.epochs] == sorted({start for _, start in each.epochs})
        for _, position in offset_index.entries(bytes(remote.indexes(each).offset), each.base_offset):
            assert position < each.size_bytes
    assert _run(world, _merge_plan(world)).groups == 0


def _rows_of(world: CareWorld):
    log = MetadataLog(world.store, named("t").prefix)
    return log.index(log.refresh()).entries()


def test_merge_of_many_tiny_segments_has_offset_index_entries() -> None:
    world = CareWorld.empty()
    for base in range(0, 400, 10):
        world.add("t", batches(base, (10,))[0], base + 10)
    before = records(world.store)
    _run(world, _merge_plan(world, 1 << 20))
    (merged,) = _rows_of(world)
    remote = RemotePartition(world.store, named("t").prefix)
    entries = offset_index.entries(bytes(remote.indexes(merged).offset), 0)
    assert len(entries) >= merged.size_bytes // 6000
    assert records(world.store) == before


def test_merged_entry_has_the_epochs_of_its_segments() -> None:
    world = small_segments("raw", 6)
    _run(world, _merge_plan(world))
    assert [each.epochs for each in _rows_of(world)] == [((0, 0),), ((0, 31),), ((1, 43),)]


@pytest.mark.parametrize(
    ("mode", "asked", "kept"),
    [
        ("raw", {"codec": "zstd"}, ("zstd", None)),
        ("zstd", {"codec": "none"}, ("none", None)),
        ("raw", {"key_id": "b"}, ("none", "b")),
        ("both", {"key_id": "b"}, ("zstd", "b")),
        ("both", {"decrypts": True}, ("zstd", None)),
        ("both", {"codec": "none", "decrypts": True}, ("none", None)),
    ],
)
def test_recode_changes_only_the_encoding_of_the_entries(
    mode: str, asked: dict[str, object], kept: tuple[str, str | None]
) -> None:
    world = small_segments(mode, 5)
    before, old = records(world.store), list(_rows_of(world))
    outcome = _run(world, plan_recode(world.store, named("t"), now_ms=NOW, **asked))  # type: ignore[arg-type]
    fresh = list(_rows_of(world))
    assert {(each.codec, each.key_id) for each in fresh} == {kept}
    same = ("base_offset", "next_offset", "size_bytes", "record_count", "epochs", "cleaned_through", "content_crc32c",
            "max_timestamp_ms", "min_timestamp_ms", "committed_ms", "made_by")  # fmt: skip
    assert [[getattr(each, name) for name in same] for each in fresh] == [
        [getattr(each, name) for name in same] for each in old
    ]
    assert records(world.store) == before
    assert (outcome.groups, outcome.unchanged) == (5, 0)
    assert plan_recode(world.store, named("t"), now_ms=NOW, **asked).groups == ()  # type: ignore[arg-type]


def test_recode_of_the_storage_class_uploads_to_the_target_store() -> None:
    world = small_segments("raw", 3)
    target = MeteredStore(world.store)
    plan = plan_recode(world.store, named("t"), now_ms=NOW, storage_class="GLACIER_IR")
    _run(world, plan, target=target)
    assert {each.storage_class for each in _rows_of(world)} == {"GLACIER_IR"}
    assert target.counts().puts == 6


def test_recode_uploads_no_segment_that_does_not_get_smaller() -> None:
    import os

    from local.records.batch import encode_batch

    world = CareWorld.empty()
    world.add("t", encode_batch([(None, os.urandom(900), NOW, ())], base_offset=0), 1)
    metered = MeteredStore(world.store)
    plan = plan_recode(metered, named("t"), now_ms=NOW, codec="zstd")
    outcome = run_rewrite(metered, plan, now_ms=lambda: NOW)
    assert (outcome.groups, outcome.unchanged, metered.counts().puts) == (1, 1, 0)


def test_rewrite_refuses_invalid_arguments() -> None:
    world = small_segments("raw", 2)
    with pytest.raises(InvalidRequest, match="cannot rewrite, unknown object encoding"):
        _run(world, plan_recode(world.store, named("t"), now_ms=NOW, codec="lzma"))
    with pytest.raises(InvalidRequest, match="a key and no encryption exclude each other"):
        plan_recode(world.store, named("t"), now_ms=NOW, key_id="a", decrypts=True)
    with pytest.raises(NotFound):
        plan_merge(MemoryStore(), named("t"), now_ms=NOW)


# --- other processes at the same time --------------------------------------------------------------------------------


def test_group_whose_oldest_entry_expired_is_committed_without_it() -> None:
    world = small_segments("raw", 6)
    plan = _merge_plan(world)
    done = [rewrite_group(plan, group, world.store, keys=KEYS) for group in plan.groups]
    gone = plan.groups[0].entries[0]
    world.commit("t", expire_segments([gone.ulid], now_ms=NOW, log_start_offset=gone.next_offset))
    before = records(world.store)
    outcome = commit_groups(world.store, plan, done, turn=1, now_ms=NOW)
    assert (outcome.given_up, outcome.rows_after) == (0, len(plan.groups))
    assert records(world.store) == before
    made = done[0].replacement
    assert made is not None
    first = _manifest(world).segments[0]
    assert (first.data_key, _manifest(world).log_start_offset) == (made.entries[0].data_key, gone.next_offset)


def test_group_with_deleted_objects_is_rewritten_from_the_remaining_entries() -> None:
    world = small_segments("raw", 6)
    plan = _merge_plan(world)
    whole, part = plan.groups
    gone = (*whole.entries, part.entries[0])
    world.commit(
        "t", expire_segments([entry.ulid for entry in gone], now_ms=NOW, log_start_offset=gone[-1].next_offset)
    )
    world.store.delete([named("t").prefix + key for entry in gone for key in (entry.data_key, entry.indexes_key)])
    before = records(world.store)
    outcome = _run(world, plan)
    assert (outcome.groups, outcome.given_up, outcome.expired) == (2, 0, 1)
    assert (outcome.rows_before, outcome.rows_after) == (len(part.entries) - 1, 1)
    assert records(world.store) == before


def test_group_whose_entries_were_all_deleted_is_not_due_any_more() -> None:
    world = small_segments("raw", 6)
    plan = _merge_plan(world)
    gone = plan.groups[0].entries
    world.commit(
        "t", expire_segments([entry.ulid for entry in gone], now_ms=NOW, log_start_offset=gone[-1].next_offset)
    )
    world.store.delete([named("t").prefix + key for entry in gone for key in (entry.data_key, entry.indexes_key)])
    outcome = _run(world, plan)
    assert (outcome.groups, outcome.expired, outcome.given_up) == (len(plan.groups), 1, 0)


def test_group_with_a_lost_object_raises_corrupt() -> None:
    world = small_segments("raw", 6)
    plan = _merge_plan(world)
    world.store.delete([named("t").prefix + plan.groups[0].entries[0].data_key])
    with pytest.raises(Corrupt, match="names it"):
        _run(world, plan)


def test_rewrite_and_commits_of_the_manager_do_not_undo_each_other() -> None:
    world = small_segments("raw", 4)
    plan = _merge_plan(world)
    done = [rewrite_group(plan, group, world.store, keys=KEYS) for group in plan.groups]
    fresh = world.add("t", batches(55, (4,))[0], 59)
    commit_groups(world.store, plan, done, turn=1, now_ms=NOW)
    world.commit("t", add_segments([world.add("t", batches(59, (4,))[0], 63, commit=False)]))
    assert fresh.ulid in {each.ulid for each in _rows_of(world)}
    assert [record[0] for record in records(world.store)][-8:] == [*range(55, 63)]
    assert len(list(_rows_of(world))) == 4  # the merged segments before and after the gap, and two new segments


def test_rewrite_plan_of_an_older_epoch_is_fenced() -> None:
    world = small_segments("raw", 4)
    plan = _merge_plan(world)
    done = [rewrite_group(plan, group, world.store, keys=KEYS) for group in plan.groups]
    world.logs.clear()
    world.writer("t")
    before = _manifest(world)
    with pytest.raises(Fenced):
        commit_groups(world.store, plan, done, turn=1, now_ms=NOW)
    assert _manifest(world) == before


def test_repeated_commit_with_the_same_turn_changes_nothing() -> None:
    world = small_segments("raw", 4)
    plan = _merge_plan(world)
    done = [rewrite_group(plan, group, world.store, keys=KEYS) for group in plan.groups]
    commit_groups(world.store, plan, done, turn=1, now_ms=NOW)
    after = _manifest(world)
    commit_groups(world.store, plan, done, turn=1, now_ms=NOW)
    assert _manifest(world) == after


def test_cancelled_rewrite_commits_finished_groups_and_the_rest_is_planned_again() -> None:
    world = small_segments("raw", 6)
    before = records(world.store)
    plan = plan_recode(world.store, named("t"), now_ms=NOW, codec="zstd")
    stops = iter([False, False, True])
    outcome = _run(world, plan, should_stop=lambda: next(stops), groups_a_manifest=4)
    assert (outcome.groups, outcome.is_complete) == (2, False)
    assert [each.codec for each in _rows_of(world)] == ["zstd"] * 2 + ["none"] * 4
    again = plan_recode(world.store, named("t"), now_ms=NOW, codec="zstd")
    assert len(again.groups) == 4
    assert _run(world, again).is_complete
    assert records(world.store) == before


# --- refused ---------------------------------------------------------------------------------------------------------


def test_rewrite_of_a_damaged_segment_raises_corrupt_and_commits_the_other_groups() -> None:
    world = small_segments("raw", 6)
    first = next(iter(_rows_of(world)))
    key = named("t").prefix + first.data_key
    body = bytearray(world.store.get(key))
    body[100] ^= 1
    world.store.put(key, bytes(body))
    before, plan = _manifest(world).segments, _merge_plan(world)
    damaged, other = plan.groups
    with pytest.raises(Corrupt):
        _run(world, plan)
    after = _manifest(world).segments
    assert [each.ulid for each in damaged.entries] == [each.ulid for each in after[: len(damaged.entries)]]
    assert len(after) == len(before) - len(other.entries) + 1
    assert not {each.ulid for each in other.entries} & {each.ulid for each in after}


def test_rewrite_of_an_entry_that_contradicts_its_bytes_raises_corrupt() -> None:
    world = small_segments("raw", 4)
    plan = _merge_plan(world)
    wrong = replace(plan.groups[0], entries=tuple(replace(each, record_count=3) for each in plan.groups[0].entries))
    with pytest.raises(Corrupt, match="its bytes contradict its segment entry"):
        rewrite_group(plan, wrong, world.store, keys=KEYS)


def test_rewritten_segment_with_other_bytes_raises_corrupt() -> None:
    one, other = _entries(10, 20)
    with pytest.raises(Corrupt, match="the bytes of the copy differ"):
        check_same_bytes(replace(one, data_crc32c=5), [one, other])


def test_recode_with_a_missing_key_is_refused() -> None:
    world = small_segments("raw", 2)
    plan = plan_recode(world.store, named("t"), now_ms=NOW, key_id="b")
    with pytest.raises(AccessDenied):
        run_rewrite(world.store, plan, now_ms=lambda: NOW, keys=KeyRing({}))


# --- plans -----------------------------------------------------------------------------------------------------------


def test_rewrite_plan_can_be_pickled_and_predicts_its_requests_and_bytes() -> None:
    world = small_segments("raw", 6)
    plan = pickle.loads(pickle.dumps(_merge_plan(world)))
    metered = MeteredStore(world.store)
    done = [rewrite_group(plan, group, metered, keys=KEYS) for group in plan.groups]
    told = metered.counts()
    manifests = 1
    assert plan.cost.puts == told.puts + manifests
    assert plan.cost.gets >= told.gets
    assert plan.cost.write_bytes == sum(group.size_bytes for group in plan.groups)
    assert plan.cost.dollars > 0
    assert pickle.loads(pickle.dumps(done)) == done


def test_rewrite_of_a_class_that_bills_reads_costs_more() -> None:
    (one,) = _entries(1 << 30)
    entries = [replace(one, stored_bytes=1 << 30, storage_class=name) for name in (None, "GLACIER_IR")]
    from tiered.jobs.rewriting import EncodingChoice

    standard, archive = (cost_of([each], EncodingChoice()).dollars for each in entries)
    assert archive > standard + 0.02


def test_rewrite_cost_includes_the_early_deletion_fee() -> None:
    from tiered.jobs.rewriting import DAY_MS, EncodingChoice

    (one,) = _entries(1 << 30)
    row_ = replace(one, stored_bytes=1 << 30, storage_class="GLACIER_IR", committed_ms=NOW)
    young, old = (cost_of([row_], EncodingChoice(), replaced_ms=NOW + days * DAY_MS).dollars for days in (10, 90))
    assert young > old + 0.005


def test_rewrite_stops_when_the_manifest_lists_the_maximum_of_pending_deletes(monkeypatch) -> None:
    from tiered.jobs import rewriting

    monkeypatch.setattr(rewriting, "UNLINKED_MAX", 4)
    world = small_segments("raw", 6)
    before = records(world.store)
    outcome = _run(world, plan_recode(world.store, named("t"), now_ms=NOW, codec="zstd"), groups_a_manifest=1)
    assert (outcome.groups, outcome.is_complete) == (2, False)
    assert len(_manifest(world).pending_deletes) == 4
    assert records(world.store) == before


@pytest.mark.parametrize("wanted", [{"codec": "zstd"}, {"key_id": "b"}])
def test_recoded_segment_has_the_larger_chunks_of_its_object_encoding(monkeypatch, wanted) -> None:
    monkeypatch.setattr("remote.upload.segment_upload.SEALED_CHUNK_BYTES", SEALED_CHUNK_BYTES)
    world = CareWorld.empty()
    data = [encode_batch([(b"k", bytes(CHUNK_BYTES // 2), NOW, ())], base_offset=offset) for offset in range(4)]
    world.add("t", b"".join(data), 4)
    _run(world, plan_recode(world.store, named("t"), now_ms=NOW, **wanted))
    (entry,) = _manifest(world).segments
    remote = RemotePartition(world.store, named("t").prefix, ChunkCache(), keys=KEYS)
    assert remote.indexes(entry).chunks.lengths == (entry.size_bytes,)
