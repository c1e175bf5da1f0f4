"""The indexes of one sealed segment, as a reader uses them: judged on first use, mapped while they are wanted.

Opening a log must not cost more than a listing, so nothing of an index is read until something is looked up in it.
Then both files are judged once (`local.index_files.judge`), and when they are off they are rebuilt from the log: built
and written aside without holding up anybody, and renamed into place under the segment's lock, unless the segment was
dropped or replaced meanwhile. A crash at any point leaves each file old (judged off again) or new; leftovers have
temporary names and are removed at the next start. A log that is only looked at, beside another process, is never
written to and its files are not mapped, as they may shrink: what is sound of its indexes is used, and the rest of the
log is scanned. So is all of it where a rebuild fails: damage is then found, and named, by whoever reads up to it.

The largest timestamp of a segment is wanted of every segment, by retention and by time lookups. It is the last time
entry, and believed when that one and its neighbours are in order; the whole file is judged when they are not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from local import index_files, offset_index, time_index
from local.batch_header import HEADER_BYTES
from local.errors import Corrupt, DiskFailed, LogError, NotFound
from local.index_files import ENTRY_BYTES, INDEX_SUFFIXES, Judged
from local.index_maps import INDEX_MAPS
from local.names import LOG, OFFSET_INDEX, TIME_INDEX, segment_file
from local.storage import Storage, join

if TYPE_CHECKING:
    from local.columns import BatchTable

_log = logging.getLogger(__name__)
_TRUSTED = Judged(1 << 40, 1 << 40, None)


class Access(NamedTuple):
    """How the indexes of a segment may be treated.

    `is_trusted` where they have just been written or checked; otherwise they are judged first, and rebuilt with an
    entry every `interval_bytes` (None: not rebuilt). `is_shared`: another process may be writing there.
    """

    is_trusted: bool = True
    interval_bytes: int | None = None
    is_shared: bool = False


TRUSTED = Access()
LOOKING = Access(is_trusted=False, is_shared=True)


class SealedIndexes:
    """See the module text. Thread safe. Every method raises NotFound once the segment is retired.

    `held` is entered around every use of the files' names: while inside they stay what they are.
    """

    __slots__ = (
        "_access",
        "_base_offset",
        "_directory",
        "_held",
        "_is_closed",
        "_judged",
        "_judging",
        "_log_bytes",
        "_storage",
    )

    def __init__(
        self,
        storage: Storage,
        directory: str,
        base_offset: int,
        log_bytes: int,
        access: Access,
        held: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._base_offset = base_offset
        self._log_bytes = log_bytes
        self._access = access
        self._held = held
        self._judging = threading.Lock()
        self._judged = _TRUSTED if access.is_trusted else None
        self._is_closed = False

    def entry_before(self, offset: int) -> tuple[int, int]:
        """Where to start scanning for `offset`: (the last offset of a batch that lies there or behind, a batch start at
        or before that of `offset`); at position 0 the former is not known."""
        with self._entries(OFFSET_INDEX) as (count, entry):
            return offset_index.find(count, entry, self._base_offset, offset)

    def offset_before(self, timestamp_ms: int) -> int:
        """Where to start scanning for the first record at or after `timestamp_ms`."""
        # Strictly below: an entry *at* the timestamp names the batch's last offset, past the record looked for.
        with self._entries(TIME_INDEX) as (count, entry):
            return time_index.find(count, entry, self._base_offset, timestamp_ms - 1)[1]

    def largest_timestamp(self) -> tuple[int | None, int]:
        """(the largest timestamp or None, the last offset of the batch it was first seen in)."""
        if self._judged is None:
            found = self._last_time_entry()
            if found is not None:
                return found
        judged = self._judge()
        if judged.problem is not None:
            return index_files.scan_times(self._read_log, self._base_offset)
        data = self.read(TIME_INDEX)[-time_index.ENTRY_BYTES :]
        return time_index.entries(data, self._base_offset)[0] if data else (None, self._base_offset)

    def last_offset_entries(self) -> list[tuple[int, int]]:
        """The last few whole entries of the offset index, as (last offset of a batch, its position), unjudged."""
        width = offset_index.ENTRY_BYTES
        try:
            with self._held():
                file = self._storage.open_reader(self._path(OFFSET_INDEX))
        except NotFound:
            with self._held():  # raises when it is the segment that is gone
                return []
        try:
            count = file.size() // width
            few = min(count, offset_index.FEW)
            data = file.read((count - few) * width, few * width)
        finally:
            file.close()
        return offset_index.entries(data, self._base_offset)

    def read(self, suffix: str) -> bytearray:
        """The sound bytes of one of the files. Raises Corrupt where it is off and cannot be rebuilt."""
        judged = self._judge()
        if judged.problem is not None and not self._access.is_shared:
            raise Corrupt(f"reading an index, {judged.problem}, and no rebuilding it", path=self._path(suffix))
        with self._held():
            if judged.problem is not None and not self._storage.exists(self._path(suffix)):
                return bytearray()
            data = bytearray(self._storage.read(self._path(suffix)))
        whole = min(_count(judged, suffix), len(data) // ENTRY_BYTES[suffix])
        return data[: whole * ENTRY_BYTES[suffix]]

    def close(self) -> None:
        """Nothing is rebuilt from here on; maps go. The directory may become another process's."""
        self._is_closed = True
        INDEX_MAPS.forget(self, INDEX_SUFFIXES)

    # -- lookups -------------------------------------------------------------------------------------------------

    @contextmanager
    def _entries(self, suffix: str) -> Iterator[tuple[int, Callable[[int], tuple[int, int]]]]:
        """(number of sound entries, the entry in a slot), for a binary search."""
        judged = self._judge()
        unpack, width = (offset_index if suffix == OFFSET_INDEX else time_index).ENTRY, ENTRY_BYTES[suffix]
        if judged.problem is not None and not _count(judged, suffix):
            yield 0, lambda slot: (0, 0)
        elif not self._access.is_shared:
            with self._held():
                data = INDEX_MAPS.get(self, suffix, lambda: self._storage.map(self._path(suffix)))
            yield min(_count(judged, suffix), len(data) // width), lambda slot: unpack.unpack_from(data, slot * width)
        else:
            with self._held():
                file = self._storage.open_reader(self._path(suffix))
            try:
                count = min(_count(judged, suffix), file.size() // width)
                yield count, lambda slot: unpack.unpack(file.read(slot * width, width).ljust(width, b"\0"))
            finally:
                file.close()

    def _last_time_entry(self) -> tuple[int | None, int] | None:
        """The answer from at most three entries of the time index; None when they do not vouch for it."""
        width = time_index.ENTRY_BYTES
        try:
            with self._held():
                file = self._storage.open_reader(self._path(TIME_INDEX))
        except NotFound:
            with self._held():  # raises when it is the segment that is gone
                return None
        try:
            size = file.size()
            # One entry too many would not be noticed by itself, and neither would none: those are judged as a whole.
            if size % width or size < 2 * width:
                return None
            probe = file.read(0, width) + file.read(max(size - 2 * width, width), 2 * width)
        finally:
            file.close()
        if time_index.sound_entries(probe) * width < len(probe):
            return None
        return time_index.entries(probe, self._base_offset)[-1]

    # -- judging -------------------------------------------------------------------------------------------------

    def _judge(self) -> Judged:
        """The verdict, reached once; with a problem only where nothing can be done about it."""
        if self._judged is None:
            with self._judging:
                if self._judged is None:
                    self._judged = self._judge_files()
        return self._judged

    def _judge_files(self) -> Judged:
        with self._held():
            offsets, times = (self._content(suffix) for suffix in INDEX_SUFFIXES)
        log_path = self._path(LOG)
        judged = index_files.judge(
            offsets, times, self._log_bytes, lambda: index_files.first_timestamp(self._storage, log_path)
        )
        if judged.problem is None or self._access.is_shared:
            return judged
        unusable = Judged(0, 0, judged.problem)
        if self._is_closed or self._access.interval_bytes is None:
            return unusable
        try:
            self._rebuild(judged.problem, self._access.interval_bytes)
        except (Corrupt, DiskFailed) as error:
            _log.warning("could not rebuild a segment's indexes: path=%s cause=%s", log_path, error)
            return unusable
        return _TRUSTED

    def _rebuild(self, problem: str, interval_bytes: int) -> None:
        """Both files anew from the batch headers; wrong checksums are left for whoever reads those batches."""
        from local.index_building import build_indexes

        place = (self._storage, self._directory, self._base_offset)
        table = self._headers()
        try:
            index_files.write_aside(*place, build_indexes(table, self._base_offset, interval_bytes))
            with self._held():
                if self._is_closed:
                    raise DiskFailed("rebuilding indexes, the log was closed", path=self._path(LOG))
                INDEX_MAPS.forget(self, INDEX_SUFFIXES)
                index_files.put_in_place(*place)
        except LogError:
            index_files.discard_aside(*place)
            raise
        _log.warning("rebuilt a segment's indexes: path=%s cause=%s", self._path(LOG), problem)

    def _headers(self) -> BatchTable:
        """Of all batches, read a slice at a time, for a truncation does not wait for this. Raises NotFound, Corrupt."""
        from local import kernels
        from local.columns import joined_tables

        parts, end = [], 0
        for position, _, table in index_files.slices_of(self._read_log):
            parts.append(replace(table, positions=table.positions + position))
            end = position + table.valid_bytes
        if end < self._log_bytes:
            problem = kernels.scan_batches(self._read_log(end, HEADER_BYTES), verify=False).problem
            raise Corrupt(f"rebuilding indexes, {problem}", path=self._path(LOG), at=end)
        return joined_tables(parts or [kernels.scan_batches(b"")])

    def _content(self, suffix: str) -> memoryview | bytes | None:
        """The whole file, mapped where that is safe; None when there is none."""
        try:
            if self._access.is_shared:
                return self._storage.read(self._path(suffix))
            return INDEX_MAPS.get(self, suffix, lambda: self._storage.map(self._path(suffix)))
        except NotFound:
            return None

    def _read_log(self, position: int, length: int) -> bytes:
        wanted = min(length, self._log_bytes - position)
        if wanted <= 0:
            return b""  # an onlooker's empty log may have no file
        with self._held():
            return self._storage.read(self._path(LOG), position, wanted)

    def _path(self, suffix: str) -> str:
        return join(self._directory, segment_file(self._base_offset, suffix))


def _count(judged: Judged, suffix: str) -> int:
    return judged.offset_entries if suffix == OFFSET_INDEX else judged.time_entries
