"""Sends the responses of one connection, under the back-pressure of its client.

| the connection | buffers | ranges of files |
|---|---|---|
| plain | written from where they are | `sendfile` in slices: the bytes never enter the process |
| TLS | passed to the transport in slices | read in slices |

Both hold at most SLICE_BYTES of a response besides its own buffers, and FILE_SLICE_BYTES of a file that has to be
loaded, which a thread does. After BURST_BYTES the event loop serves the other connections, so that a fast client does
not delay them.

A plain connection never writes through its transport, which so owns no bytes. Every system call follows a check, in the
same step of the event loop, that the transport is open: its descriptor cannot belong to another connection.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from local.errors import Corrupt
from tiered.serve.file_range import FileRange
from tiered.serve.messages.base import Piece
from tiered.serve.read_pool import ReadPool

SLICE_BYTES = 256 << 10
FILE_SLICE_BYTES = 2 << 20
BURST_BYTES = 4 << 20
# kafka `socket.send.buffer.bytes`. The bytes of a larger buffer leave the processor cache before the client reads them.
SOCKET_BUFFER_BYTES = 102_400
_BUFFERS_MAX = 64  # of one system call; Linux takes 1024
_cold_reads = itertools.count()


class Sender:
    """Writes to one client. `sent_bytes` counts what the socket took. One call of `send` at a time; `close` it."""

    def __init__(self, writer: asyncio.StreamWriter, pool: ReadPool, *, send_s: float) -> None:
        """A client that takes less than SLICE_BYTES in `send_s` ends the sending with TimeoutError."""
        self.sent_bytes = 0
        self._writer, self._pool, self._send_s = writer, pool, send_s
        self._transport, self._socket = writer.transport, writer.get_extra_info("socket")
        self._is_plain = writer.get_extra_info("ssl_object") is None
        is_tcp = self._socket is not None and self._socket.family in (socket.AF_INET, socket.AF_INET6)
        self._can_cork, self._is_held = self._is_plain and is_tcp and hasattr(socket, "TCP_CORK"), False
        if is_tcp:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        self._copy: int | None = None  # of the transport's descriptor, once the client was slower than the server
        self._deadline_s = 0.0
        self._slice_end = self._burst_end = 0  # in `sent_bytes`
        self._transport.set_write_buffer_limits(high=SLICE_BYTES)

    async def send(self, pieces: Iterable[Piece]) -> None:
        """Return when the kernel has all bytes. Raises ConnectionError, TimeoutError, and Corrupt for a cut file."""
        if self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._start_slice()
        pieces = list(pieces)
        self._hold_back(is_held=any(isinstance(each, FileRange) for each in pieces))
        try:
            await self._send_all(pieces)
        finally:
            if not self._transport.is_closing():
                self._hold_back(is_held=False)

    def close(self) -> None:
        if self._copy is not None:
            os.close(self._copy)
            self._copy = None

    async def _send_all(self, pieces: Sequence[Piece]) -> None:
        for is_file, group in itertools.groupby(pieces, lambda piece: isinstance(piece, FileRange)):
            if is_file:
                for each in group:
                    assert isinstance(each, FileRange), "the group has ranges alone"
                    await (self._send_file(each) if self._is_plain else self._send_read(each))
            elif self._is_plain:
                await self._send_buffers([each for each in group if not isinstance(each, FileRange)])
            else:
                for each in group:
                    await self._send_encrypted(memoryview(each))  # type: ignore[arg-type]  # no range is in the group

    def _hold_back(self, *, is_held: bool) -> None:
        """Whether the kernel sends only full packets. Without it the head of a response wakes its client too early."""
        if self._can_cork and is_held != self._is_held:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, is_held)
            self._is_held = is_held

    async def _send_buffers(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        parts = deque(
            whole[at : at + BURST_BYTES]
            for whole in (memoryview(each).cast("B") for each in buffers)
            for at in range(0, len(whole), BURST_BYTES)
        )
        while parts:
            sent = await self._written(partial(_send_some, list(itertools.islice(parts, _BUFFERS_MAX))))
            while parts and sent >= len(parts[0]):
                sent -= len(parts.popleft())
            if sent:
                parts[0] = parts[0][sent:]

    async def _send_file(self, whole: FileRange) -> None:
        for part in whole.slices(FILE_SLICE_BYTES):
            if not part.is_cached():
                await self._load(part)
            rest = part
            while rest:
                sent = await self._written(partial(_send_range, rest))
                if not sent:
                    raise _shorter(rest)
                rest = rest.after(sent)

    async def _send_read(self, whole: FileRange) -> None:
        for part in whole.slices(SLICE_BYTES):
            data = part.read() if part.is_cached() else await self._load(part)
            if len(data) != part.nbytes:
                raise _shorter(part)
            await self._send_encrypted(memoryview(data))

    async def _send_encrypted(self, data: memoryview) -> None:
        data = data.cast("B")
        for at in range(0, len(data), SLICE_BYTES):
            part = data[at : at + SLICE_BYTES]
            self._writer.write(part)
            async with asyncio.timeout(self._send_s):
                await self._writer.drain()
            self.sent_bytes += len(part)

    async def _load(self, part: FileRange) -> bytes:
        """Read a part in a thread. The other connections do not wait for the disk."""
        return await asyncio.shield(self._pool.run(part.file, ("cold", next(_cold_reads)), part.read))

    async def _written(self, write: Callable[[int], int]) -> int:
        """The number of bytes that the socket took, when it takes some."""
        while True:
            if self._transport.is_closing():
                raise ConnectionResetError("the connection is closed")
            if self.sent_bytes >= self._burst_end:
                self._burst_end = self.sent_bytes + BURST_BYTES
                await asyncio.sleep(0)
                continue
            fd = self._socket.fileno()
            try:
                sent = write(fd)
            except BlockingIOError:
                await self._until_writable(fd)
                continue
            self.sent_bytes += sent
            if self.sent_bytes >= self._slice_end:
                self._start_slice()
            return sent

    async def _until_writable(self, fd: int) -> None:
        loop = asyncio.get_running_loop()
        writable: asyncio.Future[None] = loop.create_future()
        if self._copy is None:
            # The event loop refuses the transport's own descriptor; a copy of it tells the same.
            self._copy = os.dup(fd)
        loop.add_writer(self._copy, _finish, writable)
        timer = loop.call_at(self._deadline_s, _expire, writable)
        try:
            await writable
        finally:
            timer.cancel()
            loop.remove_writer(self._copy)

    def _start_slice(self) -> None:
        self._slice_end = self.sent_bytes + SLICE_BYTES
        self._deadline_s = asyncio.get_running_loop().time() + self._send_s


def _send_range(part: FileRange, fd: int) -> int:
    return os.sendfile(fd, part.file.fd, part.position, part.nbytes)


def _send_some(parts: Sequence[memoryview], fd: int) -> int:
    return os.writev(fd, parts)


def _finish(writable: asyncio.Future[None]) -> None:
    if not writable.done():
        writable.set_result(None)


def _expire(writable: asyncio.Future[None]) -> None:
    if not writable.done():
        writable.set_exception(TimeoutError())


def _shorter(part: FileRange) -> Corrupt:
    return Corrupt("cannot send a range of a file, the file is shorter", position=part.position, bytes=part.nbytes)


def memory_bytes(pieces: Iterable[Piece]) -> int:
    """The bytes of memory that a response holds: a range of a file has none."""
    return sum(len(piece) for piece in pieces if not isinstance(piece, FileRange))
