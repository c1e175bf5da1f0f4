"""Bucket compaction of logs that were copied uncleaned, in several jobs, compared with the cleaner's reference."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from bucket_truth import assert_sound
from cleaner_oracle import Batch, Round, expected, parsed
from disk_model import ModelDisk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_profile import examples, one_of_each, seeds
from test_cleaner_rounds import NAME, RETENTION_MS, STEPS, drawn
from test_cleaner_rounds import World as LogWorld

from local.cleaner.offset_map import Buffer
from local.records.isolation import Isolation
from remote.fetch.range_reader import RemotePartition
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import add_segments
from remote.manifest.page_out import PageRule
from remote.manifest.view import tombstone_bound
from remote.segment_entry import SegmentEntry
from remote.store.memory_store import MemoryStore
from remote.upload.segment_upload import copy_segment
from tiered.jobs.bucket_compaction import CompactionOutcome
from tiered.jobs.compaction_passes import compact_partition
from tiered.partition.segment_inspection import segment_to_copy
from tiered.read.partition_source import PartitionSource
from tiered.read.reader import TieredReader

TOPIC_ID = "A" * 22
BUCKET = RemotePartitionName(NAME.topic, TOPIC_ID, NAME.partition)
PROPERTIES = {
    "cleanup.policy": "compact",
    "segment.bytes": "1024",
    "index.interval.bytes": "120",
    "delete.retention.ms": str(RETENTION_MS),
}
WHOLE = 1 << 30


@dataclass
class World(LogWorld):
    """A local log and a bucket to which its closed segments are copied uncleaned."""

    store: MemoryStore = field(default_factory=MemoryStore)
    group_bytes: int = WHOLE
    has_snapshots: bool = True
    outcomes: list[CompactionOutcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = PageRule(manifest_bytes_max=1500, page_rows_max=4, page_rows_min=2, kept_entries_min=2)
        self.metadata = MetadataLog(self.store, BUCKET.prefix, rule=rule)
        names = {"topic": NAME.topic, "topic_id": TOPIC_ID, "partition": NAME.partition}
        self.metadata.become_writer("m", self.now_ms, **names, properties=PROPERTIES)

    def clean(self, tombstones_below: int | None, buffer_bytes: int) -> None:
        """Instead of cleaning the log, copy everything below the last stable offset and compact the bucket."""
        del tombstones_below
        self.ship()
        self.compact(buffer_bytes)

    def ship(self) -> None:
        self.log.roll(now_ms=self.now_ms)
        reached = self.manifest().next_offset
        for info in self.log.segments():
            is_stable = info.next_offset <= self.log.last_stable_offset
            if info.is_active or info.is_empty or info.base_offset < reached or not is_stable:
                continue
            source = segment_to_copy(self.log, info)
            if not self.has_snapshots:
                source = replace(source, producer_snapshot=b"")
            entry = copy_segment(self.store, BUCKET.prefix, source, epoch=self.metadata.epoch, now_ms=self.now_ms)
            self.metadata.commit(add_segments([entry]), self.now_ms)

    def manifest(self) -> Manifest:
        return self.metadata.refresh(exact=True)

    def source(self) -> PartitionSource:
        metadata = MetadataLog(self.store, BUCKET.prefix)
        remote = RemotePartition(self.store, BUCKET.prefix, metadata=metadata)
        return PartitionSource(NAME, None, remote, metadata)

    def entries(self) -> list[SegmentEntry]:
        return list(self.metadata.index(self.manifest()).entries())

    def batches(self) -> list[list[Batch]]:
        """The batches of each segment entry."""
        remote = RemotePartition(self.store, BUCKET.prefix)
        return [parsed(memoryview(bytes(remote.read(entry, 0, entry.size_bytes)))) for entry in self.entries()]

    def table(self) -> dict[bytes | None, bytes]:
        """The table of newest committed values in the bucket."""
        source = self.source()
        if source.start_offset() == source.next_offset():
            return {}
        reader = TieredReader(lambda _: source, isolation=Isolation.READ_COMMITTED)
        records = reader.records(NAME, source.start_offset())
        latest = {record.key: record.value for record in records}
        return {key: value for key, value in latest.items() if key is not None and value is not None}

    def facts(self) -> Round:
        source, manifest = self.source(), self.manifest()
        end = source.stable_end()
        upto = max((entry.next_offset for entry in self.entries() if entry.next_offset <= end), default=0)
        aborted = source.aborted_transactions(0, end) if manifest.has_entries else []
        known = source.producers_in_bucket().entries()
        return Round(
            dirty_from=0,
            upto=upto,
            now_ms=self.now_ms,
            retention_ms=RETENTION_MS,
            tombstones_below=tombstone_bound(manifest.parts, manifest.views, manifest.log_start_offset),
            aborted=[(each.producer_id, each.first_offset, each.last_offset) for each in aborted],
            producers={p.producer_id: (p.producer_epoch, p.last_offset if p.last_offset >= 0 else None) for p in known},
        )

    def compact(self, buffer_bytes: int) -> None:
        before, facts, table, epoch = self.batches(), self.facts(), self.table(), self.manifest().epoch
        producers = self.source().producers_in_bucket().entries()
        self.outcomes.append(self.job(buffer_bytes))
        flat = [batch for entry in before for batch in entry]
        wanted = expected([batch for batch in flat if batch.last_offset < facts.upto], facts)
        rest = [batch for batch in flat if batch.last_offset >= facts.upto]
        self.compare([*wanted, *rest])
        assert self.table() == table
        assert self.manifest().epoch == epoch
        assert self.source().producers_in_bucket().entries() == producers
        assert all(
            (entry.cleaned_through or 0) >= facts.upto for entry in self.entries() if entry.next_offset <= facts.upto
        )
        assert_sound(self.store)
        assert self.job_disk.list("./job") == []

    def job(self, buffer_bytes: int, **more: object) -> CompactionOutcome:
        self.job_disk = ModelDisk()
        self.job_disk.make_directory("./job")
        return compact_partition(
            self.store,
            BUCKET,
            now_ms=self.now_ms,
            storage=self.job_disk,
            directory="./job",
            buffer=Buffer(size_bytes=buffer_bytes),
            group_bytes=self.group_bytes,
            **more,  # type: ignore[arg-type]
        )

    def compare(self, wanted: list[Batch]) -> None:
        """The batches must be equal, with two exceptions.
        1. The only batch of a segment entry may stay although it is empty.
        2. Markers of transactions in other groups may stay."""
        found = []
        for entry in self.batches():
            is_alone = len(entry) == 1 and not entry[0].records and entry[0] not in wanted
            found += [] if is_alone else entry
        if self.group_bytes == WHOLE:
            assert found == wanted
            return
        offsets = {batch.base_offset for batch in wanted}
        extra = [batch for batch in found if batch.base_offset not in offsets]
        assert all(batch.is_control for batch in extra)
        assert offsets <= {batch.base_offset for batch in found}, "a marker must not be removed before its data"
        kept = [batch for batch in found if batch.base_offset in offsets and not batch.is_control]
        assert kept == [batch for batch in wanted if not batch.is_control]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=25), st.sampled_from([WHOLE, 1, 1500]))
def test_bucket_compaction_keeps_the_same_batches_as_the_reference_cleaner(
    steps: list[tuple], group_bytes: int
) -> None:
    play(World(group_bytes=group_bytes), steps)


@pytest.mark.parametrize("group_bytes", [WHOLE, 1, 2000])
@pytest.mark.parametrize("seed", seeds(12))
def test_bucket_compaction_of_transactions_and_horizons_keeps_the_references_batches(
    seed: int, group_bytes: int
) -> None:
    play(World(group_bytes=group_bytes), drawn(seed))


@pytest.mark.parametrize("seed", one_of_each(4, range(4)))
def test_without_producer_snapshots_no_marker_is_removed_before_its_data(seed: int) -> None:
    play(World(group_bytes=1, has_snapshots=False), drawn(seed))


def play(world: World, steps: list[tuple]) -> None:
    for name, *words in steps:
        getattr(world, name)(*words)
    for wait in (500, 1000, 500, 1000, 1000):
        for producer in range(3):
            world.end(producer, True)
        world.wait(wait)
        world.clean(None, 1 << 20)
    if world.group_bytes == WHOLE:
        left = [
            record for entry in world.batches() for batch in entry for record in batch.records if not batch.is_control
        ]
        newest = {record.key: record.offset for record in left}
        assert len(left) == len(newest), "after enough jobs each key must have one record"


def test_a_compaction_job_without_work_uploads_no_data() -> None:
    world = World()
    play(world, drawn(3))
    for _ in range(4):
        world.wait(10_000)
        world.job(1 << 20)
    keys = {info.key for info in world.store.list("")}
    world.wait(10_000)
    outcome = world.job(1 << 20)
    fresh = {info.key for info in world.store.list("")} - keys
    assert all("/meta/head/" in key or "/meta/spill/" in key for key in fresh)
    assert outcome.records_after == outcome.records_before


def test_a_compaction_job_repeated_with_the_same_id_does_nothing() -> None:
    world = World()
    for name, *words in drawn(5)[:30]:
        if name != "clean":
            getattr(world, name)(*words)
    world.ship()
    first = world.job(1 << 20, job_id="nightly")
    manifest = world.manifest()
    second = world.job(1 << 20, job_id="nightly")
    assert not first.was_done
    assert second.was_done
    assert world.manifest() == manifest
    assert MetadataLog(world.store, BUCKET.prefix).join() == manifest


def test_the_reference_cleaner_detects_colliding_key_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes tell keys apart by their digests alone, so a test must detect a bad digest."""
    from tiered.jobs import compaction_passes

    real = compaction_passes.digest_keys

    def weak(data, starts, lengths, secret):  # type: ignore[no-untyped-def]
        low, high = real(data, starts, lengths, secret)
        return low & 1, high & 0

    monkeypatch.setattr(compaction_passes, "digest_keys", weak)
    with pytest.raises(AssertionError):
        play(World(), drawn(1))
