"""One client: frames in, responses out, in the order of the requests.

A connection has one request at work, as Kafka's have. Later requests wait in the socket's buffer, so TCP stops a client
that sends without reading.

| the connection waits for | limit | then |
|---|---|---|
| another request | `idle_s` | it is closed |
| the rest of a frame, from its length on | `frame_s` | it is closed |
| the client to read `sender.SLICE_BYTES` of a response | `send_s` | it is closed |

Memory of one connection: a frame of at most `frame_bytes_max`, its request, and its response (`tiered.serve.sender`).
A response holds views of cached chunks, whose sum over all connections `Load` bounds, and ranges of files, which hold
no bytes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from dataclasses import dataclass

from local.errors import InvalidRequest, LogError
from tiered.serve.handlers.dispatch import answer
from tiered.serve.handlers.service import Call, Endpoint, Service
from tiered.serve.protocol import Received, encode, parse
from tiered.serve.sender import Sender, memory_bytes

FRAME_BYTES_MAX = 2 << 20  # without Produce a request is small: a Fetch of 10 000 partitions has some 500 KB
_LENGTH = struct.Struct(">i")
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close at once
_HEAD_BYTES = 8  # API key, version and correlation id: no request is shorter
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`idle_s` is Kafka's ``connections.max.idle.ms``."""

    connections_max: int = 1000
    frame_bytes_max: int = FRAME_BYTES_MAX
    idle_s: float = 600.0
    frame_s: float = 30.0
    send_s: float = 60.0


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
        self.client = "{}:{}".format(*(writer.get_extra_info("peername") or ("unknown", 0))[:2])
        host, port = (writer.get_extra_info("sockname") or ("", 0))[:2]
        self._endpoint = advertised or Endpoint(host=host, port=port)
        self._sender = Sender(writer, service.pool, send_s=limits.send_s)

    async def serve(self) -> None:
        try:
            while (frame := await self._frame()) is not None:
                await self._respond(frame)
        except LogError as error:
            _log.warning("connection closed: client=%s reason=%s", self.client, str(error))
        except TimeoutError:
            _log.warning("connection closed: client=%s reason=the client neither sends nor reads", self.client)
            # Without this the kernel keeps the bytes that the client does not read.
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            _log.debug("connection ended by the client: client=%s cause=%s", self.client, type(error).__name__)
        except Exception:  # noqa: BLE001 - the other clients are served on
            _log.exception("connection closed after an internal error: client=%s", self.client)
        finally:
            self._writer.transport.abort()

    async def _frame(self) -> bytes | None:
        """The next frame without its length; None at the end. Raises InvalidRequest for an unacceptable length."""
        try:
            async with asyncio.timeout(self._limits.idle_s):
                prefix = await self._reader.readexactly(_LENGTH.size)
        except TimeoutError:
            _log.debug("idle connection closed: client=%s", self.client)
            return None
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return None
        (length,) = _LENGTH.unpack(prefix)
        if not _HEAD_BYTES <= length <= self._limits.frame_bytes_max:
            allowed = f"{_HEAD_BYTES}..{self._limits.frame_bytes_max}"
            wrong = "invalid length of a request, is this a Kafka client without TLS?"
            raise InvalidRequest(wrong, bytes=length, allowed=allowed)
        async with asyncio.timeout(self._limits.frame_s):
            return await self._reader.readexactly(length)

    async def _respond(self, frame: bytes) -> None:
        received = parse(frame, self._service.apis)
        if isinstance(received, Received):
            header = received.header
            call = Call(
                version=header.api_version,
                endpoint=self._endpoint,
                client_id=header.client_id,
                client_host=self.client.rpartition(":")[0],
            )
            response = await answer(self._service, header.api_key, received.request, call)
            if response is None:
                return
            pieces = encode(header, response)
        else:
            header = received.header
            facts = (self.client, header.api_name, header.api_version)
            _log.warning("request not served: client=%s api=%s version=%d", *facts)
            pieces = received.pieces
        with self._service.load.sending(memory_bytes(pieces)):
            await self._sender.send(pieces)
