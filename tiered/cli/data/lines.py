"""Read lines from a descriptor in runs: whole lines, in order, with bounded delay.

Data that was read is never discarded. A run ends when it is full, one second after its first line, at the end of the
input, or at a stop signal. Only an incomplete line, cut short by a signal, is not returned.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from local.errors import DiskFailed, InvalidRequest
from tiered.cli.signals import Stop

RUN_S = 1.0  # maximum delay of a line of an open pipe
RUN_BYTES = 16 << 20  # long lines make shorter runs
CHUNK_BYTES = 1 << 20


@contextmanager
def open_lines(path: str) -> Iterator[int]:
    """Return the descriptor of a file, or of stdin for ``-``. Raises InvalidRequest when stdin is closed."""
    if path == "-":
        if sys.stdin is None:
            raise InvalidRequest("cannot read lines, stdin is closed: name a file")
        yield 0
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def line_runs(fd: int, size: int, stop: Stop) -> Iterator[list[bytes]]:
    """Yield runs of 1 to `size` lines, ``\\n`` cut off (module text). Raises DiskFailed if the input is unreadable."""
    lines: list[bytes] = []
    pieces: list[bytes] = []  # of a line that is still incomplete
    held = 0
    due = float("inf")
    while not stop.is_set:
        data = _read(fd, stop, due)
        if data:
            first, *others = data.split(b"\n")
            pieces.append(first)
            if others:
                due = min(due, time.monotonic() + RUN_S)
                lines += [b"".join(pieces), *others[:-1]]
                pieces = others[-1:]
            held += len(data)
        elif data is not None:
            lines += [last] if (last := b"".join(pieces)) else []
            break
        whole = len(lines)
        if time.monotonic() < due and held < RUN_BYTES:
            whole -= whole % size
        if whole:
            yield from _sliced(lines[:whole], size)
            lines, held, due = lines[whole:], 0, float("inf")
            if lines:
                due = time.monotonic() + RUN_S
    yield from _sliced(lines, size)


def _read(fd: int, stop: Stop, due: float) -> bytes | None:
    """Return the available bytes, empty at the end; None when `due` (monotonic) or a signal came first."""
    wait_s = None if due == float("inf") else due - time.monotonic()
    if not stop.wait(wait_s, fd):
        return None
    try:
        return os.read(fd, CHUNK_BYTES)
    except OSError as error:
        cause = errno.errorcode.get(error.errno or 0, "unknown").lower()
        raise DiskFailed("cannot read lines", descriptor=fd, cause=cause) from error


def _sliced(lines: list[bytes], size: int) -> Iterator[list[bytes]]:
    for at in range(0, len(lines), size):
        yield lines[at : at + size]
