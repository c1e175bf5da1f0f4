"""One segment: a ``.log`` of consecutive batches with its ``.index``, ``.timeindex`` and, once needed, ``.txnindex``.

A segment is **active** (the last of its log: open for appending) or sealed (never written again). A `Segment` object
stands for one set of bytes: when the cleaner replaces the files, the old object is `retire`d before the first name
changes and from then on answers every read with NotFound, so that a reader who looked up a position in the old index
can never use it on the new file; it asks the log for the new segment instead.

Order of effects of an append: log bytes, then index entries, then the sizes in memory. A crash leaves index entries
missing at worst, never one that points past the log's durable batches without recovery noticing.

Not known here: other segments, roll rules, retention.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from local import offset_index, time_index, txn_index
from local.batch_header import HEADER_BYTES, read_header
from local.errors import DiskFailed, LogError, NotFound
from local.names import LOG, OFFSET_INDEX, SEGMENT_SUFFIXES, TIME_INDEX, TXN_INDEX, segment_file
from local.segment_info import SegmentInfo
from local.storage import Body, Storage, StorageFile, join
from local.txn_index import AbortedTransaction

if TYPE_CHECKING:
    from local.columns import BatchTable

RELATIVE_OFFSET_MAX = 2**31 - 1


class Indexes(NamedTuple):
    """Both index files' bytes, and the largest timestamp with the last offset of the batch it was first seen in."""

    offset: bytearray
    time: bytearray
    max_timestamp_ms: int | None
    max_timestamp_offset: int


class Segment:
    """See the module text. `base_offset` never changes; sizes in bytes; thread safe for one writer, many readers."""

    def __init__(self, storage: Storage, directory: str, base_offset: int) -> None:
        self.base_offset = base_offset
        self.size_bytes = 0
        self.max_timestamp_ms: int | None = None
        self.max_timestamp_offset = base_offset
        self.roll_base_ms: int | None = None
        self.created_ms = 0
        self._storage = storage
        self._directory = directory
        self._lock = threading.RLock()
        # Held for a sync and for letting go of the files; taken before `_lock`, so that reads never wait for the disk.
        self._sync_lock = threading.RLock()
        self._has_failed_sync = False
        self._retired = False
        self._writers: dict[str, StorageFile] = {}
        self._offset_index: bytearray | None = None
        self._time_index: bytearray | None = None
        self._since_entry = 0
        self._is_looking = False
        self._has_aborted: bool | None = None  # None: nobody has looked yet

    @classmethod
    def create(cls, storage: Storage, directory: str, base_offset: int, *, created_ms: int) -> Segment:
        """A new, empty, active segment; its names are durable when this returns (O2: before any acknowledgement).

        When it fails, what it made is removed as well as it can be: an empty file with this base must not stay behind,
        for the segment before may go on growing past it.
        """
        segment = cls(storage, directory, base_offset)
        segment.created_ms = created_ms
        segment._offset_index, segment._time_index = bytearray(), bytearray()
        try:
            for suffix in (LOG, OFFSET_INDEX, TIME_INDEX):
                segment._writers[suffix] = storage.create(segment.path(suffix))
            storage.sync_directory(directory)
        except LogError:
            segment._undo_create()
            raise
        return segment

    @classmethod
    def load(cls, storage: Storage, directory: str, base_offset: int) -> Segment:
        """A sealed segment as found on disk; three small reads, however large it is."""
        segment = cls(storage, directory, base_offset)
        segment.size_bytes = storage.size(segment.path(LOG))
        segment.created_ms = storage.modified_ms(segment.path(LOG))
        times = storage.size(segment.path(TIME_INDEX))
        if times:
            tail = storage.read(segment.path(TIME_INDEX), times - time_index.ENTRY_BYTES, time_index.ENTRY_BYTES)
            segment.max_timestamp_ms, segment.max_timestamp_offset = time_index.entries(tail, base_offset)[0]
        return segment

    @classmethod
    def look(cls, storage: Storage, directory: str, base_offset: int) -> Segment:
        """As `load`, beside a process that may be writing: indexes that are missing or torn count as shorter."""
        segment = cls(storage, directory, base_offset)
        segment.size_bytes = storage.size(segment.path(LOG))
        segment.created_ms = storage.modified_ms(segment.path(LOG))
        segment._is_looking = True
        times = segment.time_index()
        if times:
            segment.max_timestamp_ms, segment.max_timestamp_offset = time_index.entries(times, base_offset)[-1]
        return segment

    def path(self, suffix: str) -> str:
        return join(self._directory, segment_file(self.base_offset, suffix))

    @property
    def is_active(self) -> bool:
        return bool(self._writers)

    def activate(self) -> None:
        """Open a loaded segment for appending again (the last one of a log after a restart)."""
        with self._lock:
            self._offset_index, self._time_index = self.offset_index(), self.time_index()
            self._writers = {s: self._storage.open(self.path(s)) for s in (LOG, OFFSET_INDEX, TIME_INDEX)}
            self._since_entry = 0
            if self.size_bytes:
                first = read_header(self.read(0, HEADER_BYTES))
                self.roll_base_ms = first.max_timestamp_ms if first and first.max_timestamp_ms >= 0 else None

    def append(self, batch: Body, *, last_offset: int, max_timestamp_ms: int, interval_bytes: int) -> None:
        """Add one encoded batch. Raises DiskFailed, after which the segment has to be recovered."""
        position = self.size_bytes
        self._writers[LOG].append(batch)
        # -1 is Kafka's "no timestamp": such records have no age of their own.
        if max_timestamp_ms >= 0 and (self.max_timestamp_ms is None or max_timestamp_ms > self.max_timestamp_ms):
            self.max_timestamp_ms, self.max_timestamp_offset = max_timestamp_ms, last_offset
        if self.roll_base_ms is None and max_timestamp_ms >= 0:
            self.roll_base_ms = max_timestamp_ms
        if self._since_entry > interval_bytes:
            self._write_entry(OFFSET_INDEX, offset_index.pack(self.base_offset, last_offset, position))
            self._write_time_entry()
            self._since_entry = 0
        self._since_entry += len(batch)
        self.size_bytes = position + len(batch)

    def append_aborted(self, aborted: AbortedTransaction) -> None:
        """Add an entry to the ``.txnindex``, which the first one creates; durable, name and all, once sealed."""
        if TXN_INDEX not in self._writers:
            path = self.path(TXN_INDEX)
            is_there = self._storage.exists(path)
            self._writers[TXN_INDEX] = self._storage.open(path) if is_there else self._storage.create(path)
        self._writers[TXN_INDEX].append(aborted.pack())
        self._has_aborted = True

    def aborted(self) -> list[AbortedTransaction]:
        """The transactions whose abort marker lies in this segment, in order. Raises NotFound once retired."""
        with self._lock:
            self._check_present()
            if self._has_aborted is None or self._is_looking:
                self._has_aborted = self._storage.exists(self.path(TXN_INDEX))
            return txn_index.entries(self.txn_index(), path=self.path(TXN_INDEX)) if self._has_aborted else []

    def txn_index(self) -> bytes:
        """The ``.txnindex`` bytes, none when no transaction was aborted here. Raises NotFound once retired."""
        with self._lock:
            self._check_present()
            path = self.path(TXN_INDEX)
            return self._storage.read(path) if self._storage.exists(path) else b""

    def offset_index(self) -> bytearray:
        """The ``.index`` bytes; do not change them. Read from disk, unless the segment is active. Raises NotFound."""
        with self._lock:
            if self._offset_index is not None:
                return self._offset_index
            return self._read_index(OFFSET_INDEX, offset_index.ENTRY_BYTES)

    def time_index(self) -> bytearray:
        """The ``.timeindex`` bytes; do not change them. Read from disk, unless active. Raises NotFound."""
        with self._lock:
            if self._time_index is not None:
                return self._time_index
            return self._read_index(TIME_INDEX, time_index.ENTRY_BYTES)

    def position_of(self, offset: int) -> int:
        """Where to start scanning for `offset`: a batch start at or before its batch. Raises NotFound once retired."""
        return self._look_up(OFFSET_INDEX, lambda data: offset_index.lookup(data, self.base_offset, offset)[1])

    def offset_before(self, timestamp_ms: int) -> int:
        """Where to start scanning for the first record at or after `timestamp_ms`. Raises NotFound once retired."""
        # Strictly below: an entry *at* the timestamp names the batch's last offset, past the record looked for.
        return self._look_up(TIME_INDEX, lambda data: time_index.lookup(data, self.base_offset, timestamp_ms - 1)[1])

    def read(self, start: int, length: int) -> bytes:
        """Bytes ``[start, start + length)`` of the ``.log``, fewer at its end. Raises NotFound once retired.

        The file is opened for each read: however many segments there are, none holds a descriptor.
        """
        if start >= self.size_bytes:
            return b""
        with self._lock:
            self._check_present()
            file = self._storage.open_reader(self.path(LOG))
        # Read outside the lock: the descriptor stands for these bytes even if the name goes now.
        try:
            return file.read(start, min(length, self.size_bytes - start))
        finally:
            file.close()

    def is_index_full(self, index_bytes_max: int) -> bool:
        """No room for another offset entry, or for another time entry and the final one."""
        offsets, times = len(self._offset_index or b""), len(self._time_index or b"")
        return (
            offsets + offset_index.ENTRY_BYTES > index_bytes_max or times + 2 * time_index.ENTRY_BYTES > index_bytes_max
        )

    @property
    def has_failed_sync(self) -> bool:
        """Whether what was appended here may be lost although a later sync would say otherwise."""
        return self._has_failed_sync

    def sync(self) -> None:
        """All appended bytes are durable when this returns. Indexes too: they need no scan after a clean shutdown.

        Raises DiskFailed, and from then on always: a sync that failed is never tried again.
        """
        self._sync_files(*SEGMENT_SUFFIXES)

    def sync_log(self) -> bool:
        """The ``.log`` alone: what an acknowledgement needs; indexes are rebuilt from it. Raises as `sync`.

        May be called while others append: it covers what was there when it began. False when the files were let go of
        before; whoever did that answers for the bytes.
        """
        return self._sync_files(LOG)

    def seal(self) -> None:
        """Write the final time entry, make everything durable, close for appending."""
        self._write_time_entry()
        self.sync()
        self.close()

    def close(self) -> None:
        """Let go of files without writing or syncing anything; a sync under way is waited for."""
        with self._sync_lock, self._lock:
            for file in self._writers.values():
                file.close()
            self._writers = {}
            self._offset_index = self._time_index = None

    def retire(self) -> None:
        """From now on every read raises NotFound. Called before the files get other names."""
        with self._sync_lock, self._lock:
            self._retired = True
            self.close()

    def existing_suffixes(self) -> list[str]:
        return [suffix for suffix in SEGMENT_SUFFIXES if self._storage.exists(self.path(suffix))]

    def info(self, *, next_offset: int, cleaner_offset: int | None) -> SegmentInfo:
        return SegmentInfo(
            base_offset=self.base_offset,
            next_offset=next_offset,
            size_bytes=self.size_bytes,
            max_timestamp_ms=self.max_timestamp_ms,
            is_active=self.is_active,
            is_clean=cleaner_offset is not None and next_offset <= cleaner_offset,
            modified_ms=self.created_ms,
        )

    def _read_index(self, suffix: str, entry_bytes: int) -> bytearray:
        self._check_present()
        if self._is_looking and not self._storage.exists(self.path(suffix)):
            return bytearray()
        data = bytearray(self._storage.read(self.path(suffix)))
        return data[: len(data) - len(data) % entry_bytes]

    def _look_up(self, suffix: str, lookup: Callable[[Body], int]) -> int:
        """Ask an index without reading all of it: a sealed segment's is mapped for the moment and let go."""
        with self._lock:
            cached = self._offset_index if suffix == OFFSET_INDEX else self._time_index
            if cached is not None:
                return lookup(cached)
            self._check_present()
            if self._is_looking:
                # Not mapped: another process may cut the file while it is looked at.
                return lookup(self._read_index(suffix, 1))
            data = self._storage.map(self.path(suffix))
        try:
            return lookup(data)
        finally:
            data.release()

    def _undo_create(self) -> None:
        made = list(self._writers)
        self.close()
        with suppress(LogError):
            for suffix in made:
                self._storage.unlink(self.path(suffix))
            self._storage.sync_directory(self._directory)

    def _check_present(self) -> None:
        if self._retired:
            raise NotFound("reading a segment, it was replaced or deleted", path=self.path(LOG))

    def _sync_files(self, *suffixes: str) -> bool:
        with self._sync_lock:
            if self._has_failed_sync:
                raise DiskFailed("syncing a segment, an earlier sync of it failed", path=self.path(LOG))
            files = [self._writers[suffix] for suffix in suffixes if suffix in self._writers]
            try:
                for file in files:
                    file.sync()
                if TXN_INDEX in suffixes and TXN_INDEX in self._writers:
                    self._storage.sync_directory(self._directory)
            except BaseException:
                # An interrupt counts as a failure: nobody knows what the kernel answered.
                self._has_failed_sync = True
                raise
            return bool(files)

    def _write_entry(self, suffix: str, entry: bytes) -> None:
        self._writers[suffix].append(entry)
        index = self._offset_index if suffix == OFFSET_INDEX else self._time_index
        assert index is not None, "only an active segment is written to"
        index += entry

    def _write_time_entry(self) -> None:
        assert self._time_index is not None, "only an active segment is written to"
        entry = time_entry(self._time_index, self.base_offset, self.max_timestamp_ms, self.max_timestamp_offset)
        if entry:
            self._write_entry(TIME_INDEX, entry)


def time_entry(index: bytearray, base_offset: int, timestamp_ms: int | None, offset: int) -> bytes:
    """The entry to add for the largest timestamp so far; empty when it is no later than the last one."""
    if timestamp_ms is None:
        return b""
    if index and time_index.entries(index[-time_index.ENTRY_BYTES :], base_offset)[0][0] >= timestamp_ms:
        return b""
    return time_index.pack(base_offset, timestamp_ms, offset)


def build_indexes(table: BatchTable, base_offset: int, interval_bytes: int) -> Indexes:
    """What both indexes of a segment hold after an uninterrupted write, final time entry included (KAFKA-806 form)."""
    offsets, times = bytearray(), bytearray()
    latest: int | None = None
    latest_offset = base_offset
    since = 0
    columns = (table.positions, table.sizes, table.last_offsets, table.max_timestamps)
    for position, size, last_offset, timestamp in zip(*(column.tolist() for column in columns), strict=True):
        if timestamp >= 0 and (latest is None or timestamp > latest):
            latest, latest_offset = timestamp, last_offset
        if since > interval_bytes:
            offsets += offset_index.pack(base_offset, last_offset, position)
            times += time_entry(times, base_offset, latest, latest_offset)
            since = 0
        since += size
    times += time_entry(times, base_offset, latest, latest_offset)
    return Indexes(offsets, times, latest, latest_offset)
