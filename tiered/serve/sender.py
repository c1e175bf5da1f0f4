"""Sends the responses of one connection, under the back-pressure of its client.

| the connection | buffers | ranges of files |
|---|---|---|
| plain | written from where they are | `sendfile` in slices: the bytes never enter the process |
| TLS | passed to the transport in slices | read in slices |

Both hold at most SLICE_BYTES of a response besides its own buffers, and FILE_SLICE_BYTES of a file that has to be
loaded, which a thread does. After BURST_BYTES the event loop serves the other connections, so that a fast client does
not delay them.

While the socket has no room, the event loop itself writes on whenever it has some. The task of the connection continues
after the last byte: its wake-up for each piece would cost more than the piece.

A plain connection never writes through its transport, which so owns no bytes. Every system call follows a check, in the
same step of the event loop, that the transport is open: its descriptor cannot belong to another connection.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

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
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None  # for room in the socket
        self._timer: asyncio.TimerHandle | None = None
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
        if self._timer is not None:
            self._timer.cancel()

    async def _send_all(self, pieces: Sequence[Piece]) -> None:
        buffers: list[bytes | bytearray | memoryview] = []
        for each in pieces:
            if not isinstance(each, FileRange):
                buffers.append(each)
                continue
            await self._send_buffers(buffers)
            buffers = []
            await (self._send_file(each) if self._is_plain else self._send_read(each))
        await self._send_buffers(buffers)

    def _hold_back(self, *, is_held: bool) -> None:
        """Whether the kernel sends only full packets. Without it the head of a response wakes its client too early."""
        if self._can_cork and is_held != self._is_held:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, is_held)
            self._is_held = is_held

    async def _send_buffers(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        if self._is_plain:
            await self._write(_Buffers(buffers))
            return
        for each in buffers:
            await self._send_encrypted(memoryview(each))

    async def _send_file(self, whole: FileRange) -> None:
        for part in whole.slices(FILE_SLICE_BYTES) if whole.nbytes > FILE_SLICE_BYTES else (whole,):
            if not part.is_cached():
                await self._load(part)
            await self._write(_File(part))

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

    async def _write(self, work: _Work) -> None:
        """Write all of it: now what the socket takes, the rest in the event loop as the client reads."""
        if self.sent_bytes >= self._burst_end:
            self._burst_end = self.sent_bytes + BURST_BYTES
            await asyncio.sleep(0)  # a wait for room would leave a client that is fast with a second descriptor
        if self._advance(work):
            return
        done: asyncio.Future[None] = self._loop.create_future()
        # The event loop refuses the transport's own descriptor. A copy has the same events, and is open for one wait.
        copy = os.dup(self._socket.fileno())
        self._loop.add_writer(copy, self._continue, work, done)
        self._waiting = done
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline_s, self._check_deadline)
        try:
            await done
        finally:
            self._waiting = None
            self._loop.remove_writer(copy)
            os.close(copy)
            del done  # its error has this frame, which would keep the file open

    def _continue(self, work: _Work, done: asyncio.Future[None]) -> None:
        if done.done():
            return
        try:
            if self._advance(work):
                done.set_result(None)
        except Exception as error:  # noqa: BLE001 - it belongs to the task of the connection
            done.set_exception(error)
            del done  # as in `_write`

    def _advance(self, work: _Work) -> bool:
        """Write what the socket takes, until BURST_BYTES are sent. Whether all is written."""
        while work.is_left:
            if self._transport.is_closing():
                raise ConnectionResetError("the connection is closed")
            if self.sent_bytes >= self._burst_end:
                self._burst_end = self.sent_bytes + BURST_BYTES
                return False
            try:
                self.sent_bytes += work.write(self._socket.fileno())
            except BlockingIOError:
                return False
            if self.sent_bytes >= self._slice_end:
                self._start_slice()
        return True

    def _check_deadline(self) -> None:
        """End the sending, if the client took no slice in time. The timer serves all waits until its time."""
        self._timer = None
        if self._waiting is None or self._waiting.done():
            return
        if self._loop.time() >= self._deadline_s:
            self._waiting.set_exception(TimeoutError())
        else:
            self._timer = self._loop.call_at(self._deadline_s, self._check_deadline)

    def _start_slice(self) -> None:
        self._slice_end = self.sent_bytes + SLICE_BYTES
        self._deadline_s = self._loop.time() + self._send_s


class _Work(Protocol):
    """Bytes to write to a descriptor."""

    @property
    def is_left(self) -> bool: ...

    def write(self, fd: int) -> int:
        """Write some of what is left; the number of bytes. Raises BlockingIOError for none, Corrupt for a cut file."""


class _Buffers:
    def __init__(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        self._parts = deque([memoryview(each).cast("B") for each in buffers])

    @property
    def is_left(self) -> bool:
        return bool(self._parts)

    def write(self, fd: int) -> int:
        parts = self._parts
        if len(parts[0]) > BURST_BYTES:
            sent = left = os.write(fd, parts[0][:BURST_BYTES])
        else:
            sent = left = os.writev(fd, list(itertools.islice(parts, _BUFFERS_MAX)))
        while parts and left >= len(parts[0]):
            left -= len(parts.popleft())
        if left:
            parts[0] = parts[0][left:]
        return sent


class _File:
    def __init__(self, part: FileRange) -> None:
        self._file, self._at, self._end = part.file, part.position, part.position + part.nbytes

    @property
    def is_left(self) -> bool:
        return self._at < self._end

    def write(self, fd: int) -> int:
        sent = os.sendfile(fd, self._file.fd, self._at, self._end - self._at)
        if not sent:
            raise _shorter(FileRange(self._file, self._at, self._end - self._at))
        self._at += sent
        return sent


def _shorter(part: FileRange) -> Corrupt:
    return Corrupt("cannot send a range of a file, the file is shorter", position=part.position, bytes=part.nbytes)


def memory_bytes(pieces: Iterable[Piece]) -> int:
    """The bytes of memory that a response holds: a range of a file has none."""
    return sum(len(piece) for piece in pieces if not isinstance(piece, FileRange))
