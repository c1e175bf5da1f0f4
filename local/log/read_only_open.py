"""A read-only open of a partition directory that another process may write. Changes nothing.

It reads the listing and the end of the last segment, and never imports `local.log.loading`: ``tiered status`` opens
every log of a node. A listing is not atomic, so the names are listed twice. If they changed, or if a swap is under way,
the open is repeated after each of PAUSES_S.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from local import names
from local.errors import NotFound, Unavailable
from local.format.batch_header import walk
from local.index.sealed_indexes import SHARED, Access
from local.log.producer_state import ProducerFiles, ProducerState
from local.segment.segment import RELATIVE_OFFSET_MAX, Segment
from local.storage import FileFacts, SegmentFiles, Storage

WALKED_BYTES_MAX = 1 << 20  # a longer tail is left to the kernels
PAUSES_S = (0.01, 0.05, 0.25)  # a swap syncs its directory several times
_LOGS = (names.LOG, names.LOG + names.SWAP)
_LISTED = (*_LOGS, names.TXN_INDEX)


class Found(NamedTuple):
    """The closed segments on the disk, ascending, at least one, and the log end."""

    segments: list[Segment]
    next_offset: int


class ReadOnlySource:
    """The directory of a read-only log. Unless `is_tiered`, the log start is at least the first base."""

    def __init__(self, storage: Storage, directory: str, log_start_offset: int, *, is_tiered: bool) -> None:
        self.has_read_producers = False
        self._storage, self._directory = storage, directory
        self._log_start_offset, self._is_tiered = log_start_offset, is_tiered
        self._segments: list[Segment] = []
        self._files = ProducerFiles(storage, directory, is_onlooker=True)

    def load(self) -> tuple[Found, int]:
        """Load the current files; also return the log start. Raises NotFound if a log was moved or deleted."""
        if any(each.size_bytes for each in self._segments) and not self._storage.exists(self._directory):
            raise NotFound("cannot refresh the log, it was moved or deleted", path=self._directory)
        found, start = load_read_only(self._storage, self._directory, self._log_start_offset), self._log_start_offset
        if not self._is_tiered:
            start = max(start, found.segments[0].base_offset)
        if found.next_offset < start:  # the next start discards it
            found = _nothing(self._storage, self._directory, start)
        self._files = ProducerFiles(self._storage, self._directory, is_onlooker=True)
        self._segments, self.has_read_producers = found.segments, False
        return found, start

    def producers_at(self, offset: int) -> ProducerState:
        """Read the producers at the log end or at the base of the last segment."""
        return self._files.state_at(offset, [each.base_offset for each in self._segments], may_vanish=True)


def load_read_only(
    storage: Storage, directory: str, log_start_offset: int, *, pause: Callable[[float], None] = time.sleep
) -> Found:
    """Return the log on disk now: at least one segment, no torn tail. Changes nothing.

    Raises Unavailable between steps 3 and 5 of a swap (`local.segment.swap`): the log would seem to have a hole.
    """
    for pause_s in PAUSES_S:
        try:
            return _load_once(storage, directory, log_start_offset)
        except (Unavailable, NotFound):
            pause(pause_s)
    return _load_once(storage, directory, log_start_offset)


def _load_once(storage: Storage, directory: str, log_start_offset: int) -> Found:
    listed = _listed(storage, directory) if storage.exists(directory) else {}
    parsed = _logs(listed)
    bases = sorted(base for base, suffix in parsed if suffix == names.LOG)
    missing = {base for base, suffix in parsed if suffix == names.LOG + names.SWAP} - set(bases)
    if missing:
        attempt = "a segment swap is in progress; retry, or let the manager of the directory finish it"
        facts = {"directory": directory, "base_offset": min(missing)}
        raise Unavailable(f"cannot open the log read-only, {attempt}", **facts)
    segments = [found_segment(SegmentFiles(storage, directory, base), listed, SHARED) for base in bases]
    if not segments:
        return _nothing(storage, directory, log_start_offset)
    return Found(segments, trim_to_whole_batches(segments[-1]))


def _nothing(storage: Storage, directory: str, next_offset: int) -> Found:
    """Return a log without records that continues at `next_offset`."""
    return Found([Segment.found(SegmentFiles(storage, directory, next_offset), FileFacts(0, 0), SHARED)], next_offset)


def _listed(storage: Storage, directory: str) -> Mapping[str, FileFacts]:
    """Return a stable listing. Raises Unavailable unless only newer logs were added."""
    before = _logs(storage.list(directory))
    files = storage.list_files(directory, _LISTED)
    newest = max(before, default=(-1, ""))[0]
    for after in (_logs(files), _logs(storage.list(directory))):
        if {each for each in after if each[0] <= newest} != before:
            raise Unavailable("cannot open the log read-only, its manager is changing it; retry", directory=directory)
    return files


def _logs(files: Iterable[str]) -> set[tuple[int, str]]:
    return {found for name in files if name.endswith(_LOGS) and (found := names.parse_segment_file(name))}


def found_segment(files: SegmentFiles, listed: Mapping[str, FileFacts], access: Access) -> Segment:
    """Return the closed segment that the listing describes."""
    log = listed[names.segment_file(files.base_offset, names.LOG)]
    has_aborted = names.segment_file(files.base_offset, names.TXN_INDEX) in listed
    return Segment.found(files, log, access, has_aborted)


def trim_to_whole_batches(segment: Segment) -> int:
    """Limit a shared segment to its sound batches; return the end. Scans from a confirmed last index entry."""
    segment.may_grow = True
    # Entries past the known bytes were added since the listing.
    inside = [each for each in segment.last_offset_entries() if 0 <= each[1] < segment.size_bytes]
    last_offset, start = inside[-1] if inside else (None, 0)
    if segment.size_bytes - start <= WALKED_BYTES_MAX:
        found = walk(segment.read(start, segment.size_bytes))
        if found is not None and last_offset in (None, found.last_offset):
            segment.show(start + found.valid_bytes, found.max_timestamp_ms)
            return found.next_offset
    if segment.size_bytes:
        from local import kernels

        position = segment.entry_before(segment.base_offset + RELATIVE_OFFSET_MAX)[1]
        for start in (position, 0):
            # First from the last index entry; from the start of the log if the batch of the entry is torn.
            table = kernels.scan_batches(segment.read(start, segment.size_bytes))
            if len(table):
                segment.show(start + table.valid_bytes, int(table.max_timestamps.max()))
                return int(table.last_offsets[-1]) + 1
    segment.show(0, -1)
    return segment.base_offset
