"""The handler of each request."""

from __future__ import annotations

from tiered.serve.handlers.cluster import describe_cluster, metadata
from tiered.serve.handlers.fetch import fetch
from tiered.serve.handlers.offsets import list_offsets, offset_for_leader_epoch
from tiered.serve.handlers.service import Endpoint, Service
from tiered.serve.messages import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    Response,
)
from tiered.serve.protocol import Received, api_versions


async def answer(service: Service, received: Received, at: Endpoint) -> Response:
    """The response to a request of a client that reached this server at `at`."""
    version = received.header.api_version
    match received.request:
        case ApiVersionsRequest():
            return api_versions()
        case MetadataRequest() as request:
            return await metadata(service, request, at, version)
        case DescribeClusterRequest() as request:
            return describe_cluster(service, request, at)
        case ListOffsetsRequest() as request:
            return await list_offsets(service, request, version)
        case OffsetForLeaderEpochRequest() as request:
            return await offset_for_leader_epoch(service, request)
        case FetchRequest() as request:
            return await fetch(service, request)
