"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_source import CALL, ORDERS, FakeSource, run

from local.errors import Unavailable
from local.records.offset_spec import FoundOffset
from tiered.serve.handlers.offsets import end_of_epoch, list_offsets, offset_for_leader_epoch
from tiered.serve.messages.base import Error
from tiered.serve.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)


def listed(
    source: FakeSource, timestamp: int, *, version: int = 11, topic: str = "orders", epoch: int = -1
) -> ListOffsetsPartitionResponse:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=epoch)
    asked = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=(partition,)),))
    response = run(source, lambda service: list_offsets(service, asked, replace(CALL, version=version)))
    ((found,),) = [each.partitions for each in response.topics]
    return found


def test_a_found_offset_has_its_timestamp_and_epoch() -> None:
    source = FakeSource(orders=50)
    source.found = FoundOffset(7, 1000, 3)
    found = listed(source, 999)
    assert (found.error_code, found.offset, found.timestamp, found.leader_epoch) == (Error.NONE, 7, 1000, 3)
    source.found = FoundOffset(0, None, None)
    found = listed(source, -2)
    assert (found.offset, found.timestamp, found.leader_epoch) == (0, -1, -1)


def test_no_record_at_a_time_is_offset_minus_one_without_an_error() -> None:
    found = listed(FakeSource(orders=50), 10**15)
    assert (found.error_code, found.offset, found.timestamp) == (Error.NONE, -1, -1)


@pytest.mark.parametrize(
    ("timestamp", "first_version"),
    [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, None), (-(2**63), None)],
)
def test_a_code_is_refused_in_versions_that_do_not_have_it(timestamp: int, first_version: int | None) -> None:
    source = FakeSource(orders=50)
    source.found = FoundOffset(1)
    for version in range(1, 12):
        is_known = first_version is not None and version >= first_version
        expected = Error.NONE if is_known else Error.UNSUPPORTED_VERSION
        assert listed(source, timestamp, version=version).error_code is expected, version


def test_unknown_topics_old_epochs_and_errors_have_their_codes() -> None:
    source = FakeSource(orders=50)
    assert listed(source, -1, topic="nope").error_code is Error.UNKNOWN_TOPIC_OR_PARTITION
    assert listed(source, -1, epoch=4).error_code is Error.FENCED_LEADER_EPOCH
    assert listed(source, -1, epoch=6).error_code is Error.UNKNOWN_LEADER_EPOCH
    source.errors[ORDERS] = Unavailable("down")
    assert listed(source, -1).error_code is Error.KAFKA_STORAGE_ERROR
    source.topics_error = Unavailable("down")
    assert listed(source, -1).error_code is Error.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(
    ("requested", "expected"),
    [(-1, None), (0, (0, 10)), (1, (0, 10)), (2, (2, 30)), (3, (2, 30)), (4, (2, 30)), (5, (5, 99)), (6, None)],
)
def test_the_end_of_an_epoch_is_the_start_of_the_next(requested: int, expected: tuple[int, int] | None) -> None:
    assert end_of_epoch(((0, 0), (2, 10), (5, 30)), 99, requested) == expected


def test_an_epoch_below_all_known_ones_ends_where_they_begin() -> None:
    assert end_of_epoch(((2, 10), (5, 30)), 99, 1) == (1, 10)
    assert end_of_epoch((), 99, 1) is None


def test_a_code_that_a_version_lacks_is_the_error_of_unknown_topics_too() -> None:
    assert listed(FakeSource(), -3, version=6, topic="nope").error_code is Error.UNSUPPORTED_VERSION


def test_a_partition_that_is_named_twice_is_refused_once() -> None:
    source = FakeSource(orders=50)
    source.found = FoundOffset(7)
    partitions = tuple(ListOffsetsPartition(partition_index=number, timestamp=-1) for number in (1, 0, 1))
    asked = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name="orders", partitions=partitions),))
    response = run(source, lambda service: list_offsets(service, asked, CALL))
    found = [(each.partition_index, each.error_code) for each in response.topics[0].partitions]
    assert found == [(0, Error.NONE), (1, Error.INVALID_REQUEST)]


def test_the_end_of_an_epoch_is_answered_for_each_partition() -> None:
    source = FakeSource(orders=50)

    def asked(partition: int, epoch: int, current: int = -1) -> OffsetForLeaderPartition:
        return OffsetForLeaderPartition(partition=partition, leader_epoch=epoch, current_leader_epoch=current)

    wanted = (asked(0, 3), asked(0, 9), asked(1, 3), asked(0, 3, 4))
    request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic="orders", partitions=wanted),))
    response = run(source, lambda service: offset_for_leader_epoch(service, request, CALL))
    assert response.topics[0].partitions == (
        EpochEndOffset(partition=0, leader_epoch=2, end_offset=40),
        EpochEndOffset(partition=0),
        EpochEndOffset(partition=1, error_code=Error.UNKNOWN_TOPIC_OR_PARTITION),
        EpochEndOffset(partition=0, error_code=Error.FENCED_LEADER_EPOCH),
    )
