"""One batch for a running node, by Produce with acks=all, and the errors of the response as those of a log."""

from __future__ import annotations

from collections.abc import Mapping

from local.errors import Corrupt, DiskFailed, Fenced, InvalidRequest, LogError, NotFound, Unavailable
from local.format.batch_header import read_header
from local.names import TopicPartition
from tiered.serve.commands.client import Client, NoResponse
from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tiered.serve.record_source import uuid_of

TIMEOUT_MS = 30_000  # kafka request.timeout.ms
_ALL = -1
# Not InvalidRequest: earlier batches of the same records may be appended.
_KINDS: Mapping[int, type[LogError]] = {
    Error.UNKNOWN_TOPIC_OR_PARTITION: NotFound,
    Error.UNKNOWN_TOPIC_ID: NotFound,
    Error.NOT_LEADER_OR_FOLLOWER: Fenced,
    Error.KAFKA_STORAGE_ERROR: DiskFailed,
    Error.CORRUPT_MESSAGE: Corrupt,
    Error.REQUEST_TIMED_OUT: Unavailable,
}


def produce(client: Client, name: TopicPartition, topic_id: str, batch: bytearray) -> tuple[int, int, int]:
    """Append a batch, durable on return: its base offset, the offset after it, and its number of records.

    Raises Unavailable if it is unknown whether it was appended, and the error of the node.
    """
    header = read_header(batch)
    assert header is not None, "encoded before"
    data = PartitionProduceData(index=name.partition, records=(memoryview(batch),))
    topic = TopicProduceData(name=name.topic, topic_id=uuid_of(topic_id), partition_data=(data,))
    request = ProduceRequest(acks=_ALL, timeout_ms=TIMEOUT_MS, topic_data=(topic,))
    try:
        response: ProduceResponse = client.call(Api.PRODUCE, request)
    except NoResponse as error:
        wrong = "the running node ended, it is unknown whether the last records were appended"
        if not error.is_in_doubt:
            wrong = "the running node ended before it got the last records"
        raise Unavailable(wrong, partition=name, records=header.record_count) from None
    except InvalidRequest as error:
        wrong = "the running node does not take records as this command sends them, or answered in another form"
        raise LogError(wrong, partition=name, cause=str(error)) from None
    found = response.responses[0].partition_responses[0]
    if found.error_code != Error.NONE:
        raise _error_of(found, name)
    return found.base_offset, found.base_offset + header.last_offset_delta + 1, header.record_count


def _error_of(found: PartitionProduceResponse, name: TopicPartition) -> LogError:
    code = found.error_code
    reasons = [each.batch_index_error_message for each in found.record_errors if each.batch_index_error_message]
    reason = found.error_message or "; ".join(reasons) or None
    kind = _KINDS.get(code, LogError)
    return kind("the running node refused records", partition=name, error=str(code), reason=reason)
