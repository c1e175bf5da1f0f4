"""Check one segment completely: its log, its indexes, and the epochs and producers of its batches.

Read-only, and safe during writes: indexes are read before the log, and the log grows first. If a segment changes during
the check (swapped by the cleaner, expired by retention), the caller must check it again.

Memory: one chunk of the log, and about forty bytes per batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from local import kernels
from local.errors import AccessDenied, Corrupt, DiskFailed, NotFound
from local.format.batch_header import CONTROL, MAGIC
from local.format.columns import BatchTable
from local.index import txn_index
from local.index.txn_index import AbortedTransaction, SegmentTransactions, TransactionScan
from local.log.leader_epochs import EpochRange
from local.names import LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, segment_file
from local.records.batch import Marker, read_marker
from local.records.batch_runs import BatchRuns, Run
from local.segment.segment import RELATIVE_OFFSET_MAX
from local.storage import Storage, StorageFile, join
from local.verify.findings import DAMAGED, Finding, FindingCode, Severity, corrupt, info, unreadable, warning
from local.verify.index_checks import BatchPlaces, check_offset_index, check_time_index, places_of

BEGINS_BELOW = warning(
    "log.begins-below", "the segment begins below the offset of its file name; the next start renames it"
)
BEGINS_BELOW_INSIDE = warning(
    "log.begins-below-inside",
    "the segment begins below the offset of its file name; readers find its records under this name, and a recovery "
    "renames it",
)
TOO_WIDE = warning("log.too-wide", "the segment spans more than 2^31-1 offsets; the next start splits it")
_OVERLAPS_NEXT = corrupt("log.overlaps-next", "a batch overlaps the next segment")
_TORN_ACTIVE = info("log.torn-active", "the file ends inside a batch, recovery removes the partial batch")
_TORN = corrupt("log.torn", "the file ends inside a batch")
_INVALID_END = corrupt("log.invalid-end", "the bytes after the last batch are no batch")
_NO_INDEX = warning("index.missing", "the index is missing; the next start rebuilds it")
_TXN_TORN = warning("txn-index.torn", "the file ends inside an entry, the partial entry is ignored")
OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlace:
    """A segment, and the facts known before it is read. `next_base` is None for the last segment of a log.

    `may_be_torn`: its end may legally be unfinished, because a writer is active or has crashed. Offsets below
    `durable_to` were synced.
    """

    directory: str
    base_offset: int
    next_base: int | None = None
    may_be_torn: bool = False
    durable_to: int = 0

    def path(self, suffix: str) -> str:
        return join(self.directory, segment_file(self.base_offset, suffix))


@dataclass(slots=True, kw_only=True)
class SegmentReport:
    """The result of a check.

    - `epochs`: ranges of one leader epoch each, from its first batch to the end of its last batch.
    - `produced`: the batches with a producer; each table comes with the markers of its rows.
    - `is_read`: False if data is missing that other checks compare with.
    - `is_sparse`: offsets or records are missing between the batches, as after a cleaning.
    - `said`: the transactions that the batches contain.
    """

    findings: list[Finding] = field(default_factory=list)
    first_offset: int | None = None
    next_offset: int = 0
    epochs: list[EpochRange] = field(default_factory=list)
    produced: list[tuple[BatchTable, dict[int, Marker | None]]] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    is_read: bool = True
    is_sparse: bool = False
    said: SegmentTransactions | None = None


def check_segment(
    storage: Storage, place: SegmentPlace, *, deep: bool, interval_bytes: int, on_bytes: OnBytes = lambda count: None
) -> SegmentReport:
    """Check a segment by itself. Raises NotFound if its log does not exist."""
    report = SegmentReport(next_offset=place.base_offset)
    indexes = _read_indexes(storage, place, report)
    with closing(storage.open_reader(place.path(LOG))) as file:
        places = _walk(file, place, report, deep=deep, on_bytes=on_bytes)
    logs = len(report.findings)
    _check_indexes(place, indexes, places, report, interval_bytes)
    report.findings[logs:] = [_as_unflushed(place, each) for each in report.findings[logs:]]
    return report


def _walk(
    file: StorageFile, place: SegmentPlace, report: SegmentReport, *, deep: bool, on_bytes: OnBytes
) -> BatchPlaces:
    path, tables, scan = place.path(LOG), [], TransactionScan()
    walk = BatchRuns(file.read, file.size())
    for run in walk:
        tables.append((run.position, run.table))
        if run.damage is not None:
            is_tail = run.position + len(run.data) >= walk.size_bytes
            severity = _severity(place, run, is_tail=is_tail)
            report.findings.append(_of_batch(DAMAGED, path, run, 0, what=run.damage, severity=severity))
        if run.is_readable:
            _check_offsets(place, run, report)
            _collect(run, path, report)
            with suppress(Corrupt):  # the loop above has reported it
                scan.take(run.data, run.table)
            if deep:
                _check_records(run, path, report)
        on_bytes(len(run.data))
    if walk.problem is not None:
        report.findings.append(_end(file, walk, place, report))
    report.said = scan.found()
    return places_of(tables, walk.position)


def _check_offsets(place: SegmentPlace, run: Run, report: SegmentReport) -> None:
    table = run.table
    first, last = int(table.base_offsets[0]), int(table.last_offsets.max())
    if first < place.base_offset:
        code = BEGINS_BELOW if place.next_base is None else BEGINS_BELOW_INSIDE
        _warn_once(report, _of_batch(code, place.path(LOG), run, 0))
    if last - place.base_offset > RELATIVE_OFFSET_MAX:
        row = int((table.last_offsets - place.base_offset > RELATIVE_OFFSET_MAX).argmax())
        _warn_once(report, _of_batch(TOO_WIDE, place.path(LOG), run, row))
    if place.next_base is not None and last >= place.next_base:
        row = int((table.last_offsets >= place.next_base).argmax())
        what = _OVERLAPS_NEXT.message(next_base_offset=place.next_base)
        report.findings.append(_of_batch(_OVERLAPS_NEXT, place.path(LOG), run, row, what=what))
    expected = place.base_offset if report.first_offset is None else report.next_offset
    starts = np.concatenate(([expected], table.last_offsets[:-1] + 1))
    spans = table.last_offsets - table.base_offsets + 1
    is_whole = (table.base_offsets == starts) & ((table.record_counts == spans) | (table.magics < MAGIC))
    report.is_sparse = report.is_sparse or not bool(is_whole.all())
    if report.first_offset is None:
        report.first_offset = first
    report.next_offset = max(report.next_offset, last + 1)


def _warn_once(report: SegmentReport, finding: Finding) -> None:
    if all(each.code != finding.code for each in report.findings):
        report.findings.append(finding)


def _collect(run: Run, path: str, report: SegmentReport) -> None:
    """Collect the ranges of leader epochs and the batches of producers."""
    table = run.table
    _collect_epochs(table, report)
    has_producer = table.producer_ids >= 0
    rows = np.flatnonzero(has_producer)
    if not len(rows):
        return
    markers: dict[int, Marker | None] = {}
    for at, row in enumerate(rows.tolist()):
        if table.attributes[row] & CONTROL:
            try:
                markers[at] = read_marker(run.data, int(table.positions[row]))
            except Corrupt as error:
                markers[at] = None
                report.findings.append(_of_batch(DAMAGED, path, run, row, what=error.attempt))
    report.produced.append((table.select(has_producer), markers))


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


def _check_records(run: Run, path: str, report: SegmentReport) -> None:
    """Decode every record of the run to the last byte; after an error, decode batch by batch."""
    try:
        for _ in kernels.decode_in_steps(run.data, verify=False, include_control=True, table=run.table):
            pass
    except Corrupt:
        for row in range(len(run.table)):
            one = run.table.select(slice(row, row + 1))
            try:
                kernels.decode_columns(run.data, verify=False, include_control=True, table=one)
            except Corrupt as error:
                report.findings.append(_of_batch(DAMAGED, path, run, row, what=error.attempt))


def _end(file: StorageFile, walk: BatchRuns, place: SegmentPlace, report: SegmentReport) -> Finding:
    """The finding for the bytes after the last batch.

    Zeros and torn bytes are legal only at the end of an active log.
    """
    path, at, remaining = place.path(LOG), walk.position, walk.size_bytes - walk.position
    is_unflushed = place.next_base is None and report.next_offset >= place.durable_to
    if is_unflushed and place.may_be_torn:
        return _TORN_ACTIVE.found(path, at=at, bytes=remaining)
    if walk.is_torn:
        severity = Severity.WARNING if is_unflushed else Severity.CORRUPT
        return _TORN.found(path, severity=severity, at=at, bytes=remaining)
    return _INVALID_END.found(path, at=at, what=f"{walk.problem}: bytes={remaining}")


def _check_indexes(
    place: SegmentPlace,
    indexes: dict[str, bytes | None],
    places: BatchPlaces,
    report: SegmentReport,
    interval_bytes: int,
) -> None:
    for suffix, data in indexes.items():
        path = place.path(suffix)
        if data is None:
            if suffix != TXN_INDEX:
                severity = Severity.INFO if place.may_be_torn else Severity.WARNING
                report.findings.append(_NO_INDEX.found(path, severity=severity))
        elif suffix == OFFSET_INDEX:
            report.findings += check_offset_index(
                data, place.base_offset, places, path=path, interval_bytes=interval_bytes
            )
        elif suffix == TIME_INDEX:
            report.findings += check_time_index(
                data, place.base_offset, places, path=path, is_active=place.next_base is None and place.may_be_torn
            )
        else:
            _check_aborted(data, place, report)


def _check_aborted(data: bytes, place: SegmentPlace, report: SegmentReport) -> None:
    path = place.path(TXN_INDEX)
    try:
        txn_index.check(data, place.base_offset, path=path)
        report.aborted = txn_index.entries(data, path=path)
    except Corrupt as error:
        at = error.facts.get("at")
        report.findings.append(DAMAGED.found(path, what=error.attempt, at=at if isinstance(at, int) else None))
    if torn := len(data) % txn_index.ENTRY_BYTES:
        report.findings.append(_TXN_TORN.found(path, at=len(data) - torn, bytes=torn))


def _as_unflushed(place: SegmentPlace, finding: Finding) -> Finding:
    """Reduce index findings about unsynced records to INFO.

    The next start rebuilds these entries from the log.
    """
    is_flushed = finding.offsets is not None and finding.offsets[0] < place.durable_to
    if place.next_base is not None or not place.may_be_torn or is_flushed:
        return finding
    return replace(finding, severity=Severity.INFO)


def _severity(place: SegmentPlace, run: Run, *, is_tail: bool) -> Severity:
    """The severity of a damaged batch.

    Unsynced bytes may be damaged after a crash; recovery truncates the log there.
    """
    is_unflushed = place.next_base is None and place.may_be_torn
    if not is_unflushed or int(run.table.base_offsets[0]) < place.durable_to:
        return Severity.CORRUPT
    return Severity.INFO if is_tail else Severity.WARNING


def _of_batch(
    code: FindingCode,
    path: str,
    run: Run,
    row: int,
    *,
    what: str | None = None,
    severity: Severity | None = None,
) -> Finding:
    header = run.table.row(row)
    offsets = header.base_offset, max(header.next_offset, header.base_offset)
    at = run.position + int(run.table.positions[row])
    return code.found(path, what=what, severity=severity, at=at, offsets=offsets)


def _read_indexes(storage: Storage, place: SegmentPlace, report: SegmentReport) -> dict[str, bytes | None]:
    """The indexes by suffix; None for a missing index. Unreadable indexes are left out."""
    found: dict[str, bytes | None] = {}
    for suffix in (OFFSET_INDEX, TIME_INDEX, TXN_INDEX):
        try:
            found[suffix] = storage.read(place.path(suffix))
        except NotFound:
            found[suffix] = None
        except (DiskFailed, AccessDenied) as error:
            report.findings.append(unreadable(error, place.path(suffix)))
            report.is_read = report.is_read and suffix != TXN_INDEX
    return found
