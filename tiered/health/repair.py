"""Repair of damage that a scrub found, from a good copy if there is one; plan first, then run.

The report says where to search. The plan checks the damage and the good copies again.

| damaged | repair | how it becomes visible |
|---|---|---|
| a segment, its indexes, or its entry | the good bytes are uploaded under a new name | its entry replaces the old one |
| a manifest page | the identical page is put back, else its entries go into a new page | same name, or a commit |
| an object that forks or their source name | the entries of each, `health.repair_relatives` | a commit each |
| an older manifest | none: only the newest counts, and it is valid | |
| a view's part, the newest manifest, other objects without a good copy | none: reported as hopeless, with offsets | |

Order of effects for a segment:

1. The good bytes are uploaded and verified.
2. One manifest is committed as a co-writer of the current epoch (`remote.manifest.co_writer`), so a manager keeps
   running. Its new entry has exactly the offsets of the old one (rule P11).
3. The damaged objects are pending deletes from then on, and stay for the grace period.

A crash before the commit leaves objects that no manifest names; plan again. A page is repaired by one put of the same
bytes under the same name, or by a commit. Bytes are put under an old name only if the checksums prove them identical.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from local.errors import AccessDenied, AlreadyExists, Conflict, Corrupt, InvalidRequest, NotFound
from local.log import Log
from local.segment.segment_info import SegmentInfo
from remote.fetch.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.fetch.segment_check import check_segment
from remote.keys import HEADS, VIEWS, full_key, new_ulid, parse_manifest_key, parse_page_key, parse_view_key
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.co_writer import CoWriterLog
from remote.manifest.job_changes import replace_tiled
from remote.manifest.manifest import AppliedJob, Head, PageEntry
from remote.manifest.manifest_changes import Change, objects_of
from remote.manifest.manifest_lookup import Pages
from remote.manifest.manifest_page import encode_page, summary_contradiction
from remote.manifest.manifest_validation import entry_contradiction
from remote.manifest.sealing import sealer_of
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.segments.segment_upload import SegmentToCopy, copy_segment
from remote.store import ObjectStore
from tiered.health.bucket_check import check_contents
from tiered.health.repair_relatives import Relatives
from tiered.health.repair_sources import entries_of_page, from_bucket
from tiered.health.scrub_report import Found, ScrubReport
from tiered.partition.segment_inspection import segment_to_copy
from tiered.stores.object_encoding import SettingsOf, kept_as, own_settings

Progress = Callable[[int], None]


class Copies(Protocol):
    """Good copies on this machine's disk (`tiered.health.repair_from_local`)."""

    def __call__(self, name: RemotePartitionName, row: SegmentEntry) -> bool: ...

    def log(self, name: RemotePartitionName) -> Log | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRepair:
    """A segment to upload again. `source` is "local" or "bucket".

    With `relative` the good copy belongs to that partition, a fork or the source of a fork. It is in its log on the
    disk, or in the bucket as its entry `other`.
    """

    name: RemotePartitionName
    row: SegmentEntry
    source: str
    relative: RemotePartitionName | None = None
    other: SegmentEntry | None = None

    @property
    def object(self) -> str:
        return self.row.data_key


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRepair:
    """A page to put back. `source` is "older head", "objects", or "page itself".

    "page itself": the page is valid, and the manifest describes it wrongly.
    """

    name: RemotePartitionName
    spill: PageEntry
    rows: tuple[SegmentEntry, ...]
    source: str

    @property
    def object(self) -> str:
        return self.spill.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Untouched:
    """An object left unchanged, and the reason. `offsets` are half open; None if no offsets are affected."""

    name: RemotePartitionName
    object: str
    why: str
    offsets: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """Planned repairs. `hopeless` have no good copy; `needless` are valid by now, or do not matter."""

    pages: tuple[PageRepair, ...] = ()
    segments: tuple[SegmentRepair, ...] = ()
    hopeless: tuple[Untouched, ...] = ()
    needless: tuple[Untouched, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The bytes to upload."""
        return sum(each.row.size_bytes for each in self.segments) + sum(each.spill.page_bytes for each in self.pages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """The repaired objects, and the failed ones with the error."""

    done: tuple[SegmentRepair | PageRepair, ...]
    failed: tuple[Untouched, ...] = ()


# --- planning --------------------------------------------------------------------------------------------------------


def plan_repair(
    store: ObjectStore, report: ScrubReport, *, keys: KeyRing = NO_KEYS, copies: Copies | None = None
) -> RepairPlan:
    """Plan the repairs of a report. Reads damaged objects and good copies; writes nothing.

    A finding about one partition is checked in all partitions that name the same objects. Raises Unavailable.
    """
    plan = RepairPlan()
    relatives = Relatives(store)
    by_name: dict[RemotePartitionName, list[Found]] = {}
    unreadable = [each for each in report.of("warning") if each.ulid is not None]  # a missing or wrong key
    for found in (*report.of("corrupt"), *unreadable):
        by_name.setdefault(RemotePartitionName(found.topic, found.topic_id, found.partition), []).append(found)
    for name, ulid in sorted(_shared(relatives, by_name)):
        found = Found(severity="corrupt", **_facts(name), object="", what="of a relative", ulid=ulid)
        by_name.setdefault(name, []).append(found)
    for name in sorted(by_name):
        plan = _plus(plan, _of_partition(store, name, by_name[name], keys, copies, relatives))
    return plan


def _shared(
    relatives: Relatives, by_name: Mapping[RemotePartitionName, Sequence[Found]]
) -> set[tuple[RemotePartitionName, str]]:
    """Return entries of other partitions that name an object of a reported one."""
    shared = set()
    for name, found in by_name.items():
        ulids = {each.ulid for each in found if each.ulid is not None}
        for row in relatives.rows(name) if ulids else ():
            if row.ulid in ulids:
                shared |= set(relatives.naming(name, row))
    told = {(name, each.ulid) for name, found in by_name.items() for each in found}
    return {each for each in shared if each not in told}


def _facts(name: RemotePartitionName) -> dict[str, Any]:
    return {"topic": name.topic, "topic_id": name.topic_id, "partition": name.partition}


def _plus(one: RepairPlan, other: RepairPlan) -> RepairPlan:
    return RepairPlan(
        pages=one.pages + other.pages,
        segments=one.segments + other.segments,
        hopeless=one.hopeless + other.hopeless,
        needless=one.needless + other.needless,
    )


def _of_partition(
    store: ObjectStore,
    name: RemotePartitionName,
    found: Sequence[Found],
    keys: KeyRing,
    copies: Copies | None,
    relatives: Relatives,
) -> RepairPlan:
    try:
        head = CoWriterLog(store, name.prefix).join()
    except (Corrupt, NotFound, Conflict) as error:
        why = f"the newest head cannot be read, and nothing but a copy of it would do: {error}"
        return RepairPlan(hopeless=(Untouched(name=name, object=HEADS, why=why),))
    hopeless: list[Untouched] = []
    needless = list(_of_manifests(name, head, found))
    pages = []
    for spill, known in _damaged_pages(store, name, head):
        try:
            rows, source = known or entries_of_page(store, name.prefix, head, spill)
            pages.append(PageRepair(name=name, spill=spill, rows=tuple(rows), source=source))
        except Corrupt as error:
            offsets = (spill.base_offset, spill.next_offset)
            hopeless.append(Untouched(name=name, object=spill.key, why=str(error), offsets=offsets))
    segments = []
    for row in _rows(store, name, head, pages, {each.ulid for each in found if each.ulid is not None}):
        if not _is_damaged(store, name, row, keys):
            needless.append(Untouched(name=name, object=row.data_key, why="whole by now"))
            continue
        try:
            segments.append(_source(store, name, row, head, keys, copies, relatives))
        except (Corrupt, NotFound, AccessDenied, InvalidRequest) as error:
            offsets = (row.base_offset, row.next_offset)
            hopeless.append(Untouched(name=name, object=row.data_key, why=str(error), offsets=offsets))
    hopeless += _of_views(name, found)
    return RepairPlan(pages=tuple(pages), segments=tuple(segments), hopeless=tuple(hopeless), needless=tuple(needless))


def _of_manifests(name: RemotePartitionName, head: Head, found: Sequence[Found]) -> Iterator[Untouched]:
    for key in sorted({each.object for each in found if each.object.startswith(HEADS)}):
        sequence = parse_manifest_key(key)
        if sequence is None or sequence != head.sequence:
            why = "only the newest head counts, which is whole; the older ones go when they are collected"
            yield Untouched(name=name, object=key, why=why)


def _of_views(name: RemotePartitionName, found: Sequence[Found]) -> Iterator[Untouched]:
    for key in sorted({each.object for each in found if each.object.startswith(VIEWS)}):
        yield Untouched(name=name, object=key, why="a view is made of its log: drop it and build it anew")


def _damaged_pages(
    store: ObjectStore, name: RemotePartitionName, head: Head
) -> Iterator[tuple[PageEntry, tuple[tuple[SegmentEntry, ...], str] | None]]:
    """Yield unreadable pages (with None), and wrongly described ones with their entries.

    A page is wrongly described if its summary in the manifest contradicts its entries.
    """
    pages = Pages(store, name.prefix)
    for spill in head.spills:
        try:
            rows = pages.rows(spill)
        except (Corrupt, NotFound):
            yield spill, None
            continue
        if summary_contradiction(spill, rows) is not None:
            yield spill, (tuple(rows), "page itself")


def _rows(
    store: ObjectStore, name: RemotePartitionName, head: Head, repaired: Sequence[PageRepair], ulids: set[str]
) -> list[SegmentEntry]:
    """Return the log's entries with these ULIDs, including entries of pages under repair."""
    pages, rows = Pages(store, name.prefix), list(head.segments)
    anew = {each.spill: each.rows for each in repaired}
    for spill in head.spills:
        try:
            rows += anew[spill] if spill in anew else pages.rows(spill)
        except (Corrupt, NotFound):
            continue
    return sorted((row for row in rows if row.ulid in ulids), key=lambda row: row.base_offset)


def _is_damaged(store: ObjectStore, name: RemotePartitionName, row: SegmentEntry, keys: KeyRing) -> bool:
    view = parse_view_key(row.data_key)
    if entry_contradiction(row, view=view.view if view is not None else None) is not None:
        return True
    sizes = ((row.data_key, row.stored_bytes), (row.indexes_key, row.indexes_bytes))
    try:
        if any(store.head(full_key(name.prefix, key)).size_bytes != size for key, size in sizes):
            return True
    except NotFound:
        return True
    remote = RemotePartition(store, name.prefix, ChunkCache(0), read_ahead_chunks=0, keys=keys)
    return bool(check_segment(store, remote, row, check_contents))


def _source(
    store: ObjectStore,
    name: RemotePartitionName,
    row: SegmentEntry,
    head: Head,
    keys: KeyRing,
    copies: Copies | None,
    relatives: Relatives,
) -> SegmentRepair:
    """Find the good copy. Raises Corrupt with the reason if there is none."""
    if copies is not None and copies(name, row):
        return SegmentRepair(name=name, row=row, source="local")
    try:
        from_bucket(store, name.prefix, row, keys, is_last=row.next_offset >= head.entries_end_offset)
    except (Corrupt, NotFound, AccessDenied, InvalidRequest):
        if copies is not None and (relative := relatives.on_disk(name, row, copies)) is not None:
            return SegmentRepair(name=name, row=row, source="local", relative=relative)
        found = relatives.same_bytes(name, row, lambda other, each: not _is_damaged(store, other, each, keys))
        if found is None:
            raise
        return SegmentRepair(name=name, row=row, source="bucket", relative=found[0], other=found[1])
    return SegmentRepair(name=name, row=row, source="bucket")


# --- doing -----------------------------------------------------------------------------------------------------------


def run_repair(
    store: ObjectStore,
    plan: RepairPlan,
    *,
    now_ms: Callable[[], int],
    keys: KeyRing = NO_KEYS,
    copies: Copies | None = None,
    progress: Progress = lambda done_bytes: None,
    settings: SettingsOf = own_settings,
) -> Repaired:
    """Carry out a plan, pages first. A failed repair does not stop the others.

    `progress` is called with bytes; their sum is the size of all repairs. The objects of a plaintext entry are
    encrypted if `settings` of its topic name a key. Raises Unavailable and Fenced; earlier repairs stay.
    """
    done: list[SegmentRepair | PageRepair] = []
    failed = []
    both: tuple[PageRepair | SegmentRepair, ...] = (*plan.pages, *plan.segments)
    for each in both:
        try:
            if isinstance(each, PageRepair):
                _repair_page(store, each, now_ms())
                progress(each.spill.page_bytes)
            else:
                _repair_segment(store, each, keys, copies, now_ms(), progress, settings)
            done.append(each)
        except (Corrupt, NotFound) as error:
            failed.append(Untouched(name=each.name, object=each.object, why=str(error)))
    return Repaired(done=tuple(done), failed=tuple(failed))


def _repair_segment(
    store: ObjectStore,
    repair: SegmentRepair,
    keys: KeyRing,
    copies: Copies | None,
    now_ms: int,
    progress: Progress,
    settings: SettingsOf,
) -> None:
    log = CoWriterLog(store, repair.name.prefix)
    head, old = log.join(), repair.row
    if not log.ask(head, lambda index: index.holds(old)):
        raise NotFound("repairing a segment, its row is gone: it expired or was replaced", object=old.data_key)
    source = _to_copy(store, repair, head, keys, copies)
    object_encoding = kept_as(old, settings(repair.name.topic, head.properties)).object_encoding(keys)
    place = repair.name.prefix
    row = copy_segment(
        store, place, source, epoch=log.epoch, now_ms=now_ms, object_encoding=object_encoding, progress=progress
    )
    sharing = _sharing(log, head, old)
    touches = (min(each.base_offset for each in (old, *sharing)), max(each.next_offset for each in (old, *sharing)))
    log.commit(put_in_place(old, row, spares=sharing), now_ms, touches=touches)


def _sharing(log: CoWriterLog, head: Head, old: SegmentEntry) -> list[SegmentEntry]:
    """Return other entries of the log that name an object of this one.

    A damaged entry may name another entry's object.
    """
    keys = {old.data_key, old.indexes_key}
    rows = log.ask(head, lambda index: list(index.entries_with_dead(0, head.entries_end_offset)))
    return [row for row in rows if row != old and keys & {row.data_key, row.indexes_key}]


def put_in_place(old: SegmentEntry, new: SegmentEntry, *, spares: Sequence[SegmentEntry] = ()) -> Change:
    """Replace one entry by another with the same offsets.

    The old entry is found by all its fields, because damaged entries may share a name. Its objects become pending
    deletes, except objects of the entries in `spares`. If the old entry is no longer there, the new objects become
    pending deletes.
    """
    assert (old.base_offset, old.next_offset) == (new.base_offset, new.next_offset), "a repair moves no offsets"
    needed = {key for row in (*spares, new) for key in (row.data_key, row.indexes_key)}

    def change(head: Head) -> Head:
        if any(row.ulid == new.ulid and row.data_key == new.data_key for row in head.segments):
            return head
        if old not in head.segments:
            return replace(head, unlinked=head.unlinked + objects_of(new, head.committed_ms, head.epoch))
        fresh = replace(new, committed_ms=old.committed_ms, made_by=old.made_by)
        gone = tuple(each for each in objects_of(old, head.committed_ms, head.epoch) if each.key not in needed)
        segments = tuple(fresh if row == old else row for row in head.segments)
        return replace(head, segments=segments, unlinked=head.unlinked + gone)

    return change


def _to_copy(
    store: ObjectStore, repair: SegmentRepair, head: Head, keys: KeyRing, copies: Copies | None
) -> SegmentToCopy:
    row = repair.row
    if repair.source == "local":
        holder = repair.relative or repair.name
        log = copies.log(holder) if copies is not None else None
        if log is None or copies is None or not copies(holder, row):
            raise NotFound("repairing a segment, the disk does not hold its bytes any more", object=row.data_key)
        return segment_to_copy(log, _info(log, row), cleaned_through=row.cleaned_through)
    is_last = row.next_offset >= head.entries_end_offset
    if repair.relative is not None and repair.other is not None:
        return replace(
            from_bucket(store, repair.relative.prefix, repair.other, keys, is_last=is_last),
            cleaned_through=row.cleaned_through,
        )
    return from_bucket(store, repair.name.prefix, row, keys, is_last=is_last)


def _info(log: Log, row: SegmentEntry) -> SegmentInfo:
    return next(info for info in log.segments() if info.base_offset == row.base_offset)


def _repair_page(store: ObjectStore, repair: PageRepair, now_ms: int) -> None:
    """Repair a page: put the same bytes under the same name, if they can be rebuilt and put.

    Otherwise a commit puts the entries into a new page.
    """
    prefix, spill = repair.name.prefix, repair.spill
    says = parse_page_key(spill.key)
    assert says is not None, "a head names pages by their keys"
    sealer, key_id = sealer_of(store, prefix), spill.seal_key_id
    again, body = encode_page(repair.rows, says.epoch, says.ulid, sealer=sealer, seal_key_id=key_id)
    if again == spill:
        with suppress(AlreadyExists):  # in an immutable bucket the damaged page stays
            store.put(prefix + spill.key, body)
            return
    log = CoWriterLog(store, prefix)
    head = log.join()
    if spill not in head.spills:
        raise NotFound("repairing a page, the head names it no more", page=spill.key)
    log.certify_page(spill, repair.rows)
    note = AppliedJob(job_id=f"repair-{new_ulid(now_ms)}")
    change = replace_tiled([], cleaned_through=0, bound=None, note=note)
    log.commit(change, now_ms, touches=(spill.base_offset, spill.next_offset))
