"""The last check of every test that has a bucket: decoded completely, the bucket holds no damage."""

from __future__ import annotations

from checked_bucket import check_bucket, damage

from remote.check.partition_check import BucketReport
from remote.keys import MANIFESTS
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from remote.store.open_store import open_store


def assert_sound(
    store: ObjectStore, *, keys: KeyRing = NO_KEYS, half_made: frozenset[str] = frozenset()
) -> list[BucketReport]:
    """Fail when any object in the bucket is damaged or unknown; the message names the first few.

    The partitions `half_made`, named by their prefixes, may lack objects: forks before their creation returned.
    """
    reports = check_bucket(store, keys=keys)
    found = [
        f"{each.where}: {each.what}" for each in damage([each for each in reports if each.prefix not in half_made])
    ]
    assert not found, f"{len(found)} damaged: " + "; ".join(found[:4])
    return reports


def sound_roots(bucket_url: str, options: dict[str, object]) -> list[str]:
    """Check every store below the bucket URL and return the prefixes; fail on damage in any of them."""
    with_all = open_store(bucket_url, options)
    keys = [info.key for info in with_all.list("") if MANIFESTS in info.key]
    with_all.close()
    # <root>/<topic>-<topic id>/<partition>/meta/head/<sequence>
    roots = sorted({"/".join(key.partition(f"/{MANIFESTS}")[0].split("/")[:-2]) for key in keys})
    for root in roots:
        store = open_store(f"{bucket_url}/{root}".rstrip("/"), options)
        assert_sound(store)
        store.close()
    return roots
