"""Repair of damage that a scrub found, from a good copy if there is one; plan first, then run.

The plan checks the reported damage and the good copies again.

| damaged | repair | how it becomes visible |
|---|---|---|
| a segment, its indexes, or its entry | the good bytes are uploaded under a new name | its entry replaces the old one |
| a manifest page | the identical page is put back, else its entries go into a new page | same name, or a commit |
| an object that several partitions name (forks) | each one's entry, `health.repair_sources` | a commit each |
| an older manifest | none: only the newest counts, and it is valid | |
| a view's part, the newest manifest, other objects without a good copy | none: reported as hopeless, with offsets | |

Order of effects for a segment:

1. The good bytes are uploaded and verified.
2. One manifest is committed as a co-writer of the current epoch, so a manager keeps running. Its new entry has exactly
   the offsets of the old one (rule P11).
3. The damaged objects are pending deletes for the grace period.

A crash before the commit leaves objects that no manifest names; plan again. Bytes are put under an old name only if
checksums prove them identical.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from local.errors import AccessDenied, AlreadyExists, Conflict, Corrupt, InvalidRequest, LogError, NotFound
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.fetch.segment_check import check_segment
from remote.keys import MANIFESTS, VIEWS, full_key, new_ulid, parse_manifest_key, parse_page_key, parse_view_key
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import AppliedJob, Manifest, PageEntry
from remote.manifest.manifest_changes import Change, objects_of, replace_tiled
from remote.manifest.manifest_lookup import Pages
from remote.manifest.manifest_page import encode_page, summary_contradiction
from remote.manifest.manifest_validation import entry_contradiction
from remote.manifest.sealing import sealer_of
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from remote.upload.segment_upload import SegmentToCopy, copy_segment
from tiered.health.repair_sources import LocalCopies, Relatives, entries_of_page, from_bucket
from tiered.health.scrub import check_contents
from tiered.health.scrub_report import ScrubReport
from tiered.jobs.runner import Clock, Failures, Here, LocalJob, run_job
from tiered.partition.segment_inspection import segment_to_copy
from tiered.stores.object_encoding import SettingsOf, encoding_of_entry, own_settings

_OLDER_MANIFEST = "only the newest manifest counts and is undamaged; older manifests are deleted by garbage collection"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRepair:
    """A segment to upload again. `source` is "local" or "bucket".

    With `relative` the good copy belongs to that partition (a fork, or the source of a fork): in its log on the disk,
    or in the bucket as its entry `other`.
    """

    name: RemotePartitionName
    entry: SegmentEntry
    source: str
    relative: RemotePartitionName | None = None
    other: SegmentEntry | None = None

    @property
    def object(self) -> str:
        return self.entry.data_key

    @property
    def size_bytes(self) -> int:
        return self.entry.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRepair:
    """A page to put back. `source`: "older manifest", "objects", or "page itself" (only its summary is wrong)."""

    name: RemotePartitionName
    page: PageEntry
    entries: tuple[SegmentEntry, ...]
    source: str

    @property
    def object(self) -> str:
        return self.page.key

    @property
    def size_bytes(self) -> int:
        return self.page.page_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Untouched:
    """An object left unchanged, and why. `offsets` are half open, None if no offsets are affected."""

    name: RemotePartitionName
    object: str
    why: str
    offsets: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """Planned repairs. `hopeless` objects have no good copy; `needless` ones are valid by now, or do not matter."""

    pages: tuple[PageRepair, ...] = ()
    segments: tuple[SegmentRepair, ...] = ()
    hopeless: tuple[Untouched, ...] = ()
    needless: tuple[Untouched, ...] = ()

    @property
    def repairs(self) -> tuple[PageRepair | SegmentRepair, ...]:
        return (*self.pages, *self.segments)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.repairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    done: tuple[SegmentRepair | PageRepair, ...]
    failed: tuple[Untouched, ...] = ()


def plan_repair(
    store: ObjectStore, report: ScrubReport, *, keys: KeyRing = NO_KEYS, copies: LocalCopies | None = None
) -> RepairPlan:
    """Plan the repairs of all partitions that name a damaged object. Writes nothing. Raises Unavailable."""
    planner = _Planner(store, keys, copies)
    objects, ulids = defaultdict[RemotePartitionName, set[str]](set), defaultdict[RemotePartitionName, set[str]](set)
    unreadable = [each for each in report.of("warning") if each.ulid is not None]  # a missing or wrong key
    for found in (*report.of("corrupt"), *unreadable):
        name = RemotePartitionName(found.topic, found.topic_id, found.partition)
        objects[name].add(found.object)
        if found.ulid is not None:
            ulids[name].add(found.ulid)
    for name, ulid in planner.sharing(ulids):
        ulids[name].add(ulid)
    for name in sorted(objects.keys() | ulids.keys()):
        planner.plan_partition(name, objects[name], ulids[name])
    return planner.plan()


class _Planner:
    def __init__(self, store: ObjectStore, keys: KeyRing, copies: LocalCopies | None) -> None:
        self._store, self._keys, self._copies = store, keys, copies
        self._relatives = Relatives(store)
        self._pages: list[PageRepair] = []
        self._segments: list[SegmentRepair] = []
        self._hopeless: list[Untouched] = []
        self._needless: list[Untouched] = []

    def plan(self) -> RepairPlan:
        return RepairPlan(
            pages=tuple(self._pages),
            segments=tuple(self._segments),
            hopeless=tuple(self._hopeless),
            needless=tuple(self._needless),
        )

    def sharing(self, ulids: Mapping[RemotePartitionName, set[str]]) -> set[tuple[RemotePartitionName, str]]:
        return {
            each
            for name, reported in ulids.items()
            for entry in self._relatives.entries(name)
            if entry.ulid in reported
            for each in self._relatives.naming(name, entry)
        }

    def plan_partition(self, name: RemotePartitionName, objects: set[str], ulids: set[str]) -> None:
        try:
            manifest = MetadataLog(self._store, name.prefix).join()
        except (Corrupt, NotFound, Conflict) as error:
            why = f"the newest manifest is unreadable, only a copy of it can replace it: {error}"
            self._hopeless.append(Untouched(name=name, object=MANIFESTS, why=why))
            return
        for key in sorted(objects):
            if key.startswith(MANIFESTS) and parse_manifest_key(key) != manifest.sequence:
                self._needless.append(Untouched(name=name, object=key, why=_OLDER_MANIFEST))
        entries = [entry for entry in self._entries(name, manifest) if entry.ulid in ulids]
        for entry in sorted(entries, key=lambda entry: entry.base_offset):
            if not self._is_damaged(name, entry):
                self._needless.append(Untouched(name=name, object=entry.data_key, why="already undamaged"))
                continue
            try:
                self._segments.append(self._segment(name, entry, manifest))
            except (Corrupt, NotFound, AccessDenied, InvalidRequest) as error:
                unrepaired = Untouched(name=name, object=entry.data_key, why=str(error), offsets=entry.offsets)
                self._hopeless.append(unrepaired)
        for key in sorted(key for key in objects if key.startswith(VIEWS)):
            why = "a view is derived from its log: drop it and build it again"
            self._hopeless.append(Untouched(name=name, object=key, why=why))

    def _entries(self, name: RemotePartitionName, manifest: Manifest) -> list[SegmentEntry]:
        """Plan the repair of damaged pages; return the log's entries, also those of the repaired pages."""
        pages, entries = Pages(self._store, name.prefix), list(manifest.segments)
        for page in manifest.pages:
            try:
                rows, source = pages.entries(page), "page itself"
            except (Corrupt, NotFound):
                try:
                    rows, source = entries_of_page(self._store, name.prefix, manifest, page)
                except Corrupt as error:
                    offsets = (page.base_offset, page.next_offset)
                    self._hopeless.append(Untouched(name=name, object=page.key, why=str(error), offsets=offsets))
                    continue
            if source != "page itself" or summary_contradiction(page, rows) is not None:
                self._pages.append(PageRepair(name=name, page=page, entries=tuple(rows), source=source))
            with suppress(Corrupt):
                entries += rows
        return entries

    def _is_damaged(self, name: RemotePartitionName, entry: SegmentEntry) -> bool:
        view = parse_view_key(entry.data_key)
        if entry_contradiction(entry, view=view.view if view is not None else None) is not None:
            return True
        sizes = ((entry.data_key, entry.stored_bytes), (entry.indexes_key, entry.indexes_bytes))
        try:
            if any(self._store.head(full_key(name.prefix, key)).size_bytes != size for key, size in sizes):
                return True
        except NotFound:
            return True
        remote = RemotePartition(self._store, name.prefix, ChunkCache(0), keys=self._keys)
        return bool(check_segment(self._store, remote, entry, check_contents))

    def _segment(self, name: RemotePartitionName, entry: SegmentEntry, manifest: Manifest) -> SegmentRepair:
        copies, is_last = self._copies, entry.next_offset >= manifest.entries_end_offset
        if copies is not None and copies(name, entry):
            return SegmentRepair(name=name, entry=entry, source="local")
        try:
            from_bucket(self._store, name.prefix, entry, self._keys, is_last=is_last)
        except (Corrupt, NotFound, AccessDenied, InvalidRequest):
            if copies is not None and (relative := self._relatives.on_disk(name, entry, copies)) is not None:
                return SegmentRepair(name=name, entry=entry, source="local", relative=relative)
            found = self._relatives.same_bytes(name, entry, lambda other, each: not self._is_damaged(other, each))
            if found is None:
                raise
            return SegmentRepair(name=name, entry=entry, source="bucket", relative=found[0], other=found[1])
        return SegmentRepair(name=name, entry=entry, source="bucket")


def run_repair(
    store: ObjectStore,
    plan: RepairPlan,
    *,
    now_ms: Clock,
    keys: KeyRing = NO_KEYS,
    copies: LocalCopies | None = None,
    progress: Callable[[int], None] = lambda done_bytes: None,
    settings: SettingsOf = own_settings,
) -> Repaired:
    """Carry out a plan, pages first. A plaintext entry is encrypted if `settings` of its topic name a key.

    Raises Unavailable; other errors than Corrupt and NotFound after all other repairs.
    """
    job = RepairJob(store=store, plan=plan, now_ms=now_ms, keys=keys, copies=copies, settings=settings)
    errors: dict[int, LogError] = {}
    done = run_job(job, Here(), progress=progress, errors=errors)
    failed = []
    for number, error in sorted(errors.items()):
        if not isinstance(error, Corrupt | NotFound):
            raise error
        repair = plan.repairs[number]
        failed.append(Untouched(name=repair.name, object=repair.object, why=str(error)))
    return Repaired(done=tuple(done), failed=tuple(failed))


class RepairUnit(NamedTuple):
    number: int
    repair: SegmentRepair | PageRepair


@dataclass(kw_only=True)
class RepairJob(LocalJob[RepairUnit, None, SegmentRepair | PageRepair]):
    store: ObjectStore
    plan: RepairPlan
    now_ms: Clock
    keys: KeyRing = NO_KEYS
    copies: LocalCopies | None = None
    settings: SettingsOf = own_settings

    def __post_init__(self) -> None:
        self.failures = Failures([repair.name for repair in self.plan.repairs])
        self.description = f"repairing {len(self.plan.repairs)} objects"
        self._done: list[SegmentRepair | PageRepair] = []

    def units(self) -> list[RepairUnit]:
        return [RepairUnit(number, repair) for number, repair in enumerate(self.plan.repairs)]

    def size_of(self, unit: RepairUnit) -> int:
        return unit.repair.size_bytes

    def do(self, unit: RepairUnit) -> None:
        if isinstance(unit.repair, PageRepair):
            _repair_page(self.store, unit.repair, self.now_ms())
        else:
            self._repair_segment(unit.repair)

    def commit(self, results: Sequence[tuple[RepairUnit, LogError | None]]) -> None:
        self._done += [unit.repair for unit, error in results if error is None]

    def outcomes(self) -> list[SegmentRepair | PageRepair]:
        return self._done

    def _repair_segment(self, repair: SegmentRepair) -> None:
        log, old, now_ms = MetadataLog(self.store, repair.name.prefix), repair.entry, self.now_ms()
        manifest = log.join()
        if not log.ask(manifest, lambda index: index.holds(old)):
            raise NotFound(
                "cannot repair a segment, its entry was removed: it expired or was replaced", object=old.data_key
            )
        settings = self.settings(repair.name.topic, manifest.properties)
        entry = copy_segment(
            self.store,
            repair.name.prefix,
            self._to_copy(repair, manifest),
            epoch=log.epoch,
            now_ms=now_ms,
            object_encoding=encoding_of_entry(old, settings).object_encoding(self.keys),
        )
        keys = {old.data_key, old.indexes_key}  # other damaged entries may name these objects too
        entries = log.ask(manifest, lambda index: list(index.entries_with_dead(0, manifest.entries_end_offset)))
        sharing = [each for each in entries if each != old and keys & {each.data_key, each.indexes_key}]
        touches = (min(each.base_offset for each in (old, *sharing)), max(each.next_offset for each in (old, *sharing)))
        log.commit(put_in_place(old, entry, spares=sharing), now_ms, touches=touches)

    def _to_copy(self, repair: SegmentRepair, manifest: Manifest) -> SegmentToCopy:
        entry, copies = repair.entry, self.copies
        if repair.source == "local":
            holder = repair.relative or repair.name
            log = copies.log(holder) if copies is not None else None
            if log is None or copies is None or not copies(holder, entry):
                raise NotFound("cannot repair a segment, the disk no longer holds its records", object=entry.data_key)
            info = next(info for info in log.segments() if info.base_offset == entry.base_offset)
            return segment_to_copy(log, info, cleaned_through=entry.cleaned_through)
        is_last = entry.next_offset >= manifest.entries_end_offset
        if repair.relative is None or repair.other is None:
            return from_bucket(self.store, repair.name.prefix, entry, self.keys, is_last=is_last)
        good = from_bucket(self.store, repair.relative.prefix, repair.other, self.keys, is_last=is_last)
        return replace(good, cleaned_through=entry.cleaned_through)


def put_in_place(old: SegmentEntry, new: SegmentEntry, *, spares: Sequence[SegmentEntry] = ()) -> Change:
    """The change that replaces one entry by another with the same offsets.

    The old entry is found by all its fields: damaged entries may share a name. Its objects become pending deletes,
    except those of entries in `spares`. If the old entry was removed, the new objects become pending deletes.
    """
    assert (old.base_offset, old.next_offset) == (new.base_offset, new.next_offset), "a repair moves no offsets"
    needed = {key for entry in (*spares, new) for key in (entry.data_key, entry.indexes_key)}

    def change(manifest: Manifest) -> Manifest:
        if any(entry.ulid == new.ulid and entry.data_key == new.data_key for entry in manifest.segments):
            return manifest
        if old not in manifest.segments:
            return replace(
                manifest,
                pending_deletes=manifest.pending_deletes + objects_of(new, manifest.committed_ms, manifest.epoch),
            )
        fresh = replace(new, committed_ms=old.committed_ms, made_by=old.made_by)
        unlinked = tuple(
            each for each in objects_of(old, manifest.committed_ms, manifest.epoch) if each.key not in needed
        )
        segments = tuple(fresh if entry == old else entry for entry in manifest.segments)
        return replace(manifest, segments=segments, pending_deletes=manifest.pending_deletes + unlinked)

    return change


def _repair_page(store: ObjectStore, repair: PageRepair, now_ms: int) -> None:
    """Put the identical page under its old name; if that is impossible, commit its entries in a new page."""
    prefix, page = repair.name.prefix, repair.page
    says = parse_page_key(page.key)
    assert says is not None, "a head names pages by their keys"
    sealer, key_id = sealer_of(store, prefix), page.seal_key_id
    again, body = encode_page(repair.entries, says.epoch, says.ulid, sealer=sealer, seal_key_id=key_id)
    if again == page:
        with suppress(AlreadyExists):  # in an immutable bucket the damaged page stays
            store.put(prefix + page.key, body)
            return
    log = MetadataLog(store, prefix)
    if page not in log.join().pages:
        raise NotFound("cannot repair a manifest page, the manifest no longer names it", page=page.key)
    log.certify_page(page, repair.entries)
    change = replace_tiled([], cleaned_through=0, bound=None, note=AppliedJob(job_id=f"repair-{new_ulid(now_ms)}"))
    log.commit(change, now_ms, touches=(page.base_offset, page.next_offset))
