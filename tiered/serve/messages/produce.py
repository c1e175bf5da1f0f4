"""The messages of Produce and InitProducerId."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from tiered.serve.messages.base import Api, Error, Versions

NO_TIME = NO_OFFSET = NO_PRODUCER_ID = NO_PRODUCER_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProduceData:
    """`records` are one piece: bytes of the frame, which the append may change in place."""

    index: int
    records: Sequence[memoryview] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceData:
    """Named by `name` up to version 12, by `topic_id` from version 13."""

    name: str | None = None
    topic_id: UUID | None = None
    partition_data: tuple[PartitionProduceData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    transactional_id: str | None = None
    acks: int
    timeout_ms: int
    topic_data: tuple[TopicProduceData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIndexAndErrorMessage:
    batch_index: int
    batch_index_error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProduceResponse:
    index: int
    error_code: Error = Error.NONE
    base_offset: int = NO_OFFSET
    log_append_time: int = NO_TIME
    log_start_offset: int = NO_OFFSET
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = ()
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceResponse:
    name: str | None = None
    topic_id: UUID | None = None
    partition_responses: tuple[PartitionProduceResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    responses: tuple[TopicProduceResponse, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    transactional_id: str | None = None
    transaction_timeout_ms: int = 0
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    enable2_pc: bool = False
    keep_prepared_txn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    throttle_time_ms: int = 0
    error_code: Error = Error.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


# The oldest versions are those of Apache Kafka 4 (KIP-896), the newest those of kio 0.6.
APIS: Mapping[int, Versions] = MappingProxyType(
    {
        Api.PRODUCE: Versions(3, 13, ProduceRequest, ProduceResponse),
        Api.INIT_PRODUCER_ID: Versions(0, 6, InitProducerIdRequest, InitProducerIdResponse),
    }
)
