"""The commit protocol: which process may write a partition's manifests, and when a commit is valid.

The valid state is the manifest with the highest sequence. A commit creates manifest N+1, whole, **only if absent**: the
store decides which writer was first. The protocol uses no clock, no lease and no lock.

| state | entered by | next |
|---|---|---|
| READER | the constructor | WRITER, once, by a role that commits (`remote.manifest.writer_roles`) |
| WRITER | its own manifest of epoch + 1; a co-writer: the writer's | FENCED when a manifest of a higher epoch is seen |
| FENCED | a manifest of a higher epoch | none: every verb raises Fenced |

Order of effects:
1. `become_writer` commits a manifest with epoch + 1, before any upload. That commit **is** the takeover. It fences the
   former writer: the next commit of that writer must be created at a sequence which is taken.
2. Objects are uploaded under names that were never used (`remote.upload.segment_upload`). No reader sees them yet.
3. Surplus entries are written to a page (`remote.manifest.page_out`): a manifest never names a page that does not
   exist. Then `commit` creates manifest N+1. Readers see the entries from then on, and only then may the local tier
   drop its copies.
4. Entries leave the manifest before their bytes are deleted. Before a deletion, `check_still_writer` proves from the
   store, not from memory, that this writer's epoch is still the newest.

In doubt: a create may end in "taken" (412), "conflict" (409) or nothing (timeout, reset), and still have happened:
clients retry by themselves and find their own object. So each of these results is followed by reading N+1:

| N+1 | meaning | reaction |
|---|---|---|
| has our commit id | the commit happened | success |
| does not exist | not yet | resend the same body with the same commit id; a late first attempt then has our commit id |
| has a higher epoch | another writer | Fenced, permanently |
| has our epoch | our own earlier commit with a lost reply | rebase: apply the change on top of it |
| has a lower epoch, or another parent | a protocol violation | Corrupt |

A "created" counts only if the GC boundary has not passed N+1. Otherwise the name was free because GC had deleted a
manifest of that name: the writer slept through other writers' commits (`remote.manifest.manifest_chain`).

| crash after | remains | readers see | repair |
|---|---|---|---|
| upload of objects (one or many segments), no commit | objects that no manifest names | N | GC: orphans, older epoch |
| upload of a page, no commit | a page that no manifest names | N | the retry writes another; orphan in the next epoch |
| manifest N+1 created, no reply or local effect | manifest N+1 | N+1 | the next start reads it: no second copy |
| expiry committed, bytes deleted or not | pending deletes | N+1 | deleted later; deleting again is no error |
| boundary advanced, manifests not deleted | void manifests | N+1 | not needed: they never count; GC deletes them |
| manifest created under a void name | one more void manifest | N+1 | its writer finds the boundary and is fenced |
| pin written, not confirmed | a pin | N+1 | expires; until then its manifest's objects stay |
| some parts of an upload | parts that no listing shows | N | ``tiered gc`` aborts the upload, by its epoch |
| a stall between last check and deletes | another writer, manifests, pins | N+k | none: unlinked objects stay unnamed |
| an upload that lost a part | a short object, or none | N | not committed: size and checksum are checked |
| an object that N names was deleted (404) | a newer manifest | N+1 | read N+1 once; if it names the object: damage |
| restored backup, the disk has the rest | orphans from the lost commits | M < N | continues from M, with new names |
| the same, the disk dropped the rest | no change | M < N | a start refuses with a message |
| the same, under a running manager | manifests, a number missing | N+1 | each read of a lost object reports damage |

After a backup was restored, epochs are assigned a second time, and two histories of the lost time can look alike: open
at most one of the disks with records of that time. docs/explanation/commit-protocol.md lists the test for each line.

No read returns a manifest before the cached one. A process reads the GC boundary before each deletion of objects other
than manifests, and after every create.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from local.errors import AlreadyExists, Conflict, Corrupt, Fenced, InvalidRequest, LogError, NotFound, Unavailable
from remote.keys import manifest_key, new_ulid
from remote.manifest.manifest import KEY_ID, Manifest, PageEntry, encode_again, encode_manifest
from remote.manifest.manifest_chain import ManifestChain, missing_manifest_error
from remote.manifest.manifest_changes import Change, loses_objects, names_older_objects, stamped
from remote.manifest.manifest_lookup import ManifestDiskCache, MetadataIndex, Pages
from remote.manifest.manifest_memory_cache import (
    ManifestMemoryCache,
    SealMemory,
    check_not_rolled_back,
    is_same_manifest,
    warn_unsealed,
)
from remote.manifest.manifest_page import Rows, encode_page
from remote.manifest.page_out import NewPage, NewPages, PageRule, move_oldest_to_page, move_to_page, opened
from remote.manifest.writer_roles import (
    CO_WRITER,
    CONDITIONAL,
    NEXT_STATES,
    READER,
    RESUMED,
    WRITER,
    Role,
    WriterState,
    last_appender,
    takeover_draft,
)
from remote.store import ObjectStore

T = TypeVar("T")

RESENDS_MAX = 3  # sends of one commit in doubt; each includes all of the store's own retries
REBASES_MAX = 8  # earlier commits of ours that one commit may find in its place
PAGE_RULE = PageRule()
TAKEOVERS_MAX = 16  # takeovers of other writers that one takeover may find in its place


class ManifestSource(Protocol):
    """A source of manifests in place of the chain in the bucket. A log with it is read-only."""

    def newest(self, known: Manifest | None) -> Manifest | None:
        """The newest manifest; `known` itself if nothing changed, None if there is none."""

    def missing(self) -> LogError:
        """The reason why there is no manifest."""


class MetadataLog:
    """The manifests of one partition, below `prefix`. Thread safe; commits of one instance are serialized.

    All verbs raise Unavailable if the store cannot be reached, Corrupt if a manifest is damaged, and Fenced once
    another writer was seen.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        *,
        rule: PageRule | None = None,
        copies: ManifestDiskCache | None = None,
        known: ManifestMemoryCache | None = None,
        memory: SealMemory | None = None,
        source: ManifestSource | None = None,
    ) -> None:
        """`copies` caches reads on a disk, `known` manifests in memory. `memory` refuses older states of a bucket."""
        self.store = store
        self.prefix = prefix
        self._rule = rule or PAGE_RULE
        self._lock = threading.RLock()
        self._state, self._role = WriterState.READER, READER
        self.source = source
        self._epoch = 0
        self._attempts: set[str] = set()  # commit ids of our takeover attempts
        self._manifest: Manifest | None = None
        # In doubt: a commit that `cached` lacks may have happened or may still happen; until the next success.
        self.has_commit_in_doubt = False
        self._copies, self._known, self._memory = copies, known, memory
        self._kept_id: str | None = None  # commit id of the manifest in the disk cache
        self._pages = Pages(store, prefix, copies=copies)
        self._chain = ManifestChain(store, prefix)

    def __repr__(self) -> str:
        return f"MetadataLog({self.store.url!r}, {self.prefix!r}, {self._state.value}, epoch={self._epoch})"

    @property
    def state(self) -> WriterState:
        return self._state

    @property
    def epoch(self) -> int:
        self._check_writer()
        return self._epoch

    @property
    def cached(self) -> Manifest | None:
        """The newest manifest seen so far; no request."""
        return self._manifest

    def index(self, manifest: Manifest) -> MetadataIndex:
        return MetadataIndex(manifest, self._pages.entries)

    def ask(self, manifest: Manifest, question: Callable[[MetadataIndex], T]) -> T:
        """Answer `question` from `manifest`; after NotFound (a deleted page) from the newest manifest."""
        try:
            return question(self.index(manifest))
        except NotFound:
            return question(self.index(self.refresh(exact=True)))

    def page_entries(self, page: PageEntry) -> Rows:
        return self._pages.entries(page)

    def load(self, *, exact: bool = False) -> Manifest | None:
        """The newest manifest, from the store; None if no writer ever opened the partition.

        Without `exact`, a reader that slept while GC deleted its manifest may get that manifest again a few times.
        """
        with self._lock:
            self.check_not_fenced()
            if self.source is not None:
                self._manifest = self.source.newest(self._manifest)
                return self._manifest
            if self._manifest is not None:
                found = self._chain.newest(self._manifest, exact=exact)
            elif self._known is not None:
                begin = partial(self._first, exact=exact)
                found, owner = self._known.newest(self.store, self.prefix, self._chain, begin, exact=exact)
                self._pages.owner = owner
            else:
                found = self._first(exact=exact)
            if found is not None:
                if self._manifest is None and self._memory is not None:
                    self._memory.check(self.prefix, found)
                self._adopt(found)
            return self._manifest

    def refresh(self, *, exact: bool = False) -> Manifest:
        """As `load`, but raises the error of `missing`. Repeats a listing once that hides existing manifests."""
        manifest = self.load(exact=exact)
        if manifest is None:
            error = self.missing()
            manifest = self.load(exact=True) if isinstance(error, Unavailable) else None
            if manifest is None:
                raise error
        return manifest

    def missing(self) -> LogError:
        return missing_manifest_error(self.store, self.prefix) if self.source is None else self.source.missing()

    def become_writer(
        self,
        writer_id: str,
        now_ms: int,
        *,
        topic: str,
        topic_id: str,
        partition: int,
        properties: Mapping[str, str] | None = None,
        removes: bool = False,
        first_epoch: int = 1,
        appends: bool = False,
        check_newest: Callable[[Manifest | None], None] = lambda latest: None,
        seal_key_id: str | None = None,
        role: Role = WRITER,
    ) -> Manifest:
        """Take over: commit a manifest with epoch + 1. Creates the first manifest if there is none.

        - Of concurrent takeovers the later one wins.
        - `properties` None keeps the last manifest's; `first_epoch` is the epoch of a first manifest.
        - A writer that `appends` has a log of its own (`Manifest.appender_id`).
        - `check_newest` receives the very manifest that ours follows, before ours is created. Its error ends the
          takeover without any effect.
        - The first manifest is sealed by `seal_key_id` or its properties' key; later ones as their predecessor.

        Raises InvalidRequest if the manifests are another partition's, and Conflict if the topic was deleted, unless
        this writer `removes` the partition.
        """
        with self._lock:
            self._check_can_start(role)
            for _ in range(TAKEOVERS_MAX):
                latest = self.load(exact=True)
                if latest is not None and latest.commit_id in self._attempts:
                    # An earlier attempt that ended in Unavailable did happen: do not raise the epoch again.
                    return self._start(role, latest)
                first_seal = seal_key_id or (properties or {}).get(KEY_ID)
                draft = takeover_draft(latest, topic, topic_id, partition, first_seal)
                role.may_start(latest, self.prefix, removes=removes)
                check_newest(latest)
                settings = dict(draft.properties if properties is None else properties)
                epoch = latest.epoch + 1 if latest else first_epoch
                draft = self._next(latest, draft, epoch=epoch, writer_id=writer_id, now_ms=now_ms)
                appender_id = writer_id if appends else last_appender(latest)
                draft = replace(draft, properties=settings, appender_id=appender_id)
                self._attempts.add(draft.commit_id)
                winner = self._create(draft, encode_manifest(draft, self._chain.sealer))
                if self._was_collected(winner):
                    continue  # GC deleted manifests during our attempt, this name among them
                self._set(winner)
                if winner.commit_id == draft.commit_id:
                    return self._start(role, winner)
        wrong = "cannot become the writer, other processes keep taking over"
        raise Conflict(wrong, prefix=self.prefix, tries=TAKEOVERS_MAX)

    def take_over_if(self, writer_id: str, now_ms: int, *, check_newest: Callable[[Manifest], None]) -> Manifest:
        """Become the writer if `check_newest` accepts the newest manifest; return the epoch's first one.

        Raises the errors of `missing` and `check_newest`, and Conflict if the topic was deleted.
        """
        with self._lock:
            newest = self.refresh(exact=True)
            return self.become_writer(
                writer_id,
                now_ms,
                topic=newest.topic,
                topic_id=newest.topic_id,
                partition=newest.partition,
                check_newest=lambda latest: None if latest is None else check_newest(latest),
                role=CONDITIONAL,
            )

    def join(self, *, epoch: int | None = None) -> Manifest:
        """Become a co-writer in the newest epoch, which must be `epoch` if given; return the newest manifest.

        Raises the error of `missing` without a manifest, Conflict if the topic was deleted, Fenced if `epoch` is over.
        """
        return self._continue(CO_WRITER, epoch=epoch)

    def resume(self, *, epoch: int, writer_id: str) -> Manifest:
        """Become the writer of `epoch` again, from another process. Raises as `join`; Fenced for another writer."""
        return self._continue(RESUMED, epoch=epoch, writer_id=writer_id)

    def _continue(self, role: Role, *, epoch: int | None, writer_id: str | None = None) -> Manifest:
        with self._lock:
            self._check_can_start(role)
            newest = self.refresh(exact=True)
            role.may_start(newest, self.prefix, epoch=epoch, writer_id=writer_id)
            return self._start(role, newest)

    def commit(self, change: Change, now_ms: int, *, touches: tuple[int, int] | None = None) -> Manifest:
        """Apply `change` to the newest manifest and commit the result; return the manifest with the change.

        All entries that the change removes or replaces are in the offsets ``[start, end)`` of `touches`: their pages
        are opened first. `change` is a pure function. It may be called several times, also on a manifest that already
        has the change. If it returns its very argument, nothing is committed. Its errors pass through without effect.

        Raises Fenced if another writer took over: then nothing of this change is visible. After Unavailable the commit
        is in doubt, until the next commit of the same change. Raises Conflict to a co-writer if the topic was deleted.
        """
        with self._lock:
            self._check_writer()
            pages = NewPages(self._write_page, now_ms)
            for _ in range(REBASES_MAX):
                assert self._manifest is not None
                base = self._manifest
                self._role.may_commit(base)
                draft = self._next(base, base, epoch=self._epoch, writer_id=base.writer_id, now_ms=now_ms)
                if touches is not None:
                    draft = opened(draft, *touches, self._pages.entries)
                changed = change(draft)
                if changed is draft:
                    return base
                changed = stamped(base, changed)
                pages.seal_key_id = changed.seal_key_id
                self._check_change(base, draft, changed)
                changed, body = self._fitted(changed, pages)
                self._check_change(base, draft, changed)
                self.has_commit_in_doubt = True
                winner = self._create(changed, body)
                if self._was_collected(winner):
                    self._adopt(self.refresh(exact=True))
                    continue
                self._adopt(winner)
                if winner.commit_id == changed.commit_id:
                    self.has_commit_in_doubt = False
                    return winner
        wrong = "cannot commit a manifest, each attempt finds another commit of this process"
        raise Conflict(wrong, prefix=self.prefix, tries=REBASES_MAX)

    def check_still_writer(self) -> Manifest:
        """Prove from the store that our epoch is the newest; return the newest manifest.

        Required before each deletion. Raises Fenced for another epoch, InvalidRequest for a role that deletes nothing.
        """
        with self._lock:
            self._check_writer()
            self._role.may_delete(self.prefix)
            return self.refresh(exact=True)

    def lacks_first_manifests(self) -> bool:
        with self._lock:
            return self._chain.lacks_first_manifests()

    @property
    def gc_boundary(self) -> int:
        """The GC boundary, as far as known without a request: manifests up to this sequence are void."""
        return self._chain.gc_boundary

    def is_void(self, sequence: int) -> bool:
        with self._lock:
            return self._chain.is_void(sequence)

    def set_gc_boundary(self, upto: int) -> None:
        """Declare all manifests up to `upto` void, before their deletion. They must be well below the newest."""
        with self._lock:
            self._check_writer()
            self._role.may_delete(self.prefix)
            self._chain.advance(upto)

    def certify_page(self, page: PageEntry, entries: Rows) -> None:
        """Use `entries` as the content of a page that cannot be read, for a commit that rewrites the page."""
        self._pages.keep(page, entries)

    def _fitted(self, manifest: Manifest, new_page: NewPage) -> tuple[Manifest, bytes]:
        manifest = move_to_page(manifest, self._rule, new_page)
        while len(body := encode_manifest(manifest, self._chain.sealer)) > self._rule.manifest_bytes_max:
            smaller = move_oldest_to_page(manifest, self._rule, new_page)
            if smaller is manifest:
                break
            manifest = smaller
        return manifest, body

    def _write_page(self, entries: Rows, now_ms: int, seal_key_id: str | None) -> PageEntry:
        name = self._epoch, new_ulid(now_ms)
        page, body = encode_page(entries, *name, sealer=self._chain.sealer, seal_key_id=seal_key_id)
        with suppress(AlreadyExists):  # a lost reply: only this writer uses this name
            self.store.put_if_absent(self.prefix + page.key, body)
        self._pages.keep(page, entries)
        return page

    def _create(self, manifest: Manifest, body: bytes) -> Manifest:
        """Create the manifest; return the manifest at this sequence. Raises Unavailable if in doubt."""
        key = self.prefix + manifest_key(manifest.sequence)
        for last in (False,) * (RESENDS_MAX - 1) + (True,):
            try:
                self.store.put_if_absent(key, body)
                return manifest
            except (AlreadyExists, Unavailable) as error:
                found = self._chain.read(manifest.sequence)
                if found is not None:
                    return self._check_successor(manifest, found)
                if last:
                    facts = {"store": self.store.url, "key": key, "cause": str(error)}
                    raise Unavailable("cannot commit a manifest, the store does not answer", **facts) from error
        raise AssertionError("the loop above returns or raises")

    def _was_collected(self, manifest: Manifest) -> bool:
        """Whether the name of a manifest that was just created is void. Retries as often as the create."""
        for _ in range(RESENDS_MAX - 1):
            with suppress(Unavailable):
                return self._chain.is_void(manifest.sequence)
        return self._chain.is_void(manifest.sequence)

    def _check_successor(self, ours: Manifest, found: Manifest) -> Manifest:
        """Return `found`, ours or another child of the same parent, in our place. Else raise Corrupt."""
        is_in_other_topic = found.parent_id != ours.parent_id or found.epoch < ours.epoch - 1
        if is_in_other_topic and not self._chain.is_void(found.sequence):
            facts = {"sequence": found.sequence, "parent": found.parent_id, "expected": ours.parent_id}
            raise Corrupt("a manifest does not follow its predecessor", prefix=self.prefix, **facts)
        return found

    def _next(self, base: Manifest | None, draft: Manifest, *, epoch: int, writer_id: str, now_ms: int) -> Manifest:
        return replace(
            draft,
            sequence=base.sequence + 1 if base else 1,
            epoch=epoch,
            commit_id=new_ulid(now_ms),
            parent_id=base.commit_id if base else None,
            writer_id=writer_id,
            committed_ms=now_ms,
            boundary_number=self._chain.boundary_number,
            gc_boundary=self._chain.gc_boundary,
        )

    def _check_change(self, base: Manifest, draft: Manifest, changed: Manifest) -> None:
        identity = ["sequence", "epoch", "commit_id", "parent_id", "writer_id", "topic", "topic_id", "partition"]
        identity += ["boundary_number", "gc_boundary", "appender_id"]
        different = (name for name in identity if getattr(draft, name) != getattr(changed, name))
        wrong = next((f"it changes {name}" for name in different), None)
        if draft.seal_key_id is not None and changed.seal_key_id is None:
            wrong = wrong or "it removes the seal"
        wrong = wrong or names_older_objects(draft, changed) or loses_objects(base, changed, self._pages.entries)
        if wrong:
            raise InvalidRequest(f"invalid manifest, {wrong}", prefix=self.prefix)

    def _adopt(self, found: Manifest) -> None:
        if self._state is WriterState.WRITER and found.epoch != self._epoch:
            if found.epoch < self._epoch:
                facts = {"sequence": found.sequence, "epoch": found.epoch, "ours": self._epoch}
                wrong = "a manifest has an epoch below the epoch of an older manifest"
                raise Corrupt(wrong, prefix=self.prefix, **facts)
            self._move(self._role.on_newer_epoch)
            self._manifest = found
            self.check_not_fenced()
        self._set(found)

    def _set(self, found: Manifest) -> None:
        if self._memory is not None:
            self._memory.note(self.prefix, found)
        if found is not self._manifest:
            warn_unsealed(self.store.url, self.prefix, found)
        if self._copies is not None and found.commit_id != self._kept_id:
            self._kept_id = found.commit_id
            keys = [page.key for page in found.pages]
            self._copies.keep_manifest(self.prefix, encode_again(found, self._chain.sealer), keys)
        self._manifest = found

    def _first(self, *, exact: bool) -> Manifest | None:
        """The newest manifest at first use. It comes from the disk cache if the bucket has the same manifest."""
        copy = self._copies.manifest(self.prefix, self._chain.sealer) if self._copies is not None else None
        if copy is None or not is_same_manifest(self.store, self.prefix, *copy):
            found = self._chain.newest(None, exact=exact)
            if copy is not None:
                check_not_rolled_back(copy[0], found, self.prefix)
            return found
        self._kept_id = copy[0].commit_id
        return self._chain.newest(copy[0], exact=True)

    def _check_can_start(self, role: Role) -> None:
        if self.source is not None:
            raise InvalidRequest(f"{role.attempt}, this bucket is read-only", prefix=self.prefix)
        if self._state is not WriterState.READER:
            facts = {"prefix": self.prefix, "state": self._state.value}
            raise InvalidRequest(f"{role.attempt}, the log is not open for reading", **facts)

    def _start(self, role: Role, manifest: Manifest) -> Manifest:
        self._move(WriterState.WRITER)
        self._role, self._epoch = role, manifest.epoch
        return manifest

    def _move(self, to: WriterState) -> None:
        assert to in NEXT_STATES[self._state]
        self._state = to

    def check_not_fenced(self) -> None:
        """Raise Fenced if another writer was seen, by any call; `cached` is its manifest then. No request."""
        if self._state is WriterState.FENCED:
            assert self._manifest is not None
            facts = {"epoch": self._manifest.epoch, "ours": self._epoch, "writer": self._manifest.writer_id}
            raise Fenced("cannot write to the partition, another writer took over", prefix=self.prefix, **facts)

    def _check_writer(self) -> None:
        self.check_not_fenced()
        if self._state is not WriterState.WRITER:
            raise InvalidRequest("cannot write to the partition, it is not open for writing", prefix=self.prefix)
