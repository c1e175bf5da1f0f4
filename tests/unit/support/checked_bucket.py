"""A deep check of every partition of a bucket, for tests that end with a sound one."""

from __future__ import annotations

from local.verify.findings import Finding, Severity
from remote.cache.chunk_cache import ChunkCache
from remote.check.partition_check import BucketReport, is_still_named, survey_partition
from remote.fetch.range_reader import RANGE_BYTES, RemotePartition
from remote.fetch.segment_check import CheckContents, ReadRange, check_segment
from remote.manifest.catalog import list_partitions
from remote.manifest.sealing import keyed
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.segments.stored_segment import IndexBundle
from remote.store import ObjectStore
from tiered.health.scrub import check_contents


def only_read(path: str, entry: SegmentEntry, bundle: IndexBundle, read: ReadRange) -> tuple[Finding, ...]:
    """Read every byte so that each chunk is compared with its CRC. No other check."""
    for at in range(0, entry.size_bytes, RANGE_BYTES):
        read(at, min(RANGE_BYTES, entry.size_bytes - at))
    return ()


def check_partition(
    store: ObjectStore, prefix: str, check: CheckContents = only_read, *, keys: KeyRing = NO_KEYS
) -> BucketReport:
    """Check one partition with its contents. Raises the store's error if it cannot be reached."""
    store = keyed(store, keys)
    report = survey_partition(store, prefix)
    remote = RemotePartition(store, prefix, ChunkCache(0), keys=keys)
    for entry in report.entries:
        found = check_segment(store, remote, entry, check)
        if found and is_still_named(store, prefix, entry):
            report.findings += found
    return report


def check_bucket(store: ObjectStore, *, keys: KeyRing = NO_KEYS) -> list[BucketReport]:
    """Check every partition of a store, in order. Raises the store's error if it cannot be reached."""
    return [check_partition(store, name.prefix, check_contents, keys=keys) for name in list_partitions(store)]


def damage(reports: list[BucketReport]) -> list[Finding]:
    """The findings that are worse than a warning."""
    return [each for report in reports for each in report.findings if each.severity is Severity.CORRUPT]
