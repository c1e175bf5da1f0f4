"""In-memory cache of the newest manifests, for repeated read-only opens in one process.

* An open requests only the number after the cached manifest, a 404 if nothing is new. It sees every later commit,
  unless GC has deleted that number already (`remote.gc.delayed_delete` keeps a few hundred).
* Once in SURE_MS it verifies by three small requests that the bucket still has the cached manifest under its name, and
  that no GC boundary has passed it. Otherwise the open lists.

So an open may miss only events of the last SURE_MS, and only after hundreds of commits in that time, or after a restore
of the bucket. A manager that writes does not use this cache.

`SealMemory` records **sealed manifests** over restarts, in the file ``sealed-manifests`` in a log directory: JSON, from
the partition's prefix to the newest sequence and commit id. A bucket without this manifest, and without a newer sealed
one, was rolled back or forged. The file is a lower bound: it is written at once for the first manifest, then at most
every KEEP_INTERVAL_MS, and at the end. A disk error is logged.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from local.errors import Corrupt, LogError, NotFound
from local.storage import Storage, join, replace_file
from remote.keys import manifest_key
from remote.manifest.manifest import Manifest, encode_again, lacks_seal
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.manifest_lookup import new_owner
from remote.manifest.sealing import sealer_of
from remote.store import ObjectStore

SURE_MS = 60_000
KNOWN_MAX = 20_000
FILE = "sealed-manifests"
KEEP_INTERVAL_MS = 60_000
WARNINGS_MAX = 10_000  # partitions with a logged warning about a missing seal
_WARNED: set[tuple[str, str]] = set()
_log = logging.getLogger(__name__)
_DECODER = msgspec.json.Decoder(dict[str, tuple[int, str]])
Place = tuple[Storage, str]  # a disk, and the log directory on it


@dataclass(frozen=True, slots=True)
class _Known:
    manifest: Manifest
    sure_ms: int  # of the last verification
    owner: int  # of its pages


class ManifestMemoryCache:
    """Cached manifests of any number of partitions. Thread safe for different partitions."""

    def __init__(self, counted_ms: Callable[[], int]) -> None:
        """`counted_ms` is a monotonic clock. At most KNOWN_MAX manifests are cached, the most recently used."""
        self._counted_ms = counted_ms
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def newest(
        self,
        store: ObjectStore,
        prefix: str,
        chain: ManifestChain,
        begin: Callable[[], Manifest | None],
        *,
        exact: bool = False,
    ) -> tuple[Manifest | None, int]:
        """The newest manifest (`ManifestChain.newest`), by `begin` if none is cached, and the owner of its pages.

        `exact` verifies now. `chain` may have learned a boundary that the bucket lacks, from the cached manifest. It is
        below that manifest, so it voids no manifest of the same number or above.
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
                while len(self._known) > KNOWN_MAX:
                    self._known.popitem(last=False)
        return manifest, owner


def check_not_rolled_back(known: Manifest, found: Manifest | None, prefix: str) -> None:
    """Raise Corrupt if a sealed manifest was seen and the bucket has an older, another or no sealed one."""
    if known.seal_key_id is not None:
        step = "if the bucket was restored on purpose, restart the reader without its cache directory"
        check_seen((known.sequence, known.commit_id), found, prefix, step)


def check_seen(seen: tuple[int, str], found: Manifest | None, prefix: str, step: str) -> None:
    """Raise Corrupt unless `found` is the manifest `seen` (sequence, commit id) or newer, and sealed."""
    if found is not None and found.seal_key_id is not None:
        is_newer = found.sequence > seen[0]
        if is_newer or (found.sequence, found.commit_id) == seen:
            return
    facts = {"seen_sequence": seen[0], "found_sequence": found.sequence if found is not None else None}
    wrong = "the bucket has an older state than this process has read before"
    if found is not None and found.seal_key_id is None:
        unsealed = "the manifest of an encrypted topic is not sealed"
        wrong = f"{unsealed} and a sealed manifest was read before: forged, or restored"
    raise Corrupt(f"cannot trust a manifest, {wrong}; {step}", prefix=prefix, **facts)


def warn_unsealed(store_url: str, prefix: str, found: Manifest) -> None:
    """Log a warning, once for each partition of a store, if an encrypted topic's manifest is not authenticated."""
    if (store_url, prefix) in _WARNED or not lacks_seal(found):
        return
    if len(_WARNED) >= WARNINGS_MAX:
        _WARNED.clear()
    _WARNED.add((store_url, prefix))
    what = "manifests of an encrypted topic are not sealed, so they are not authenticated"
    next_step = f"upgrade all readers, then tiered rotate-keys {found.topic}"
    _log.warning("%s: prefix=%s (next: %s)", what, prefix, next_step)


def is_same_manifest(store: ObjectStore, prefix: str, manifest: Manifest, body: bytes | None = None) -> bool:
    """Whether the bucket has this manifest, with these `body` bytes, by its first line: one small GET."""
    body = encode_again(manifest, sealer_of(store, prefix)) if body is None else body
    line = body[: body.index(b"\n") + 1]
    try:
        return store.get_range(prefix + manifest_key(manifest.sequence), 0, len(line)) == line
    except (NotFound, Corrupt):
        return False


class SealMemory:
    """The record of sealed manifests, for all partitions of a node. Thread safe."""

    def __init__(self, places: Iterable[Place], first: Callable[[], Place], *, is_writer: bool) -> None:
        """Load the files of all `places`. Writes to the place of `first`, if the caller `is_writer`."""
        self._first, self._is_writer = first, is_writer
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, str]] = {}
        self._is_written, self._kept_ms = True, 0
        for storage, root in places:
            for prefix, seen in _read(storage, root).items():
                self._seen[prefix] = max(seen, self._seen.get(prefix, seen))

    def check(self, prefix: str, found: Manifest) -> None:
        """Raise Corrupt if this node saw a newer or another sealed manifest before a restart."""
        if (seen := self._seen.get(prefix)) is not None:
            step = f"if the bucket was restored on purpose, remove the file {FILE} from the log directories"
            check_seen(seen, found, prefix, step)

    def note(self, prefix: str, manifest: Manifest) -> None:
        if manifest.seal_key_id is None:
            return
        with self._lock:
            known = self._seen.get(prefix)
            if known is not None and manifest.sequence <= known[0]:
                return
            self._seen[prefix] = manifest.sequence, manifest.commit_id
            self._is_written = False
            if known is None:
                self._write()

    def keep(self, now_ms: int | None = None) -> None:
        """Write the record. With `now_ms`, only KEEP_INTERVAL_MS after the last write; with None at once."""
        with self._lock:
            if self._is_written or (now_ms is not None and 0 <= now_ms - self._kept_ms < KEEP_INTERVAL_MS):
                return
            self._kept_ms = self._kept_ms if now_ms is None else now_ms
            self._write()

    def _write(self) -> None:
        if not self._is_writer:
            return
        storage, root = self._first()
        try:
            replace_file(storage, join(root, FILE), msgspec.json.encode(self._seen))
            self._is_written = True
        except LogError as error:
            _log.warning("cannot save the state of sealed manifests: directory=%s cause=%s", root, error)


def _read(storage: Storage, root: str) -> dict[str, tuple[int, str]]:
    try:
        return _DECODER.decode(storage.read(join(root, FILE)))
    except NotFound:
        return {}
    except (LogError, msgspec.DecodeError, UnicodeDecodeError) as error:
        _log.warning("cannot read the state of sealed manifests: directory=%s cause=%s", root, error)
        return {}
