"""Log lines about errors of partitions, bounded: clients that try again do not fill the log.

The first error of a class at a place is logged with its level. For INTERVAL_S its repetitions are DEBUG lines.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

INTERVAL_S = 60.0
PLACES_MAX = 10_000


class RepeatedErrors:
    """Remembers when errors were logged. Thread safe. `clock` returns seconds that never fall."""

    def __init__(
        self,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        *,
        attempt: str = "cannot serve a partition",
        place: str = "partition",
    ) -> None:
        """`place`: what the places are, for the lines."""
        self._log, self._clock, self._attempt, self._place = log, clock, attempt, place
        self._lock = threading.Lock()
        self._logged_s: OrderedDict[tuple[object, type[BaseException]], float] = OrderedDict()

    def warn(self, where: object, error: BaseException) -> None:
        self._write(logging.WARNING, where, error)

    def fail(self, where: object, error: BaseException) -> None:
        self._write(logging.ERROR, where, error)

    def _write(self, level: int, where: object, error: BaseException) -> None:
        level = level if self._is_due(where, error) else logging.DEBUG
        self._log.log(level, "%s: %s=%s error=%s", self._attempt, self._place, where, error)

    def _is_due(self, where: object, error: BaseException) -> bool:
        place, now_s = (where, type(error)), self._clock()
        with self._lock:
            known_s = self._logged_s.get(place)
            if known_s is not None and now_s - known_s < INTERVAL_S:
                return False
            self._logged_s[place] = now_s
            self._logged_s.move_to_end(place)
            if len(self._logged_s) > PLACES_MAX:
                self._logged_s.popitem(last=False)
            return True
