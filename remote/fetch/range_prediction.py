"""A guess of an offset's position in a segment before its indexes are loaded: saves a round trip.

Offsets and bytes grow together, so the position is roughly proportional. The guessed bytes are requested together with
the indexes, which show whether the guess was right. A wrong guess costs one useless GET, so a partition with several
wrong guesses pauses guessing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from remote.segment_entry import SegmentEntry
from remote.segments.chunk_table import CHUNK_BYTES, RAW
from remote.segments.object_encoding import CODECS
from remote.store import Body

GUESS_BYTES = 128 << 10  # size of a first read
SLACK_BYTES = 128 << 10  # added on either side
WRONG_MAX = 3  # a higher excess of wrong guesses over right ones starts a pause
REST = 32  # segments without a guess in a pause


@dataclass(slots=True)
class PredictedRange:
    """A guess: bytes ``[start, start + length)`` of a segment, and the store's answer."""

    start: int
    length: int
    body: Body | None = None

    def holds(self, position: int) -> bool:
        return self.start <= position < self.start + self.length


class RangePredictor:
    """Decides whether to guess in one partition. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wrong = 0
        self._rest = 0

    def guess(self, segment: SegmentEntry, offset: int) -> PredictedRange | None:
        """Return the range to fetch, in whole chunks; None for no guess.

        Only plain objects are guessed: otherwise the chunk boundaries are unknown.
        """
        if segment.codec != CODECS[RAW] or segment.key_id is not None or not self._may():
            return None
        reached = min(max(offset, segment.base_offset), segment.next_offset - 1) - segment.base_offset
        middle = segment.size_bytes * reached // (segment.next_offset - segment.base_offset)
        start = max(0, middle - SLACK_BYTES) // CHUNK_BYTES * CHUNK_BYTES
        stop = -(-(middle + GUESS_BYTES + SLACK_BYTES) // CHUNK_BYTES) * CHUNK_BYTES
        return PredictedRange(start, min(stop, segment.size_bytes) - start)

    def was(self, *, right: bool) -> None:
        with self._lock:
            self._wrong = max(0, self._wrong - 1) if right else self._wrong + 1
            if self._wrong > WRONG_MAX:
                self._wrong, self._rest = WRONG_MAX, REST

    def _may(self) -> bool:
        with self._lock:
            is_over, self._rest = self._rest == 0, max(0, self._rest - 1)
            return is_over
