"""The start-up probe: whether a store has the guarantees that the commit protocol needs.

Some S3-compatible servers accept ``If-None-Match`` and overwrite anyway. A store that fails this probe allows at most
one declared writer: two writers could both commit.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from local.errors import AlreadyExists, LogError
from remote.keys import PROBES, new_ulid
from remote.store.protocol import ObjectStore

log = logging.getLogger(__name__)

RACERS = 4  # concurrent creates of one name


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreGuarantees:
    create_if_absent: bool  # a second create of one name was refused and changed nothing
    one_winner: bool  # of RACERS concurrent creates at most one succeeded, and the object has its body

    @property
    def allows_writers(self) -> bool:
        return self.create_if_absent and self.one_winner


def probe_store(store: ObjectStore, prefix: str = "", now_ms: int = 0, *, is_racing: bool = False) -> StoreGuarantees:
    """The guarantees seen by creating a fresh key twice, and with `is_racing` one from several threads at once.

    The key is removed only if the first create was answered. Raises the store's errors if it cannot be written to.
    """
    key = f"{prefix}{PROBES}{new_ulid(now_ms)}"
    first, second = b"tiered probe 1\n", b"tiered probe 2\n"
    with suppress(AlreadyExists):  # a lost answer: no other writer knows the name
        store.put_if_absent(key, first)
    try:
        store.put_if_absent(key, second)
        create_if_absent = False
    except AlreadyExists:
        create_if_absent = store.get(key) == first
    finally:
        _remove(store, key)
    return StoreGuarantees(
        create_if_absent=create_if_absent,
        one_winner=not is_racing or _has_one_winner(store, f"{prefix}{PROBES}{new_ulid(now_ms)}"),
    )


def _has_one_winner(store: ObjectStore, key: str) -> bool:
    bodies = [b"tiered probe by %d\n" % number for number in range(RACERS)]
    together = threading.Barrier(RACERS)

    def create(body: bytes) -> bool:
        together.wait()
        try:
            store.put_if_absent(key, body)
        except AlreadyExists:
            return False
        return True

    try:
        with ThreadPoolExecutor(RACERS, "tiered-probe") as threads:
            won = list(threads.map(create, bodies))
        found = store.get(key)
    finally:
        _remove(store, key)
    return sum(won) <= 1 and all(body == found for body, is_winner in zip(bodies, won, strict=True) if is_winner)


def _remove(store: ObjectStore, key: str) -> None:
    try:
        store.delete([key])
    except LogError as error:
        log.warning("cannot delete a probe object: key=%s cause=%s", key, error)
