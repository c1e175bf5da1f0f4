"""What time a store says it is: a witness for a machine whose clock may be wrong (`tiered.config.clock_guard`).

An object is put there, looked at and removed: stores stamp what they take, to the second, by their own clock. Only of
S3 and HDFS that is another clock than ours. S3 refuses what is signed a quarter of an hour off and so never says how
far; it then has not answered, and nothing of it can be deleted either.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from local.errors import LogError
from remote.keys import PROBES, new_ulid
from remote.store import ObjectStore

_log = logging.getLogger(__name__)

WAIT_S = 5.0  # for the first answer, before the first round


def has_own_clock(url: str) -> bool:
    """Whether what lies there is stamped by another machine."""
    return url.startswith(("s3://", "hdfs://"))


class StoreClock:
    """Asks one store, in a thread of its own, one question at a time."""

    def __init__(self, store: ObjectStore, now_ms: Callable[[], int]) -> None:
        """`now_ms` only gives names to what is put."""
        self._store = store
        self._now_ms = now_ms
        self._asking: threading.Thread | None = None

    def ask(self, told: Callable[[int], None], wait_s: float = 0.0) -> None:
        """`told` hears the store's time if it answers; it is waited for that long. Nothing while a question is open."""
        if self._asking is None or not self._asking.is_alive():
            asking = threading.Thread(target=self._ask, args=(told,), name="tiered-store-clock", daemon=True)
            try:
                asking.start()
            except RuntimeError as error:
                _log.warning("the store was not asked what time it is, no thread for it: cause=%s", error)
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
            self._store.delete([key])
        except LogError as error:
            _log.warning("the store was asked what time it is and gave no answer: error=%s", error)
