"""`Uploads`: a ledger of what each segment's upload is, and of the segments that a copy uses.

An upload is a copied segment that no known manifest names yet. The ledger is in the memory of this process: after a
restart, uploads without a commit are orphans.

| state | meaning |
|---|---|
| UPLOADED | the objects are complete; no commit named them yet |
| COMMITTING | a commit that names them was sent |
| IN_DOUBT | that commit raised an error: the newest manifest may name them |
| COMMITTED | a manifest names them; the upload leaves the ledger |

A commit that failed without effect also leaves IN_DOUBT. That forbids more than necessary, and the next commit of the
same entry changes nothing if the first one succeeded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum

from local.segment.segment import Segment
from remote.segment_entry import SegmentEntry


class UploadState(Enum):
    UPLOADED = "uploaded"
    COMMITTING = "committing"
    IN_DOUBT = "in doubt"
    COMMITTED = "committed"


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
    """The ledger of one partition. The holder of `tier_lock` changes it; any thread may read it.

    | attribute | meaning |
    |---|---|
    | `copying` | base offsets of the segments being copied, which must stay unchanged |
    | `shrunk` | by base offset: segments that hold fewer records than their entries |
    """

    def __init__(self) -> None:
        self.copying: frozenset[int] = frozenset()
        self.shrunk: dict[int, Segment] = {}
        self._of: dict[Segment, Upload] = {}
        self._has_removed_doubtful = False

    def __len__(self) -> int:
        return len(self._of)

    def items(self) -> Mapping[Segment, Upload]:
        """A copy of the ledger."""
        return dict(self._of)

    def find(self, segment: Segment, epoch: int) -> Upload | None:
        """The upload of this segment by the writer of this epoch; None without one."""
        found = self._of.get(segment)
        return found if found is not None and found.epoch == epoch else None

    @property
    def may_be_committed(self) -> bool:
        """Whether a commit in doubt may contain an upload of this process."""
        return self._has_removed_doubtful or any(each.may_be_committed for each in self.items().values())

    @property
    def shrunk_bases(self) -> frozenset[int]:
        """Base offsets of the shrunk segments that still exist."""
        return frozenset(base for base, segment in list(self.shrunk.items()) if not segment.is_retired)

    def add(self, segment: Segment, epoch: int, entry: SegmentEntry) -> None:
        """A segment was uploaded. An upload of an earlier epoch is replaced: it is an orphan."""
        self._of[segment] = Upload(epoch, entry)

    def replace_entry(self, segment: Segment, entry: SegmentEntry) -> None:
        """The entry of an upload changed: its key was wrapped again."""
        self._of[segment] = replace(self._of[segment], entry=entry)

    @contextmanager
    def committing(self, used: Collection[Segment], epoch: int) -> Iterator[list[SegmentEntry]]:
        """Around the commit that names the uploads of the `used` segments.

        Gives the entries of this epoch whose local segment no longer exists: the commit unlinks them. Uploads of an
        earlier epoch are orphans, which GC finds by their names. If the commit returns, all of these leave the ledger.
        Otherwise its outcome is unknown.
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
        self._has_removed_doubtful |= bool(doubtful)  # first: one may be an entry
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
