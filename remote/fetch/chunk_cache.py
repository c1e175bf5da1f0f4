"""Verified bytes in memory: least recently used go first, and what several readers want at once is fetched once.

A long stream would push everything out and use nothing of it again. So what a stream has left behind goes first
(`leave_behind`), last left first gone: its memory is taken again while the processor still has it in its caches, which
makes receiving, checksums and reading twice as cheap. Every LEFT_KEPT-th body stays as if it were used, so that what
was kept of an old stream makes room for a new one in time.
Source: bimodal insertion, Qureshi et al., "Adaptive Insertion Policies for High Performance Caching", ISCA 2007.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from remote.segments.index_bundle import IndexBundle
from remote.store import Body

CACHE_BYTES = 128 << 20
LEFT_KEPT = 16  # of the bodies that streams left behind one in so many is kept like any other


@dataclass(frozen=True, slots=True)
class Slice:
    """`size_bytes` bytes of `body` from `start`: a piece of what one request brought, not copied out of it."""

    body: Body
    start: int
    size_bytes: int

    def __len__(self) -> int:
        return self.size_bytes

    def view(self) -> memoryview:
        """These bytes; fewer where the body ends before."""
        return memoryview(self.body)[self.start : self.start + self.size_bytes]


Key = tuple[str, int]  # (the object's full key, chunk number), or another number for the object as a whole
Value = bytes | Slice | IndexBundle
V = TypeVar("V", bytes, Slice, IndexBundle)
Loader = Callable[[Sequence[Key]], Mapping[Key, V]]


class ChunkCache:
    """Chunks of data objects and decoded indexes. Thread safe; `bytes_max` 0 keeps nothing.

    A key always names the same immutable thing, which is so for objects that are never overwritten. Under the lock
    only the books are kept; loading is done outside. What a reader still holds after its eviction is not counted.

    Slices of one body that were loaded together are used and let go of together, and weigh what the body weighs: as
    long as one of them is here, all of it is in memory.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._values: dict[Key, Value] = {}
        self._entry_of: dict[Key, _Entry] = {}
        self._entries: OrderedDict[_Entry, None] = OrderedDict()
        self._flights: dict[Key, _Flight] = {}
        self._bytes = 0
        self._left = 0
        self.hits = self.misses = 0  # what was wanted and here (or on its way), and what was not; for people

    @property
    def size_bytes(self) -> int:
        return self._bytes

    @property
    def bytes_max(self) -> int:
        return self._bytes_max

    def fetch(self, wanted: Sequence[Key], load: Loader[V], *, ahead: Sequence[Key] = ()) -> list[V]:
        """What every key in `wanted` names, in order.

        `load` is called with the keys that are neither here nor on their way to another reader, and must give all of
        `wanted` among them. Where it has to be called anyway, keys of `ahead` that are missing go with them; those it
        may leave out. Errors of `load` pass through. A reader that waited for another's failed load loads by itself and
        waits for nobody again: readers of a store that hangs would queue, each until its deadline.
        """
        found: dict[Key, Value] = {}
        while True:
            missing = [key for key in wanted if key not in found]
            if not missing:
                return [found[key] for key in wanted]  # type: ignore[misc]
            mine, theirs = self._claim(missing, ahead, found)
            if mine:
                found.update(self._load(mine, load))
            for flight in set(theirs.values()):
                flight.landed.wait()
            found.update((key, flight.values[key]) for key, flight in theirs.items() if key in flight.values)
            if left := [key for key in theirs if key not in found]:
                found.update(self._load_alone(left, load))

    def keep(self, loaded: Mapping[Key, Value]) -> None:
        """What came beside something else; what is here already stays as it is."""
        with self._lock:
            self._keep(loaded.items())

    def drop(self, keys: Sequence[Key]) -> None:
        """Forget these, and what was loaded in one piece with them."""
        with self._lock:
            for key in keys:
                if (entry := self._entry_of.get(key)) is not None:
                    self._forget(entry)

    def peek(self, key: Key) -> Value | None:
        """What is here, without using it."""
        with self._lock:
            return self._values.get(key)

    def leave_behind(self, keys: Iterable[Key]) -> None:
        """A stream has passed these, and does not come back: most of them go before all others."""
        with self._lock:
            for entry in dict.fromkeys(self._entry_of[key] for key in keys if key in self._entry_of):
                self._left += 1
                if self._left % LEFT_KEPT:
                    self._entries.move_to_end(entry, last=False)

    def _claim(
        self, missing: Sequence[Key], ahead: Sequence[Key], found: dict[Key, Value]
    ) -> tuple[list[Key], dict[Key, _Flight]]:
        mine: list[Key] = []
        theirs: dict[Key, _Flight] = {}
        with self._lock:
            for key in missing:
                if key in self._values:
                    self._entries.move_to_end(self._entry_of[key])
                    found[key] = self._values[key]
                elif key in self._flights:
                    theirs[key] = self._flights[key]
                else:
                    mine.append(key)
            self.misses += len(mine)
            self.hits += len(missing) - len(mine)
            if mine:
                fresh = [key for key in ahead if key not in self._values and key not in self._flights]
                mine += [key for key in fresh if key not in missing]
            self._flights.update(dict.fromkeys(mine, _Flight()))
        return mine, theirs

    def _load(self, mine: Sequence[Key], load: Loader[V]) -> Mapping[Key, V]:
        loaded: Mapping[Key, V] = {}
        try:
            loaded = load(mine)
        finally:
            with self._lock:
                flight = self._flights[mine[0]]
                for key in mine:
                    del self._flights[key]
                try:
                    flight.values = loaded
                    self._keep((key, loaded[key]) for key in mine if key in loaded)
                finally:  # also where there is no memory to keep it in: others wait
                    flight.landed.set()
        return loaded

    def _load_alone(self, keys: Sequence[Key], load: Loader[V]) -> Mapping[Key, V]:
        loaded = load(keys)
        with self._lock:
            self._keep(loaded.items())
        return loaded

    def _keep(self, loaded: Iterable[tuple[Key, Value]]) -> None:
        entries: dict[int, _Entry] = {}
        for key, value in loaded:
            if key in self._values:  # another reader loaded it, too, after a load that failed
                continue
            if isinstance(value, Slice):
                entry = entries.setdefault(id(value.body), _Entry(len(value.body)))
            else:
                entry = _Entry(len(value))
            entry.keys.append(key)
            self._values[key], self._entry_of[key] = value, entry
            if entry not in self._entries:
                self._entries[entry] = None
                self._bytes += entry.size_bytes
        while self._bytes > self._bytes_max:
            self._forget(next(iter(self._entries)))

    def _forget(self, entry: _Entry) -> None:
        del self._entries[entry]
        self._bytes -= entry.size_bytes
        for key in entry.keys:
            del self._values[key], self._entry_of[key]


class _Entry:
    """What comes and goes as one: the keys of one body."""

    __slots__ = ("keys", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.keys: list[Key] = []
        self.size_bytes = size_bytes


class _Flight:
    """A load under way, of all the keys that one reader loads at once. What it brought is empty when it failed."""

    __slots__ = ("landed", "values")

    def __init__(self) -> None:
        self.landed = threading.Event()
        self.values: Mapping[Key, Value] = {}
