"""Checks of `tiered verify` beyond the local logs: the bucket, and the compacted views."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b

from local import kernels
from local.errors import AccessDenied, Corrupt, DiskFailed, InvalidRequest, LogError, NotFound
from local.format.crc32c import crc32c
from local.logdirs.log_moves import view_files
from local.names import VIEW_CATALOG, parse_partition_directory
from local.storage import Storage, join
from local.verify.findings import Finding, Severity, damaged, finding, unreadable, worst
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.view_changes import ViewCatalog, decode_catalog
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.segments.stored_segment import decode_bundle
from remote.store import ObjectStore
from tiered.health.scrub import THREADS, LocalCopy, SegmentJob, plan_scrub, report_of, run_scrub
from tiered.health.scrub_report import ScrubReport

_TRIES = 3
Telling = Callable[[int], AbstractContextManager[Callable[[int], None]]]  # bytes to read -> callback of bytes read


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A `share` (above 0, at most 1) of the segments, at least one. `seed` and a segment's name give its rank."""

    share: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:  # NaN is neither
            raise InvalidRequest(
                "invalid sample of segments, the share must be above 0% and at most 100%", share=self.share
            )

    def of(self, jobs: Sequence[SegmentJob]) -> tuple[SegmentJob, ...]:
        lots = [f"{self.seed} {job.name} {job.entry.base_offset}".encode() for job in jobs]
        ranked = sorted(range(len(jobs)), key=lambda at: blake2b(lots[at], digest_size=8).digest())
        return tuple(jobs[at] for at in sorted(ranked[: math.ceil(self.share * len(jobs))]))


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketVerdict:
    """The report on a bucket that names `segments`; the bytes of `read_segments` of them were decoded."""

    report: ScrubReport
    segments: int
    read_segments: int
    sample: Sample | None


def verify_bucket(
    store: ObjectStore,
    names: Sequence[RemotePartitionName],
    *,
    missing: Sequence[RemotePartitionName] = (),
    now_ms: int,
    deep: bool = False,
    sample: Sample | None = None,
    keys: KeyRing = NO_KEYS,
    threads: int = THREADS,
    local_copy: LocalCopy = lambda name, entry: False,
    should_stop: Callable[[], bool] = lambda: False,
    telling: Telling = lambda size_bytes: nullcontext(lambda read_bytes: None),
) -> BucketVerdict | None:
    """Check metadata, and content with `deep` or `sample`. None if stopped early. Raises Unavailable."""
    plan = plan_scrub(store, names, deep=deep or sample is not None, missing=missing)
    if sample is not None:
        plan = replace(plan, jobs=sample.of(plan.jobs))
    with telling(plan.size_bytes) as progress:
        results = run_scrub(store, plan, keys=keys, threads=threads, should_stop=should_stop, progress=progress)
    if results is None:
        return None
    report = report_of(store, plan, results, started_ms=now_ms, now_ms=now_ms, local_copy=local_copy)
    segments, read = sum(len(each.entries) for each in plan.surveys.values()), len(plan.jobs) - report.unread_segments
    return BucketVerdict(report=report, segments=segments, read_segments=read, sample=sample)


def verify_views(storage: Storage, path: str) -> list[Finding]:
    """Return the problems of compacted views in a log or partition directory; none for other paths.

    | file | checked against |
    |---|---|
    | ``view-catalog`` | its checksum and its own rules |
    | a part, its indexes | the size, the CRC-32C and the offsets in the catalog; every batch's CRC |
    | any other file below ``view`` | the names in the catalog; an unnamed file is deleted by the next start |

    Another process may switch a view during the check, so a problem is checked again with a fresh catalog.
    """
    path = path.rstrip("/") or "/"
    if not storage.is_directory(path):
        return []
    try:
        if parse_partition_directory(path.rpartition("/")[2]) is not None:
            return _verify_partition(storage, path)
        names = [name for name in storage.list(path) if parse_partition_directory(name) is not None]
    except (DiskFailed, AccessDenied) as error:
        return [unreadable(error, path)]
    partitions = [join(path, name) for name in names if storage.is_directory(join(path, name))]
    return [finding for each in partitions for finding in _verify_partition(storage, each)]


def _verify_partition(storage: Storage, directory: str) -> list[Finding]:
    found: list[Finding] = []
    for _ in range(_TRIES):
        found = list(_of_views(storage, directory))
        if worst(found) is not Severity.CORRUPT:
            break
    return found


def _of_views(storage: Storage, directory: str) -> Iterator[Finding]:
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
            yield finding("view.deleting", join(directory, key))
        elif key not in catalog.named_keys:
            yield finding("view.leftover", join(directory, key))


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
        yield finding("view.missing", path)
    except Corrupt as error:
        yield damaged(error, path)
    except (DiskFailed, AccessDenied) as error:
        yield unreadable(error, path)
    except LogError as error:
        yield finding("bytes.damaged", path, what=str(error))
