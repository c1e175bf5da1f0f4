"""Group the decided segments, and create the bytes of each new segment.

Used by the cleaner of a local log and by jobs that clean the bucket. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from local import kernels
from local.cleaner.cleaner_io import CleanerThrottle
from local.cleaner.record_retention import SegmentVerdict
from local.index import offset_index, time_index
from local.index.index_building import IndexRows
from local.segment.segment import RELATIVE_OFFSET_MAX
from local.settings import LogSettings
from local.storage import Storage

POSITION_MAX = 2**31 - 1  # positions in an offset index are int32


def grouped(
    judged: Sequence[SegmentVerdict],
    settings: LogSettings,
    storage: Storage,
    limiter: CleanerThrottle,
    *,
    apart_at: int = 0,
) -> list[list[SegmentVerdict]]:
    """Merge neighbours whose remaining records fit one segment; every other segment stays alone.

    Kafka groups by the sizes before cleaning. Grouping by the sizes after it gives the store fewer and larger objects.
    The segment that starts at `apart_at` is not merged with its predecessor. Raises as `SegmentVerdict.measure`.
    """
    groups: list[list[SegmentVerdict]] = []
    for each in judged:
        is_apart = each.segment.base_offset == apart_at
        if groups and not is_apart and _fits([*groups[-1], each], settings, storage, limiter):
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def survivors(
    group: Sequence[SegmentVerdict],
    storage: Storage,
    limiter: CleanerThrottle,
    rows: IndexRows,
    horizon_ms: int,
    out: NDArray[np.uint8],
) -> Iterator[memoryview]:
    """The bytes of the new segment; each part is valid until the next. Adds its batches to `rows`.

    `out` is the memory for the parts. If all batches would be removed, one stays, empty: no file is empty.
    """
    is_empty = all(each.is_empty for each in group)
    for each in group:
        slices = limiter.slices(storage, each.segment, each.mapped)
        for (_, data), verdict in zip(slices, each.slices, strict=True):
            actions = verdict.actions
            if is_empty and each is group[-1] and verdict is each.slices[-1]:
                actions = actions.copy()
                actions[-1] = verdict.last_stays
            for part in kernels.rebuilt_batches(data, verdict.keep, actions, horizon_ms, out):
                table = kernels.scan_batches(part, verify=False)
                assert table.valid_bytes == len(part)
                rows.add(table)
                yield part


def _fits(group: Sequence[SegmentVerdict], settings: LogSettings, storage: Storage, limiter: CleanerThrottle) -> bool:
    """Whether the remains of `group` form a legal segment.

    Records are measured only if the bounds do not decide.
    """
    if group[-1].next_offset - 1 - group[0].segment.base_offset > RELATIVE_OFFSET_MAX:
        return False
    if _is_legal(group, sum(each.bytes_most for each in group), settings):
        return True
    if not _is_legal(group, sum(each.bytes_least for each in group), settings):
        return False
    for each in group:
        each.measure(storage, limiter)
    return _is_legal(group, sum(each.bytes_most for each in group), settings)


def _is_legal(group: Sequence[SegmentVerdict], size: int, settings: LogSettings) -> bool:
    """Whether `size` bytes and both their indexes are legal for one segment."""
    # An index entry follows more than `index_interval_bytes` of log; the time index has one final entry.
    entries = min(size // (settings.index_interval_bytes + 1), sum(each.batches_after for each in group))
    index_bytes = max(entries * offset_index.ENTRY_BYTES, (entries + 1) * time_index.ENTRY_BYTES)
    return size <= min(settings.segment_bytes, POSITION_MAX) and index_bytes <= settings.segment_index_bytes
