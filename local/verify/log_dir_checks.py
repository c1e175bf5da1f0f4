"""Check the log directories of one node together: duplicate partitions, and leftovers of moves.

Only names are read, and nothing is written. `local.verify.directories` checks the content of each directory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from local.errors import AccessDenied, DiskFailed, NotFound
from local.names import TopicPartition, parse_marked_directory, parse_partition_directory
from local.storage import Storage, join
from local.verify.findings import Finding, Severity


def check_log_dirs(storage: Storage, roots: Sequence[str]) -> list[Finding]:
    """Find partitions in two directories, and partitions that exist only as ``-future`` or ``-delete``.

    | state | severity | at the next start |
    |---|---|---|
    | in two directories | CORRUPT | both copies are refused (`local.logdirs.log_dirs`) |
    | only as a leftover of a move | WARNING | not created again; the operator decides (`local.logdirs.move_recovery`) |

    The directories are listed twice: a partition may move between the listings of two directories. A root that cannot
    be listed is skipped. A long topic name may be shortened in a ``-delete``.
    """
    found = list(_look(storage, roots))
    return [each for each in _look(storage, roots) if each in found] if found else []


def _look(storage: Storage, roots: Sequence[str]) -> Iterator[Finding]:
    here: dict[TopicPartition, list[str]] = defaultdict(list)
    left: dict[TopicPartition, list[str]] = defaultdict(list)
    for root in roots:
        for name in _listed(storage, root):
            marked = parse_marked_directory(name)
            partition = marked[0] if marked else parse_partition_directory(name)
            if partition is not None:
                (left if marked else here)[partition].append(join(root, name))
    for partition, paths in sorted(here.items()):
        for path in paths[1:]:
            what = (
                "the partition is in two log directories, a manager refuses to start: "
                f"partition={partition} other={paths[0]}"
            )
            yield Finding(severity=Severity.CORRUPT, path=path, what=what)
    for partition, paths in sorted(left.items()):
        for path in paths if partition not in here else ():
            what = f"a move left this copy and the partition itself is missing: partition={partition}"
            yield Finding(severity=Severity.WARNING, path=path, what=what)


def _listed(storage: Storage, root: str) -> list[str]:
    try:
        return storage.list(root)
    except (NotFound, DiskFailed, AccessDenied):
        return []
