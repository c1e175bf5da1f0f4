"""Producer ids, each given once: reserved durably in blocks, before the first id of a block is given.

``producer-ids.json`` is at the root of every log directory, where a broker ignores unknown files. It holds the first id
that is not reserved. The highest copy is valid.

| crash after | effect at the next start |
|---|---|
| nothing is written | no id of the block was given |
| a copy is written | the next block begins after this one; its ids that were not given are never given |

Logs may hold ids that another node or broker gave: they were restored or adopted. So the first block begins above the
highest id in the logs too. A copy that cannot be read may be ahead of the others, and its logs may hold higher ids.
Then the ids begin AHEAD higher.

Source: kafka `RPCProducerIdManager`, `ProducerIdsBlock`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from tiered.node.topic_registry import CopiedFile, Places

FILE = "producer-ids.json"
FORMAT_VERSION = 1
BLOCK = 1000  # kafka ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE
AHEAD = 1 << 32
_ATTEMPT = "producer ids"


class _File(msgspec.Struct, frozen=True):
    """`version` is the first id that is not reserved."""

    format_version: int
    version: int


# Built at import: building it in two threads in parallel ends the process (msgspec 0.22).
_FILE = msgspec.json.Decoder(_File)


class ProducerIds:
    """Thread safe. `highest_in_logs` gives the highest producer id in the logs, -1 without any."""

    def __init__(self, places: Places, highest_in_logs: Callable[[], int]) -> None:
        self._file = CopiedFile(places, FILE, _FILE, FORMAT_VERSION, _ATTEMPT)
        self._highest_in_logs = highest_in_logs
        self._lock = threading.Lock()
        self._next = self._end = 0  # the given block is [next, end)
        self._is_read = False

    def take(self) -> int:
        """A new id. Raises DiskFailed, AccessDenied if no directory can reserve a block."""
        with self._lock:
            if self._next == self._end:
                self._reserve()
            self._next += 1
            return self._next - 1

    def _reserve(self) -> None:
        first = self._end if self._is_read else self._read()
        body = msgspec.json.encode(_File(FORMAT_VERSION, first + BLOCK))
        errors = self._file.write(body, first + BLOCK)
        if errors and first + BLOCK not in self._file.versions:
            raise errors[-1]
        self._is_read = True
        self._next, self._end = first, first + BLOCK

    def _read(self) -> int:
        copies = self._file.read()
        reserved = copies.newest.version if copies.newest is not None else 0
        first = max(reserved, self._highest_in_logs() + 1)
        return first + AHEAD if copies.damaged or copies.unavailable else first
