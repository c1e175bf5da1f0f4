"""Check one segment completely: its log, its indexes, and the epochs and producers of its batches.

Read-only, and safe during writes: indexes are read before the log, and the log grows first. Memory: one chunk of the
log, about seventy bytes per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from local import kernels, names
from local.errors import AccessDenied, Corrupt, DiskFailed, NotFound
from local.format.batch_header import CONTROL, MAGIC
from local.format.columns import BatchTable, joined_tables
from local.index import txn_index
from local.index.txn_index import AbortedTransaction, SegmentTransactions, TransactionScan, carried_problem
from local.log.leader_epochs import EpochRange
from local.log.producer_state import ProducerEntry, ProducerState, decode_snapshot
from local.names import LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, parse_segment_file, segment_file
from local.records.batch import Marker, read_marker
from local.records.batch_runs import BatchRuns, Run
from local.segment.segment import RELATIVE_OFFSET_MAX
from local.storage import Storage, StorageFile, join
from local.verify.findings import DAMAGED, Finding, FindingCode, Severity, corrupt, damaged, info, unreadable, warning
from local.verify.index_checks import check_offset_index, check_time_index

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
_SNAPSHOT_PAST_END = warning("snapshot.past-end", "the snapshot is past the end of the log")
_UNKNOWN_PRODUCER = warning("snapshot.unknown-producer", "the snapshot names a producer that is not in the log")
_STALE = warning("snapshot.stale", "the snapshot is stale")
_LACKS_OPEN = warning("snapshot.incomplete", "the snapshot lacks producers with an open transaction")
_WRONG_ABORTED = corrupt("txn-index.cleaned", "an entry exposes an aborted record, or hides another record")
_LACKS_ABORTED = corrupt("txn-index.missing", "the index lacks an aborted transaction")
_NOT_ABORTED = warning("txn-index.unknown", "the log has no aborted transaction for this entry")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlace:
    """A segment, and the facts known before it is read. `next_base` is None for the last segment of a log.

    `may_be_torn`: its end may be unfinished. Offsets below `durable_to` were synced.
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
        batches = _walk(file, place, report, deep=deep, on_bytes=on_bytes)
    logs = len(report.findings)
    _check_indexes(place, indexes, batches, report, interval_bytes)
    report.findings[logs:] = [_as_unflushed(place, each) for each in report.findings[logs:]]
    return report


def _walk(
    file: StorageFile, place: SegmentPlace, report: SegmentReport, *, deep: bool, on_bytes: OnBytes
) -> BatchTable:
    path, tables, scan = place.path(LOG), [], TransactionScan()
    walk = BatchRuns(file.read, file.size())
    for run in walk:
        tables.append(run.table.moved(run.position))
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
    return joined_tables(tables)


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
    """The finding for the bytes after the last batch: legal only at the end of an active log."""
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
    batches: BatchTable,
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
                data, place.base_offset, batches, path=path, interval_bytes=interval_bytes
            )
        elif suffix == TIME_INDEX:
            report.findings += check_time_index(
                data, place.base_offset, batches, path=path, is_active=place.next_base is None and place.may_be_torn
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
    """Reduce index findings about unsynced records to INFO: the next start rebuilds these entries."""
    is_flushed = finding.offsets is not None and finding.offsets[0] < place.durable_to
    if place.next_base is not None or not place.may_be_torn or is_flushed:
        return finding
    return replace(finding, severity=Severity.INFO)


def _severity(place: SegmentPlace, run: Run, *, is_tail: bool) -> Severity:
    """The severity of a damaged batch. Unsynced bytes may be damaged after a crash: recovery cuts them."""
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


# -- producers: snapshots and transaction indexes, compared with a replay of all batches


def check_producers(
    storage: Storage,
    directory: str,
    there: Sequence[str],
    reports: Sequence[tuple[SegmentPlace, SegmentReport]],
) -> Iterator[Finding]:
    """Compare aborted transactions and snapshots with a replay of every batch that has a producer."""
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
    first, end = reports[0][0].base_offset, reports[-1][1].next_offset
    state = ProducerState(snapshots.get(first, ()))
    is_whole = first == 0 or first in snapshots
    is_cleaned, before = False, first
    carried = _Carried(open_from={e.producer_id: e.transaction_first_offset for e in state.entries() if _is_open(e)})
    for place, report in reports:
        is_cleaned = is_cleaned or place.base_offset != before
        if place.base_offset in snapshots:
            known = snapshots[place.base_offset]
            yield from _compare(directory, place.base_offset, known, state, is_whole, is_cleaned=is_cleaned)
        is_cleaned, before = is_cleaned or report.is_sparse, report.next_offset
        expected = _replay(state, report)
        if is_cleaned:
            yield from _check_cleaned(place, report, carried)
        else:
            yield from _compare_aborted(place, report, expected, first, is_whole=is_whole)
        carried.add(report)
    for offset in sorted(snapshots):
        path = join(directory, segment_file(offset, names.PRODUCER_SNAPSHOT))
        if offset > end:
            yield _SNAPSHOT_PAST_END.found(path, next_offset=end)
    if end in snapshots and end != reports[-1][0].base_offset:
        yield from _compare(directory, end, snapshots[end], state, is_whole, is_cleaned=is_cleaned)


def _is_open(entry: ProducerEntry) -> bool:
    return entry.transaction_first_offset >= 0


@dataclass(slots=True, kw_only=True)
class _Carried:
    """Transactions of the segments so far, by producer id: open first offsets, offsets of last markers."""

    open_from: dict[int, int]
    ended: dict[int, int] = field(default_factory=dict)

    def add(self, report: SegmentReport) -> None:
        if report.said is not None:
            for producer in report.said.last_ended:
                self.open_from.pop(producer, None)
            for producer, first in report.said.open_from.items():
                self.open_from.setdefault(producer, first)
            self.ended.update(report.said.last_ended)


def _check_cleaned(place: SegmentPlace, report: SegmentReport, carried: _Carried) -> Iterator[Finding]:
    """Check the transaction index of a cleaned segment by its batches (`local.index.txn_index`)."""
    path = place.path(names.TXN_INDEX)
    if report.said is None or any(e.where == path and e.severity is Severity.CORRUPT for e in report.findings):
        return
    problem = report.said.problem(report.aborted)
    problem = problem or carried_problem(report.aborted, report.said, carried.open_from, carried.ended)
    if problem is not None:
        # An entry is written after its marker, and read here before it.
        severity = Severity.INFO if place.next_base is None and place.may_be_torn else Severity.CORRUPT
        offsets = place.base_offset, report.next_offset
        yield _WRONG_ABORTED.found(path, what=problem, severity=severity, offsets=offsets)


def _is_behind(entry: ProducerEntry, known: ProducerEntry) -> bool:
    if entry.producer_epoch != known.producer_epoch:
        return entry.producer_epoch < known.producer_epoch
    return 0 <= entry.last_offset < known.last_offset


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
    place: SegmentPlace, report: SegmentReport, expected: set[tuple[int, int, int]], first: int, *, is_whole: bool
) -> Iterator[Finding]:
    path = place.path(names.TXN_INDEX)
    found = {(each.producer_id, each.first_offset, each.last_offset) for each in report.aborted}
    if any(each.where == path and each.severity is Severity.CORRUPT for each in report.findings):
        return
    # An entry is written after its marker, and read here before it.
    severity = Severity.INFO if place.next_base is None and place.may_be_torn else Severity.CORRUPT
    for producer, begin, last in sorted(expected - found):
        yield _LACKS_ABORTED.found(path, severity=severity, offsets=(begin, last + 1), producer_id=producer)
    for producer, begin, last in sorted(found - expected):
        if begin >= first or is_whole:
            yield _NOT_ABORTED.found(path, offsets=(begin, last + 1), producer_id=producer)


def _compare(
    directory: str,
    offset: int,
    entries: Sequence[ProducerEntry],
    state: ProducerState,
    is_whole: bool,
    *,
    is_cleaned: bool,
) -> Iterator[Finding]:
    """Compare a snapshot with the replayed state; in a cleaned log only whether it lacks a batch."""
    path = join(directory, segment_file(offset, names.PRODUCER_SNAPSHOT))
    replayed = {each.producer_id: each for each in state.entries()}
    for entry in entries:
        known = replayed.get(entry.producer_id)
        if is_cleaned and (known is None or not _is_behind(entry, known)):
            continue
        if known is None:
            if is_whole:
                yield _UNKNOWN_PRODUCER.found(path, producer_id=entry.producer_id)
            continue
        for field_name in ("producer_epoch", "last_sequence", "last_offset", "transaction_first_offset"):
            snapshot, log = getattr(entry, field_name), getattr(known, field_name)
            if snapshot != log:
                facts = f"producer_id={entry.producer_id} {field_name}={snapshot} in_the_log={log}"
                yield _STALE.found(path, what=f"{_STALE.text}: {facts}")
                break
    if is_cleaned:
        return
    missing = replayed.keys() - {entry.producer_id for entry in entries}
    open_ones = [each for each in sorted(missing) if replayed[each].transaction_first_offset >= 0]
    if open_ones:
        yield _LACKS_OPEN.found(path, producer_ids=open_ones[:5])
