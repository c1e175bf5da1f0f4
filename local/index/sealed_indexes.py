"""The indexes of one closed segment for readers: checked at the first lookup, mapped while in use.

**First use.** Opening a log must cost no more than a listing. The first lookup checks both files once
(`local.index.index_files.check_indexes`). An unsound index is rebuilt from the log:

1. Build both files and write them under temporary names, without blocking other threads.
2. Rename them into place under the segment's lock, unless the segment was dropped or replaced since step 1.

A crash at any point leaves each file old (and found unsound again) or new. The next start removes temporary files.

| an unsound index is not rebuilt | behaviour |
|---|---|
| read-only open | no writes, no maps (files may shrink); sound entries serve, the rest is scanned |
| the rebuild failed | the whole log is scanned; the read that reaches the damage reports it |

**Largest timestamp.** It is the last time entry, if this entry and its neighbours are in order and the batch that the
entry names has this timestamp. Otherwise the headers of the whole log decide.

**Wrong entries.** A reader compares each entry with the batch at its position and with its own target. A contradiction
leads to `rebuild`. A wrong index never makes a lookup fail.

**Descriptors.** `INDEX_MAPS` caches the maps of all closed segments of this process, least recently used out. Before
Python 3.13 each map holds a descriptor. Closed segments need no other: a ``.log`` is opened for each read.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from typing import NamedTuple

from local.errors import Corrupt, DiskFailed, LogError, NotFound
from local.format.batch_header import read_header
from local.index import index_files, offset_index, time_index
from local.index.index_files import (
    FEW,
    INDEXES,
    Indexes,
    Judged,
    build_indexes,
    check_indexes,
    discard_aside,
    first_timestamp,
    headers_of,
    put_in_place,
    scan_times,
)
from local.names import LOG, OFFSET_INDEX, TIME_INDEX
from local.storage import SegmentFiles, StorageFile

_log = logging.getLogger(__name__)
_NOT_REBUILT = "cannot rebuild the indexes of a segment: path=%s cause=%s"
_TRUSTED = Judged(dict.fromkeys(INDEXES, 1 << 40), None)
_PROBE_BYTES = 8192
_PROBES_MAX = 64  # reads of the log between the position of an offset entry and the batch of a time entry
MAPS_MAX = 128


class IndexMaps:
    """A thread-safe cache of maps. A map removed during a lookup stays valid until that lookup ends."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._maps: OrderedDict[tuple[object, str], memoryview] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._maps

    def get(self, owner: object, suffix: str, make: Callable[[], memoryview]) -> memoryview:
        """Return the map of a file of `owner`; `make` creates a missing one. The caller must not release it."""
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


class Access(NamedTuple):
    """How indexes may be used. `is_trusted`: just written or checked; `is_shared`: another process may write."""

    is_trusted: bool = True
    interval_bytes: int = offset_index.INTERVAL_BYTES
    is_shared: bool = False


class TimeStart(NamedTuple):
    """Where to start scanning. The time index claims that no record below `claimed_offset` is late enough."""

    offset: int
    claimed_offset: int


TRUSTED = Access()
SHARED = Access(is_trusted=False, is_shared=True)


class SealedIndexes:
    """The indexes of one closed segment. Thread safe. Raises NotFound once the segment is retired.

    The files keep their names in the context `held`, in which every use of a file name happens.
    """

    __slots__ = ("_access", "_files", "_held", "_is_closed", "_judged", "_judging", "_log_bytes", "_made")

    def __init__(
        self, files: SegmentFiles, log_bytes: int, access: Access, held: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._files = files
        self._log_bytes = log_bytes
        self._access = access
        self._held = held
        self._judging = threading.Lock()
        self._judged = _TRUSTED if access.is_trusted else None
        self._is_closed = False
        self._made: dict[str, bytes] = {}  # by suffix: rebuilt in memory, where the disk must not be written

    def largest_timestamp(self) -> tuple[int | None, int]:
        """Return (largest timestamp or None, last offset of the first batch with it)."""
        found = self._last_time_entry() if self._judged is None else None
        if found is None:
            if self._checked().problem is not None:
                return scan_times(self._read_log, self._files.base_offset)
            data = self.read(TIME_INDEX)[-time_index.ENTRY_BYTES :]
            if not data:
                return None, self._files.base_offset
            found = time_index.entries(data, self._files.base_offset)[0]
        timestamp_ms, offset = found
        if self._is_of_its_batch(timestamp_ms, offset):
            return found
        scanned = scan_times(self._read_log, self._files.base_offset)
        if scanned[0] == timestamp_ms:
            return found  # Kafka up to 4.0 writes the last offset of the whole append here
        with suppress(Corrupt):
            self.rebuild(f"the last time index entry points to no batch: timestamp_ms={timestamp_ms} offset={offset}")
        return scanned

    def rebuild(self, problem: str, is_still: Callable[[], bool] = lambda: True) -> None:
        """Build both files again from the headers of the log, which contradict them.

        The result stays in memory if the segment is shared or the disk refuses the write. `is_still` is called under
        the lock: whether the rebuild is still needed. Raises Corrupt, with nothing changed, for unsound headers.
        """
        with self._judging:
            if not is_still():
                return
            made = self._built()
            _log.warning("the indexes of a segment are wrong: path=%s cause=%s", self._files.path(LOG), problem)
            in_memory = dict(zip(INDEXES, map(bytes, made), strict=True))
            if not self._access.is_shared and not self._is_closed:
                try:
                    self._write(made, problem)
                    in_memory = {}
                except DiskFailed as error:
                    _log.warning(_NOT_REBUILT, self._files.path(LOG), error)
            self._made, self._judged = in_memory, _TRUSTED

    def last_offset_entries(self) -> list[tuple[int, int]]:
        """Return the last few whole entries (last offset, position) of the offset index, unchecked."""
        width = offset_index.ENTRY_BYTES
        with self._opened(OFFSET_INDEX) as file:
            count = 0 if file is None else file.size() // width
            few = min(count, FEW)
            data = b"" if file is None else file.read((count - few) * width, few * width)
        return offset_index.entries(data, self._files.base_offset)

    def read(self, suffix: str) -> bytearray:
        """Return the sound bytes of one file, in a read-only open perhaps none. Raises Corrupt if not rebuilt."""
        judged = self._checked()
        if suffix in self._made:
            return bytearray(self._made[suffix])
        if judged.problem is not None and not self._access.is_shared:
            facts = {"path": self._files.path(suffix)}
            raise Corrupt(f"cannot read an index, {judged.problem}, and this process may not rebuild it", **facts)
        with self._held():
            if judged.problem is not None and not self._files.storage.exists(self._files.path(suffix)):
                return bytearray()
            data = bytearray(self._files.storage.read(self._files.path(suffix)))
        width = INDEXES[suffix].ENTRY_BYTES
        return data[: min(judged.entries[suffix], len(data) // width) * width]

    def has_offsets_in_memory(self) -> bool:
        return OFFSET_INDEX in self._made or (self._judged is not None and (self, OFFSET_INDEX) in INDEX_MAPS)

    def close(self) -> None:
        """Remove the maps and stop rebuilding: another process may own the directory from now on."""
        self._is_closed = True
        INDEX_MAPS.forget(self, tuple(INDEXES))

    # -- lookups -------------------------------------------------------------------------------------------------

    @contextmanager
    def entries(self, suffix: str) -> Iterator[tuple[int, Callable[[int], tuple[int, int]]]]:
        """Yield (number of sound entries, function from slot to raw entry), for a binary search."""
        judged = self._checked()
        index, width = INDEXES[suffix], INDEXES[suffix].ENTRY_BYTES
        if suffix in self._made:
            yield index.slots(self._made[suffix])
        elif judged.problem is not None and not judged.entries[suffix]:
            yield 0, lambda slot: (0, 0)
        elif not self._access.is_shared:
            with self._held():
                entries, entry = index.slots(self._mapped(suffix))
            yield min(judged.entries[suffix], entries), entry
        else:
            with self._held():
                opened = self._files.storage.open_reader(self._files.path(suffix))
            with closing(opened) as file:
                count = min(judged.entries[suffix], file.size() // width)
                yield count, lambda slot: index.ENTRY.unpack(file.read(slot * width, width).ljust(width, b"\0"))

    def _last_time_entry(self) -> tuple[int, int] | None:
        width = time_index.ENTRY_BYTES
        with self._opened(TIME_INDEX) as file:
            size = 0 if file is None else file.size()
            # A single entry has no neighbour to confirm it, and an empty file proves nothing.
            if file is None or size % width or size < 2 * width:
                return None
            probe = file.read(0, width) + file.read(max(size - 2 * width, width), 2 * width)
        if time_index.sound_entries(probe) * width < len(probe):
            return None
        return time_index.entries(probe, self._files.base_offset)[-1]

    def _is_of_its_batch(self, timestamp_ms: int, offset: int) -> bool:
        position, data, at = self._unjudged_position(offset), b"", 0
        for _ in range(_PROBES_MAX):
            data, at = self._read_log(position, _PROBE_BYTES), 0
            try:
                while header := read_header(data, at):
                    if header.last_offset >= offset:
                        return header.last_offset == offset and header.max_timestamp_ms == timestamp_ms
                    at += header.size_bytes
            except Corrupt:
                return False
            if at == 0:
                return False
            position += at
        return False

    def _unjudged_position(self, offset: int) -> int:
        """Return the position to scan from for `offset` by the unchecked index, without waiting for a rebuild."""
        with self._opened(OFFSET_INDEX) as file:
            data = b"" if file is None else file.read(0, file.size() - file.size() % offset_index.ENTRY_BYTES)
        return offset_index.lookup(data, self._files.base_offset, offset)[1]

    @contextmanager
    def _opened(self, suffix: str) -> Iterator[StorageFile | None]:
        """Open an index file; None if it is missing. Raises NotFound once the segment is retired."""
        file = None
        with self._held(), suppress(NotFound):
            file = self._files.storage.open_reader(self._files.path(suffix))
        with nullcontext() if file is None else closing(file):
            yield file

    # -- judging -------------------------------------------------------------------------------------------------

    def _checked(self) -> Judged:
        if self._judged is None:
            with self._judging:
                if self._judged is None:
                    self._judged = self._check_files()
        return self._judged

    def _check_files(self) -> Judged:
        with self._held():
            offsets, times = (self._content(suffix) for suffix in INDEXES)
        judged = check_indexes(offsets, times, self._log_bytes, lambda: first_timestamp(self._read_log))
        if judged.problem is None or self._access.is_shared:
            return judged
        if not self._is_closed:
            try:
                self._write(self._built(), judged.problem)
                return _TRUSTED
            except (Corrupt, DiskFailed) as error:
                _log.warning(_NOT_REBUILT, self._files.path(LOG), error)
        return Judged(dict.fromkeys(INDEXES, 0), judged.problem)

    def _built(self) -> Indexes:
        """Build both indexes from the batch headers, without CRCs, read in slices: a truncation need not wait."""
        path, is_shared = self._files.path(LOG), self._access.is_shared
        table = headers_of(self._read_log, self._log_bytes, path=path, may_be_torn=is_shared)
        return build_indexes(table, self._files.base_offset, self._access.interval_bytes)

    def _write(self, made: Indexes, problem: str) -> None:
        try:
            index_files.write_aside(self._files, made)
            with self._held():
                if self._is_closed:
                    raise DiskFailed("cannot rebuild indexes, the log was closed", path=self._files.path(LOG))
                INDEX_MAPS.forget(self, tuple(INDEXES))
                put_in_place(self._files)
        except LogError:
            discard_aside(self._files)
            raise
        _log.warning("rebuilt the indexes of a segment: path=%s cause=%s", self._files.path(LOG), problem)

    def _content(self, suffix: str) -> memoryview | bytes | None:
        try:
            if self._access.is_shared:
                return self._files.storage.read(self._files.path(suffix))
            return self._mapped(suffix)
        except NotFound:
            return None

    def _mapped(self, suffix: str) -> memoryview:
        return INDEX_MAPS.get(self, suffix, lambda: self._files.storage.map(self._files.path(suffix)))

    def _read_log(self, position: int, length: int) -> bytes:
        wanted = min(length, self._log_bytes - position)
        if wanted <= 0 or position < 0:
            return b""  # in a read-only open an empty log may have no file
        with self._held():
            return self._files.storage.read(self._files.path(LOG), position, wanted)
