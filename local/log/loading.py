"""Load the segments of a partition directory: find, recover or refuse them.

| segment | trusted | action |
|---|---|---|
| below the recovery point, or after a clean shutdown | its bytes are durable | indexes as in the next table |
| reaching beyond the recovery point | up to it | every CRC checked; a torn or wrong tail beyond it is cut |
| reaching past the base of an empty last segment | up to the recovery point | the same |

Opening reads only the directory listing for most segments. The indexes of trusted segments:

| segment | checked | if unsound |
|---|---|---|
| the last one, for appends | at once, whole | rebuilt at once |
| an older one | at once: both files exist and hold whole entries | rebuilt at once |
| | their contents at first use (`local.index.sealed_indexes`) | rebuilt then |
| any with a ``.txnindex`` | this file at once, whole | rebuilt at once |

- Trusted bytes are never cut. Damage in them is Corrupt, naming file and byte, and the files stay for repair.
- Beyond the recovery point the first bad batch ends the log, and later segments are removed. No record after a hole was
  acknowledged as durable.
- A segment that begins inside the previous one is left by a failed roll. It is removed if empty, else Corrupt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from local import kernels, names
from local.errors import Corrupt
from local.format.batch_header import HEADER_BYTES, read_header
from local.index import index_files
from local.index.index_files import OutsideSegment
from local.index.sealed_indexes import SHARED, Access
from local.log import recovery
from local.log.leader_epochs import LeaderEpochs
from local.log.producer_state import ProducerFiles, ProducerState
from local.log.read_only_open import found_segment
from local.segment.segment import RELATIVE_OFFSET_MAX, Segment
from local.segment.segment_reading import end_of
from local.settings import LogSettings
from local.storage import FileFacts, SegmentFiles, Storage


@dataclass(frozen=True, slots=True)
class _Place:
    storage: Storage
    directory: str
    settings: LogSettings
    listed: Mapping[str, FileFacts]
    snapshots: ProducerFiles
    bases: list[int]

    def files(self, base: int) -> SegmentFiles:
        return SegmentFiles(self.storage, self.directory, base)

    def segment(self, base: int) -> Segment:
        """The segment whose files this start has written or checked."""
        return Segment.load(self.files(base), interval_bytes=self.settings.index_interval_bytes)

    def facts(self, base: int, suffix: str) -> FileFacts | None:
        return self.listed.get(names.segment_file(base, suffix))


@dataclass(slots=True)
class LoadedLog:
    """The closed segments, ascending, and the log end."""

    segments: list[Segment]
    epochs: LeaderEpochs
    next_offset: int = 0
    producers: ProducerState = field(default_factory=ProducerState)
    recovered_count: int = 0  # segments that were read whole
    known_ends: dict[int, int] = field(default_factory=dict)  # those of the recovered segments, by base


def load(
    storage: Storage,
    directory: str,
    settings: LogSettings,
    epochs: LeaderEpochs,
    snapshots: ProducerFiles,
    *,
    recovery_point: int | None,
) -> LoadedLog:
    """Load every segment; recover those beyond `recovery_point` (None: trust all). Raises Corrupt."""
    found, had_snapshots = None, None
    while found is None:
        recovery.finish_swaps(storage, directory)
        listed = storage.list_files(directory)
        bases = recovery.segment_bases(storage, directory, listed)
        knows = snapshots.know(listed)
        had_snapshots = knows if had_snapshots is None else had_snapshots
        place = _Place(storage, directory, settings, listed, snapshots, bases)
        found = _found_or_recovered(place, epochs, recovery_point)
    _remove_failed_roll(found)
    bases = [segment.base_offset for segment in found.segments]
    if bases:
        if any(each < bases[0] for each in snapshots.offsets()):  # `keep` deletes the only source of these producers
            snapshots.write_snapshot(bases[0], ())
        snapshots.keep(bases, found.next_offset)
    if not found.recovered_count:
        found.producers = _trusted_producers(snapshots, bases, found.next_offset, had_snapshots=bool(had_snapshots))
    return found


def producers_of_empty_log(snapshots: ProducerFiles, loaded: LoadedLog, log_start_offset: int) -> ProducerState:
    """Return the producers of a log that restarts empty: no segments, or all of them below its start.

    The state from the segments is first written as a durable snapshot: a retry of deleted, acknowledged records must
    still be known as a duplicate after a crash.
    """
    if loaded.segments:
        if len(loaded.producers):
            snapshots.write(log_start_offset, loaded.producers, is_durable=True)
        return loaded.producers
    return snapshots.at(log_start_offset)


def _found_or_recovered(place: _Place, epochs: LeaderEpochs, recovery_point: int | None) -> LoadedLog | None:
    """Load every segment, oldest first; None after a split or rename: list the directory again."""
    found = LoadedLog([], epochs)
    for at, base in enumerate(place.bases):
        end = place.bases[at + 1] if at + 1 < len(place.bases) else None
        if recovery_point is None or (end is not None and end <= recovery_point and not _outgrew(place, base)):
            if not _add_trusted(place, found, at, end):
                return None
            continue
        try:
            is_cut = _recover(place, found, at, recovery_point)
        except OutsideSegment:
            if _put_right(place, found, at, verify=True):
                return None
            is_cut = _recover(place, found, at, recovery_point, may_begin_below=True)
        if is_cut and end is not None:
            discard([Segment(place.files(later)) for later in place.bases[at + 1 :]])
            break
    return found


def _add_trusted(place: _Place, found: LoadedLog, at: int, end: int | None) -> bool:
    """Add the trusted segment `at`; False after a split or a rename, if its offsets do not fit its name."""
    base = place.bases[at]
    is_suspect = end - base - 1 > RELATIVE_OFFSET_MAX if end is not None else False
    if (is_suspect or ((at == 0 or end is None) and _begins_below(place, base))) and _put_right(place, found, at):
        return False
    try:
        segment = _trusted(place, at)
        next_offset = end if end is not None else end_of(segment)
    except OutsideSegment:
        if _put_right(place, found, at):
            return False
        raise
    if end is None and next_offset - 1 - base > RELATIVE_OFFSET_MAX and _put_right(place, found, at):
        return False
    found.segments.append(segment)
    found.next_offset = next_offset
    return True


def _begins_below(place: _Place, base: int) -> bool:
    with suppress(Corrupt):
        header = read_header(place.storage.read(place.files(base).path(names.LOG), 0, HEADER_BYTES))
        return header is not None and header.base_offset < base
    return False


def _put_right(place: _Place, found: LoadedLog, at: int, *, verify: bool = False) -> bool:
    bases, end_before = place.bases, None
    if found.segments:
        before = found.segments[-1]
        end_before = found.known_ends.get(before.base_offset)
        end_before = end_of(before) if end_before is None else end_before
    next_base = bases[at + 1] if at + 1 < len(bases) else None
    return recovery.put_right(place.files(bases[at]), end_before=end_before, next_base=next_base, verify=verify)


def _recover(place: _Place, found: LoadedLog, at: int, recovery_point: int, *, may_begin_below: bool = False) -> bool:
    base = place.bases[at]
    if not found.recovered_count:
        before = place.bases[:at]
        found.producers = place.snapshots.state_at(base, before)
        if before and base not in place.snapshots.offsets():
            place.snapshots.write(base, found.producers)
    recovered = recovery.recover_segment(
        place.files(base),
        found.producers,
        interval_bytes=place.settings.index_interval_bytes,
        trusted_to=recovery_point,
        may_begin_below=may_begin_below,
    )
    for epoch, start in recovered.epochs:
        if found.epochs.latest is None or epoch > found.epochs.latest:
            found.epochs = found.epochs.assign(epoch, start)
    found.segments.append(place.segment(base))
    found.recovered_count += 1
    found.next_offset = found.known_ends[base] = recovered.next_offset
    return recovered.is_cut


def _remove_failed_roll(found: LoadedLog) -> None:
    """Remove the rest of a failed roll. The log end is that of the last remaining segment."""
    if len(found.segments) > 1 and found.segments[-1].size_bytes == 0:
        before = found.segments[-2]
        found.known_ends[before.base_offset] = end_of(before)
    remaining: list[Segment] = []
    for segment in found.segments:
        end = found.known_ends.get(remaining[-1].base_offset, 0) if remaining else 0
        if end <= segment.base_offset:
            remaining.append(segment)
        elif segment.size_bytes == 0:
            discard([segment])
        else:
            facts = {"next_offset": end, "next_base_offset": segment.base_offset}
            attempt = "cannot load the log, a segment overlaps the next segment"
            raise Corrupt(attempt, path=remaining[-1].path(names.LOG), **facts)
    if len(remaining) < len(found.segments):
        found.next_offset = found.known_ends[remaining[-1].base_offset]
    found.segments = remaining


def _trusted(place: _Place, at: int) -> Segment:
    """Return the trusted segment `at`, with its indexes treated as in the module's second table."""
    base, interval_bytes = place.bases[at], place.settings.index_interval_bytes
    files = place.files(base)
    if place.facts(base, names.TXN_INDEX) is not None and recovery.check_txn_index(files):
        recovery.rebuild_txn_index(files, place.snapshots.state_at(base, place.bases[:at]))
    if at + 1 < len(place.bases) and not _are_indexes_off(place, base):
        return found_segment(files, place.listed, Access(is_trusted=False, interval_bytes=interval_bytes))
    if index_files.check(files, place.listed[names.segment_file(base, names.LOG)].size_bytes):
        recovery.rebuild_indexes(files, interval_bytes=interval_bytes)
    return place.segment(base)


def _outgrew(place: _Place, base: int) -> bool:
    """Whether the last segment is left from a failed roll: empty, and `base` grew past its name."""
    bases, listed = place.bases, place.listed
    if bases[-2:-1] != [base] or listed[names.segment_file(bases[-1], names.LOG)].size_bytes:
        return False
    segment = found_segment(place.files(base), listed, SHARED)
    position = segment.entry_before(base + RELATIVE_OFFSET_MAX)[1]
    table = kernels.scan_batches(segment.read(position, segment.size_bytes), verify=False)
    return table.problem is not None or (len(table) > 0 and int(table.last_offsets[-1]) >= bases[-1])


def _trusted_producers(
    snapshots: ProducerFiles, bases: list[int], next_offset: int, *, had_snapshots: bool
) -> ProducerState:
    """Return the producers after a clean shutdown. Source: kafka `UnifiedLog.rebuildProducerState`."""
    if had_snapshots or not bases:
        return snapshots.state_at(next_offset, bases)
    producers = ProducerState()
    for offset in (*bases[-2:], next_offset):
        if offset > bases[0]:
            snapshots.write(offset, producers)
    return producers


def discard(segments: Sequence[Segment]) -> None:
    """Remove segments at once, newest first, so that a crash leaves a log without a hole."""
    for segment in reversed(segments):
        suffixes = segment.existing_suffixes()
        segment.retire()
        for suffix in suffixes:
            segment.files.storage.unlink(segment.path(suffix))
        segment.files.sync_names()


def _are_indexes_off(place: _Place, base: int) -> bool:
    found = [(place.facts(base, suffix), index.ENTRY_BYTES) for suffix, index in index_files.INDEXES.items()]
    return any(facts is None or facts.size_bytes % width for facts, width in found)
