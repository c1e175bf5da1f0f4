"""Where in a segment an offset lies, before its indexes are here: a guess that saves a turn of waiting.

Offsets and bytes grow together, so the place is proportional, give or take. What lies there is asked for beside the
indexes; they tell whether it was right. A wrong guess costs a GET in vain, so who guesses wrong stops for a while.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from remote.segment_entry import RemoteSegment
from remote.segments.chunk_table import CHUNK_BYTES, RAW
from remote.segments.object_encoding import CODECS
from remote.store import Body

GUESS_BYTES = 128 << 10  # what a first read asks for
SLACK_BYTES = 128 << 10  # to either side
WRONG_MAX = 3  # more wrong guesses than right ones, lately: no more
REST = 32  # segments without a guess then


@dataclass(slots=True)
class Guess:
    """Bytes ``[start, start + length)`` of a segment, and what the store gave for them."""

    start: int
    length: int
    body: Body | None = None

    def holds(self, position: int) -> bool:
        return self.start <= position < self.start + self.length


class Guesses:
    """Whether to guess in one partition. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wrong = 0
        self._rest = 0

    def guess(self, segment: RemoteSegment, offset: int) -> Guess | None:
        """What to fetch, in chunks; None for no guess.

        Only of what is stored as it is: elsewhere nobody knows where a chunk begins.
        """
        if segment.codec != CODECS[RAW] or segment.key_id is not None or not self._may():
            return None
        reached = min(max(offset, segment.base_offset), segment.next_offset - 1) - segment.base_offset
        middle = segment.size_bytes * reached // (segment.next_offset - segment.base_offset)
        start = max(0, middle - SLACK_BYTES) // CHUNK_BYTES * CHUNK_BYTES
        stop = -(-(middle + GUESS_BYTES + SLACK_BYTES) // CHUNK_BYTES) * CHUNK_BYTES
        return Guess(start, min(stop, segment.size_bytes) - start)

    def was(self, *, right: bool) -> None:
        with self._lock:
            self._wrong = max(0, self._wrong - 1) if right else self._wrong + 1
            if self._wrong > WRONG_MAX:
                self._wrong, self._rest = WRONG_MAX, REST

    def _may(self) -> bool:
        with self._lock:
            is_over, self._rest = self._rest == 0, max(0, self._rest - 1)
            return is_over
