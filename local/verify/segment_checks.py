"""Check one segment completely: its log, its indexes, and the epochs and producers of its batches.

The checks are read-only, and safe during writes: indexes are read before the log, and the log grows first. Memory: one
chunk of the log, and about seventy bytes per batch.

| file | an entry is right if |
|---|---|
| ``.index`` | its position is the start of a batch, and its offset is the last offset of that batch |
| ``.timeindex`` | its offset is the last offset of a batch, and its timestamp is the largest up to there |

Brokers up to Kafka 4.0 write one entry per append, which may be several batches: the position of the first batch and
the last offset of the last. That is legal too (INFO). A preallocated index of an active segment ends in zeros, also
after a crash. Source: kafka `DumpLogSegments`, `OffsetIndex`, `TimeIndex`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from local import kernels, names
from local.errors import AccessDenied, Corrupt, DiskFailed, NotFound
from local.format.batch_header import CONTROL, MAGIC
from local.format.columns import BatchTable, Flags, Longs, joined_tables
from local.index import offset_index, time_index, txn_index
from local.index.txn_index import AbortedTransaction, CarriedTransactions, SegmentTransactions, TransactionScan
from local.log import recovery
from local.log.leader_epochs import EpochRange
from local.log.producer_state import ProducerEntry, ProducerState, decode_snapshot
from local.names import OFFSET_INDEX, TIME_INDEX, parse_segment_file, segment_file
from local.records.batch import Marker, read_marker
from local.records.batch_runs import BatchRuns, Run
from local.segment.segment import RELATIVE_OFFSET_MAX
from local.storage import SegmentFiles, Storage, StorageFile, join, parent
from local.verify.findings import CODES, Finding, Severity, damaged, finding, message, unreadable

OnBytes = Callable[[int], None]
_ONCE = ("log.begins-below", "log.begins-below-inside", "log.too-wide")
FINDINGS_MAX = 5  # of one kind and file; further findings are only counted
INTERVAL_BYTES = offset_index.INTERVAL_BYTES
# Reopening a log resets the counter of bytes since the last entry, so legal gaps may be long.
_GAP_REPORTED, _GAP_ODD = 4, 64


def check_offset_index(
    data: bytes, base_offset: int, batches: BatchTable, *, path: str, interval_bytes: int = INTERVAL_BYTES
) -> list[Finding]:
    """Check an ``.index`` against all batches of its segment."""
    found, whole = _whole(data, offset_index.ENTRY_BYTES, path)
    relative, positions = offset_index.columns(whole)
    offsets = base_offset + relative
    bad = relative < 0
    bad[1:] |= (np.diff(offsets) <= 0) | (np.diff(positions) <= 0)
    report = partial(_findings_of_entries, entry_bytes=offset_index.ENTRY_BYTES, offsets=offsets, path=path)
    found += report("offset-index.disorder", bad)
    row = np.searchsorted(batches.positions, positions)
    is_start = _at(batches.positions, row, -1) == positions
    found += report("offset-index.position", ~is_start & ~bad)
    own = _at(batches.last_offsets, row, -1)
    following = np.append(positions[1:], batches.valid_bytes)
    append_row = np.searchsorted(batches.last_offsets, offsets)
    is_append = (_at(batches.last_offsets, append_row, -1) == offsets) & (append_row > row)
    is_append &= _at(batches.positions, append_row, batches.valid_bytes) < following
    checked = is_start & ~bad
    found += report("offset-index.offset", checked & (own != offsets) & ~is_append, expected=own)
    if (checked & (own != offsets) & is_append).any():
        found.append(finding("offset-index.appends", path))
    return [*found, *_gaps(positions, batches, path, interval_bytes)]


def check_time_index(
    data: bytes, base_offset: int, batches: BatchTable, *, path: str, is_active: bool = False
) -> list[Finding]:
    """Check a ``.timeindex``. Returns no findings if it is sound. An active index may lack its last entry."""
    found, whole = _whole(data, time_index.ENTRY_BYTES, path)
    timestamps, relative = time_index.columns(whole)
    offsets = base_offset + relative
    bad = relative < 0
    bad[1:] |= (np.diff(timestamps) <= 0) | (np.diff(offsets) < 0)
    report = partial(_findings_of_entries, entry_bytes=time_index.ENTRY_BYTES, offsets=offsets, path=path)
    found += report("time-index.disorder", bad)
    row = np.searchsorted(batches.last_offsets, offsets)
    is_last = _at(batches.last_offsets, row, -1) == offsets
    found += report("time-index.offset", ~is_last & ~bad)
    so_far = np.maximum.accumulate(batches.max_timestamps) if len(batches) else batches.max_timestamps
    largest = _at(so_far, row, -1)
    checked = is_last & ~bad
    wrong = checked & (largest != timestamps)
    found += report("time-index.timestamp", wrong, expected=largest)
    if (checked & ~wrong & (_at(batches.max_timestamps, row, -1) != timestamps)).any():
        found.append(finding("time-index.appends", path))
    last = int(so_far[-1]) if len(so_far) else 0
    if not is_active and last > 0 and (not len(timestamps) or timestamps[-1] < last):
        found.append(finding("time-index.incomplete", path, at=len(whole), largest_timestamp=last))
    return found


def without_zeros(data: bytes, entry_bytes: int) -> bytes:
    """The entries before the zeros at the end of the file; none if the file has only zeros."""
    end = len(data.rstrip(b"\0"))
    return data[: -(-end // entry_bytes) * entry_bytes]


def _whole(data: bytes, entry_bytes: int, path: str) -> tuple[list[Finding], bytes]:
    found: list[Finding] = []
    if len(data) % entry_bytes:
        at = len(data) - len(data) % entry_bytes
        found.append(finding("index.size", path, at=at, entry_bytes=entry_bytes))
        data = data[:at]
    used = without_zeros(data, entry_bytes)
    if len(used) < len(data):
        found.append(finding("index.empty-slots", path, at=len(used), slots=(len(data) - len(used)) // entry_bytes))
    return found, used


def _findings_of_entries(
    code: str, rows: Flags, *, entry_bytes: int, offsets: Longs, path: str, expected: Longs | None = None
) -> Iterator[Finding]:
    """One finding per marked entry up to FINDINGS_MAX, then one finding with the number of the rest."""
    marked = np.flatnonzero(rows).tolist()
    for at in marked[:FINDINGS_MAX]:
        offset = int(offsets[at])
        what = None if expected is None else message(code, expected=int(expected[at]))
        offsets_of = (offset, offset + 1) if offset >= 0 else None
        yield finding(code, path, what=what, at=at * entry_bytes, offsets=offsets_of)
    if len(marked) > FINDINGS_MAX:
        yield finding(code, path, what=f"{message(code)}: {len(marked) - FINDINGS_MAX} more")


def _gaps(positions: Longs, batches: BatchTable, path: str, interval_bytes: int) -> Iterator[Finding]:
    if not len(batches):
        return
    largest_batch = int(np.diff(batches.positions, append=batches.valid_bytes).max())
    gaps = np.diff(positions, prepend=0, append=batches.valid_bytes)
    gap = int(gaps.max()) - 2 * largest_batch
    if gap > _GAP_REPORTED * interval_bytes:
        severity = Severity.WARNING if gap > _GAP_ODD * interval_bytes else Severity.INFO
        at = int(gaps.argmax()) * offset_index.ENTRY_BYTES
        yield finding(
            "offset-index.gap", path, severity=severity, at=at, bytes=int(gaps.max()), interval=interval_bytes
        )


def _at(values: Longs, rows: NDArray[np.intp], missing: int) -> Longs:
    return np.append(values, missing)[np.minimum(rows, len(values))]


def fix_indexes(storage: Storage, findings: Sequence[Finding], *, interval_of: Callable[[str], int]) -> list[str]:
    """Rebuild the indexes that the findings name; return the paths of their logs, which are never written.

    Order of effects: lock each log directory; then write and sync all indexes of one segment after the other
    (`recovery.rebuild_indexes`). A crash leaves some indexes new and the others unchanged. A log with damaged headers
    stays unchanged. Raises Conflict while a manager holds a log directory.
    """
    fixed = []
    doomed = sorted({place for each in findings if (place := _place_of(each)) is not None})
    doomed = [(directory, base) for directory, base in doomed if storage.exists(_log(directory, base))]
    with ExitStack() as stack:
        for root in sorted({parent(directory) for directory, _ in doomed}):
            stack.enter_context(closing(storage.lock(join(root, names.LOCK))))
        for directory, base in doomed:
            with suppress(Corrupt):
                recovery.rebuild_indexes(SegmentFiles(storage, directory, base), interval_bytes=interval_of(directory))
                fixed.append(_log(directory, base))
    return fixed


def _place_of(finding: Finding) -> tuple[str, int] | None:
    parsed = parse_segment_file(finding.where.rpartition("/")[2])
    if parsed is None or parsed[1] not in (OFFSET_INDEX, TIME_INDEX) or finding.severity is Severity.INFO:
        return None
    return parent(finding.where), parsed[0]


def _log(directory: str, base: int) -> str:
    return join(directory, names.segment_file(base, names.LOG))


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlace:
    """A segment; `next_base` is None for the last one of a log. Offsets below `durable_to` were synced."""

    directory: str
    base_offset: int
    next_base: int | None = None
    may_be_torn: bool = False
    durable_to: int = 0

    @property
    def may_grow(self) -> bool:
        """Whether a writer may be appending to it, or a crash has ended the appends."""
        return self.next_base is None and self.may_be_torn

    def path(self, suffix: str) -> str:
        return join(self.directory, segment_file(self.base_offset, suffix))


@dataclass(slots=True, kw_only=True)
class SegmentReport:
    """The result of a check."""

    place: SegmentPlace
    next_offset: int
    findings: list[Finding] = field(default_factory=list)
    first_offset: int | None = None
    epochs: list[EpochRange] = field(default_factory=list)  # each from its first batch to the end of its last batch
    # The batches with a producer; each table comes with the markers of its rows.
    produced: list[tuple[BatchTable, dict[int, Marker | None]]] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    is_read: bool = True  # False: data is missing that other checks compare with
    is_sparse: bool = False  # offsets or records are missing between the batches, as after a cleaning
    said: SegmentTransactions = field(default_factory=TransactionScan().found)

    def add(self, code: str, run: Run, row: int, *, what: str | None = None, severity: Severity | None = None) -> None:
        """Add a finding about the batch of a row; a code of `_ONCE` only once."""
        if code in _ONCE and any(each.code == code for each in self.findings):
            return
        header = run.table.row(row)
        offsets = header.base_offset, max(header.next_offset, header.base_offset)
        at = run.position + int(run.table.positions[row])
        found = finding(code, self.place.path(names.LOG), what=what, severity=severity, at=at, offsets=offsets)
        self.findings.append(found)


def check_segment(
    storage: Storage, place: SegmentPlace, *, deep: bool, interval_bytes: int, on_bytes: OnBytes = lambda count: None
) -> SegmentReport:
    """Check a segment by itself. Raises NotFound if its log does not exist."""
    report = SegmentReport(place=place, next_offset=place.base_offset)
    indexes = _read_indexes(storage, report)
    with closing(storage.open_reader(place.path(names.LOG))) as file:
        batches = _walk(file, report, deep=deep, on_bytes=on_bytes)
    for each in list(_of_indexes(indexes, batches, report, interval_bytes)):
        is_flushed = each.offsets is not None and each.offsets[0] < place.durable_to
        is_rebuilt = place.may_grow and not is_flushed  # the next start builds the entries of unsynced records again
        report.findings.append(replace(each, severity=Severity.INFO) if is_rebuilt else each)
    return report


def _walk(file: StorageFile, report: SegmentReport, *, deep: bool, on_bytes: OnBytes) -> BatchTable:
    tables, scan = [], TransactionScan()
    walk = BatchRuns(file.read, file.size())
    for run in walk:
        tables.append(run.table.moved(run.position))
        if run.damage is not None:
            is_tail = run.position + len(run.data) >= walk.size_bytes
            report.add("bytes.damaged", run, 0, what=run.damage, severity=_severity(report.place, run, is_tail=is_tail))
        if run.is_readable:
            _check_offsets(run, report)
            _collect_epochs(run.table, report)
            _collect_produced(run, report)
            with suppress(Corrupt):  # the loop above has reported it
                scan.take(run.data, run.table)
            if deep:
                _check_records(run, report)
        on_bytes(len(run.data))
    if walk.problem is not None:
        report.findings.append(_end(walk, report))
    report.said = scan.found()
    return joined_tables(tables)


def _check_offsets(run: Run, report: SegmentReport) -> None:
    table, place = run.table, report.place
    first, last = int(table.base_offsets[0]), int(table.last_offsets.max())
    if first < place.base_offset:
        report.add("log.begins-below" if place.next_base is None else "log.begins-below-inside", run, 0)
    if last - place.base_offset > RELATIVE_OFFSET_MAX:
        report.add("log.too-wide", run, int((table.last_offsets - place.base_offset > RELATIVE_OFFSET_MAX).argmax()))
    if place.next_base is not None and last >= place.next_base:
        row = int((table.last_offsets >= place.next_base).argmax())
        report.add("log.overlaps-next", run, row, what=message("log.overlaps-next", next_base_offset=place.next_base))
    expected = place.base_offset if report.first_offset is None else report.next_offset
    starts = np.concatenate(([expected], table.last_offsets[:-1] + 1))
    spans = table.last_offsets - table.base_offsets + 1
    is_whole = (table.base_offsets == starts) & ((table.record_counts == spans) | (table.magics < MAGIC))
    report.is_sparse = report.is_sparse or not bool(is_whole.all())
    if report.first_offset is None:
        report.first_offset = first
    report.next_offset = max(report.next_offset, last + 1)


def _collect_produced(run: Run, report: SegmentReport) -> None:
    has_producer = run.table.producer_ids >= 0
    markers: dict[int, Marker | None] = {}
    for at, row in enumerate(np.flatnonzero(has_producer).tolist()):
        if run.table.attributes[row] & CONTROL:
            try:
                markers[at] = read_marker(run.data, int(run.table.positions[row]))
            except Corrupt as error:
                markers[at] = None
                report.add("bytes.damaged", run, row, what=error.attempt)
    if has_producer.any():
        report.produced.append((run.table.select(has_producer), markers))


def _collect_epochs(table: BatchTable, report: SegmentReport) -> None:
    changes = np.flatnonzero(np.diff(table.leader_epochs)) + 1
    for start, stop in pairwise([0, *changes.tolist(), len(table)]):
        epoch = int(table.leader_epochs[start])
        found = EpochRange(
            epoch=epoch if epoch >= 0 else None,
            base_offset=int(table.base_offsets[start]),
            next_offset=int(table.last_offsets[stop - 1]) + 1,
        )
        if report.epochs and report.epochs[-1].epoch == found.epoch:
            report.epochs[-1] = report.epochs[-1]._replace(next_offset=found.next_offset)
        else:
            report.epochs.append(found)


def _check_records(run: Run, report: SegmentReport) -> None:
    try:
        for _ in kernels.decode_in_steps(run.data, verify=False, include_control=True, table=run.table):
            pass
    except Corrupt:
        for row in range(len(run.table)):
            one = run.table.select(slice(row, row + 1))
            try:
                kernels.decode_columns(run.data, verify=False, include_control=True, table=one)
            except Corrupt as error:
                report.add("bytes.damaged", run, row, what=error.attempt)


def _end(walk: BatchRuns, report: SegmentReport) -> Finding:
    """The finding for the bytes after the last batch: legal only at the end of an active log."""
    place, at, remaining = report.place, walk.position, walk.size_bytes - walk.position
    path, is_unflushed = place.path(names.LOG), place.next_base is None and report.next_offset >= place.durable_to
    if is_unflushed and place.may_be_torn:
        return finding("log.torn-active", path, at=at, bytes=remaining)
    if walk.is_torn:
        severity = Severity.WARNING if is_unflushed else Severity.CORRUPT
        return finding("log.torn", path, severity=severity, at=at, bytes=remaining)
    return finding("log.invalid-end", path, at=at, what=f"{walk.problem}: bytes={remaining}")


def _severity(place: SegmentPlace, run: Run, *, is_tail: bool) -> Severity:
    """The severity of a damaged batch. Unsynced bytes may be damaged after a crash: recovery cuts them."""
    if not place.may_grow or int(run.table.base_offsets[0]) < place.durable_to:
        return Severity.CORRUPT
    return Severity.INFO if is_tail else Severity.WARNING


def _read_indexes(storage: Storage, report: SegmentReport) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for suffix in (names.OFFSET_INDEX, names.TIME_INDEX, names.TXN_INDEX):
        path = report.place.path(suffix)
        try:
            found[suffix] = storage.read(path)
        except NotFound:
            found[suffix] = None
        except (DiskFailed, AccessDenied) as error:
            report.findings.append(unreadable(error, path))
            report.is_read = report.is_read and suffix != names.TXN_INDEX
    return found


def _of_indexes(
    indexes: dict[str, bytes | None], batches: BatchTable, report: SegmentReport, interval_bytes: int
) -> Iterator[Finding]:
    place = report.place
    for suffix, data in indexes.items():
        path = place.path(suffix)
        if data is None:
            if suffix != names.TXN_INDEX:
                yield finding("index.missing", path, severity=Severity.INFO if place.may_be_torn else Severity.WARNING)
        elif suffix == names.OFFSET_INDEX:
            yield from check_offset_index(data, place.base_offset, batches, path=path, interval_bytes=interval_bytes)
        elif suffix == names.TIME_INDEX:
            yield from check_time_index(data, place.base_offset, batches, path=path, is_active=place.may_grow)
        else:
            try:
                txn_index.check(data, place.base_offset, path=path)
                report.aborted = txn_index.entries(data, path=path)
            except Corrupt as error:
                at = error.facts.get("at")
                yield finding("bytes.damaged", path, what=error.attempt, at=at if isinstance(at, int) else None)
            if torn := len(data) % txn_index.ENTRY_BYTES:
                yield finding("txn-index.torn", path, at=len(data) - torn, bytes=torn)


def check_producers(
    storage: Storage, directory: str, there: Sequence[str], reports: Sequence[SegmentReport]
) -> Iterator[Finding]:
    snapshots: dict[int, list[ProducerEntry]] = {}
    for name in there:
        parsed = parse_segment_file(name)
        if parsed is None or parsed[1] != names.PRODUCER_SNAPSHOT:
            continue
        path = join(directory, name)
        try:
            snapshots[parsed[0]] = decode_snapshot(storage.read(path), path=path)
        except Corrupt as error:
            yield damaged(error, path)
        except NotFound:
            continue
    if not reports:
        return
    first, end = reports[0].place.base_offset, reports[-1].next_offset
    state = ProducerState(snapshots.get(first, ()))
    is_whole = first == 0 or first in snapshots
    is_cleaned, before = False, first
    opened = {e.producer_id: e.transaction_first_offset for e in state.entries() if e.transaction_first_offset >= 0}
    carried = CarriedTransactions(opened)
    for report in reports:
        base = report.place.base_offset
        is_cleaned = is_cleaned or base != before
        if base in snapshots:
            yield from _compare(directory, base, snapshots[base], state, is_whole, is_cleaned=is_cleaned)
        is_cleaned, before = is_cleaned or report.is_sparse, report.next_offset
        expected = _replay(state, report)
        path = report.place.path(names.TXN_INDEX)
        if not any(each.where == path and each.severity is Severity.CORRUPT for each in report.findings):
            # An entry is written after its marker, and read here before it.
            severity = Severity.INFO if report.place.may_grow else Severity.CORRUPT
            if is_cleaned:
                yield from _check_cleaned(path, severity, report, carried)
            else:
                yield from _compare_aborted(path, severity, report, expected, known_from=None if is_whole else first)
        carried.add(report.said)
    for offset in sorted(snapshots):
        if offset > end:
            yield finding(
                "snapshot.past-end", join(directory, segment_file(offset, names.PRODUCER_SNAPSHOT)), next_offset=end
            )
    if end in snapshots and end != reports[-1].place.base_offset:
        yield from _compare(directory, end, snapshots[end], state, is_whole, is_cleaned=is_cleaned)


def _check_cleaned(
    path: str, severity: Severity, report: SegmentReport, carried: CarriedTransactions
) -> Iterator[Finding]:
    problem = report.said.problem(report.aborted) or carried.problem(report.aborted, report.said)
    if problem is not None:
        offsets = report.place.base_offset, report.next_offset
        yield finding("txn-index.cleaned", path, what=problem, severity=severity, offsets=offsets)


def _replay(state: ProducerState, report: SegmentReport) -> set[tuple[int, int, int]]:
    aborted = set()
    for table, markers in report.produced:
        for row in range(len(table)):
            header = table.row(row)
            found = state.update(header, header.base_offset, markers.get(row))
            if found is not None:
                aborted.add((found.producer_id, found.first_offset, found.last_offset))
    return aborted


def _compare_aborted(
    path: str, severity: Severity, report: SegmentReport, expected: set[tuple[int, int, int]], *, known_from: int | None
) -> Iterator[Finding]:
    """Compare the index with the replay, which does not know transactions that began below `known_from`."""
    found = {(each.producer_id, each.first_offset, each.last_offset) for each in report.aborted}
    for producer, begin, last in sorted(expected - found):
        yield finding("txn-index.missing", path, severity=severity, offsets=(begin, last + 1), producer_id=producer)
    for producer, begin, last in sorted(found - expected):
        if known_from is None or begin >= known_from:
            yield finding("txn-index.unknown", path, offsets=(begin, last + 1), producer_id=producer)


def _compare(
    directory: str,
    offset: int,
    entries: Sequence[ProducerEntry],
    state: ProducerState,
    is_whole: bool,
    *,
    is_cleaned: bool,
) -> Iterator[Finding]:
    """Compare a snapshot with the replayed state; in a cleaned log only whether the snapshot lacks a batch."""
    path = join(directory, segment_file(offset, names.PRODUCER_SNAPSHOT))
    replayed = {each.producer_id: each for each in state.entries()}
    for entry in entries:
        known = replayed.get(entry.producer_id)
        if known is None:
            if is_whole and not is_cleaned:
                yield finding("snapshot.unknown-producer", path, producer_id=entry.producer_id)
            continue
        if entry.producer_epoch != known.producer_epoch:
            is_behind = entry.producer_epoch < known.producer_epoch
        else:
            is_behind = 0 <= entry.last_offset < known.last_offset
        if is_cleaned and not is_behind:
            continue
        for field_name in ("producer_epoch", "last_sequence", "last_offset", "transaction_first_offset"):
            snapshot, log = getattr(entry, field_name), getattr(known, field_name)
            if snapshot != log:
                facts = f"producer_id={entry.producer_id} {field_name}={snapshot} in_the_log={log}"
                yield finding("snapshot.stale", path, what=f"{CODES['snapshot.stale'].text}: {facts}")
                break
    if is_cleaned:
        return
    missing = replayed.keys() - {entry.producer_id for entry in entries}
    open_ones = [each for each in sorted(missing) if replayed[each].transaction_first_offset >= 0]
    if open_ones:
        yield finding("snapshot.incomplete", path, producer_ids=open_ones[:5])
