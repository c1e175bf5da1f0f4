"""The chain of manifests in the store: find the newest manifest, and the void names.

The name of a manifest that GC deleted can be created again, by a writer that slept. So before GC deletes a manifest
(`remote.gc.delayed_delete`), it creates a **boundary**: every sequence at or below it is void from then on, whatever
has its name. Boundaries are numbered and created only if absent, each above the one before:

| bytes of ``meta/gc/boundary/<number 20>`` |
|---|
| ``tiered-boundary 1 <sequence 20> <CRC32C of all before it, 8 lower-case hex digits>\\n`` |

Search for the newest manifest:

* From a known N, GET N+1. A 404 means "nothing new", unless GC deleted N since; then the boundary has passed N. The
  boundary is read (one more 404) after each walk over manifests, for an `exact` answer, and at every QUIET_MAX-th 404
  in a row, so that a reader that slept for long notices.
* The manifests are listed after PROBES_MAX steps, without a known N, and if N is void. A listing only gives a start:
  N+1 is still requested, concurrently with N. The boundary is read after the GET of N: GC may have deleted N since the
  listing, and a writer that slept may have created the name again.
* Each manifest records how many boundaries its writer knew. The search for the next boundary starts there.

**No manifest.** The other objects of the store show why the listing of a partition shows none:

| the store has | error | why |
|---|---|---|
| manifest 1, or the first GC boundary | Unavailable | the listing hides objects that exist |
| other objects with names of this software | Corrupt | a partition's first object is its manifest, and its last stays |
| nothing, or only other names | NotFound | no writer has opened the partition yet |

A reader that took such a partition for an empty one would hide all of its records. The other objects are listed before
manifest 1 is requested, and a writer creates the manifest first. So a partition that a writer opens during this check
never appears as objects without a manifest.
"""

from __future__ import annotations

import re
from itertools import islice

from local.errors import AlreadyExists, Corrupt, InvalidRequest, LogError, NotFound, Unavailable
from local.format.crc32c import crc32c
from remote import keys
from remote.manifest.manifest import Manifest, decode_manifest
from remote.manifest.sealing import sealer_of
from remote.segment_entry import INT64_MAX
from remote.store import Body, ObjectStore

PROBES_MAX = 4  # after this many GETs of the next number a listing is cheaper
QUIET_MAX = 16  # 404s in a row that count as "nothing new" before the boundary is read
RELISTS_MAX = 3  # listings with a newest manifest that GC deleted before it was read
_BOUNDARY = re.compile(rb"(tiered-boundary 1 ([0-9]{20}) )([0-9a-f]{8})\n")
FIRST = 1  # the number of the first manifest and of the first boundary


class ManifestChain:
    """Reads manifests and boundaries of one partition. Not thread safe: `MetadataLog` holds its lock."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._quiet = 0
        self.sealer = sealer_of(store, prefix)
        self._sealed_from: int | None = None  # the lowest sequence of a sealed manifest that was seen
        self.boundary_number = 0
        self.gc_boundary = 0  # the boundary as far as read: 0, or the sequence in boundary `boundary_number`
        self._first_listed: int | None = None  # the lowest sequence of the last full listing

    def lacks_first_manifests(self) -> bool:
        """Whether manifests above the boundary are missing; known only after a full listing, else False."""
        first = self._first_listed
        return first is not None and first > self.gc_boundary + 1 and not self.is_void(first - 1)

    def newest(self, known: Manifest | None, *, exact: bool = False) -> Manifest | None:
        """The newest manifest; None without one. Without `exact` it may be an earlier one."""
        latest, steps, is_sure = known, 0, not exact
        behind: dict[int, Manifest | None] = {}  # manifests that were read together with their predecessors
        while True:
            if latest is None or steps == PROBES_MAX:
                listed = self._newest_listed(latest.sequence if latest else 0, behind)
                if listed is None and latest is None:
                    return None
                latest, steps = listed or latest, 0
                is_sure = is_sure and listed is None
                assert latest is not None
            self._learn(latest)
            sequence = latest.sequence + 1
            following = behind.pop(sequence) if sequence in behind else self.read(sequence)
            is_next = following is not None and following.parent_id == latest.commit_id
            if following is not None and is_next and following.epoch >= latest.epoch:
                latest, steps = following, steps + 1
                continue
            if following is None and is_sure and not self._is_due(steps):
                return latest
            # A manifest of the boundary's own number may be a stale writer's, although its successor is sound.
            if self.is_void(latest.sequence):
                latest, steps, is_sure = self._after_collection(latest, behind), 0, False
            elif following is None:
                return latest
            else:
                facts = {"sequence": following.sequence, "parent": following.parent_id, "expected": latest.commit_id}
                raise Corrupt("a manifest does not follow its predecessor", prefix=self._prefix, **facts)

    def read(self, sequence: int) -> Manifest | None:
        """The manifest under this name, void or not; None if there is none. Raises Corrupt."""
        key = self._prefix + keys.manifest_key(sequence)
        try:
            body = self._store.get(key)
        except NotFound:
            return None
        return self._decoded(sequence, body)

    def _decoded(self, sequence: int, body: Body) -> Manifest:
        key = self._prefix + keys.manifest_key(sequence)
        try:
            manifest = decode_manifest(body, self._prefix, sealer=self.sealer)
        except Corrupt as error:
            raise Corrupt(error.attempt, store=self._store.url, key=key, **error.facts) from error
        if manifest.sequence != sequence:
            wrong = "a manifest has the name of another manifest"
            raise Corrupt(wrong, store=self._store.url, key=key, says=manifest.sequence)
        if manifest.seal_key_id is None and self._sealed_from is not None and sequence > self._sealed_from:
            wrong = "a manifest is not sealed and an older manifest is sealed: forged"
            raise Corrupt(wrong, store=self._store.url, key=key, sealed_sequence=self._sealed_from)
        self._note_seal(manifest)
        return manifest

    def _note_seal(self, manifest: Manifest) -> None:
        """Record a sealed manifest. A sealed chain stays sealed: later unsealed manifests are refused."""
        if manifest.seal_key_id is not None:
            self._sealed_from = min(manifest.sequence, self._sealed_from or manifest.sequence)

    def _is_due(self, steps: int) -> bool:
        """Whether a 404 requires a read of the boundary: after newer manifests, or long after the last read."""
        self._quiet = self._quiet + 1 if steps == 0 else QUIET_MAX
        return self._quiet >= QUIET_MAX

    def _after_collection(self, latest: Manifest, behind: dict[int, Manifest | None]) -> Manifest:
        found = self._newest_listed(max(self.gc_boundary, latest.sequence), behind)
        if found is None:
            facts = {"store": self._store.url, "prefix": self._prefix, "void_upto": self.gc_boundary}
            wrong = "cannot find the newest manifest, older manifests were collected and no newer manifest is listed"
            raise Unavailable(wrong, **facts)
        return found

    def _newest_listed(self, after: int, behind: dict[int, Manifest | None]) -> Manifest | None:
        """The newest listed manifest above `after`, or None; `behind` gets its successor, or None."""
        listed = after
        for _ in range(RELISTS_MAX):
            names = self._store.list(self._prefix + keys.MANIFESTS, start_after=self._prefix + keys.manifest_key(after))
            parsed = (keys.parse_manifest_key(info.key.removeprefix(self._prefix)) for info in names)
            found = [each for each in parsed if each is not None]
            listed = max(found, default=after)
            if after == 0:
                self._first_listed = min(found, default=None)
            if listed == after:
                return None
            wanted = [self._prefix + keys.manifest_key(each) for each in (listed, listed + 1)]
            body, following = self._store.get_each([(key, 0, None) for key in wanted])
            if body is not None:
                behind[listed + 1] = None if following is None else self._decoded(listed + 1, following)
                return self._decoded(listed, body)
        facts = {"store": self._store.url, "key": self._prefix + keys.manifest_key(listed)}
        raise Unavailable("a manifest was listed and does not exist", **facts)

    def is_void(self, sequence: int) -> bool:
        self._quiet = 0
        for _ in range(PROBES_MAX):
            found = self._read_boundary(self.boundary_number + 1)
            if found is None:
                return sequence <= self.gc_boundary
            self._pass(self.boundary_number + 1, found)
        names = self._store.list(self._prefix + keys.BOUNDARIES, start_after=self._boundary_name(self.boundary_number))
        numbers = [keys.parse_boundary_key(info.key.removeprefix(self._prefix)) for info in names]
        last = max((each for each in numbers if each is not None), default=self.boundary_number)
        if last > self.boundary_number and (found := self._read_boundary(last)) is not None:
            self._pass(last, found)
        return self.is_void(sequence)

    def advance(self, upto: int) -> None:
        """Make every sequence up to `upto` void, or adopt the boundary of another process that was first."""
        if self.is_void(upto):
            return
        number = self.boundary_number + 1
        try:
            self._store.put_if_absent(self._boundary_name(number), encode_boundary(upto))
        except AlreadyExists:
            found = self._read_boundary(number)
            upto = found if found is not None else self.gc_boundary
        self._pass(number, upto)

    def _learn(self, manifest: Manifest) -> None:
        """Continue the search for boundaries after the boundaries that the manifest's writer knew."""
        self._note_seal(manifest)
        if manifest.boundary_number > self.boundary_number:
            self.boundary_number = manifest.boundary_number
            self.gc_boundary = max(self.gc_boundary, manifest.gc_boundary)

    def _pass(self, number: int, upto: int) -> None:
        self.boundary_number = number
        self.gc_boundary = max(self.gc_boundary, upto)

    def _read_boundary(self, number: int) -> int | None:
        key = self._boundary_name(number)
        try:
            return decode_boundary(self._store.get(key))
        except NotFound:
            return None
        except Corrupt as error:
            raise Corrupt(error.attempt, store=self._store.url, key=key, **error.facts) from error

    def _boundary_name(self, number: int) -> str:
        return self._prefix + keys.boundary_key(number)


def encode_boundary(upto: int) -> bytes:
    if upto < 1:
        raise InvalidRequest("cannot write a GC boundary, there is no manifest below it", upto=upto)
    text = b"tiered-boundary 1 %020d " % upto
    return text + b"%08x\n" % crc32c(text)


def decode_boundary(data: Body) -> int:
    found = _BOUNDARY.fullmatch(bytes(data))
    if not found or int(found[3], 16) != crc32c(found[1]) or not 1 <= int(found[2]) <= INT64_MAX:
        raise Corrupt("a GC boundary is damaged", size_bytes=len(data))
    return int(found[2])


def missing_manifest_error(store: ObjectStore, prefix: str) -> LogError:
    """The error of the module's last table. A listing and two GETs; raises the store's errors."""
    facts = {"store": store.url, "prefix": prefix}
    names = (info.key.removeprefix(prefix) for info in store.list(prefix))
    # Only a writer, a reader's pin or GC makes an object of such a name.
    parses = (keys.parse_epoch, keys.parse_boundary_key, keys.parse_pin_key)
    others = list(islice((name for name in names if any(parse(name) is not None for parse in parses)), 1))
    wanted = [prefix + keys.manifest_key(FIRST), prefix + keys.boundary_key(FIRST)]
    bodies = store.get_each([(key, 0, None) for key in wanted])
    there = [key for key, body in zip(wanted, bodies, strict=True) if body is not None]
    if there:
        attempt = "cannot find the manifest of a partition, the listing omits objects that exist"
        return Unavailable(attempt, **facts, key=there[0])
    if others:
        attempt = "the partition has objects and no manifest: run 'tiered scrub' to list them"
        return Corrupt(attempt, **facts, object=prefix + others[0])
    return NotFound("the partition has no manifest", **facts)
