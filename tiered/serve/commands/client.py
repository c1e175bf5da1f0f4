"""A blocking client of the Kafka protocol, for the commands of this project: one connection, one request at a time.

| failure of a call | error |
|---|---|
| the server closes the connection, breaks it, or does not answer in time | `NoResponse`, an Unavailable |
| the server does not serve the API | InvalidRequest |
| bytes that are no response | InvalidRequest |

`NoResponse.is_in_doubt` is False only if the request was not sent as a whole: the server has not seen it then. The
caller decides what an error code in a response means.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Self

from local.errors import InvalidRequest, Unavailable
from tiered.serve.file_range import FileRange
from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from tiered.serve.protocol import OWN, SERVED, Header, encode_request, read_response

CLIENT_ID = "tiered"
TIMEOUT_S = 60.0
RESPONSE_BYTES_MAX = 128 << 20
_KNOWN = {**SERVED, **OWN}
_LENGTH = struct.Struct(">i")


class NoResponse(Unavailable):
    """The connection ended, or the time was over, before the response to a request."""

    is_in_doubt = True


class Client:
    """A connection to a server whose API versions are known. Not thread safe. After `NoResponse` it is closed."""

    def __init__(self, connection: socket.socket, *, client_id: str = CLIENT_ID, timeout_s: float = TIMEOUT_S) -> None:
        """Ask for the API versions, for `timeout_s`. Raises NoResponse, InvalidRequest; then `connection` is closed."""
        self._connection, self._client_id = connection, client_id
        self._correlation_id = 0
        self._versions: Mapping[int, int] = {Api.API_VERSIONS: 0}  # every server knows version 0
        try:
            found: ApiVersionsResponse = self.call(Api.API_VERSIONS, ApiVersionsRequest(), timeout_s=timeout_s)
            if found.error_code != Error.NONE:
                raise InvalidRequest("cannot use the server, it does not tell its versions", error=found.error_code)
        except BaseException:
            self.close()
            raise
        self._versions = {
            each.api_key: newest
            for each in found.api_keys
            if (known := _KNOWN.get(each.api_key)) is not None
            and (newest := min(each.max_version, known.max_version)) >= max(each.min_version, known.min_version)
        }

    def serves(self, api: int) -> bool:
        return api in self._versions

    def version(self, api: int) -> int:
        """The newest version of an API that both ends know. Raises InvalidRequest if there is none."""
        version = self._versions.get(api)
        if version is None:
            wrong = "the server does not answer this request; it may have another version of tiered"
            raise InvalidRequest(wrong, api=Header(api_key=api, api_version=0, correlation_id=0).api_name)
        return version

    def call(self, api: int, request: object, *, timeout_s: float = TIMEOUT_S) -> Any:  # noqa: ANN401 - by the API
        """Send a request and return its response. Raises NoResponse, InvalidRequest."""
        self._correlation_id += 1
        header = Header(
            api_key=api,
            api_version=self.version(api),
            correlation_id=self._correlation_id,
            client_id=self._client_id,
        )
        pieces = encode_request(header, request)
        until_s = time.monotonic() + timeout_s
        is_sent = False
        try:
            for piece in pieces:
                assert not isinstance(piece, FileRange), "requests are bytes"
                self._connection.settimeout(max(0.001, until_s - time.monotonic()))
                self._connection.sendall(piece)
            is_sent = True
            (length,) = _LENGTH.unpack(self._receive(_LENGTH.size, until_s))
            if not 0 <= length <= RESPONSE_BYTES_MAX:
                raise InvalidRequest("invalid response, its length is not acceptable", bytes=length)
            data = self._receive(length, until_s)
        except OSError as error:
            self.close()
            raise _no_response(header, error, is_in_doubt=is_sent) from None
        except BaseException:
            self.close()  # the rest of the response would be read as the next one
            raise
        return read_response(header, memoryview(data))

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _receive(self, size: int, until_s: float) -> bytearray:
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            self._connection.settimeout(max(0.001, until_s - time.monotonic()))
            count = self._connection.recv_into(view[at:])
            if not count:
                raise ConnectionResetError
            at += count
        return data


def _no_response(header: Header, error: OSError, *, is_in_doubt: bool) -> NoResponse:
    reason = "did not answer in time" if isinstance(error, TimeoutError) else "closed the connection"
    found = NoResponse(f"the server {reason}", api=header.api_name)
    found.is_in_doubt = is_in_doubt
    return found
