"""Read a local file ahead of its upload: read the next block while the last one is processed.

A copy reads a segment once, in order, and processes every block: CRCs, decoding, compression, encryption. Without read
ahead the disk waits for the processor, and the processor for the disk. One event loop for the process reads the next
block of each file with aiofiles. A file has one block in use and one being read, so memory stays bounded.

This path bypasses `local.storage.storage`, so its errors are never final. After an error here (the file was moved, the
disk fails) the caller's `read` function reads through the storage, which handles the error. The caller checks the bytes
of both paths.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from remote.segment_entry import PART_BYTES
from remote.store import Body

log = logging.getLogger(__name__)


class _Loop:
    """An event loop in a thread of its own, created at first use, once in each process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, work: Any) -> Future[Any]:  # noqa: ANN401  # a coroutine
        if self._pid != os.getpid():
            self._lock = threading.Lock()  # a forked child has neither the thread nor the lock's holder
            self._loop, self._pid = None, os.getpid()
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="tiered-file-ahead", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)


_LOOP = _Loop()


class FileAhead:
    """One file of `size_bytes` that is read roughly in order.

    Thread safe; concurrent readers only lose the speed gain. `path` is the file, `read` the path through the storage,
    which always works.
    """

    def __init__(
        self, path: str, size_bytes: int, read: Callable[[int, int], Body], *, block_bytes: int = PART_BYTES
    ) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._read = read
        self._block_bytes = block_bytes
        self._lock = threading.Lock()
        self._at = -1  # number of the block in memory
        self._block: Body = b""
        self._ahead: Future[bytes] | None = None  # the block after it
        self._turn = asyncio.Lock()
        self._file: Any = None
        self._has_failed = False

    def read(self, start: int, length: int) -> Body:
        """Bytes ``[start, start + length)``. Raises the errors of the caller's `read`."""
        end = start + length
        if self._has_failed or not 0 <= start < end <= self._size_bytes:
            return self._read(start, length)
        first, last = start // self._block_bytes, (end - 1) // self._block_bytes
        with self._lock:
            pieces = [self._piece(number, start, end) for number in range(first, last + 1)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Close the file. Idempotent; later reads use the storage."""
        with self._lock:
            self._has_failed = True
            ahead, self._ahead, self._block, self._at = self._ahead, None, b"", -1
        if ahead is not None or self._file is not None:
            _LOOP.run(self._end())

    def _piece(self, number: int, start: int, end: int) -> Body:
        at = number * self._block_bytes
        block = self._take(number)
        if start <= at and at + len(block) <= end:
            return block
        return memoryview(block)[max(0, start - at) : end - at]

    def _take(self, number: int) -> Body:
        if number == self._at:
            return self._block
        ahead, self._ahead = self._ahead, None
        expected = min(self._block_bytes, self._size_bytes - number * self._block_bytes)
        block: Body | None = None
        if ahead is not None and number == self._at + 1:
            block = self._landed(ahead, expected)
        self._block = self._read(number * self._block_bytes, expected) if block is None else block
        self._at = number
        if (number + 1) * self._block_bytes < self._size_bytes and not self._has_failed:
            self._ahead = _LOOP.run(self._fetch(number + 1))
        return self._block

    def _landed(self, ahead: Future[bytes], expected: int) -> bytes | None:
        """The block that was read ahead; None if it is incomplete, which also stops reading ahead."""
        try:
            block = ahead.result()
        except OSError as error:
            log.debug(
                "cannot read ahead directly, reading through the storage layer: path=%s cause=%s",
                self._path,
                type(error).__name__,
            )
            block = b""
        self._has_failed = len(block) != expected
        return None if self._has_failed else block

    async def _end(self) -> None:
        """Close the file after the pending read: its descriptor number must not be reused before."""
        async with self._turn:
            file, self._file = self._file, None
            if file is not None:
                await file.close()

    async def _fetch(self, number: int) -> bytes:
        import aiofiles

        wanted = min(self._block_bytes, self._size_bytes - number * self._block_bytes)
        async with self._turn:  # an unused block may still be read, and the file has one position
            if self._file is None:
                self._file = await aiofiles.open(self._path, "rb", buffering=0)
            await self._file.seek(number * self._block_bytes)
            return bytes(await self._file.read(wanted))
