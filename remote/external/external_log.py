"""An external partition's entries as a manifest, which is not in the bucket, for readers of manifests.

**Copies of the same offsets.** A bucket filled by brokers may hold the same offsets more than once: a retried copy, two
leaders' copies, or the records of a leader that lost an unclean election. The metadata that selected among them is not
available. Leader epochs decide, as in Kafka: each has one leader, and begins where that leader's log ended.

1. The **lineage** has all (epoch, start) pairs, including the checkpoint stored with the newest segment. Each epoch has
   its lowest known start. Pairs are applied in epoch order: a later epoch that begins at or below an earlier epoch's
   start replaces it.
2. Of a segment these records count: the ones in an epoch of the lineage, before the lineage's next epoch begins.
3. Of the remaining ranges, a segment wholly inside another is not needed. Where two overlap, the later one is read from
   its base on.

Offsets between two segments that no segment holds are gaps, and are reported. Source: kafka
`LeaderEpochFileCache.assign`, `RemoteLogManager.isRemoteSegmentWithinLeaderEpochs`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from local.errors import LogError, NotFound
from local.log.leader_epochs import LeaderEpochs
from local.verify.findings import Finding
from remote.external.external_layout import ExternalName, Layout
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_page import gaps_between
from remote.segment_entry import SegmentEntry

_log = logging.getLogger(__name__)
ListRows = Callable[[dict[str, Finding]], list[SegmentEntry]]


class ExternalManifests:
    """The manifests of one external partition, for `MetadataLog(source=...)`. Not thread safe: the log holds its lock.

    `list_rows` returns the current entries, ascending, without overlaps, and adds findings to its argument, by object.
    """

    def __init__(self, name: ExternalName, layout: Layout, list_rows: ListRows) -> None:
        self._name = name
        self.layout = layout
        self._list_rows = list_rows
        self._manifest: Manifest | None = None
        self._findings: dict[str, Finding] = {}

    @property
    def gaps(self) -> list[tuple[int, int]]:
        return list(gaps_between(self._manifest.segments)) if self._manifest is not None else []

    @property
    def findings(self) -> list[Finding]:
        return sorted(self._findings.values(), key=lambda each: (each.offsets or (0, 0), each.where))

    def newest(self, known: Manifest | None) -> Manifest | None:
        """The bucket now as a manifest; None while no listing has found a segment. Raises the listing's errors."""
        findings: dict[str, Finding] = {}
        entries = tuple(self._list_rows(findings))
        where = self._name.topic_partition
        for path in sorted(findings.keys() - self._findings.keys()):
            what = findings[path].what
            _log.warning("an object of the bucket is invalid: partition=%s object=%s what=%s", where, path, what)
        self._findings = findings
        if known is not None and known.segments == entries:
            return known
        if entries:
            self._manifest = self._made(entries, 1 if known is None else known.sequence + 1)
            for start, end in self.gaps:
                _log.warning("the bucket lacks offsets: partition=%s first=%d next=%d", where, start, end)
        elif known is not None:  # all of it expired
            end = known.next_offset
            self._manifest = replace(known, segments=(), sequence=known.sequence + 1, log_start_offset=end)
        return self._manifest

    def missing(self) -> LogError:
        return NotFound("the external partition holds no segment", partition=self._name.prefix)

    def _made(self, entries: tuple[SegmentEntry, ...], sequence: int) -> Manifest:
        name = self._name
        return Manifest(
            sequence=sequence,
            epoch=1 + max((epoch for entry in entries for epoch, _ in entry.epochs), default=0),
            commit_id=f"{self.layout.value}-{sequence}",
            parent_id=None,
            writer_id=self.layout.value,
            topic=name.topic,
            topic_id=name.topic_id,
            partition=name.partition,
            log_start_offset=entries[0].base_offset,
            committed_ms=0,
            segments=entries,
            properties={},
        )


def external_manifests(log: MetadataLog | None) -> ExternalManifests | None:
    """The external source of a log; None for a partition of this project's own layout."""
    source = log.source if log is not None else None
    return source if isinstance(source, ExternalManifests) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A segment that holds ``[base_offset, next_offset)``."""

    number: int
    base_offset: int
    next_offset: int
    epochs: tuple[tuple[int, int], ...] = ()  # pairs (epoch, start), ascending; empty if unknown
    stamp_ms: int = 0  # of two otherwise equal copies the larger one is newer


@dataclass(frozen=True, slots=True)
class ReadRangeOfCopy:
    """The part of a copy to read: copy `number`, from its base offset up to `next_offset`."""

    number: int
    next_offset: int


def lineage_of(copies: Iterable[Copy], known: Iterable[tuple[int, int]] = ()) -> LeaderEpochs:
    """Return the epochs of the last leader's log. `known` is a checkpoint of that leader."""
    starts: dict[int, int] = {}
    for epoch, start in chain(known, *(copy.epochs for copy in copies)):
        starts[epoch] = min(start, starts.get(epoch, start))
    lineage = LeaderEpochs()
    for epoch, start in sorted(starts.items()):
        lineage = lineage.assign(epoch, start)
    return lineage


def choose(copies: Sequence[Copy], known: Iterable[tuple[int, int]] = ()) -> list[ReadRangeOfCopy]:
    """Return the ranges to read, ascending, without overlaps. `known` is as in `lineage_of`."""
    lineage = lineage_of(copies, known).entries
    following = zip_longest(lineage, lineage[1:])
    ends = {epoch: None if after is None else after[1] for (epoch, _), after in following}
    found: list[tuple[Copy, int]] = []
    valid = ((copy, _valid_end(copy, ends)) for copy in copies)
    for copy, end in sorted(valid, key=lambda each: (each[0].base_offset, each[1], each[0].stamp_ms)):
        if end <= copy.base_offset:
            continue
        while found and found[-1][0].base_offset == copy.base_offset:
            found.pop()  # this copy ends earlier than `copy`, or is older
        if found and end <= found[-1][1]:
            continue
        if found:
            before, reached = found[-1]
            found[-1] = before, min(reached, copy.base_offset)
        found.append((copy, end))
    return [ReadRangeOfCopy(copy.number, end) for copy, end in found]


def _valid_end(copy: Copy, ends: dict[int, int | None]) -> int:
    """Where the copy's leading records of the lineage end; `ends` has each epoch's end, None for the last epoch."""
    reached = copy.base_offset
    for at, (epoch, _) in enumerate(copy.epochs):
        its_end = copy.epochs[at + 1][1] if at + 1 < len(copy.epochs) else copy.next_offset
        if epoch not in ends:
            if its_end == reached:
                continue
            return reached
        end = ends[epoch]
        if end is not None and end < its_end:
            return max(reached, end)
        reached = its_end
    return reached if copy.epochs else copy.next_offset
