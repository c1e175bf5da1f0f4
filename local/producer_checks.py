"""Producer snapshots and transaction indexes of a partition held against a replay of all its batches; reads only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from local import names, producer_snapshot
from local.errors import Corrupt, NotFound
from local.findings import Finding, Severity, damaged, told
from local.names import parse_segment_file, segment_file
from local.producer_snapshot import ProducerEntry
from local.producer_state import ProducerState
from local.segment_checks import SegmentPlace, SegmentReport
from local.storage import Storage, join


def check_producers(
    storage: Storage,
    directory: str,
    there: Sequence[str],
    reports: Sequence[tuple[SegmentPlace, SegmentReport]],
) -> Iterator[Finding]:
    """Aborted transactions and snapshots against a replay of every batch that has a producer."""
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
    for place, report in reports:
        if place.base_offset in snapshots:
            yield from _compare(directory, place.base_offset, snapshots[place.base_offset], state, is_whole)
        yield from _compare_aborted(place, report, _replay(state, report), first, is_whole=is_whole)
    for offset in sorted(snapshots):
        path = join(directory, segment_file(offset, names.PRODUCER_SNAPSHOT))
        if offset > end:
            yield told(Severity.WARNING, path, f"a snapshot past the log's end: next_offset={end}")
    if end in snapshots and end != reports[-1][0].base_offset:
        yield from _compare(directory, end, snapshots[end], state, is_whole)


def _replay(state: ProducerState, report: SegmentReport) -> set[tuple[int, int, int]]:
    """(producer, first offset, last offset) of what the segment's markers abort."""
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
    if any(each.path == path and each.severity is Severity.CORRUPT for each in report.findings):
        return
    # An entry is written after its marker, and read here before it.
    severity = Severity.INFO if place.next_base is None and place.may_be_torn else Severity.CORRUPT
    for producer, begin, last in sorted(expected - found):
        what = f"an aborted transaction is missing: producer_id={producer}"
        yield Finding(severity=severity, path=path, what=what, offsets=(begin, last + 1))
    for producer, begin, last in sorted(found - expected):
        if begin >= first or is_whole:
            what = f"no such transaction was aborted in the log: producer_id={producer}"
            yield Finding(severity=Severity.WARNING, path=path, what=what, offsets=(begin, last + 1))


def _compare(
    directory: str, offset: int, entries: Sequence[ProducerEntry], state: ProducerState, is_whole: bool
) -> Iterator[Finding]:
    """A snapshot against the state of the replay at its offset. Producers may have expired in either."""
    path = join(directory, segment_file(offset, names.PRODUCER_SNAPSHOT))
    replayed = {each.producer_id: each for each in state.entries()}
    for entry in entries:
        known = replayed.get(entry.producer_id)
        if known is None:
            if is_whole:
                what = f"the snapshot knows a producer that is not in the log: producer_id={entry.producer_id}"
                yield told(Severity.WARNING, path, what)
            continue
        for what, snapshot, log in (
            ("producer_epoch", entry.producer_epoch, known.producer_epoch),
            ("last_sequence", entry.last_sequence, known.last_sequence),
            ("last_offset", entry.last_offset, known.last_offset),
            ("transaction_first_offset", entry.transaction_first_offset, known.transaction_first_offset),
        ):
            if snapshot != log:
                stale = f"the snapshot is stale: producer_id={entry.producer_id} {what}={snapshot} in_the_log={log}"
                yield told(Severity.WARNING, path, stale)
                break
    missing = replayed.keys() - {entry.producer_id for entry in entries}
    open_ones = [each for each in sorted(missing) if replayed[each].transaction_first_offset >= 0]
    if open_ones:
        what = f"the snapshot lacks producers with an open transaction: producer_ids={open_ones[:5]}"
        yield told(Severity.WARNING, path, what)
