"""The commit protocol: who may write a partition's remote metadata, and when what was written is true.

The truth is the head with the highest sequence (`remote.manifest.manifest`). A commit creates head N+1, whole, **only
if absent**. The store decides who was first; there is no clock, no lease and no lock in it.

States
======

| state | by | next |
|---|---|---|
| READER | the constructor | WRITER by `become_writer` |
| WRITER | a head of ours that raised the epoch by one | FENCED when a head of a higher epoch is seen |
| FENCED | | none: every verb raises Fenced from here on |

Order of effects
================

1. `become_writer` commits a head with epoch + 1, before any upload. That commit **is** leadership. It also stops the
   writer before: whatever that one commits next must be created at a sequence which is taken.
2. Objects go up under names that were never used (`remote.segments.segment_upload`). Nobody sees them yet.
3. `commit` creates head N+1, which names them. From then on they are read, and only then may the local tier let go.
   Rows that are too many for it go into a page first (`remote.manifest.page_spill`), in the same commit: a head never
   names a page that is not there.
4. Rows leave a head before their bytes leave the store. Before deleting, `check_still_writer` proves that the epoch is
   still ours, from the store and not from memory.

An answer that is no answer
===========================

A create may end in "taken" (412), "conflict" (409) or nothing (timeout, reset), and still have happened: clients try
again by themselves and find their own object. So each of these is followed by reading N+1:

| N+1 | meaning | reaction |
|---|---|---|
| has our commit id | it happened | success |
| does not exist | not yet | the same body again, same commit id; a late first attempt is then found as ours |
| has a higher epoch | another writer | Fenced, for good |
| has our epoch | an earlier commit of ours whose answer was lost | rebase: apply the change on top of it |
| has a lower epoch, or another parent | nobody who keeps the protocol wrote this | Corrupt |

And "created" is believed only when the boundary of collected heads has not passed N+1: otherwise the name was free
because a head of that name was collected, and the writer slept through other writers' commits
(`remote.manifest.manifest_chain`).

What a crash leaves
===================

| after | left behind | readers see | repair |
|---|---|---|---|
| objects up, of one segment or many, no commit | objects that no head names | N | none: of an older epoch by then |
| page of rows up, no commit | a page that no head names | N | the next try writes another; nobody's next epoch |
| create sent, answer lost | head N+1 | N+1 | the next start reads it |
| head N+1 created, nothing done locally | | N+1 | the row is there, so the segment is not copied again |
| expiry committed, bytes not deleted | objects in `unlinked` | N+1 | deleted later, any number of times |
| bytes deleted, not yet struck off | `unlinked` names what is gone | N+1 | deleting again is no error |
| boundary advanced, heads not deleted | void heads | N+1 | none needed: they count for nothing, and go later |
| head created under a void name | one more of them | N+1 | its writer finds the boundary and is fenced |
| pin written, not confirmed | a pin | N+1 | expires; until then its head's objects stay |
| some parts of an upload | parts that no listing shows | N | given up by ``tiered gc``, by their epoch |
| a stall between last look and deletes | another writer, heads, pins | N+k | none: what left is not named again |
| an upload that lost a part | a short object, or none | N | not committed: size and checksum are asked for |
| an object went that N names (404) | a newer head | N+1 | that is read, once; still named there: damage |
| a backup came back, the disk has the rest | orphans of the time between | M < N | goes on from M, under new names |
| the same, the disk let go of the rest | nothing is changed | M < N | a start refuses, and says so |
| the same, under a manager at work | heads, a number missing | N+1 | lost objects are damage at every read |

After a backup came back epochs are given once more, so two histories of the time between can look alike: of several
disks that hold that time one may be opened again. Which test shows which row: docs/explanation/commit-protocol.md.

Reading the latest
==================

`remote.manifest.manifest_chain` finds the newest head: from a known N by asking for N+1, otherwise by a listing.
Nothing ever goes back behind the cached head. Old heads are collected (`remote.gc.old_manifests`): a boundary is
created first, then they are deleted. Before deleting anything else, and after every create, the boundary is looked at;
a reader that only wants to know whether there is news asks for one name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TypeVar

from local.errors import AlreadyExists, Conflict, Corrupt, Fenced, InvalidRequest, LogError, NotFound, Unavailable
from remote.keys import head_key, new_ulid
from remote.manifest.disk_cache_of_manifests import IndexCopies
from remote.manifest.manifest import KEY_ID, Head, SpillRow, encode_again, encode_head, lacks_seal
from remote.manifest.manifest_chain import HeadChain
from remote.manifest.manifest_changes import Change, expired_after, loses_objects, names_older_objects
from remote.manifest.manifest_lookup import MetadataIndex, Pages
from remote.manifest.manifest_memory_cache import KnownHeads, check_not_rolled_back, check_seen, is_same_head
from remote.manifest.manifest_page import Rows, encode_page
from remote.manifest.missing_manifest import missing_head
from remote.manifest.page_spill import NewPage, SpillRule, opened, spill_between, spill_oldest
from remote.manifest.seal_memory import FILE, SealMemory
from remote.store import ObjectStore

T = TypeVar("T")

RESENDS_MAX = 3  # sends of one commit whose answer stays away; each is a whole round of the store's own retries
REBASES_MAX = 8  # our own earlier commits found in the way of one commit
SPILL_RULE = SpillRule()
TOLD_MAX = 10_000  # partitions whose missing seal was told
TAKEOVERS_MAX = 16  # other writers found in the way of becoming one


_log = logging.getLogger(__name__)
_TOLD: set[tuple[str, str]] = set()


class LogState(Enum):
    READER = "reader"
    WRITER = "writer"
    FENCED = "fenced"


NEXT_STATES: dict[LogState, frozenset[LogState]] = {
    LogState.READER: frozenset({LogState.WRITER}),
    LogState.WRITER: frozenset({LogState.FENCED}),
    LogState.FENCED: frozenset(),
}


class MetadataLog:
    """One partition's chain of heads. Thread safe; commits of one instance wait for each other.

    `prefix` ends in a slash, see `remote.keys.partition_prefix`. All verbs raise Unavailable when the store cannot be
    reached, Corrupt when a head is damaged and Fenced once another writer has been seen.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        *,
        new_id: Callable[[int], str] = new_ulid,
        rule: SpillRule | None = None,
        copies: IndexCopies | None = None,
        known: KnownHeads | None = None,
        memory: SealMemory | None = None,
    ) -> None:
        """`copies` keep what was read on a disk, for the next start; `known` in memory, for the next look.

        `memory` keeps which sealed heads were seen: an older state of the bucket is refused then.
        """
        self._store = store
        self._prefix = prefix
        self._new_id = new_id
        self._rule = rule or SPILL_RULE
        self._lock = threading.RLock()
        self._state = LogState.READER
        self._epoch = 0
        self._attempts: set[str] = set()  # commit ids of our tries to become a writer
        self._head: Head | None = None
        # A commit of ours may have happened, or happen yet, that `cached` does not have: until the next one succeeds.
        self.is_unsettled = False
        self._copies, self._known, self._memory = copies, known, memory
        self._kept_id: str | None = None  # of the head that lies on the disk
        self._pages = Pages(store, prefix, copies=copies)
        self._chain = HeadChain(store, prefix)

    def __repr__(self) -> str:
        return f"MetadataLog({self._store.url!r}, {self._prefix!r}, {self._state.value}, epoch={self._epoch})"

    @property
    def state(self) -> LogState:
        return self._state

    @property
    def prefix(self) -> str:
        """Where the partition's keys begin."""
        return self._prefix

    @property
    def epoch(self) -> int:
        """The epoch this writer owns. Raises InvalidRequest for a reader."""
        self._check_writer()
        return self._epoch

    @property
    def cached(self) -> Head | None:
        """The latest head seen so far, without asking the store."""
        return self._head

    def index(self, head: Head) -> MetadataIndex:
        """Lookups in `head`, one of this partition's; what it needs beside it is read then, and kept."""
        return MetadataIndex(head, self._pages.rows)

    def ask(self, head: Head, question: Callable[[MetadataIndex], T]) -> T:
        """What `question` finds in `head`, or in the newest one where a page of `head` is there no more.

        Raises NotFound when the newest head's page is missing too: that is damage.
        """
        try:
            return question(self.index(head))
        except NotFound:
            return question(self.index(self.refresh(exact=True)))

    def page_rows(self, spill: SpillRow) -> Rows:
        """The rows of a page, read on first use and kept. Raises NotFound when it is gone."""
        return self._pages.rows(spill)

    def load(self, *, exact: bool = False) -> Head | None:
        """The latest head, from the store; None when nobody has ever opened the partition for writing.

        Without `exact` a reader that slept while its head was collected may be told "nothing new" a few times
        (`remote.manifest.manifest_chain`).
        """
        with self._lock:
            self.check_not_fenced()
            if self._head is not None:
                found = self._chain.newest(self._head, exact=exact)
            elif self._known is not None:
                begin = partial(self._first, exact=exact)
                found, owner = self._known.newest(self._store, self._prefix, self._chain, begin, exact=exact)
                self._pages.owner = owner
            else:
                found = self._first(exact=exact)
            if found is not None:
                if self._head is None:
                    self._check_seen(found)
                self._adopt(found)
            return self._head

    def refresh(self, *, exact: bool = False) -> Head:
        """As `load`. Raises what `missing` returns where there is no head.

        A manifest that is there and was not listed may be newer than the listing: it is listed once more.
        """
        head = self.load(exact=exact)
        if head is None:
            error = self.missing()
            head = self.load(exact=True) if isinstance(error, Unavailable) else None
            if head is None:
                raise error
        return head

    def missing(self) -> LogError:
        """Why the listing shows no head (`remote.manifest.missing_manifest`): for a partition that a reader found by
        its name."""
        return missing_head(self._store, self._prefix)

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
        judge: Callable[[Head | None], None] = lambda latest: None,
        seal_key_id: str | None = None,
    ) -> Head:
        """Raise the epoch by one and own it; creates the first head where there is none.

        Another writer that does so at the same moment ends up before or after us; who is after, wins. `properties` None
        keeps what the last head says; `first_epoch` is the first head's. A writer that `appends` keeps a log of its own
        (`Head.appender_id`). `judge` gets the very head that ours follows, before ours is created; what it raises ends
        this with nothing changed. The first head is sealed by `seal_key_id`, or by the key that its properties encrypt
        with; later ones as the head before. Raises InvalidRequest for another partition's heads, and Conflict when its
        topic was deleted, unless this writer `removes` what is left of it.
        """
        with self._lock:
            if self._state is not LogState.READER:
                raise InvalidRequest("becoming a writer, not a reader", prefix=self._prefix, state=self._state.value)
            for _ in range(TAKEOVERS_MAX):
                latest = self.load(exact=True)
                if latest is not None and latest.commit_id in self._attempts:
                    # An earlier try that ended in Unavailable came true: no need to raise the epoch once more.
                    self._move(LogState.WRITER)
                    self._epoch = latest.epoch
                    return latest
                if latest is None:
                    draft = _first_head(topic, topic_id, partition)
                    draft = replace(draft, seal_key_id=seal_key_id or (properties or {}).get(KEY_ID) or None)
                else:
                    draft = _check_same(latest, topic, topic_id, partition)
                    if latest.deleted_ms is not None and not removes:
                        facts = {"prefix": self._prefix, "deleted_ms": latest.deleted_ms}
                        raise Conflict("becoming a writer, the topic was deleted", **facts)
                judge(latest)
                settings = dict(draft.properties if properties is None else properties)
                epoch = latest.epoch + 1 if latest else first_epoch
                draft = self._successor(latest, draft, epoch=epoch, writer_id=writer_id, now_ms=now_ms)
                appender_id = writer_id if appends else _appender(latest)
                draft = replace(draft, properties=settings, appender_id=appender_id)
                self._attempts.add(draft.commit_id)
                winner = self._create(draft, encode_head(draft, self._chain.sealer))
                if self._was_collected(winner):
                    continue  # heads were collected while we slept, this name among them
                self._set(winner)
                if winner.commit_id == draft.commit_id:
                    self._move(LogState.WRITER)
                    self._epoch = epoch
                    return winner
        raise Conflict("becoming a writer, others keep doing the same", prefix=self._prefix, tries=TAKEOVERS_MAX)

    def commit(self, change: Change, now_ms: int, *, touches: tuple[int, int] | None = None) -> Head:
        """Apply `change` to the latest head and make the outcome the truth; the head that has it.

        `touches` are the offsets ``[start, end)`` whose rows the change takes out or replaces: the pages with such rows
        are opened for it. To add rows at the end nothing needs to be opened.

        `change` is a pure function and may be called several times, also on a head that already has it; one that gives
        back the very head it was given commits nothing. Its errors pass through, with nothing done. Raises Fenced when
        another writer took over: nothing of this change is visible then. After Unavailable it is unknown whether the
        change is visible; committing it again settles that.
        """
        with self._lock:
            self._check_writer()
            pages = _NewPages(self._write_page, now_ms)
            for _ in range(REBASES_MAX):
                assert self._head is not None
                base = self._head
                draft = self._successor(base, base, epoch=self._epoch, writer_id=base.writer_id, now_ms=now_ms)
                if touches is not None:
                    draft = opened(draft, *touches, self._pages.rows)
                changed = change(draft)
                if changed is draft:
                    return base
                changed = _stamped(base, changed)
                pages.seal_key_id = changed.seal_key_id
                self._check_change(base, draft, changed)
                changed, body = self._fitted(changed, pages)
                self._check_change(base, draft, changed)
                self.is_unsettled = True
                winner = self._create(changed, body)
                if self._was_collected(winner):
                    self._adopt(self.refresh(exact=True))
                    continue
                self._adopt(winner)
                if winner.commit_id == changed.commit_id:
                    self.is_unsettled = False
                    return winner
        raise Conflict("committing a head, our own commits keep coming up", prefix=self._prefix, tries=REBASES_MAX)

    def check_still_writer(self) -> Head:
        """Prove from the store that our epoch is the latest, as must be done before deletes; the latest head.

        Raises Fenced otherwise.
        """
        with self._lock:
            self._check_writer()
            return self.refresh(exact=True)

    def lacks_first_heads(self) -> bool:
        """Whether heads are missing that nothing collected (`HeadChain.lacks_first_heads`)."""
        with self._lock:
            return self._chain.lacks_first_heads()

    # --- collected heads ---------------------------------------------------------------------------------------------

    @property
    def void_upto(self) -> int:
        """Up to which sequence heads are void, as far as is known without asking."""
        return self._chain.void_upto

    def is_void(self, sequence: int) -> bool:
        """Whether heads up to this one were collected; asks the store."""
        with self._lock:
            return self._chain.is_void(sequence)

    def make_void(self, upto: int) -> None:
        """Declare all heads up to `upto` void, before they are deleted. They must lie well below the newest."""
        with self._lock:
            self._check_writer()
            self._chain.advance(upto)

    # --- pages -------------------------------------------------------------------------------------------------------

    def _fitted(self, head: Head, new_page: NewPage) -> tuple[Head, bytes]:
        """The head as it can be written, and its bytes: rows that are too many for it are in pages, written now."""
        head = spill_between(head, self._rule, new_page)
        while len(body := encode_head(head, self._chain.sealer)) > self._rule.head_bytes_max:
            smaller = spill_oldest(head, self._rule, new_page)
            if smaller is head:
                break
            head = smaller
        return head, body

    def _write_page(self, rows: Rows, now_ms: int, seal_key_id: str | None) -> SpillRow:
        name = self._epoch, self._new_id(now_ms)
        spill, body = encode_page(rows, *name, sealer=self._chain.sealer, seal_key_id=seal_key_id)
        with suppress(AlreadyExists):  # a lost answer: nobody else has this name
            self._store.put_if_absent(self._prefix + spill.key, body)
        self._pages.keep(spill, rows)
        return spill

    # --- creating N+1 ------------------------------------------------------------------------------------------------

    def _create(self, head: Head, body: bytes) -> Head:
        """The head that is at this sequence in the end, ours or not. Raises Unavailable when that stays unknown."""
        key = self._prefix + head_key(head.sequence)
        for last in (False,) * (RESENDS_MAX - 1) + (True,):
            try:
                self._store.put_if_absent(key, body)
                return head
            except (AlreadyExists, Unavailable) as error:
                found = self._chain.read(head.sequence)
                if found is not None:
                    return self._check_successor(head, found)
                if last:
                    facts = {"store": self._store.url, "key": key, "cause": str(error)}
                    raise Unavailable("committing a head, the store gives no answer", **facts) from error
        raise AssertionError("the loop above returns or raises")

    def _was_collected(self, head: Head) -> bool:
        """Whether the name of a head that was just created is void. Asked as stubbornly as the create itself: it
        happened, and not to know it makes the caller do the work again."""
        for _ in range(RESENDS_MAX - 1):
            with suppress(Unavailable):
                return self._chain.is_void(head.sequence)
        return self._chain.is_void(head.sequence)

    def _check_successor(self, ours: Head, found: Head) -> Head:
        """What was found where ours should be: ours, or another child of the same parent."""
        is_foreign = found.parent_id != ours.parent_id or found.epoch < ours.epoch - 1
        if is_foreign and not self._chain.is_void(found.sequence):
            facts = {"sequence": found.sequence, "parent": found.parent_id, "expected": ours.parent_id}
            raise Corrupt("reading a head, it does not follow the one before", prefix=self._prefix, **facts)
        return found

    def _successor(self, base: Head | None, draft: Head, *, epoch: int, writer_id: str, now_ms: int) -> Head:
        return replace(
            draft,
            sequence=base.sequence + 1 if base else 1,
            epoch=epoch,
            commit_id=self._new_id(now_ms),
            parent_id=base.commit_id if base else None,
            writer_id=writer_id,
            committed_ms=now_ms,
            boundary_number=self._chain.boundary_number,
            void_upto=self._chain.void_upto,
        )

    def _check_change(self, base: Head, draft: Head, changed: Head) -> None:
        identity = ["sequence", "epoch", "commit_id", "parent_id", "writer_id", "topic", "topic_id", "partition"]
        identity += ["boundary_number", "void_upto", "appender_id"]
        wrong = next((f"it alters {name}" for name in identity if getattr(draft, name) != getattr(changed, name)), None)
        if draft.seal_key_id is not None and changed.seal_key_id is None:
            wrong = wrong or "it takes the seal away"
        wrong = wrong or names_older_objects(draft, changed) or loses_objects(base, changed, self._pages.rows)
        if wrong:
            raise InvalidRequest(f"committing a head, {wrong}", prefix=self._prefix)

    # --- states ------------------------------------------------------------------------------------------------------

    def _adopt(self, found: Head) -> None:
        """Take a head from the store as the latest. Raises Fenced when it is another writer's."""
        if self._state is LogState.WRITER and found.epoch != self._epoch:
            if found.epoch < self._epoch:
                facts = {"sequence": found.sequence, "epoch": found.epoch, "ours": self._epoch}
                raise Corrupt("reading a head, its epoch is from the past", prefix=self._prefix, **facts)
            self._move(LogState.FENCED)
            self._head = found
            self.check_not_fenced()
        self._set(found)

    def _set(self, found: Head) -> None:
        if self._memory is not None:
            self._memory.note(self._prefix, found)
        self._tell_seal(found)
        if self._copies is not None and found.commit_id != self._kept_id:
            self._kept_id = found.commit_id
            keys = [spill.key for spill in found.spills]
            self._copies.keep_head(self._prefix, encode_again(found, self._chain.sealer), keys)
        self._head = found

    def _check_seen(self, found: Head) -> None:
        """Raises Corrupt where this node saw a newer or another sealed head, before a restart."""
        if self._memory is not None and (seen := self._memory.seen(self._prefix)) is not None:
            step = f"if the bucket was put back on purpose, remove the file {FILE} from the log directories"
            check_seen(seen, found, self._prefix, step)

    def _tell_seal(self, found: Head) -> None:
        """A warning, once for each partition of a store, that its index proves nothing."""
        name = self._store.url, self._prefix
        if found is not self._head and name not in _TOLD and lacks_seal(found):
            if len(_TOLD) >= TOLD_MAX:
                _TOLD.clear()
            _TOLD.add(name)
            _log.warning(
                "manifests of an encrypted topic are not sealed, so they are not authenticated: prefix=%s (next: "
                "upgrade all readers, then tiered rotate-keys %s)",
                self._prefix,
                found.topic,
            )

    def _first(self, *, exact: bool) -> Head | None:
        """The newest head without any seen before: from the one kept on the disk, when the bucket has the very same."""
        kept = self._copies.head(self._prefix, self._chain.sealer) if self._copies is not None else None
        if kept is None or not is_same_head(self._store, self._prefix, *kept):
            found = self._chain.newest(None, exact=exact)
            if kept is not None:
                check_not_rolled_back(kept[0], found, self._prefix)
            return found
        self._kept_id = kept[0].commit_id
        return self._chain.newest(kept[0], exact=True)

    def _move(self, to: LogState) -> None:
        assert to in NEXT_STATES[self._state]
        self._state = to

    def check_not_fenced(self) -> None:
        """Raises Fenced where another writer was seen, by whoever: `cached` is that one's head then. Asks nobody."""
        if self._state is LogState.FENCED:
            assert self._head is not None
            facts = {"epoch": self._head.epoch, "ours": self._epoch, "writer": self._head.writer_id}
            raise Fenced("writing a partition, another writer took over", prefix=self._prefix, **facts)

    def _check_writer(self) -> None:
        self.check_not_fenced()
        if self._state is not LogState.WRITER:
            raise InvalidRequest("writing a partition, not opened for writing", prefix=self._prefix)


def _stamped(base: Head, changed: Head) -> Head:
    """With the sequence in every object that was unlinked by this change, and what the bucket held before it."""
    if changed.highest_next_offset < base.highest_next_offset:
        changed = replace(changed, tiered_upto=base.highest_next_offset)
    if (expired := expired_after(base, changed)) != changed.expired_epochs:
        changed = replace(changed, expired_epochs=expired)
    known = {each.key for each in base.unlinked} | {each.spill.key for each in base.unlinked_pages}
    unlinked = tuple(
        each if each.key in known else replace(each, unlinked_sequence=changed.sequence) for each in changed.unlinked
    )
    pages = tuple(
        each if each.spill.key in known else replace(each, unlinked_sequence=changed.sequence)
        for each in changed.unlinked_pages
    )
    is_same = unlinked == changed.unlinked and pages == changed.unlinked_pages
    return changed if is_same else replace(changed, unlinked=unlinked, unlinked_pages=pages)


def _appender(latest: Head | None) -> str | None:
    """The last writer that keeps a log, for the head of one that does not."""
    if latest is None:
        return None
    return latest.writer_id if latest.appender_id is None else latest.appender_id


class _NewPages:
    """Pages written for one commit; rows that a second try spills again go into the page that is there already."""

    def __init__(self, write: Callable[[Rows, int, str | None], SpillRow], now_ms: int) -> None:
        self.seal_key_id: str | None = None  # of the head that is to name them
        self._write = write
        self._now_ms = now_ms
        self._made: list[tuple[Rows, SpillRow]] = []

    def __call__(self, rows: Rows) -> SpillRow:
        for known, spill in self._made:
            if known == rows and spill.seal_key_id == self.seal_key_id:
                return spill
        spill = self._write(rows, self._now_ms, self.seal_key_id)
        self._made.append((rows, spill))
        return spill


def _first_head(topic: str, topic_id: str, partition: int) -> Head:
    return Head(
        sequence=1,
        epoch=1,
        commit_id="",
        parent_id=None,
        writer_id="",
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        log_start_offset=0,
        committed_ms=0,
        properties={},
    )


def _check_same(head: Head, topic: str, topic_id: str, partition: int) -> Head:
    if (head.topic, head.topic_id, head.partition) != (topic, topic_id, partition):
        facts = {
            "found": f"{head.topic}-{head.topic_id}/{head.partition}",
            "expected": f"{topic}-{topic_id}/{partition}",
        }
        raise InvalidRequest("becoming a writer, the heads are another partition's", **facts)
    return head
