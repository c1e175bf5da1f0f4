"""Producer ids, each given once: reserved durably in blocks, before the first id of a block is given.

``producer-ids.json`` is at the root of every log directory, where a broker ignores unknown files. It holds the first id
that is not reserved. The highest copy is valid.

| crash after | effect at the next start |
|---|---|
| nothing is written | no id of the block was given |
| a copy is written | the next block begins after this one; its ids that were not given are never given |

Logs may hold ids that another node or broker gave: they were restored or adopted. So the first block begins above the
highest id in the logs and in the states of transactional ids too. If higher ones may exist, the ids begin AHEAD to
AHEAD + DISTANCES higher, at random: two nodes that were restored from one bucket give other ids. Nodes that give n
ids each give a common one with a chance of about 2 * n / DISTANCES.

- A copy cannot be read. It may be ahead of the others, and its logs may hold higher ids.
- Logs have records and there is no copy. Clients of another node may still use ids that the logs lack.

A client writes the id of its batches itself. No id of a client moves the next block to the end of the range:

| id | a batch or a marker with it | in a log |
|---|---|---|
| below FOREIGN_END | accepted: another node or broker may have given the id | the first block begins above it |
| from FOREIGN_END on | accepted if its block is reserved | the first block begins above it |
| from IGNORED_FROM on | the same | ignored: a broker took it from a client |

Source: kafka `RPCProducerIdManager`, `ProducerIdsBlock`.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

import msgspec

from local.errors import Corrupt
from tiered.node.topic_registry import CopiedFile, Places

FILE = "producer-ids.json"
FORMAT_VERSION = 1
BLOCK = 1000  # kafka ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE
AHEAD = 1 << 32
DISTANCES = 1 << 48  # a restore takes this much of the 2^62 ids at most
FOREIGN_END = 1 << 62
IGNORED_FROM = FOREIGN_END + (1 << 61)
_ID_MAX = 2**63 - 1
_ATTEMPT = "producer ids"


class _File(msgspec.Struct, frozen=True):
    """`version` is the first id that is not reserved."""

    format_version: int
    version: int


# Built at import: building it in two threads in parallel ends the process (msgspec 0.22).
_FILE = msgspec.json.Decoder(_File)


class ProducerIds:
    """Thread safe. `highest_in_logs` gives the highest producer id below IGNORED_FROM in the logs.

    It is at least 0 if the logs have records, and -1 if they are empty.
    """

    def __init__(self, places: Places, highest_in_logs: Callable[[], int]) -> None:
        self._file = CopiedFile(places, FILE, _FILE, FORMAT_VERSION, _ATTEMPT)
        self._highest_in_logs = highest_in_logs
        self._lock = threading.Lock()
        self._next = self._end = 0  # the given block is [next, end)
        self._is_read = False

    def take(self) -> int:
        """A new id. Raises DiskFailed, AccessDenied if no directory can reserve a block, Corrupt without a free id."""
        with self._lock:
            if self._next == self._end:
                self._reserve()
            self._next += 1
            return self._next - 1

    def is_possible(self, producer_id: int) -> bool:
        """Whether a producer may have the id."""
        if producer_id < FOREIGN_END:
            return True
        with self._lock:
            self._read_once()
            return producer_id < self._end

    def _reserve(self) -> None:
        self._read_once()
        first = self._end
        if first + BLOCK - 1 > _ID_MAX:
            raise Corrupt(f"cannot give a producer id, {FILE} or a log is at the end of their range", first=first)
        body = msgspec.json.encode(_File(FORMAT_VERSION, first + BLOCK))
        errors = self._file.write(body, first + BLOCK)
        if errors and first + BLOCK not in self._file.versions:
            raise errors[-1]
        self._next, self._end = first, first + BLOCK

    def _read_once(self) -> None:
        if self._is_read:
            return
        copies = self._file.read()
        reserved = copies.newest.version if copies.newest is not None else 0
        highest = self._highest_in_logs()
        first = max(reserved, highest + 1)
        is_foreign = copies.newest is None and highest >= 0
        may_be_higher = copies.damaged or copies.unavailable or is_foreign
        self._next = self._end = first + AHEAD + secrets.randbelow(DISTANCES) if may_be_higher else first
        self._is_read = True
