"""The indexes of one sealed segment, as a reader uses them: judged on first use, mapped while they are wanted.

Opening a log must not cost more than a listing, so nothing of an index is read until something is looked up in it.
Then both files are judged once (`local.index.index_files.judge`), and when they are off they are rebuilt from the log:
built and written aside without holding up anybody, and renamed into place under the segment's lock, unless the segment
was dropped or replaced meanwhile. A crash at any point leaves each file old (judged off again) or new; leftovers have
temporary names and are removed at the next start. A log that is only looked at, beside another process, is never
written to and its files are not mapped, as they may shrink: what is sound of its indexes is used, and the rest of the
log is scanned. So is all of it where a rebuild fails: damage is then found, and named, by whoever reads up to it.

The largest timestamp of a segment is wanted of every segment, by retention and by time lookups. It is the last time
entry, and believed when that one and its neighbours are in order and the batch that the entry names has this timestamp;
the headers of the whole log decide otherwise.

In order is not yet right: one changed byte can name another batch. A reader compares each entry with the batch that the
entry led to, and with its own target (`local.segment.segment_reading`, `local.segment.time_search`). A contradiction
ends in `rebuild`: both files are made again from the headers of the log, in memory where nothing may be written. An
index is never the reason for an error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from local.errors import Corrupt, DiskFailed, LogError, NotFound
from local.format.batch_header import read_header
from local.index import index_files, offset_index, time_index
from local.index.index_files import ENTRY_BYTES, INDEX_SUFFIXES, Judged
from local.index.index_maps import INDEX_MAPS
from local.names import LOG, OFFSET_INDEX, TIME_INDEX, segment_file
from local.storage import Storage, join

if TYPE_CHECKING:
    from local.format.columns import BatchTable
    from local.index.index_building import Indexes

_log = logging.getLogger(__name__)
_TRUSTED = Judged(1 << 40, 1 << 40, None)
_PROBE_BYTES = 8192
_PROBES_MAX = 64  # reads of the log on the way from an offset entry to the batch of a time entry


class Access(NamedTuple):
    """How the indexes of a segment may be treated.

    `is_trusted` where they have just been written or checked; otherwise they are judged first, and rebuilt with an
    entry every `interval_bytes` (None: not rebuilt). `is_shared`: another process may be writing there.
    """

    is_trusted: bool = True
    interval_bytes: int | None = offset_index.INTERVAL_BYTES
    is_shared: bool = False


class TimeStart(NamedTuple):
    """Where to start scanning for a timestamp, and the offset below which the time index claims no such record."""

    offset: int
    claimed_offset: int


TRUSTED = Access()
LOOKING = Access(is_trusted=False, interval_bytes=None, is_shared=True)


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
        "_made",
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
        self._made: dict[str, bytes] = {}  # by suffix: made again in memory, where nothing may be written

    def entry_before(self, offset: int) -> tuple[int, int]:
        """Where to start scanning for `offset`: (the last offset of a batch that lies there or behind, a batch start at
        or before that of `offset`); at position 0 the former is not known."""
        with self._entries(OFFSET_INDEX) as (count, entry):
            return offset_index.find(count, entry, self._base_offset, offset)

    def time_start(self, timestamp_ms: int) -> TimeStart:
        """Where to start scanning for the first record at or after `timestamp_ms`."""
        with self._entries(TIME_INDEX) as (count, entry):
            return time_start(count, entry, self._base_offset, timestamp_ms)

    def largest_timestamp(self) -> tuple[int | None, int]:
        """(the largest timestamp or None, the last offset of the batch it was first seen in)."""
        found = self._last_time_entry() if self._judged is None else None
        if found is None:
            if self._judge().problem is not None:
                return index_files.scan_times(self._read_log, self._base_offset)
            data = self.read(TIME_INDEX)[-time_index.ENTRY_BYTES :]
            if not data:
                return None, self._base_offset
            found = time_index.entries(data, self._base_offset)[0]
        timestamp_ms, offset = found
        if self._is_of_its_batch(timestamp_ms, offset):
            return found
        scanned = index_files.scan_times(self._read_log, self._base_offset)
        if scanned[0] == timestamp_ms:
            return found  # of a whole append, as Kafka up to 4.0 writes it
        with suppress(Corrupt):
            self.rebuild(f"the last time entry names no batch: timestamp_ms={timestamp_ms} offset={offset}")
        return scanned

    def rebuild(self, problem: str, is_still: Callable[[], bool] = lambda: True) -> None:
        """Both files anew from the headers of the log, which contradict them; in memory where the disk is not ours or
        refuses. `is_still` is asked once no other thread is at it. Raises Corrupt, with nothing changed, where the
        headers break off."""
        from local.index.index_building import build_indexes

        with self._judging:
            if not is_still():
                return
            made = build_indexes(
                self._headers(), self._base_offset, self._access.interval_bytes or offset_index.INTERVAL_BYTES
            )
            _log.warning("a segment's indexes are wrong: path=%s cause=%s", self._path(LOG), problem)
            if not self._access.is_shared and not self._is_closed:
                try:
                    self._write(made, problem)
                except DiskFailed as error:
                    _log.warning("could not rebuild a segment's indexes: path=%s cause=%s", self._path(LOG), error)
                else:
                    self._made, self._judged = {}, _TRUSTED
                    return
            self._made = {OFFSET_INDEX: bytes(made.offset), TIME_INDEX: bytes(made.time)}
            self._judged = _TRUSTED

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
        if suffix in self._made:
            return bytearray(self._made[suffix])
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
        if suffix in self._made:
            made = self._made[suffix]
            yield len(made) // width, lambda slot: unpack.unpack_from(made, slot * width)
        elif judged.problem is not None and not _count(judged, suffix):
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

    def _last_time_entry(self) -> tuple[int, int] | None:
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

    def _is_of_its_batch(self, timestamp_ms: int, offset: int) -> bool:
        """Whether the batch that holds `offset` ends with it and has this largest timestamp. A few reads of the log."""
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
        """The position that the offset index gives, right or wrong; a rebuild under way is not waited for."""
        width = offset_index.ENTRY_BYTES
        try:
            with self._held():
                file = self._storage.open_reader(self._path(OFFSET_INDEX))
        except NotFound:
            with self._held():  # raises when it is the segment that is gone
                return 0
        try:
            data = file.read(0, file.size() // width * width)
        finally:
            file.close()
        return offset_index.lookup(data, self._base_offset, offset)[1]

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
        from local.index.index_building import build_indexes

        self._write(build_indexes(self._headers(), self._base_offset, interval_bytes), problem)

    def _write(self, made: Indexes, problem: str) -> None:
        place = (self._storage, self._directory, self._base_offset)
        try:
            index_files.write_aside(*place, made)
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
        is_shared = self._access.is_shared
        return index_files.headers_of(self._read_log, self._log_bytes, path=self._path(LOG), may_be_torn=is_shared)

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
        if wanted <= 0 or position < 0:
            return b""  # an onlooker's empty log may have no file
        with self._held():
            return self._storage.read(self._path(LOG), position, wanted)

    def _path(self, suffix: str) -> str:
        return join(self._directory, segment_file(self._base_offset, suffix))


def time_start(count: int, entry: Callable[[int], tuple[int, int]], base_offset: int, timestamp_ms: int) -> TimeStart:
    """See `TimeStart`; of `count` entries as they are in the file."""
    # Strictly below: an entry *at* the timestamp names the batch's last offset, past the record looked for.
    claimed = time_index.find(count, entry, base_offset, timestamp_ms - 1)[1]
    return TimeStart(time_index.find_start(count, entry, base_offset, timestamp_ms), claimed)


def _count(judged: Judged, suffix: str) -> int:
    return judged.offset_entries if suffix == OFFSET_INDEX else judged.time_entries
