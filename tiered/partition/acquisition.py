"""Acquire many partitions at once in a bounded number of threads.

Each acquisition waits for the store several times.

In a read-only open, partitions are independent. All partitions of all topics wait for the store in parallel. A
read-only open limits its wait: once one request found the store unavailable and WAIT_MAX_S have passed since the start,
the store is not asked about the remaining partitions. Each of them gets Unavailable. A request already sent takes at
most the time of one call (`remote.store.middleware.deadline_store`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from local.errors import LogError, Unavailable
from tiered.partition.partition import Partition
from tiered.stores.parallel import side_by_side

OPENERS = 8
LOOKERS = 16
DISK_LOOKERS = 1  # a directory as bucket: no latency to hide, and two threads contend for the interpreter
WAIT_MAX_S = 20.0

TakeUp = Callable[[Partition], LogError | None]


def acquire_all(acquire: TakeUp, waiting: Sequence[Partition]) -> list[LogError | None]:
    """The error that prevents the takeover of each partition, in order; None on success.

    Raises the errors that `acquire` raises.
    """
    if len(waiting) < 2:
        return [acquire(each) for each in waiting]
    return side_by_side(acquire, waiting, threads=OPENERS, name="take-up")


def open_read_only_all(
    acquire: TakeUp, waiting: Sequence[Partition], store_url: str = "", *, clock: Callable[[], float] = time.monotonic
) -> list[LogError | None]:
    """As `acquire_all`, for the partitions of a read-only open of any number of topics."""
    begun_s = clock()
    silent: list[Unavailable] = []

    def look_up(held: Partition) -> LogError | None:
        if silent and clock() - begun_s >= WAIT_MAX_S:
            facts = {"partition": held.name, "cause": silent[0].attempt}
            return Unavailable("cannot open the partition, the store did not reply for other partitions", **facts)
        error = acquire(held)
        if isinstance(error, Unavailable):
            silent.append(error)
        return error

    if len(waiting) < 2 or store_url.startswith("memory:"):
        return [look_up(each) for each in waiting]
    threads = DISK_LOOKERS if store_url.startswith("file:") else LOOKERS
    return side_by_side(look_up, waiting, threads=threads, name="look-up")
