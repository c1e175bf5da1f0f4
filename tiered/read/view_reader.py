"""Reading with a compacted view: the view below its horizon, the full log from there on, as one stream.

The view lies in the bucket, or beside the log of a topic without one (`tiered.read.view_places`). Offsets ascend over
both and are those of the log. What is read below the horizon needs nothing of the log, which may have expired there.
Readers that don't ask for a view are served by `tiered.read.reader` and never meet one; who asks for a view that is not
there gets an error, never the log in its place.

A stream stays with the view that it began with, for as long as that view's objects are there (the grace time). When one
is gone before the first batch was given, the newest head is read and the stream begins with the view of that; later it
is an error: what the newer view has swallowed, deletions above all, this stream would never have told.

For the same reason a stream that begins anew below the horizon of a newer view does not tell what was deleted since it
read: begin at the start then, as after a long absence from any compacted log.
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
from remote.segment_entry import RemoteSegment
from tiered.read.partition_source import PartitionSource
from tiered.read.reader import TieredReader
from tiered.read.view_rows import decoded, row_runs

SourceOf = Callable[[TopicPartition], PartitionSource]


class CompactedReader(TieredReader):
    """As `TieredReader`, with the view of that name. Thread safe; iterators are not to be shared between threads.

    Every verb raises NotFound where the partition has no such view, and OffsetOutOfRange where the log no longer holds
    what follows it. Isolation is the log's matter: a view holds committed records only.
    """

    def __init__(self, source_of: SourceOf, isolation: Isolation, view: str) -> None:
        super().__init__(source_of, isolation)
        self._log = TieredReader(source_of, isolation)
        self._name = view

    def view(self, partition: TopicPartition) -> CompactedView:
        """The view as the head says that was seen last; a newer one is looked for where it is missing there."""
        return _found_in(self._source_of(partition), self._name).view

    def offsets(self, partition: TopicPartition) -> tuple[int, int]:
        """``[start, next)``: from where the view's knowledge begins, perhaps below the log start."""
        return self.view(partition).start_offset, self._log.offsets(partition)[1]

    def batches(self, partition: TopicPartition, start: int, end: int | None = None) -> Generator[memoryview]:
        below = _Below(self._source_of(partition), self._name, start, end)
        yield from below.runs()
        if below.crosses():
            yield from self._log.batches(partition, max(start, below.horizon), end)

    def columns(self, partition: TopicPartition, start: int, end: int | None = None) -> Iterator[Columns]:
        below = _Below(self._source_of(partition), self._name, start, end)
        for data in below.runs():
            for columns in decoded(data, partition):
                inside = columns.offsets >= start
                if end is not None:
                    inside &= columns.offsets < end
                yield columns if inside.all() else columns.select(inside)
        if below.crosses():
            yield from self._log.columns(partition, max(start, below.horizon), end)

    def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        """Offset of the first record at or after `timestamp_ms` that reading gives; None when there is none."""
        source = self._source_of(partition)
        place = _found_in(source, self._name)
        view = place.view
        _check_gap(source, view)
        for row in view.rows:
            if row.max_timestamp_ms is not None and row.max_timestamp_ms >= timestamp_ms:
                found = _search(place.parts, partition, row, timestamp_ms)
                if found is not None:
                    return found
        found = self._log.offset_for_timestamp(partition, timestamp_ms)
        if found is None or found >= view.horizon_offset:
            return found
        # A record that the view has not: the first one behind the horizon that is late enough.
        for columns in self._log.columns(partition, view.horizon_offset):
            hits = columns.timestamps >= timestamp_ms
            if hits.any():
                return int(columns.offsets[hits.argmax()])
        return None


@dataclass(frozen=True, slots=True)
class _Found:
    """A view and what reads its parts."""

    view: CompactedView
    parts: RemotePartition


class _Below:
    """The part of one stream that the view serves: ``[start, horizon)``, as far as `end` lets it."""

    def __init__(self, source: PartitionSource, name: str, start: int, end: int | None) -> None:
        self._source, self._name, self._start, self._end = source, name, start, end
        self._found = self._checked(_found_in(source, name))

    @property
    def horizon(self) -> int:
        return self._found.view.horizon_offset

    def runs(self) -> Iterator[memoryview]:
        """Raises NotFound when the view was replaced while it was read and its objects are gone."""
        given = False
        try:
            for data in self._runs_of(self._found):
                given = True
                yield data
            return
        except NotFound as error:
            newer = _found_in(self._source, self._name, is_newest=True)
            if newer.view.rows == self._found.view.rows:
                facts = {"partition": self._source.partition, "view": self._name, **error.facts}
                raise Corrupt("reading a compacted view, an object of it is missing", **facts) from error
            if given:
                raise _replaced(self._source, self._found.view) from error
            self._found = self._checked(newer)
        try:
            yield from self._runs_of(self._found)
        except NotFound as error:
            raise _replaced(self._source, self._found.view) from error

    def crosses(self) -> bool:
        """Whether the stream goes on in the log. Raises OffsetOutOfRange where the log has lost what follows."""
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
                "reading a compacted view, offset out of range",
                partition=self._source.partition,
                offset=self._start,
                first_offset=view.start_offset,
            )
        is_within = self._end is not None and self._end <= view.horizon_offset
        if not is_within and self._start < self._source.start_offset():
            _check_gap(self._source, view)
        return found

    def _runs_of(self, found: _Found) -> Iterator[memoryview]:
        for row in found.view.rows:
            if row.next_offset <= self._start or (self._end is not None and row.base_offset >= self._end):
                continue
            offset = max(self._start, row.base_offset)
            yield from row_runs(found.parts, row, offset, found.parts.position_of_offset(row, offset))


def _found_in(source: PartitionSource, name: str, *, is_newest: bool = False) -> _Found:
    """The view in the head seen last, or in the newest one; else the one beside the log. Raises NotFound for one that
    was never built."""
    for is_asked in (True,) if is_newest else (False, True):
        # `exact`: a missing object is damage only if no newer manifest unlinked it.
        head = source.metadata.load(exact=True) if is_asked and source.metadata is not None else source.head()
        view = find_view(head.views, name) if head is not None else None
        if view is not None and view.is_built:
            assert source.remote is not None, "a head comes with its objects"
            return _Found(view, source.remote)
        local = source.local_views
        view = find_view(local.catalog(is_newest=is_asked).views, name) if local is not None else None
        if local is not None and view is not None and view.is_built:
            return _Found(view, local.parts)
    raise NotFound(
        f"reading a compacted view, there is none: build it with 'tiered view build {source.partition.topic}'",
        partition=source.partition,
        view=name,
    )


def _check_gap(source: PartitionSource, view: CompactedView) -> None:
    gap = view.gap(source.start_offset())
    if gap is not None:
        raise OffsetOutOfRange(
            "reading a compacted view, the log no longer holds what follows it: see 'tiered view build --accept-loss'",
            partition=source.partition,
            view=view.name,
            lost=f"[{gap[0]}, {gap[1]})",
        )


def _replaced(source: PartitionSource, view: CompactedView) -> NotFound:
    attempt = "reading a compacted view, it was replaced while it was read; begin again at its start"
    return NotFound(attempt, partition=source.partition, view=view.name, start_offset=view.start_offset)


def _search(parts: RemotePartition, partition: TopicPartition, row: RemoteSegment, timestamp_ms: int) -> int | None:
    offset, position = parts.place_of_timestamp(row, timestamp_ms)
    for data in row_runs(parts, row, offset, position):
        for columns in decoded(data, partition):
            hits = columns.timestamps >= timestamp_ms
            if hits.any():
                return int(columns.offsets[hits.argmax()])
    return None
