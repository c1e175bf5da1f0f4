"""What failed uploads could not clear away at once: counted always, told in the log once per trouble.

A store that takes no bytes often deletes none either, and what waits is tried again every round: a line for each try
would bury what began it. A trouble lasts until something could be removed, or went up whole. What is left is in no
head: an orphan, which `tiered gc` finds. Counted are names under which something may lie: of an upload that got no
answer nobody knows, and mostly nothing does. One count for each store object, as long as that lives. Thread safe.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from remote.store import ObjectStore

log = logging.getLogger(__name__)
_lock = threading.Lock()


class LeftBehind:
    """Of one store; `objects` is how many names at most."""

    def __init__(self) -> None:
        self.objects = 0
        self._is_told = False

    def note(self, keys: Sequence[str], error: Exception) -> None:
        """Objects of these names may have been left."""
        with _lock:
            self.objects += len(keys)
            level = logging.DEBUG if self._is_told else logging.WARNING
            self._is_told = True
        log.log(level, "leaving objects of a failed upload behind: keys=%s cause=%s", ",".join(keys), error)

    def end(self) -> None:
        """The trouble is over: the next one is told again."""
        with _lock:
            self._is_told = False


_by_store: WeakKeyDictionary[ObjectStore, LeftBehind] = WeakKeyDictionary()


def left_behind(store: ObjectStore) -> LeftBehind:
    """What was left in a store by this process."""
    with _lock:
        return _by_store.setdefault(store, LeftBehind())
