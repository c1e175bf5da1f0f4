"""Forks: a topic whose rows name another topic's objects, and what keeps those from being deleted.

Nothing is copied. A fork has heads, pages and an epoch of its own; the keys in its rows begin with a slash
(`remote.keys.foreign_key`). Its **home** is the partition whose objects they are. The home's retention and deletion go
on as if there were no fork, but for the last step: an object that a fork names is struck off the list of those to
delete and not deleted. It is the fork's from then on. A fork never deletes what is not its own: it lets go of it, and
once nobody names it `tiered gc` finds it nobody's.

One object tells the home of a fork: a pin with the field `fork` (`remote.gc.pins`), so it is found by the listing that
every deletion begins with. Which objects the fork needs is asked of the fork: whatever its newest head names, with what
waits there for its grace time, and whatever its readers have pinned.

States of a fork, and the effect that leads to each:

| state | effect | a crash after it leaves |
|---|---|---|
| announced | the source's newest head is pinned, the fork's prefix in the pin | a pin that ends by itself |
| begun | the fork's heads without rows: its epoch above the source's, its log start | the same; the fork is empty |
| filled | a head with all rows (pages of them first) | a fork that may lack objects: nobody has looked |
| whole | looked: the pin stands, the source's newest head names every row | a fork, a pin that ends by itself |
| done | the pin ends; what it says of the fork stays | |

Why the look is enough, without a clock: at that moment a durable announcement, a durable head of the fork and the
index of the source all name the object. Whoever deletes it takes it out of the index later, and looks for forks later
still. A source that is a fork itself holds objects of other homes: those are told before anything is named, and the
same look at the source's head protects them. A clock counts in one place: an announcement that lapsed before there was
a fork may be judged then and removed much later, so the look wants one with time left. Whoever reads the heads of
forks lists the forks before **and** after: between a list and a head a new fork could have come and the old one gone.

Another run takes the fork's epoch before it looks, and removes nothing once a pin of the fork has ended; who made it
looks after that whether the epoch is still its own, else nobody is told. So what somebody was told is whole stays.

When the look fails (the forking process slept past the end of its pin) the fork is removed and has to be made anew. So
is one that another run left filled, unless its rows pass the same look. The removal begins with a mark in the epoch
that looked: a run that took the fork up since, and may have told somebody, has fenced it. One that was cut after the
mark is ended by the next run that forks to that name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from remote.gc.pins import Pin, list_pins
from remote.keys import foreign_key, home_of, is_foreign
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_chain import HeadChain
from remote.manifest.page_spill import named_by, rows_unless_deleted
from remote.store import ObjectStore


def delete_objects(store: ObjectStore, prefix: str, keys: Sequence[str], *, has_forks: bool = True) -> None:
    """Delete what left a partition's index, but for what is another partition's and what a fork names.

    The caller has proved everything else: the grace time, the pins, that it still is the writer. Without `has_forks` it
    has also seen that there was no fork when the pins were listed after all of `keys` had left the index: then none
    that counts has come since, for a fork counts only if its source's index named the object after the fork was
    announced, and with no fork there the only source was the home (`remote.gc.pin_watch`).
    """
    own = [key for key in keys if not is_foreign(key)]
    kept = kept_by_forks(store, prefix) if own and has_forks else frozenset()
    store.delete([prefix + key for key in own if key not in kept])


def kept_by_forks(store: ObjectStore, prefix: str) -> frozenset[str]:
    """The objects of a partition that its forks name, keys relative to its prefix.

    One listing where there is no fork. Raises Corrupt or NotFound where a head or a page of a fork cannot be read, for
    it may name anything.
    """
    forks = forks_of(list_pins(store, prefix))
    while True:
        named = {key for fork in forks for key in named_by_fork(store, fork)}
        again = forks_of(list_pins(store, prefix)) if forks else forks
        if again <= forks:
            kept = frozenset(key for key in named if is_foreign(key) and home_of(key) == prefix)
            return frozenset(key.removeprefix(f"/{prefix}") for key in kept)
        forks |= again


def forks_of(pins: Iterable[Pin]) -> set[str]:
    """The prefixes of the forks that pins tell of, whether they have ended as pins or not."""
    return {pin.fork for pin in pins if pin.fork is not None}


def homes_of(keys: Collection[str], prefix: str) -> set[str]:
    """Whose objects these keys of the partition at `prefix` are: its own prefix, and those of the homes of a fork."""
    return {home_of(foreign_key(prefix, key)) for key in keys}


def named_by_fork(store: ObjectStore, fork: str) -> set[str]:
    """Everything that a fork's newest head names, and every pinned one; nothing while it has no head.

    Pins that have ended count as well: at worst an object stays until they are removed. A page of such a pin's manifest
    may be deleted already. Raises Corrupt for a damaged page and NotFound for a lost one.
    """
    metadata = MetadataLog(store, fork)
    head = metadata.load(exact=True)
    if head is None:
        return set()
    named: set[str] = metadata.ask(head, lambda index: named_by(index.head, index.page))
    chain = HeadChain(store, fork)
    for sequence in {pin.sequence for pin in list_pins(store, fork)}:
        pinned = chain.read(sequence)
        if pinned is not None:
            named |= named_by(pinned, rows_unless_deleted(head, metadata.page_rows))
    return named


def is_over(store: ObjectStore, fork: str) -> bool:
    """Whether a fork names nothing any more and never will: it was deleted, and all of it has left.

    One that has no head may be about to get one; it looks for its pin then, so its announcement may go as well.
    """
    head = MetadataLog(store, fork).load(exact=True)
    return head is None or (head.deleted_ms is not None and not named_by_fork(store, fork))
