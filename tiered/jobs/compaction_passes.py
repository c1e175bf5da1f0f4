"""Both passes of a bucket compaction over one group: steps 2 and 3 of `tiered.jobs.bucket_compaction`.

The cleaner treats the group's segments, in a directory of the task, like local ones. Memory: the dedupe buffer, or
8 bytes for each surviving record; 2 bits a record; a few MiB of records. Disk: the group, and one new segment.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from local import kernels
from local.cleaner.cleaner import POSITION_MAX, grouped, survivors
from local.cleaner.offset_map import Bits, Buffer, CleanerThrottle, OffsetMap, build_offset_map, digest_keys, packed
from local.cleaner.record_retention import CleanContext, RecordFilter, SegmentVerdict
from local.errors import Corrupt, InvalidRequest, LogError, NotFound
from local.format.batch_header import CONTROL
from local.format.columns import Columns, Flags
from local.index import txn_index
from local.index.index_files import IndexRows
from local.log.producer_state import decode_snapshot
from local.names import CLEANED, LOG, OFFSET_INDEX, TIME_INDEX, TopicPartition, segment_file
from local.records.isolation import aborted_batches
from local.segment.segment import Segment
from local.segment.segment_reading import slice_bounds
from local.storage import SegmentFiles, Storage, join
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RANGE_BYTES, RemotePartition
from remote.gc.object_deletion import DeleteReason, delete_objects
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import Replacement
from remote.manifest.manifest_lookup import MetadataIndex
from remote.manifest.page_out import keys_of
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from remote.upload.segment_upload import SegmentToCopy, copy_segment
from tiered.config.config import log_settings, resolve_rules
from tiered.jobs.bucket_compaction import (
    CompactionOutcome,
    CompactionPlan,
    GroupResult,
    PlanOptions,
    RowGroup,
    compact_in_rounds,
)
from tiered.jobs.joined_segments import joined_epochs
from tiered.partition.segment_inspection import SegmentInspector
from tiered.read.partition_source import PartitionSource
from tiered.stores.object_encoding import encoding_of

_CACHE_BYTES = 4 * RANGE_BYTES
STRING_RECORDS = 1 << 17  # in one byte string, about 2.5 MB: one row of a Spark table
_MANIFEST = struct.Struct("<IqB")
Numbers = NDArray[np.int64]


@dataclass
class GroupWork:
    """One attempt at one group of the newest manifest; `directory` is empty and its own, and the caller removes it."""

    store: ObjectStore
    plan: CompactionPlan
    group: RowGroup
    _: KW_ONLY
    storage: Storage
    directory: str
    keys: KeyRing = NO_KEYS
    log: MetadataLog | None = None

    def __post_init__(self) -> None:
        name = self.plan.name
        self._pace = CleanerThrottle(name.topic_partition, lambda: False)
        self._log = self.log or MetadataLog(self.store, name.prefix)
        self._remote = RemotePartition(self.store, name.prefix, ChunkCache(_CACHE_BYTES), keys=self.keys)

    def newest_keys(self, buffer: Buffer) -> Iterator[KeyRun]:
        """Yield the newest record of each key in the group; with a small `buffer` perhaps some older ones.

        Raises NotFound if entries left the bucket since the plan, except expired ones; Corrupt for damaged bytes.
        """
        segments = [self._fetched(entry) for entry in self._settled()]
        while segments:
            newest, count = build_offset_map(segments, self.group.next_offset, self._aborted, buffer, self._pace)
            for segment in segments[: max(count, 1)]:
                yield from self._keys_of(segment, newest if count else None)  # None: the first one does not fit
                self._removed(segment)
            segments = segments[max(count, 1) :]

    def _keys_of(self, segment: Segment, newest: OffsetMap | None) -> Iterator[KeyRun]:
        mapped = self._pace.mapped(segment)
        for number, (start, end) in enumerate(slice_bounds(segment)):
            self._pace.check()
            bits = newest.bits(segment.base_offset, number) if newest is not None else None
            first = 0
            for columns in kernels.decode_in_steps(mapped[start:end], include_control=True):
                wanted = (columns.key_lengths >= 0) & ~_of_control(columns)
                if bits is None:
                    wanted &= ~aborted_batches(columns.table, self._aborted)[columns.batch_ordinals]
                else:
                    wanted &= _flags(bits[0], first, len(columns))
                first += len(columns)
                starts, lengths = columns.key_starts[wanted], columns.key_lengths[wanted]
                low, high = digest_keys(columns.data, starts, lengths, self.plan.secret)
                yield KeyRun(low, high, columns.offsets[wanted])
                del columns  # before the next step is decompressed

    def rewrite(self, newest: NDArray[np.int64]) -> GroupResult:
        """Build and upload the new segments, one after another; an error deletes them. Raises as `newest_keys`.

        `newest` are the offsets of newest records, ascending: all of the group, and perhaps others.
        """
        plan, group, found = self.plan, self.group, self._settled()
        if not found:
            return GroupResult(number=group.number)
        segments = [self._fetched(entry) for entry in found]
        known = ShuffledOffsetMap(self.storage, segments, np.asarray(newest, np.int64))
        judge = RecordFilter(self._clean_context(), known, self._aborted)
        judge.begin(self._open_producers(segments), found[0].base_offset)
        pairs = zip(segments, found, strict=True)
        judged = [judge.segment(segment, entry.next_offset, self._pace) for segment, entry in pairs]
        entries, replaced, vouched = iter(found), list[Replacement](), list[str]()
        try:
            for together in grouped(judged, log_settings(plan.settings), self._pace):
                olds = list(islice(entries, len(together)))
                ulids = tuple(entry.ulid for entry in olds)
                if len(together) > 1 or (together[0].is_changed and not together[0].is_last_batch_alone):
                    replaced.append(Replacement(ulids=ulids, entries=(self._uploaded(together, olds),)))
                else:
                    vouched += ulids
                for each in together:
                    self._removed(each.segment)
        except LogError:
            uploaded = keys_of(entry for each in replaced for entry in each.entries)
            with suppress(LogError):
                delete_objects(self.store, plan.name.prefix, uploaded, DeleteReason.OWN_UPLOAD)
            raise
        return GroupResult(number=group.number, replaced=tuple(replaced), vouched=tuple(vouched))

    def _settled(self) -> list[SegmentEntry]:
        """Return the group's entries, without those whose objects may be deleted at any time."""
        start, end = self.group.base_offset, self.group.next_offset

        def question(index: MetadataIndex) -> list[SegmentEntry]:
            found = [
                each for each in index.entries(start, end) if start <= each.base_offset and each.next_offset <= end
            ]
            first = found[0].base_offset if found else 0
            below = [part for part in index.manifest.parts if part.base_offset < first][-1:]
            # The entry with the nearest end at or below the first one, dead or not.
            self._before = [each for part in below for each in index.entries_with_dead(part.base_offset, first)][-1:]
            return found

        found = self._log.ask(self._log.refresh(), question)
        source = PartitionSource(self.plan.name.topic_partition, None, self._remote, self._log)
        self._aborted = source.aborted_transactions(found[0].base_offset, end) if found else []
        return found

    def _clean_context(self) -> CleanContext:
        plan = self.plan
        return CleanContext(
            now_ms=plan.now_ms,
            delete_retention_ms=resolve_rules(plan.settings).delete_retention_ms,
            tombstones_below=plan.tombstones_below,
            legacy_horizon_ms=None,
            first_offset=plan.start_offset,
            upto_offset=plan.upto_offset,
            producers={each.producer_id: each for each in plan.producers},
        )

    def _open_producers(self, segments: Sequence[Segment]) -> set[int]:
        """Return the producers that may have an open transaction at the first entry: a superset."""
        if not self._before and self.plan.is_first and segments[0].base_offset == self.plan.start_offset:
            return set()
        for before in self._before:
            with suppress(NotFound):
                if len(snapshot := self._remote.indexes(before).producers):
                    known = decode_snapshot(snapshot, path=before.indexes_key)
                    return {each.producer_id for each in known if each.transaction_first_offset >= 0}
        found: set[int] = set()
        for segment in segments:
            for _, data in self._pace.slices(segment):
                table = kernels.scan_batches(data, verify=False)
                found.update(table.producer_ids[(table.attributes & CONTROL) != 0].tolist())
        return found

    def _uploaded(self, together: Sequence[SegmentVerdict], olds: Sequence[SegmentEntry]) -> SegmentEntry:
        plan, base = self.plan, olds[0].base_offset
        path = join(self.directory, segment_file(base, LOG) + CLEANED)
        entries, out = IndexRows(), np.empty(kernels.REBUILT_PART_BYTES, np.uint8)
        size = self._written(path, survivors(together, self._pace, entries, self._clean_context().horizon_ms, out))
        if size > POSITION_MAX:
            facts = {"base_offset": base, "size_bytes": size, "limit": POSITION_MAX}
            wrong = "cannot compact segments, the remaining records are larger than the maximum segment size"
            raise InvalidRequest(wrong, **facts)
        indexes = entries.indexes(base, log_settings(plan.settings).index_interval_bytes)
        both = bytes(indexes.offset), bytes(indexes.time)
        aborted = sorted((each for one in together for each in one.aborted), key=lambda each: each.last_offset)
        last, epochs = self._remote.indexes(olds[-1]), joined_epochs(olds)
        segment = SegmentToCopy(
            base_offset=base,
            next_offset=olds[-1].next_offset,
            size_bytes=size,
            epochs=epochs,
            offset_index=both[0],
            time_index=both[1],
            txn_index=txn_index.encode(aborted),
            producer_snapshot=bytes(last.producers),
            leader_epochs=bytes(last.epochs),
            cleaned_through=max(plan.upto_offset, min(entry.cleaned_through or 0 for entry in olds)),
            read=lambda start, length: self.storage.read(path, start, length),
            inspect=partial(SegmentInspector, path, base, olds[-1].next_offset, epochs, both),
        )
        encoding = encoding_of(plan.settings, self.keys, olds)
        entry = copy_segment(
            self.store, plan.name.prefix, segment, epoch=plan.epoch, now_ms=plan.now_ms, object_encoding=encoding
        )
        self.storage.unlink(path)
        return entry

    def _fetched(self, entry: SegmentEntry) -> Segment:
        bundle = self._remote.indexes(entry)
        name = partial(segment_file, entry.base_offset)
        self._written(join(self.directory, name(OFFSET_INDEX)), [memoryview(bundle.offset)])
        self._written(join(self.directory, name(TIME_INDEX)), [memoryview(bundle.time)])
        starts = range(0, entry.size_bytes, RANGE_BYTES)
        ranges = ((start, min(RANGE_BYTES, entry.size_bytes - start)) for start in starts)
        parts = (self._remote.read(entry, start, length) for start, length in ranges)
        self._written(join(self.directory, name(LOG)), parts)
        return Segment.load(SegmentFiles(self.storage, self.directory, entry.base_offset))

    def _written(self, path: str, parts: Iterable[memoryview]) -> int:
        size, file = 0, self.storage.create(path)
        try:
            for part in parts:
                self._pace.check()
                file.append(part)
                size += len(part)
        finally:
            file.close()
        return size

    def _removed(self, segment: Segment) -> None:
        for suffix in (LOG, OFFSET_INDEX, TIME_INDEX):
            self.storage.unlink(segment.path(suffix))


class ShuffledOffsetMap:
    """The newest records by offset; implements `local.cleaner.record_retention.Newest`."""

    def __init__(self, storage: Storage, segments: Sequence[Segment], newest: NDArray[np.int64]) -> None:
        self._storage = storage
        self._segments = {segment.base_offset: segment for segment in segments}
        self._newest = newest

    def mapped(self, base_offset: int) -> memoryview | None:
        del base_offset
        return None

    def bits(self, base_offset: int, slice_number: int) -> tuple[Bits, Bits]:
        segment = self._segments[base_offset]
        start, end = slice_bounds(segment)[slice_number]
        keep, tombstones = [np.empty(0, np.bool_)], [np.empty(0, np.bool_)]
        for columns in kernels.decode_in_steps(self._storage.map(segment.path(LOG))[start:end], include_control=True):
            control = _of_control(columns)
            keep.append(control | ~self.superseded(columns))
            tombstones.append((columns.value_lengths < 0) & ~control & (columns.key_lengths >= 0))
            del columns  # before the next step is decompressed
        return packed(np.concatenate(keep)), packed(np.concatenate(tombstones))

    def superseded(self, columns: Columns) -> Flags:
        """Return the superseded records: older ones, records without a key, records of aborted transactions."""
        if not len(self._newest):
            return np.ones(len(columns), np.bool_)
        at = np.minimum(np.searchsorted(self._newest, columns.offsets), len(self._newest) - 1)
        found: Flags = self._newest[at] != columns.offsets
        return found


def newest_by_group(plan: CompactionPlan, runs: Iterable[KeyRun]) -> Mapping[int, NDArray[np.int64]]:
    """Return the largest offset of each digest, by group: the step between the passes, in one process."""
    found = newest_offsets(runs)
    return {group.number: found[(found >= group.base_offset) & (found < group.next_offset)] for group in plan.groups}


def both_passes(
    store: ObjectStore,
    plan: CompactionPlan,
    storage: Storage,
    directory: str,
    *,
    keys: KeyRing = NO_KEYS,
    buffer: Buffer | None = None,
) -> list[GroupResult]:
    common = {"storage": storage, "directory": directory, "keys": keys, "log": MetadataLog(store, plan.name.prefix)}
    works = [GroupWork(store, plan, each, **common) for each in plan.groups]  # type: ignore[arg-type]
    newest = newest_by_group(plan, (run for work in works for run in work.newest_keys(buffer or Buffer())))
    return [work.rewrite(newest[group.number]) for work, group in zip(works, plan.groups, strict=True)]


def compact_partition(
    store: ObjectStore,
    name: RemotePartitionName,
    *,
    now_ms: int,
    storage: Storage,
    directory: str,
    buffer: Buffer | None = None,
    keys: KeyRing = NO_KEYS,
    job_id: str | None = None,
    **options: Unpack[PlanOptions],
) -> CompactionOutcome:
    """Compact one partition in this process; `directory` is empty and the caller's. Memory: 24 bytes a key."""
    errors: dict[TopicPartition, LogError] = {}

    def compacted(plans: Sequence[CompactionPlan]) -> Mapping[int, list[GroupResult]]:
        return {0: both_passes(store, plans[0], storage, directory, keys=keys, buffer=buffer)}

    outcomes = compact_in_rounds(store, [name], compacted, errors, now_ms=now_ms, job_id=job_id, keys=keys, **options)
    for error in errors.values():
        raise error
    return outcomes[0]


def _of_control(columns: Columns) -> Flags:
    found: Flags = ((columns.table.attributes & CONTROL) != 0)[columns.batch_ordinals]
    return found


def _flags(bits: Bits, first: int, count: int) -> Flags:
    found: Flags = np.unpackbits(bits[first >> 3 : (first + count + 7) >> 3], bitorder="little").view(np.bool_)
    return found[first & 7 : (first & 7) + count]


# Exchange between the two passes of a distributed compaction: find the newest record of each key.
#
# 1. Pass one yields digests of keys with offsets; `Combiner` sends a key with a hundred records once.
# 2. `parted` divides the records by digest into **buckets**: all records of one key are in one bucket.
# 3. For each bucket `newest` finds the largest offset of each digest.
# 4. `by_group` sends these offsets back to the group of segments that has them, for pass two (`offsets_of`).
#
# | of a bucket | bytes | | of a group | bytes |
# |---|---|---|---|---|
# | records | 4 | | offsets | 4 |
# | smallest offset | 8 | | first offset | 8 |
# | bytes of an offset, w | 1 | | bytes of a difference, w | 1 |
# | lower halves of the digests | 8 each | | offsets, each minus the one before it; the first one 0 | w each |
# | upper halves | 8 each | | | |
# | offsets above the smallest | w each | | | |
#
# Numbers of these byte strings are little-endian. A record costs about 19 bytes to a bucket, and 1 to 3 back. Memory: a
# combiner and a bucket hold about `records_held` records of 24 bytes, about 90 while they are sorted.


class KeyRun(NamedTuple):
    """Records that may be the newest of their keys: both halves of each key's digest, and the offset."""

    low: Numbers
    high: Numbers
    offsets: Numbers


class Combiner:
    """Holds records of one partition, without superseded ones as far as it has room."""

    def __init__(self, records_max: int) -> None:
        self._records_max = records_max
        self._held: list[KeyRun] = []
        self._count = 0

    def add(self, run: KeyRun) -> Iterator[KeyRun]:
        """Add records; if full, remove superseded ones, and yield the rest if it takes more than half of the room."""
        self._held.append(run)
        self._count += len(run.offsets)
        if self._count > self._records_max:
            combined = _newest_of(_joined(self._held))
            self._held, self._count = [combined], len(combined.offsets)
            if self._count > self._records_max // 2:
                self._held, self._count = [], 0
                yield combined

    def rest(self) -> Iterator[KeyRun]:
        held, self._held, self._count = self._held, [], 0
        if held:
            yield _newest_of(_joined(held))


def records_held(buffer_bytes: int) -> int:
    return max(1, buffer_bytes // 32)


def bucket_count(records: int, buffer_bytes: int) -> int:
    return max(1, -(-records // records_held(buffer_bytes)))


def parted(run: KeyRun, buckets: int) -> Iterator[tuple[int, bytes]]:
    """Yield the records by bucket, as byte strings; a bucket number may occur more than once."""
    numbers = _bucket_of(run.high, buckets)
    order = np.argsort(numbers, kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(buckets + 1))
    for number in np.flatnonzero(np.diff(bounds)).tolist():
        for at in range(int(bounds[number]), int(bounds[number + 1]), STRING_RECORDS):
            entries = order[at : min(at + STRING_RECORDS, int(bounds[number + 1]))]
            yield number, _encoded(KeyRun(run.low[entries], run.high[entries], run.offsets[entries]))


def newest(strings: Iterable[bytes]) -> Numbers:
    """Return the largest offset of each digest of a bucket, ascending. Raises Corrupt for invalid bytes."""
    return newest_offsets(_decoded(each) for each in strings)


def newest_offsets(runs: Iterable[KeyRun]) -> Numbers:
    return np.sort(_newest_of(_joined(list(runs))).offsets)


def by_group(offsets: Numbers, bases: Numbers) -> Iterator[tuple[int, bytes]]:
    """Yield `offsets` (ascending) by group, as byte strings. `bases` are the groups' base offsets."""
    bounds = np.append(np.searchsorted(offsets, bases), len(offsets))
    for number in np.flatnonzero(np.diff(bounds)).tolist():
        of_group = offsets[bounds[number] : bounds[number + 1]]
        for at in range(0, len(of_group), STRING_RECORDS):
            first = int(of_group[at])
            width, packed = _packed(np.diff(of_group[at : at + STRING_RECORDS], prepend=first))
            yield number, _MANIFEST.pack(min(STRING_RECORDS, len(of_group) - at), first, width) + packed


def offsets_of(strings: Iterable[bytes]) -> Numbers:
    """Return the offsets of a group, ascending. Raises Corrupt for bytes that `by_group` did not make."""
    parts = [np.empty(0, np.int64)]
    for each in strings:
        count, first, width = _manifest(each)
        parts.append(first + np.cumsum(_unpacked(memoryview(each)[_MANIFEST.size :], count, width)))
    return np.sort(np.concatenate(parts))


def _newest_of(run: KeyRun) -> KeyRun:
    """Return the newest record of each digest. Sorts by the upper half alone unless two digests share it."""
    order = np.argsort(run.high)
    high, low = run.high[order], run.low[order]
    again = high[1:] == high[:-1]
    if (again & (low[1:] != low[:-1])).any():  # some keys share half a digest: records of one key may be apart
        order = np.lexsort((run.low, run.high))
        high, low = run.high[order], run.low[order]
        again = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    if not again.any():
        return KeyRun(low, high, run.offsets[order])
    starts = np.flatnonzero(np.concatenate(([True], ~again)))
    return KeyRun(low[starts], high[starts], np.maximum.reduceat(run.offsets[order], starts))


def _joined(runs: list[KeyRun]) -> KeyRun:
    if len(runs) == 1:
        return runs[0]
    empty = np.empty(0, np.int64)
    low, high, offsets = (np.concatenate([empty, *(run[at] for run in runs)]) for at in range(3))
    return KeyRun(low, high, offsets)


def _bucket_of(high: Numbers, buckets: int) -> Numbers:
    return (((high.view(np.uint64) >> np.uint64(32)) * np.uint64(buckets)) >> np.uint64(32)).view(np.int64)


def _encoded(run: KeyRun) -> bytes:
    smallest = int(run.offsets.min())
    width, packed = _packed(run.offsets - smallest)
    manifest = _MANIFEST.pack(len(run.offsets), smallest, width)
    return b"".join((manifest, run.low.tobytes(), run.high.tobytes(), packed))


def _decoded(string: bytes) -> KeyRun:
    count, smallest, width = _manifest(string)
    digests = memoryview(string)[_MANIFEST.size : _MANIFEST.size + 16 * count]
    if len(digests) != 16 * count:
        raise Corrupt("cannot read key digests, their end is missing", records=count, bytes=len(string))
    low, high = np.frombuffer(digests, np.int64).reshape(2, count)
    return KeyRun(low, high, _unpacked(memoryview(string)[_MANIFEST.size + 16 * count :], count, width) + smallest)


def _packed(numbers: Numbers) -> tuple[int, bytes]:
    """Return (bytes w that the largest number needs, w bytes of each number). No number is negative."""
    width = (int(numbers.max()).bit_length() + 7) // 8
    return width, numbers.view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def _unpacked(data: memoryview, count: int, width: int) -> Numbers:
    if width > 8 or len(data) != count * width:
        raise Corrupt("cannot read offsets, the number of bytes is wrong", offsets=count, width=width, bytes=len(data))
    numbers = np.zeros((count, 8), np.uint8)
    numbers[:, :width] = np.frombuffer(data, np.uint8).reshape(count, width)
    return numbers.view(np.int64).reshape(count)


def _manifest(string: bytes) -> tuple[int, int, int]:
    if len(string) < _MANIFEST.size:
        raise Corrupt("cannot read the keys of a compaction, their beginning is missing", bytes=len(string))
    count, smallest, width = _MANIFEST.unpack_from(string)
    return count, smallest, width
