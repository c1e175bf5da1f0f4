"""`TierState`: relation of a partition to its remote tier, its transitions, the allowed actions.

docs/explanation/partition-state.md shows the tables: `TRANSITIONS` (an event that it does not list for the present
state is a defect), and `PERMISSIONS`, with one more fact for `CHECKED` cells. The commit protocol
(`remote.manifest.commit_protocol`) may learn in any thread that a commit is in doubt, another writer took over, or the
tier is disabled in the manifest. `TierMachine.seen` derives IN_DOUBT, FENCED and DISABLED from WRITER at each read.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum

from local.errors import Diverged, Fenced, LogError, RemoteLost
from local.segment.segment import Segment
from remote.segment_entry import SegmentEntry


class TierState(Enum):
    LOCAL_ONLY = "local only"  # the topic is not tiered
    UNREACHED = "unreached"  # tiered; this process is not the writer (yet), or has the directory open read-only
    WRITER = "writer"  # this process is the writer, and the two tiers agree
    IN_DOUBT = "in doubt"  # as WRITER, but a commit was sent and its outcome is unknown
    DISABLED = "disabled"  # as WRITER, but the tier was disabled for good, and its entries are being unlinked
    FENCED = "fenced"  # another writer took over
    DIVERGED = "diverged"  # the tiers hold different records for the same offsets, or may hold different ones
    LOST = "lost"  # the bucket lacks records that this disk has dropped
    REFUSED = "refused"  # any other lasting error of the takeover: a missing key, a damaged manifest, a deleted topic
    DELETED = "deleted"  # the topic was deleted


class TierEvent(Enum):
    TIERED = "the settings enable the tier"
    UNTIERED = "the settings no longer enable a tier that never existed"
    AGREED = "a read-only open compared the tiers"
    ACQUIRED = "the takeover was committed and the tiers agree"
    FENCED = "another writer was seen"
    DIVERGED = "the tiers contradict each other"
    LOST = "the bucket lacks dropped records"
    REFUSED = "another lasting error"
    DELETED = "the topic is deleted"


class TierAction(Enum):
    APPEND = "append"
    READ_REMOTE = "read remote"
    UPLOAD = "upload"
    DELETE_REMOTE = "delete remote"
    CLEAN = "clean"
    DROP = "drop"
    EXPIRE = "expire"


class Permission(Enum):
    ALLOWED = "yes"
    FORBIDDEN = "no"
    CHECKED = "if"  # `Partition.allows` checks the fact that decides


WRITING = frozenset({TierState.WRITER, TierState.IN_DOUBT, TierState.DISABLED})
STOPPED = frozenset({TierState.FENCED, TierState.DIVERGED, TierState.LOST, TierState.REFUSED})

_LIVING = frozenset(TierState) - {TierState.DELETED}
_STOPS = {TierEvent[state.name]: state for state in TierState if state in STOPPED}


def _transitions() -> dict[tuple[TierState, TierEvent], TierState]:
    of, on = TierState, TierEvent
    table = {(state, event): stop for state in _LIVING for event, stop in _STOPS.items()}
    table |= {(state, on.DELETED): of.DELETED for state in _LIVING}
    # Each change of settings sends TIERED or UNTIERED. Only LOCAL_ONLY and UNREACHED react to them.
    table |= {(state, event): state for state in _LIVING for event in (on.TIERED, on.UNTIERED)}
    table |= {(of.LOCAL_ONLY, on.TIERED): of.UNREACHED, (of.UNREACHED, on.UNTIERED): of.LOCAL_ONLY}
    table |= {(state, on.AGREED): of.UNREACHED for state in STOPPED | {of.UNREACHED}}
    table |= {(state, on.ACQUIRED): of.WRITER for state in STOPPED | {of.UNREACHED}}
    # A task of a deleted topic may still report events: they change nothing.
    return table | {(of.DELETED, event): of.DELETED for event in TierEvent}


TRANSITIONS = _transitions()

_YES, _NO, _IF = Permission.ALLOWED, Permission.FORBIDDEN, Permission.CHECKED
PERMISSIONS: dict[TierState, dict[TierAction, Permission]] = {
    state: dict(zip(TierAction, cells, strict=True))
    for state, cells in {
        # append, read remote, upload, delete remote, clean, drop, expire
        TierState.LOCAL_ONLY: (_YES, _NO, _NO, _NO, _YES, _YES, _YES),
        TierState.UNREACHED: (_IF, _YES, _NO, _NO, _NO, _NO, _NO),
        TierState.WRITER: (_YES, _YES, _YES, _YES, _YES, _YES, _YES),
        TierState.IN_DOUBT: (_YES, _YES, _YES, _YES, _IF, _NO, _YES),
        TierState.DISABLED: (_YES, _NO, _NO, _YES, _YES, _YES, _YES),
        TierState.FENCED: (_NO, _IF, _NO, _NO, _NO, _NO, _NO),
        TierState.DIVERGED: (_NO, _IF, _NO, _NO, _NO, _NO, _NO),
        TierState.LOST: (_NO, _IF, _NO, _NO, _NO, _NO, _NO),
        TierState.REFUSED: (_NO, _IF, _NO, _NO, _NO, _NO, _NO),
        TierState.DELETED: (_NO, _NO, _NO, _NO, _NO, _NO, _NO),
    }.items()
}


def next_state(state: TierState, event: TierEvent) -> TierState:
    """The state after the event. An event that the table lacks for this state fails an assertion."""
    assert (state, event) in TRANSITIONS, f"no transition of a partition: state={state.name} event={event.name}"
    return TRANSITIONS[state, event]


class TierMachine:
    """Owns the state of one partition's tier. Thread safe.

    `error` is that of a stopped state. `has_agreed`: this process was the writer at least once.
    """

    def __init__(self, *, is_tiered: bool) -> None:
        self.state = TierState.UNREACHED if is_tiered else TierState.LOCAL_ONLY
        self.error: LogError | None = None
        self.is_tiered = is_tiered
        self.has_agreed = False
        self._lock = threading.Lock()

    def seen(self, *, is_fenced: bool, has_commit_in_doubt: bool, is_disabled: bool) -> TierState:
        """The state with the facts of the commit protocol: a writer may be fenced, in doubt, or disabled."""
        if (state := self.state) is not TierState.WRITER:
            return state
        if is_fenced:
            return TierState.FENCED
        if has_commit_in_doubt:
            return TierState.IN_DOUBT
        return TierState.DISABLED if is_disabled else TierState.WRITER

    def set_tiered(self, is_tiered: bool) -> None:
        self._move(TierEvent.TIERED if is_tiered else TierEvent.UNTIERED)
        self.is_tiered = is_tiered

    def acquire(self) -> None:
        assert self.is_tiered, "a partition without a remote tier has no writer"
        self._move(TierEvent.ACQUIRED)
        self.has_agreed = True

    def agree(self) -> None:
        self._move(TierEvent.AGREED)

    def stop(self, error: LogError) -> None:
        """Forbid all changes because of this error, until `acquire` or `agree`."""
        events = {Fenced: TierEvent.FENCED, Diverged: TierEvent.DIVERGED, RemoteLost: TierEvent.LOST}
        event = next((event for kind, event in events.items() if isinstance(error, kind)), TierEvent.REFUSED)
        self._move(event, error)

    def delete(self) -> None:
        self._move(TierEvent.DELETED)

    def _move(self, event: TierEvent, error: LogError | None = None) -> None:
        with self._lock:
            after = next_state(self.state, event)
            if after not in STOPPED:
                self.error = None
            elif error is not None:
                self.error = error
            self.state = after


class UploadState(Enum):
    """The state of an upload. The same entry may be committed again from IN_DOUBT."""

    UPLOADED = "uploaded"  # the objects are complete; no commit named them yet
    COMMITTING = "committing"  # a commit that names them was sent
    IN_DOUBT = "in doubt"  # that commit raised an error: the newest manifest may name them
    COMMITTED = "committed"  # a manifest names them; the upload leaves the ledger


UPLOAD_TRANSITIONS: dict[UploadState, frozenset[UploadState]] = {
    UploadState.UPLOADED: frozenset({UploadState.COMMITTING}),
    UploadState.COMMITTING: frozenset({UploadState.COMMITTED, UploadState.IN_DOUBT}),
    UploadState.IN_DOUBT: frozenset({UploadState.COMMITTING}),
    UploadState.COMMITTED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Upload:
    """A copied segment that no known manifest names yet, uploaded by the writer of this epoch."""

    epoch: int
    entry: SegmentEntry
    state: UploadState = UploadState.UPLOADED

    @property
    def may_be_committed(self) -> bool:
        """Whether the newest manifest may name it: its objects may have readers."""
        return self.state is not UploadState.UPLOADED

    def moved(self, state: UploadState) -> Upload:
        assert state in UPLOAD_TRANSITIONS[self.state], f"no transition of an upload: {self.state} to {state}"
        return replace(self, state=state)


class Uploads:
    """A ledger of the uploads without a known commit, and of the segments that a copy uses.

    It is in the memory of this process: after a restart, uploads without a commit are orphans. The holder of
    `tier_lock` changes it; any thread may read it.
    """

    def __init__(self) -> None:
        self.copying: frozenset[int] = frozenset()  # base offsets of segments being copied, which must stay unchanged
        self.shrunk: dict[int, Segment] = {}  # by base offset: segments that hold fewer records than their entries
        self._of: dict[Segment, Upload] = {}
        self._has_removed_doubtful = False

    def items(self) -> Mapping[Segment, Upload]:
        return dict(self._of)

    def find(self, segment: Segment, epoch: int) -> Upload | None:
        found = self._of.get(segment)
        return found if found is not None and found.epoch == epoch else None

    @property
    def may_be_committed(self) -> bool:
        """Whether a commit in doubt may contain an upload of this process."""
        return self._has_removed_doubtful or any(each.may_be_committed for each in self.items().values())

    @property
    def shrunk_bases(self) -> frozenset[int]:
        return frozenset(base for base, segment in list(self.shrunk.items()) if not segment.is_retired)

    def add(self, segment: Segment, epoch: int, entry: SegmentEntry) -> None:
        """Add an uploaded segment. Its upload of an earlier epoch is replaced: that one is an orphan."""
        self._of[segment] = Upload(epoch, entry)

    def replace_entry(self, segment: Segment, entry: SegmentEntry) -> None:
        """Replace the entry of an upload whose data key was wrapped again."""
        self._of[segment] = replace(self._of[segment], entry=entry)

    @contextmanager
    def committing(self, used: Collection[Segment], epoch: int) -> Iterator[list[SegmentEntry]]:
        """Record the states of the `used` segments' uploads during the commit that names them.

        Yields the entries of this epoch whose local segment no longer exists: the commit unlinks them. If the commit
        returns, these and the uploads of earlier epochs (orphans) leave the ledger. Otherwise its outcome is unknown.
        """
        retired = {segment: each for segment, each in self.items().items() if segment.is_retired}
        named = [segment for segment in used if segment in self._of]
        self._move(named, UploadState.COMMITTING)
        try:
            yield [each.entry for each in retired.values() if each.epoch == epoch]
        except BaseException:
            self._move(named, UploadState.IN_DOUBT)
            raise
        self._move(named, UploadState.COMMITTED)
        for segment in {*named, *retired}:
            del self._of[segment]

    def remove_doubtful(self) -> None:
        """Remove the uploads that a commit in doubt may have named; the caller unlinks all entries."""
        doubtful = [segment for segment, each in self.items().items() if each.may_be_committed]
        self._has_removed_doubtful |= bool(doubtful)  # before the removal: one may be in the newest manifest
        for segment in doubtful:
            del self._of[segment]

    def mark_copying(self, base_offsets: Collection[int]) -> None:
        """Keep these segments unchanged until `unmark_copying`: no drop, and no cleaning of the log."""
        self.copying = frozenset(base_offsets)

    def unmark_copying(self) -> None:
        self.copying = frozenset()

    def _move(self, segments: Collection[Segment], state: UploadState) -> None:
        for segment in segments:
            self._of[segment] = self._of[segment].moved(state)
