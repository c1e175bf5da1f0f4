"""A cache of verified bytes in memory: LRU, and one load for concurrent readers of the same key.

Bytes that a stream has passed are evicted first, the last passed first: their memory is still in the processor's
caches. Every LEFT_KEPT-th body stays in normal LRU order: else bodies of ended streams would never be evicted. Source:
bimodal insertion, Qureshi et al., "Adaptive Insertion Policies for High Performance Caching", ISCA 2007.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, TypeVar

from remote.store import Body

CACHE_BYTES = 128 << 20
LEFT_KEPT = 16  # one in this many bodies that streams passed stays in normal LRU order


@dataclass(frozen=True, slots=True)
class Slice:
    """`size_bytes` bytes of `body` from `start`: a view of one response, not a copy."""

    body: Body
    start: int
    size_bytes: int

    def __len__(self) -> int:
        return self.size_bytes

    def view(self) -> memoryview:
        """These bytes; fewer if the body ends earlier."""
        return memoryview(self.body)[self.start : self.start + self.size_bytes]


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Sized)
Loader = Callable[[Sequence[K]], Mapping[K, V]]


class ChunkCache:
    """A cache of immutable values of at most `bytes_max` in all, by their `len`; 0 caches nothing. Thread safe.

    Loads run outside the lock. Slices of one body that are loaded together are one entry of the body's size: one cached
    slice holds the whole body in memory. Bytes that a reader still holds after their eviction do not count.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES) -> None:
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._values: dict[Any, Any] = {}
        self._entry_of: dict[Any, _Entry] = {}
        self._entries: OrderedDict[_Entry, None] = OrderedDict()
        self._flights: dict[Any, _Flight] = {}
        self.size_bytes = 0
        self._left = 0
        self._loading_bytes = 0  # of loads that reserved their memory
        self.streams = 0  # sequential readers that share the memory
        self.hits = self.misses = 0  # statistics: keys cached or being loaded, and all other keys

    def fetch(self, wanted: Sequence[K], load: Loader[K, V], *, reserved_bytes: int = 0) -> list[V]:
        """The value of every key in `wanted`, in order. Errors of `load` pass through.

        `reserved_bytes` are evicted before the load, so that it and the cache together have at most `bytes_max`.
        `load` gets the keys that are neither cached nor being loaded by another reader. After another reader's failed
        load this reader loads by itself at once: otherwise the readers of a hanging store would queue, each until its
        deadline.
        """
        found: dict[K, V] = {}
        mine, theirs = self._claim(wanted, found, reserved_bytes)
        if mine:
            found.update(self._load(mine, load, reserved_bytes))
        for flight in set(theirs.values()):
            flight.landed.wait()
        found.update((key, flight.values[key]) for key, flight in theirs.items() if key in flight.values)
        if failed := [key for key in theirs if key not in found]:
            loaded = load(failed)
            self.keep(loaded)
            found.update(loaded)
        return [found[key] for key in wanted]

    def keep(self, loaded: Mapping[K, V]) -> None:
        """Add values that came with another request; cached values stay."""
        with self._lock:
            self._keep(loaded.items())

    def peek(self, key: Hashable) -> object:
        """The cached value, None if absent; does not mark it as used."""
        with self._lock:
            return self._values.get(key)

    def count_streams(self, by: int) -> None:
        with self._lock:
            self.streams += by

    def leave_behind(self, keys: Iterable[Hashable]) -> None:
        """Mark keys that a stream has passed and will not read again: most are evicted first."""
        with self._lock:
            for entry in dict.fromkeys(self._entry_of[key] for key in keys if key in self._entry_of):
                self._left += 1
                if self._left % LEFT_KEPT:
                    self._entries.move_to_end(entry, last=False)

    def _claim(self, wanted: Sequence[K], found: dict[K, V], reserved_bytes: int) -> tuple[list[K], dict[K, _Flight]]:
        mine: list[K] = []
        theirs: dict[K, _Flight] = {}
        with self._lock:
            for key in wanted:
                if key in self._values:
                    self._entries.move_to_end(self._entry_of[key])
                    found[key] = self._values[key]
                elif key in self._flights:
                    theirs[key] = self._flights[key]
                else:
                    mine.append(key)
            self.misses += len(mine)
            self.hits += len(wanted) - len(mine)
            self._flights.update(dict.fromkeys(mine, _Flight()))
            if mine:
                self._loading_bytes += reserved_bytes
                self._evict()
        return mine, theirs

    def _load(self, mine: Sequence[K], load: Loader[K, V], reserved_bytes: int) -> Mapping[K, V]:
        loaded: Mapping[K, V] = {}
        try:
            loaded = load(mine)
        finally:
            with self._lock:
                flight = self._flights[mine[0]]
                self._loading_bytes -= reserved_bytes
                for key in mine:
                    del self._flights[key]
                try:
                    flight.values = loaded
                    self._keep((key, loaded[key]) for key in mine if key in loaded)
                finally:  # even if caching fails for lack of memory: other readers wait for this load
                    flight.landed.set()
        return loaded

    def _keep(self, loaded: Iterable[tuple[K, V]]) -> None:
        entries: dict[int, _Entry] = {}
        for key, value in loaded:
            if key in self._values:  # another reader loaded it too, after a failed load
                continue
            if isinstance(value, Slice):
                entry = entries.setdefault(id(value.body), _Entry(len(value.body)))
            else:
                entry = _Entry(len(value))
            entry.keys.append(key)
            self._values[key], self._entry_of[key] = value, entry
            if entry not in self._entries:
                self._entries[entry] = None
                self.size_bytes += entry.size_bytes
        self._evict()

    def _evict(self) -> None:
        while self._entries and self.size_bytes + self._loading_bytes > self.bytes_max:
            evicted, _ = self._entries.popitem(last=False)
            self.size_bytes -= evicted.size_bytes
            for key in evicted.keys:
                del self._values[key], self._entry_of[key]


@dataclass(slots=True, eq=False)
class _Entry:
    size_bytes: int
    keys: list[Any] = field(default_factory=list)


class _Flight:
    """A running load of all keys that one reader loads together; `values` stays empty if it failed."""

    __slots__ = ("landed", "values")

    def __init__(self) -> None:
        self.landed = threading.Event()
        self.values: Mapping[Any, Any] = {}
