"""Adoption of a log directory that a broker writes.
The broker is a log of this project, in Kafka's format."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from checked_bucket import check_bucket, damage
from disk_model import ModelDisk

from local import kernels
from local.cleaner.cleaner import clean
from local.errors import Conflict, Corrupt, Fenced, InvalidRequest, NotFound, Unavailable
from local.format.record import Record
from local.log import checkpoints
from local.log.producer_state import Producer
from local.logdirs.log_dir import LogDirectory
from local.names import TopicPartition, new_topic_id
from local.records.isolation import Isolation
from local.settings import LogSettings
from local.storage import DiskStorage
from policies import retention
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import expire_segments
from remote.store.memory_store import MemoryStore
from tiered.cli.bucket import external_buckets
from tiered.cli.main import invoke
from tiered.migrate import adopt as adopting
from tiered.migrate.adopt import EPOCHS_APART, HIGH_WATERMARKS, AdoptedPartition, Adopter
from tiered.migrate.restore_plan import RestoreWish, plan_restore
from tiered.migrate.restore_running import run_restore
from tiered.read.bucket_reader import RemoteLog

NOW = 1_800_000_000_000
NAME = TopicPartition("t", 0)
SETTINGS = LogSettings(segment_bytes=2000, index_interval_bytes=200, batch_bytes=300)


class Broker:
    """The broker of the log directory.
    `settle` writes the high watermark, as a broker does every few seconds."""

    def __init__(self, home: Path, *, is_compacted: bool = False) -> None:
        self.home, self.disk = home, DiskStorage()
        self.root = str(home / "kafka")
        self.directory = LogDirectory(self.disk, self.root)
        self.topic_id = new_topic_id()
        self.directory.create(NAME, self.topic_id)
        self.log = self.directory.open_log(NAME, SETTINGS, now_ms=NOW)
        self.sent: list[Record] = []
        self.is_compacted = is_compacted

    def send(self, count: int, keys: int = 7) -> None:
        start = len(self.sent)
        records = [Record(b"k%d" % (at % keys), b"value %d" % at, NOW + at) for at in range(start, start + count)]
        for at in range(0, count, 10):
            self.log.append(records[at : at + 10], now_ms=NOW)
        self.sent += records

    def settle(self, watermark: int | None = None) -> None:
        at = self.log.next_offset if watermark is None else watermark
        checkpoints.write_offsets(self.disk, f"{self.root}/{HIGH_WATERMARKS}", {NAME: at})


class Side:
    def __init__(self, broker: Broker, storage: DiskStorage | None = None) -> None:
        self.store = MemoryStore("memory://adopted", now_ms=lambda: NOW)
        properties = {"cleanup.policy": "compact"} if broker.is_compacted else {}
        self.adopter = Adopter(
            self.store,
            storage or broker.disk,
            broker.root,
            str(broker.home / "work"),
            properties=lambda topic: properties,
        )

    def tick(self) -> AdoptedPartition:
        (found,) = self.adopter.tick(NOW)
        return found

    def values(self) -> list[tuple[int, bytes | None]]:
        assert damage(check_bucket(self.store)) == []
        reader = RemoteLog(self.store).reader()
        return [(record.offset, record.value) for record in reader.records(NAME, reader.offsets(NAME)[0])]


def test_closed_segments_are_copied_and_the_active_one_is_reported_at_risk(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    side = Side(broker)
    for _ in range(5):
        broker.send(150)
        broker.settle()
        found = side.tick()
        assert found.problem is None
        assert found.lag_bytes == 0
        assert found.at_risk_bytes == broker.log.segments()[-1].size_bytes
        assert found.tiered_upto == broker.log.segments()[-1].base_offset
    assert side.values() == [(at, each.value) for at, each in enumerate(broker.sent)][: found.tiered_upto]
    manifest = RemoteLog(side.store).manifest(NAME)
    assert manifest.topic_id == broker.topic_id
    assert manifest.epoch >= EPOCHS_APART


def test_records_above_the_high_watermark_are_not_copied(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    side = Side(broker)
    broker.send(500)
    second = broker.log.segments()[1]
    broker.settle(second.next_offset + 1)
    found = side.tick()
    assert found.tiered_upto == second.next_offset
    assert found.lag_bytes > 0
    assert found.at_risk_bytes > found.lag_bytes
    broker.settle()
    assert side.tick().lag_bytes == 0


def test_segments_of_an_open_transaction_are_not_copied(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    side = Side(broker)
    broker.send(200)
    producer = Producer(producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    began = broker.log.append([Record(b"k", b"open", NOW)], now_ms=NOW, producer=producer).base_offset
    broker.sent.append(Record(b"k", b"open", NOW))
    broker.send(300)
    broker.settle()
    assert side.tick().tiered_upto <= began
    broker.log.append_marker(9, 0, commit=True, coordinator_epoch=0, now_ms=NOW)
    broker.sent.append(Record(b"", b"", NOW))
    broker.send(300)
    broker.settle()
    assert side.tick().tiered_upto > began


def test_segments_deleted_before_their_copy_are_a_gap_reported_once(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    side = Side(broker)
    broker.send(200)
    broker.settle()
    reached = side.tick().tiered_upto
    broker.send(600)
    third = broker.log.segments()[-3]
    assert broker.log.drop_before(third.base_offset, now_ms=NOW, delay_ms=0, raises_log_start=True)
    broker.log.remove_deleted(NOW)
    broker.settle()
    found = side.tick()
    assert found.lost == ((reached, third.base_offset),)
    assert side.tick().lost == ()
    kept = [(at, each.value) for at, each in enumerate(broker.sent) if not reached <= at < third.base_offset]
    assert side.values() == kept[: len(side.values())]


def test_segments_deleted_after_they_were_opened_are_copied_completely(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.send(500)
    broker.settle()
    end = broker.log.segments()[-1].base_offset

    class Deleting(DiskStorage):
        opened = 0

        def open_reader(self, path: str):  # type: ignore[no-untyped-def]
            file = super().open_reader(path)
            Deleting.opened += 1
            return file

    side = Side(broker, Deleting())
    real = side.store.upload

    def upload(key: str, source: object) -> None:
        last = broker.log.segments()[-1].base_offset
        broker.log.drop_before(last, now_ms=NOW, delay_ms=0, raises_log_start=True)
        broker.log.remove_deleted(NOW)
        real(key, source)  # type: ignore[arg-type]

    side.store.upload = upload  # type: ignore[method-assign]
    found = side.tick()
    assert (found.problem, found.lost, found.tiered_upto) == (None, (), end)
    assert side.values() == [(at, each.value) for at, each in enumerate(broker.sent)][:end]


def test_directory_that_changes_while_it_is_listed_is_read_by_the_next_maintenance(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.send(500)
    broker.settle()

    class Changing(DiskStorage):
        def open_reader(self, path: str):  # type: ignore[no-untyped-def]
            if len(broker.log.segments()) > 3:
                first = broker.log.segments()[2].base_offset
                broker.log.drop_before(first, now_ms=NOW, delay_ms=0, raises_log_start=True)
                broker.log.remove_deleted(NOW)
            return super().open_reader(path)

    side = Side(broker, Changing())
    assert side.tick().copied == 0
    for _ in range(9):
        found = side.tick()
    assert found.problem is None
    assert found.lag_bytes == 0


def test_log_with_other_records_at_copied_offsets_is_a_conflict(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    side = Side(broker)
    broker.log.begin_epoch(3)
    broker.send(500)
    broker.settle()
    side.tick()
    before = side.values()
    broker.log.truncate_to(200, now_ms=NOW)
    broker.log.begin_epoch(5)
    broker.send(500)
    broker.settle()
    found = side.tick()
    assert isinstance(found.problem, Conflict)
    assert side.values() == before


@pytest.mark.parametrize("between", [False, True])
def test_compacted_topic_is_copied_cleaned_while_the_brokers_cleaner_merges(tmp_path: Path, between: bool) -> None:
    broker = Broker(tmp_path, is_compacted=True)
    side = Side(broker)
    for _ in range(5):
        broker.send(300)
        broker.settle()
        found = side.tick()
        assert found.problem is None
        if between:
            broker.send(200)
            broker.log.cleaner_offset = 0
            clean(broker.log, clean_from=0, now_ms=NOW)
            broker.log.remove_deleted(NOW)
    broker.settle()
    found = side.tick()
    assert found.problem is None
    assert found.lag_bytes == 0
    values = side.values()
    assert len(values) < len(broker.sent) / 3
    newest = {each.key: at for at, each in enumerate(broker.sent) if at < found.tiered_upto}
    assert set(newest.values()) <= {offset for offset, _ in values}
    entries = RemoteLog(side.store).manifest(NAME).segments
    assert all(entry.cleaned_through is not None and entry.cleaned_through >= entry.next_offset for entry in entries)


def test_every_commit_of_a_compacted_topic_has_a_record_of_each_key(tmp_path: Path) -> None:
    """The cleaner removes older records of a key in favour of newer ones.
    Both must be in one commit. Otherwise the bucket would lack the key for a while."""
    broker = Broker(tmp_path, is_compacted=True)
    side = Side(broker)
    side.adopter.properties = lambda topic: {"cleanup.policy": "compact", "segment.bytes": "2000"}
    for turn in range(2):
        broker.send(300, keys=200 + turn)
        broker.log.roll(now_ms=NOW)
        broker.settle()
        seen: list[set[bytes | None]] = []
        real = side.store.put_if_absent

        def put(key: str, body: bytes, real=real, seen=seen) -> None:  # type: ignore[no-untyped-def]
            real(key, body)
            if "/meta/head/" in key and RemoteLog(side.store).manifest(NAME).has_entries:
                reader = RemoteLog(side.store).reader()
                seen.append({each.key for each in reader.records(NAME, 0)})

        side.store.put_if_absent = put  # type: ignore[method-assign]
        found = side.tick()
        side.store.put_if_absent = real  # type: ignore[method-assign]
        assert (found.problem, found.lag_bytes) == (None, 0)
        assert found.tiered_upto == broker.log.next_offset
        newest = {each.key: at for at, each in enumerate(broker.sent)}
        assert set(newest.values()) <= {offset for offset, _ in side.values()}
        assert all(set(newest) <= keys or turn == 0 for keys in seen[1:])
    assert len(RemoteLog(side.store).manifest(NAME).segments) >= 6


def test_large_compacted_topic_is_copied_in_several_parts(tmp_path: Path, monkeypatch) -> None:
    broker = Broker(tmp_path, is_compacted=True)
    side = Side(broker)
    broker.send(600, keys=100)
    broker.settle()
    monkeypatch.setattr(adopting, "WORK_BYTES", 5000)
    rounds = [side.tick() for _ in range(8)]
    assert [each.problem for each in rounds] == [None] * 8
    assert len({each.tiered_upto for each in rounds}) > 3
    assert (rounds[0].lag_bytes > 0, rounds[-1].lag_bytes) == (True, 0)
    newest = {each.key: at for at, each in enumerate(broker.sent) if at < rounds[-1].tiered_upto}
    assert set(newest.values()) <= {offset for offset, _ in side.values()}


def test_transaction_of_a_compacted_topic_is_copied_together_with_its_marker(tmp_path: Path) -> None:
    """A cleaning without the marker would keep aborted records for ever.
    Or it would treat a marker as one of no transaction."""
    broker = Broker(tmp_path, is_compacted=True)
    side = Side(broker)
    broker.send(30, keys=30)
    producer = Producer(producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    aborted = [Record(b"aborted %d" % at, b"never", NOW) for at in range(5)]
    broker.log.append(aborted, now_ms=NOW, producer=producer)
    broker.sent += aborted
    broker.send(30, keys=30)
    broker.log.roll(now_ms=NOW)
    middle = broker.log.next_offset
    broker.send(30, keys=30)
    broker.log.append_marker(9, 0, commit=False, coordinator_epoch=0, now_ms=NOW)
    broker.sent.append(Record(b"", b"", NOW))
    broker.send(30, keys=30)
    broker.log.roll(now_ms=NOW)
    broker.send(5)
    broker.settle(middle)  # the marker is above the recorded high watermark
    assert side.tick().tiered_upto == 0
    broker.settle()
    assert side.tick().tiered_upto == broker.log.segments()[-1].base_offset
    reader = RemoteLog(side.store).reader(isolation=Isolation.READ_COMMITTED)
    assert not [each for each in reader.records(NAME, 0) if each.value == b"never"]


def test_compacted_topic_with_always_open_transactions_is_copied_without_cleaning(tmp_path: Path, monkeypatch) -> None:
    broker = Broker(tmp_path, is_compacted=True)
    side = Side(broker)
    monkeypatch.setattr(adopting, "IN_DOUBT_BYTES", 3000)
    for turn in range(8):
        producer = Producer(producer_id=turn, producer_epoch=0, base_sequence=0, is_transactional=True)
        word = b"never" if turn % 2 else b"kept"
        records = [Record(b"%d of %d" % (at, turn), word, NOW) for at in range(5)]
        broker.log.append(records, now_ms=NOW, producer=producer)
        broker.sent += records
        if turn:
            broker.log.append_marker(turn - 1, 0, commit=turn % 2 == 1, coordinator_epoch=0, now_ms=NOW)
            broker.sent.append(Record(b"", b"", NOW))
        broker.send(30, keys=30)
        broker.log.roll(now_ms=NOW)
    broker.settle()
    found = side.tick()
    assert found.problem is None
    assert found.tiered_upto > broker.log.next_offset // 2
    reader = RemoteLog(side.store).reader(isolation=Isolation.READ_COMMITTED)
    stable = reader.offsets(NAME)[1]
    assert 0 < found.tiered_upto - stable < 60
    committed = [
        (each.offset, each.value)
        for each in broker.log.records(0, isolation=Isolation.READ_COMMITTED)
        if each.offset < stable
    ]
    assert [(each.offset, each.value) for each in reader.records(NAME, 0)] == committed
    assert not [value for _, value in committed if value == b"never"]


def test_store_that_overwrites_is_refused_before_any_write(tmp_path: Path) -> None:
    """With such a store two sidecars would both commit, and each would see only its own manifests."""
    broker = Broker(tmp_path)
    broker.send(300)
    broker.settle()
    side = Side(broker)
    side.store.put_if_absent = side.store.put  # type: ignore[method-assign]
    with pytest.raises(InvalidRequest, match="overwrites existing objects"):
        side.tick()
    assert side.store._objects == {}
    side.adopter.is_single_writer = True
    assert side.tick().problem is None


def test_segments_that_expired_in_the_bucket_are_not_copied_again(tmp_path: Path) -> None:
    """The broker's retention is longer.
    Its segments below the log start offset of the bucket are not needed."""
    broker = Broker(tmp_path)
    side = Side(broker)
    broker.send(300)
    broker.settle()
    upto = side.tick().tiered_upto
    prefix = list_partitions(side.store)[0].prefix
    co_writer = MetadataLog(side.store, prefix)
    entries = co_writer.join().segments
    co_writer.commit(expire_segments([entry.ulid for entry in entries], now_ms=NOW, log_start_offset=upto), NOW)
    before = dict(side.store._objects)
    found = side.tick()
    assert (found.copied, found.tiered_upto, found.lost) == (0, upto, ())
    assert side.store._objects == before
    broker.send(100)
    broker.settle()
    found = side.tick()
    assert (found.problem, found.lost) == (None, ())
    assert side.values() == [(at, each.value) for at, each in enumerate(broker.sent)][upto : found.tiered_upto]


def test_adoption_collects_old_manifests(tmp_path: Path, monkeypatch) -> None:
    """Each segment adds a manifest. Years of manifests would be listed and billed."""
    broker = Broker(tmp_path)
    side = Side(broker)
    monkeypatch.setattr(retention, "MANIFESTS_RETAINED", 5)
    monkeypatch.setattr(retention, "MANIFESTS_AT_ONCE", 5)
    for _ in range(30):
        broker.send(1)
        broker.log.roll(now_ms=NOW)
    broker.settle()
    assert side.tick().problem is None
    assert side.tick().problem is None
    manifests = [key for key in side.store._objects if "/meta/head/" in key]
    assert len(manifests) < 12
    assert len(side.values()) == 30


def test_fenced_sidecar_never_takes_the_partition_over_again(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    one = Side(broker)
    other = Side(broker)
    other.store = one.store
    other.adopter = Adopter(one.store, broker.disk, broker.root, str(tmp_path / "w2"), properties=lambda topic: {})
    for side in (one, other):
        broker.send(100)
        broker.settle()
        assert side.tick().problem is None
    manifest = RemoteLog(one.store).manifest(NAME)
    for _ in range(2):
        broker.send(100)
        broker.settle()
        assert isinstance(one.tick().problem, Fenced)
    assert RemoteLog(one.store).manifest(NAME) == manifest
    assert other.tick().problem is None
    plan = plan_restore(one.store, list_partitions(one.store), RestoreWish(takes_over=True), now_ms=NOW)
    run_restore(one.store, plan, ModelDisk(), "./restored", now_ms=lambda: NOW)
    manifest = RemoteLog(one.store).manifest(NAME)
    broker.send(100)
    broker.settle()
    assert isinstance(other.tick().problem, Fenced)
    anew = Adopter(one.store, broker.disk, broker.root, str(tmp_path / "w3"), properties=lambda topic: {})
    (found,) = anew.tick(NOW)
    assert isinstance(found.problem, Conflict)
    assert "another writer" in str(found.problem)
    assert RemoteLog(one.store).manifest(NAME) == manifest


def test_topic_created_again_under_its_name_is_a_different_topic(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    side = Side(broker)
    broker.send(300)
    broker.settle()
    assert side.tick().copied == 3
    before, old_id = side.values(), broker.topic_id
    broker.log.close()
    shutil.rmtree(Path(broker.root) / NAME.directory)
    broker.directory.forget(NAME)
    broker.topic_id, broker.sent = new_topic_id(), []
    broker.directory.create(NAME, broker.topic_id)
    broker.log = broker.directory.open_log(NAME, SETTINGS, now_ms=NOW)
    broker.send(700)  # beyond the end of the old topic
    broker.settle()
    found = side.tick()
    assert found.problem is None
    assert found.lost == ()

    def of(topic_id: str) -> list[tuple[int, bytes | None]]:
        reader = RemoteLog(side.store, topic_ids={"t": topic_id}).reader()
        return [(record.offset, record.value) for record in reader.records(NAME, 0)]

    assert of(old_id) == before
    assert of(broker.topic_id) == [(at, each.value) for at, each in enumerate(broker.sent)][: found.tiered_upto]
    assert found.tiered_upto == broker.log.segments()[-1].base_offset


def test_topic_created_again_during_a_read_is_copied_by_the_next_maintenance(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.send(300)
    broker.settle()
    is_due = [True]

    class Recreating(DiskStorage):
        def open_reader(self, path: str):  # type: ignore[no-untyped-def]
            if is_due and is_due.pop():
                checkpoints.write_topic_id(broker.disk, f"{broker.root}/t-0", new_topic_id())
            return super().open_reader(path)

    assert Side(broker, Recreating()).tick().copied == 0


@pytest.mark.parametrize("is_torn", [False, True])
def test_segment_is_not_copied_before_its_producer_snapshot_is_complete(tmp_path: Path, is_torn: bool) -> None:
    """A broker first rolls and then writes the snapshot. In between the snapshot is missing or torn."""
    broker = Broker(tmp_path)
    broker.send(200)
    told = broker.log.segments()[-1].base_offset
    producer = Producer(producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    broker.log.append([Record(b"k", b"open", NOW)], now_ms=NOW, producer=producer)
    broker.sent.append(Record(b"k", b"open", NOW))
    broker.log.roll(now_ms=NOW)
    broker.settle()
    newest = Path(broker.root) / "t-0" / f"{broker.log.next_offset:020d}.snapshot"
    whole = newest.read_bytes()
    newest.unlink()
    if is_torn:
        newest.write_bytes(whole[:-20])
    side = Side(broker)
    found = side.tick()
    assert (found.problem, found.tiered_upto) == (None, told)
    newest.write_bytes(whole)
    found = side.tick()
    assert (found.problem, found.tiered_upto) == (None, told)
    broker.log.append_marker(9, 0, commit=True, coordinator_epoch=0, now_ms=NOW)
    broker.log.roll(now_ms=NOW)
    broker.settle()
    assert side.tick().tiered_upto == broker.log.next_offset
    bucket = RemoteLog(side.store)
    entries = bucket.manifest(NAME).segments
    assert all(entry.indexes["producers"].length >= 10 for entry in entries)


def test_producers_of_a_compacted_topic_are_known_in_the_bucket(tmp_path: Path) -> None:
    broker = Broker(tmp_path, is_compacted=True)
    side = Side(broker)
    producer = Producer(producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=False)
    broker.log.append([Record(b"k", b"once", NOW)] * 3, now_ms=NOW, producer=producer)
    broker.sent += [Record(b"k", b"once", NOW)] * 3
    for _ in range(2):
        broker.send(200)
        broker.log.roll(now_ms=NOW)
        broker.settle()
        assert side.tick().problem is None
    (known,) = RemoteLog(side.store)._source(NAME).producers_in_bucket().entries()
    assert (known.producer_id, known.last_sequence) == (9, 2)


def test_partition_without_a_topic_id_is_a_problem_of_its_own(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.send(300)
    broker.settle()
    (Path(broker.root) / "u-0").mkdir()
    (Path(broker.root) / "__consumer_offsets-0").mkdir()
    one, other = Side(broker).adopter.tick(NOW)
    assert one.problem is None
    assert isinstance(other.problem, NotFound)


def test_adoption_continues_after_the_loss_of_its_work_directory(tmp_path: Path) -> None:
    broker = Broker(tmp_path, is_compacted=True)
    side = Side(broker)
    broker.send(300)
    broker.settle()
    side.tick()
    shutil.rmtree(tmp_path / "work")
    broker.send(300)
    broker.settle()
    assert side.tick().problem is None


def test_files_of_different_times_are_never_copied_as_one_segment(tmp_path: Path) -> None:
    """The broker's cleaner replaces a listed file by a shorter one."""
    broker = Broker(tmp_path)
    broker.send(500)
    broker.settle()
    first = Path(broker.root) / "t-0" / f"{0:020d}.log"
    is_due = [True]

    class Replacing(DiskStorage):
        def open_reader(self, path: str):  # type: ignore[no-untyped-def]
            if is_due and is_due.pop():
                shorter = first.with_suffix(".swap")
                shorter.write_bytes(first.read_bytes()[: int(kernels.scan_batches(first.read_bytes()).positions[2])])
                shorter.rename(first)
            return super().open_reader(path)

    found = Side(broker, Replacing()).tick()
    assert (found.copied, found.problem) == (0, None)


def test_partly_copied_segment_is_copied_from_the_end_of_the_bucket(tmp_path: Path) -> None:
    """The broker's cleaner merges copied and uncopied segments."""
    broker = Broker(tmp_path, is_compacted=True)
    side = Side(broker)
    broker.send(100, keys=100)
    broker.log.roll(now_ms=NOW)
    broker.settle()
    reached = side.tick().tiered_upto
    assert reached == 100
    broker.send(20, keys=100)
    broker.log.roll(now_ms=NOW)
    broker.log.settings = replace(SETTINGS, segment_bytes=100_000)
    broker.log.cleaner_offset = 0
    assert clean(broker.log, clean_from=0, now_ms=NOW) is not None
    broker.log.remove_deleted(NOW)
    first, active = broker.log.segments()
    assert (first.base_offset, first.next_offset, active.is_active) == (0, 120, True)
    broker.settle()
    found = side.tick()
    assert (found.problem, found.tiered_upto, found.lost) == (None, 120, ())
    assert side.values() == [(at, each.value) for at, each in enumerate(broker.sent)]


def test_adoption_of_a_directory_that_is_no_log_directory_is_refused(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bucket", "new"):
        (tmp_path / name).mkdir()
    (tmp_path / "bucket" / "tiered.json").write_text("{}")
    (tmp_path / "bucket" / "objects").mkdir()
    (tmp_path / "new" / "meta.properties").write_text("version=0\n")
    words = ["--once", "--remote", f"file://{tmp_path}/bucket"]
    assert invoke(["adopt", "bucket", *words]) == 2
    said = capfd.readouterr().err
    assert "the directory is not a Kafka log directory" in said
    assert "TOPIC-PARTITION" in said
    assert "segments copied" not in said
    assert invoke(["adopt", "nowhere", *words]) == 1
    assert invoke(["adopt", "new", *words]) == 0, "a broker without topics is accepted"


def test_partitions_stopped_by_one_cause_are_one_line_with_their_count(capfd) -> None:
    done = [AdoptedPartition(partition=TopicPartition("orders", number)) for number in range(9)]
    for number in range(5):
        problem = Unavailable("cannot store an object", object=f"orders-{number}/x.log", cause="timeout")
        done[number] = replace(done[number], problem=problem)
    done[7] = replace(done[7], problem=Corrupt("cannot decode a batch, crc differs", at=5))
    external_buckets._print_problems(done)
    assert capfd.readouterr().err.splitlines() == [
        "! 5 partitions (orders/0, orders/1, orders/2, ...): cannot store an object: cause=timeout",
        "! orders/7: cannot decode a batch, crc differs: at=5",
    ]
