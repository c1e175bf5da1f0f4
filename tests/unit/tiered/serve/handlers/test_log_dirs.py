"""DeleteRecords, DescribeLogDirs and AlterReplicaLogDirs: Kafka's errors, each partition apart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_admin import FakeAdmin, refusing, run
from fake_source import CALL

from local.errors import DiskFailed, OffsetOutOfRange
from local.names import TopicPartition
from tiered.serve.admin import LogDir, Refused, Replica
from tiered.serve.handlers.log_dirs import alter_replica_log_dirs, delete_records, describe_log_dirs
from tiered.serve.handlers.service import Service
from tiered.serve.messages.base import Error
from tiered.serve.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)


def deleted(admin: FakeAdmin, *records: tuple[str, int, int], timeout_ms: int = 60_000) -> list[tuple[Error, int]]:
    topics = tuple(
        DeleteRecordsTopic(name=name, partitions=(DeleteRecordsPartition(partition_index=number, offset=offset),))
        for name, number, offset in records
    )
    request = DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)
    found = run(admin, lambda service: delete_records(service, request, CALL))
    return [(one.error_code, one.low_watermark) for each in found.topics for one in each.partitions]


def test_records_are_deleted_of_each_partition_on_its_own() -> None:
    admin = refusing("bad", OffsetOutOfRange("too far"), orders=2, bad=1)
    assert deleted(admin, ("orders", 1, 5), ("bad", 0, 9), ("orders", 2, 0), ("nope", 0, 0), ("orders", 0, -1)) == [
        (Error.NONE, 5),
        (Error.OFFSET_OUT_OF_RANGE, -1),
        (Error.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (Error.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (Error.NONE, 0),
    ]
    assert [each[1] for each in admin.calls] == ["orders/1", "bad/0", "orders/0"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused(Error.POLICY_VIOLATION, "compacted"), Error.POLICY_VIOLATION),
        (DiskFailed("no disk"), Error.KAFKA_STORAGE_ERROR),
    ],
)
def test_an_error_of_the_node_is_that_of_the_partition(error: Exception, code: Error) -> None:
    assert deleted(refusing("orders", error, orders=1), ("orders", 0, 5)) == [(code, -1)]


def test_records_are_not_deleted_without_time() -> None:
    admin = FakeAdmin(orders=1)
    assert deleted(admin, ("orders", 0, 5), timeout_ms=0) == [(Error.REQUEST_TIMED_OUT, -1)]
    assert admin.calls == []


def described(admin: FakeAdmin, topics: Any) -> Any:
    request = DescribeLogDirsRequest(topics=topics)
    return run(admin, lambda service: describe_log_dirs(service, request, CALL))


def test_directories_have_their_replicas_and_their_space() -> None:
    admin = FakeAdmin(a=2, b=1)
    a0, a1, b0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
    moving = Replica(partition=a1, size_bytes=2, is_future=True)
    admin.dirs = [
        LogDir(
            path="/one",
            replicas=(Replica(partition=a0, size_bytes=5), Replica(partition=b0, size_bytes=6), moving),
            free_bytes=7,
            total_bytes=9,
        ),
        LogDir(path="/two", is_offline=True, is_cordoned=True),
    ]
    one, two = described(admin, None).results
    assert [(each.name, [p.partition_index for p in each.partitions]) for each in one.topics] == [
        ("a", [0, 1]),
        ("b", [0]),
    ]
    future = one.topics[0].partitions[1]
    assert (future.is_future_key, future.offset_lag, future.partition_size) == (True, -1, 2)
    assert (one.usable_bytes, one.total_bytes, one.error_code) == (7, 9, Error.NONE)
    assert (two.error_code, two.usable_bytes, two.total_bytes) == (Error.KAFKA_STORAGE_ERROR, -1, -1)
    some = described(admin, (DescribableLogDirTopic(topic="a", partitions=(0,)),)).results
    assert [[(t.name, len(t.partitions)) for t in each.topics] for each in some] == [[("a", 1)], []]
    assert [each.topics for each in described(admin, ()).results] == [(), ()]


def moved(admin: FakeAdmin, *wanted: tuple[str, str, int], waits: bool = True) -> list[tuple[str, list[Error]]]:
    dirs = tuple(
        AlterReplicaLogDir(path=path, topics=(AlterReplicaLogDirTopic(name=name, partitions=(number,)),))
        for path, name, number in wanted
    )

    async def work(service: Service) -> Any:
        found = await alter_replica_log_dirs(service, AlterReplicaLogDirsRequest(dirs=dirs), CALL)
        if waits:
            assert await asyncio.to_thread(admin.moved.wait, 60)
        return found

    found = run(admin, work)
    return [(each.topic_name, [one.error_code for one in each.partitions]) for each in found.results]


def test_a_move_begins_and_is_not_waited_for() -> None:
    admin = FakeAdmin(a=1)
    assert moved(admin, ("/two", "a", 0), ("/two", "nope", 0)) == [
        ("a", [Error.NONE]),
        ("nope", [Error.UNKNOWN_TOPIC_OR_PARTITION]),
    ]
    assert admin.calls == [("move", "a/0", "/two")]


def test_a_move_that_cannot_begin_has_its_error_and_one_that_is_done_has_none() -> None:
    refused = refusing("a", Refused(Error.LOG_DIR_NOT_FOUND, "no such directory"), a=1)
    assert moved(refused, ("/x", "a", 0), waits=False) == [("a", [Error.LOG_DIR_NOT_FOUND])]
    done = FakeAdmin(a=1)
    done.must_move = False
    assert moved(done, ("/one", "a", 0), waits=False) == [("a", [Error.NONE])]
    assert refused.calls == done.calls == []
