"""The handler of each request."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tiered.serve.handlers.cluster import api_versions, describe_cluster, metadata
from tiered.serve.handlers.fetch import fetch
from tiered.serve.handlers.offsets import list_offsets, offset_for_leader_epoch
from tiered.serve.handlers.produce import init_producer_id, produce
from tiered.serve.handlers.service import Call, Handler, Service
from tiered.serve.handlers.transaction_queries import (
    describe_producers,
    describe_transactions,
    list_transactions,
    write_txn_markers,
)
from tiered.serve.handlers.transactions import add_partitions_to_txn, end_txn
from tiered.serve.messages.base import Api

HANDLERS: Mapping[int, Handler] = MappingProxyType(
    {
        Api.PRODUCE: produce,
        Api.INIT_PRODUCER_ID: init_producer_id,
        Api.API_VERSIONS: api_versions,
        Api.METADATA: metadata,
        Api.DESCRIBE_CLUSTER: describe_cluster,
        Api.LIST_OFFSETS: list_offsets,
        Api.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
        Api.FETCH: fetch,
        Api.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
        Api.END_TXN: end_txn,
        Api.WRITE_TXN_MARKERS: write_txn_markers,
        Api.DESCRIBE_PRODUCERS: describe_producers,
        Api.DESCRIBE_TRANSACTIONS: describe_transactions,
        Api.LIST_TRANSACTIONS: list_transactions,
    }
)


async def answer(service: Service, api: int, request: object, call: Call) -> object:
    """The response to a request of a served API; None for a request without a response."""
    return await HANDLERS[api](service, request, call)
