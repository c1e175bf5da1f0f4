"""Offsets in a transaction: AddOffsetsToTxn and TxnOffsetCommit.

Order of effects of TxnOffsetCommit: the transaction has the group's partition of ``__consumer_offsets`` → the offsets
are durable in it and pending in memory → the response. The marker commits or drops them.

Source: kafka `KafkaApis.handleTxnOffsetCommitRequest`, `GroupCoordinatorService.commitTransactionalOffsets`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from local.errors import LogError
from tiered.serve.groups.commits import Committer, NewOffset
from tiered.serve.groups.coordinator import GroupCoordinator
from tiered.serve.handlers.service import Call, Service, error_of, served_partition
from tiered.serve.handlers.transactions import coordinator, in_pool, known_error
from tiered.serve.messages.base import Error
from tiered.serve.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tiered.serve.transactions.coordinator import Check
from tiered.serve.transactions.transaction import ProducerOf

ADDS_PARTITION_SINCE, _KNOWS_ABORTABLE_SINCE = 5, 4  # versions of TxnOffsetCommit


async def add_offsets_to_txn(service: Service, request: AddOffsetsToTxnRequest, call: Call) -> AddOffsetsToTxnResponse:
    if service.groups is None:
        return AddOffsetsToTxnResponse(error_code=Error.COORDINATOR_NOT_AVAILABLE)
    if error := await service.groups.prepare():  # before it the number of partitions is unknown
        return AddOffsetsToTxnResponse(error_code=error)
    producer = ProducerOf(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
    )
    partitions = [service.groups.partition_of(request.group_id)]
    add = partial(coordinator(service).add_partitions, producer, partitions)
    error = await in_pool(service, request.transactional_id, add)
    return AddOffsetsToTxnResponse(error_code=known_error(error, call.version))


async def txn_offset_commit(service: Service, request: TxnOffsetCommitRequest, call: Call) -> TxnOffsetCommitResponse:
    try:
        topics, failure = await service.topics(), Error.UNKNOWN_TOPIC_OR_PARTITION
    except LogError as error:
        error_of(error, "all")
        topics, failure = {}, Error.COORDINATOR_NOT_AVAILABLE
    errors: list[list[Error | None]] = []
    offsets: list[NewOffset] = []
    for topic in request.topics:
        errors.append([])
        for each in topic.partitions:
            partition = served_partition(topics, topic.name, each.partition_index)
            errors[-1].append(None if partition is not None else failure)
            if partition is not None:
                offsets.append(
                    NewOffset(
                        partition=partition,
                        offset=each.committed_offset,
                        leader_epoch=each.committed_leader_epoch,
                        metadata=each.committed_metadata,
                    )
                )
    results = iter(await _committed(service, request, offsets, call.version) if offsets else ())
    return TxnOffsetCommitResponse(
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=next(results) if error is None else error
                    )
                    for each, error in zip(topic.partitions, found, strict=True)
                ),
            )
            for topic, found in zip(request.topics, errors, strict=True)
        )
    )


async def _committed(
    service: Service, request: TxnOffsetCommitRequest, offsets: Sequence[NewOffset], version: int
) -> list[Error]:
    groups = service.groups
    if groups is None:
        return [Error.COORDINATOR_NOT_AVAILABLE] * len(offsets)
    if not request.group_id:
        return [Error.INVALID_GROUP_ID] * len(offsets)
    if error := await groups.prepare():  # before it the number of partitions is unknown
        return [error] * len(offsets)
    # A task of its own: the end of the connection must not cancel it between the admission and its end.
    return await asyncio.shield(asyncio.create_task(_admitted(service, groups, request, offsets, version)))


async def _admitted(
    service: Service,
    groups: GroupCoordinator,
    request: TxnOffsetCommitRequest,
    offsets: Sequence[NewOffset],
    version: int,
) -> list[Error]:
    """Commit within an admission of the transaction coordinator, so that the transaction does not end meanwhile."""
    producer = ProducerOf(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
    )
    committer = Committer(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
    )
    where = groups.partition_of(request.group_id)
    check = Check.VERIFY_ABORTABLE if version >= _KNOWS_ABORTABLE_SINCE else Check.VERIFY
    check = Check.ADD if version >= ADDS_PARTITION_SINCE else check
    with ExitStack() as stack:
        admission = coordinator(service).appending(producer, [where], check)
        verdicts = await in_pool(service, request.transactional_id, partial(stack.enter_context, admission))
        if verdicts[where] is not Error.NONE:
            return [verdicts[where]] * len(offsets)
        return await groups.commit_transactional(
            committer, producer.producer_id, producer.producer_epoch, offsets, partition=where
        )
