"""Check of the local compacted views against their catalog, for `tiered verify`. Writes nothing.

| file | checked against |
|---|---|
| ``view-catalog`` | its checksum and its own rules |
| a part, its indexes | the size, the CRC-32C and the offsets in the catalog; every batch's CRC |
| any other file below ``view`` | the names in the catalog; an unnamed file is deleted by the next start |

Another process may switch a view during the check. So a problem is checked again with a fresh catalog.
"""

from __future__ import annotations

from collections.abc import Iterator

from local import kernels
from local.errors import AccessDenied, Corrupt, DiskFailed, LogError, NotFound
from local.format.crc32c import crc32c
from local.log.view_directory import view_files
from local.names import VIEW_CATALOG, parse_partition_directory
from local.storage import Storage, join
from local.verify.findings import DAMAGED, Finding, Severity, corrupt, damaged, info, unreadable, worst
from remote.manifest.view_changes import ViewCatalog, decode_catalog
from remote.segment_entry import SegmentEntry
from remote.segments.index_bundle import decode_bundle

_DELETED_FILE = info("view.deleting", "the file waits for its deletion")
_LEFT_FILE = info("view.leftover", "no view names it: leftover of an interrupted run; the next start deletes it")
_NO_FILE = corrupt("view.missing", "a view names a file that does not exist: drop the view and build it again")
_TRIES = 3


def verify_views(storage: Storage, path: str) -> list[Finding]:
    """Return the problems of views in a log directory or a partition's; none for any other path."""
    path = path.rstrip("/") or "/"
    if not storage.is_directory(path):
        return []
    try:
        if parse_partition_directory(path.rpartition("/")[2]) is not None:
            return _verify_partition(storage, path)
        partitions = [join(path, name) for name in storage.list(path) if parse_partition_directory(name) is not None]
    except (DiskFailed, AccessDenied) as error:
        return [unreadable(error, path)]
    return [
        finding for each in partitions if storage.is_directory(each) for finding in _verify_partition(storage, each)
    ]


def _verify_partition(storage: Storage, directory: str) -> list[Finding]:
    found: list[Finding] = []
    for _ in range(_TRIES):
        found = list(_findings(storage, directory))
        if worst(found) is not Severity.CORRUPT:
            break
    return found


def _findings(storage: Storage, directory: str) -> Iterator[Finding]:
    path = join(directory, VIEW_CATALOG)
    try:
        there = view_files(storage, directory)
        catalog = decode_catalog(storage.read(path), path=path) if storage.exists(path) else ViewCatalog()
    except Corrupt as error:
        yield damaged(error, path)
        return
    except NotFound:
        return
    except (DiskFailed, AccessDenied) as error:
        yield unreadable(error, path)
        return
    for view in catalog.views:
        for entry in view.entries:
            yield from _of_part(storage, directory, entry)
    waiting = {each.key for each in catalog.pending_deletes}
    for key in there:
        if key in waiting:
            yield _DELETED_FILE.found(join(directory, key))
        elif key not in catalog.named_keys:
            yield _LEFT_FILE.found(join(directory, key))


def _of_part(storage: Storage, directory: str, entry: SegmentEntry) -> Iterator[Finding]:
    path = join(directory, entry.data_key)
    try:
        body = storage.map(path)
        if (found := crc32c(body)) != entry.data_crc32c or len(body) != entry.stored_bytes:
            facts = {"expected_bytes": entry.stored_bytes, "found_bytes": len(body)}
            expected = f"{entry.data_crc32c:08x}"
            raise Corrupt("a part of a view differs from its catalog", **facts, expected=expected, found=f"{found:08x}")
        table = kernels.scan_batches(body, verify=True)
        if table.valid_bytes != len(body) or int(table.last_offsets[-1]) >= entry.next_offset:
            raise Corrupt("a part of a view is not whole batches of its offsets", at=table.valid_bytes)
        path = join(directory, entry.indexes_key)
        decode_bundle(storage.read(path))
    except NotFound:
        yield _NO_FILE.found(path)
    except Corrupt as error:
        yield damaged(error, path)
    except (DiskFailed, AccessDenied) as error:
        yield unreadable(error, path)
    except LogError as error:
        yield DAMAGED.found(path, what=str(error))
