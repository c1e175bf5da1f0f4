"""The newest heads as one look of this process found them, for the next look.

Whoever looks at many partitions again and again (``status --watch``, pages) has nothing between two looks but this. The
next look begins at the head that the last one found instead of with a listing:

* For the next number alone is asked, a 404 where nothing is new: one small request. Whatever was committed since is
  seen, but where so very much was that the next number has been collected already (`remote.gc.old_manifests` keeps a
  few hundred).
* So once in SURE_MS it is made sure of: that the bucket still has the very head under the very name (it may have been
  put back to an earlier state), and that no boundary of collected heads has passed it. Three small requests.
* A head that is there no more, or that the next one does not follow, is forgotten: all begins with a listing.

So a look may miss only what happened within the last SURE_MS, and only where hundreds of commits were made in that
time, or the bucket was put back. Nothing is decided by such a look: a manager that writes has no part in this.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from local.errors import Corrupt, NotFound
from remote.keys import head_key
from remote.manifest.manifest import Head, encode_again
from remote.manifest.manifest_chain import HeadChain
from remote.manifest.manifest_lookup import new_owner
from remote.manifest.sealing import sealer_of
from remote.store import ObjectStore

SURE_MS = 60_000
KNOWN_MAX = 20_000


@dataclass(frozen=True, slots=True)
class _Known:
    """`sure_ms` is when it was made sure of; `owner` is whose its pages are (`remote.manifest.manifest_lookup`)."""

    head: Head
    sure_ms: int
    owner: int


class KnownHeads:
    """Of any number of partitions. Thread safe for different partitions."""

    def __init__(self, counted_ms: Callable[[], int], *, heads_max: int = KNOWN_MAX) -> None:
        """`counted_ms` counts on whatever is set. At most `heads_max` are kept, those used last."""
        self._counted_ms, self._heads_max = counted_ms, heads_max
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def newest(
        self,
        store: ObjectStore,
        prefix: str,
        chain: HeadChain,
        begin: Callable[[], Head | None],
        *,
        exact: bool = False,
    ) -> tuple[Head | None, int]:
        """The newest head (`HeadChain.newest`), and whose its pages are; `begin` finds it where nothing is known.

        `exact` makes sure now. Raises as `HeadChain.newest`. A boundary that `chain` learned of from another history
        lies below the head known of that, and so below the head of the same number that does not follow it.
        """
        name, now_ms = (store.url, prefix), self._counted_ms()
        with self._lock:
            known = self._known.get(name)
        if known is not None:
            is_due = exact or not 0 <= now_ms - known.sure_ms < SURE_MS
            with suppress(Corrupt):  # the bucket's history is another; what is damaged in it is met below
                if not is_due or is_same_head(store, prefix, known.head):
                    found = chain.newest(known.head, exact=is_due)
                    return self._keep(name, found, now_ms if is_due else known.sure_ms, known.owner)
            if known.head.seal_key_id is None:
                with self._lock:
                    self._known.pop(name, None)
        found = begin()
        if known is not None:
            check_not_rolled_back(known.head, found, prefix)
        return self._keep(name, found, now_ms, new_owner())

    def _keep(self, name: tuple[str, str], head: Head | None, sure_ms: int, owner: int) -> tuple[Head | None, int]:
        if head is not None:
            with self._lock:
                self._known[name] = _Known(head, sure_ms, owner)
                self._known.move_to_end(name)
                while len(self._known) > self._heads_max:
                    self._known.popitem(last=False)
        return head, owner


def check_not_rolled_back(known: Head, found: Head | None, prefix: str) -> None:
    """Raises Corrupt where a sealed head was seen before, and the bucket has an older, another or no sealed one now.

    Heads that are not sealed prove nothing: a bucket of those may have been put back from a backup.
    """
    if known.seal_key_id is not None:
        step = "if the bucket was put back on purpose, restart the reader without its cache directory"
        check_seen((known.sequence, known.commit_id), found, prefix, step)


def check_seen(seen: tuple[int, str], found: Head | None, prefix: str, step: str) -> None:
    """Raises Corrupt, with `step` to do, unless `found` is the sealed head `seen` (sequence, commit id) or newer."""
    if found is not None and found.seal_key_id is not None:
        is_newer = found.sequence > seen[0]
        if is_newer or (found.sequence, found.commit_id) == seen:
            return
    facts = {"seen_sequence": seen[0], "found_sequence": found.sequence if found is not None else None}
    wrong = "the bucket has an older state than was seen"
    if found is not None and found.seal_key_id is None:
        wrong = "the manifest of an encrypted topic is not sealed, and a sealed one was seen: forged, or put back"
    raise Corrupt(f"reading a head, {wrong}; {step}", prefix=prefix, **facts)


def is_same_head(store: ObjectStore, prefix: str, head: Head, body: bytes | None = None) -> bool:
    """Whether the bucket has this very head, by its first line, which has the checksum of the rest; one small GET.

    `body` are its bytes, where they are at hand.
    """
    body = encode_again(head, sealer_of(store, prefix)) if body is None else body
    line = body[: body.index(b"\n") + 1]
    try:
        return store.get_range(prefix + head_key(head.sequence), 0, len(line)) == line
    except (NotFound, Corrupt):
        return False
