"""Compare index files with their log: every entry, and missing entries.

| file          | an entry is right if |
|---------------|----------------------|
| ``.index``    | its position is the start of a batch, and its offset is the last offset of that batch |
| ``.timeindex``| its offset is the last offset of a batch, and its timestamp is the largest up to there |

Brokers up to Kafka 4.0 write one entry per append, which may be several batches: the position of the first batch and
the last offset of the last. That is legal too (INFO). A preallocated index of an active segment ends in zeros, also
after a crash. Source: kafka `DumpLogSegments`, `OffsetIndex`, `TimeIndex`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial

import numpy as np
from numpy.typing import NDArray

from local import names
from local.errors import Corrupt
from local.format.columns import BatchTable
from local.index import offset_index, time_index
from local.log import recovery
from local.names import OFFSET_INDEX, TIME_INDEX, parse_segment_file
from local.storage import SegmentFiles, Storage, join, parent
from local.verify.findings import Finding, Severity, finding, message

FINDINGS_MAX = 5  # of one kind and file; further findings are only counted
INTERVAL_BYTES = offset_index.INTERVAL_BYTES
# Reopening a log resets the counter of bytes since the last entry, so legal gaps may be long.
_GAP_REPORTED, _GAP_ODD = 4, 64


def check_offset_index(
    data: bytes, base_offset: int, batches: BatchTable, *, path: str, interval_bytes: int = INTERVAL_BYTES
) -> list[Finding]:
    """Check an ``.index`` against all batches of its segment. Returns no findings if it is sound."""
    found, whole = _whole(data, offset_index.ENTRY_BYTES, path)
    relative, positions = offset_index.columns(whole)
    offsets = base_offset + relative
    bad = relative < 0
    bad[1:] |= (np.diff(offsets) <= 0) | (np.diff(positions) <= 0)
    report = partial(_findings_of_entries, entry_bytes=offset_index.ENTRY_BYTES, offsets=offsets, path=path)
    found += report("offset-index.disorder", bad)
    row = np.searchsorted(batches.positions, positions)
    is_start = _at(batches.positions, row, -1) == positions
    found += report("offset-index.position", ~is_start & ~bad)
    own = _at(batches.last_offsets, row, -1)
    following = np.append(positions[1:], batches.valid_bytes)
    append_row = np.searchsorted(batches.last_offsets, offsets)
    is_append = (_at(batches.last_offsets, append_row, -1) == offsets) & (append_row > row)
    is_append &= _at(batches.positions, append_row, batches.valid_bytes) < following
    checked = is_start & ~bad
    found += report("offset-index.offset", checked & (own != offsets) & ~is_append, expected=own)
    if (checked & (own != offsets) & is_append).any():
        found.append(finding("offset-index.appends", path))
    return [*found, *_gaps(positions, batches, path, interval_bytes)]


def check_time_index(
    data: bytes, base_offset: int, batches: BatchTable, *, path: str, is_active: bool = False
) -> list[Finding]:
    """Check a ``.timeindex``. Returns no findings if it is sound. An active index may lack its last entry."""
    found, whole = _whole(data, time_index.ENTRY_BYTES, path)
    timestamps, relative = time_index.columns(whole)
    offsets = base_offset + relative
    bad = relative < 0
    bad[1:] |= (np.diff(timestamps) <= 0) | (np.diff(offsets) < 0)
    report = partial(_findings_of_entries, entry_bytes=time_index.ENTRY_BYTES, offsets=offsets, path=path)
    found += report("time-index.disorder", bad)
    row = np.searchsorted(batches.last_offsets, offsets)
    is_last = _at(batches.last_offsets, row, -1) == offsets
    found += report("time-index.offset", ~is_last & ~bad)
    so_far = np.maximum.accumulate(batches.max_timestamps) if len(batches) else batches.max_timestamps
    largest = _at(so_far, row, -1)
    checked = is_last & ~bad
    wrong = checked & (largest != timestamps)
    found += report("time-index.timestamp", wrong, expected=largest)
    if (checked & ~wrong & (_at(batches.max_timestamps, row, -1) != timestamps)).any():
        found.append(finding("time-index.appends", path))
    last = int(so_far[-1]) if len(so_far) else 0
    if not is_active and last > 0 and (not len(timestamps) or timestamps[-1] < last):
        found.append(finding("time-index.incomplete", path, at=len(whole), largest_timestamp=last))
    return found


def without_zeros(data: bytes, entry_bytes: int) -> bytes:
    """The entries before the zeros at the end of the file; none if the file has only zeros."""
    end = len(data.rstrip(b"\0"))
    return data[: -(-end // entry_bytes) * entry_bytes]


def _whole(data: bytes, entry_bytes: int, path: str) -> tuple[list[Finding], bytes]:
    found: list[Finding] = []
    if len(data) % entry_bytes:
        at = len(data) - len(data) % entry_bytes
        found.append(finding("index.size", path, at=at, entry_bytes=entry_bytes))
        data = data[:at]
    used = without_zeros(data, entry_bytes)
    if len(used) < len(data):
        found.append(finding("index.empty-slots", path, at=len(used), slots=(len(data) - len(used)) // entry_bytes))
    return found, used


def _findings_of_entries(
    code: str,
    rows: NDArray[np.bool_],
    *,
    entry_bytes: int,
    offsets: NDArray[np.int64],
    path: str,
    expected: NDArray[np.int64] | None = None,
) -> Iterator[Finding]:
    """One finding per marked entry up to FINDINGS_MAX, then one finding with the number of the rest."""
    marked = np.flatnonzero(rows).tolist()
    for at in marked[:FINDINGS_MAX]:
        offset = int(offsets[at])
        what = None if expected is None else message(code, expected=int(expected[at]))
        offsets_of = (offset, offset + 1) if offset >= 0 else None
        yield finding(code, path, what=what, at=at * entry_bytes, offsets=offsets_of)
    if len(marked) > FINDINGS_MAX:
        yield finding(code, path, what=f"{message(code)}: {len(marked) - FINDINGS_MAX} more")


def _gaps(positions: NDArray[np.int64], batches: BatchTable, path: str, interval_bytes: int) -> Iterator[Finding]:
    if not len(batches):
        return
    largest_batch = int(np.diff(batches.positions, append=batches.valid_bytes).max())
    gaps = np.diff(positions, prepend=0, append=batches.valid_bytes)
    gap = int(gaps.max()) - 2 * largest_batch
    if gap > _GAP_REPORTED * interval_bytes:
        severity = Severity.WARNING if gap > _GAP_ODD * interval_bytes else Severity.INFO
        at = int(gaps.argmax()) * offset_index.ENTRY_BYTES
        yield finding(
            "offset-index.gap", path, severity=severity, at=at, bytes=int(gaps.max()), interval=interval_bytes
        )


def _at(values: NDArray[np.int64], rows: NDArray[np.intp], missing: int) -> NDArray[np.int64]:
    return np.append(values, missing)[np.minimum(rows, len(values))]


# Rebuild indexes that `local.verify.directories` found wrong or missing. The ``.log`` is never written.
#
# Order of effects: lock each log directory; then write and sync all indexes of one segment after the other
# (`recovery.rebuild_indexes`). A crash leaves some indexes new and the others unchanged.


def fix_indexes(storage: Storage, findings: Sequence[Finding], *, interval_of: Callable[[str], int]) -> list[str]:
    """Rebuild the indexes that the findings name; return the paths of their logs.

    A log with damaged headers stays unchanged. Raises Conflict while a manager holds a log directory.
    """
    fixed = []
    doomed = sorted({place for each in findings if (place := _place_of(each)) is not None})
    doomed = [(directory, base) for directory, base in doomed if storage.exists(_log(directory, base))]
    with ExitStack() as stack:
        for root in sorted({parent(directory) for directory, _ in doomed}):
            stack.enter_context(closing(storage.lock(join(root, names.LOCK))))
        for directory, base in doomed:
            with suppress(Corrupt):
                recovery.rebuild_indexes(SegmentFiles(storage, directory, base), interval_bytes=interval_of(directory))
                fixed.append(_log(directory, base))
    return fixed


def _place_of(finding: Finding) -> tuple[str, int] | None:
    parsed = parse_segment_file(finding.where.rpartition("/")[2])
    if parsed is None or parsed[1] not in (OFFSET_INDEX, TIME_INDEX) or finding.severity is Severity.INFO:
        return None
    return parent(finding.where), parsed[0]


def _log(directory: str, base: int) -> str:
    return join(directory, names.segment_file(base, names.LOG))
