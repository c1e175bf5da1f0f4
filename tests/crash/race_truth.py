"""The truth of a race: what the bucket's heads said, one after another, checked at every effect on the bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any

from race_scenes import GRACE_MS, SceneOfRace

from local import kernels
from local.errors import LogError
from local.format.record import Record
from local.names import TopicPartition
from local.records.batch_runs import BatchRuns
from remote import keys
from remote.gc.pins import Pin
from remote.manifest.manifest import Head, SpillRow, decode_head
from remote.manifest.manifest_chain import decode_boundary
from remote.manifest.manifest_lookup import MetadataIndex
from remote.manifest.manifest_page import Rows, decode_page
from remote.manifest.page_spill import keys_of
from remote.manifest.view import CompactedView
from remote.segment_entry import RemoteSegment
from remote.store.memory_store import MemoryStore

STRANGERS = (  # below the partition's prefix or beside it; nobody's business
    "README.txt",
    "data/00000000000000000000.log",
    "data/00000000000000000000-00000000000000000009-0000000001-NOTAULID.log",
    "data/notes/x",
    "meta/head/7",
    "meta/head/00000000000000000001.bak",
    "meta/spill/old.parquet",
    "meta/gc/boundary/x",
    "meta/pin/me.json",
    "view/compacted/readme",
)


@dataclass
class Pinned:
    """A head that a reader was told it holds, all that it names, and until when."""

    head: Head
    names: frozenset[str]
    expires_ms: int


def judging(check: Callable[..., None]) -> Callable[..., None]:
    """What the truth cannot find or read is a broken promise, not an error that an actor may handle."""

    @wraps(check)
    def told(*given: Any) -> None:
        try:
            check(*given)
        except LogError as error:
            raise AssertionError(f"what is named is not there, or damaged: {error}") from error

    return told


class Truth:
    """See the modules's text; `committed` is every record that a head ever named, by offset."""

    def __init__(self, inner: MemoryStore, now: Callable[[], int], scene: SceneOfRace) -> None:
        self._inner, self._now, self._scene = inner, now, scene
        self.heads: list[Head] = []
        self.committed: dict[int, Record] = {}
        self.newest: dict[bytes, int] = {}  # the offset of each key's newest committed record
        self.held: dict[str, dict[int, Record]] = {}  # by ulid, what a row's object has
        self.writers: dict[int, str] = {}
        self.views: dict[tuple[str, ...], dict[int, Record]] = {}  # what a view with these rows has
        self.pins: dict[str, Pinned] = {}
        self.unlinked_ms: dict[str, int] = {}
        self.makers: dict[str, object] = {}
        self.void_upto = self.void_heads = self.pages_seen = self.replaced = 0
        self.orphans: set[str] = set()  # collected; never to be named
        self.prefix = ""
        self.name = TopicPartition("t", 0)
        self.source: Truth | None = None  # of a fork: whose records its first rows have
        self.is_told = True  # False for a fork that is being made: nobody was told of it
        self._rows: list[RemoteSegment] = []
        self._pages: dict[str, Rows] = {}
        self._named: frozenset[str] = frozenset()

    def begin(self, prefix: str, name: TopicPartition | None = None) -> None:
        self.prefix, self.name = prefix, name or self.name
        if self.is_told:
            self.put_strangers()

    def put_strangers(self) -> None:
        for stranger in STRANGERS:
            self._inner.put(self.prefix + stranger, b"not yours")

    @property
    def topic_ids(self) -> dict[str, str]:
        """Which topic its name means: a request of a dead process may make another one of that name."""
        return {self.name.topic: self.prefix.split("/")[0].removeprefix(f"{self.name.topic}-")}

    @property
    def log_start(self) -> int:
        return self.heads[-1].log_start_offset if self.heads else 0

    @property
    def is_deleted(self) -> bool:
        return bool(self.heads) and self.heads[-1].deleted_ms is not None

    def rows_of(self, head: Head) -> list[RemoteSegment]:
        return list(MetadataIndex(head, self._page).rows_with_dead(0, 1 << 62))

    def names_of(self, head: Head) -> frozenset[str]:
        """Every object that a reader by this head may ask for."""
        rows = [*self.rows_of(head), *head.view_rows]
        names = {key for row in rows for key in (row.data_key, row.indexes_key)}
        return frozenset(names | {spill.key for spill in head.spills})

    # --- effects on the bucket ---------------------------------------------------------------------------------------

    @judging
    def after_put(self, key: str, was_there: bool, maker: object) -> None:
        name = key.removeprefix(self.prefix)
        is_pin = keys.parse_pin_key(name) is not None  # renewed or ended under its name
        assert is_pin or not was_there, f"an object was written over: {key}"
        self.makers[name] = maker
        if keys.parse_boundary_key(name) is not None:
            upto = decode_boundary(self._inner.get(key))
            assert upto < self.heads[-1].sequence, "the newest head was declared void"
            self.void_upto = max(self.void_upto, upto)
        elif (sequence := keys.parse_head_key(name)) is not None:
            if sequence <= self.void_upto:
                self.void_heads += 1  # of a writer that slept; it counts for nothing
            else:
                self._follow(decode_head(self._inner.get(key)), sequence)

    def _follow(self, head: Head, sequence: int) -> None:
        last = self.heads[-1] if self.heads else None
        assert head.sequence == sequence == (last.sequence + 1 if last else 1), "a head that does not follow the last"
        assert self.writers.setdefault(head.epoch, head.writer_id) == head.writer_id, "two writers in one epoch"
        if last is not None:
            assert head.parent_id == last.commit_id
            assert head.epoch in (last.epoch, last.epoch + 1)
            assert head.log_start_offset >= last.log_start_offset, "the log start went back"
            assert last.deleted_ms in (None, head.deleted_ms), "a deleted partition lives again"
            is_removal = last.deleted_ms is None or _appender(head) == _appender(last)
            assert is_removal, f"a deleted partition took a writer: {_appender(head)}"
        self.heads.append(head)
        known, rows = {row.ulid for row in self._rows}, self.rows_of(head)
        self.pages_seen += len(head.spills)
        self.replaced += len(known - {row.ulid for row in rows}) > 0 and len(rows) > 0
        before, self._rows, self._named = self._named, rows, self.names_of(head)
        foreign = [key for key in self._named - before if self._epoch_of(key, head) != head.epoch]
        assert not foreign, f"a head of epoch {head.epoch} names what another one made: {foreign[:2]}"
        again = self._named & self.unlinked_ms.keys()
        assert not again, f"named again after it was given up for deletion: {sorted(again)[:2]}"
        assert not self._named & self.orphans, f"named after it was taken for nobody's: {self._named & self.orphans}"
        for key, unlinked_ms in self._waiting(head):
            self.unlinked_ms.setdefault(key, unlinked_ms)
            assert key not in self._named, f"listed for deletion and named: {key}"
        if not self.is_told:
            return  # a fork that may lack objects yet: nobody has looked
        for row in rows:
            if row.ulid not in known:
                self._commit(row, head.log_start_offset)
        self._check_complete(head)
        for view in head.views:
            self._check_view(view)

    def _epoch_of(self, key: str, head: Head) -> int | None:
        """In which epoch it was made; a fork's first rows name what others made, whichever epoch they had."""
        is_source = keys.is_foreign(key) and self.source is not None
        return head.epoch if is_source else keys.parse_epoch(key)

    def needs(self, full: str) -> bool:
        """Whether a fork that somebody was told of names this object of another partition, or a reader of it may."""
        if not self.is_told or not self.heads or not full.startswith(self._homes):
            return False
        key = f"/{full}"
        pinned = any(key in each.names for each in self.pins.values() if each.expires_ms > self._now())
        waits = any(key == each and self._now() - at < GRACE_MS for each, at in self._waiting(self.heads[-1]))
        return key in self._named or pinned or waits

    @property
    def _homes(self) -> tuple[str, ...]:
        return (self.source.prefix,) if self.source is not None else ()

    @judging
    def tell(self) -> None:
        """Somebody was told that the fork is whole: all that it names is there, from now on for good."""
        self.is_told = True
        self.put_strangers()
        for row in self._rows:
            self._commit(row, self.log_start)
        self._check_complete(self.heads[-1])

    def _waiting(self, head: Head) -> Iterator[tuple[str, int]]:
        """What is listed for deletion, and when it left the index."""
        for each in head.unlinked:
            yield each.key, each.unlinked_ms
        for page in head.unlinked_pages:
            for key in (*keys_of(self._page(page.spill)), page.spill.key):
                yield key, page.unlinked_ms

    def _page(self, spill: SpillRow) -> Rows:
        """The rows of a page, kept: it is named when it is read for the first time, and may be gone later."""
        if spill.key not in self._pages:
            body = self._inner.get(keys.full_key(self.prefix, spill.key))
            self._pages[spill.key] = decode_page(spill, body)
        return self._pages[spill.key]

    def _commit(self, row: RemoteSegment, log_start: int) -> None:
        """Below the log start there may be anything: a disk's segment goes up whole, and nobody reads it from there."""
        for offset, plain in self._read(row).items():
            if offset < log_start:
                continue
            assert self.committed.setdefault(offset, plain) == plain, f"two records at offset {offset}"
            if self.source is not None and keys.is_foreign(row.data_key):
                assert self.source.committed.get(offset) == plain, f"the fork has another record at offset {offset}"
            self.newest[plain.key or b""] = max(offset, self.newest.get(plain.key or b"", -1))

    def _read(self, row: RemoteSegment) -> dict[int, Record]:
        """What the row's object has, which must be there whole the first time that it is named."""
        if row.ulid not in self.held:
            body = self._inner.get(keys.full_key(self.prefix, row.data_key))
            assert len(body) == row.stored_bytes, "a row names half an object"
            assert self._inner.head(keys.full_key(self.prefix, row.indexes_key)).size_bytes == row.indexes_bytes
            self.held[row.ulid] = found = records_in(body)
            assert all(row.base_offset <= offset < row.next_offset for offset in found)
        return self.held[row.ulid]

    def _check_complete(self, head: Head) -> None:
        """The head's rows have every committed record from the log start on; of a compacted log the newest of keys."""
        if head.deleted_ms is not None:
            return
        present = {at for row in self._rows for at in self.held[row.ulid] if at >= head.log_start_offset}
        if not self._scene.is_compacted:
            lost = [at for at in self.committed if at >= head.log_start_offset and at not in present]
            assert not lost, f"a head without committed records at {lost[:3]}"
            return
        for key, offset in self.newest.items():
            if offset < head.log_start_offset or offset in present:
                continue
            assert self.committed[offset].value is None, f"the newest record of a key is gone: {key!r} at {offset}"
            older = [at for at in present if at < offset and self.committed[at].key == key]
            older += [at for view in head.views for at in self._of_view(view) if self._is(key, at) and at < offset]
            assert not older, f"{key!r} is back: its tombstone at {offset} left, its record at {older[0]} did not"

    def _is(self, key: bytes, offset: int) -> bool:
        return self.committed[offset].key == key

    def _of_view(self, view: CompactedView) -> dict[int, Record]:
        return {at: record for row in view.rows for at, record in self._read(row).items()}

    def _check_view(self, view: CompactedView) -> None:
        """A view has the newest value of every key below its horizon, and nothing else."""
        name = view_name(view)
        if not view.is_built or name in self.views:
            return
        self.views[name] = found = self._of_view(view)
        newest: dict[bytes, int] = {}
        for at, record in sorted(self.committed.items()):
            inside = view.start_offset <= at < view.horizon_offset
            if inside and not any(start <= at < end for start, end in view.lost):
                newest[record.key or b""] = at
        wanted = {at: self.committed[at] for at in newest.values() if self.committed[at].value is not None}
        assert found == wanted, f"a view with other records: {sorted(found)} where {sorted(wanted)} are the newest"

    # --- deletes -----------------------------------------------------------------------------------------------------

    @judging
    def before_delete(self, wanted: Iterable[str], who: object) -> None:
        for full in wanted:
            if full.startswith(keys.PROBES):
                continue  # at the root of the store
            assert full.startswith(self.prefix), f"deleted outside of the partition: {full}"
            key = full.removeprefix(self.prefix)
            assert key not in STRANGERS, f"an unknown object was deleted: {key}"
            assert key not in self._named, f"an object that the newest head names was deleted: {key}"
            for pinned in self.pins.values():
                if pinned.expires_ms > self._now():
                    assert key not in pinned.names, f"an object of a pinned head was deleted: {key}"
                    assert key != keys.head_key(pinned.head.sequence), f"a pinned head was deleted: {key}"
            if self.is_told:
                self._check_deletable(key, who)

    def _check_deletable(self, key: str, who: object) -> None:
        if (sequence := keys.parse_head_key(key)) is not None:
            assert sequence <= self.void_upto, f"a head that is not void was deleted: {key}"
        elif keys.parse_pin_key(key) is not None:
            assert key not in self.pins or self.pins[key].expires_ms <= self._now(), "another's pin was removed"
        elif key in self.unlinked_ms:
            # Nobody begins to read what is deleted: one grace time is for all of it. Who doesn't know, goes by the row.
            gone_ms = [self.unlinked_ms[key], *(each for each in [self.heads[-1].deleted_ms] if each is not None)]
            waited = self._now() - min(gone_ms)
            assert waited >= GRACE_MS, f"deleted {waited} ms after it left the index: {key}"
        elif self.makers.get(key, who) is not who:  # what never arrived may be cleaned up as well
            epoch = keys.parse_epoch(key)
            assert epoch is not None, f"deleted, and nobody knows what it is: {key}"
            assert epoch < self.heads[-1].epoch, f"deleted, and nobody had given it up: {key}"
            self.orphans.add(key)

    def check_head(self, head: Head | None) -> None:
        """Of a head that somebody takes for the newest there was: it is one of the chain."""
        if head is not None:
            same = self.heads[head.sequence - 1].commit_id == head.commit_id
            assert same, f"head {head.sequence} counts for nothing, and somebody goes by it"

    # --- readers -----------------------------------------------------------------------------------------------------

    @judging
    def pinned(self, pin: Pin, head: Head) -> None:
        """A reader was told that it holds this head: all that it names is there."""
        self.pins[pin.key] = pinned = Pinned(head, self.names_of(head), pin.expires_ms)
        missing = [key for key in pinned.names if keys.full_key(self.prefix, key) not in self._inner._objects]
        assert not missing or pin.expires_ms <= self._now(), f"pinned, and gone already: {missing[:2]}"

    def unpinned(self, pin: Pin) -> None:
        self.pins.pop(pin.key, None)

    def check_read(self, records: Iterable[Any], start: int, end: int, log_start: int) -> None:
        """`records` are what a reader of the bucket got for ``[start, end)``."""
        found = {each.offset: plain(each) for each in records}
        wrong = [at for at in found if self.committed.get(at) != found[at]]
        assert not wrong, f"other records than were committed at {wrong[:3]}"
        must = self.newest.values() if self._scene.is_compacted else self.committed
        wanted = [at for at in must if start <= at < end and at >= log_start]
        if self._scene.is_compacted:
            wanted = [at for at in wanted if self.committed[at].value is not None]
        missing = [at for at in wanted if at not in found]
        assert not missing, f"committed records are missing at {missing[:3]}"

    def check_strangers(self) -> None:
        for name in STRANGERS if self.is_told else ():
            assert self._inner.get(self.prefix + name) == b"not yours", f"an unknown object was touched: {name}"


def _appender(head: Head) -> str:
    """The last writer that keeps a log. The removal of a partition never changes it."""
    return head.writer_id if head.appender_id is None else head.appender_id


def records_in(body: bytes) -> dict[int, Record]:
    """Every record of a segment's bytes, by offset, up to where they are torn."""
    found: dict[int, Record] = {}
    for run in BatchRuns(lambda start, length: body[start : start + length], len(body)):
        if run.is_readable:
            for record in kernels.decode_columns(run.data).records():
                found[record.offset] = plain(record)
    return found


def plain(record: Any) -> Record:
    return Record(record.key, record.value, record.timestamp_ms)


def view_name(view: CompactedView) -> tuple[str, ...]:
    return (str(view.horizon_offset), *(row.ulid for row in view.rows))
