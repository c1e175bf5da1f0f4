"""The mapped index files of all sealed segments of this process: as many as fit, the least recently used one goes.

Segments are many and lookups are few: an index is mapped when something is looked up in it, and stays mapped while it
is among the last `MAPS_MAX`. Lookups touch the pages of a binary search and nothing else.

Descriptors of the local tier, however many segments and logs there are: those of the active segment of each open log,
one for each read under way (a ``.log`` is opened for the read and closed after it), one for each directory's lock, and,
before Python 3.13, one for each map here. From 3.13 on a map holds none.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

MAPS_MAX = 128


class IndexMaps:
    """Thread safe. A map that is dropped while somebody looks into it goes when they have let go of it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._maps: OrderedDict[tuple[object, str], memoryview] = OrderedDict()

    def __len__(self) -> int:
        return len(self._maps)

    def get(self, owner: object, suffix: str, make: Callable[[], memoryview]) -> memoryview:
        """The map of one of `owner`'s files, made if it is not there. Not to be released by the caller."""
        key = (owner, suffix)
        with self._lock:
            if key in self._maps:
                self._maps.move_to_end(key)
                return self._maps[key]
        made = make()  # outside the lock: others need not wait for the disk
        with self._lock:
            self._maps[key] = made
            while len(self._maps) > self._limit:
                self._maps.popitem(last=False)
        return made

    def forget(self, owner: object, suffixes: tuple[str, ...]) -> None:
        """`owner`'s files go, or were replaced."""
        with self._lock:
            for suffix in suffixes:
                self._maps.pop((owner, suffix), None)


INDEX_MAPS = IndexMaps(MAPS_MAX)
