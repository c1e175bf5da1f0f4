"""The start-up probe: does this store really have what the commit protocol stands on?

Some servers that speak S3 take ``If-None-Match`` and overwrite all the same. A store that fails this probe allows a
single declared writer at most: two could both commit.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from local.errors import AlreadyExists, LogError
from remote.keys import PROBES, new_ulid
from remote.store import ObjectStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreGuarantees:
    """What was seen to hold. `create_if_absent`: a second create of one name was refused and changed nothing."""

    create_if_absent: bool


def probe_store(store: ObjectStore, prefix: str = "", now_ms: int = 0) -> StoreGuarantees:
    """Create one fresh key twice, look, and remove it. Raises what the store raises when it cannot be written to.

    Nothing is removed unless the first create was answered. One whose answer was lost may leave its object behind,
    which no reader looks at; asking a store that does not answer to delete would only double the wait.
    """
    key = f"{prefix}{PROBES}{new_ulid(now_ms)}"
    first, second = b"tiered probe 1\n", b"tiered probe 2\n"
    with suppress(AlreadyExists):  # a lost answer: nobody else knows the name
        store.put_if_absent(key, first)
    try:
        try:
            store.put_if_absent(key, second)
            refused = False
        except AlreadyExists:
            refused = True
        return StoreGuarantees(create_if_absent=refused and store.get(key) == first)
    finally:
        _remove(store, key)


def _remove(store: ObjectStore, key: str) -> None:
    try:
        store.delete([key])
    except LogError as error:
        log.warning("leaving a probe behind: key=%s cause=%s", key, error)
