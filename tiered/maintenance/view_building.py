"""Build a compacted view of one partition from the old view and the log, and switch to it at once.

A run merges the log's records beyond the old view's horizon, and does not change the log. `tiered.read.view_places`
defines the place of views and the part of the log that a run reads. For a topic with a remote tier a run reads the
bucket even where the disk has the same offsets: newer records of a key, which only the disk has, may have superseded
older ones there.

Order of effects, and the state after a crash (on a disk: `tiered.read.view_places` has the files):

| step | effect | after a crash here |
|---|---|---|
| 1 | a commit notes the running build | old view; the next writer sees that the run was interrupted |
| 2 | pass one reads (`Survivors`) | the same |
| 3 | pass two writes and uploads part after part (`ViewParts`) | the same, and objects of an old epoch |
| 4 | one commit switches horizon, entries and figures and unlinks old objects | new view |

An error before step 4 is committed as the view's failure, and raised. After an error in step 4 the commit is in doubt;
then nothing is deleted.

The new horizon covers only records that cannot be lost:

- In a bucket it is the start of the earliest transaction whose end the bucket does not have, else the end of the last
  entry. Records and markers only on this disk may be lost with it. Then other records get those offsets, and the view
  would hold uncommitted records of that transaction.
- On a disk it is the last stable offset, as far as the log is durable.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from local import kernels
from local.cleaner.offset_map import Buffer
from local.errors import CleaningAborted, Conflict, Corrupt, InvalidRequest, LogError
from local.format.batch_header import CONTROL, HEADER_BYTES, TRANSACTIONAL, seal
from local.format.columns import BatchTable, Columns
from local.format.crc32c import crc32c
from local.index.index_files import build_indexes
from local.index.txn_index import AbortedTransaction
from local.kernels.pure_kernels import DROP, REBUILD, VERBATIM
from local.kernels.pure_key_map import SLOT_BYTES
from local.log.checkpoints import encode_epochs
from local.names import CLEANED, LOG, segment_file
from local.records.isolation import aborted_batches
from local.segment.segment import RELATIVE_OFFSET_MAX
from local.storage import Storage, StorageFile, join
from remote.gc.object_deletion import DeleteReason, delete_objects
from remote.manifest.page_out import keys_of
from remote.manifest.view import VIEW_ROWS_MAX, CompactedView, ViewRun
from remote.segment_entry import SegmentEntry
from remote.store import ObjectStore
from remote.upload.segment_upload import SegmentToCopy, copy_segment
from tiered.partition.partition import Partition
from tiered.partition.segment_inspection import SegmentInspector
from tiered.read.reader import TieredReader, segment_runs
from tiered.read.view_places import Basis, BucketPlace, DiskPlace, ViewPlace

_log = logging.getLogger(__name__)
PART_BYTES_MAX = 2**31 - 1  # positions in an offset index are int32
PARTS_WANTED = VIEW_ROWS_MAX // 4  # as many entries leave every manifest small
Upload = Callable[[SegmentToCopy], SegmentEntry]
KEY_RANGES_MAX = 1 << 16  # with this many parts, any useful buffer holds the keys of one
_HASH_SPREAD = 0x9E3779B1  # odd; Kafka's partitioner used the hash's low bits: within a partition they hardly differ
Runs = Callable[[], Iterable[memoryview]]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewWork:
    """The parameters of a run. `accepts_loss`: continue even if the log lost records that follow the view."""

    name: str
    storage: Storage
    now_ms: int
    accepts_loss: bool = False
    should_stop: Callable[[], bool] = lambda: False


def build_view(held: Partition, work: ViewWork) -> CompactedView | None:
    """Build the view once and return it; None without news to merge. On a disk it holds the partition's lock.

    Raises InvalidRequest for a gap between view and log, no writer role in the bucket, or a too small buffer or
    manifest. Raises CleaningAborted at `should_stop`, and the errors of the log, the disk and the store.
    """
    if not held.keeps_views_on_disk:
        return _build_in(BucketPlace(held), held, work)
    with held.lock:
        return None if held.is_deleted else _build_in(DiskPlace(held), held, work)


def _build_in(place: ViewPlace, held: Partition, work: ViewWork) -> CompactedView | None:
    known = place.known(work.name)
    if known is not None and _has_nothing_to_do(known, place.log_start_offset(), place.horizon()):
        return None
    basis = place.begin(work.name, work.now_ms)
    try:
        built = _Run(held, place, basis, work).build()
    except LogError as error:
        _note_failure(place, held, work, error)
        raise
    place.switch(built, work.now_ms)
    _log.info("built a view: partition=%s view=%s run=%s", held.name, work.name, built.last_run)
    return built


def _has_nothing_to_do(view: CompactedView, log_start_offset: int, horizon: int) -> bool:
    if view.is_built and horizon < view.horizon_offset:
        return True  # a view on the disk is ahead of a new bucket
    is_behind = view.horizon_offset < horizon or view.gap(log_start_offset) is not None
    return view.is_built and view.failure is None and view.under_way is None and not is_behind


def _note_failure(place: ViewPlace, held: Partition, work: ViewWork, error: LogError) -> None:
    _log.error("cannot build a view: partition=%s view=%s error=%s", held.name, work.name, error)
    try:
        if not isinstance(error, Conflict):
            place.fail(work.name, str(error), work.now_ms)
    except LogError as again:
        _log.warning("cannot save the error of a view: partition=%s error=%s", held.name, again)


class _Run:
    def __init__(self, held: Partition, place: ViewPlace, basis: Basis, work: ViewWork) -> None:
        self.old = basis.old
        self._held, self._place, self._basis, self._work = held, place, basis, work
        self._began = time.monotonic()
        self._start = self.old.horizon_offset if self.old.is_built else basis.log_start_offset
        self._lost = self.old.lost
        self._upto = place.horizon()

    def build(self) -> CompactedView:
        self._check_gap()
        self._upto = max(self._upto, self._start)
        found = Survivors(
            self._old_runs,
            NewRecords(
                runs=self._new_runs,
                start=self._start,
                upto=self._upto,
                aborted=self._place.source.aborted_transactions(self._start, self._upto),
                count_max=self._basis.records_max,
            ),
            Buffer(size_bytes=self._held.rules.view_buffer_bytes),
            retain_null_key=self._held.rules.view_retain_null_key,
            empty_deletes=self._held.rules.view_empty_value_deletes,
            check=self._check_stop,
        )
        found.find()
        log = self._held.log
        wanted_bytes = part_bytes(log.settings.segment_bytes, found.old.size_bytes + found.new.size_bytes)
        interval_bytes = log.settings.index_interval_bytes
        parts = ViewParts(
            self._work.storage, log.directory, self._upload, part_bytes=wanted_bytes, interval_bytes=interval_bytes
        )
        try:
            self._write_old(parts, found.old, wanted_bytes)
            self._write(parts, self._new_runs(), found.new, 0)
            return self._built(parts.end(), found)
        except LogError:
            parts.discard(self._place.store, self._place.prefix)
            raise

    def _check_gap(self) -> None:
        gap = self.old.gap(self._basis.log_start_offset) if self.old.is_built else None
        if gap is None:
            return
        if not self._work.accepts_loss:
            wrong = "cannot build the view, the log no longer holds the records that follow it"
            advice = "accept the loss (--accept-loss), or drop the view and build it again"
            lost = f"[{gap[0]}, {gap[1]})"
            raise InvalidRequest(f"{wrong}: {advice}", partition=self._held.name, view=self.old.name, lost=lost)
        self._lost, self._start = (*self._lost, gap), gap[1]

    def _old_runs(self) -> Iterator[memoryview]:
        for entry in self.old.entries:
            yield from self._part_runs(entry)

    def _part_runs(self, entry: SegmentEntry) -> Iterator[memoryview]:
        yield from (data for data, _ in segment_runs(self._basis.parts.read, entry, entry.base_offset))

    def _new_runs(self) -> Iterator[memoryview]:
        if self._start < self._upto:
            for data in TieredReader(lambda _: self._place.source).batches(self._held.name, self._start, self._upto):
                table = kernels.scan_batches(data, verify=False)
                inside = int(np.searchsorted(table.base_offsets, self._upto))
                yield data if inside == len(table) else data[: int(table.positions[inside])]

    def _write_old(self, parts: ViewParts, stream: Stream, wanted_bytes: int) -> None:
        """Write the old parts. Parts that lose no record stay unless small; parts without survivors are not read."""
        first = 0
        for entry in self.old.entries:
            keep = stream.flags(first, entry.record_count)
            first += entry.record_count
            if self._basis.own_parts and keep.all() and 2 * entry.size_bytes >= wanted_bytes:
                parts.keep(entry)
            elif keep.any():
                self._write(parts, self._part_runs(entry), stream, first - entry.record_count)
        if first != stream.record_count:
            wrong = "cannot build the view, its entries count other records than it has"
            raise Conflict(wrong, counted=stream.record_count)

    def _write(self, parts: ViewParts, runs: Iterable[memoryview], stream: Stream, first: int) -> None:
        for data in runs:
            self._check_stop()
            table = kernels.scan_batches(data, verify=False)
            records = int(table.record_counts.sum(dtype=np.int64))
            remaining = filtered(data, table, stream.flags(first, records))
            first += records
            if remaining:
                parts.add(remaining)

    def _upload(self, part: SegmentToCopy) -> SegmentEntry:
        self._check_stop()
        place, epoch, now_ms, encoding = self._place, self._basis.epoch, self._work.now_ms, self._place.object_encoding
        entry = copy_segment(
            place.store, place.prefix, part, epoch=epoch, now_ms=now_ms, view=self._work.name, object_encoding=encoding
        )
        return replace(entry, committed_ms=now_ms)

    def _check_stop(self) -> None:
        if self._work.should_stop():
            stopped = "the build of the view was stopped on request"
            raise CleaningAborted(stopped, partition=self._held.name, view=self._work.name)

    def _built(self, entries: tuple[SegmentEntry, ...], found: Survivors) -> CompactedView:
        record_count = sum(entry.record_count for entry in entries)
        run = ViewRun(
            started_ms=self._work.now_ms,
            took_ms=round((time.monotonic() - self._began) * 1000),
            from_offset=self._start,
            upto_offset=self._upto,
            records_in=found.old.record_count + found.new.record_count,
            records_out=record_count,
            bytes_in=found.old.size_bytes + found.new.size_bytes,
            bytes_out=sum(entry.size_bytes for entry in entries),
            key_ranges=found.key_ranges,
        )
        return CompactedView(
            name=self.old.name,
            start_offset=self.old.start_offset if self.old.is_built else self._start,
            horizon_offset=self._upto,
            entries=entries,
            record_count=record_count,
            key_count=record_count - found.keyless_count,
            source_sequence=self._basis.source_sequence,
            lost=self._lost,
            last_run=run,
        )


def part_bytes(segment_bytes: int, input_bytes: int) -> int:
    """The maximum size of a part: `segment.bytes`, or more if the parts would be too many for a manifest."""
    return min(PART_BYTES_MAX, max(segment_bytes, -(-input_bytes // PARTS_WANTED)))


def filtered(data: memoryview, table: BatchTable, keep: NDArray[np.bool_]) -> bytes:
    """The batches of `data`, scanned in `table`, with the records that `keep` flags; markers have flags too."""
    ends = np.cumsum(table.record_counts, dtype=np.int64)
    running = np.concatenate((np.zeros(1, np.int64), np.cumsum(keep, dtype=np.int64)))
    survivors = running[ends] - running[ends - table.record_counts]
    actions = np.full(len(table), REBUILD, np.uint8)
    actions[survivors == table.record_counts] = VERBATIM
    actions[survivors == 0] = DROP
    if (actions == DROP).all():
        return b""
    remaining = kernels.filter_batches(data, keep, actions=actions)
    is_transactional = bool((table.attributes[actions != DROP] & TRANSACTIONAL).any())
    return _without_transactions(remaining) if is_transactional else remaining


class ViewParts:
    """Takes batches in the order of their offsets, returns entries. `upload` puts one part into the store.

    A part is a segment like any other. One part at a time is written to the disk first, because an upload must be able
    to read it twice. Its suffix ``.cleaned`` lets the next start delete its remains. Uploaded parts that no manifest
    names are deleted after an error; after a crash they remain as objects of an older epoch. Only the transaction flag
    of a batch is removed: a view holds committed records and no markers, and Kafka's readers would wait for the
    markers.
    """

    def __init__(
        self, storage: Storage, directory: str, upload: Upload, *, part_bytes: int, interval_bytes: int
    ) -> None:
        self.entries: list[SegmentEntry] = []
        self._uploaded: list[SegmentEntry] = []
        self._storage, self._directory, self._upload = storage, directory, upload
        self._part_bytes, self._interval_bytes = part_bytes, interval_bytes
        self._file: StorageFile | None = None
        self._base_offset = self._size = 0

    def add(self, data: bytes) -> None:
        """Add whole batches. Raises errors of the disk and the store, and InvalidRequest for too many parts."""
        view, table = memoryview(data), kernels.scan_batches(data, verify=False)
        ends = table.positions + table.sizes
        at = 0
        while at < len(table):
            start, base_offset = int(table.positions[at]), int(table.base_offsets[at])
            base_offset = base_offset if self._file is None else self._base_offset
            fitting = int(np.searchsorted(ends, start + self._part_bytes - self._size, "right"))
            upto = min(fitting, int(np.searchsorted(table.last_offsets, base_offset + RELATIVE_OFFSET_MAX, "right")))
            if upto <= at and self._file is not None:
                self._end_part()
                continue
            upto = max(upto, at + 1)
            if self._file is None:
                self._base_offset = base_offset
                self._file = self._storage.create(self._path())
            self._file.append(view[start : int(ends[upto - 1])])
            self._size += int(ends[upto - 1]) - start
            at = upto

    def keep(self, row: SegmentEntry) -> None:
        self._end_part()
        self._take(row)

    def end(self) -> tuple[SegmentEntry, ...]:
        self._end_part()
        return tuple(self.entries)

    def discard(self, store: ObjectStore, prefix: str) -> None:
        """Delete the uploaded parts as far as possible; unchanged old parts stay. Never raises a LogError."""
        keys = keys_of(self._uploaded)
        try:
            self._drop_file()
            delete_objects(store, prefix, keys, DeleteReason.OWN_UPLOAD)
        except LogError as error:
            names = ",".join(prefix + key for key in keys)
            _log.warning("cannot delete parts of a failed view: keys=%s cause=%s", names, error)

    def _end_part(self) -> None:
        """End the current part. Order of effects: the file is read again, checked and uploaded → deleted."""
        if self._file is None:
            return
        row = self._upload(self._part())
        self._uploaded.append(row)
        self._drop_file()
        self._take(row)

    def _take(self, row: SegmentEntry) -> None:
        self.entries.append(row)
        if len(self.entries) > VIEW_ROWS_MAX:
            wrong = "cannot build the view, it would have more parts than a manifest may hold: raise segment.bytes"
            raise InvalidRequest(wrong, parts_max=VIEW_ROWS_MAX, part_bytes=self._part_bytes)

    def _part(self) -> SegmentToCopy:
        path, base = self._path(), self._base_offset
        mapped = self._storage.map(path)
        try:
            table = kernels.scan_batches(mapped, verify=False)
            indexes = build_indexes(table, base, self._interval_bytes)
        finally:
            mapped.release()
        firsts = [0, *(np.flatnonzero(np.diff(table.leader_epochs)) + 1).tolist()]
        epochs = tuple((int(table.leader_epochs[row]), int(table.base_offsets[row])) for row in firsts)
        following = int(table.last_offsets[-1]) + 1
        return SegmentToCopy(
            base_offset=base,
            next_offset=following,
            size_bytes=self._size,
            epochs=epochs,
            offset_index=bytes(indexes.offset),
            time_index=bytes(indexes.time),
            leader_epochs=encode_epochs(entry for entry in epochs if entry[0] >= 0),
            read=lambda start, length: self._storage.read(path, start, length),
            inspect=partial(SegmentInspector, path, base, following, epochs),
        )

    def _drop_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._storage.unlink(self._path())
            self._file = None
            self._size = 0

    def _path(self) -> str:
        return join(self._directory, segment_file(self._base_offset, LOG) + CLEANED)


def _without_transactions(data: bytes) -> bytes:
    table = kernels.scan_batches(data, verify=False)
    view, parts = memoryview(data), []
    for row, (position, size) in enumerate(zip(table.positions.tolist(), table.sizes.tolist(), strict=True)):
        batch = view[position : position + size]
        if table.attributes[row] & TRANSACTIONAL:
            header = table.row(row)
            plain = header._replace(attributes=header.attributes & ~TRANSACTIONAL)
            parts.append(seal(plain, bytes(batch[HEADER_BYTES:])))
        else:
            parts.append(bytes(batch))
    return b"".join(parts)


# Pass one of a view: the exact set of records that stay, for any number of keys. It writes nothing.
#
# There are two input streams: the *new* records, the log from the old view's horizon up to the new one, and the *old*
# records of the old view. The result is a bit for each record of either, in the order of the streams.
#
# | record, the first line that holds | stays |
# |---|---|
# | a transaction marker, or of an aborted transaction, or outside the range | no |
# | without a key | as `compaction.view.retain.null.key` says (Pulsar) |
# | a newer record of its key is among the new ones | no |
# | a null value: the key was deleted, and no older record is left for it to hide | no |
# | an empty value, where `compaction.view.empty.value.deletes` says that it deletes (Pulsar) | no |
# | any other | yes |
#
# Only keys of new records are held in memory (`kernels.KeyMap`; it compares keys, not only their hashes). If they do
# not fit the buffer, their hash splits them into halves, again and again, each with its own pass over both streams. A
# bit that an abandoned pass cleared stays cleared: it was cleared for a newer record of that very key. So every buffer
# size gives the same result.
#
# Memory: the buffer, two bits a record, one run of the stream and one step of it inflated (`kernels.STEP_BYTES`). The
# content of the streams must not change between two passes. Their batches are compared; a difference is a Conflict.


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecords:
    """The records in ``[start, upto)``. `runs` yields the same whole batches each time; `count_max` bounds the keys."""

    runs: Runs
    start: int
    upto: int
    aborted: Sequence[AbortedTransaction] = ()
    count_max: int | None = None


@dataclass(slots=True)
class Stream:
    """The state of one stream: a bit for each record, and the fingerprint of its batches."""

    bits: NDArray[np.uint8] = field(default_factory=lambda: np.full(1024, 0xFF, np.uint8))
    record_count: int = 0
    size_bytes: int = 0
    fingerprint: tuple[int, int] | None = None

    def flags(self, first: int, count: int) -> Flags:
        lo, skipped = first >> 3, first & 7
        window = np.unpackbits(self.bits[lo : (first + count + 7) >> 3], bitorder="little")
        return window[skipped : skipped + count].view(np.bool_)

    def clear(self, first: int, removed: Flags) -> None:
        if not removed.any():
            return
        lo, hi, skipped = first >> 3, (first + len(removed) + 7) >> 3, first & 7
        window = np.unpackbits(self.bits[lo:hi], bitorder="little")
        window[skipped : skipped + len(removed)][removed] = 0
        self.bits[lo:hi] = np.packbits(window, bitorder="little")

    def steps(self, runs: Runs, check: Callable[[], None]) -> Iterator[tuple[int, Columns]]:
        """Yield (index of the first record, records) of one pass. Raises Conflict if an earlier pass read others."""
        offsets_crc = counts_crc = following = size_bytes = 0
        for data in runs():
            check()
            table = kernels.scan_batches(data, verify=False)
            if table.problem is not None or table.has_legacy:
                raise Corrupt("cannot build the view, a run is not whole batches of format 2", at=table.valid_bytes)
            offsets_crc = crc32c(table.base_offsets.tobytes(), offsets_crc)
            counts_crc = crc32c(table.record_counts.tobytes(), counts_crc)
            size_bytes += len(data)
            for columns in kernels.decode_in_steps(data, include_control=True, table=table):
                first, following = following, following + len(columns)
                self._reserve(following)
                yield first, columns
                del columns  # before the next step is inflated
                check()
        if self.fingerprint not in (None, (offsets_crc, counts_crc)):
            raise Conflict("cannot build the view, the log changed during the build", records=following)
        self.fingerprint, self.record_count, self.size_bytes = (offsets_crc, counts_crc), following, size_bytes

    def _reserve(self, records: int) -> None:
        need = (records + 7) >> 3
        if need > len(self.bits):
            more = max(need, 2 * len(self.bits)) - len(self.bits)
            self.bits = np.concatenate((self.bits, np.full(more, 0xFF, np.uint8)))


class Survivors:
    """Decides which records stay. `keyless_count` of them have no key. The keys took `key_ranges` passes."""

    def __init__(
        self,
        old: Runs,
        new: NewRecords,
        buffer: Buffer,
        *,
        retain_null_key: bool,
        empty_deletes: bool,
        check: Callable[[], None],
    ) -> None:
        """`check` is called between steps and may raise."""
        self._least_bytes = 1 if empty_deletes else 0  # of a value that does not delete its key
        self.old, self.new = Stream(), Stream()
        self.keyless_count = self.key_ranges = 0
        self._old_runs, self._source, self._retain_null_key, self._check = old, new, retain_null_key, check
        self._buffer_bytes = buffer.size_bytes
        # Half of the buffer for slots, at most for all records; the rest for copies of keys.
        slots = max(2, buffer.size_bytes // 2 // SLOT_BYTES)
        if new.count_max is not None:
            slots = max(2, min(slots, int(new.count_max / buffer.load_factor) + 2))
        self._slots, self._arena_bytes = slots, max(0, buffer.size_bytes - slots * SLOT_BYTES)
        self._entries = max(1, min(self._slots - 1, int(self._slots * buffer.load_factor)))

    def find(self) -> None:
        """Decide all records. Raises Corrupt, Conflict for a changed stream, InvalidRequest for too small a buffer."""
        pending = [(1, 0)]
        while pending:
            modulus, residue = pending.pop()
            if self._settle(modulus, residue):
                self.key_ranges += 1
            elif modulus >= KEY_RANGES_MAX:
                wrong = "cannot build the view, its keys do not fit in the buffer: raise log.cleaner.dedupe.buffer.size"
                raise InvalidRequest(wrong, dedupe_buffer_bytes=self._buffer_bytes)
            else:
                pending += [(2 * modulus, residue + modulus), (2 * modulus, residue)]

    def _settle(self, modulus: int, residue: int) -> bool:
        seed = random.SystemRandom().getrandbits(63)
        keys = kernels.KeyMap(self._slots, self._entries, arena_bytes_max=self._arena_bytes, seed=seed)
        keyless = 0
        for first, columns in self.new.steps(self._source.runs, self._check):
            mapped, without_key = self._add(keys, columns, first, modulus, residue)
            if not mapped:
                return False
            keyless += without_key
        for first, columns in self.old.steps(self._old_runs, self._check):
            keyless += self._look_up(keys, columns, first)
        self.keyless_count = keyless
        return True

    def _add(self, keys: kernels.KeyMap, columns: Columns, first: int, modulus: int, residue: int) -> tuple[bool, int]:
        """(whether the keys of these new records fit; number of surviving records without a key)."""
        table, ordinals = columns.table, columns.batch_ordinals
        removed = (aborted_batches(table, self._source.aborted) | ((table.attributes & CONTROL) != 0))[ordinals]
        removed |= (columns.offsets < self._source.start) | (columns.offsets >= self._source.upto)
        has_key = columns.key_lengths >= 0
        skip = removed if modulus == 1 else removed | ~_is_in(columns, modulus, residue)
        starts, lengths = columns.key_starts, columns.key_lengths
        if keys.add(columns.data, starts, lengths, skip, first, self.new.bits) < len(columns):
            return False, 0
        deleted = has_key & (columns.value_lengths < self._least_bytes)
        keyless = ~removed & ~has_key
        self.new.clear(first, removed | deleted | (~has_key & (not self._retain_null_key)))
        return True, int(keyless.sum()) if self._retain_null_key else 0

    def _look_up(self, keys: kernels.KeyMap, columns: Columns, first: int) -> int:
        is_older = keys.find(columns.data, columns.key_starts, columns.key_lengths)
        keyless = columns.key_lengths < 0
        deleted = ~keyless & (columns.value_lengths < self._least_bytes)
        self.old.clear(first, is_older | deleted | (keyless & (not self._retain_null_key)))
        return int(keyless.sum()) if self._retain_null_key else 0


def _is_in(columns: Columns, modulus: int, residue: int) -> Flags:
    hashes = kernels.hash_keys(columns.data, columns.key_starts, columns.key_lengths).astype(np.uint64)
    spread = ((hashes * np.uint64(_HASH_SPREAD)) & np.uint64(0xFFFFFFFF)) >> np.uint64(8)
    found: Flags = spread % np.uint64(modulus) == residue
    return found
