"""Deep check of a bucket: every manifest, object and batch against the segment entries.

`remote.check.partition_check` checks names, manifests, sizes and checksums; this module checks the content of segments.
The facts of an entry must equal the facts of the bytes:

- The segment consists of whole batches with the right CRC, with all offsets inside ``[base, next)``.
- The number of records, the smallest and the largest timestamp, and the leader epoch of every batch agree.
- The indexes point at these batches.
- In a segment that was never cleaned the transaction index names exactly the transactions aborted in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from local import kernels
from local.errors import Corrupt
from local.format.batch_header import CONTROL, TRANSACTIONAL
from local.format.columns import BatchTable
from local.index import txn_index
from local.log import producer_snapshot
from local.log.checkpoints import parse_entries
from local.records.batch import read_marker
from local.records.batch_runs import BatchRuns, Run
from local.verify.findings import DAMAGED, Finding, Severity, corrupt, damaged
from local.verify.index_checks import check_offset_index, check_time_index, places_of
from remote.check.partition_check import BucketReport, check_partition
from remote.fetch.segment_check import ReadRange
from remote.manifest.catalog import list_partitions
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.segments.index_bundle import IndexBundle
from remote.store import ObjectStore

_OUTSIDE = corrupt("segment.outside", "a batch is outside the offsets of its segment entry")
_OTHER_EPOCH = corrupt("segment.epoch", "a batch has another leader epoch than its segment entry")
_LACKS_ABORTED = corrupt("segment.txn-missing", "the index lacks an aborted transaction")
_NOT_ABORTED = corrupt("segment.txn-unknown", "the log has no aborted transaction for this entry")
_OTHER_FACTS = corrupt("segment.facts", "the segment entry contradicts the bytes of the segment")


def check_bucket(store: ObjectStore, *, keys: KeyRing = NO_KEYS) -> list[BucketReport]:
    """Check every partition of a store, in order. Raises the store's error if it cannot be reached."""
    return [check_partition(store, name.prefix, check_contents, keys=keys) for name in list_partitions(store)]


def damage(reports: list[BucketReport]) -> list[Finding]:
    """Return the findings that are worse than a warning."""
    return [each for report in reports for each in report.findings if each.severity is Severity.CORRUPT]


@dataclass(slots=True)
class _Seen:
    """Facts collected from the bytes of one segment."""

    records: int = 0
    timestamps: list[int] = field(default_factory=list)
    tables: list[tuple[int, BatchTable]] = field(default_factory=list)
    open_producers: set[int] = field(default_factory=set)  # with data of a transaction without a marker so far
    aborted: set[tuple[int, int]] = field(default_factory=set)  # (producer, marker's offset) with data in this segment
    ends: set[tuple[int, int]] = field(default_factory=set)  # as `aborted`, for all markers that may abort

    def min_max(self) -> tuple[int | None, int | None]:
        return min(self.timestamps, default=None), max(self.timestamps, default=None)


def check_contents(path: str, entry: SegmentEntry, bundle: IndexBundle, read: ReadRange) -> Iterator[Finding]:
    """Yield the damage inside one segment. Raises Corrupt if its bytes contradict their checksums."""
    seen = _Seen()
    walk = BatchRuns(read, entry.size_bytes)
    for run in walk:
        if run.damage is not None:
            yield DAMAGED.found(path, what=run.damage, at=run.position, offsets=entry.offsets)
        else:
            seen.tables.append((run.position, run.table))
            yield from _of_run(path, entry, run, seen)
            _take_transactions(run, seen)
    if walk.problem is not None:
        what = f"{walk.problem}: bytes={entry.size_bytes - walk.position}"
        yield DAMAGED.found(path, what=what, at=walk.position, offsets=entry.offsets)
    yield from _of_row(path, entry, seen)
    yield from _of_indexes(path, entry, bundle, seen)


def _of_run(path: str, entry: SegmentEntry, run: Run, seen: _Seen) -> Iterator[Finding]:
    table = run.table
    first, last = int(table.base_offsets.min()), int(table.last_offsets.max())
    if first < entry.base_offset or last >= entry.next_offset:
        yield _OUTSIDE.found(path, at=run.position, offsets=entry.offsets, first=first, last=last)
    epochs = dict(zip(table.base_offsets.tolist(), table.leader_epochs.tolist(), strict=True))
    for offset, epoch in epochs.items():
        expected = [each for each, start in entry.epochs if start <= offset]
        if epoch >= 0 and (not expected or expected[-1] != epoch):  # -1 is Kafka's "unknown"
            yield _OTHER_EPOCH.found(path, offsets=entry.offsets, offset=offset, epoch=epoch)
            break
    try:
        for columns in kernels.decode_in_steps(run.data, verify=False, table=table):
            seen.records += len(columns)
            known = columns.timestamps[columns.timestamps >= 0]
            seen.timestamps += [int(known.min()), int(known.max())] if len(known) else []
    except Corrupt as error:
        yield damaged(error, path)


def _take_transactions(run: Run, seen: _Seen) -> None:
    """Collect the transactions that the run's markers abort, as far as the segment shows it."""
    flags = run.table.attributes
    for at in np.flatnonzero((flags & (TRANSACTIONAL | CONTROL)) != 0).tolist():
        producer = int(run.table.producer_ids[at])
        if not flags[at] & CONTROL:
            seen.open_producers.add(producer)
            continue
        marker = read_marker(run.data, int(run.table.positions[at]))
        where = producer, int(run.table.last_offsets[at])
        if marker is None or not marker.is_commit:
            seen.ends.add(where)
        if marker is not None and not marker.is_commit and producer in seen.open_producers:
            seen.aborted.add(where)
        seen.open_producers.discard(producer)


def _of_transactions(path: str, entry: SegmentEntry, bundle: IndexBundle, seen: _Seen) -> Iterator[Finding]:
    if entry.cleaned_through is not None or entry.made_by is not None:
        return  # a cleaner pass removes markers and entries by rules of its own
    known = {(each.producer_id, each.last_offset) for each in txn_index.entries(bundle.txn, path=path)}
    for producer, offset in sorted(seen.aborted - known):
        yield _LACKS_ABORTED.found(path, offsets=entry.offsets, producer_id=producer, marker_at=offset)
    for producer, offset in sorted(known - seen.ends):
        yield _NOT_ABORTED.found(path, offsets=entry.offsets, producer_id=producer, marker_at=offset)


def _of_row(path: str, entry: SegmentEntry, seen: _Seen) -> Iterator[Finding]:
    low, high = seen.min_max()
    facts = {
        "record_count": (entry.record_count, seen.records),
        "min_timestamp_ms": (entry.min_timestamp_ms, low),
        "max_timestamp_ms": (entry.max_timestamp_ms, high),
    }
    for name, (says, found) in facts.items():
        if says != found:
            what = f"{_OTHER_FACTS.text}: {name}={says} found={found}"
            yield _OTHER_FACTS.found(path, what=what, offsets=entry.offsets)


def _of_indexes(path: str, entry: SegmentEntry, bundle: IndexBundle, seen: _Seen) -> Iterator[Finding]:
    places, base, where = places_of(seen.tables, entry.size_bytes), entry.base_offset, path.removesuffix(entry.data_key)
    where += entry.indexes_key
    yield from check_offset_index(bytes(bundle.offset), base, places, path=where)
    yield from check_time_index(bytes(bundle.time), base, places, path=where)
    try:
        txn_index.check(bundle.txn, base, path=where)
        yield from _of_transactions(where, entry, bundle, seen)
        if len(bundle.producers):
            producer_snapshot.decode(bundle.producers, path=where)
        if len(bundle.epochs):
            parse_entries(bytes(bundle.epochs), where, 2)
    except Corrupt as error:
        yield damaged(error, where)
