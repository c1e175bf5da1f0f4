"""Appends of columns: partitioned as tuples are, all or none.
Segments of old formats are not copied before cleaning."""

from __future__ import annotations

import pyarrow as pa
import pytest
from legacy_samples import many
from manager_world import COMPACTED, NAME, NOW, TIERED, World, values

from local import kernels
from local.errors import InvalidRequest
from local.format.record import Record
from local.names import TopicPartition
from local.records.record_columns import record_columns
from tiered.manager.manager import Partitioner

RECORDS = [Record(None if at % 11 == 3 else b"k%d" % (at % 97), b"value %d" % at, NOW + at) for at in range(500)]
TABLE = pa.table(
    {
        "key": pa.array([record.key for record in RECORDS], pa.binary()),
        "value": pa.array([record.value for record in RECORDS], pa.binary()),
        "timestamp": [record.timestamp_ms for record in RECORDS],
    }
)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_columns_are_partitioned_as_tuples_are(partitions: int) -> None:
    tuples = Partitioner().split(RECORDS, partitions)
    chunks = record_columns(TABLE.to_batches(max_chunksize=100)[0], now_ms=0) + record_columns(TABLE[100:], now_ms=0)
    columns = Partitioner().split_columns(chunks, partitions)
    assert {number: sum(map(len, share)) for number, share in columns.items()} == {
        number: len(share) for number, share in tuples.items()
    }
    for number, share in columns.items():
        values = [
            bytes(c.value_data[s : s + n]) for c in share for s, n in zip(c.value_starts, c.value_lengths, strict=True)
        ]
        assert values == [record.value for record in tuples[number]]


def test_appended_columns_are_read_as_records(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 3, now_ms=NOW)
        given = manager.append_columns("t", TABLE, now_ms=NOW)
        assert sum(result.next_offset - result.base_offset for result in given.values()) == 500
        read = [r for name in given for c in manager.reader().columns(name, 0) for r in c.records()]
        assert sorted((r.key or b"", r.value, r.timestamp_ms) for r in read) == sorted(
            (r.key or b"", r.value, r.timestamp_ms) for r in RECORDS
        )


def test_columns_of_a_reader_are_appended_to_another_topic(world: World) -> None:
    with world.open() as manager:
        for topic in ("t", "u"):
            manager.topics.create(topic, 1, now_ms=NOW)
        manager.append("t", RECORDS, now_ms=NOW)
        for columns in manager.reader().columns(NAME, 0):
            manager.append_columns("u", columns, 0, now_ms=NOW)
        copied = [r for c in manager.reader().columns(TopicPartition("u", 0), 0) for r in c.records()]
        assert [Record(r.key, r.value, r.timestamp_ms) for r in copied] == RECORDS


def test_columns_are_appended_to_no_partition_if_one_refuses_its_part(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 3, {"cleanup.policy": "compact"}, now_ms=NOW)
        with pytest.raises(InvalidRequest, match="has no key"):
            manager.append_columns("t", TABLE, now_ms=NOW)
        assert {manager.reader().offsets(TopicPartition("t", at))[1] for at in range(3)} == {0}
        with pytest.raises(InvalidRequest, match="neither Columns nor an Arrow table"):
            manager.append_columns("t", RECORDS, now_ms=NOW)


def test_segment_of_an_old_format_is_not_copied_and_a_problem_names_it(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        manager.topics.create("u", 1, TIERED, now_ms=NOW)
    data = many(1, 60)
    del world.disk.names["./data/.kafka_cleanshutdown"]
    world.disk.names["./data/t-0/00000000000000000000.log"].data[:] = data
    with world.open() as manager:
        for topic in ("t", "u"):
            manager.append(topic, RECORDS, now_ms=NOW)
        for _ in range(3):
            while manager.tick(NOW):
                pass
            assert "format 0 or 1 cannot be tiered" in str(manager.problems[NAME])
            assert "t-0/00000000000000000000.log" in str(manager.problems[NAME])
            assert TopicPartition("u", 0) not in manager.problems
        assert [value for _, value in values(manager.reader())] == [
            *(b"value %d" % at for at in range(60)),
            *(record.value for record in RECORDS),
        ]
        assert kernels.scan_batches(world.disk.read("./data/t-0/00000000000000000000.log")).has_legacy
        assert manager.reader().offsets(TopicPartition("u", 0))[1] == 500


def test_compacted_log_of_an_old_format_is_copied_after_its_cleaning(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, COMPACTED, now_ms=NOW)
    del world.disk.names["./data/.kafka_cleanshutdown"]
    world.disk.names["./data/t-0/00000000000000000000.log"].data[:] = many(1, 60)
    keyed = [record for record in RECORDS if record.key is not None]
    for turn in range(3):
        with world.open() as manager:
            assert manager.problems == {}
            manager.append("t", keyed, now_ms=NOW)
            manager.partitions.roll("t", now_ms=NOW)
            while manager.tick(NOW + turn):
                pass
            assert manager.problems == {}
            records = [record for columns in manager.reader().columns(NAME, 0) for record in columns.records()]
    assert manager.reader().offsets(NAME)[0] == 0
    newest = {b"k%d" % (at % 9): b"value %d" % at for at in range(60)} | {each.key: each.value for each in keyed}
    assert {record.key: record.value for record in records} == newest
    assert any(each.key.endswith(".log") for each in world.store.list(""))
