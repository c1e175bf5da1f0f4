"""Import of buckets with an external layout: every record, a sound result, after any interruption."""

from __future__ import annotations

import pytest
from bucket_truth import assert_sound
from disk_model import ModelDisk
from external_samples import (
    NAME,
    NOW,
    TOPIC_ID,
    Sample,
    new_key,
    put_aiven,
    put_kafka_local,
    put_log,
    put_pinterest,
    write_log,
)
from external_truth import assert_reads
from manager_world import World

from local import kernels
from local.errors import Conflict, Corrupt, InvalidRequest, Unavailable
from local.format.record import Record
from local.records.batch import encode_batch
from remote.external.external_formats import external_format
from remote.external.external_layout import LayoutOptions
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import expire_segments
from remote.segments.encryption import KeyRing
from remote.store.memory_store import MemoryStore
from tiered.jobs.rewriting import EncodingChoice
from tiered.migrate.import_bucket import plan_import, run_import
from tiered.migrate.restore_plan import LocalSegments, RestoreWish, plan_restore
from tiered.migrate.restore_running import run_restore
from tiered.read.bucket_reader import RemoteLog

LAYOUTS = ("aiven", "local-tiered-storage", "pinterest", "logs")
RING = KeyRing({"k": b"k" * 32})


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Sample:
    return write_log(tmp_path_factory.mktemp("log") / NAME.directory)


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return new_key(tmp_path_factory.mktemp("keys") / "key1.pem")


def _source(layout: str, sample: Sample, key, segments=None) -> tuple[MemoryStore, object]:
    store = MemoryStore("memory://theirs")
    for number, files in enumerate(sample.segments if segments is None else segments):
        match layout:
            case "aiven":
                put_aiven(store, files, number=number, compressed=bool(number % 2), key=key)
            case "local-tiered-storage":
                put_kafka_local(store, files, number=number)
            case "pinterest":
                put_pinterest(store, files)
            case "logs":
                put_log(store, files, indexes=False)
    keys = {key.id: str(key.path)} if layout == "aiven" else {}
    return store, external_format(store, LayoutOptions(layout=layout, private_keys=keys))


def _plan(source, layout, target, **kw):
    (name,) = layout.partitions(source)
    return plan_import(source, layout, name, target, topic_id=TOPIC_ID, now_ms=NOW, **kw)


def _run(source, layout, target, plan, **kw):
    return run_import(source, layout, target, plan, now_ms=lambda: NOW, **kw)


@pytest.mark.parametrize(
    "encoding", [EncodingChoice(), EncodingChoice(codec="zstd", key_id="k")], ids=["as it is", "sealed"]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_import_has_the_records_of_its_source_and_is_sound(sample, key, layout, encoding) -> None:
    source, theirs = _source(layout, sample, key)
    before = {info.key: info.size_bytes for info in source.list("")}
    target = MemoryStore("memory://ours")
    plan = _plan(source, theirs, target, encoding=encoding, properties={"retention.ms": "1000"})
    assert list(target.list("")) == []  # a plan changes nothing
    assert plan.size_bytes == sum(len(files.log) for files in sample.segments)
    assert plan.cost.dollars > 0
    outcome = _run(source, theirs, target, plan, keys=RING)
    assert (outcome.entries, outcome.next_offset) == (len(sample.segments), sample.end)
    assert outcome.record_count == len(sample.records)
    assert outcome.is_complete
    with RemoteLog(target, keys=RING) as bucket:
        assert_reads(bucket, sample)
        manifest = bucket.manifest(NAME)
    assert manifest.topic_id == TOPIC_ID
    assert manifest.properties == {"retention.ms": "1000"}
    assert [entry.record_count for entry in manifest.segments] == _counts(sample)
    assert {epoch for entry in manifest.segments for epoch, _ in entry.epochs} == {0, 2}
    assert all((entry.codec == "zstd") <= (encoding.codec == "zstd") for entry in manifest.segments)
    assert_sound(target, keys=RING)
    assert {info.key: info.size_bytes for info in source.list("")} == before


def _counts(sample: Sample) -> list[int]:
    return [sum(files.base <= r.offset < files.next for r in sample.records) for files in sample.segments]


def test_repeated_import_changes_nothing_and_later_takes_new_segments(sample, key) -> None:
    for layout in LAYOUTS:
        source, theirs = _source(layout, sample, key, sample.segments[:3])
        target = MemoryStore("memory://ours")
        _run(source, theirs, target, _plan(source, theirs, target))
        before = {info.key: info.size_bytes for info in target.list("")}
        again = _plan(source, theirs, target)
        assert again.entries == ()
        assert _run(source, theirs, target, again).is_complete
        assert {info.key: info.size_bytes for info in target.list("")} == before
        fuller, theirs = _source(layout, sample, key)
        rest = _plan(fuller, theirs, target)
        assert len(rest.entries) == len(sample.segments) - 3
        _run(fuller, theirs, target, rest)
        with RemoteLog(target) as bucket:
            assert_reads(bucket, sample)
        assert_sound(target)


class Cut(BaseException):
    """The importing process ends at this point. This is no error, so nothing retries it."""


class _Failing:
    """A store whose n-th write fails before its effect, or ends the process after it."""

    def __init__(self, inner: MemoryStore, nth: int, *, after: bool) -> None:
        self._inner, self._left, self._after = inner, nth, after

    def __getattr__(self, name: str):
        verb = getattr(self._inner, name)
        if name not in ("put", "put_if_absent", "upload"):
            return verb

        def cut(*args, **kw):
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Unavailable("cut off", verb=name)
            found = verb(*args, **kw)
            if self._left == 0:
                raise Cut(name)
            return found

        return cut


def test_import_interrupted_at_any_write_is_completed_by_a_second_run(sample, key) -> None:
    source, theirs = _source("pinterest", sample, key)  # a layout whose transactions are known only from the batches
    finished = 0
    for after in (False, True):
        for nth in range(1, 100):
            target = MemoryStore("memory://ours")
            failing = _Failing(target, nth, after=after)
            try:
                outcome = _run(source, theirs, failing, _plan(source, theirs, failing))
            except (Unavailable, Cut):
                pass
            else:
                if failing._left > 0:
                    assert outcome.is_complete
                    finished += 1
                    break
            _run(source, theirs, target, _plan(source, theirs, target))
            with RemoteLog(target) as bucket:
                assert list(bucket.reader().records(NAME, 0)) == sample.records, (nth, after)
                assert bucket.manifest(NAME).next_offset == sample.end
            assert_sound(target)
            if nth % 5 == 0:
                with RemoteLog(target) as bucket:
                    assert_reads(bucket, sample)
    assert finished == 2


def test_cancelled_import_keeps_the_imported_segments(sample, key) -> None:
    source, theirs = _source("logs", sample, key)
    target = MemoryStore("memory://ours")
    seen: list[int] = []
    plan = _plan(source, theirs, target)
    outcome = _run(source, theirs, target, plan, progress=seen.append, should_stop=lambda: len(seen) == 2)
    assert not outcome.is_complete
    assert (outcome.entries, outcome.next_offset) == (2, sample.segments[1].next)
    assert_sound(target)


def test_source_with_a_late_start_and_a_gap_is_imported_with_them(sample, key) -> None:
    lost = sample.segments[3]
    left = [files for files in sample.segments[1:] if files is not lost]
    source, theirs = _source("local-tiered-storage", sample, key, left)
    target = MemoryStore("memory://ours")
    plan = _plan(source, theirs, target)
    assert plan.gaps == ((lost.base, lost.next),)
    _run(source, theirs, target, plan)
    with RemoteLog(target) as bucket:
        reader = bucket.reader()
        assert reader.offsets(NAME) == (sample.segments[1].base, sample.end)
        offsets = [record.offset for record in reader.records(NAME, sample.segments[1].base)]
    assert offsets == [r.offset for files in left for r in sample.records if files.base <= r.offset < files.next]
    assert_sound(target)


def test_damaged_segment_ends_the_import_before_it_and_is_named(sample, key) -> None:
    source, theirs = _source("logs", sample, key)
    victim = sample.segments[2]
    name = f"{NAME.directory}/{victim.base:020d}.log"
    body = bytearray(victim.log)
    body[len(body) // 2] ^= 1
    source.put(name, body)
    target = MemoryStore("memory://ours")
    plan = _plan(source, theirs, target)
    with pytest.raises(Corrupt, match=f"{victim.base:020d}.log"):
        _run(source, theirs, target, plan)
    with RemoteLog(target) as bucket:
        assert bucket.manifest(NAME).next_offset == victim.base
    assert_sound(target)
    source.put(name, victim.log)
    _run(source, theirs, target, _plan(source, theirs, target))
    with RemoteLog(target) as bucket:
        assert_reads(bucket, sample)


def test_import_never_writes_to_its_source_or_to_a_partition_of_another_writer(sample, key) -> None:
    source, theirs = _source("logs", sample, key)
    with pytest.raises(InvalidRequest, match="the same"):
        _plan(source, theirs, source)
    target = MemoryStore("memory://ours")
    log = MetadataLog(target, f"{NAME.topic}-{TOPIC_ID}/{NAME.partition}/")
    log.become_writer("a manager", NOW, topic=NAME.topic, topic_id=TOPIC_ID, partition=NAME.partition)
    with pytest.raises(Conflict, match="writer=a manager"):
        _plan(source, theirs, target)
    fresh = MemoryStore("memory://fresh")
    plan = _plan(source, theirs, fresh)
    other = MetadataLog(fresh, plan.name.prefix)
    other.become_writer("a manager", NOW, topic=NAME.topic, topic_id=TOPIC_ID, partition=NAME.partition)
    other.commit(expire_segments([], now_ms=NOW, log_start_offset=3), NOW)
    with pytest.raises(Conflict):
        _run(source, theirs, fresh, plan)


def test_segment_that_has_grown_is_imported_from_its_previous_end(sample, key) -> None:
    """The source is a directory that is copied repeatedly, with a torn newest segment each time."""
    target = MemoryStore("memory://ours")
    for number, files in enumerate(sample.segments):
        at = kernels.scan_batches(files.log).positions.tolist()
        for cut in (at[1] + 7, at[3], at[4] + 1, len(files.log)):
            source, theirs = _source("logs", sample, key, sample.segments[:number])
            source.put(f"{NAME.directory}/{files.base:020d}.log", files.log[:cut])
            _run(source, theirs, target, _plan(source, theirs, target))
    with RemoteLog(target) as bucket:
        assert_reads(bucket, sample)
        assert len(bucket.manifest(NAME).segments) > 2 * len(sample.segments)
    assert_sound(target)


def test_source_bytes_that_differ_from_imported_ones_are_refused(sample, key) -> None:
    source, theirs = _source("logs", sample, key, sample.segments[:2])
    target = MemoryStore("memory://ours")
    _run(source, theirs, target, _plan(source, theirs, target))
    first, second, third = (files.log for files in sample.segments[:3])
    source.delete([f"{NAME.directory}/{sample.segments[1].base:020d}.log"])
    source.put(f"{NAME.directory}/{0:020d}.log", first + second + third)
    assert len(_plan(source, theirs, target).entries) == 1
    before = dict(target._objects)
    other = bytearray(first)
    other[70] ^= 1
    source.put(f"{NAME.directory}/{0:020d}.log", bytes(other) + second + third)
    plan = _plan(source, theirs, target)
    with pytest.raises(Conflict, match="other segments"):
        _run(source, theirs, target, plan)
    assert {key for key in target._objects if "/data/" in key} == {key for key in before if "/data/" in key}


def test_segment_without_a_leader_epoch_gets_one(key) -> None:
    store = MemoryStore("memory://theirs")
    batch = encode_batch([(b"k", b"v", NOW)] * 4, base_offset=10, leader_epoch=-1)
    store.put("t-0/00000000000000000010.log", batch)
    theirs = external_format(store, LayoutOptions(layout="logs"))
    target = MemoryStore("memory://ours")
    _run(store, theirs, target, _plan(store, theirs, target))
    assert_sound(target)


def test_import_interrupted_before_its_log_start_begins_at_the_start_of_its_source(sample, key) -> None:
    source, theirs = _source("aiven", sample, key, sample.segments[2:4])
    for nth in (1, 2):  # after the commit of the epoch, and after that of the log start offset
        target = MemoryStore("memory://ours")
        failing = _Failing(target, nth, after=True)
        with pytest.raises(Cut):
            _run(source, theirs, failing, _plan(source, theirs, failing))
        _run(source, theirs, target, _plan(source, theirs, target))
        with RemoteLog(target) as bucket:
            assert bucket.reader().offsets(NAME) == (sample.segments[2].base, sample.segments[3].next)


def test_manager_continues_after_an_import_with_a_higher_leader_epoch(tmp_path) -> None:
    """Kafka's epochs are far above the first epochs of a bucket. The lineage must not decrease."""
    far = write_log(tmp_path / NAME.directory, 100, epochs=(0, 57))
    source, theirs = _source("local-tiered-storage", far, None)
    world = World()
    _run(source, theirs, world.store, _plan(source, theirs, world.store))
    disk = ModelDisk()
    wish = RestoreWish(kept=LocalSegments.NONE, takes_over=True)
    plan = plan_restore(world.store, list_partitions(world.store), wish, now_ms=NOW)
    run_restore(world.store, plan, disk, "./data", now_ms=lambda: NOW)
    for turn in range(3):
        with world.open(disk=disk, now_ms=NOW + turn) as manager:
            assert manager.problems == {}
            log = manager.partitions.find(NAME).log
            for at in range(60):
                manager.append(NAME.topic, [Record(b"k", b"%d" % at, NOW)], NAME.partition, now_ms=NOW)
            manager.partitions.roll(NAME.topic, now_ms=NOW)
            for _ in range(5):
                manager.tick(NOW)
            assert manager.problems == {}
            epochs = [epoch for epoch, _ in manager.partitions.find(NAME).manifest().lineage]  # type: ignore[union-attr]
            assert epochs == sorted(epochs)
            assert log.epochs.entries[-1][0] > 57
