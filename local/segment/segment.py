"""One segment: the ``.log`` with consecutive batches and its index files.

A segment is **active** (the last of its log, open for appending) or **closed** (never written again). A `Segment`
object stands for one set of bytes: before the cleaner renames the files, it `retire`s the old object, which then raises
NotFound for every read. A reader thus never uses a position from the old index on the new file.

Order of effects of an append: log bytes, index entries, sizes in memory. A crash leaves missing index entries at worst.
Recovery finds and removes entries past the log's durable batches. If the disk has no room for the log bytes or an
entry, the files are cut back to a `Mark`, which needs no room.

Two locks keep `close` and `retire` out while a reader opens a file and during a sync.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from local.errors import Corrupt, DiskFailed, LogError, NotFound
from local.format.batch_header import HEADER_BYTES, read_header
from local.index import offset_index, time_index, txn_index
from local.index.index_files import INDEXES, Entry, build_indexes, first_timestamp, headers_of, time_entry
from local.index.sealed_indexes import TRUSTED, Access, SealedIndexes, TimeStart
from local.index.txn_index import AbortedTransaction
from local.names import LOG, OFFSET_INDEX, SEGMENT_SUFFIXES, TIME_INDEX, TXN_INDEX
from local.storage import Body, FileFacts, SegmentFiles, StorageFile, replace_file

if TYPE_CHECKING:
    from local.index.txn_index import SegmentTransactions, TransactionScan

_log = logging.getLogger(__name__)
RELATIVE_OFFSET_MAX = 2**31 - 1


class WrongTransactionIndex(Exception):
    """The ``.txnindex`` of the segment at `base_offset` contradicts the segment's batches."""

    def __init__(self, base_offset: int, problem: str) -> None:
        super().__init__(base_offset, problem)
        self.base_offset = base_offset
        self.problem = problem


class Mark(NamedTuple):
    """The state of an active segment to cut back to: lengths of its files by suffix, and the known times."""

    lengths: dict[str, int]
    latest: tuple[int | None, int] | None
    roll_base_ms: int | None
    since_entry: int
    has_aborted: bool | None


class Segment:
    """One segment. One writer, many readers. `base_offset` never changes. Sizes are in bytes."""

    def __init__(self, files: SegmentFiles) -> None:
        self.files = files
        self.base_offset = files.base_offset
        self.size_bytes = 0
        self.roll_base_ms: int | None = None
        self.created_ms = 0
        self.modified_ms = 0
        self.may_grow = False  # in a read-only open
        self.is_retired = False  # whether the files were renamed or deleted: dropped, or replaced by the cleaner
        self.has_failed_sync = False  # whether appended bytes may be lost even if a later sync succeeds
        self._storage = files.storage
        self._lock = threading.RLock()
        # Held during a sync and a close. Order: `_sync_lock`, then `_lock`, so that reads never wait for the disk.
        self._sync_lock = threading.RLock()
        self._writers: dict[str, StorageFile] = {}
        self._unsynced: set[str] = set()  # the suffixes in `_writers` with writes since their last sync
        self._active: dict[str, bytearray] | None = None  # the indexes of an active segment by suffix
        self._since_entry = 0
        self._found: Mark | None = None  # of an active segment: the state on the disk at activation
        self._rebuilt: dict[str, int] = {}  # by suffix: the bytes that a rebuild added to `_active` only
        self._access = TRUSTED
        self._indexes: SealedIndexes | None = None
        # (largest timestamp, last offset of the first batch with it); None: not read yet
        self._latest: tuple[int | None, int] | None = (None, files.base_offset)
        self._shown_ms = -1  # read-only open: the largest timestamp after the last time entry
        self._has_aborted: bool | None = None  # None: not read yet
        self._transactions: TransactionScan | None = None  # of the batches scanned so far
        self._aborted_made: list[AbortedTransaction] | None = None  # in memory, in place of a wrong index
        self._first: tuple[int | None] | None = None  # None: not read yet

    @classmethod
    def create(cls, files: SegmentFiles, *, created_ms: int) -> Segment:
        """Create an empty active segment, its names durable on return (O2: before any acknowledgement).

        On failure the files are removed if possible: the previous segment may grow past an empty file with this base.
        """
        segment = cls(files)
        segment.created_ms = segment.modified_ms = created_ms
        segment._active = {suffix: bytearray() for suffix in INDEXES}
        try:
            for suffix in (LOG, *INDEXES):
                segment._writers[suffix] = files.storage.create(files.path(suffix))
            files.sync_names()
        except LogError:
            made = list(segment._writers)
            segment.close()
            with suppress(LogError):
                for suffix in made:
                    files.storage.unlink(files.path(suffix))
                files.sync_names()
            raise
        return segment

    @classmethod
    def load(cls, files: SegmentFiles, *, interval_bytes: int = offset_index.INTERVAL_BYTES) -> Segment:
        """Return a closed segment whose files this process has just written or checked."""
        path = files.path(LOG)
        facts = FileFacts(files.storage.size(path), files.storage.modified_ms(path))
        return cls.found(files, facts, Access(interval_bytes=interval_bytes))

    @classmethod
    def found(cls, files: SegmentFiles, log: FileFacts, access: Access, has_aborted: bool | None = None) -> Segment:
        """Return a closed segment from a listing; files are read when needed. `has_aborted` None: unknown."""
        segment = cls(files)
        segment.size_bytes, segment.created_ms = log
        segment.modified_ms = segment.created_ms
        segment._access, segment._latest, segment._has_aborted = access, None, has_aborted
        return segment

    def path(self, suffix: str) -> str:
        return self.files.path(suffix)

    @property
    def max_timestamp_ms(self) -> int | None:
        """The largest record timestamp or None. The first call reads it and raises NotFound once retired."""
        return self._newest()[0]

    def show(self, size_bytes: int, max_timestamp_ms: int) -> None:
        """Set `size_bytes` (whole batches) for a read-only open, and the largest time after the last entry."""
        self.size_bytes, self._shown_ms = size_bytes, max_timestamp_ms

    def last_offset_entries(self) -> list[tuple[int, int]]:
        """Return the last few entries (last offset, position) of the offset index, unchecked. Raises NotFound."""
        with self._lock:
            sealed = self._sealed()
        return sealed.last_offset_entries()

    @property
    def is_active(self) -> bool:
        return bool(self._writers)

    def activate(self, *, is_durable: bool = False) -> None:
        """Open a loaded segment for appending. `is_durable`: all its bytes are durable, no sync is due."""
        self._newest()
        active = {suffix: self.index(suffix) for suffix in INDEXES}
        with self._lock:
            self._active = active
            self._writers = {suffix: self._storage.open(self.path(suffix)) for suffix in (LOG, *INDEXES)}
            self._unsynced = set() if is_durable else set(self._writers)
            self._since_entry = 0
            self._rebuilt = {}
            self._found = self.mark()
            if self.size_bytes:
                first = read_header(self.read(0, HEADER_BYTES))
                self.roll_base_ms = first.max_timestamp_ms if first and first.max_timestamp_ms >= 0 else None

    def append(self, batch: Body, *, last_offset: int, max_timestamp_ms: int, interval_bytes: int) -> None:
        """Append one encoded batch. Raises DiskFailed; the segment must then be cut back or recovered."""
        position = self.size_bytes
        if interval_bytes != self._access.interval_bytes:
            self._access = self._access._replace(interval_bytes=interval_bytes)
        self._writers[LOG].append(batch)
        self._unsynced.add(LOG)  # after the append: a sync that starts in between may miss these bytes
        # -1 is Kafka's "no timestamp": such records have no age of their own.
        latest = self._newest()[0]
        if max_timestamp_ms >= 0 and (latest is None or max_timestamp_ms > latest):
            self._latest = (max_timestamp_ms, last_offset)
        if self.roll_base_ms is None and max_timestamp_ms >= 0:
            self.roll_base_ms = max_timestamp_ms
        if self._since_entry > interval_bytes:
            self._write_entry(OFFSET_INDEX, offset_index.pack(self.base_offset, last_offset, position))
            self.write_time_entry()
            self._since_entry = 0
        self._since_entry += len(batch)
        self.size_bytes = position + len(batch)

    def mark(self) -> Mark:
        assert self._active is not None, "only an active segment is written to"
        with self._lock:
            offsets, times = len(self._active[OFFSET_INDEX]), len(self._active[TIME_INDEX])
            lengths = {LOG: self.size_bytes, OFFSET_INDEX: offsets, TIME_INDEX: times}
            for suffix, added in self._rebuilt.items():
                lengths[suffix] -= added
        return Mark(lengths, self._latest, self.roll_base_ms, self._since_entry, self._has_aborted)

    def cut_back(self, to: Mark) -> None:
        """Remove all appends since `to`, durably. Raises DiskFailed; the segment must then be recovered."""
        assert self._active is not None, "only an active segment is written to"
        lengths = dict(to.lengths)
        if TXN_INDEX in self._writers:
            size = self._writers[TXN_INDEX].size()  # its entry is written last, so the file holds at most a part of one
            lengths[TXN_INDEX] = size - size % txn_index.ENTRY_BYTES
        for suffix, length in lengths.items():
            if self._writers[suffix].size() > length:
                self._writers[suffix].truncate(length)
        self.sync()
        with self._lock:
            for suffix, index in self._active.items():
                del index[to.lengths[suffix] + self._rebuilt.get(suffix, 0) :]
        self.size_bytes, self._latest, self.roll_base_ms = to.lengths[LOG], to.latest, to.roll_base_ms
        self._since_entry, self._has_aborted = to.since_entry, to.has_aborted

    def append_aborted(self, aborted: AbortedTransaction) -> None:
        """Append an entry to the ``.txnindex``, created if missing; durable, name included, once closed."""
        if TXN_INDEX not in self._writers:
            path = self.path(TXN_INDEX)
            is_there = self._storage.exists(path)
            self._writers[TXN_INDEX] = self._storage.open(path) if is_there else self._storage.create(path)
        self._writers[TXN_INDEX].append(aborted.pack())
        self._unsynced.add(TXN_INDEX)
        self._has_aborted = True

    def aborted(self) -> list[AbortedTransaction]:
        """Return the transactions with their abort marker here, in order. Raises NotFound once retired."""
        with self._lock:
            self._check_present()
            if self._aborted_made is not None:
                return self._aborted_made
            if self._has_aborted is None or self._access.is_shared:
                self._has_aborted = self._storage.exists(self.path(TXN_INDEX))
            found = txn_index.entries(self.txn_index(), path=self.path(TXN_INDEX)) if self._has_aborted else []
            if self._access.is_shared and self.size_bytes:
                self._check_same(self._storage.size(self.path(LOG)))  # raises if the entries belong to a replaced log
            return found

    def checked_aborted(self, size_bytes: int) -> tuple[list[AbortedTransaction], SegmentTransactions]:
        """Return the aborted transactions in the first `size_bytes`, and the transactions of their batches.

        Raises WrongTransactionIndex if these contradict each other, NotFound once retired, Corrupt.
        """
        from local.index.txn_index import TransactionScan

        if self._transactions is None:
            self._transactions = TransactionScan()
        scanned = self._transactions.upto(min(size_bytes, self.size_bytes), self.read)
        try:
            # Entries at or above the scanned end were added after the scan.
            entries = [each for each in self.aborted() if each.last_offset < scanned.next_offset]
            problem = scanned.problem(entries)
        except Corrupt as error:
            entries, problem = [], error.attempt
        if problem is not None:
            raise WrongTransactionIndex(self.base_offset, problem)
        return entries, scanned

    def replace_aborted(self, entries: list[AbortedTransaction], *, on_disk: bool) -> None:
        """Replace the entries, in memory unless `on_disk`. No append may run. Raises DiskFailed, NotFound."""
        with self._sync_lock, self._lock:
            self._check_present()
            if not on_disk:
                self._aborted_made = entries
                return
            if (file := self._writers.pop(TXN_INDEX, None)) is not None:
                file.close()
                self._unsynced.discard(TXN_INDEX)
            replace_file(self._storage, self.path(TXN_INDEX), txn_index.encode(entries))
            self._has_aborted, self._aborted_made = True, None

    def txn_index(self) -> bytes:
        """Return the ``.txnindex`` bytes, none without an aborted transaction. Raises NotFound once retired."""
        with self._lock:
            self._check_present()
            path = self.path(TXN_INDEX)
            return self._storage.read(path) if self._storage.exists(path) else b""

    def index(self, suffix: str) -> bytearray:
        """Return the bytes of one of `INDEXES`, not to be changed; from the disk unless active. Raises NotFound."""
        with self._lock:
            active, sealed = self._active, self._sealed()
        return sealed.read(suffix) if active is None else active[suffix]

    def entry_before(self, offset: int) -> tuple[int, int]:
        """Return (last offset, position) of the index entry from which to scan for `offset`.

        A batch starts at the position, at or before the batch of `offset`, and a batch from there on ends with the last
        offset. At position 0 the last offset carries no information. Raises NotFound once retired.
        """
        with self.entries(OFFSET_INDEX) as (count, entry):
            return offset_index.find(count, entry, self.base_offset, offset)

    def has_offsets_in_memory(self) -> bool:
        """Whether `entry_before` reads and rebuilds no file."""
        return self._active is not None or (self._indexes is not None and self._indexes.has_offsets_in_memory())

    def time_start(self, timestamp_ms: int) -> TimeStart:
        """Return where to scan for a record at or after `timestamp_ms`. Raises NotFound once retired."""
        with self.entries(TIME_INDEX) as (count, entry):
            # Strictly below: an entry *at* the timestamp names the batch's last offset, past the wanted record.
            claimed = time_index.find(count, entry, self.base_offset, timestamp_ms - 1)[1]
            return TimeStart(time_index.find_start(count, entry, self.base_offset, timestamp_ms), claimed)

    def rebuild_indexes(self, problem: str, is_still: Callable[[], bool]) -> None:
        """Rebuild both indexes, which the headers of the log contradict. Raises NotFound once retired.

        In an active segment the rebuild covers the bytes present at activation, in memory until `seal`. `is_still`:
        whether it is still needed. Raises Corrupt, with nothing changed, if the headers are unsound.
        """
        with self._lock:
            is_active, sealed = self._active is not None, self._sealed()
        if not is_active:
            sealed.rebuild(problem, is_still)
            return
        found = self._found
        if found is None or not is_still():
            return  # this process wrote all entries, or another thread has rebuilt them
        size = found.lengths[LOG]
        table = headers_of(lambda at, length: self.read(at, min(length, size - at)), size, path=self.path(LOG))
        made = build_indexes(table, self.base_offset, self._access.interval_bytes)
        _log.warning("the indexes of a segment are wrong: path=%s cause=%s", self.path(LOG), problem)
        with self._lock:
            if self._active is None:
                return  # closed since then
            for suffix, body in zip(INDEXES, made, strict=True):
                replaced_bytes = found.lengths[suffix] + self._rebuilt.get(suffix, 0)
                self._active[suffix] = body + self._active[suffix][replaced_bytes:]
                self._rebuilt[suffix] = len(body) - found.lengths[suffix]

    def read(self, start: int, length: int) -> bytes:
        """Return ``[start, start + length)`` of the ``.log``, fewer at its end. Raises NotFound once retired."""
        if start >= self.size_bytes:
            return b""
        with self._lock:
            self._check_present()
            file = self._storage.open_reader(self.path(LOG))
        # Read outside the lock: the descriptor stands for these bytes even without a name. A truncation retires the
        # segment before it changes bytes; the last check below notices that.
        try:
            if self._access.is_shared:
                self._check_same(file.size())
            data = file.read(start, min(length, self.size_bytes - start))
        finally:
            file.close()
        self._check_present()
        return data

    def is_index_full(self, index_bytes_max: int) -> bool:
        """Whether no room is left for another offset entry, or for another time entry and the final one."""
        assert self._active is not None, "only an active segment is written to"
        offsets, times = len(self._active[OFFSET_INDEX]), len(self._active[TIME_INDEX])
        return (
            offsets + offset_index.ENTRY_BYTES > index_bytes_max or times + 2 * time_index.ENTRY_BYTES > index_bytes_max
        )

    def sync(self, *suffixes: str) -> None:
        """Make the files with these suffixes durable as of the call, by default all. Appends may continue.

        Raises DiskFailed from the first failure on.
        """
        with self._sync_lock:
            if self.has_failed_sync:
                raise DiskFailed("cannot sync a segment, an earlier fsync of it failed", path=self.path(LOG))
            open_ones = [suffix for suffix in suffixes or SEGMENT_SUFFIXES if suffix in self._writers]
            due = [suffix for suffix in open_ones if suffix in self._unsynced]
            try:
                for suffix in due:
                    self._unsynced.discard(suffix)  # before the sync: writes during the sync are due again
                    self._writers[suffix].sync()
                if TXN_INDEX in due:
                    self.files.sync_names()
            except BaseException:
                # An interrupt counts as a failure: the kernel's answer is unknown.
                self.has_failed_sync = True
                raise

    def write_time_entry(self) -> None:
        """Add the newest record's time to the time index, as closing the segment requires. Raises as `append`."""
        assert self._active is not None, "only an active segment is written to"
        entry = time_entry(self._active[TIME_INDEX], self.base_offset, *self._newest())
        if entry:
            self._write_entry(TIME_INDEX, entry)

    def seal(self) -> None:
        """Write the final time entry, make everything durable, close for appending."""
        self.write_time_entry()
        self.sync()
        is_wrong = bool(self._rebuilt)
        self._close_files()
        if is_wrong:
            with suppress(LogError):  # on failure the next reader finds the index wrong again
                self._sealed().rebuild("found while the segment was active")

    def close(self) -> None:
        """Close the files without writing, after a sync under way. Nothing is written from here on."""
        with self._sync_lock, self._lock:
            self._close_files()
            if not self._access.is_shared:  # a read-only open has no maps and rebuilds nothing
                self._sealed().close()

    def retire(self) -> None:
        """Make every read raise NotFound from now on. Call it before the files are renamed."""
        with self._sync_lock, self._lock:
            self.is_retired = True
            self.close()

    def existing_suffixes(self) -> list[str]:
        return [suffix for suffix in SEGMENT_SUFFIXES if self._storage.exists(self.path(suffix))]

    def first_timestamp_ms(self) -> int | None:
        """Return the first batch's largest timestamp or None (unsound header too). Raises NotFound once retired."""
        if self._first is None:
            first = first_timestamp(self.read)
            self._first = (first if first >= 0 else None,)
        return self._first[0]

    def _sealed(self) -> SealedIndexes:
        if self._indexes is None:
            self._indexes = SealedIndexes(self.files, self.size_bytes, self._access, self.present)
        return self._indexes

    @contextmanager
    def present(self) -> Iterator[None]:
        """Prevent renames of this segment's files inside the context. Raises NotFound once retired."""
        with self._lock:
            self._check_present()
            yield

    @contextmanager
    def entries(self, suffix: str) -> Iterator[tuple[int, Callable[[int], Entry]]]:
        """Yield (number of entries, function from slot to entry)."""
        with self._lock:
            sealed = self._sealed()
            if self._active is not None:
                yield INDEXES[suffix].slots(self._active[suffix])
                return
        with sealed.entries(suffix) as found:
            yield found

    def _close_files(self) -> None:
        """Close the files; from now on the index files are authoritative. Waits for a sync under way."""
        with self._sync_lock, self._lock:
            for file in self._writers.values():
                file.close()
            if self._writers:
                self._writers, self._indexes, self._access = {}, None, self._access._replace(is_trusted=True)
            self._active, self._rebuilt, self._found = None, {}, None

    def _newest(self) -> tuple[int | None, int]:
        if self._latest is None:
            if not self.size_bytes and self._access.is_shared:
                known, offset = None, self.base_offset  # in a read-only open an empty log may have no files
            else:
                known, offset = self._sealed().largest_timestamp()
            latest = max(-1 if known is None else known, self._shown_ms)
            self._latest = (latest if latest >= 0 else None, offset)
        return self._latest

    def _check_present(self) -> None:
        if self.is_retired:
            raise NotFound("cannot read a segment, it was replaced or deleted", path=self.path(LOG))

    def _check_same(self, size_bytes: int) -> None:
        """Raise NotFound if another process cleaned or truncated the segment: its size differs then."""
        if size_bytes < self.size_bytes or (size_bytes > self.size_bytes and not self.may_grow):
            raise NotFound("cannot read a segment, the manager of the directory replaced it", path=self.path(LOG))

    def _write_entry(self, suffix: str, entry: bytes) -> None:
        self._writers[suffix].append(entry)
        self._unsynced.add(suffix)
        assert self._active is not None, "only an active segment is written to"
        with self._lock:  # a reader may rebuild the index
            self._active[suffix] += entry
