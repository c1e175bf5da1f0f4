"""What a writer knows of its partition's pins, so that it need not list them again and again.

Bytes go for good only when no pin holds them (`remote.gc.pins`). Asking that of the store by a listing, each time that
something is due, is a listing in a steady loop: every round while a pin keeps what is due, and in a log with retention
every time that a segment's grace time ends. Two facts make most of those listings superfluous; no clock is in either,
but for a pin's end.

**One look after an object has left the index is enough, for ever.** A pin counts only if everything that its head names
is still in the index when the newest head is read *after the pin was written* (`remote.gc.pins.pin_newest`). So the pin
that counts for an object was written before the head that unlinked it, and whoever lists the pins after that head was
committed sees it. Later pins are of later heads, which do not name the object, or came too late and are taken back.
What can still happen to a pin that was seen: it is let go of, lapses, or is renewed. One GET of its name tells. What
has lapsed by our clock may be renewed yet by a holder whose clock is behind, or who began in time: it holds nothing
while it is so, and is asked for again for RENEWAL_LAG_MS, as often as something is due. In an immutable bucket another
pin may stand in its place, under another name (`remote.gc.pins`): the pins are listed once more when one has lapsed.

**Not to delete is always safe.** While the oldest pin that was seen stands, what left the index after it stays,
whatever other pins there are. So nothing is asked at all before the pin may have lapsed, or RECHECK_MS after it was
last asked, so that one that was let go of early is noticed.

| what is due | asked of the store |
|---|---|
| left the index before the last listing of pins, no pin stands | nothing |
| left the index before the last listing, pins that are older stand | a GET of the oldest of them, every RECHECK_MS |
| left the index since, a pin that is older stands | the same |
| left the index since, and no known pin is older | a listing, a GET for each pin |
| whatever is due, and an older pin has lapsed lately | a GET of that one besides, and once a listing |

Forks are told of by pins (`remote.gc.fork_references`), and the first fact goes for them as well: one that counts was
announced while the index still named the object. Where a listing told of none, it is not asked again for what it
covers.

With a grace time of a day that is one listing a day of a log whose segments expire all the time. A listing is not
relied on for what left the index less than LISTING_LAG_MS before it: a store whose listings lag is then looked at again
when the object is due, a grace time after it left. The rows of a deleted partition leave the index when that time is
over, and are due at once; as times they have that of the deletion, after which nobody gets a pin any more. The proof
that the writer is still the last comes after all this (`remote.manifest.commit_protocol`).

Known is only what this process saw: a start begins with nothing, and lists.
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
    """When something left the index: the first head without it, and its time."""

    sequence: int
    at_ms: int


class PinWatch:
    """One partition's pins, as its writer knows them. Not thread safe: under the partition's lock."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._known: dict[str, Pin] = {}  # that stand, or may be renewed yet, as they were when they were asked for
        self._asked_ms: dict[str, int] = {}
        self._listed_ms: int | None = None
        self._listed_at = 0  # the newest head known when the listing began
        self._has_forks = True
        self._lapsed: set[str] = set()  # of those that are known, and were listed since

    @property
    def has_forks(self) -> bool:
        """Whether the last listing told of a fork; what `free` gave since then, no other can name
        (`remote.gc.fork_references`)."""
        return self._has_forks

    def free(self, due: Mapping[str, Unlinking], *, sequence: int, now_ms: int) -> set[str]:
        """The keys of `due` that no pin holds. `sequence` is that of a committed head which lists all of them.

        Raises Corrupt for a pin that cannot be read.
        """
        free = self._not_held(due, now_ms)
        if any(not self._is_covered(due[key]) for key in free):
            self.look(sequence=sequence, now_ms=now_ms)
            free = self._not_held(due, now_ms)
        return free

    def keeps_before(self, sequence: int, now_ms: int) -> bool:
        """Whether a pin that was seen keeps a head before `sequence`; asked where it is time. False may mean that none
        was ever looked for. Raises Corrupt for a pin that cannot be read."""
        older = [pin for pin in self._known.values() if pin.sequence < sequence]
        return any(self._stands(pin, now_ms) for pin in sorted(older, key=lambda each: each.sequence))

    def look(self, *, sequence: int, now_ms: int) -> None:
        """List the pins, whatever is known of them. `sequence` is that of the newest head. Raises as `free`."""
        pins = list_pins(self._store, self._prefix)
        self._has_forks = any(pin.fork is not None for pin in pins)
        self._known = {pin.key: pin for pin in pins if pin.expires_ms + RENEWAL_LAG_MS > now_ms}
        self._asked_ms = dict.fromkeys(self._known, now_ms)
        self._lapsed = {pin.key for pin in self._known.values() if pin.expires_ms <= now_ms}
        self._listed_ms, self._listed_at = now_ms, sequence

    def _not_held(self, due: Mapping[str, Unlinking], now_ms: int) -> set[str]:
        """Those that no known pin holds, which are asked where it is time."""
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
            return False  # it has lapsed, and was asked for just now
        found = read_pin(self._store, self._prefix, pin.key)
        if found is None or found.expires_ms + RENEWAL_LAG_MS <= now_ms:
            del self._known[pin.key], self._asked_ms[pin.key]
            return False
        self._known[pin.key], self._asked_ms[pin.key] = found, now_ms
        if found.expires_ms <= now_ms and pin.key not in self._lapsed:
            self._listed_ms = None  # another one may stand in its place
        return found.expires_ms > now_ms

    def _is_covered(self, one: Unlinking) -> bool:
        """Whether the pins were listed well after it left the index."""
        is_before = one.sequence <= self._listed_at
        return is_before and self._listed_ms is not None and one.at_ms + LISTING_LAG_MS <= self._listed_ms
