"""Objects that failed uploads could not delete: always counted, logged once per outage.

A store that accepts no bytes often deletes none either, and every maintenance run tries the upload again. A log line
for each try would hide the first failure. An outage ends when an object could be deleted or an upload succeeded.

The remaining objects are orphans: no manifest names them, and `tiered gc` finds them. The count is of names under which
an object may exist. For an upload without a reply this is unknown, and mostly there is no object.

There is one count for each store object, for the lifetime of the store object. Thread safe.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from remote.store import ObjectStore

log = logging.getLogger(__name__)
_lock = threading.Lock()


class CleanupFailures:
    """Count of one store; `objects` is an upper bound of the number of objects."""

    def __init__(self) -> None:
        self.objects = 0
        self._is_told = False

    def note(self, keys: Sequence[str], error: Exception) -> None:
        """Add objects that may remain under `keys`. Logs a warning for the first call of an outage."""
        with _lock:
            self.objects += len(keys)
            level = logging.DEBUG if self._is_told else logging.WARNING
            self._is_told = True
        log.log(level, "cannot delete the objects of a failed upload: keys=%s cause=%s", ",".join(keys), error)

    def end(self) -> None:
        """End the outage: the next failure is logged as a warning again."""
        with _lock:
            self._is_told = False


_by_store: WeakKeyDictionary[ObjectStore, CleanupFailures] = WeakKeyDictionary()


def cleanup_failures(store: ObjectStore) -> CleanupFailures:
    """The count of this process for a store."""
    with _lock:
        return _by_store.setdefault(store, CleanupFailures())
