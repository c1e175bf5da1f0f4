"""Read with a compacted view: the view below its horizon, then the full log, as one stream.

A read below the horizon does not need the log, which may have expired there. A request for a missing view is an error,
never answered from the log. A stream stays with the view of its start while that view's objects exist (the grace
period). If an object is deleted before the first batch was returned, the stream starts over with the newest view. Later
it is an error: the stream would miss the records that the newer view merged, above all deletions. A stream that
restarts below the horizon of a newer view misses deletions too: start such a read at the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from local.errors import Corrupt, NotFound, OffsetOutOfRange
from local.format.columns import Columns
from local.names import TopicPartition
from local.records.isolation import Isolation
from remote.fetch.range_reader import RemotePartition
from remote.manifest.view import CompactedView, find_view
from tiered.read.partition_source import PartitionSource
from tiered.read.reader import TieredReader, decoded, first_at_or_after, segment_runs, within

SourceOf = Callable[[TopicPartition], PartitionSource]


class CompactedReader(TieredReader):
    """As `TieredReader`, with the view of that name. Thread safe; an iterator belongs to one thread.

    Every method raises NotFound if the partition has no such view, and OffsetOutOfRange if the log no longer holds the
    records that follow it. Isolation concerns the log only: a view holds committed records only.
    """

    def __init__(self, source_of: SourceOf, isolation: Isolation, view: str) -> None:
        super().__init__(source_of, isolation)
        self._log = TieredReader(source_of, isolation)
        self._name = view

    def view(self, partition: TopicPartition) -> CompactedView:
        """The view in the manifest seen last; if missing there, the newest manifest is loaded."""
        return _found_in(self.source(partition), self._name).view

    def offsets(self, partition: TopicPartition) -> tuple[int, int]:
        """``[start, next)``: from the view's first offset, which may be below the log start offset."""
        return self.view(partition).start_offset, self._log.offsets(partition)[1]

    def batches(self, partition: TopicPartition, start: int, end: int | None = None) -> Generator[memoryview]:
        below = _Below(self.source(partition), self._name, start, end)
        yield from below.runs()
        if below.crosses():
            yield from self._log.batches(partition, max(start, below.horizon), end)

    def columns(self, partition: TopicPartition, start: int, end: int | None = None) -> Iterator[Columns]:
        below = _Below(self.source(partition), self._name, start, end)
        for data in below.runs():
            for columns in decoded(data, partition):
                yield within(columns, start, end)
        if below.crosses():
            yield from self._log.columns(partition, max(start, below.horizon), end)

    def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        """Offset of the first record at or after `timestamp_ms` that a read returns; None if there is none."""
        source = self.source(partition)
        place = _found_in(source, self._name)
        view = place.view
        _check_gap(source, view)
        for entry in view.entries:
            if entry.max_timestamp_ms is not None and entry.max_timestamp_ms >= timestamp_ms:
                runs = segment_runs(place.parts.read, entry, *place.parts.place_of_timestamp(entry, timestamp_ms))
                steps = (columns for data, _ in runs for columns in decoded(data, partition))
                if (found := first_at_or_after(steps, timestamp_ms)) is not None:
                    return found
        found = self._log.offset_for_timestamp(partition, timestamp_ms)
        if found is None or found >= view.horizon_offset:
            return found
        # The view lacks this record, which is below the horizon: search the log from the horizon on.
        return first_at_or_after(self._log.columns(partition, view.horizon_offset), timestamp_ms)


@dataclass(frozen=True, slots=True)
class _Found:
    view: CompactedView
    parts: RemotePartition


class _Below:
    """The part of one stream that the view serves: ``[start, horizon)``, limited by `end`."""

    def __init__(self, source: PartitionSource, name: str, start: int, end: int | None) -> None:
        self._source, self._name, self._start, self._end = source, name, start, end
        self._found = self._checked(_found_in(source, name))

    @property
    def horizon(self) -> int:
        return self._found.view.horizon_offset

    def runs(self) -> Iterator[memoryview]:
        given = False
        try:
            for data in self._runs_of(self._found):
                given = True
                yield data
            return
        except NotFound as error:
            newer = _found_in(self._source, self._name, is_newest=True)
            if newer.view.entries == self._found.view.entries:
                facts = {"partition": self._source.partition, "view": self._name, **error.facts}
                raise Corrupt("cannot read the compacted view, an object of it is missing", **facts) from error
            if given:
                raise _replaced(self._source, self._found.view) from error
            self._found = self._checked(newer)
        try:
            yield from self._runs_of(self._found)
        except NotFound as error:
            raise _replaced(self._source, self._found.view) from error

    def crosses(self) -> bool:
        """Whether the stream continues in the log. Raises OffsetOutOfRange if the log lost the next records."""
        if self._end is not None and self._end <= self.horizon:
            return False
        if self._start < self._source.start_offset() and self._found.view.gap(self._source.start_offset()) is not None:
            if _found_in(self._source, self._name, is_newest=True).view.horizon_offset > self.horizon:
                raise _replaced(self._source, self._found.view)
            _check_gap(self._source, self._found.view)
        return True

    def _checked(self, found: _Found) -> _Found:
        view = found.view
        if self._start < view.start_offset:
            raise OffsetOutOfRange(
                "cannot read the compacted view, the offset is out of range",
                partition=self._source.partition,
                offset=self._start,
                first_offset=view.start_offset,
            )
        is_within = self._end is not None and self._end <= view.horizon_offset
        if not is_within and self._start < self._source.start_offset():
            _check_gap(self._source, view)
        return found

    def _runs_of(self, found: _Found) -> Iterator[memoryview]:
        for entry in found.view.entries:
            if entry.next_offset <= self._start or (self._end is not None and entry.base_offset >= self._end):
                continue
            offset = max(self._start, entry.base_offset)
            position = found.parts.position_of_offset(entry, offset)
            yield from (data for data, _ in segment_runs(found.parts.read, entry, offset, position))


def _found_in(source: PartitionSource, name: str, *, is_newest: bool = False) -> _Found:
    for is_exact in (True,) if is_newest else (False, True):
        # `exact`: a missing object is damage only if no newer manifest unlinked it.
        manifest = source.metadata.load(exact=True) if is_exact and source.metadata is not None else source.manifest()
        view = find_view(manifest.views, name) if manifest is not None else None
        if view is not None and view.is_built:
            assert source.remote is not None, "a head comes with its objects"
            return _Found(view, source.remote)
        local = source.local_views
        view = find_view(local.catalog(is_newest=is_exact).views, name) if local is not None else None
        if local is not None and view is not None and view.is_built:
            return _Found(view, local.parts)
    raise no_view(source.partition, name)


def no_view(partition: TopicPartition, name: str) -> NotFound:
    wrong = f"the topic has no compacted view: build it with 'tiered view build {partition.topic}'"
    return NotFound(wrong, partition=partition, view=name)


def _check_gap(source: PartitionSource, view: CompactedView) -> None:
    gap = view.gap(source.start_offset())
    if gap is not None:
        raise lost_behind(source.partition, view, gap)


def lost_behind(partition: TopicPartition, view: CompactedView, gap: tuple[int, int]) -> OffsetOutOfRange:
    wrong = "cannot read the compacted view, the log no longer holds the records that follow it"
    lost = f"[{gap[0]}, {gap[1]})"
    hint = "see 'tiered view build --accept-loss'"
    return OffsetOutOfRange(f"{wrong}: {hint}", partition=partition, view=view.name, lost=lost)


def _replaced(source: PartitionSource, view: CompactedView) -> NotFound:
    attempt = "cannot read the compacted view, it was replaced while it was read; begin again at its start"
    return NotFound(attempt, partition=source.partition, view=view.name, start_offset=view.start_offset)
