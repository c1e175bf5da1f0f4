"""Redaction: the records of the given keys leave segments and views, everything else stays where it was."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from care_world import KEYS, MODES, NOW, SMALL_PAGES, CareWorld, all_kinds, batches, named, small_chunks
from checked_bucket import check_bucket, damage
from manager_world import NAME, TIERED, SwitchableStore, World, send, settle
from rewrite_flows import records, small_segments

from local import kernels
from local.errors import Conflict, Corrupt, Fenced, InvalidRequest
from local.format.compression import Codec
from local.index import txn_index
from local.index.txn_index import AbortedTransaction
from local.log.producer_state import ProducerEntry, encode_snapshot
from local.records.batch import encode_batch, encode_marker
from local.storage import DiskStorage
from remote.fetch.range_reader import RemotePartition
from remote.gc.pins import pin_newest
from remote.manifest.catalog import RemotePartitionName, list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import expire_segments
from remote.manifest.view_changes import begin_view
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from remote.store.file_store import FileStore
from remote.store.memory_store import MemoryStore
from tiered.cli.main import invoke
from tiered.jobs.job_bucket import OpenBucket
from tiered.jobs.key_search import KeyDigests, RedactState, Scan, fingerprint, parse_keys, scan_keys, survey
from tiered.jobs.redacting import (
    Redaction,
    ViewUnit,
    commit_view,
    holders_of,
    plan_redaction,
    run_redaction,
    view_builds_of,
)
from tiered.jobs.rewriting import plan_merge, run_rewrite
from tiered.jobs.runner import Here
from tiered.stores.object_encoding import own_settings

ERASED = b"key-3"
COMPACTED = {"cleanup.policy": "compact"}
DIGESTS = KeyDigests.of([ERASED])


@pytest.fixture(autouse=True)
def _several_chunks() -> Iterator[None]:
    with small_chunks():
        yield


def _scans(
    store: ObjectStore,
    keys: KeyDigests = DIGESTS,
    names: Sequence[RemotePartitionName] = (),
    settings: Mapping[str, str] | None = None,
    ring: KeyRing = KEYS,
) -> list[Scan]:
    of_topic = own_settings if settings is None else (lambda topic, own: {**own, **settings})
    surveys = [survey(store, name, of_topic) for name in names or list_partitions(store)]
    return scan_keys(Here(), OpenBucket.of(store, ring), surveys, keys)


def _plans(store: ObjectStore, keys: KeyDigests = DIGESTS) -> list[Redaction]:
    return [plan_redaction(each, now_ms=NOW) for each in _scans(store, keys)]


def _redact(store: ObjectStore, keys: KeyDigests = DIGESTS, plans: Sequence[Redaction] | None = None, **more: object):
    plans = _plans(store, keys) if plans is None else plans
    bucket = OpenBucket.of(store, KEYS)
    return run_redaction(Here(), bucket, plans, keys, now_ms=lambda: NOW, **more)  # type: ignore[arg-type]


def _entries(store: ObjectStore, topic: str = "t") -> list[SegmentEntry]:
    log = MetadataLog(store, named(topic).prefix)
    return list(log.index(log.refresh()).entries())


def _bytes_of(store: ObjectStore, entry: SegmentEntry, topic: str = "t") -> bytes:
    return bytes(RemotePartition(store, named(topic).prefix, keys=KEYS).read(entry, 0, entry.size_bytes))


def _findings(store: ObjectStore, keys: KeyDigests = DIGESTS) -> list[str]:
    return [finding.code for each in _scans(store, keys) for finding in each.findings()]


# --- key files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "form", "keys"),
    [
        (b"a\nb\na\n\nb c \r\n", "text", {b"a", b"b", b"b c "}),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", "text", {b"a", b"\xef\xbb\xbfb"}),
        ("ü\xff".encode(), "text", {"ü\xff".encode()}),
        (b"00ff\n00FF\n61", "hex", {b"\x00\xff", b"a"}),
        (b"AP8=\nYQ==", "base64", {b"\x00\xff", b"a"}),
    ],
)
def test_a_key_file_has_one_key_in_each_line(data: bytes, form: str, keys: set[bytes]) -> None:
    assert parse_keys(data, form, path="keys") == keys


@pytest.mark.parametrize(
    ("data", "form", "said"),
    [
        (b"", "text", "it has no key: file=keys"),
        (b"\n\r\n", "text", "it has no key: file=keys"),
        (b"00\nsecret", "hex", "a line is invalid: file=keys line=2"),
        (b"se-cret", "base64", "a line is invalid: file=keys line=1"),
    ],
)
def test_an_invalid_key_file_is_refused_without_its_content(data: bytes, form: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_keys(data, form, path="keys")
    assert said in str(refused.value)
    assert "cret" not in str(refused.value)


def test_digests_find_exactly_the_records_of_the_keys() -> None:
    data = encode_batch([(key, b"v", NOW, ()) for key in (b"", b"a", None, b"ab", b"b", b"ab", b"x" * 40)])
    columns = kernels.decode_columns(data)
    keys = KeyDigests.of([b"ab", b"", b"x" * 40, b"ba"])
    assert keys.found_in(columns).tolist() == [True, False, False, True, False, True, True]
    assert pickle.loads(pickle.dumps(keys)).found_in(columns).sum() == 4
    assert "ab" not in repr(keys)
    assert not replace(keys, pairs=frozenset()).found_in(columns).any(), "half a digest is no match"


# --- segments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("paged", [False, True])
def test_redaction_erases_the_records_of_a_key_and_nothing_else(mode: str, paged: bool) -> None:
    world = small_segments(mode, 7, paged=paged)
    before, old = records(world.store), _entries(world.store)
    (plan,) = _plans(world.store)
    (outcome,) = _redact(world.store, plans=[plan])
    expected = [each for each in before if each[1] != ERASED]
    assert records(world.store) == expected != before
    new = _entries(world.store)
    same = ("base_offset", "next_offset", "epochs", "cleaned_through", "codec", "key_id", "storage_class")
    assert [[getattr(each, name) for name in same] for each in new] == [
        [getattr(each, name) for name in same] for each in old
    ]
    assert all(each.is_redacted for each in new)
    assert (plan.segments, plan.records) == (7, len(before) - len(expected))
    assert (outcome.rows_before, outcome.rows_after, outcome.is_complete) == (7, 7, True)
    assert plan.rewrite.cost.dollars > 0 < plan.storage_dollars
    assert damage(check_bucket(world.store, keys=KEYS)) == []
    assert _findings(world.store) == []
    (again,) = _plans(world.store)
    assert (again.due, again.records) == ([], 0)


def test_a_batch_without_the_keys_is_copied_byte_for_byte() -> None:
    world = CareWorld.empty()
    parts = [
        encode_batch([(key, b"v", NOW, ())] * 3, base_offset=at) for at, key in ((0, b"a"), (3, ERASED), (6, b"b"))
    ]
    world.add("t", b"".join(parts), 12)
    _redact(world.store)
    (entry,) = _entries(world.store)
    assert _bytes_of(world.store, entry) == parts[0] + parts[2]
    assert entry.offsets == (0, 12)


@pytest.mark.parametrize("codec", list(Codec))
def test_records_in_batches_of_every_codec_are_erased(codec: Codec) -> None:
    world = CareWorld.empty()
    some = [(ERASED if at % 3 else b"other", b"value %d" % at * 20, NOW + at, (("h", b"x"),)) for at in range(30)]
    world.add("t", encode_batch(some, codec=codec), 30)
    before = records(world.store)
    _redact(world.store)
    assert records(world.store) == [each for each in before if each[1] != ERASED]
    (entry,) = _entries(world.store)
    assert kernels.scan_batches(_bytes_of(world.store, entry)).row(0).codec is codec
    assert kernels.scan_batches(_bytes_of(world.store, entry)).row(0).last_offset == 29


def _transactions() -> CareWorld:
    """Two producers: an aborted and a committed transaction, a batch without keys, and a last batch of the key."""
    world = CareWorld.empty()
    fields = {"producer_epoch": 0, "is_transactional": True}
    marker = {"timestamp_ms": NOW, "producer_epoch": 0}
    data = [
        encode_batch([(ERASED, b"v", NOW, ())] * 2, producer_id=1, base_sequence=0, **fields),
        encode_batch([(None, b"keyless", NOW, ())] * 2, base_offset=2),
        encode_batch([(ERASED, b"v", NOW, ())] * 2, base_offset=4, producer_id=2, base_sequence=0, **fields),
        encode_marker(base_offset=6, is_commit=False, producer_id=1, **marker),
        encode_marker(base_offset=7, is_commit=True, producer_id=2, **marker),
        encode_batch([(ERASED, b"v", NOW, ())] * 2, base_offset=8, producer_id=3, producer_epoch=0, base_sequence=5),
        encode_batch([(ERASED, b"v", NOW, ())] * 2, base_offset=10),
        encode_batch([(b"last", b"v", NOW, ())], base_offset=12),
    ]
    known = [
        ProducerEntry(1, 0, 1, -1, 0, NOW, 0, -1),
        ProducerEntry(2, 0, 1, 5, 1, NOW, 0, -1),
        ProducerEntry(3, 0, 6, 9, 1, NOW, -1, -1),
    ]
    aborted = [AbortedTransaction(producer_id=1, first_offset=0, last_offset=6, last_stable_offset=4)]
    more = {"producer_snapshot": encode_snapshot(known), "txn_index": txn_index.encode(aborted)}
    world.add("t", b"".join(data), 13, **more)
    return world


def test_markers_keyless_records_and_the_last_batch_of_a_producer_stay() -> None:
    world = _transactions()
    (old,) = _entries(world.store)
    _redact(world.store)
    (new,) = _entries(world.store)
    table = kernels.scan_batches(_bytes_of(world.store, new))
    rows = zip(table.base_offsets.tolist(), table.last_offsets.tolist(), table.record_counts.tolist(), strict=True)
    assert list(rows) == [(2, 3, 2), (4, 5, 0), (6, 6, 1), (7, 7, 1), (8, 9, 0), (12, 12, 1)]
    kept = table.row(4)
    assert (kept.producer_id, kept.base_sequence, kept.last_offset_delta, kept.record_count) == (3, 5, 1, 0)
    remote = RemotePartition(world.store, named("t").prefix)
    for name in ("txn", "producers", "epochs"):
        assert bytes(getattr(remote.indexes(new), name)) == bytes(getattr(remote.indexes(old), name))
    assert damage(check_bucket(world.store)) == []
    assert _findings(world.store) == []


def test_the_key_of_a_marker_is_no_key_of_a_record() -> None:
    world, keys = _transactions(), KeyDigests.of([ERASED, b"\0\0\0\0", b"\0\0\0\1"])
    (plan,) = _plans(world.store, keys)
    assert plan.records == 8
    _redact(world.store, keys, plans=[plan])
    (entry,) = _entries(world.store)
    table = kernels.scan_batches(_bytes_of(world.store, entry))
    assert table.record_counts[np.isin(table.base_offsets, (6, 7))].tolist() == [1, 1]


def test_the_last_batch_of_a_segment_stays_empty() -> None:
    world = CareWorld.empty()
    world.add("t", b"".join(encode_batch([(ERASED, b"v", NOW, ())], base_offset=at) for at in range(3)), 5)
    for _ in range(2):  # an emptied batch stays in the next redaction too
        _redact(world.store)
        (entry,) = _entries(world.store)
        table = kernels.scan_batches(_bytes_of(world.store, entry))
        assert (table.base_offsets.tolist(), table.record_counts.tolist()) == ([2], [0])
        assert (entry.offsets, entry.record_count) == ((0, 5), 0)
    assert records(world.store) == []
    assert damage(check_bucket(world.store)) == []


def test_redaction_of_more_segments_than_a_manifest_takes_has_several_commits() -> None:
    world = CareWorld.empty()
    world.writer("t", SMALL_PAGES)
    for base in range(0, 1500, 10):
        world.add("t", batches(base, (10,))[0], base + 10)
    before, sequence = records(world.store), MetadataLog(world.store, named("t").prefix).refresh().sequence
    (plan,) = _plans(world.store)
    assert len(plan.due) > 100
    _redact(world.store, plans=[plan])
    assert records(world.store) == [each for each in before if each[1] != ERASED]
    commits = MetadataLog(world.store, named("t").prefix).refresh().sequence - sequence
    assert commits == -(-len(plan.due) // 64)


def test_redaction_of_every_kind_of_partition_rewrites_compacted_views_too() -> None:
    world = all_kinds()

    def parts() -> list[SegmentEntry]:
        (view,) = MetadataLog(world.store, named("viewed").prefix).refresh().views
        assert view.record_count == sum(each.record_count for each in view.entries)
        return list(view.entries)

    old = parts()
    plans = _plans(world.store)
    assert next(each.parts_by_view for each in plans if each.name == named("viewed"))
    assert all(each.is_complete for each in _redact(world.store, plans=plans))
    assert {each.ulid for each in parts()}.isdisjoint(entry.ulid for each in plans for entry in each.due)
    assert sum(each.record_count for each in parts()) < sum(each.record_count for each in old)
    assert _findings(world.store) == []
    assert damage(check_bucket(world.store, keys=KEYS)) == []


def test_a_view_part_without_another_record_leaves_the_view() -> None:
    world = all_kinds()
    (view,) = MetadataLog(world.store, named("viewed").prefix).refresh().views
    everything = KeyDigests.of(b"key-%d" % at for at in range(7))
    _redact(world.store, everything)
    (after,) = MetadataLog(world.store, named("viewed").prefix).refresh().views
    assert view.entries
    assert (after.entries, after.record_count, after.horizon_offset) == ((), 0, view.horizon_offset)
    assert _findings(world.store, everything) == []
    assert damage(check_bucket(world.store, keys=KEYS)) == []


# --- tombstones, other writers, damage -------------------------------------------------------------------------------


def _with_tombstone() -> CareWorld:
    """A value, another value and the tombstone of the key, in three segments, and the value of another key."""
    world = CareWorld.empty()
    for at, value in enumerate((b"old", b"new", None)):
        data = encode_batch([(ERASED, value, NOW, ()), (b"other", b"v", NOW, ())], base_offset=2 * at)
        world.add("t", data, 2 * at + 2)
    return world


def _newest(store: ObjectStore) -> dict[bytes | None, bytes | None]:
    return {key: value for _, key, value, _ in records(store)}


def test_a_tombstone_is_erased_only_after_all_older_segments() -> None:
    world = _with_tombstone()
    seen: list[dict[bytes | None, bytes | None]] = []

    class Watched(MemoryStore):
        def put_if_absent(self, key: str, body: object) -> None:
            super().put_if_absent(key, body)  # type: ignore[arg-type]
            seen.append(_newest(self))

    watched = Watched("memory://b", now_ms=lambda: NOW)
    watched._objects = dict(world.store._objects)  # type: ignore[attr-defined]
    _redact(watched)
    assert [each.get(ERASED, "absent") for each in seen] == [None, "absent"]
    assert _newest(watched) == {b"other": b"v"}


@pytest.mark.damages_bucket
def test_a_damaged_segment_is_a_finding_and_holds_back_the_tombstones_above_it() -> None:
    world = _with_tombstone()
    first = _entries(world.store)[0]
    key = named("t").prefix + first.data_key
    body = bytearray(world.store.get(key))
    body[70] ^= 1
    world.store.put(key, bytes(body))
    (plan,) = _plans(world.store)
    assert (plan.unread, plan.held_back, [each.base_offset for each in plan.due]) == (1, 1, [2])
    _redact(world.store, plans=[plan])
    assert _findings(world.store) == ["redact.not-read", "redact.key-present"]


@pytest.mark.damages_bucket
def test_a_segment_that_fails_in_the_rewriting_holds_back_the_tombstones_above_it() -> None:
    world = _with_tombstone()
    plans = _plans(world.store)
    first = _entries(world.store)[0]
    key = named("t").prefix + first.data_key
    sound = world.store.get(key)
    world.store.put(key, b"\0" * len(sound))
    with pytest.raises(Corrupt):
        _redact(world.store, plans=plans)
    world.store.put(key, sound)
    assert [each for each in records(world.store) if each[1] == ERASED] == [
        (0, ERASED, b"old", NOW),
        (4, ERASED, None, NOW),
    ]
    _redact(world.store)
    assert _newest(world.store) == {b"other": b"v"}


@pytest.mark.damages_bucket
def test_an_unread_segment_of_a_compacted_topic_holds_back_all_segments_above_it() -> None:
    """A newer value hides an older one too: after a repair the older one would be the current value."""
    world = _with_tombstone()
    first = _entries(world.store)[0]
    world.store.put(named("t").prefix + first.data_key, b"\0" * first.stored_bytes)
    (scan,) = _scans(world.store, settings=COMPACTED)
    plan = plan_redaction(scan, now_ms=NOW)
    assert (plan.unread, plan.held_back, plan.due) == (1, 2, [])


@pytest.mark.damages_bucket
def test_a_segment_of_a_compacted_topic_that_fails_in_the_rewriting_holds_back_all_above_it() -> None:
    world = _with_tombstone()
    before = records(world.store)
    (scan,) = _scans(world.store, settings=COMPACTED)
    first = _entries(world.store)[0]
    key = named("t").prefix + first.data_key
    sound = world.store.get(key)
    world.store.put(key, b"\0" * len(sound))
    with pytest.raises(Corrupt):
        _redact(world.store, plans=[plan_redaction(scan, now_ms=NOW)])
    world.store.put(key, sound)
    assert records(world.store) == before
    _redact(world.store, plans=[plan_redaction(scan, now_ms=NOW)])
    assert _newest(world.store) == {b"other": b"v"}


@pytest.mark.damages_bucket
def test_a_lost_part_of_a_view_below_the_log_start_is_unread() -> None:
    world = all_kinds()
    log = world.logs["viewed"]
    (view,) = log.refresh().views
    old = [entry.ulid for entry in log.index(log.refresh()).entries() if entry.next_offset <= 300]
    world.commit("viewed", expire_segments(old, now_ms=NOW, log_start_offset=300))
    world.store.delete([named("viewed").prefix + view.entries[0].data_key])
    (scan,) = _scans(world.store, names=[named("viewed")])
    assert list(scan.unread) == [view.entries[0].ulid]
    assert "redact.not-read" in [each.code for each in scan.findings()]


def test_a_segment_that_expired_since_the_survey_is_clean() -> None:
    world = small_segments()
    surveys = [survey(world.store, named("t"))]
    first = _entries(world.store)[0]
    expired = expire_segments([first.ulid], now_ms=NOW, log_start_offset=first.next_offset)
    world.commit("t", expired)
    world.store.delete([named("t").prefix + first.data_key])
    (scan,) = scan_keys(Here(), OpenBucket.of(world.store, KEYS), surveys, DIGESTS)
    assert scan.unread == {}
    assert scan.counts[first.ulid].records == 0


def test_the_finding_for_a_missing_encryption_key_names_the_key() -> None:
    world = small_segments("encrypted", 1)
    (scan,) = _scans(world.store, ring=NO_KEYS)
    (finding,) = scan.findings()
    assert finding.code == "redact.not-read"
    assert finding.next_step == "correct the key ring, it needs the key a; then run again"


def test_the_price_has_both_scans_and_is_unknown_for_an_unknown_storage_class() -> None:
    world = small_segments(count=4)
    (scan,) = _scans(world.store, KeyDigests.of([b"absent"]))
    nothing = plan_redaction(scan, now_ms=NOW)
    (plan,) = _plans(world.store)
    assert nothing.scan_dollars is not None
    assert nothing.scan_dollars > 0
    assert plan.scan_dollars == pytest.approx(2 * nothing.scan_dollars), "the proof reads the segments with keys again"
    assert (plan.scan_gets, plan.scan_bytes) == (2 * nothing.scan_gets, 2 * nothing.scan_bytes)

    def priced(storage_class: str) -> float | None:
        entries = tuple(replace(each, storage_class=storage_class) for each in scan.survey.entries)
        return plan_redaction(replace(scan, survey=replace(scan.survey, entries=entries)), now_ms=NOW).scan_dollars

    assert priced("STANDARD") == nothing.scan_dollars
    assert (priced("GLACIER_IR") or 0) > nothing.scan_dollars
    assert priced("OF-ANOTHER-VENDOR") is None


def test_a_takeover_ends_the_redaction_and_a_second_run_finishes_it() -> None:
    world = small_segments()
    plans, before = _plans(world.store), records(world.store)
    log = MetadataLog(world.store, named("t").prefix)
    log.become_writer("next", NOW, topic="t", topic_id="B" * 22, partition=0)
    with pytest.raises(Fenced):
        _redact(world.store, plans=plans)
    assert records(world.store) == before
    _redact(world.store)
    assert records(world.store) == [each for each in before if each[1] != ERASED]


def test_segments_that_another_job_replaced_first_are_given_up_and_found_by_the_proof() -> None:
    world = small_segments()
    plans = _plans(world.store)
    run_rewrite(world.store, plan_merge(world.store, named("t"), now_ms=NOW, target_bytes=10_000), now_ms=lambda: NOW)
    (outcome,) = _redact(world.store, plans=plans)
    assert outcome.given_up > 0
    assert set(_findings(world.store)) == {"redact.key-present"}
    _redact(world.store)
    assert _findings(world.store) == []


def test_a_view_that_was_replaced_since_the_plan_is_a_conflict() -> None:
    world = all_kinds()
    plans = [each for each in _plans(world.store) if each.name == named("viewed")]
    _redact(world.store, plans=plans)
    (plan,) = plans
    ((name, parts),) = plan.parts_by_view.items()
    unit = ViewUnit(0, plan.rewrite, plan.settings, name, parts)
    with pytest.raises(Conflict, match="run the same command again"):
        commit_view(world.store, unit, {each.ulid: None for each in parts}, now_ms=NOW)


def test_a_merge_of_redacted_segments_stays_redacted() -> None:
    """Also one of segments of which a single one was redacted, so that the makers differ."""
    world = CareWorld.empty()
    for at, key in enumerate((b"a", ERASED, b"b")):
        world.add("t", encode_batch([(key, b"v", NOW, ()), (b"c", b"v", NOW, ())], base_offset=2 * at), 2 * at + 2)
    _redact(world.store)
    assert [each.is_redacted for each in _entries(world.store)] == [False, True, False]
    run_rewrite(world.store, plan_merge(world.store, named("t"), now_ms=NOW, target_bytes=10_000), now_ms=lambda: NOW)
    (merged,) = _entries(world.store)
    assert merged.is_redacted


def test_records_uploaded_later_are_a_finding_without_the_key() -> None:
    world = small_segments()
    _redact(world.store)
    end = _entries(world.store)[-1].next_offset
    later = world.add("t", encode_batch([(ERASED, b"again", NOW, ())], base_offset=end), end + 1)
    (scan,) = _scans(world.store)
    (finding,) = scan.findings()
    assert (finding.code, finding.offsets) == ("redact.key-present", (end, end + 1))
    assert finding.where.endswith(later.data_key)
    assert ERASED.decode() not in finding.line


# --- state and holders -----------------------------------------------------------------------------------------------


def test_a_resumed_scan_reads_only_unfinished_segments_and_its_state_has_no_key(tmp_path: Path) -> None:
    world = small_segments()
    path, keys = str(tmp_path / "state"), frozenset([ERASED])
    surveys, bucket = [survey(world.store, named("t"))], OpenBucket.of(world.store, KEYS)
    with RedactState(DiskStorage(), path, "memory://b", keys) as state:
        stops = iter([False] * 2 + [True] * 9)
        (scan,) = scan_keys(Here(lambda: next(stops)), bucket, surveys, DIGESTS, on_count=state.append)
        assert (scan.is_whole, len(scan.counts)) == (False, 2)
    assert ERASED not in (tmp_path / "state").read_bytes()
    read: list[int] = []
    with RedactState(DiskStorage(), path, "memory://b", keys, resume=True) as state:
        (scan,) = scan_keys(Here(), bucket, surveys, DIGESTS, known=state.counts, progress=read.append)
    assert (scan.is_whole, len(read)) == (True, 4)
    whole = plan_redaction(_scans(world.store)[0], now_ms=NOW)
    assert plan_redaction(scan, now_ms=NOW).records == whole.records


def test_a_resume_with_other_keys_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    with RedactState(DiskStorage(), path, "memory://b", frozenset([b"a", b"b"])):
        pass
    with RedactState(DiskStorage(), path, "memory://b", frozenset([b"b", b"a"]), resume=True) as state:
        assert state.is_resumed
    with pytest.raises(InvalidRequest, match="its key file had other keys"):
        RedactState(DiskStorage(), path, "memory://b", frozenset([b"ab"]), resume=True)
    assert fingerprint([b"a", b"b"], b"s") != fingerprint([b"ab"], b"s")


def test_holders_name_the_grace_period_pins_forks_and_the_local_disk() -> None:
    world = small_segments()
    (plan,) = _plans(world.store)
    prefix = named("t").prefix
    pin_newest(world.store, prefix, MetadataLog(world.store, prefix), expires_ms=NOW + 5, holder="backfill", now_ms=NOW)
    found = holders_of(world.store, plan, committed_ms=NOW)
    assert [(each.holder, each.until_ms) for each in found] == [
        ("grace period", NOW + 86_400_000),
        ("pin", NOW + 5),
        ("local disk", None),
    ]
    immutable = replace(plan, settings={"remote.immutable": "true"})
    assert holders_of(world.store, immutable, committed_ms=NOW)[0].holder == "immutable bucket"
    assert holders_of(world.store, replace(plan, rewrite=replace(plan.rewrite, groups=())), committed_ms=NOW) == []


def test_a_view_build_in_progress_is_a_holder_until_another_writer_begins() -> None:
    world = small_segments()
    log = world.writer("t")
    log.commit(begin_view("compacted", now_ms=NOW), NOW)
    (holder,) = view_builds_of(survey(world.store, named("t")))
    assert (holder.name, holder.holder, holder.until_ms) == (named("t"), "view build", None)
    assert "the view compacted" in holder.detail
    other = MetadataLog(world.store, named("t").prefix)
    other.become_writer("next", NOW, topic="t", topic_id="B" * 22, partition=0)
    assert view_builds_of(survey(world.store, named("t"))) == []


# --- command ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiered.toml").write_text(
        f'[local]\ndir = "data"\n[remote]\nurl = "file://{tmp_path}/bucket"\n[defaults]\n"segment.bytes" = "4KiB"\n'
    )
    (tmp_path / "bucket").mkdir()
    (tmp_path / "keys").write_text("person3\nperson7\nperson3\n")
    (tmp_path / "lines").write_text("".join(f"person{at % 20}:value {at}\n" for at in range(2000)))
    words = ["-C", str(tmp_path)]
    settings = ["-X", "remote.storage.enable=true", "-X", "append.batch.bytes=512", "-X", "local.retention.ms=1"]
    assert invoke([*words, "topic", "create", "t", *settings]) == 0
    assert invoke([*words, "append", "t", "lines", "-K", ":"]) == 0
    assert invoke([*words, "run", "--once"]) == 0
    capfd.readouterr()
    return words


def test_redact_command_plans_erases_and_proves_without_printing_a_key(
    at: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def run(*words: str, code: int = 0) -> dict:
        assert invoke([*at, "rewrite", "redact", "t", "--key-file", "keys", *words, "-o", "json"]) == code
        out, err = capfd.readouterr()
        said.extend((out, err))
        return json.loads(out) if out else {}

    assert len(run("--verify", code=3)["findings"]) > 5
    planned = run("--dry-run")
    assert planned["keys"] == 2
    assert {each["holder"] for each in planned["holders"]} == {"grace period", "local disk"}
    assert not list(tmp_path.glob("*.jsonl"))
    assert run(code=2) == {}
    assert "add --yes" in said[-1]
    (state,) = tmp_path.glob("*.jsonl")
    assert b"person" not in state.read_bytes()
    done = run("--yes", "--resume")
    (before,), (after,) = planned["partitions"], done["partitions"]
    assert (after["records"], after["rows_before"], after["remaining"]) == (before["records"], before["matched"], 0)
    assert done["findings"] == run("--verify")["findings"] == []
    assert not list(tmp_path.glob("*.jsonl"))
    assert run("--yes")["partitions"][0]["records"] == 0
    assert not any("person" in each for each in said)
    assert invoke([*at, "consume", "t", "--remote", f"file://{tmp_path}/bucket", "-f", "%k\\n"]) == 0
    left = capfd.readouterr().out.split()
    assert left
    assert not {"person3", "person7"} & set(left)
    assert invoke([*at, "scrub", "--deep"]) == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--key-file", "absent"], 1, "cannot read the key file, the file does not exist"),
        (["--key-file", "empty"], 2, "cannot read the key file, it has no key: file=empty"),
        (
            ["--key-file", "keys", "--key-format", "hex"],
            2,
            "cannot read the key file, a line is invalid: file=keys line=1",
        ),
        (["--key-file", "keys", "--verify", "--yes"], 2, "--verify changes nothing"),
        (["--key-file", "keys", "--dry-run", "--resume"], 2, "--resume does not apply to --dry-run"),
    ],
)
def test_redact_command_refuses_an_invalid_key_file_in_one_line(
    at: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    (tmp_path / "empty").write_text("\n")
    assert invoke([*at, "rewrite", "redact", "t", *words]) == code
    told = capfd.readouterr().err
    assert said in told
    assert told.startswith("Usage") or told.count("\n") == 1
    assert "person" not in told


def _damage_first(tmp_path: Path) -> None:
    path = sorted((tmp_path / "bucket").glob("t-*/0/data/*.log*"))[0]
    path.write_bytes(b"\0" * path.stat().st_size)


def _partitions(out: str) -> list[dict]:
    return json.loads(out)["partitions"]


def test_a_plan_and_a_proof_with_an_unread_segment_are_findings(
    at: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _damage_first(tmp_path)
    redact = [*at, "rewrite", "redact", "t", "--key-file", "keys", "-o", "json"]
    assert invoke([*redact, "--dry-run"]) == 3
    out, err = capfd.readouterr()
    (planned,) = _partitions(out)
    assert (planned["unread"], planned["matched"] > 0, planned["scan_dollars"] > 0) == (1, True, True)
    assert json.loads(out)["scan_dollars"] == planned["scan_dollars"]
    assert "was not read" in err
    assert "proved" not in err
    assert invoke(redact) == 2
    assert "for both searches, of which the first is paid" in capfd.readouterr().err
    assert invoke([*redact, "--yes"]) == 3
    (done,) = _partitions(capfd.readouterr().out)
    assert (done["remaining"], done["unread"]) == (None, 1)


def test_a_plan_with_only_held_back_segments_states_the_reason(
    at: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _damage_first(tmp_path)
    redact = [*at, "-X", "cleanup.policy=compact", "rewrite", "redact", "t", "--key-file", "keys"]
    assert invoke([*redact, "--yes"]) == 3
    err = capfd.readouterr().err
    assert "nothing to erase now: unread segments hold back" in err
    assert "no readable segment" not in err


@pytest.mark.parametrize(
    ("targets", "place"), [([], "the bucket"), (["t"], "these topics"), (["t/0"], "these partitions")]
)
def test_the_proof_names_the_place_that_was_searched(
    at: list[str], capfd: pytest.CaptureFixture[str], tmp_path: Path, targets: list[str], place: str
) -> None:
    (tmp_path / "keys").write_text("absent")
    assert invoke([*at, "rewrite", "redact", *targets, "--key-file", "keys", "--verify"]) == 0
    assert f"proved: no readable record in {place} has one of the keys" in capfd.readouterr().err


def test_a_search_during_a_view_build_states_that_it_must_be_repeated(
    at: list[str], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("absent")
    store = FileStore(str(tmp_path / "bucket"))
    (name,) = list_partitions(store)
    log = MetadataLog(store, name.prefix)
    log.join()
    log.commit(begin_view("compacted", now_ms=NOW), NOW)
    redact = [*at, "rewrite", "redact", "t", "--key-file", "keys"]
    for words, code in (["--verify"], 0), (["--dry-run"], 0):
        assert invoke([*redact, *words]) == code
        assert "t/0: still held by the view build: run the same command with --verify" in capfd.readouterr().err


# --- managers --------------------------------------------------------------------------------------------------------


def test_writer_with_offline_appends_continues_after_a_redaction_of_its_last_batch() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-1"}, now_ms=NOW)
        last = send(manager, 100)[-1]
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    with world.open(store=SwitchableStore(world.store)) as manager:  # type: ignore[arg-type]
        send(manager, 10, start=100)
    assert last.key is not None
    _redact(world.store, KeyDigests.of([last.key]))
    with world.open() as manager:
        assert manager.problems == {}
        settle(manager)
        assert manager.partitions.find(NAME).is_writer
