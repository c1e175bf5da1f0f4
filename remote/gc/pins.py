"""Readers' pins: a head that somebody still reads by, so that what it names stays.

A long read (a backfill, a Spark job) takes hours by one head. Its pin keeps two things until it expires or is let go
of: the head itself, past its collection, and every object that the head names, past the grace time. Nothing else is
asked of a reader, and nothing is promised to one without a pin but the grace time.

| ``meta/pin/<ulid>.json`` | |
|---|---|
| `sequence`, `commit_id` | the pinned head |
| `expires_ms` | from then on the pin counts for nothing; whoever collects heads removes it, an hour later |
| `holder` | for people |
| `fork` | the prefix of a fork whose rows name objects of this head (`gc.fork_references`); it outlives the pin's end |
| `renews` | in an immutable bucket: the name of the pin in whose place this one stands |
| `sure_ms` | its holders may rely on the pin until then, no longer; null (as at first): until `expires_ms` |

Order of effects of `pin_newest`: the newest head N is read → the pin is written → the newest head is read once more.
Is N void by then, has anything that N names left the index (listed as unlinked is left), or was the topic deleted, the
pin came too late: it is taken back and the next head is tried. Nobody begins to read a deleted partition, so its
removal has to look for pins of before the deletion alone, and those have been there for the grace time
(`remote.gc.partition_removal`). A fork may be announced there all the same: another fork keeps what it needs until
then. Otherwise all that N names is in the index at a moment after the pin was written; whoever takes it out does so
later, and looks for pins later still. No clock is in it: the reader may stall between two steps for as long as it
likes. A crash after the second step leaves a pin that keeps objects until it expires.

A pin that its holder still needs is renewed: the same object, with a later end. One that has lapsed is not, for what it
kept may be gone. Order of effects of `renew`:

| step | effect | a crash, or no answer, after it leaves |
|---|---|---|
| 1 | the pin is read | the same |
| 2 | it is written with the later end, sure until the former one | a pin that keeps longer, relied on no longer |
| 3 | the newest head is read, and the clock | the same |
| 4 | it is written as sure until its later end; one that does not count is taken back | a pin that counts |

The holder may have stalled before step 2 while the pin lapsed. If it was sure by the clock when it was written, it
counts where everything that its head names is in the index or waits on the lists of the newest head. If it was not, a
deleter may have looked in between and be about to act, so it counts as a new pin would: nothing may have left the
index. Who comes after a renewal whose step 3 had no answer asks the same of the end that was sure: the later one in the
bucket may have been written when nothing was kept any more. Deleters go by the later end, which is always safe. Two who
renew one pin at once leave either end, both of them later than the one before.

In an immutable bucket (`remote.store.middleware.immutable_store`) nothing is written over, so at steps 2 and 4 another
pin of the same head takes the place of the one before, under a name of its own: it `renews` the first one, and whoever
renews that is given the latest of them. A writer that deletes need not know of such pins, for there it deletes nothing;
who looks for what is nobody's lists all pins.

Deleting looks in this order: listed as unlinked, **then** the pins, then the epoch, then the deed; and the grace time
is over. A look at the pins that came after the head which lists an object shows all that can ever hold it, so who
deletes again and again looks seldom (`remote.gc.pin_watch`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import msgspec

from local.errors import AlreadyExists, Conflict, Corrupt, NotFound
from remote.keys import PINS, new_ulid, parse_pin_key, parse_prefix, pin_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Head
from remote.manifest.manifest_chain import HeadChain
from remote.manifest.page_spill import lost_object
from remote.number_bounds import ClockMs, Sequence
from remote.store import ObjectStore

TRIES_MAX = 4  # heads that were collected between being read and being pinned


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """`key` is relative to the partition's prefix."""

    key: str
    sequence: int
    commit_id: str
    expires_ms: int
    holder: str
    fork: str | None = None
    sure_ms: int | None = None
    renews: str | None = None

    @property
    def sure_until_ms(self) -> int:
        """The end that holders may rely on; deleters go by `expires_ms`, which is never before."""
        return self.expires_ms if self.sure_ms is None else min(self.sure_ms, self.expires_ms)


class _Body(msgspec.Struct):
    sequence: Sequence
    commit_id: str
    expires_ms: ClockMs
    holder: str
    fork: str | None = None
    sure_ms: ClockMs | None = None
    renews: str | None = None


# Made at import: made in two threads at once it ends the process (msgspec 0.22).
_DECODER = msgspec.json.Decoder(_Body)


def pin_newest(
    store: ObjectStore,
    prefix: str,
    log: MetadataLog,
    *,
    now_ms: int,
    expires_ms: int,
    holder: str,
    fork: str | None = None,
) -> tuple[Pin, Head]:
    """Pin the newest head of a partition, and that head. Raises NotFound when there is none, or its topic was deleted
    (but for a `fork`), Conflict when heads are collected faster than they can be pinned."""
    for _ in range(TRIES_MAX):
        head = log.refresh()
        if head.deleted_ms is not None and fork is None:
            raise NotFound("pinning a head, its topic was deleted", prefix=prefix, deleted_ms=head.deleted_ms)
        body = _Body(head.sequence, head.commit_id, expires_ms, holder, fork)
        key = pin_key(new_ulid(now_ms))
        store.put(prefix + key, msgspec.json.encode(body))
        pin = Pin(key=key, **msgspec.structs.asdict(body))
        if _came_in_time(log, head) and (fork is not None or _is_living(log)):
            return pin, head
        release(store, prefix, [pin])
    raise Conflict("pinning a head, they are collected faster than pinned", prefix=prefix, tries=TRIES_MAX)


def renew(store: ObjectStore, prefix: str, pin: Pin, *, clock: Callable[[], int], expires_ms: int) -> Pin | None:
    """The pin with an end at or after `expires_ms`; None when it was let go of, has lapsed, or what it kept is gone: it
    is not in the store then, or counts for nothing.

    One GET; where the pin is sure to end earlier two PUTs, and between them a look at its head and the newest one.
    `clock` gives milliseconds. In an immutable bucket the pin has another name, and may end earlier, after half of the
    time at least that was asked for: those who renew one pin at once share it. Raises Corrupt for one that cannot be
    read; after Unavailable the pin is sure until where it was before.
    """
    found = read_pin(store, prefix, pin.key)
    if found is not None and found.expires_ms <= clock():
        found = _latest_in_its_place(store, prefix, found)
    if found is None or found.expires_ms <= clock():
        return None
    if found.sure_until_ms >= expires_ms:
        return found
    try:
        later = _put_again(store, prefix, _longer(found, expires_ms))
    except AlreadyExists:
        now_ms, found = clock(), _latest_in_its_place(store, prefix, found)
        if found.sure_until_ms - now_ms > (expires_ms - now_ms) // 2:
            return found
        later = _put_in_its_place(store, prefix, _longer(found, expires_ms), now_ms)
    if _keeps_all(store, prefix, later, is_late=clock() >= found.sure_until_ms):
        return _put(store, prefix, replace(later, sure_ms=None), clock())
    if later.fork is None:
        release(store, prefix, [later])
    else:
        end_pin(store, prefix, later, now_ms=clock())
    return None


def end_pin(store: ObjectStore, prefix: str, pin: Pin, *, now_ms: int) -> Pin | None:
    """Let a fork's pin end at once; what it says of the fork stays. None when it is gone. In an immutable bucket it
    ends when it was meant to, and a pin that has ended stands beside it."""
    found = read_pin(store, prefix, pin.key)
    return _put(store, prefix, replace(found, expires_ms=0), now_ms) if found is not None else None


def _longer(pin: Pin, expires_ms: int) -> Pin:
    """What step 2 writes."""
    return replace(pin, expires_ms=max(pin.expires_ms, expires_ms), sure_ms=pin.sure_until_ms)


def _put(store: ObjectStore, prefix: str, pin: Pin, now_ms: int) -> Pin:
    try:
        return _put_again(store, prefix, pin)
    except AlreadyExists:
        return _put_in_its_place(store, prefix, pin, now_ms)


def _put_again(store: ObjectStore, prefix: str, pin: Pin) -> Pin:
    facts = (pin.sequence, pin.commit_id, pin.expires_ms, pin.holder, pin.fork, pin.sure_ms, pin.renews)
    store.put(prefix + pin.key, msgspec.json.encode(_Body(*facts)))
    return pin


def _put_in_its_place(store: ObjectStore, prefix: str, pin: Pin, now_ms: int) -> Pin:
    """Under another name, where nothing is written over."""
    return _put_again(store, prefix, replace(pin, key=pin_key(new_ulid(now_ms)), renews=pin.renews or pin.key))


def _latest_in_its_place(store: ObjectStore, prefix: str, pin: Pin) -> Pin:
    """The pin, or the one of those that renew it which is sure to end last. A listing."""
    first = pin.renews or pin.key
    others = [each for each in list_pins(store, prefix) if each.renews == first]
    return max([pin, *others], key=lambda each: each.sure_until_ms)


def release(store: ObjectStore, prefix: str, pins: Iterable[Pin]) -> None:
    """Let go of pins. One that is gone already is no error."""
    store.delete([prefix + pin.key for pin in pins])


def list_pins(store: ObjectStore, prefix: str) -> list[Pin]:
    """All pins, expired ones too. One listing, and a GET for each. Raises Corrupt for one that cannot be read."""
    pins = []
    for info in store.list(prefix + PINS):
        key = info.key.removeprefix(prefix)
        if parse_pin_key(key) is not None and (pin := read_pin(store, prefix, key)) is not None:
            pins.append(pin)
    return pins


def read_pin(store: ObjectStore, prefix: str, key: str) -> Pin | None:
    """The pin as it is now; None for one that was let go of. Raises Corrupt for one that cannot be read."""
    try:
        body = _DECODER.decode(store.get(prefix + key))
    except NotFound:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt("reading a pin, its bytes are none", key=prefix + key, cause=str(error)) from error
    if body.fork is not None and parse_prefix(body.fork) is None:
        raise Corrupt("reading a pin, its fork is no partition", key=prefix + key, fork=repr(body.fork))
    if body.renews is not None and parse_pin_key(body.renews) is None:
        raise Corrupt("reading a pin, it renews what is no pin", key=prefix + key, renews=repr(body.renews))
    return Pin(key=key, **msgspec.structs.asdict(body))


def lowest_pinned(pins: Iterable[Pin], now_ms: int) -> int | None:
    """The oldest head that somebody holds; an object that left the index after it must stay. None without a pin."""
    return min((pin.sequence for pin in pins if pin.expires_ms > now_ms), default=None)


def _came_in_time(log: MetadataLog, head: Head) -> bool:
    newest = log.refresh(exact=True)
    if newest is head:
        return True
    if log.is_void(head.sequence):
        return False
    try:
        return lost_object(head, replace(newest, unlinked=(), unlinked_pages=()), log.page_rows) is None
    except NotFound:
        return False  # a page that it names is gone


def _is_living(log: MetadataLog) -> bool:
    return log.cached is not None and log.cached.deleted_ms is None


def _keeps_all(store: ObjectStore, prefix: str, pin: Pin, *, is_late: bool) -> bool:
    """Whether a pin that was renewed counts; `is_late`: it had lapsed by then."""
    head = HeadChain(store, prefix).read(pin.sequence)
    if head is None or head.commit_id != pin.commit_id:
        return False
    log = MetadataLog(store, prefix)
    if is_late:
        return _came_in_time(log, head)
    try:
        return lost_object(head, log.refresh(exact=True), log.page_rows) is None
    except NotFound:
        return False
