"""What every test that has a bucket asks of it in the end: decoded whole, it holds no damage."""

from __future__ import annotations

from remote.bucket_check import BucketReport
from remote.store import ObjectStore
from tiered.bucket_check import check_bucket, damage


def assert_sound(store: ObjectStore) -> list[BucketReport]:
    """Fails, naming the first few, when anything in the bucket is damaged or not ours."""
    reports = check_bucket(store)
    found = [f"{each.path}: {each.what}" for each in damage(reports)]
    assert not found, f"{len(found)} damaged: " + "; ".join(found[:4])
    return reports
