"""The start-up probe: does this store really have what the commit protocol stands on?

Some servers that speak S3 take ``If-None-Match`` and overwrite all the same. A store that fails this probe allows a
single declared writer at most: two could both commit.
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

RACERS = 4  # creates of one name at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreGuarantees:
    """What was seen to hold. `create_if_absent`: a second create of one name was refused and changed nothing.

    `one_winner`: of RACERS creates of one name at the same time at most one was answered with success, and what lies
    there is its body. An implementation that looks first and writes then fails here, most of the time.
    """

    create_if_absent: bool
    one_winner: bool

    @property
    def allows_writers(self) -> bool:
        """Whether several managers may write to this store."""
        return self.create_if_absent and self.one_winner


def probe_store(store: ObjectStore, prefix: str = "", now_ms: int = 0, *, is_racing: bool = False) -> StoreGuarantees:
    """Create a fresh key twice, look, and remove it. Raises what the store raises when it cannot be written to.

    `is_racing` also creates one at the same time from several threads; otherwise that is taken as given.

    Nothing is removed unless the first create was answered. One whose answer was lost may leave its object behind,
    which no reader looks at; asking a store that does not answer to delete would only double the wait.

    Not looked at, for nothing here stands on it: conditional overwrites (`If-Match`) and empty bodies, which
    `remote.store.protocol.check_body` refuses before any request.
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
        create_if_absent = refused and store.get(key) == first
    finally:
        _remove(store, key)
    return StoreGuarantees(
        create_if_absent=create_if_absent,
        one_winner=not is_racing or _has_one_winner(store, f"{prefix}{PROBES}{new_ulid(now_ms)}"),
    )


def _has_one_winner(store: ObjectStore, key: str) -> bool:
    """Several creates at once. None that was answered may be missing in the end, so at most one was answered."""
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
        log.warning("leaving a probe behind: key=%s cause=%s", key, error)
