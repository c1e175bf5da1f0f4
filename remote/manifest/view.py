"""A compacted view: the newest value of every key below a horizon; the log stays unchanged (Pulsar's compaction).

A view has objects of its own, ``view/<name>/...``: batches with their original offsets, and entries as of segments. The
manifest holds it, so one commit switches horizon and entries. The horizon is never above the end of the bucket's part
of the log: after the loss of a disk the log restarts at that end, and assigns the offsets above it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_type_hints

import msgspec

from remote.segment_entry import ByteCount, ClockMs, Count, Offset, SegmentEntry, SequenceOrNone, WriterEpoch

if TYPE_CHECKING:
    from remote.manifest.manifest import PageEntry

DEFAULT_VIEW = "compacted"
VIEWS_MAX = 16
VIEW_ROWS_MAX = 512  # of one view; at some 700 bytes an entry a view takes a third of a megabyte of every manifest
T = TypeVar("T")


class StoredForm(Generic[T]):
    """Stored JSON of frozen dataclasses, under the field names of the format's first version.

    Create it at import: msgspec decoders of a type must not be created in two threads.
    """

    def __init__(self, kind: type[T], names: Mapping[str, str], **nested: StoredForm[Any]) -> None:
        """`names` maps fields to stored names; `nested` has the stored forms of fields that are tuples of values."""
        hints = get_type_hints(kind, include_extras=True)
        hints |= {name: tuple[form.struct, ...] for name, form in nested.items()}  # type: ignore[name-defined]
        defined: list[Any] = []
        for field in fields(kind):  # type: ignore[arg-type]
            default = () if field.default is MISSING else (field.default,)
            defined.append((field.name, hints[field.name], *default))
        self._kind = kind
        self._nested = nested
        self._fields = tuple(field.name for field in fields(kind))  # type: ignore[arg-type]
        self.names = {name: names.get(name, name) for name in self._fields}
        self.struct: Any = msgspec.defstruct(f"Stored{kind.__name__}", defined, kw_only=True, rename=self.names)
        self._decoder = msgspec.json.Decoder(self.struct)

    def encode(self, value: T) -> bytes:
        return msgspec.json.encode(self.stored(value))

    def decode(self, text: bytes | msgspec.Raw) -> T:
        """The inverse of `encode`. Raises msgspec.DecodeError, UnicodeDecodeError."""
        return self.value(self._decoder.decode(text))

    def stored(self, value: T) -> msgspec.Struct:
        fields = {name: self._map(name, getattr(value, name), "stored") for name in self._fields}
        return cast(msgspec.Struct, self.struct(**fields))

    def value(self, stored: msgspec.Struct) -> T:
        return self._kind(**{name: self._map(name, getattr(stored, name), "value") for name in self._fields})

    def _map(self, name: str, value: object, verb: str) -> object:
        form = self._nested.get(name)
        return value if form is None else tuple(getattr(form, verb)(each) for each in cast("tuple[object, ...]", value))


class ViewState(Enum):
    """Pulsar's words for a compaction's status, and the state after a crash: a run of an earlier epoch."""

    NEVER_RUN = "never run"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    SUCCESS = "success"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRun:
    """A completed run. Times in ms, offsets half open, bytes of batches."""

    started_ms: ClockMs
    took_ms: ClockMs
    from_offset: Offset
    upto_offset: Offset
    records_in: Count  # of the old view, and of ``[from_offset, upto_offset)`` of the log; markers count
    records_out: Count
    bytes_in: ByteCount
    bytes_out: ByteCount
    key_ranges: Count = 1  # number of parts of the keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewStart:
    started_ms: ClockMs
    epoch: WriterEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFailure:
    failed_ms: ClockMs
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedView:
    """A compacted view, in a manifest or a view catalog."""

    name: str
    start_offset: Offset = 0
    horizon_offset: Offset = 0  # the view has all that the log held in ``[start_offset, horizon_offset)``
    entries: tuple[SegmentEntry, ...] = ()  # ascending, below the horizon; an offset in none of them has no record
    record_count: Count = 0  # all records
    key_count: Count = 0
    source_sequence: SequenceOrNone | None = None  # of the manifest that the last run read
    lost: tuple[tuple[Offset, Offset], ...] = ()  # ranges that the log had lost before, as an operator accepted
    last_run: ViewRun | None = None
    under_way: ViewStart | None = None
    failure: ViewFailure | None = None

    @property
    def is_built(self) -> bool:
        """Whether the view is readable: at least one run was completed."""
        return self.last_run is not None

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)

    def state(self, epoch: int) -> ViewState:
        if self.under_way is not None:
            return ViewState.RUNNING if self.under_way.epoch == epoch else ViewState.INTERRUPTED
        if self.failure is not None:
            return ViewState.ERROR
        return ViewState.SUCCESS if self.is_built else ViewState.NEVER_RUN

    def gap(self, log_start_offset: int) -> tuple[int, int] | None:
        """The offsets between the view and a log that starts at `log_start_offset`; None if there is no gap."""
        return (self.horizon_offset, log_start_offset) if log_start_offset > self.horizon_offset else None


STORED_VIEW = StoredForm(CompactedView, {"entries": "rows"})


def find_view(views: Sequence[CompactedView], name: str) -> CompactedView | None:
    return next((view for view in views if view.name == name), None)


def view_contradiction(views: Sequence[CompactedView], *, upto_offset: int) -> str | None:
    """The first contradiction in the views of one manifest, None if sound. The log ends at `upto_offset`."""
    if len({view.name for view in views}) < len(views) or len(views) > VIEWS_MAX:
        return f"views share a name, or there are more than {VIEWS_MAX}"
    for view in views:
        reached = 0  # the first batch may start below the start offset
        if not 0 <= view.start_offset <= view.horizon_offset <= upto_offset:
            return f"the view {view.name!r} is not within the log, horizon_offset={view.horizon_offset}"
        for entry in view.entries:
            if not reached <= entry.base_offset < entry.next_offset <= view.horizon_offset:
                wrong = "has entries that overlap or are outside the view"
                return f"the view {view.name!r} {wrong} at base_offset={entry.base_offset}"
            reached = entry.next_offset
        if len(view.entries) > VIEW_ROWS_MAX or (view.entries and not view.is_built):
            return f"the view {view.name!r} has entries without a run, or more than {VIEW_ROWS_MAX}"
    return None


def clean_upto(parts: Iterable[PageEntry | SegmentEntry], min_readable_offset: int = 0) -> int | None:
    """The offset below which every readable record was compared with all newer ones below it.

    None without parts. `parts` may be in any order. The `cleaned_through` of a page is the least of its entries, so the
    result is at most the result for the entries themselves.
    """
    readable = (part for part in parts if part.next_offset > min_readable_offset)
    return min((max(part.cleaned_through or 0, part.base_offset) for part in readable), default=None)


def tombstone_bound(
    parts: Iterable[PageEntry | SegmentEntry], views: Iterable[CompactedView], min_readable_offset: int
) -> int | None:
    """The offset below which tombstones and markers may be removed; None: no bound, 0: no removal.

    One rule (I5) for the local cleaner and for jobs. A tombstone at offset T may be removed when no reader can reach an
    older record of its key. Two places can hold one:

    | place | may hold an older record of T's key |
    |---|---|
    | a segment entry that begins below T | yes, unless it is clean through T: its records were compared with T |
    | a segment entry that begins at T or above | no: its records are newer |
    | an entry wholly below the log start offset | no: no reader reaches it |
    | a compacted view that was built | yes, unless T is below its horizon: the view includes T already |
    | a compacted view that was never built | yes: its first run may be reading an older manifest now |
    """
    bounds = [view.horizon_offset if view.is_built else 0 for view in views]
    cleaned = clean_upto(parts, min_readable_offset)
    return min(bounds if cleaned is None else [*bounds, cleaned], default=None)
