"""Before the first write to a bucket: does this store really create only if absent?

Without that primitive two writers can both commit, each seeing only its own head, and the disk of one lets go of
records that no head names. So a store that overwrites is refused unless the operator declares that nobody else ever
writes there. The answer is remembered for the store's URL in the log directory, so that a short command does not ask
again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from local.errors import InvalidRequest, NotFound
from local.storage import Storage, join, replace_file
from remote.probe import probe_store
from remote.store import ObjectStore

FILE = "remote-store.json"
_log = logging.getLogger(__name__)


class StoreCheck:
    """Asks once for a directory and a store. Thread safe."""

    def __init__(self, place: Callable[[], tuple[Storage, str]], *, is_single_writer: bool) -> None:
        """`place` says which log directory is to remember the answer."""
        self._place = place
        self._is_single_writer = is_single_writer
        self._lock = threading.Lock()
        self._is_checked = False

    def ensure(self, store: ObjectStore, now_ms: int) -> None:
        """Raises InvalidRequest for a store that overwrites, and what the store raises when it cannot be asked."""
        with self._lock:
            if self._is_checked or self._remembered() == store.url:
                self._is_checked = True
                return
            if probe_store(store, now_ms=now_ms).allows_writers:
                body = msgspec.json.encode({"url": store.url, "create_if_absent": True})
                storage, root = self._place()
                replace_file(storage, join(root, FILE), body)
            elif self._is_single_writer:
                _log.warning("the store overwrites what exists: two writers would lose records: store=%s", store.url)
            else:
                raise InvalidRequest(
                    "writing to a store that overwrites what exists, so two writers could both commit; "
                    "if nobody else ever writes there, set remote.single.writer=true",
                    store=store.url,
                )
            self._is_checked = True

    def _remembered(self) -> str | None:
        storage, root = self._place()
        try:
            found = _REMEMBERED.decode(storage.read(join(root, FILE)))
        except (NotFound, msgspec.MsgspecError):
            return None
        return found.url if found.create_if_absent else None


class _Remembered(msgspec.Struct):
    url: str
    create_if_absent: bool


# Made at import: made in two threads at once it ends the process (msgspec 0.22).
_REMEMBERED = msgspec.json.Decoder(_Remembered)
