"""Buckets with Kafka's own files: LocalTieredStorage, Pinterest's uploader, directories of logs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from external_samples import NAME, NOW, TOPIC_ID, Sample, put_aiven, put_kafka_local, put_log, put_pinterest, write_log
from external_truth import assert_reads

from local.errors import Corrupt, InvalidRequest, LogError, OffsetOutOfRange
from local.index.txn_index import encode, entries
from local.names import TopicPartition
from local.records.isolation import Isolation
from remote.external.external_layout import LayoutOptions
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore
from tiered.read.bucket_reader import RemoteLog
from tiered.read.external_partition import built_indexes, position_of
from tiered.tables.remote_tables import open_remote

COMMITTED = Isolation.READ_COMMITTED


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Sample:
    return write_log(tmp_path_factory.mktemp("log") / NAME.directory)


def _opened(store, layout: str = "auto") -> RemoteLog:
    return RemoteLog(store, layout=LayoutOptions(layout=layout))


def _put_all(store, layout: str, sample: Sample, **kw) -> None:
    for number, files in enumerate(sample.segments):
        match layout:
            case "local-tiered-storage":
                put_kafka_local(store, files, number=number, **kw)
            case "pinterest":
                put_pinterest(store, files, **kw)
            case "logs":
                put_log(store, files, **kw)


LAYOUTS = ("local-tiered-storage", "pinterest", "logs")


@pytest.mark.parametrize("asked", ["auto", "by name"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_kafka_files_is_read_record_for_record(sample, layout, asked) -> None:
    store = MemoryStore()
    _put_all(store, layout, sample)
    before = {info.key: info.size_bytes for info in store.list("")}
    with _opened(store, "auto" if asked == "auto" else layout) as bucket:
        assert_reads(bucket, sample)
        assert bucket.gaps(NAME) == []
    assert {info.key: info.size_bytes for info in store.list("")} == before


def test_logs_without_indexes_are_read_by_offset_by_time_and_committed(sample) -> None:
    store = MemoryStore()
    _put_all(store, "logs", sample, indexes=False, root="deep/er/")
    with _opened(store) as bucket:
        assert_reads(bucket, sample)


def test_a_url_of_one_partition_directory_names_the_partition(sample, tmp_path) -> None:
    with open_remote(sample.directory.as_uri(), layout="logs") as bucket:
        assert bucket.partitions(NAME.topic) == [NAME]
        found = list(bucket.reader().records(NAME, 0))
    assert found[: len(sample.records)] == sample.records
    assert found[len(sample.records)].value == b"active"
    (tmp_path / f"{0:020d}.log").write_bytes(b"x" * 100)
    with open_remote(tmp_path.as_uri(), layout="logs") as bucket, pytest.raises(InvalidRequest, match="url"):
        bucket.topics()


def test_incomplete_segments_are_skipped(sample) -> None:
    last = sample.segments[-1]
    for layout, put, missing in (
        ("local-tiered-storage", put_kafka_local, (".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint")),
        ("pinterest", put_pinterest, (".index", ".timeindex")),
    ):
        for suffix in missing:
            store = MemoryStore()
            for number, files in enumerate(sample.segments):
                more = {"number": number} if put is put_kafka_local else {}
                put(store, files, without=(suffix,) if files is last else (), **more)
            with _opened(store, layout) as bucket:
                assert bucket.reader().offsets(NAME) == (0, last.base), (layout, suffix)


def test_a_torn_end_of_a_log_directory_is_its_end_and_elsewhere_damage(sample) -> None:
    store = MemoryStore()
    _put_all(store, "logs", sample)
    last, inner = sample.segments[-1], sample.segments[1]
    key = f"{NAME.directory}/{last.base:020d}.log"
    store.put(key, last.log + last.log[:50])
    with _opened(store) as bucket:
        assert list(bucket.reader().records(NAME, 0)) == sample.records
    store.put(key, b"\0" * 40)  # not one whole batch
    with _opened(store) as bucket:
        assert bucket.reader().offsets(NAME) == (0, last.base)
    store.put(f"{NAME.directory}/{inner.base:020d}.log", inner.log + inner.log[:50])
    with _opened(store) as bucket, pytest.raises(Corrupt, match="object="):
        list(bucket.reader().records(NAME, 0))


def test_copies_of_several_brokers_are_one_log_that_leader_epochs_decide(sample, tmp_path) -> None:
    """One broker lost an unclean election and has another history; another broker only lags."""
    lost = write_log(tmp_path / "lost" / NAME.directory, epochs=(0, 1), mark={1: b"lost"})
    fork = _start_of(sample, 2)
    assert lost.records != sample.records
    for layout in ("logs", "pinterest"):
        store = MemoryStore()
        _put_all(store, layout, sample, root="broker-a/x/")
        for files in lost.segments:
            if files.next > fork:
                put = put_log if layout == "logs" else put_pinterest
                put(store, files, root="broker-b/x/")
        with _opened(store) as bucket:
            assert list(bucket.reader().records(NAME, 0)) == sample.records, layout
            assert list(bucket.reader(COMMITTED).records(NAME, 0)) == sample.committed


def test_a_segment_truncated_at_the_next_leader_gives_no_facts_of_the_truncated_part(sample, tmp_path) -> None:
    """Its transaction index holds transactions that the lost leader ended in another way."""
    lost = write_log(tmp_path / "lost" / NAME.directory, epochs=(0, 1), mark={1: b"lost"})
    fork = _start_of(sample, 2)
    across = next(files for files in sample.segments if files.base < fork < files.next)
    theirs = next(files for files in lost.segments if files.base < fork < files.next)
    assert any(each.last_offset >= fork for each in entries(theirs.txnindex))
    cut = position_of(lambda at, length: across.log[at : at + length], across.index, across.base, fork)
    index, times = built_indexes(lambda at, length: across.log[cut + at : cut + at + length], fork)
    own = encode(each for each in entries(across.txnindex) if each.last_offset >= fork)
    rest = replace(across, base=fork, log=across.log[cut:], index=index, timeindex=times, txnindex=own)
    store = MemoryStore()
    before = [files for files in sample.segments if files.next <= across.base]
    after = [files for files in sample.segments if files.base >= across.next]
    for number, files in enumerate([*before, theirs, rest, *after]):
        put_kafka_local(store, files, number=number)
    with _opened(store) as bucket:
        assert list(bucket.reader().records(NAME, 0)) == sample.records
        assert list(bucket.reader(COMMITTED).records(NAME, 0)) == sample.committed
        aborted = bucket.reader(COMMITTED).aborted_transactions(NAME, 0, sample.stable)
    told = [each for files in sample.segments for each in entries(files.txnindex) if each.first_offset < sample.stable]
    assert aborted == told


def _start_of(sample: Sample, epoch: int) -> int:
    lines = sample.segments[-1].epochs.decode().splitlines()[2:]
    return next(int(line.split()[1]) for line in lines if line.split()[0] == str(epoch))


def test_a_gap_is_reported_and_skipped(sample) -> None:
    for layout in LAYOUTS:
        store = MemoryStore()
        lost = sample.segments[2]
        left = [files for files in sample.segments if files is not lost]
        _put_all(store, layout, Sample(segments=left, records=[], committed=[], stable=0, end=0))
        with _opened(store, layout) as bucket:
            assert bucket.gaps(NAME) == [(lost.base, lost.next)], layout
            offsets = [record.offset for record in bucket.reader().records(NAME, 0)]
            assert offsets == [r.offset for r in sample.records if not lost.base <= r.offset < lost.next]


def test_new_segments_are_seen_after_a_refresh_without_reading_known_ones_again(sample) -> None:
    inner = MemoryStore()
    store = MeteredStore(inner)
    for number, files in enumerate(sample.segments[:-1]):
        put_kafka_local(inner, files, number=number)
    with _opened(store, "local-tiered-storage") as bucket:
        end = sample.segments[-1].base
        assert bucket.reader().offsets(NAME) == (0, end)
        put_kafka_local(inner, sample.segments[-1], number=99)
        assert bucket.reader().offsets(NAME) == (0, end)
        before = store.counts()
        bucket.refresh()
        assert bucket.reader().offsets(NAME) == (0, sample.end)
        assert (store.counts() - before).gets <= 6


def test_an_ambiguous_layout_must_be_given_as_an_option(sample) -> None:
    store = MemoryStore()
    put_aiven(store, sample.segments[0], number=0)
    put_kafka_local(store, sample.segments[0], number=0)
    with _opened(store) as bucket, pytest.raises(InvalidRequest, match="found=aiven,local-tiered-storage"):
        bucket.topics()
    for layout in ("aiven", "local-tiered-storage"):
        with _opened(store, layout) as bucket:
            assert bucket.topics() == [NAME.topic]
            assert bucket.topic_ids(NAME.topic) == [TOPIC_ID]
    with pytest.raises(InvalidRequest, match="unknown bucket layout"):
        LayoutOptions(layout="redpanda")
    with pytest.raises(InvalidRequest, match="the Aiven layout"):
        LayoutOptions(layout="logs", private_keys={"k": "f"})


def test_expired_offsets_are_out_of_range_and_later_ones_are_read(sample) -> None:
    store = MemoryStore()
    _put_all(store, "local-tiered-storage", sample)
    with _opened(store) as bucket:
        reader = bucket.reader()
        assert reader.offsets(NAME) == (0, sample.end)
        first, second = sample.segments[0], sample.segments[1]
        place = f"kafka-tiered-storage/{NAME.topic}-{NAME.partition}-{TOPIC_ID}/"
        store.delete([info.key for info in store.list(f"{place}{first.base:020d}")])
        with pytest.raises(OffsetOutOfRange):
            list(reader.records(NAME, 0))
        assert reader.offsets(NAME) == (second.base, sample.end)
        store.delete([info.key for info in store.list("")])
        bucket.refresh()
        assert reader.offsets(NAME) == (sample.end, sample.end)
        assert list(reader.records(NAME, sample.end)) == []
        with pytest.raises(OffsetOutOfRange):
            list(reader.records(NAME, 0))


def test_an_iceberg_bucket_is_refused_with_its_name() -> None:
    store = MemoryStore()
    store.put("orders/metadata/AAAAAAAAAAAAAAAAAAAAAA.puffin", b"PFA1")
    with _opened(store) as bucket, pytest.raises(InvalidRequest, match="Iceberg"):
        bucket.topics()


def test_damage_to_any_file_never_returns_wrong_records(sample) -> None:
    draw = random.Random(5)
    wrong = 0
    for layout in LAYOUTS:
        store = MemoryStore()
        _put_all(store, layout, sample)
        whole = {info.key: store.get(info.key) for info in store.list("") if info.size_bytes}
        for _ in range(60):
            key = draw.choice(sorted(whole))
            body = bytearray(whole[key])
            at = draw.randrange(len(body))
            match draw.randrange(3):
                case 0:
                    body[at : at + 8] = draw.randbytes(8)
                case 1:
                    body = body[:at] or body[:1]
                case 2:
                    body[at:at] = draw.randbytes(draw.randrange(1, 40))
            store.put(key, body)
            for isolation in (Isolation.READ_UNCOMMITTED, COMMITTED):
                with _opened(store, layout) as bucket:
                    try:
                        reader = bucket.reader(isolation)
                        found = list(reader.records(NAME, reader.offsets(NAME)[0]))
                        reader.offset_for_timestamp(NAME, NOW + 2000)
                    except LogError:
                        wrong += 1
                        continue
                # Offsets are outside of a batch's CRC; the contents of the batch are inside.
                assert {record.value for record in found} <= {record.value for record in sample.records}
            store.put(key, whole[key])
    assert wrong > 50


def test_a_segment_deleted_during_a_read_is_reported_as_a_gap(sample, caplog) -> None:
    store = MemoryStore()
    _put_all(store, "logs", sample)
    with _opened(store) as bucket:
        reader = bucket.reader()
        assert reader.offsets(NAME) == (0, sample.end)
        victim = sample.segments[2]
        store.delete([info.key for info in store.list(f"{NAME.directory}/{victim.base:020d}")])
        offsets = [record.offset for record in reader.records(NAME, 0)]
        assert offsets == [r.offset for r in sample.records if not victim.base <= r.offset < victim.next]
        assert bucket.gaps(NAME) == [(victim.base, victim.next)]
        assert f"first={victim.base} next={victim.next}" in caplog.text


def test_names_that_are_not_segments_are_skipped(sample) -> None:
    store = MemoryStore()
    _put_all(store, "logs", sample)
    for key in (
        "meta.properties",
        f"{NAME.directory}/leader-epoch-checkpoint",
        f"{NAME.directory}/{5:020d}.log.deleted",
        f"{NAME.directory}/{5:020d}.log.swap",
        "orders-eu-3.0123456789abcdef0123456789abcdef-delete/00000000000000000000.log",
        "__cluster_metadata-0/x",
        "no-partition/00000000000000000000.log",
    ):
        store.put(key, b"x")
    with _opened(store, "logs") as bucket:
        assert bucket.topics() == [NAME.topic]
        assert bucket.partitions(NAME.topic) == [TopicPartition(NAME.topic, NAME.partition)]
        assert list(bucket.reader().records(NAME, 0)) == sample.records
