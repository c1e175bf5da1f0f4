"""Frames of the Kafka protocol: the served APIs and versions, requests and responses from bytes and to bytes.

The only module that imports `kio`, whose classes describe each version of each message. They are imported at the first
request of a version (some 25 ms).

| request | result |
|---|---|
| a served API and version | `Received` |
| ApiVersions of an unknown version | `Unsupported`, answered in version 0 with the supported versions (KIP-511) |
| another API or version whose response has one error code for all | `Unsupported`, answered with UNSUPPORTED_VERSION |
| anything else | InvalidRequest: the connection is closed, as Kafka does |

Usual fetches have a codec of their own (`tiered.serve.messages.fetch_codec`), which is faster and has the same results.

A client uses `encode_request` and `read_response`. OWN are the APIs of this project, which Kafka does not have: their
messages are JSON (`tiered.serve.messages.operations`).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.index import api_key_map

from local.errors import InvalidRequest
from tiered.serve.codec import Cursor, Frame, is_flexible, reader_of, writer_of
from tiered.serve.messages import (
    cluster,
    configs,
    consumer_groups,
    fetch,
    fetch_codec,
    group_offsets,
    groups,
    log_dirs,
    offsets,
    operations,
    produce,
    reassignments,
    sasl,
    topics,
    transactions,
)
from tiered.serve.messages.base import Api, Error, Piece, Versions
from tiered.serve.messages.cluster import ApiVersion, ApiVersionsResponse

SERVED: Mapping[int, Versions] = MappingProxyType(
    {
        **cluster.APIS,
        **offsets.APIS,
        **fetch.APIS,
        **produce.APIS,
        **topics.APIS,
        **configs.APIS,
        **log_dirs.APIS,
        **reassignments.APIS,
        **transactions.APIS,
        **groups.APIS,
        **consumer_groups.APIS,
        **group_offsets.APIS,
        **sasl.APIS,
    }
)
OWN: Mapping[int, Versions] = operations.APIS
_KNOWN = {**SERVED, **OWN}
# Of a server without Produce, which closes the connection after such a request.
_PRODUCE = Versions(3, 3, object, object)
_FETCH = struct.pack(">h", Api.FETCH)
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The head of a request. `client_id` is the client's own text, None if it has none."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None

    @property
    def api_name(self) -> str:
        """The API's name for messages, such as ``fetch``; its number if Kafka has no such API."""
        return api_key_map.get(self.api_key, str(self.api_key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    header: Header
    request: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """A request that is not served, and its whole response."""

    header: Header
    pieces: list[Piece]


def parse(data: bytes | bytearray, apis: Mapping[int, Versions] = SERVED) -> Received | Unsupported:
    """Parse one frame without its length prefix; `apis` are the served ones. Raises InvalidRequest for other bytes.

    Bytes after the request are ignored, as by Kafka: librdkafka 2.16 sends three after Metadata for all topics.
    """
    if data[:2] == _FETCH and len(data) <= fetch_codec.BYTES_MAX and Api.FETCH in apis:
        found = fetch_codec.read(data)
        if found is not None:
            version, correlation_id, client_id, fetching = found
            head = Header(api_key=Api.FETCH, api_version=version, correlation_id=correlation_id, client_id=client_id)
            return Received(header=head, request=fetching)
    cursor = Cursor(memoryview(data))
    key, version = cursor.number(_INT16), cursor.number(_INT16)
    header = Header(api_key=key, api_version=version, correlation_id=cursor.number(_INT32))
    served = apis.get(key)
    if served is None or not served.min_version <= version <= served.max_version:
        return Unsupported(header=header, pieces=_refusal(header, apis))
    client_id = cursor.text(_INT16)
    read, is_flexible_header = _request_reader(key, version)
    if is_flexible_header:
        cursor.skip_tagged()
    request = read(cursor)
    named = Header(api_key=key, api_version=version, correlation_id=header.correlation_id, client_id=client_id)
    return Received(header=named, request=request)


def encode(header: Header, response: object, bytes_max: int = sys.maxsize) -> list[Piece]:
    """The frame of the response to the request with that header, with its length prefix, as pieces to send in order.

    Pieces of record batches are pieces themselves, so they must not change until they were sent. Raises FrameTooLarge
    as soon as the other fields have more than `bytes_max`.
    """
    if isinstance(response, fetch.FetchResponse):
        pieces = fetch_codec.write(header.api_version, header.correlation_id, response, bytes_max)
        if pieces is not None:
            return pieces
    write, is_flexible_header = _response_writer(header.api_key, header.api_version, type(response))  # type: ignore[arg-type]  # a class is hashable
    frame = _begun(header, bytes_max, is_flexible_header=is_flexible_header)
    write(frame, response)
    return frame.close()


def encode_request(header: Header, request: object, bytes_max: int = sys.maxsize) -> list[Piece]:
    """The frame of a request, with its length prefix, as pieces to send in order. Raises FrameTooLarge as `encode`."""
    schema = _request_schema(header.api_key, header.api_version)
    frame = Frame(bytes_max)
    frame.number(_INT16, header.api_key)
    frame.number(_INT16, header.api_version)
    frame.number(_INT32, header.correlation_id)
    frame.text(_INT16, header.client_id)
    if is_flexible(schema.__header_schema__):
        frame.uvarint(0)  # no tagged fields
    _request_writer(header.api_key, header.api_version)(frame, request)
    return frame.close()


def read_response(header: Header, data: memoryview) -> object:
    """The response to the request with that header, from a frame without its length prefix.

    Raises InvalidRequest for other bytes, and for the response to another request.
    """
    cursor = Cursor(data, "response")
    correlation_id = cursor.number(_INT32)
    if correlation_id != header.correlation_id:
        facts = {"correlation_id": correlation_id, "expected": header.correlation_id}
        raise InvalidRequest("invalid response, it belongs to another request", api=header.api_name, **facts)
    read, is_flexible_header = _response_reader(header.api_key, header.api_version)
    if is_flexible_header:
        cursor.skip_tagged()
    response = read(cursor)
    if cursor.remaining:
        raise InvalidRequest("invalid response, bytes follow it", api=header.api_name, bytes=cursor.remaining)
    return response


def supported(apis: Mapping[int, Versions], error: Error = Error.NONE) -> ApiVersionsResponse:
    """The response to ApiVersions of a server with these APIs.

    It lists Produce in every case: librdkafka fetches batches of format 2 only from a server that does.
    """
    listed = {Api.PRODUCE: _PRODUCE, **apis}
    keys = [
        ApiVersion(api_key=key, min_version=each.min_version, max_version=each.max_version)
        for key, each in listed.items()
    ]
    return ApiVersionsResponse(error_code=error, api_keys=tuple(keys))


def _begun(header: Header, bytes_max: int = sys.maxsize, *, is_flexible_header: bool) -> Frame:
    frame = Frame(bytes_max)
    frame.number(_INT32, header.correlation_id)
    if is_flexible_header:
        frame.uvarint(0)  # no tagged fields
    return frame


def _refusal(header: Header, apis: Mapping[int, Versions]) -> list[Piece]:
    if header.api_key == Api.API_VERSIONS:
        asked = Header(api_key=header.api_key, api_version=0, correlation_id=header.correlation_id)
        return encode(asked, supported(apis, Error.UNSUPPORTED_VERSION))
    facts = {"api": header.api_name, "version": header.api_version}
    try:
        write, is_flexible_header = _response_writer(header.api_key, header.api_version, _ErrorAlone)
    except (KioIndexError, LookupError):
        raise InvalidRequest("unsupported request, this API and version is not served", **facts) from None
    frame = _begun(header, is_flexible_header=is_flexible_header)
    write(frame, _ErrorAlone())
    return frame.close()


@dataclass(frozen=True, slots=True)
class _ErrorAlone:
    error_code: Error = Error.UNSUPPORTED_VERSION


@dataclass(frozen=True)
class _OwnHeader:
    __flexible__: ClassVar[bool] = True


@dataclass(frozen=True)
class _OwnMessage:
    """The format of every message of OWN."""

    __flexible__: ClassVar[bool] = True
    __header_schema__: ClassVar[type] = _OwnHeader
    body: bytes = field(metadata={"kafka_type": "bytes"})


def _request_schema(key: int, version: int) -> Any:  # noqa: ANN401 - a class of kio
    return _OwnMessage if key in OWN else load_request_schema(key, version)


def _response_schema(key: int, version: int) -> Any:  # noqa: ANN401 - a class of kio
    return _OwnMessage if key in OWN else load_response_schema(key, version)


@cache
def _request_reader(key: int, version: int) -> tuple[Callable[[Cursor], Any], bool]:
    schema = _request_schema(key, version)
    return reader_of(schema, _KNOWN[key].request), is_flexible(schema.__header_schema__)


@cache
def _request_writer(key: int, version: int) -> Callable[[Frame, Any], None]:
    return writer_of(_request_schema(key, version), _KNOWN[key].request)


@cache
def _response_reader(key: int, version: int) -> tuple[Callable[[Cursor], Any], bool]:
    schema = _response_schema(key, version)
    return reader_of(schema, _KNOWN[key].response), is_flexible(schema.__header_schema__)


@cache
def _response_writer(key: int, version: int, message: type[Any]) -> tuple[Callable[[Frame, Any], None], bool]:
    """Raises KioIndexError for an unknown version, LookupError for a response without the error code of `message`."""
    schema = _response_schema(key, version)
    if message is _ErrorAlone and "error_code" not in schema.__dataclass_fields__:
        raise LookupError(key)
    return writer_of(schema, message), is_flexible(schema.__header_schema__)
