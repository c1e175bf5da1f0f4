"""One client: frames in, responses out, in the order of the requests.

A connection has one request at work, as Kafka's have. Later requests wait in the socket's buffer, so TCP stops a client
that sends without reading. A Produce request is an exception: after its append, while it waits for the disk, the next
request begins. So requests of one connection share an fsync too. At most IN_FLIGHT_MAX requests wait in this way.

| the connection waits for | limit | then |
|---|---|---|
| another request | `idle_s` | it is closed |
| the memory of a request above `TINY_BYTES` (`Load`), before it is read | | |
| the rest of a frame, from its length on | `frame_s`, and a second for each FRAME_BYTES_PER_S | it is closed |
| the TLS handshake | HANDSHAKE_S | it is closed |
| the client to authenticate | `authentication.timeout.ms` | it is closed |
| the client to read `sender.SLICE_BYTES` of a response | `send_s` | it is closed |

Memory of one connection: the frames of its requests at work, each at most `frame_bytes_max`, and their responses
(`tiered.serve.sender`). `Load` bounds the sum of the frames over all connections, and that of the views of cached
chunks in responses. Ranges of files hold no bytes. A response has at most RESPONSE_BYTES_MAX without its records: a
larger one ends the connection.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
import struct
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from local.errors import InvalidRequest, LogError
from tiered.serve.authorization.rules import answer
from tiered.serve.codec import FrameTooLarge
from tiered.serve.groups.group_node import NodeConnection
from tiered.serve.handlers.service import (
    RESPONSE_BYTES_MAX,
    SMALL_BYTES,
    TINY_BYTES,
    Call,
    Endpoint,
    Service,
)
from tiered.serve.messages.base import Api, Piece, size_of
from tiered.serve.protocol import Header, Received, encode, parse
from tiered.serve.security.principals import ANONYMOUS, LOCAL
from tiered.serve.security.security import Security
from tiered.serve.security.session import MESSAGE_BYTES_MAX, Session
from tiered.serve.security.tls import HANDSHAKE_S
from tiered.serve.sender import Sender, memory_bytes

FRAME_BYTES_MAX = 100 << 20  # kafka socket.request.max.bytes
READ_FRAME_BYTES_MAX = 2 << 20  # without Produce a request is small: a Fetch of 10 000 partitions has some 500 KB
FRAME_BYTES_PER_S = 1 << 20
IN_FLIGHT_MAX = 16
LARGE = frozenset((Api.CREATE_TOPICS, Api.DESCRIBE_CONFIGS))  # some 50 settings of each topic
LOOP_BYTES_MAX = 128 << 10  # of a response that the event loop encodes itself, without its records: some 20 ms
_PIECE_BYTES = 256 << 10  # what asyncio reads at once
_LENGTH, _API = struct.Struct(">i"), struct.Struct(">h")
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close at once
_PRODUCE = struct.pack(">h", Api.PRODUCE)
# The response may wait for other members of a group for minutes. The node of a replica learns that its client ended.
_WAIT_FOR_MEMBERS = (Api.JOIN_GROUP, Api.SYNC_GROUP)
_HEAD_BYTES = 8  # API key, version and correlation id: no request is shorter
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`idle_s` is Kafka's ``connections.max.idle.ms``. `frame_bytes_max` None: by the APIs that the server offers."""

    connections_max: int = 1000
    local_connections_max: int = 100  # of the Unix socket: clients of the network cannot use them up
    frame_bytes_max: int | None = None
    idle_s: float = 600.0
    frame_s: float = 30.0
    send_s: float = 60.0


@dataclass(frozen=True, slots=True)
class _Request:
    """A frame without its length; `release` gives its memory back."""

    frame: bytearray
    release: Callable[[], None]


class _Failed(Exception):
    """A response failed: the connection ends."""


class _Idle(Exception):
    """The client sent no request for a time."""


class Connection:
    """Serves one client until it ends or breaks a rule. `advertised` replaces the socket's address in responses."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        service: Service,
        limits: Limits,
        advertised: Endpoint | None = None,
    ) -> None:
        self._reader, self._writer, self._service, self._limits = reader, writer, service, limits
        peer, own = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        self.client = "{}:{}".format(*peer[:2]) if isinstance(peer, tuple) else "unix:0"
        host, port = own[:2] if isinstance(own, tuple) else ("", 0)
        self._endpoint = advertised or Endpoint(host=host, port=port)
        by_apis = FRAME_BYTES_MAX if service.sink is not None else READ_FRAME_BYTES_MAX
        self._frame_bytes_max = limits.frame_bytes_max or by_apis
        self._in_flight: deque[asyncio.Task[None]] = deque()
        self._has_failed = False
        self.address = self.client.rpartition(":")[0]
        self.is_local = writer.get_extra_info("socket").family == socket.AF_UNIX
        self._loop = asyncio.get_running_loop()
        self._session = Session(None, self._loop.time, self.address, principal=LOCAL if self.is_local else ANONYMOUS)
        self._sender: Sender | None = None  # once the client may send requests
        node = service.group_node
        self._node = NodeConnection(node, service.load, self._offloaded) if node is not None else None
        self._muted_until_s = 0.0  # no request is read before
        self._arrived = bytearray()  # of the next requests, at most TINY_BYTES and a length
        self._idle_until_s = math.inf  # of a wait for a request
        self._idle_timer: asyncio.TimerHandle | None = None

    async def serve(self) -> None:
        try:
            security = None if self.is_local else self._service.security
            if security is not None:
                self._session = security.session(self.address, await self._handshake(security))
            self._sender = Sender(self._writer, self._service.pool, send_s=self._limits.send_s)
            if security is not None and not self._session.is_ready:
                await self._authenticate(security)
            while not self._session.is_failed and (request := await self._request()) is not None:
                await self._begin(request)
            await self._all_answered()
        except (_Failed, _Idle):
            pass  # a response, which has logged it; or the client was idle, and a request came at that moment
        except Exception as error:  # noqa: BLE001 - the other clients are served on
            self._end(error)
        finally:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            for task in self._in_flight:
                task.cancel()
            if self._node is not None:
                self._node.close()
            self._writer.transport.abort()
            try:
                await self._all_answered()
            finally:
                if self._sender is not None:  # the client sees the end when the response is released
                    self._loop.call_soon(self._sender.close)

    def _end(self, error: Exception) -> None:
        """Log the reason of the end."""
        match error:
            case LogError():
                _log.warning("connection closed: client=%s reason=%s", self.client, str(error))
            case TimeoutError():
                _log.warning("connection closed: client=%s reason=the client neither sends nor reads", self.client)
                # Without this the kernel keeps the bytes that the client does not read.
                self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            case ConnectionError() | asyncio.IncompleteReadError():
                _log.debug("connection ended by the client: client=%s cause=%s", self.client, type(error).__name__)
            case _:  # the other clients are served on
                _log.error("connection closed after an internal error: client=%s", self.client, exc_info=error)

    async def _handshake(self, security: Security) -> dict[str, Any] | None:
        """Begin TLS, if it is set; the verified certificate of the client."""
        context = security.context
        if context is None:
            return None
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]  # the first bytes belong to TLS
        try:
            await self._writer.start_tls(context, ssl_handshake_timeout=HANDSHAKE_S)
        except (ssl.SSLError, ConnectionError) as error:
            cause = (getattr(error, "reason", None) or type(error).__name__).replace("_", " ").lower()
            text = "connection closed, no TLS handshake: address=%s cause=%s"
            security.tally.warn(_log, ("tls", self.address), text, self.address, cause)
            raise ConnectionAbortedError from None
        found: ssl.SSLObject = self._writer.get_extra_info("ssl_object")
        return found.getpeercert()

    async def _authenticate(self, security: Security) -> None:
        """Serve until the client is authenticated, or its connection is to be closed."""
        limit_s = security.settings.authentication_s
        try:
            async with asyncio.timeout(limit_s):
                while not (self._session.is_ready or self._session.is_failed):
                    request = await self._request()
                    if request is None:
                        raise ConnectionAbortedError
                    await self._begin(request)
        except TimeoutError:
            text = "connection closed, the client did not authenticate: address=%s limit=%gs"
            security.tally.warn(_log, ("late", self.address), text, self.address, limit_s)
            raise ConnectionAbortedError from None

    async def _begin(self, request: _Request) -> None:
        """Start a request. Return when the next one may begin."""
        if not self._in_flight and request.frame[:2] != _PRODUCE:
            # Only Produce lets the next request begin. A task for it costs as much as a small request.
            try:
                await self._respond(request, None, _nothing)
            finally:
                request.release()
            return
        while len(self._in_flight) >= IN_FLIGHT_MAX:
            await asyncio.wait([self._in_flight[0]])
        may_proceed = asyncio.Event()
        before = self._in_flight[-1] if self._in_flight else None
        task = asyncio.get_running_loop().create_task(self._respond(request, before, may_proceed.set))
        self._in_flight.append(task)

        def end(ended: asyncio.Task[None]) -> None:
            self._in_flight.remove(ended)
            request.release()
            may_proceed.set()

        task.add_done_callback(end)
        await may_proceed.wait()

    async def _all_answered(self) -> None:
        if self._in_flight:
            await asyncio.wait(self._in_flight)

    async def _request(self) -> _Request | None:
        """The next request; None at the end. Raises InvalidRequest for an unacceptable length."""
        if (pause_s := self._muted_until_s - self._loop.time()) > 0:
            await asyncio.sleep(pause_s)
        if not await self._begins():
            return None
        (length,) = _LENGTH.unpack_from(self._arrived)
        least, most = (0 if self._session.takes_raw else _HEAD_BYTES), self._frame_bytes_max
        most = most if self._session.is_ready else min(most, MESSAGE_BYTES_MAX)
        if not least <= length <= most:
            allowed = f"{least}..{most}"
            wrong = "invalid length of a request, is this a Kafka client without TLS?"
            await self._all_answered()
            raise InvalidRequest(wrong, bytes=length, allowed=allowed)
        if length <= TINY_BYTES and len(self._arrived) >= _LENGTH.size + length:
            return _Request(self._cut(length), _nothing)
        release = await self._service.load.receive(length)
        try:
            async with asyncio.timeout(self._limits.frame_s + length / FRAME_BYTES_PER_S):
                return _Request(await self._received(length), release)
        except BaseException:
            release()
            raise

    async def _begins(self) -> bool:
        """Wait for the length of a request. False at the end, and after `idle_s`."""
        if self._has_failed:
            raise _Failed
        while len(self._arrived) < _LENGTH.size:
            self._idle_until_s = self._loop.time() + self._limits.idle_s
            if self._idle_timer is None:
                self._check_idle()
            try:
                piece = await self._reader.read(TINY_BYTES)
            except _Idle:
                _log.debug("idle connection closed: client=%s", self.client)
                return False
            finally:
                self._idle_until_s = math.inf
            if not piece:
                if self._arrived:
                    raise asyncio.IncompleteReadError(bytes(self._arrived), _LENGTH.size)
                return False
            self._arrived += piece
        return True

    def _check_idle(self) -> None:
        """End the wait for a request after `idle_s`. One timer for the connection is cheaper than one for each wait."""
        now_s = self._loop.time()
        if now_s >= self._idle_until_s:
            self._reader.set_exception(_Idle())
            return
        self._idle_timer = self._loop.call_at(min(self._idle_until_s, now_s + self._limits.idle_s), self._check_idle)

    def _cut(self, length: int) -> bytearray:
        """Take a frame that has arrived."""
        frame, self._arrived = self._arrived, bytearray()
        if len(frame) > _LENGTH.size + length:
            self._arrived += memoryview(frame)[_LENGTH.size + length :]
            del frame[_LENGTH.size + length :]
        del frame[: _LENGTH.size]
        return frame

    async def _received(self, length: int) -> bytearray:
        """Read the bytes of a frame: its memory is used as they arrive, and an append changes them in place."""
        first = self._cut(min(length, len(self._arrived) - _LENGTH.size))
        frame, at = bytearray(length), len(first)
        frame[:at] = first
        while at < length:
            piece = await self._reader.read(min(length - at, _PIECE_BYTES))
            if not piece:
                raise asyncio.IncompleteReadError(bytes(0), length)
            frame[at : at + len(piece)] = piece
            at += len(piece)
        return frame

    async def _respond(self, request: _Request, before: asyncio.Task[None] | None, proceed: Callable[[], None]) -> None:
        """Answer a request after the response `before` it was sent. An error ends the connection."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            try:
                pieces, count = await self._answered(request.frame, proceed)
            finally:
                if before is not None and not before.done():
                    await asyncio.wait([before])
            if self._has_failed:
                return  # the client waits for an earlier response
            assert self._sender is not None, "made before the first request"
            with self._service.load.sending(memory_bytes(pieces)):
                await self._sender.send(pieces)
            count(loop.time() - began_s)
        except Exception as error:  # noqa: BLE001 - the other clients are served on
            self._end(error)
            self._has_failed = True
            self._reader.set_exception(_Failed())  # wakes `serve`

    async def _answered(
        self, frame: bytearray, proceed: Callable[[], None]
    ) -> tuple[Sequence[Piece], Callable[[float], None]]:
        """The response, no pieces for a request without one, and the count of the request after the seconds it took."""
        metrics = self._service.metrics
        session = self._session
        if session.takes_raw:
            return await self._continued(frame), lambda seconds: None
        session.check(_API.unpack_from(frame)[0])
        received = parse(frame, self._service.apis)
        if isinstance(received, Received):
            header = received.header
            call = Call(
                version=header.api_version,
                endpoint=self._endpoint,
                client_id=header.client_id,
                client_host=self.address,
                principal=session.principal,
                session=session,
                node=self._node,
                proceed=proceed,
            )
            answering = answer(self._service, header.api_key, received.request, call)
            waits = self._node is not None and header.api_key in _WAIT_FOR_MEMBERS
            try:
                response = await (self._while_connected(answering) if waits else answering)
                pieces = await self._encoded(header, response)
                pause_s = self._charge(header.api_key, len(frame), pieces)
                if pause_s and (throttle_ms := getattr(response, "throttle_time_ms", None)) is not None:
                    longer_ms = max(1, int(pause_s * 1000), throttle_ms)  # the node of a replica may have set one
                    throttled = replace(response, throttle_time_ms=longer_ms)  # type: ignore[type-var]
                    pieces = await self._encoded(header, throttled)
            finally:
                if self._node is not None:
                    self._node.release()
            if session.is_failed:
                await asyncio.sleep(session.delay_s)
            return pieces, partial(metrics.answered, header.api_name, response)
        header = received.header
        facts = (self.client, header.api_name, header.api_version)
        _log.warning("request not served: client=%s api=%s version=%d", *facts)
        metrics.unsupported(header.api_name)
        return received.pieces, lambda seconds: None

    async def _while_connected(self, work: Coroutine[object, object, object]) -> object:
        """The result of `work`, which the client's end cancels. What arrives meanwhile belongs to later requests.

        None if the client ended after further requests: librdkafka sends LeaveGroup behind a join that waits, and ends.
        """
        task = self._loop.create_task(work)
        try:
            while not task.done() and (room := _LENGTH.size + TINY_BYTES - len(self._arrived)) > 0:
                reading = self._loop.create_task(self._reader.read(room))
                try:
                    await asyncio.wait((task, reading), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    reading.cancel()  # which takes no bytes
                    await asyncio.wait((reading,))
                if not reading.cancelled():
                    piece = reading.result()
                    if not piece and self._arrived:
                        return None
                    if not piece:
                        raise ConnectionResetError
                    self._arrived += piece
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    async def _offloaded(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - of any type
        return await self._service.call("encode", object(), call)

    async def _encoded(self, header: Header, response: object) -> Sequence[Piece]:
        """The pieces of a response; of a large one by the pool, so that it does not delay the other clients.

        Raises FrameTooLarge beyond RESPONSE_BYTES_MAX, and beyond SMALL_BYTES while slow clients hold the memory of
        responses. The response to a change has no limit: the change is done.
        """
        if response is None:
            return ()
        if header.api_key not in LARGE:
            try:
                return encode(header, response, LOOP_BYTES_MAX)
            except FrameTooLarge:
                pass
        limit = min(RESPONSE_BYTES_MAX, max(SMALL_BYTES, self._service.load.response_bytes_max))
        limit = sys.maxsize if header.api_key == Api.CREATE_TOPICS else limit
        return await self._service.call("encode", object(), partial(encode, header, response, limit))

    async def _continued(self, frame: bytearray) -> Sequence[Piece]:
        """Pass a message without a head of Kafka to the exchange. A failure has no response."""
        outcome = await self._session.authenticate(bytes(frame))
        if self._session.is_failed:
            await asyncio.sleep(self._session.delay_s)
            return ()
        return (_LENGTH.pack(len(outcome.reply)) + outcome.reply,)

    def _charge(self, api: int, request_bytes: int, pieces: Sequence[Piece]) -> float:
        """Record a request against the quotas of its principal; the seconds that the client has to pause."""
        security = self._service.security
        if security is None or self.is_local:
            return 0.0
        pause_s = security.charge(self._session.principal, api, request_bytes, sum(map(size_of, pieces)))
        self._muted_until_s = max(self._muted_until_s, self._loop.time() + pause_s)
        return pause_s


def _nothing() -> None:
    pass
