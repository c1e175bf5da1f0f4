"""In-memory cache of the newest manifests, for repeated read-only opens in one process.

A process that opens many partitions repeatedly (``status --watch``, pages) keeps only this cache between two opens. The
next open starts at the cached manifest instead of with a listing:

* It requests only the next number, a 404 if nothing is new: one small request. It sees every later commit, unless GC
  has deleted the next number already (`remote.gc.old_manifests` keeps a few hundred).
* So once in SURE_MS it verifies the cached manifest by three small requests: the bucket still has the very manifest
  under the very name, and no GC boundary has passed it. The bucket may have been restored to an earlier state.
* If the manifest is missing, or the next one does not follow it, the cache entry is discarded and the open starts with
  a listing.

So an open may miss only events of the last SURE_MS, and only after hundreds of commits in that time, or after a restore
of the bucket. No decision depends on such an open: a manager that writes does not use this cache.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from local.errors import Corrupt, NotFound
from remote.keys import manifest_key
from remote.manifest.manifest import Manifest, encode_again
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.manifest_lookup import new_owner
from remote.manifest.sealing import sealer_of
from remote.store import ObjectStore

SURE_MS = 60_000
KNOWN_MAX = 20_000


@dataclass(frozen=True, slots=True)
class _Known:
    """A cached manifest. `sure_ms` is the time of the last verification, `owner` the owner of its pages."""

    manifest: Manifest
    sure_ms: int
    owner: int


class ManifestMemoryCache:
    """Cached manifests of any number of partitions. Thread safe for different partitions."""

    def __init__(self, counted_ms: Callable[[], int], *, manifests_max: int = KNOWN_MAX) -> None:
        """`counted_ms` is a monotonic clock. At most `manifests_max` manifests are cached, the most recently used."""
        self._counted_ms, self._manifests_max = counted_ms, manifests_max
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def newest(
        self,
        store: ObjectStore,
        prefix: str,
        chain: ManifestChain,
        begin: Callable[[], Manifest | None],
        *,
        exact: bool = False,
    ) -> tuple[Manifest | None, int]:
        """The newest manifest (`ManifestChain.newest`) and the owner of its pages.

        `begin` finds it without a cached one.

        `exact` verifies now. Raises as `ManifestChain.newest`. `chain` may have learned a boundary from another
        history. That boundary is below the manifest known of that history, and so below the manifest of the same number
        that does not follow it.
        """
        name, now_ms = (store.url, prefix), self._counted_ms()
        with self._lock:
            known = self._known.get(name)
        if known is not None:
            is_due = exact or not 0 <= now_ms - known.sure_ms < SURE_MS
            with suppress(Corrupt):  # the bucket has another history; real damage is found below
                if not is_due or is_same_manifest(store, prefix, known.manifest):
                    found = chain.newest(known.manifest, exact=is_due)
                    return self._keep(name, found, now_ms if is_due else known.sure_ms, known.owner)
            if known.manifest.seal_key_id is None:
                with self._lock:
                    self._known.pop(name, None)
        found = begin()
        if known is not None:
            check_not_rolled_back(known.manifest, found, prefix)
        return self._keep(name, found, now_ms, new_owner())

    def _keep(
        self, name: tuple[str, str], manifest: Manifest | None, sure_ms: int, owner: int
    ) -> tuple[Manifest | None, int]:
        if manifest is not None:
            with self._lock:
                self._known[name] = _Known(manifest, sure_ms, owner)
                self._known.move_to_end(name)
                while len(self._known) > self._manifests_max:
                    self._known.popitem(last=False)
        return manifest, owner


def check_not_rolled_back(known: Manifest, found: Manifest | None, prefix: str) -> None:
    """Raise Corrupt if a sealed manifest was seen and the bucket has an older, another or no sealed one.

    Unsealed manifests prove nothing: such a bucket may have been restored from a backup.
    """
    if known.seal_key_id is not None:
        step = "if the bucket was restored on purpose, restart the reader without its cache directory"
        check_seen((known.sequence, known.commit_id), found, prefix, step)


def check_seen(seen: tuple[int, str], found: Manifest | None, prefix: str, step: str) -> None:
    """Raise Corrupt, with next step `step`, unless `found` is the manifest `seen` or newer, and sealed.

    `seen` is (sequence, commit id).
    """
    if found is not None and found.seal_key_id is not None:
        is_newer = found.sequence > seen[0]
        if is_newer or (found.sequence, found.commit_id) == seen:
            return
    facts = {"seen_sequence": seen[0], "found_sequence": found.sequence if found is not None else None}
    wrong = "the bucket has an older state than this process has read before"
    if found is not None and found.seal_key_id is None:
        wrong = (
            "the manifest of an encrypted topic is not sealed and a sealed manifest was read before: "
            "forged, or restored"
        )
    raise Corrupt(f"cannot trust a manifest, {wrong}; {step}", prefix=prefix, **facts)


def is_same_manifest(store: ObjectStore, prefix: str, manifest: Manifest, body: bytes | None = None) -> bool:
    """Whether the bucket has this very manifest, by its first line; one small GET.

    The first line has the checksum of the rest. `body` are its bytes, if the caller has them.
    """
    body = encode_again(manifest, sealer_of(store, prefix)) if body is None else body
    line = body[: body.index(b"\n") + 1]
    try:
        return store.get_range(prefix + manifest_key(manifest.sequence), 0, len(line)) == line
    except (NotFound, Corrupt):
        return False
