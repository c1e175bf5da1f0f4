"""A cache of the mapped index files of all closed segments of this process, least recently used out.

Segments are many and lookups are few. An index file is mapped at its first lookup and stays mapped while it is among
the `MAPS_MAX` most recently used ones. A lookup touches only the pages of a binary search.

The local tier holds these descriptors, independent of the number of segments:

- for each open log, the files of its active segment;
- for each read under way, one (a ``.log`` is opened for the read and closed after it);
- for each directory, one for its lock;
- before Python 3.13, one for each map here; from 3.13 on a map holds none.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

MAPS_MAX = 128


class IndexMaps:
    """A thread-safe cache of maps. A map removed during a lookup stays valid until that lookup ends."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._maps: OrderedDict[tuple[object, str], memoryview] = OrderedDict()

    def __len__(self) -> int:
        return len(self._maps)

    def get(self, owner: object, suffix: str, make: Callable[[], memoryview]) -> memoryview:
        """Return the map of one of `owner`'s files.

        `make` creates a missing one. The caller must not release the map.
        """
        key = (owner, suffix)
        with self._lock:
            if key in self._maps:
                self._maps.move_to_end(key)
                return self._maps[key]
        made = make()  # outside the lock: other threads need not wait for the disk
        with self._lock:
            self._maps[key] = made
            while len(self._maps) > self._limit:
                self._maps.popitem(last=False)
        return made

    def forget(self, owner: object, suffixes: tuple[str, ...]) -> None:
        """Remove the maps of `owner`'s files, before the files are deleted or replaced."""
        with self._lock:
            for suffix in suffixes:
                self._maps.pop((owner, suffix), None)


INDEX_MAPS = IndexMaps(MAPS_MAX)
