"""Rebuild indexes that `local.verify.directories` found wrong or missing, under the directory's lock.

Order of effects:

1. Lock each log directory.
2. Write and sync all indexes of one segment (`recovery.rebuild_indexes`); repeat for each segment.

A crash during step 2 leaves some indexes new and the others unchanged. The ``.log`` is never written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress

from local import names
from local.errors import Corrupt
from local.log import recovery
from local.names import OFFSET_INDEX, TIME_INDEX, parse_segment_file
from local.storage import Storage, join, parent
from local.verify.findings import Finding, Severity


def fix_indexes(storage: Storage, findings: Sequence[Finding], *, interval_of: Callable[[str], int]) -> list[str]:
    """Rebuild the indexes that the findings name; return the paths of their logs.

    `interval_of` returns ``index.interval.bytes`` of a partition's directory. If the headers of a log are damaged, its
    indexes stay unchanged; the log has a finding of its own. Raises Conflict while a manager holds a log directory.
    """
    fixed = []
    doomed = sorted({place for each in findings if (place := _place_of(each)) is not None})
    doomed = [(directory, base) for directory, base in doomed if storage.exists(_log(directory, base))]
    with ExitStack() as stack:
        for root in sorted({parent(directory) for directory, _ in doomed}):
            stack.enter_context(closing(storage.lock(join(root, names.LOCK))))
        for directory, base in doomed:
            with suppress(Corrupt):
                recovery.rebuild_indexes(storage, directory, base, interval_bytes=interval_of(directory))
                fixed.append(_log(directory, base))
    return fixed


def _place_of(finding: Finding) -> tuple[str, int] | None:
    """The segment of the index that the finding concerns; None for any other finding."""
    parsed = parse_segment_file(finding.path.rpartition("/")[2])
    if parsed is None or parsed[1] not in (OFFSET_INDEX, TIME_INDEX) or finding.severity is Severity.INFO:
        return None
    return parent(finding.path), parsed[0]


def _log(directory: str, base: int) -> str:
    return join(directory, names.segment_file(base, names.LOG))
