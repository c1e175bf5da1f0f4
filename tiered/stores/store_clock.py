"""The clock of a store, a reference for a machine with a wrong clock.

`tiered.config.clock_guard` uses it.
An object is put, its stamp read, and the object deleted: stores stamp objects, to the second, by their own clock. Only
S3 and HDFS have a clock other than this machine's. S3 refuses requests signed a quarter of an hour off, without stating
the difference. Then it has not answered, and the object cannot be deleted either.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from local.errors import LogError
from remote.gc.object_deletion import DeleteReason, delete_objects
from remote.keys import PROBES, new_ulid
from remote.store import ObjectStore

_log = logging.getLogger(__name__)

WAIT_S = 5.0  # for the first answer, before the first maintenance


def has_own_clock(url: str) -> bool:
    """Whether another machine stamps the objects at `url`."""
    return url.startswith(("s3://", "hdfs://"))


def store_clock_of(store: ObjectStore | None, now_ms: Callable[[], int]) -> StoreClock | None:
    """A clock that asks the store; None without a store, or if it uses this machine's clock."""
    return StoreClock(store, now_ms) if store is not None and has_own_clock(store.url) else None


class StoreClock:
    """Asks one store for its time, in its own thread, one request at a time."""

    def __init__(self, store: ObjectStore, now_ms: Callable[[], int]) -> None:
        """`now_ms` is used only for object names."""
        self._store = store
        self._now_ms = now_ms
        self._asking: threading.Thread | None = None

    def ask(self, told: Callable[[int], None], wait_s: float = 0.0) -> None:
        """Call `told` with the store's time if it answers; wait for it at most `wait_s`.

        Does nothing while a request is open.
        """
        if self._asking is None or not self._asking.is_alive():
            asking = threading.Thread(target=self._ask, args=(told,), name="tiered-store-clock", daemon=True)
            try:
                asking.start()
            except RuntimeError as error:
                _log.warning("cannot read the time of the store, there is no thread for the request: cause=%s", error)
                return
            self._asking = asking
        self._asking.join(wait_s)

    def _ask(self, told: Callable[[int], None]) -> None:
        key = f"{PROBES}{new_ulid(self._now_ms())}"
        try:
            self._store.put_if_absent(key, b"tiered clock\n")
            stamped_ms = self._store.head(key).modified_ms
            if stamped_ms is not None:
                told(stamped_ms)
            delete_objects(self._store, "", [key], DeleteReason.PROBE)
        except LogError as error:
            _log.warning("cannot read the time of the store: error=%s", error)
