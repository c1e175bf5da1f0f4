"""Building indexes anew where `local.verify.directories` found them wrong or missing, with the log directory held
meanwhile.

Order of effects: the lock of the log dir is taken, then each segment's indexes are written whole and synced
(`recovery.rebuild_indexes`). A crash in between leaves some of them new and the others as they were. The ``.log`` is
never written to.
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
    """The paths of the logs whose indexes were built anew. Raises Conflict while a manager holds their directory.

    `interval_of` gives ``index.interval.bytes`` of a partition's directory.

    The indexes of a log whose headers break off stay as they are; it is among the findings itself.
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
    """The segment whose index the finding is about; None for anything else."""
    parsed = parse_segment_file(finding.path.rpartition("/")[2])
    if parsed is None or parsed[1] not in (OFFSET_INDEX, TIME_INDEX) or finding.severity is Severity.INFO:
        return None
    return parent(finding.path), parsed[0]


def _log(directory: str, base: int) -> str:
    return join(directory, names.segment_file(base, names.LOG))
