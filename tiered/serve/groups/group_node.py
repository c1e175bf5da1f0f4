"""The node that coordinates the groups of a replica, and connections to it: one for each client of the replica.

| failure | error | the connection | the request |
|---|---|---|---|
| no connection or no authentication within CONNECT_S | `NodeUnavailable` | is closed | was not sent |
| no whole response in time; the node closes; bytes that are no response | `NodeUnavailable` | is closed | is in doubt |
| the node does not serve the API in this version | `UnsupportedByNode` | stays | was not sent |
| the caller is cancelled | | is closed | is in doubt |

The next call opens a closed connection again. A connection that ended between two calls fails no call.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import struct
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from local.errors import InvalidRequest, Unavailable
from tiered.serve.codec import FrameTooLarge
from tiered.serve.file_range import FileRange
from tiered.serve.messages.base import Api, Error, Piece
from tiered.serve.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from tiered.serve.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tiered.serve.peers import Endpoint
from tiered.serve.protocol import SERVED, Header, encode_request, read_response
from tiered.serve.security.client_settings import ClientSettings
from tiered.serve.security.sasl import PLAIN, Offload
from tiered.serve.security.scram import AuthenticationFailed
from tiered.serve.security.scram_client import ScramClient

CONNECT_S = 10.0
RESPONSE_S = 30.0
CLIENT_ID = "tiered"
SMALL_BYTES = 1 << 20  # a response that is read while slow clients hold the memory of responses
LOOP_BYTES_MAX = 128 << 10  # of a message that the event loop encodes or decodes itself: some 20 ms
_BUFFER_BYTES = 256 << 10  # what asyncio reads ahead
_SESSION_PART = 0.85  # of its lifetime, after which a session is not used; source: kafka `SaslClientAuthenticator`
_CAUSE_CHARS_MAX = 200
_HANDSHAKE_VERSION = 1  # the messages of the exchange follow in SaslAuthenticate
_LENGTH = struct.Struct(">i")


class NodeUnavailable(Unavailable):
    """The node cannot be reached, or did not answer."""


class UnsupportedByNode(Exception):
    """The node does not serve an API in the version of the request."""


class ResponseMemory(Protocol):
    """The memory that the responses of all connections share."""

    @property
    def response_bytes_max(self) -> int: ...

    def sending(self, size_bytes: int) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNode:
    """Where the node is, and how connections to it are protected."""

    endpoint: Endpoint
    settings: ClientSettings = field(default_factory=ClientSettings)


class NodeConnection:
    """Opened by its first call. Belongs to one event loop; one call at a time. `release` each response, and `close` it.

    `offload` runs calls that take a processor for milliseconds. `rebalance_s` is the limit of the client's last
    JoinGroup, which the caller sets and uses.
    """

    def __init__(self, node: GroupNode, memory: ResponseMemory, offload: Offload[Any]) -> None:
        self._node, self._memory, self._offload = node, memory, offload
        self.rebalance_s = 0.0
        self._held = ExitStack()  # the memory of the last response
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._versions: Mapping[int, tuple[int, int]] = {}
        self._correlation_id = 0
        self._expires_s: float | None = None  # in the time of the event loop

    async def call(
        self, api: int, version: int, request: object, client_id: str | None, *, limit_s: float = RESPONSE_S
    ) -> object:
        """Send a request and return its response, for at most `limit_s`. Raises NodeUnavailable, UnsupportedByNode."""
        if self._streams is not None and self._is_over(self._streams[0]):
            self.close()
        try:
            if self._streams is None:
                await self._open()
            least, most = self._versions.get(api, (1, 0))
            if least <= version <= most:
                async with asyncio.timeout(limit_s):
                    return await self._exchange(api, version, request, client_id)
        except (OSError, EOFError, InvalidRequest, AuthenticationFailed) as error:  # TimeoutError too
            self.close()
            raise self._unavailable(error) from None
        except BaseException:
            self.close()  # the response would be read as that of the next request
            raise
        raise UnsupportedByNode

    def release(self) -> None:
        """Give back the memory of the last response: the caller has no use for it any more."""
        self._held.close()

    def close(self) -> None:
        self.release()
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._streams = None

    def _is_over(self, reader: asyncio.StreamReader) -> bool:
        """Whether the node closed the connection, or will close it at the next request."""
        has_ended = reader.at_eof() or reader.exception() is not None
        return has_ended or (self._expires_s is not None and asyncio.get_running_loop().time() >= self._expires_s)

    async def _open(self) -> None:
        """Connect, ask for the versions, and authenticate."""
        settings, to = self._node.settings, self._node.endpoint
        self._expires_s = None
        async with asyncio.timeout(CONNECT_S):
            self._streams = await asyncio.open_connection(to.host, to.port, ssl=settings.context, limit=_BUFFER_BYTES)
            found = await self._exchange(Api.API_VERSIONS, 0, ApiVersionsRequest(), CLIENT_ID)
            assert isinstance(found, ApiVersionsResponse)
            if found.error_code != Error.NONE:
                raise InvalidRequest("the node does not tell its versions", error=int(found.error_code))
            self._versions = {each.api_key: (each.min_version, each.max_version) for each in found.api_keys}
            if settings.mechanism is not None:
                await self._authenticate(settings.mechanism)

    async def _authenticate(self, mechanism: str) -> None:
        request = SaslHandshakeRequest(mechanism=mechanism)
        shaken = await self._exchange(Api.SASL_HANDSHAKE, _HANDSHAKE_VERSION, request, CLIENT_ID)
        assert isinstance(shaken, SaslHandshakeResponse)
        if shaken.error_code != Error.NONE:
            raise AuthenticationFailed(f"the node does not enable {mechanism}")
        user, password = self._node.settings.user, self._node.settings.password
        if mechanism == PLAIN:
            await self._step(f"\0{user}\0{password}".encode())
            return
        client = ScramClient(user, password, mechanism)
        reply = await self._step(client.first())
        client.check(await self._step(await self._offload(partial(client.final, reply))))

    async def _step(self, message: bytes) -> bytes:
        """Send a message of the exchange; the reply."""
        newest = min(self._versions.get(Api.SASL_AUTHENTICATE, (0, 0))[1], SERVED[Api.SASL_AUTHENTICATE].max_version)
        request = SaslAuthenticateRequest(auth_bytes=message)
        found = await self._exchange(Api.SASL_AUTHENTICATE, newest, request, CLIENT_ID)
        assert isinstance(found, SaslAuthenticateResponse)
        if found.error_code != Error.NONE:
            raise AuthenticationFailed(_one_line(found.error_message or "the node refuses"))
        if found.session_lifetime_ms > 0:
            lifetime_s = found.session_lifetime_ms / 1000 * _SESSION_PART
            self._expires_s = asyncio.get_running_loop().time() + lifetime_s
        return found.auth_bytes

    async def _exchange(self, api: int, version: int, request: object, client_id: str | None) -> object:
        assert self._streams is not None, "opened before"
        reader, writer = self._streams
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        header = Header(api_key=api, api_version=version, correlation_id=self._correlation_id, client_id=client_id)
        for piece in await self._encoded(header, request):
            assert not isinstance(piece, FileRange), "requests are bytes"
            writer.write(piece)
        await writer.drain()
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        most = max(SMALL_BYTES, self._memory.response_bytes_max)
        if not 0 < length <= most:
            raise InvalidRequest("invalid length of a response", bytes=length, allowed=f"1..{most}")
        self.release()  # that of the opening
        self._held.enter_context(self._memory.sending(length))
        read: Callable[[], object] = partial(read_response, header, memoryview(await reader.readexactly(length)))
        return read() if length <= LOOP_BYTES_MAX else await self._offload(read)

    async def _encoded(self, header: Header, request: object) -> list[Piece]:
        try:
            return encode_request(header, request, LOOP_BYTES_MAX)
        except FrameTooLarge:
            encoded: list[Piece] = await self._offload(partial(encode_request, header, request))
            return encoded

    def _unavailable(self, error: Exception) -> NodeUnavailable:
        match error:
            case TimeoutError():
                cause = "no answer in time"
            case EOFError():
                cause = "the node closed the connection"
            case AuthenticationFailed():
                cause = f"authentication failed: {error.cause}"
            case ssl.SSLError():
                why = getattr(error, "verify_message", None) or error.reason or type(error).__name__
                cause = f"TLS: {why}".replace("_", " ").lower()
            case ConnectionError() if error.errno:
                cause = os.strerror(error.errno).lower()
            case OSError():
                cause = error.strerror or str(error) or type(error).__name__
            case _:
                cause = str(error)
        return NodeUnavailable("the node of the groups did not answer", cause=cause)


def _one_line(text: str) -> str:
    """A text of another machine, for a line of the log."""
    return "".join(each if each.isprintable() else " " for each in text[:_CAUSE_CHARS_MAX])
