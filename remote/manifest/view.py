"""A compacted view: the newest value of every key below a horizon, kept beside a log that stays as it is.

Pulsar's mode of compaction. A view is data of its own in the bucket, ``view/<name>/...`` (`remote.keys`): the same
bytes as a segment, batches with their original offsets, and rows of the same type. It lies in the head, so one commit
switches horizon and rows together, and whoever reads has all of the old view or all of the new one.

| fact | meaning |
|---|---|
| ``horizon_offset`` | everything the log held in ``[start_offset, horizon_offset)`` is represented; nothing above is |
| ``rows`` | ascending, below the horizon; an offset in none of them has no record in the view |
| ``lost`` | ranges that the log no longer had when the view would have taken them up, as somebody agreed to |

The horizon never lies above what the bucket holds of the log: after the loss of a disk the log begins anew there, and
the same offsets are given to other records.

What became of the last run is kept as well: when, how long, how much; or the error. A run that a crash ended is seen by
its epoch: only the writer of that epoch could still be at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from remote.number_bounds import ByteCount, ClockMs, Count, Offset, SequenceOrNone, WriterEpoch
from remote.segment_entry import RemoteSegment, SegmentState

DEFAULT_VIEW = "compacted"
VIEWS_MAX = 16
VIEW_ROWS_MAX = 512  # of one view; at some 700 bytes a row a view takes a third of a megabyte of every head


class ViewState(Enum):
    """How a view stands. Pulsar's words for a compaction's status, and what a crash adds."""

    NEVER_RUN = "never run"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    SUCCESS = "success"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRun:
    """A run that came to its end. Times in ms, offsets half open, bytes of batches.

    Records came in from the old view and from ``[from_offset, upto_offset)`` of the log; markers count. `key_ranges` is
    into how many parts the keys were split so that each fitted the buffer.
    """

    started_ms: ClockMs
    took_ms: ClockMs
    from_offset: Offset
    upto_offset: Offset
    records_in: Count
    records_out: Count
    bytes_in: ByteCount
    bytes_out: ByteCount
    key_ranges: Count = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewStart:
    """A run under way, by the writer of that epoch."""

    started_ms: ClockMs
    epoch: WriterEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFailure:
    """Why the last run left the view as it was."""

    failed_ms: ClockMs
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedView:
    """See the module text. `source_sequence` is the head that the last run read the log by; `record_count` includes
    records without a key, where the view keeps them."""

    name: str
    start_offset: Offset = 0
    horizon_offset: Offset = 0
    rows: tuple[RemoteSegment, ...] = ()
    record_count: Count = 0
    key_count: Count = 0
    source_sequence: SequenceOrNone | None = None
    lost: tuple[tuple[Offset, Offset], ...] = ()
    last_run: ViewRun | None = None
    under_way: ViewStart | None = None
    failure: ViewFailure | None = None

    @property
    def is_built(self) -> bool:
        """Whether there is something to read: a run came to its end once."""
        return self.last_run is not None

    @property
    def size_bytes(self) -> int:
        return sum(row.size_bytes for row in self.rows)

    def state(self, epoch: int) -> ViewState:
        """How it stands in a head of `epoch`."""
        if self.under_way is not None:
            return ViewState.RUNNING if self.under_way.epoch == epoch else ViewState.INTERRUPTED
        if self.failure is not None:
            return ViewState.ERROR
        return ViewState.SUCCESS if self.is_built else ViewState.NEVER_RUN

    def gap(self, log_start_offset: int) -> tuple[int, int] | None:
        """The offsets between the view and a log that begins at `log_start_offset`: in neither. None: they touch."""
        return (self.horizon_offset, log_start_offset) if log_start_offset > self.horizon_offset else None


def find_view(views: Sequence[CompactedView], name: str) -> CompactedView | None:
    return next((view for view in views if view.name == name), None)


def view_contradiction(views: Sequence[CompactedView], *, upto_offset: int) -> str | None:
    """What in the views of one head contradicts itself; None when they are sound. The log is known `upto_offset`."""
    if len({view.name for view in views}) < len(views) or len(views) > VIEWS_MAX:
        return f"views share a name, or are more than {VIEWS_MAX}"
    for view in views:
        reached = 0  # the first batch may begin below the start
        if not 0 <= view.start_offset <= view.horizon_offset <= upto_offset:
            return f"the view {view.name!r} does not lie within the log, horizon_offset={view.horizon_offset}"
        for row in view.rows:
            if not reached <= row.base_offset < row.next_offset <= view.horizon_offset:
                return f"the view {view.name!r} has rows that overlap or leave it at base_offset={row.base_offset}"
            if row.state is not SegmentState.COPY_FINISHED or row.size_bytes <= 0 or row.indexes_bytes <= 0:
                return f"the view {view.name!r} has an unfinished row at base_offset={row.base_offset}"
            reached = row.next_offset
        if len(view.rows) > VIEW_ROWS_MAX or (view.rows and not view.is_built):
            return f"the view {view.name!r} has rows without a run, or more than {VIEW_ROWS_MAX}"
    return None
