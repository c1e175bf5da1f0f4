"""The truth of a race: the sequence of manifests in the bucket, checked at every effect on the bucket."""

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
from remote.manifest.manifest import Manifest, PageEntry, decode_manifest
from remote.manifest.manifest_chain import decode_boundary
from remote.manifest.manifest_lookup import MetadataIndex
from remote.manifest.manifest_page import Rows, decode_page
from remote.manifest.page_out import keys_of
from remote.manifest.view import CompactedView
from remote.segment_entry import SegmentEntry
from remote.store.memory_store import MemoryStore

STRANGERS = (  # objects unknown to the product, below the partition's prefix or next to it
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
    """A manifest that a reader has pinned, all names in it, and the end of the pin."""

    manifest: Manifest
    names: frozenset[str]
    expires_ms: int


def judging(check: Callable[..., None]) -> Callable[..., None]:
    """Report an object that is missing or damaged as a broken promise that no actor may handle."""

    @wraps(check)
    def told(*given: Any) -> None:
        try:
            check(*given)
        except LogError as error:
            raise AssertionError(f"a named object is missing or damaged: {error}") from error

    return told


class Truth:
    """See the docstring of `racing`; `committed` is every record that a manifest ever named, by offset."""

    def __init__(self, inner: MemoryStore, now: Callable[[], int], scene: SceneOfRace) -> None:
        self._inner, self._now, self._scene = inner, now, scene
        self.manifests: list[Manifest] = []
        self.committed: dict[int, Record] = {}
        self.newest: dict[bytes, int] = {}  # the offset of each key's newest committed record
        self.held: dict[str, dict[int, Record]] = {}  # the records of an entry's object, by ulid
        self.writers: dict[int, str] = {}
        self.views: dict[tuple[str, ...], dict[int, Record]] = {}  # the records of a view with these entries
        self.pins: dict[str, Pinned] = {}
        self.unlinked_ms: dict[str, int] = {}
        self.makers: dict[str, object] = {}
        self.gc_boundary = self.void_heads = self.pages_seen = self.replaced = 0
        self.orphans: set[str] = set()  # listed as orphans; never to be named
        self.prefix = ""
        self.name = TopicPartition("t", 0)
        self.source: Truth | None = None  # of a fork: its first entries have the records of this source
        self.is_told = True  # False while a fork is being created
        self._entries: list[SegmentEntry] = []
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
        """The topic id of the name: a delayed request of a dead process may create another topic of that name."""
        return {self.name.topic: self.prefix.split("/")[0].removeprefix(f"{self.name.topic}-")}

    @property
    def log_start(self) -> int:
        return self.manifests[-1].log_start_offset if self.manifests else 0

    @property
    def is_deleted(self) -> bool:
        return bool(self.manifests) and self.manifests[-1].deleted_ms is not None

    def entries_of(self, manifest: Manifest) -> list[SegmentEntry]:
        return list(MetadataIndex(manifest, self._page).entries_with_dead(0, 1 << 62))

    def names_of(self, manifest: Manifest) -> frozenset[str]:
        """Every object that a reader with this manifest may ask for."""
        entries = [*self.entries_of(manifest), *manifest.view_entries]
        names = {key for entry in entries for key in (entry.data_key, entry.indexes_key)}
        return frozenset(names | {page.key for page in manifest.pages})

    # --- effects on the bucket ---------------------------------------------------------------------------------------

    @judging
    def after_put(self, key: str, was_there: bool, maker: object) -> None:
        name = key.removeprefix(self.prefix)
        is_pin = keys.parse_pin_key(name) is not None  # renewed or ended under its name
        assert is_pin or not was_there, f"an object was overwritten: {key}"
        self.makers[name] = maker
        if keys.parse_boundary_key(name) is not None:
            upto = decode_boundary(self._inner.get(key))
            assert upto < self.manifests[-1].sequence, "the newest manifest was declared void"
            self.gc_boundary = max(self.gc_boundary, upto)
        elif (sequence := keys.parse_manifest_key(name)) is not None:
            if sequence <= self.gc_boundary:
                self.void_heads += 1  # of a writer that slept; this manifest is void
            else:
                self._follow(decode_manifest(self._inner.get(key)), sequence)

    def _follow(self, manifest: Manifest, sequence: int) -> None:
        last = self.manifests[-1] if self.manifests else None
        assert manifest.sequence == sequence == (last.sequence + 1 if last else 1), (
            "a manifest does not follow the last one"
        )
        assert self.writers.setdefault(manifest.epoch, manifest.writer_id) == manifest.writer_id, (
            "two writers in one epoch"
        )
        if last is not None:
            assert manifest.parent_id == last.commit_id
            assert manifest.epoch in (last.epoch, last.epoch + 1)
            assert manifest.log_start_offset >= last.log_start_offset, "the log start offset fell"
            assert last.deleted_ms in (None, manifest.deleted_ms), "a deleted partition exists again"
            is_removal = last.deleted_ms is None or _appender(manifest) == _appender(last)
            assert is_removal, f"a deleted partition accepted a writer: {_appender(manifest)}"
        self.manifests.append(manifest)
        known, entries = {entry.ulid for entry in self._entries}, self.entries_of(manifest)
        self.pages_seen += len(manifest.pages)
        self.replaced += len(known - {entry.ulid for entry in entries}) > 0 and len(entries) > 0
        before, self._entries, self._named = self._named, entries, self.names_of(manifest)
        foreign = [key for key in self._named - before if self._epoch_of(key, manifest) != manifest.epoch]
        assert not foreign, f"a manifest of epoch {manifest.epoch} names objects of another writer: {foreign[:2]}"
        again = self._named & self.unlinked_ms.keys()
        assert not again, f"named again after it was unlinked: {sorted(again)[:2]}"
        assert not self._named & self.orphans, f"named after it was listed as an orphan: {self._named & self.orphans}"
        for key, unlinked_ms in self._waiting(manifest):
            self.unlinked_ms.setdefault(key, unlinked_ms)
            assert key not in self._named, f"both pending delete and named: {key}"
        if not self.is_told:
            return  # a fork that may still lack objects: no reader uses it yet
        for entry in entries:
            if entry.ulid not in known:
                self._commit(entry, manifest.log_start_offset)
        self._check_complete(manifest)
        for view in manifest.views:
            self._check_view(view)

    def _epoch_of(self, key: str, manifest: Manifest) -> int | None:
        """The epoch of an object; the first entries of a fork name objects of other writers, of any epoch."""
        is_source = keys.is_in_other_topic(key) and self.source is not None
        return manifest.epoch if is_source else keys.parse_epoch(key)

    def needs(self, full: str) -> bool:
        """Whether this object of another partition is needed by a completed fork or by a reader of the fork."""
        if not self.is_told or not self.manifests or not full.startswith(self._homes):
            return False
        key = f"/{full}"
        pinned = any(key in each.names for each in self.pins.values() if each.expires_ms > self._now())
        waits = any(key == each and self._now() - at < GRACE_MS for each, at in self._waiting(self.manifests[-1]))
        return key in self._named or pinned or waits

    @property
    def _homes(self) -> tuple[str, ...]:
        return (self.source.prefix,) if self.source is not None else ()

    @judging
    def tell(self) -> None:
        """The creation of the fork returned: from now on all objects that it names exist."""
        self.is_told = True
        self.put_strangers()
        for entry in self._entries:
            self._commit(entry, self.log_start)
        self._check_complete(self.manifests[-1])

    def _waiting(self, manifest: Manifest) -> Iterator[tuple[str, int]]:
        """The pending deletes, and when each was unlinked."""
        for each in manifest.pending_deletes:
            yield each.key, each.unlinked_ms
        for page in manifest.pending_page_deletes:
            for key in (*keys_of(self._page(page.page)), page.page.key):
                yield key, page.unlinked_ms

    def _page(self, page: PageEntry) -> Rows:
        """The entries of a page, cached: the page is read when it is first named, and may be deleted later."""
        if page.key not in self._pages:
            body = self._inner.get(keys.full_key(self.prefix, page.key))
            self._pages[page.key] = decode_page(page, body)
        return self._pages[page.key]

    def _commit(self, entry: SegmentEntry, log_start: int) -> None:
        """Record the committed records; below the log start any record may be found.

        The closed segments of a disk are copied whole, and no reader reads them below the log start.
        """
        for offset, plain in self._read(entry).items():
            if offset < log_start:
                continue
            assert self.committed.setdefault(offset, plain) == plain, f"two records at offset {offset}"
            if self.source is not None and keys.is_in_other_topic(entry.data_key):
                assert self.source.committed.get(offset) == plain, f"the fork has another record at offset {offset}"
            self.newest[plain.key or b""] = max(offset, self.newest.get(plain.key or b"", -1))

    def _read(self, entry: SegmentEntry) -> dict[int, Record]:
        """The records of an entry's object, which must be complete when it is first named."""
        if entry.ulid not in self.held:
            body = self._inner.get(keys.full_key(self.prefix, entry.data_key))
            assert len(body) == entry.stored_bytes, "an entry names an incomplete object"
            assert self._inner.head(keys.full_key(self.prefix, entry.indexes_key)).size_bytes == entry.indexes_bytes
            self.held[entry.ulid] = found = records_in(body)
            assert all(entry.base_offset <= offset < entry.next_offset for offset in found)
        return self.held[entry.ulid]

    def _check_complete(self, manifest: Manifest) -> None:
        """Every committed record from the log start on is in the manifest.

        Of a compacted log, the manifest has the newest record of every key.
        """
        if manifest.deleted_ms is not None:
            return
        present = {at for entry in self._entries for at in self.held[entry.ulid] if at >= manifest.log_start_offset}
        if not self._scene.is_compacted:
            lost = [at for at in self.committed if at >= manifest.log_start_offset and at not in present]
            assert not lost, f"a manifest lacks committed records at {lost[:3]}"
            return
        for key, offset in self.newest.items():
            if offset < manifest.log_start_offset or offset in present:
                continue
            assert self.committed[offset].value is None, f"the newest record of a key is lost: {key!r} at {offset}"
            older = [at for at in present if at < offset and self.committed[at].key == key]
            older += [at for view in manifest.views for at in self._of_view(view) if self._is(key, at) and at < offset]
            assert not older, f"{key!r} is back: its tombstone at {offset} was removed before its record at {older[0]}"

    def _is(self, key: bytes, offset: int) -> bool:
        return self.committed[offset].key == key

    def _of_view(self, view: CompactedView) -> dict[int, Record]:
        return {at: record for entry in view.entries for at, record in self._read(entry).items()}

    def _check_view(self, view: CompactedView) -> None:
        """A view has the newest value of every key below its horizon, and no other record."""
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
        assert found == wanted, f"a view has the records {sorted(found)}, but {sorted(wanted)} are the newest"

    # --- deletes -----------------------------------------------------------------------------------------------------

    @judging
    def before_delete(self, wanted: Iterable[str], who: object) -> None:
        for full in wanted:
            if full.startswith(keys.PROBES):
                continue  # at the root of the store
            assert full.startswith(self.prefix), f"an object outside of the partition was deleted: {full}"
            key = full.removeprefix(self.prefix)
            assert key not in STRANGERS, f"an unknown object was deleted: {key}"
            assert key not in self._named, f"an object that the newest manifest names was deleted: {key}"
            for pinned in self.pins.values():
                if pinned.expires_ms > self._now():
                    assert key not in pinned.names, f"an object of a pinned manifest was deleted: {key}"
                    assert key != keys.manifest_key(pinned.manifest.sequence), f"a pinned manifest was deleted: {key}"
            if self.is_told:
                self._check_deletable(key, who)

    def _check_deletable(self, key: str, who: object) -> None:
        if (sequence := keys.parse_manifest_key(key)) is not None:
            assert sequence <= self.gc_boundary, f"a manifest was deleted that is not void: {key}"
        elif keys.parse_pin_key(key) is not None:
            assert key not in self.pins or self.pins[key].expires_ms <= self._now(), (
                "a pin of another process was removed"
            )
        elif key in self.unlinked_ms:
            # No reader starts to read a deleted partition, so one grace period covers all its objects. Otherwise the
            # entry counts.
            gone_ms = [self.unlinked_ms[key], *(each for each in [self.manifests[-1].deleted_ms] if each is not None)]
            waited = self._now() - min(gone_ms)
            assert waited >= GRACE_MS, f"deleted {waited} ms after it was unlinked: {key}"
        elif self.makers.get(key, who) is not who:  # an upload that never arrived may be deleted too
            epoch = keys.parse_epoch(key)
            assert epoch is not None, f"an unknown object was deleted: {key}"
            assert epoch < self.manifests[-1].epoch, f"an object was deleted that its writer had not unlinked: {key}"
            self.orphans.add(key)

    def check_head(self, manifest: Manifest | None) -> None:
        """A manifest that a process takes for the newest must be part of the chain."""
        if manifest is not None:
            same = self.manifests[manifest.sequence - 1].commit_id == manifest.commit_id
            assert same, f"manifest {manifest.sequence} is void, and a process uses it"

    # --- readers -----------------------------------------------------------------------------------------------------

    @judging
    def pinned(self, pin: Pin, manifest: Manifest) -> None:
        """A reader got a pin on this manifest: every object that it names exists."""
        self.pins[pin.key] = pinned = Pinned(manifest, self.names_of(manifest), pin.expires_ms)
        missing = [key for key in pinned.names if keys.full_key(self.prefix, key) not in self._inner._objects]
        assert not missing or pin.expires_ms <= self._now(), (
            f"objects of a pinned manifest are already deleted: {missing[:2]}"
        )

    def unpinned(self, pin: Pin) -> None:
        self.pins.pop(pin.key, None)

    def check_read(self, records: Iterable[Any], start: int, end: int, log_start: int) -> None:
        """Check the records that a reader of the bucket got for ``[start, end)``."""
        found = {each.offset: plain(each) for each in records}
        wrong = [at for at in found if self.committed.get(at) != found[at]]
        assert not wrong, f"a read returned records that were not committed at {wrong[:3]}"
        must = self.newest.values() if self._scene.is_compacted else self.committed
        wanted = [at for at in must if start <= at < end and at >= log_start]
        if self._scene.is_compacted:
            wanted = [at for at in wanted if self.committed[at].value is not None]
        missing = [at for at in wanted if at not in found]
        assert not missing, f"a read lacks committed records at {missing[:3]}"

    def check_strangers(self) -> None:
        for name in STRANGERS if self.is_told else ():
            assert self._inner.get(self.prefix + name) == b"not yours", f"an unknown object was touched: {name}"


def _appender(manifest: Manifest) -> str:
    """The last writer of a log's records. The removal of a partition never changes it."""
    return manifest.writer_id if manifest.appender_id is None else manifest.appender_id


def records_in(body: bytes) -> dict[int, Record]:
    """Every record in a segment's bytes, by offset, up to the first torn batch."""
    found: dict[int, Record] = {}
    for run in BatchRuns(lambda start, length: body[start : start + length], len(body)):
        if run.is_readable:
            for record in kernels.decode_columns(run.data).records():
                found[record.offset] = plain(record)
    return found


def plain(record: Any) -> Record:
    return Record(record.key, record.value, record.timestamp_ms)


def view_name(view: CompactedView) -> tuple[str, ...]:
    return (str(view.horizon_offset), *(entry.ulid for entry in view.entries))
