"""Delete objects of the remote tier: one function for all deletions, with a reason and its evidence.

`delete_objects` deletes nothing unless every key meets the precondition of the reason (`_CHECKS`).

The caller reads the evidence from the store: the pins, then the newest manifest in its own epoch
(`MetadataLog.check_still_writer`), then the forks. An object of another partition, or that a fork names, does not meet
the precondition: `remote.gc.fork_references.delete_unlinked` skips it.

| crash | leaves |
|---|---|
| before the delete request | the same state; each caller may repeat its deletion |
| during the request | some of the objects; deleting a missing object is no error |
| after it, before the caller's commit | a pending delete without an object, removed by the next run |

Objects that a failed upload could not delete are orphans. They are counted, and logged once per outage, which ends when
an object could be deleted or an upload succeeded.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from weakref import WeakKeyDictionary

from local.errors import InvalidRequest
from remote.keys import (
    PROBES,
    is_in_other_topic,
    parse_data_key,
    parse_epoch,
    parse_manifest_key,
    parse_pin_key,
    parse_topic_directory,
    parse_view_key,
)
from remote.manifest.manifest import Manifest
from remote.store import ObjectStore

_log = logging.getLogger(__name__)
_lock = threading.Lock()


class DeleteReason(Enum):
    """Why objects are deleted; the value is the label of the metric."""

    PENDING_DELETE = "pending_delete"  # a pending delete after its grace period; no pin holds it, no fork names it
    PENDING_PAGE = "pending_page"  # an unlinked page, or an object inside its offsets; no pin, no fork
    OLD_MANIFEST = "old_manifest"  # at or below the GC boundary, and not pinned
    PIN = "pin"  # released and ended pins
    ORPHAN = "orphan"  # of an epoch below a committed manifest's, and not named
    OWN_UPLOAD = "own_upload"  # the caller's own upload that no sent commit names
    PROBE = "probe"  # the caller's own probe
    EXPORT = "export"  # incomplete files of the caller's own export job, outside the topics' directories
    BENCHMARK = "benchmark"  # all objects below a prefix of the caller's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Facts from the store: the newest `manifest`, of the caller's epoch; the `epoch` of a committed manifest."""

    manifest: Manifest | None = None
    named_by_forks: frozenset[str] = frozenset()
    gc_boundary: int = 0
    epoch: int = 0


NO_EVIDENCE = Evidence()
_Check = Callable[[str], bool]


def delete_objects(
    store: ObjectStore, prefix: str, keys: Collection[str], reason: DeleteReason, evidence: Evidence = NO_EVIDENCE
) -> None:
    """Delete `keys`, relative to `prefix`. Raises InvalidRequest for an unmet precondition, and the store's errors."""
    holds = _CHECKS[reason](evidence)
    wrong = next((key for key in keys if not holds(key)), None)
    if wrong is not None:
        facts = {"reason": reason.value, "object": prefix + wrong}
        raise InvalidRequest("cannot delete objects, one does not meet the precondition; nothing was deleted", **facts)
    if not keys:
        return
    store.delete([prefix + key for key in keys])
    counts = deletions(store)
    with _lock:
        counts.by_reason[reason] += len(keys)


def _is_pending_delete(evidence: Evidence) -> _Check:
    manifest, forks = evidence.manifest, evidence.named_by_forks
    listed = {each.key for each in manifest.pending_deletes} if manifest is not None else set()
    return lambda key: key in listed and key not in forks and not is_in_other_topic(key)


def _is_pending_page(evidence: Evidence) -> _Check:
    manifest, forks = evidence.manifest, evidence.named_by_forks
    pages = [each.page for each in manifest.pending_page_deletes] if manifest is not None else []
    names = {page.key for page in pages}

    def holds(key: str) -> bool:
        if key in forks or is_in_other_topic(key):
            return False
        name = parse_data_key(key)
        return key in names or (
            name is not None and any(page.base_offset <= name.base_offset < page.next_offset for page in pages)
        )

    return holds


_CHECKS: dict[DeleteReason, Callable[[Evidence], _Check]] = {
    DeleteReason.PENDING_DELETE: _is_pending_delete,
    DeleteReason.PENDING_PAGE: _is_pending_page,
    DeleteReason.OLD_MANIFEST: lambda evidence: (
        lambda key: (parse_manifest_key(key) or evidence.gc_boundary + 1) <= evidence.gc_boundary
    ),
    DeleteReason.PIN: lambda _: lambda key: parse_pin_key(key) is not None,
    DeleteReason.ORPHAN: lambda evidence: (
        lambda key: (made_in := parse_epoch(key)) is not None and made_in < evidence.epoch
    ),
    DeleteReason.OWN_UPLOAD: lambda _: lambda key: (parse_data_key(key) or parse_view_key(key)) is not None,
    DeleteReason.PROBE: lambda _: lambda key: key.startswith(PROBES),
    DeleteReason.EXPORT: lambda _: lambda key: parse_topic_directory(key.partition("/")[0]) is None,
    DeleteReason.BENCHMARK: lambda _: lambda key: True,
}


class Deletions:
    """The deletions of this process in one store. `left_objects` is an upper bound of the objects that uploads left."""

    def __init__(self) -> None:
        self.by_reason: Counter[DeleteReason] = Counter()
        self.left_objects = 0
        self._is_outage_logged = False

    def note_left(self, keys: Sequence[str], error: Exception) -> None:
        """Add objects that may remain under `keys`. Logs a warning for the first call of an outage."""
        with _lock:
            self.left_objects += len(keys)
            level = logging.DEBUG if self._is_outage_logged else logging.WARNING
            self._is_outage_logged = True
        _log.log(level, "cannot delete the objects of a failed upload: keys=%s cause=%s", ",".join(keys), error)

    def end_outage(self) -> None:
        with _lock:
            self._is_outage_logged = False


_by_store: WeakKeyDictionary[ObjectStore, Deletions] = WeakKeyDictionary()


def deletions(store: ObjectStore) -> Deletions:
    """The counts for a store object, for its lifetime. Thread safe."""
    with _lock:
        return _by_store.setdefault(store, Deletions())
