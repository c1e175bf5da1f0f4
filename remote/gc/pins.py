"""Pins: a reader's claim on a manifest, which keeps it and its objects. Order of effects of `pin_newest`:

1. Read the newest manifest N.
2. Write the pin. A crash after this step leaves a pin that keeps objects until it expires.
3. Read the newest manifest again. If the pin was too late, release it and try the next manifest. It was too late if N
   is void now, an object of N was unlinked (a pending delete is unlinked too), or the topic was deleted.

If the pin was not too late, all objects of N were named at a moment after the pin was written. A later deletion unlinks
them after that moment, and lists the pins after that. No clock is involved: the reader may stall between two steps.

No new reader reads a deleted partition. So its removal looks only for pins from before the deletion, and these have
existed for the grace period (`remote.gc.partition_removal`). A fork may still be announced: until then another fork
protects the objects that it needs.

A holder renews its pin: the same object, with a later expiry. An expired pin is not renewed, because its objects may be
deleted. Order of effects of `renew`:

| step | effect | a crash, or a lost reply, after it leaves |
|---|---|---|
| 1 | read the pin | the same |
| 2 | write it with the later expiry, sure until the former one | a pin that holds longer, but is relied on no longer |
| 3 | read the newest manifest, and the clock | the same |
| 4 | write it as sure until its later expiry; release it if it does not count | a pin that counts |

The holder may have stalled before step 2 while the pin expired:

| by the clock of step 3 | the renewed pin counts if |
|---|---|
| the pin was sure at its write | the newest manifest names each object of the pinned one, or lists it as unlinked |
| it was not | none was unlinked, as for a new pin: a deleter may have read the expired pin, and may delete soon |

If step 3 of a renewal had no reply, the next renewal applies this rule to the former, sure expiry: the later expiry in
the bucket may have been written when nothing was protected any more. Deleters use the later expiry, which is always
safe. Two concurrent renewals of one pin leave either expiry, and both are later than the former one.

In an immutable bucket (`remote.store.middleware.store_wrapper`) another pin of the same manifest replaces the former
pin at steps 2 and 4. It `renews` the first pin, and a renewal of the first pin returns the latest replacement. A writer
need not know such pins, because it deletes nothing there. A search for orphans lists all pins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace

import msgspec

from local.errors import AlreadyExists, Conflict, Corrupt, LogError, NotFound
from remote.gc.object_deletion import DeleteReason, delete_objects
from remote.keys import PINS, new_ulid, parse_pin_key, parse_prefix, pin_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.page_out import lost_object
from remote.segment_entry import ClockMs, Sequence
from remote.store import ObjectStore

_log = logging.getLogger(__name__)

TRIES_MAX = 4  # manifests that GC deleted between the read and the pin
RECHECK_MS = 5 * 60_000
LISTING_LAG_MS = 10 * 60_000
RENEWAL_LAG_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The content of ``meta/pin/<ulid>.json``, and its `key`, relative to the partition's prefix."""

    key: str = ""
    sequence: Sequence  # of the pinned manifest, as `commit_id`
    commit_id: str
    expires_ms: ClockMs  # from then on the pin counts for nothing; GC deletes it an hour later
    holder: str  # for people
    fork: str | None = None  # the prefix of a fork that names objects of the manifest, valid after the expiry too
    # holders may rely on the pin only until then; None (as at first): until `expires_ms`
    sure_ms: ClockMs | None = None
    renews: str | None = None  # in an immutable bucket: the name of the pin that this pin replaces

    @property
    def sure_until_ms(self) -> int:
        """The time until which a reader may rely on the pin. Deletions wait until `expires_ms`, never earlier."""
        return self.expires_ms if self.sure_ms is None else min(self.sure_ms, self.expires_ms)


# Created at import: creation in two threads at once ends the process (msgspec 0.22).
_DECODER = msgspec.json.Decoder(Pin)
_CONTENT = tuple(each.name for each in fields(Pin) if each.name != "key")


def pin_newest(
    store: ObjectStore,
    prefix: str,
    log: MetadataLog,
    *,
    now_ms: int,
    expires_ms: int,
    holder: str,
    fork: str | None = None,
) -> tuple[Pin, Manifest]:
    """Pin the newest manifest of a partition; return the pin and the manifest.

    Raises NotFound without a manifest, or for a deleted topic without `fork`; Conflict if GC deletes each one first.
    """
    for _ in range(TRIES_MAX):
        manifest = log.refresh()
        if manifest.deleted_ms is not None and fork is None:
            raise NotFound(
                "cannot pin a manifest, the topic was deleted", prefix=prefix, deleted_ms=manifest.deleted_ms
            )
        pin = Pin(
            key=pin_key(new_ulid(now_ms)),
            sequence=manifest.sequence,
            commit_id=manifest.commit_id,
            expires_ms=expires_ms,
            holder=holder,
            fork=fork,
        )
        _put_again(store, prefix, pin)
        in_time, newest = _came_in_time(log, manifest), log.cached
        if in_time and (fork is not None or (newest is not None and newest.deleted_ms is None)):
            return pin, manifest
        release(store, prefix, [pin])
    raise Conflict(
        "cannot pin a manifest, garbage collection removed each manifest before it was pinned",
        prefix=prefix,
        tries=TRIES_MAX,
    )


def renew(store: ObjectStore, prefix: str, pin: Pin, *, clock: Callable[[], int], expires_ms: int) -> Pin | None:
    """Extend the pin to an expiry at or after `expires_ms`; return the pin as it is in the store then.

    None if the pin was released or has expired, or an object of its manifest is deleted. `clock` returns milliseconds.
    One GET; for a pin that expires earlier also two PUTs and reads of two manifests. In an immutable bucket the
    returned pin has another name and lasts at least half of the requested time: concurrent renewals share the result.

    Raises Corrupt if the pin cannot be read. After Unavailable the pin is sure until its former expiry.
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
    """Let a fork's pin expire now, or add an expired pin if immutable; return this pin, None if it is missing."""
    found = read_pin(store, prefix, pin.key)
    return _put(store, prefix, replace(found, expires_ms=0), now_ms) if found is not None else None


def _longer(pin: Pin, expires_ms: int) -> Pin:
    return replace(pin, expires_ms=max(pin.expires_ms, expires_ms), sure_ms=pin.sure_until_ms)


def _put(store: ObjectStore, prefix: str, pin: Pin, now_ms: int) -> Pin:
    try:
        return _put_again(store, prefix, pin)
    except AlreadyExists:
        return _put_in_its_place(store, prefix, pin, now_ms)


def _put_again(store: ObjectStore, prefix: str, pin: Pin) -> Pin:
    store.put(prefix + pin.key, msgspec.json.encode({name: getattr(pin, name) for name in _CONTENT}))
    return pin


def _put_in_its_place(store: ObjectStore, prefix: str, pin: Pin, now_ms: int) -> Pin:
    return _put_again(store, prefix, replace(pin, key=pin_key(new_ulid(now_ms)), renews=pin.renews or pin.key))


def _latest_in_its_place(store: ObjectStore, prefix: str, pin: Pin) -> Pin:
    """Return the pin or its replacement (`renews`) with the latest `sure_until_ms`. One listing."""
    first = pin.renews or pin.key
    others = [each for each in list_pins(store, prefix) if each.renews == first]
    return max([pin, *others], key=lambda each: each.sure_until_ms)


def release(store: ObjectStore, prefix: str, pins: Iterable[Pin]) -> None:
    delete_objects(store, prefix, [pin.key for pin in pins], DeleteReason.PIN)


def release_all(store: ObjectStore, pins: Iterable[tuple[str, Pin]]) -> None:
    """Delete pins, each with its partition's prefix. A pin that cannot be deleted is logged and expires by itself."""
    for prefix, pin in pins:
        try:
            release(store, prefix, [pin])
        except LogError as error:
            _log.warning("cannot delete a pin, it expires later: prefix=%s key=%s cause=%s", prefix, pin.key, error)


def list_pins(store: ObjectStore, prefix: str) -> list[Pin]:
    """All pins, expired ones too. One listing, and a GET for each. Raises Corrupt for an unreadable pin."""
    pins = []
    for info in store.list(prefix + PINS):
        key = info.key.removeprefix(prefix)
        if parse_pin_key(key) is not None and (pin := read_pin(store, prefix, key)) is not None:
            pins.append(pin)
    return pins


def read_pin(store: ObjectStore, prefix: str, key: str) -> Pin | None:
    """The pin's current state; None if it was released. Raises Corrupt if it cannot be read."""
    try:
        pin = replace(_DECODER.decode(store.get(prefix + key)), key=key)
    except NotFound:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt("a pin is damaged", key=prefix + key, cause=str(error)) from error
    if pin.fork is not None and parse_prefix(pin.fork) is None:
        raise Corrupt("cannot read a pin, its fork is not a partition", key=prefix + key, fork=repr(pin.fork))
    if pin.renews is not None and parse_pin_key(pin.renews) is None:
        raise Corrupt(
            "cannot read a pin, it renews an object that is not a pin", key=prefix + key, renews=repr(pin.renews)
        )
    return pin


def _came_in_time(log: MetadataLog, manifest: Manifest) -> bool:
    newest = log.refresh(exact=True)
    if newest is manifest:
        return True
    if log.is_void(manifest.sequence):
        return False
    try:
        without = replace(newest, pending_deletes=(), pending_page_deletes=())
        return lost_object(manifest, without, log.page_entries) is None
    except NotFound:
        return False  # a page of the pinned manifest is deleted


def _keeps_all(store: ObjectStore, prefix: str, pin: Pin, *, is_late: bool) -> bool:
    """Whether a renewed pin counts; `is_late`: its former expiry may have passed before the write."""
    manifest = ManifestChain(store, prefix).read(pin.sequence)
    if manifest is None or manifest.commit_id != pin.commit_id:
        return False
    log = MetadataLog(store, prefix)
    if is_late:
        return _came_in_time(log, manifest)
    try:
        return lost_object(manifest, log.refresh(exact=True), log.page_entries) is None
    except NotFound:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlinking:
    """The sequence and time of the first manifest that no longer names an object or page."""

    sequence: int
    at_ms: int


class PinWatch:
    """Cache of a partition's pins in its writer, in memory. Not thread safe: needs the partition's lock.

    Two facts make most listings for due objects unnecessary. Neither depends on a clock, except for the end of a pin.

    **Fact 1: one listing of the pins after an object was unlinked is enough, for ever.**

    1. A pin counts only if its manifest's objects are all still named when the newest manifest is read *after the pin
       was written* (`pin_newest`).
    2. So a pin that counts for an object was written before the manifest that unlinked the object.
    3. A listing after that manifest was committed therefore shows every such pin.
    4. Later pins are of later manifests, which do not name the object, or were too late and are released.

    A pin that was seen can be released, expire, or be renewed: one GET of its name shows which. A pin that expired by
    our clock may still be renewed: the holder's clock may be behind, or the renewal started in time. It holds nothing
    while it is expired; for RENEWAL_LAG_MS it is read again whenever something is due. In an immutable bucket another
    pin may replace it, so an expiry causes one more listing.

    **Fact 2: not deleting is always safe.** While the oldest pin that was seen is valid, no object that was unlinked
    after it is deleted, and no request is sent before that pin may have expired. To notice an early release, the pin is
    read again RECHECK_MS after its last read.

    | due objects | requests to the store |
    |---|---|
    | unlinked before the last listing of pins, no pin is valid | none |
    | unlinked before the last listing, older pins are valid | a GET of the oldest of them, every RECHECK_MS |
    | unlinked after the last listing, an older pin is valid | the same |
    | unlinked after the last listing, no known pin is older | a listing, a GET for each pin |
    | any of these, and an older pin has expired lately | in addition a GET of that pin, and once a listing |

    Pins announce forks too (`remote.gc.fork_references`), and fact 1 holds for them. If a listing showed no fork, forks
    are not looked up again for the objects that the listing covers.

    A listing does not cover objects that were unlinked less than LISTING_LAG_MS before it: a store with lagging
    listings is listed again when the object is due. The entries of a deleted partition are due at once; their unlink
    time is the time of the deletion, after which no reader gets a pin.
    """

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._known: dict[str, Pin] = {}  # pins that are valid or may still be renewed, as of their last read
        self._asked_ms: dict[str, int] = {}
        self._listed_ms: int | None = None
        self._listed_at = 0  # sequence of the newest manifest known when the listing started
        self.has_forks = True  # in the last listing; without one no fork names the keys that `free` returned since
        self._lapsed: set[str] = set()  # keys of `_known` that had expired at the last listing

    def free(self, due: Mapping[str, Unlinking], *, sequence: int, now_ms: int) -> set[str]:
        """The keys of `due` that no pin holds; the manifest `sequence` lists all of them. Raises Corrupt."""
        free = self._not_held(due, now_ms)
        if any(not self._is_covered(due[key]) for key in free):
            self.refresh(sequence=sequence, now_ms=now_ms)
            free = self._not_held(due, now_ms)
        return free

    def keeps_before(self, sequence: int, now_ms: int) -> bool:
        """Whether a known pin holds a manifest before `sequence`; False may mean that no pins were listed."""
        older = [pin for pin in self._known.values() if pin.sequence < sequence]
        return any(self._stands(pin, now_ms) for pin in sorted(older, key=lambda each: each.sequence))

    def refresh(self, *, sequence: int, now_ms: int) -> None:
        """List the pins unconditionally. `sequence` is that of the newest manifest. Raises as `free`."""
        pins = list_pins(self._store, self._prefix)
        self.has_forks = any(pin.fork is not None for pin in pins)
        self._known = {pin.key: pin for pin in pins if pin.expires_ms + RENEWAL_LAG_MS > now_ms}
        self._asked_ms = dict.fromkeys(self._known, now_ms)
        self._lapsed = {pin.key for pin in self._known.values() if pin.expires_ms <= now_ms}
        self._listed_ms, self._listed_at = now_ms, sequence

    def _not_held(self, due: Mapping[str, Unlinking], now_ms: int) -> set[str]:
        newest = max((each.sequence for each in due.values()), default=0)
        for pin in sorted(self._known.values(), key=lambda each: each.sequence):
            if pin.sequence >= newest:
                break
            if self._stands(pin, now_ms):
                return {key for key, each in due.items() if each.sequence <= pin.sequence}
        return set(due)

    def _stands(self, pin: Pin, now_ms: int) -> bool:
        asked_ms = self._asked_ms[pin.key]
        if asked_ms <= now_ms < min(pin.expires_ms, asked_ms + RECHECK_MS):
            return True
        if asked_ms == now_ms:
            return False  # it has expired, and was read just now
        found = read_pin(self._store, self._prefix, pin.key)
        if found is None or found.expires_ms + RENEWAL_LAG_MS <= now_ms:
            del self._known[pin.key], self._asked_ms[pin.key]
            return False
        self._known[pin.key], self._asked_ms[pin.key] = found, now_ms
        if found.expires_ms <= now_ms and pin.key not in self._lapsed:
            self._listed_ms = None  # another pin may have replaced it
        return found.expires_ms > now_ms

    def _is_covered(self, one: Unlinking) -> bool:
        is_before = one.sequence <= self._listed_at
        return is_before and self._listed_ms is not None and one.at_ms + LISTING_LAG_MS <= self._listed_ms
