"""Cache of a partition's pins in its writer, so that the writer seldom lists them.

Bytes may be deleted only if no pin holds them (`remote.gc.pins`). A listing for each due object would be a listing in a
steady loop: in every maintenance run while a pin holds due objects, and in a log with retention at the end of every
segment's grace period. Two facts make most of these listings unnecessary. Neither depends on a clock, except for the
end of a pin.

**Fact 1: one listing of the pins after an object was unlinked is enough, for ever.**

1. A pin counts only if its manifest's objects are all still named when the newest manifest is read *after the pin was
   written* (`remote.gc.pins.pin_newest`).
2. So a pin that counts for an object was written before the manifest that unlinked the object.
3. A listing after that manifest was committed therefore shows every such pin.
4. Later pins are of later manifests, which do not name the object, or were too late and are released.

A pin that was seen can be released, expire, or be renewed. One GET of its name shows which.

A pin that expired by our clock may still be renewed: the holder's clock may be behind, or the renewal started in time.
It holds nothing while it is expired. For RENEWAL_LAG_MS it is read again whenever something is due. In an immutable
bucket another pin may replace it under another name (`remote.gc.pins`), so an expiry causes one more listing.

**Fact 2: not deleting is always safe.** While the oldest pin that was seen is valid, no object that was unlinked after
it is deleted, regardless of other pins. So no request is sent before that pin may have expired. To notice an early
release, the pin is read again RECHECK_MS after its last read.

| due objects | requests to the store |
|---|---|
| unlinked before the last listing of pins, no pin is valid | none |
| unlinked before the last listing, older pins are valid | a GET of the oldest of them, every RECHECK_MS |
| unlinked after the last listing, an older pin is valid | the same |
| unlinked after the last listing, no known pin is older | a listing, a GET for each pin |
| any of these, and an older pin has expired lately | in addition a GET of that pin, and once a listing |

Pins announce forks too (`remote.gc.fork_references`), and fact 1 holds for them: a fork that counts was announced while
the manifest still named the object. If a listing showed no fork, forks are not looked up again for the objects that
the listing covers.

With a grace period of a day, a log with steady expiry costs one listing a day. A listing does not cover objects that
were unlinked less than LISTING_LAG_MS before it. So a store with lagging listings is listed again when the object is
due, a grace period after it was unlinked. The entries of a deleted partition are unlinked after the grace period and
are due at once. Their unlink time is the time of the deletion, after which no reader gets a pin. The proof that the
writer is still the last follows after all this (`remote.manifest.commit_protocol`).

The knowledge is in memory only: a new process starts without it, and lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from remote.gc.pins import Pin, list_pins, read_pin
from remote.store import ObjectStore

RECHECK_MS = 5 * 60_000
LISTING_LAG_MS = 10 * 60_000
RENEWAL_LAG_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlinking:
    """When an object or page was unlinked: sequence and time of the first manifest without it."""

    sequence: int
    at_ms: int


class PinWatch:
    """The pins of one partition, as its writer knows them. Not thread safe: needs the partition's lock."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._known: dict[str, Pin] = {}  # pins that are valid or may still be renewed, as of their last read
        self._asked_ms: dict[str, int] = {}
        self._listed_ms: int | None = None
        self._listed_at = 0  # sequence of the newest manifest known when the listing started
        self._has_forks = True
        self._lapsed: set[str] = set()  # keys of `_known` that had expired at the last listing

    @property
    def has_forks(self) -> bool:
        """Whether the last listing showed a fork: if not, no fork names the keys that `free` returned since."""
        return self._has_forks

    def free(self, due: Mapping[str, Unlinking], *, sequence: int, now_ms: int) -> set[str]:
        """The keys of `due` that no pin holds.

        `sequence` is that of a committed manifest that lists all of `due`.

        Raises Corrupt if a pin cannot be read.
        """
        free = self._not_held(due, now_ms)
        if any(not self._is_covered(due[key]) for key in free):
            self.refresh(sequence=sequence, now_ms=now_ms)
            free = self._not_held(due, now_ms)
        return free

    def keeps_before(self, sequence: int, now_ms: int) -> bool:
        """Whether a known pin holds a manifest before `sequence`. Reads a pin again only when that is due.

        The result is also False if the pins were never listed. Raises Corrupt if a pin cannot be read.
        """
        older = [pin for pin in self._known.values() if pin.sequence < sequence]
        return any(self._stands(pin, now_ms) for pin in sorted(older, key=lambda each: each.sequence))

    def refresh(self, *, sequence: int, now_ms: int) -> None:
        """List the pins unconditionally. `sequence` is that of the newest manifest. Raises as `free`."""
        pins = list_pins(self._store, self._prefix)
        self._has_forks = any(pin.fork is not None for pin in pins)
        self._known = {pin.key: pin for pin in pins if pin.expires_ms + RENEWAL_LAG_MS > now_ms}
        self._asked_ms = dict.fromkeys(self._known, now_ms)
        self._lapsed = {pin.key for pin in self._known.values() if pin.expires_ms <= now_ms}
        self._listed_ms, self._listed_at = now_ms, sequence

    def _not_held(self, due: Mapping[str, Unlinking], now_ms: int) -> set[str]:
        """The keys of `due` that no known pin holds. Reads a pin again only when that is due."""
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
        """Whether the pins were listed at least LISTING_LAG_MS after the unlinking."""
        is_before = one.sequence <= self._listed_at
        return is_before and self._listed_ms is not None and one.at_ms + LISTING_LAG_MS <= self._listed_ms
