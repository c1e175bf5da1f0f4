"""AddOffsetsToTxn and TxnOffsetCommit over both coordinators in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TypeVar

import pytest
from fake_offsets_log import FakeOffsetsLog
from fake_source import CALL, ORDERS, FakeSource
from fake_transactions import ID, OFFSETS, World

from local.errors import Unavailable
from local.names import TopicPartition
from tiered.serve.groups.coordinator import GroupCoordinator
from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.handlers.service import Service
from tiered.serve.handlers.transactional_offsets import add_offsets_to_txn, txn_offset_commit
from tiered.serve.messages.base import Error
from tiered.serve.messages.transactions import (
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tiered.serve.transactions.coordinator import EndMarker
from tiered.serve.transactions.transaction import ProducerOf, State, Transaction

T = TypeVar("T")
GROUP = "billing"


class Both:
    """A service with both coordinators; markers in the offsets topic reach the log of the groups."""

    def __init__(self) -> None:
        self.world, self.log = World(), FakeOffsetsLog(1)
        self.source = FakeSource(orders=10)
        self.groups = GroupCoordinator(self.log, GroupSettings(offsets_partitions=1))
        self.world.on_marker = self._marker_written

    def _marker_written(self, partition: TopicPartition, marker: EndMarker) -> None:
        if partition == OFFSETS:
            self.groups.transaction_ended(0, marker.producer_id, is_commit=marker.is_commit)

    def run(self, work: Callable[[Service], Coroutine[object, object, T]], *, is_loaded: bool = True) -> T:
        async def loaded() -> T:
            service = Service(source=self.source, groups=self.groups, transactions=self.world.coordinator)
            try:
                if is_loaded:
                    assert await self.groups.load()
                return await work(service)
            finally:
                service.close()

        return asyncio.run(loaded())

    def offset(self) -> int | None:
        found = self.groups.offsets_of(GROUP).get(ORDERS)
        return found.value.offset if found is not None else None


def committing(producer: ProducerOf, *partitions: int, **more: object) -> TxnOffsetCommitRequest:
    asked = tuple(
        TxnOffsetCommitRequestPartition(partition_index=each, committed_offset=7) for each in partitions or (0,)
    )
    values = {
        "transactional_id": producer.transactional_id,
        "group_id": GROUP,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "topics": (TxnOffsetCommitRequestTopic(name="orders", partitions=asked),),
        **more,
    }
    return TxnOffsetCommitRequest(**values)


async def committed(service: Service, request: TxnOffsetCommitRequest, version: int = 5) -> list[Error]:
    response = await txn_offset_commit(service, request, replace(CALL, version=version))
    return [each.error_code for topic in response.topics for each in topic.partitions]


@pytest.mark.parametrize("commit", [True, False])
def test_the_marker_decides_on_the_offsets(commit: bool) -> None:
    both = Both()

    async def work(service: Service) -> None:
        producer = both.world.producer()
        added = AddOffsetsToTxnRequest(
            transactional_id=ID, producer_id=producer.producer_id, producer_epoch=0, group_id=GROUP
        )
        assert (await add_offsets_to_txn(service, added, CALL)).error_code is Error.NONE
        assert await committed(service, committing(producer), 3) == [Error.NONE]
        assert (both.offset(), both.groups.is_unstable(GROUP, ORDERS)) == (None, True)
        assert both.world.coordinator.end(producer, commit=commit).error is Error.NONE
        await asyncio.sleep(0)  # the marker reaches the groups by their event loop
        assert (both.offset(), both.groups.is_unstable(GROUP, ORDERS)) == (7 if commit else None, False)

    both.run(work)
    assert len(both.world.log.markers[OFFSETS]) == 1


@pytest.mark.parametrize(
    ("version", "error"),
    [(3, Error.INVALID_TXN_STATE), (4, Error.TRANSACTION_ABORTABLE), (5, Error.NONE)],
)
def test_a_transaction_without_the_groups_partition(version: int, error: Error) -> None:
    both = Both()
    producer = both.world.producer()
    assert both.run(lambda service: committed(service, committing(producer), version)) == [error]
    found = both.world.coordinator.describe(ID)
    assert isinstance(found, Transaction)
    assert found.state is (State.ONGOING if version == 5 else State.EMPTY)


def test_refused_offsets_do_not_fail_the_others() -> None:
    both = Both()
    producer = both.world.producer()

    async def work(service: Service) -> list[list[Error]]:
        return [
            await committed(service, committing(producer, 0, 9)),
            await committed(service, committing(producer, 9)),
            await committed(service, committing(producer, group_id="")),
            await committed(service, committing(producer, generation_id=3, member_id="unknown")),
            await committed(service, committing(replace(producer, producer_epoch=8))),
        ]

    assert both.run(work) == [
        [Error.NONE, Error.UNKNOWN_TOPIC_OR_PARTITION],
        [Error.UNKNOWN_TOPIC_OR_PARTITION],
        [Error.INVALID_GROUP_ID],
        [Error.UNKNOWN_MEMBER_ID],
        [Error.INVALID_PRODUCER_EPOCH],
    ]


def test_no_partition_joins_a_transaction_before_the_groups_are_loaded() -> None:
    """The number of partitions of an existing topic is unknown before: the marker would miss the offsets."""
    both = Both()
    both.log.partitions = 50
    producer = both.world.producer()

    async def work(service: Service) -> list[Error]:
        added = AddOffsetsToTxnRequest(
            transactional_id=ID, producer_id=producer.producer_id, producer_epoch=0, group_id=GROUP
        )
        return [
            (await add_offsets_to_txn(service, added, CALL)).error_code,
            *await committed(service, committing(producer)),
        ]

    assert both.run(work, is_loaded=False) == [Error.COORDINATOR_LOAD_IN_PROGRESS] * 2
    found = both.world.coordinator.describe(ID)
    assert isinstance(found, Transaction)
    assert not found.partitions


def test_unlisted_topics_are_a_reason_to_try_again() -> None:
    both = Both()
    both.source.topics_error = Unavailable("no disk")
    producer = both.world.producer()
    found = both.run(lambda service: committed(service, committing(producer)))
    assert found == [Error.COORDINATOR_NOT_AVAILABLE]


def test_a_client_that_leaves_does_not_leave_the_transaction_open() -> None:
    """The request is cancelled while its offsets wait for the disk; the admission ends with the append."""
    both = Both()
    both.log.gate.clear()

    async def work(service: Service) -> None:
        producer = both.world.producer()
        request = asyncio.create_task(committed(service, committing(producer)))
        while not both.log.waiting.is_set():
            await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        end = both.world.coordinator.end
        assert end(producer, commit=True, client_version=2).error is Error.CONCURRENT_TRANSACTIONS
        both.log.gate.set()
        while end(producer, commit=True, client_version=2).error is Error.CONCURRENT_TRANSACTIONS:
            await asyncio.sleep(0)
        while both.offset() is None:
            await asyncio.sleep(0)

    both.run(work)
    assert both.offset() == 7
