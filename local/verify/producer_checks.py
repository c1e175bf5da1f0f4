"""Compare producer snapshots and transaction indexes with a replay of all batches; read only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from local import names
from local.errors import Corrupt, NotFound
from local.index.txn_index import carried_problem
from local.log import producer_snapshot
from local.log.producer_snapshot import ProducerEntry
from local.log.producer_state import ProducerState
from local.names import parse_segment_file, segment_file
from local.storage import Storage, join
from local.verify.findings import Finding, Severity, corrupt, damaged, warning
from local.verify.segment_checks import SegmentPlace, SegmentReport

_SNAPSHOT_PAST_END = warning("snapshot.past-end", "the snapshot is past the end of the log")
_UNKNOWN_PRODUCER = warning("snapshot.unknown-producer", "the snapshot names a producer that is not in the log")
_STALE = warning("snapshot.stale", "the snapshot is stale")
_LACKS_OPEN = warning("snapshot.incomplete", "the snapshot lacks producers with an open transaction")
_WRONG_ABORTED = corrupt("txn-index.cleaned", "an entry exposes an aborted record, or hides another record")
_LACKS_ABORTED = corrupt("txn-index.missing", "the index lacks an aborted transaction")
_NOT_ABORTED = warning("txn-index.unknown", "the log has no aborted transaction for this entry")


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
            snapshots[parsed[0]] = producer_snapshot.decode(storage.read(path), path=path)
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
    """Transactions of the segments so far, by producer id.

    `open_from` is the first offset of the open transaction, `ended` the offset of the last marker.
    """

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
    """Check the aborted transactions of a segment that was cleaned, or follows a cleaned segment.

    Markers and records were removed, so a replay cannot find the aborted transactions. The entries are compared with
    the remaining batches (`local.index.txn_index`): no entry may expose an aborted record or hide another record.
    """
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
    """Whether the log has a later batch or a later epoch of the producer than the snapshot."""
    if entry.producer_epoch != known.producer_epoch:
        return entry.producer_epoch < known.producer_epoch
    return 0 <= entry.last_offset < known.last_offset


def _replay(state: ProducerState, report: SegmentReport) -> set[tuple[int, int, int]]:
    """(producer id, first offset, last offset) of each transaction that the segment's markers abort."""
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
    """Compare a snapshot with the replayed state at its offset. Producers may have expired in either.

    In a cleaned log the replay knows less than the snapshot, because batches and markers were removed. The snapshot is
    then stale only if it lacks a batch that the log has.
    """
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
