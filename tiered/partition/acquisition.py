"""Many partitions taken up at once, by a bounded number of threads: each waits for the store several times.

Of a directory that is opened to be looked at, nothing depends on anything else: all partitions of all topics wait
beside each other, however few each topic has. And whoever looks wants an answer: once the store has not answered for
one of them, and LOOK_S have passed since the beginning, it is not asked about the others; each says so. One that was
asked about by then takes as long as one call may (`remote.store.middleware.deadline_store`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from local.errors import LogError, Unavailable
from tiered.partition.partition import Partition
from tiered.stores.parallel import side_by_side

OPENERS = 8
LOOKERS = 16
DISK_LOOKERS = 1  # of a bucket that is a directory: nothing to wait for, and two take the interpreter from each other
LOOK_S = 20.0

TakeUp = Callable[[Partition], LogError | None]


def take_up_all(take_up: TakeUp, waiting: Sequence[Partition]) -> list[LogError | None]:
    """What is in the way of each, in order; None where nothing is. Raises what `take_up` does."""
    if len(waiting) < 2:
        return [take_up(each) for each in waiting]
    return side_by_side(take_up, waiting, threads=OPENERS, name="take-up")


def look_up_all(
    take_up: TakeUp, waiting: Sequence[Partition], store_url: str = "", *, clock: Callable[[], float] = time.monotonic
) -> list[LogError | None]:
    """The same for partitions that are only looked at, of any number of topics; see the module text."""
    begun_s = clock()
    silent: list[Unavailable] = []

    def look_up(held: Partition) -> LogError | None:
        if silent and clock() - begun_s >= LOOK_S:
            facts = {"partition": held.name, "cause": silent[0].attempt}
            return Unavailable("looking at a partition, the store has not answered for others", **facts)
        error = take_up(held)
        if isinstance(error, Unavailable):
            silent.append(error)
        return error

    if len(waiting) < 2 or store_url.startswith("memory:"):
        return [look_up(each) for each in waiting]
    threads = DISK_LOOKERS if store_url.startswith("file:") else LOOKERS
    return side_by_side(look_up, waiting, threads=threads, name="look-up")
