"""A node's record of sealed manifests over restarts: newest sequence and commit id by partition.

File ``sealed-manifests`` in a log directory: JSON, from the partition's prefix to sequence and commit id. A bucket
without a manifest of that sequence and commit id, and without a newer sealed one, was rolled back or forged.

The first sealed manifest of a partition is written at once. Later ones are written at most every KEEP_INTERVAL_MS, and
when the node closes. So the file is a lower bound. A disk error only causes a log line; no commit and no read fails.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

import msgspec

from local.errors import LogError, NotFound
from local.storage import Storage, join, replace_file
from remote.manifest.manifest import Manifest

FILE = "sealed-manifests"
KEEP_INTERVAL_MS = 60_000
_log = logging.getLogger(__name__)
_DECODER = msgspec.json.Decoder(dict[str, tuple[int, str]])

Place = tuple[Storage, str]  # a disk, and the log directory on it


class SealMemory:
    """The record for all partitions of a node. Thread safe."""

    def __init__(self, places: Iterable[Place], first: Callable[[], Place], *, is_writer: bool) -> None:
        """Load the files of all `places`. Writes to the place of `first`, if the caller `is_writer`."""
        self._first, self._is_writer = first, is_writer
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, str]] = {}
        self._is_written, self._kept_ms = True, 0
        for storage, root in places:
            for prefix, seen in _read(storage, root).items():
                self._seen[prefix] = max(seen, self._seen.get(prefix, seen))

    def seen(self, prefix: str) -> tuple[int, str] | None:
        """Sequence and commit id of the newest known sealed manifest; None without one."""
        return self._seen.get(prefix)

    def note(self, prefix: str, manifest: Manifest) -> None:
        """Record a manifest that was read or committed; ignores unsealed ones."""
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
