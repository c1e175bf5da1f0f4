"""A deep check of every partition of a bucket, for tests that end with a sound one."""

from __future__ import annotations

from local.verify.findings import Finding, Severity
from remote.check.partition_check import BucketReport, check_partition
from remote.manifest.catalog import list_partitions
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from tiered.health.scrub import check_contents


def check_bucket(store: ObjectStore, *, keys: KeyRing = NO_KEYS) -> list[BucketReport]:
    """Check every partition of a store, in order. Raises the store's error if it cannot be reached."""
    return [check_partition(store, name.prefix, check_contents, keys=keys) for name in list_partitions(store)]


def damage(reports: list[BucketReport]) -> list[Finding]:
    """The findings that are worse than a warning."""
    return [each for report in reports for each in report.findings if each.severity is Severity.CORRUPT]
