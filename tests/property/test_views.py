"""Compacted views of random logs: below the horizon exactly the newest committed value of every key."""

from __future__ import annotations

from dataclasses import replace

from checked_bucket import check_bucket, damage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from manager_world import NAME, NOW, TIERED, World, settle
from run_profile import examples

from local import kernels
from local.format.batch_header import CONTROL, TRANSACTIONAL
from local.format.compression import Codec
from local.format.record import Record, StoredRecord, TimestampType
from local.records.batch import encode_batch
from local.records.isolation import Isolation
from remote.manifest.view import CompactedView, find_view
from tiered.jobs.view_jobs import build_views, plan_views
from tiered.read.bucket_reader import RemoteLog

KEYS = st.sampled_from([None, *[b"k%d" % at for at in range(8)], b"a key of more than a few letters"])
VALUES = st.sampled_from([None, None, b"", b"v", b"a longer value, of words"])
HEADERS = st.sampled_from([(), (("h", b"1"),), (("h", None), ("i", b""))])
RECORDS = st.lists(st.builds(Record, KEYS, VALUES, st.integers(0, 50_000), HEADERS), min_size=1, max_size=8)
PRODUCERS = st.integers(0, 2)
WRITES = st.one_of(
    st.tuples(st.just("put"), RECORDS, st.sampled_from(Codec), st.booleans()),
    st.tuples(st.just("write"), PRODUCERS, RECORDS, st.sampled_from(Codec)),
    st.tuples(st.just("transact"), PRODUCERS, RECORDS, st.booleans()),
    st.tuples(st.just("end"), PRODUCERS, st.booleans()),
    st.tuples(st.just("copy")),
)
SHARES = st.sampled_from([0, 0, 40, 100])
ROUNDS = st.tuples(SHARES, st.lists(WRITES, min_size=2, max_size=8), st.sampled_from([1 << 20, 150, 70]))


class Story:
    """A topic, its committed records by offset, and the steps of a history."""

    def __init__(self, retain_null_key: bool, empty_deletes: bool, *, is_tiered: bool = True) -> None:
        self.world = World()
        self.manager = self.world.open(segment_bytes="1024", index_interval_bytes="120")
        retain = {"compaction.view.retain.null.key": str(retain_null_key).lower()}
        retain["compaction.view.empty.value.deletes"] = str(empty_deletes).lower()
        tier = TIERED if is_tiered else {"retention.ms": "-1"}
        self.manager.topics.create("t", 1, {**tier, **retain}, now_ms=NOW)
        self.held = self.manager.partitions.all()[0]
        self.committed: dict[int, StoredRecord] = {}
        self.sequences: dict[int, int] = {}
        self.retain_null_key, self.empty_deletes = retain_null_key, empty_deletes

    def enable(self) -> None:
        """Enable the remote tier of the topic. Its local view becomes a remote view."""
        before = self.view()
        self.manager.topics.alter("t", TIERED, now_ms=NOW)
        self.copy()
        assert self.view() == before
        if before is not None:
            self.check()

    def put(self, records: list[Record], codec: Codec, is_append_time: bool) -> None:
        times = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "append_time_ms": NOW}
        batch = encode_batch(records, codec=codec, **(times if is_append_time else {}))
        self.held.log.append_encoded([bytearray(batch)], now_ms=NOW)

    def write(self, producer: int, records: list[Record], codec: Codec) -> None:
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + len(records)
        batch = encode_batch(
            records,
            codec=codec,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        self.held.log.append_encoded([bytearray(batch)], now_ms=NOW)

    def end(self, producer: int, commit: bool) -> None:
        self.held.log.append_marker(producer, 0, commit=commit, now_ms=NOW)

    def transact(self, producer: int, records: list[Record], commit: bool) -> None:
        self.write(producer, records, Codec.NONE)
        self.end(producer, commit)

    def copy(self) -> None:
        self._remember()
        self.manager.partitions.roll("t", now_ms=NOW)
        settle(self.manager)

    def build(self, buffer_bytes: int) -> None:
        self.copy()
        self.held.rules = replace(self.held.rules, view_buffer_bytes=buffer_bytes)
        build_views(self.manager, plan_views(self.manager, "t", now_ms=NOW))
        assert self.manager.problems == {}
        self.check()

    def expire(self, share: int) -> None:
        """Expire records below the view's horizon, or any records if no view exists."""
        view = self.view()
        start = self.held.source().start_offset()
        end = view.horizon_offset if view is not None else self.held.log.next_offset
        self.manager.maintenance.delete_records({NAME: start + (end - start) * share // 100}, now_ms=NOW)
        settle(self.manager)
        if view is not None:
            self.check()

    def view(self) -> CompactedView | None:
        view = find_view(self.held.snapshot(NOW).all_views, "compacted")
        return view if view is not None and view.is_built else None

    def check(self) -> None:
        self._remember()
        view = self.view()
        assert view is not None
        expected = self.oracle(view.start_offset, view.horizon_offset)
        known = {record.offset: record for record in expected}
        assert view.record_count == len(expected)
        assert view.key_count == sum(record.key is not None for record in expected)
        reader = self.manager.reader(Isolation.READ_COMMITTED, read_compacted=True)
        runs = [kernels.scan_batches(data) for data in reader.batches(NAME, view.start_offset, view.horizon_offset)]
        assert not any((run.attributes & (TRANSACTIONAL | CONTROL)).any() for run in runs)
        behind = [self.committed[at] for at in sorted(self.committed) if at >= view.horizon_offset]
        assert list(reader.records(NAME, view.start_offset)) == expected + behind
        middle = (view.start_offset + view.horizon_offset) // 2
        for start in {middle, max(known, default=middle), view.horizon_offset}:
            assert [each.offset for each in reader.records(NAME, start, view.horizon_offset)] == [
                offset for offset in known if offset >= start
            ]
        manifest = self.held.manifest()
        if manifest is None or view not in manifest.views:
            return
        with RemoteLog(self.world.store) as bucket:
            found = bucket.reader(Isolation.READ_COMMITTED, read_compacted=True).records(
                NAME, view.start_offset, view.horizon_offset
            )
            assert list(found) == expected

    def oracle(self, start: int, horizon: int) -> list[StoredRecord]:
        newest: dict[bytes, StoredRecord] = {}
        kept = []
        for offset in sorted(each for each in self.committed if each >= start):
            record = self.committed[offset]
            if offset < horizon and record.key is not None:
                newest[record.key] = record
            elif offset < horizon and self.retain_null_key:
                kept.append(record)
        deleting = (None, b"") if self.empty_deletes else (None,)
        kept += [record for record in newest.values() if record.value not in deleting]
        return sorted(kept, key=lambda record: record.offset)

    def _remember(self) -> None:
        reader = self.manager.reader(Isolation.READ_COMMITTED)
        self.committed.update({record.offset: record for record in reader.records(NAME, reader.offsets(NAME)[0])})


@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ROUNDS, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_a_view_has_the_newest_committed_value_of_every_key_below_its_horizon(rounds, retain_null_key, empty_deletes):
    play(Story(retain_null_key, empty_deletes), rounds)


@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ROUNDS, min_size=1, max_size=4), st.booleans(), st.booleans(), st.sampled_from([None, None, 1, 2]))
def test_a_local_view_has_the_newest_values_before_and_after_tiering_is_enabled(
    rounds, retain_null_key, empty_deletes, tiered_at
):
    play(Story(retain_null_key, empty_deletes, is_tiered=False), rounds, tiered_at)


def play(story: Story, rounds, tiered_at: int | None = None) -> None:
    """`tiered_at` is the round in which the topic gets a remote tier."""
    for at, (share, writes, buffer_bytes) in enumerate(rounds):
        if at == tiered_at:
            story.enable()
        if story.view() is not None:
            story.expire(share)
        for name, *arguments in writes:
            getattr(story, name)(*arguments)
        if story.view() is None:
            story.copy()
            story.expire(share)
        story.build(buffer_bytes)
    story.manager.close()
    assert damage(check_bucket(story.world.store)) == []
