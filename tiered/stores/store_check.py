"""Check that a store creates only if absent, before the first write and weekly; ask it for its time.

Without that primitive two writers can both commit, and each reads back only its own manifest. The disk of one then
drops segments that no manifest names. So a store that overwrites is refused, unless the operator declares a single
writer. The check includes racing creates: a store may refuse a second create and still check first and write later.

The log directory records the answer for this URL, client, endpoint and options (a hash without secrets), and for
MAX_AGE_MS: another server may use the address later.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping

import msgspec

from local.errors import InvalidRequest, LogError, NotFound, Unavailable
from local.storage import Storage, join, replace_file
from remote.gc.object_deletion import DeleteReason, delete_objects
from remote.keys import PROBES, new_ulid
from remote.store import ObjectStore
from tiered.config.secrets import without_secrets

FILE = "remote-store.json"
MAX_AGE_MS = 7 * 86_400_000
LATER_MS = 3_600_000  # until the next check of a store that could not be checked
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "HADOOP_CONF_DIR")
_REFUSED = (
    "cannot use a store that overwrites existing objects, two writers could both commit; if "
    "no other process writes to it, set remote.single.writer=true"
)
_log = logging.getLogger(__name__)
CLOCK_WAIT_S = 5.0  # for the first answer, before the first maintenance


class StoreCheck:
    """Checks that a store creates only if absent; the log directory has the answer. Thread safe."""

    def __init__(
        self,
        place: Callable[[], tuple[Storage, str]],
        *,
        is_single_writer: bool,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self._place = place
        self._is_single_writer = is_single_writer
        self._options = dict(options or {})
        self._lock = threading.Lock()
        self._checked_ms: int | None = None  # in this process
        self._refusal: InvalidRequest | None = None
        self._refused_ms = 0

    def ensure(self, store: ObjectStore, now_ms: int) -> None:
        """Check the store unless a recent answer is known. Raises InvalidRequest for a store that overwrites."""
        with self._lock:
            if not _is_fresh(self._checked_ms, now_ms):
                found = self._remembered(store)
                self._checked_ms = found if _is_fresh(found, now_ms) else self._ask(store, now_ms)

    def renew(self, store: ObjectStore, now_ms: int) -> None:
        """Check again if the answer is too old; nothing if no check was ever made. Raises as `ensure`.

        While the store is unavailable its last answer holds. A refusal is raised again for an hour without a check.
        """
        if self._checked_ms is None or _is_fresh(self._checked_ms, now_ms):
            return
        if self._refusal is not None and 0 <= now_ms - self._refused_ms < LATER_MS:
            # A new error for each calling thread: raising writes into an error.
            raise InvalidRequest(self._refusal.attempt, **self._refusal.facts)
        try:
            self.ensure(store, now_ms)
            self._refusal = None
        except InvalidRequest as error:
            self._refusal, self._refused_ms = error, now_ms
            raise
        except Unavailable as error:
            _log.warning("cannot check the guarantees of the store again: %s", error)
            self._checked_ms = now_ms - MAX_AGE_MS + LATER_MS

    def _ask(self, store: ObjectStore, now_ms: int) -> int:
        if _allows_writers(store, now_ms):
            seen = _Remembered(url=store.url, create_if_absent=True, way=self._way(store), checked_ms=now_ms)
            storage, root = self._place()
            replace_file(storage, join(root, FILE), msgspec.json.encode(seen))
        elif self._is_single_writer:
            _log.warning("the store overwrites existing objects, two writers would lose records: store=%s", store.url)
        else:
            raise InvalidRequest(_REFUSED, store=store.url)
        return now_ms

    def _remembered(self, store: ObjectStore) -> int | None:
        storage, root = self._place()
        try:
            found = _REMEMBERED.decode(storage.read(join(root, FILE)))
        except (NotFound, msgspec.MsgspecError):
            return None
        is_same = found.create_if_absent and (found.url, found.way) == (store.url, self._way(store))
        return found.checked_ms if is_same else None

    def _way(self, store: ObjectStore) -> str:
        named = {name: os.environ[name] for name in _ENDPOINTS if os.environ.get(name)}
        import hashlib

        from remote.store.s3_options import is_installed

        client = "obstore" if store.url.startswith("s3:") and is_installed() else ""  # the meaning of client "auto"
        described = msgspec.json.encode([client, without_secrets(self._options), named], order="sorted")
        return hashlib.sha256(described).hexdigest()[:16]


def check_writers(store: ObjectStore, now_ms: int) -> None:
    """Check the store for a long-running writer without a log directory: a sidecar. Raises as `ensure`."""
    if not _allows_writers(store, now_ms):
        raise InvalidRequest(_REFUSED, store=store.url)


def _allows_writers(store: ObjectStore, now_ms: int) -> bool:
    # A store in this process' memory has one lock and no race to lose.
    is_racing = not store.url.startswith("memory:")
    from remote.store.probe import probe_store

    return probe_store(store, now_ms=now_ms, is_racing=is_racing).allows_writers


class _Remembered(msgspec.Struct):
    url: str
    create_if_absent: bool
    way: str = ""
    checked_ms: int = 0


# Built at import: building it in two threads in parallel ends the process (msgspec 0.22).
_REMEMBERED = msgspec.json.Decoder(_Remembered)


def _is_fresh(checked_ms: int | None, now_ms: int) -> bool:
    """Whether an answer is recent. An answer from the future is not: a clock was wrong."""
    return checked_ms is not None and 0 <= now_ms - checked_ms < MAX_AGE_MS


def has_own_clock(url: str) -> bool:
    return url.startswith(("s3://", "hdfs://"))


def store_clock_of(store: ObjectStore | None, now_ms: Callable[[], int]) -> StoreClock | None:
    return StoreClock(store, now_ms) if store is not None and has_own_clock(store.url) else None


class StoreClock:
    """Asks one store for its time, in its own thread, one request at a time, by the stamp of a new object.

    S3 refuses requests that are signed with a time a quarter of an hour off: this counts as no answer.
    """

    def __init__(self, store: ObjectStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._asking: threading.Thread | None = None

    def ask(self, on_time: Callable[[int], None], wait_s: float = 0.0) -> None:
        """Call `on_time` with the store's time if it answers; wait `wait_s` at most. One request at a time."""
        if self._asking is None or not self._asking.is_alive():
            asking = threading.Thread(target=self._ask, args=(on_time,), name="tiered-store-clock", daemon=True)
            try:
                asking.start()
            except RuntimeError as error:
                _log.warning("cannot read the time of the store, there is no thread for the request: cause=%s", error)
                return
            self._asking = asking
        self._asking.join(wait_s)

    def _ask(self, on_time: Callable[[int], None]) -> None:
        key = f"{PROBES}{new_ulid(self._now_ms())}"
        try:
            self._store.put_if_absent(key, b"tiered clock\n")
            stamped_ms = self._store.head(key).modified_ms
            if stamped_ms is not None:
                on_time(stamped_ms)
            delete_objects(self._store, "", [key], DeleteReason.PROBE)
        except LogError as error:
            _log.warning("cannot read the time of the store: error=%s", error)
