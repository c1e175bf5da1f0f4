"""The cost of a plan: requests, bytes and dollars per decision, and the bill before and after. Pure.

The first of adjacent decisions that share a commit pays for it. A `BuildView` is priced for reading its backlog alone.
The monthly change is computed by `policies.cost.storage_cost`, one decision after the other on the whole bucket, so the
changes add up to the difference between the bills. Bytes that a decision unlinks count as deleted at once, bytes
unlinked earlier as waiting. Manifests written or deleted by the plan are left out: a few KiB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import groupby
from math import ceil, nan

from local.names import TopicPartition
from policies.cost.prices import STANDARD, PriceTable
from policies.cost.simulation import RANGE_BYTES
from policies.cost.storage_cost import (
    DAY_MS,
    GIB,
    IN_STANDARD,
    StorageDollars,
    StorageUsage,
    Stored,
    early_deletion,
    held_part_bytes,
    of_page,
    request_cost,
    storage_dollars,
    stored_of,
    total_usage,
    upload_requests,
)
from policies.decisions import (
    AdvanceCleanedOffset,
    AdvanceLogStart,
    BuildView,
    CollectManifests,
    CopySegment,
    Decision,
    DeletePage,
    DeletePending,
    DisableTier,
    DropLocal,
    ExpirePage,
    ExpireRemote,
    Plan,
    ReplaceRemote,
)
from policies.snapshot import PartitionSnapshot
from policies.tiering import commits_of
from remote.manifest.manifest import PageEntry
from remote.segment_entry import SegmentEntry
from remote.store import LIST_PAGE

_INDEXES_SHARE = 0.005  # of a segment's bytes, where no entry is known


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionCost:
    """Requests (HEADs count as GETs), uploaded bytes, dollars once; `monthly_dollars`: change of the bill."""

    partition: TopicPartition
    decision: Decision
    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0
    bytes_in: int = 0
    dollars: float = 0.0
    early_dollars: float = 0.0
    monthly_dollars: float = 0.0

    @property
    def requests(self) -> int:
        """The requests with a price."""
        return self.puts + self.gets + self.lists


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCost:
    """All decisions in the plan's order, with the bill before, and after: when all bytes it unlinks are deleted."""

    lines: tuple[DecisionCost, ...]
    now: StorageDollars  # a month for all paid bytes, pending deletes too; `then_dollars` without those deleted
    now_bytes: int  # data and indexes that readers see, as `then_bytes`
    then_bytes: int
    now_disk_bytes: int
    then_disk_bytes: int

    @property
    def now_dollars(self) -> float:
        return self.now.total

    @property
    def then_dollars(self) -> float:
        return max(self.now.total + sum(each.monthly_dollars for each in self.lines), 0.0)  # max keeps a NaN if first

    @property
    def dollars(self) -> float:
        return sum(each.dollars + each.early_dollars for each in self.lines)

    def without_dollars(self) -> PlanCost:
        lines = tuple(replace(each, dollars=nan, early_dollars=nan, monthly_dollars=nan) for each in self.lines)
        return replace(self, lines=lines, now=StorageDollars(nan, nan, nan))

    def sum_of(self, name: str) -> float:
        return sum(float(getattr(each, name)) for each in self.lines)


class _Place:
    def __init__(self, snapshot: PartitionSnapshot, prices: PriceTable, new_class: str) -> None:
        self.snapshot, self.prices, self.new_class = snapshot, prices, new_class
        known = snapshot.committed
        size = sum(entry.size_bytes for entry in known)
        self.part_bytes = held_part_bytes(known)
        self.stored_share = sum(entry.stored_bytes for entry in known) / size if size else 1.0
        self.indexes_share = sum(entry.indexes_bytes for entry in known) / size if size else _INDEXES_SHARE
        parts = (*snapshot.pages, *snapshot.known_pages, *known, *snapshot.tier_disabled)
        self.entries = {each.ulid: each for each in parts if isinstance(each, SegmentEntry)}
        self.pages = {each.key: each for each in parts if isinstance(each, PageEntry)}
        # Assumed for pages that do not describe their entries. Entries of a disabled tier have the lower offsets.
        held = [*(each for each in snapshot.tier_disabled if isinstance(each, SegmentEntry)), *snapshot.remote]
        size = sum(entry.size_bytes for entry in held)
        self._page_class = (held[-1].storage_class if held else None) or STANDARD
        self._page_indexes_share = sum(entry.indexes_bytes for entry in held) / size if size else 0.0

    def usage(self, parts: Iterable[PageEntry | SegmentEntry]) -> StorageUsage:
        found = []
        for part in parts:
            if isinstance(part, SegmentEntry):
                data = {part.storage_class or STANDARD: stored_of([part.stored_bytes], self.prices)}
                found.append(StorageUsage(data=data, small_bytes=part.indexes_bytes))
            else:
                found.append(of_page(part, self._page_class, self._page_indexes_share))
        return total_usage(found)

    def whole_usage(self) -> StorageUsage:
        stored = self.usage([*self.snapshot.committed_parts, *self.snapshot.tier_disabled])
        return replace(stored, waiting_bytes=self.snapshot.unlinked_bytes)

    def uploaded(self, size_bytes: int) -> StorageUsage:
        data = stored_of([round(size_bytes * self.stored_share)], self.prices)
        return StorageUsage(data={self.new_class: data}, small_bytes=round(size_bytes * self.indexes_share))

    def unlinked(self, decision: Decision) -> Sequence[PageEntry | SegmentEntry]:
        match decision:
            case DisableTier():
                return self.snapshot.committed_parts
            case ExpirePage() if decision.key in self.pages:
                return [self.pages[decision.key]]
            case _:
                return self.unlinked_entries(decision)

    def unlinked_entries(self, decision: Decision) -> Sequence[SegmentEntry]:
        match decision:
            case ExpireRemote() if decision.ulid in self.entries:
                return [self.entries[decision.ulid]]
            case ReplaceRemote():
                return [self.entries[ulid] for ulid in decision.ulids if ulid in self.entries]
            case ExpirePage() if (page := self.pages.get(decision.key)) is not None:
                known = self.entries.values()
                return [entry for entry in known if page.base_offset <= entry.base_offset < page.next_offset]
            case _:
                return ()

    def as_billed(self, parts: Iterable[PageEntry | SegmentEntry]) -> Iterator[PageEntry | SegmentEntry]:
        """Yield the parts as billed: entries of a page without recorded classes in its assumed class."""
        pages = [each for each in self.snapshot.known_pages if each.other_classes is None]
        for part in parts:
            if isinstance(part, SegmentEntry) and any(
                page.base_offset <= part.base_offset < page.next_offset for page in pages
            ):
                yield replace(part, storage_class=self._page_class)
            else:
                yield part


def plan_cost(
    plan: Plan,
    snapshots: Sequence[PartitionSnapshot],
    prices: PriceTable,
    usage: Mapping[TopicPartition, StorageUsage] | None = None,
    *,
    new_class: str = STANDARD,
) -> PlanCost:
    """Return the cost of `plan`. `usage`: the whole bucket (None: of the snapshots). `new_class`: of uploads."""
    places = {each.partition: _Place(each, prices, new_class) for each in snapshots}
    lines: list[DecisionCost] = []
    for name, decisions in plan.decisions.items():
        for _, run in groupby(decisions, key=type):
            lines += _priced_run(places[name], list(run))
    if usage is None:
        usage = {name: place.whole_usage() for name, place in places.items()}
    changes = [_change(places[line.partition], line.decision) for line in lines]
    dollars = bill_changes(usage.values(), changes, prices)
    shares = zip(usage, storage_dollars(list(usage.values()), prices), strict=True)
    own = [astuple(share) for name, share in shares if name in places]
    now_bytes = sum(_bytes(place.usage(place.snapshot.committed_parts)) for place in places.values())
    # The entries of a disabled tier count for nothing already: readers do not see them.
    visible = [
        change
        for line, change in zip(lines, changes, strict=True)
        if not (isinstance(line.decision, ExpireRemote | ExpirePage) and places[line.partition].snapshot.tier_disabled)
    ]
    disk = sum(segment.size_bytes for each in snapshots for segment in each.segments)
    dropped = sum(each.decision.size_bytes for each in lines if isinstance(each.decision, DropLocal))
    return PlanCost(
        lines=tuple(replace(line, monthly_dollars=each) for line, each in zip(lines, dollars, strict=True)),
        now=StorageDollars(*map(sum, zip((0.0, 0.0, 0.0), *own, strict=True))),
        now_bytes=now_bytes,
        then_bytes=now_bytes + sum(map(_bytes, visible)),
        now_disk_bytes=disk,
        then_disk_bytes=disk - dropped,
    )


def bill_changes(usage: Iterable[StorageUsage], changes: Iterable[StorageUsage], prices: PriceTable) -> Iterator[float]:
    """Yield the monthly dollars that each of `changes` adds in turn to `usage`, which never gets negative."""
    stored = total_usage(usage)
    (before,) = storage_dollars([stored], prices)
    for change in changes:
        if not (change.data or any(getattr(change, name) for name in IN_STANDARD)):
            yield 0.0
            continue
        both = total_usage([stored, change])
        data = {name: each for name, each in both.data.items() if each.objects > 0 and each.size_bytes > 0}
        stored = StorageUsage(data=data, **{name: max(0, getattr(both, name)) for name in IN_STANDARD})
        (after,) = storage_dollars([stored], prices)
        yield after.total - before.total
        before = after


def removed_usage(usage: StorageUsage, prices: PriceTable) -> StorageUsage:
    floors = {each.min_bytes for each in prices.classes.values() if each.min_bytes}

    def negative(stored: Stored) -> Stored:
        floored = {floor: -stored.billed(floor) for floor in floors}
        return Stored(objects=-stored.objects, size_bytes=-stored.size_bytes, floored=floored)

    data = {name: negative(each) for name, each in usage.data.items()}
    return StorageUsage(data=data, **{name: -getattr(usage, name) for name in IN_STANDARD})


def _change(place: _Place, decision: Decision) -> StorageUsage:
    if isinstance(decision, DeletePending | DeletePage):
        return StorageUsage(waiting_bytes=-decision.size_bytes)
    removed = removed_usage(place.usage(place.as_billed(place.unlinked(decision))), place.prices)
    is_upload = isinstance(decision, CopySegment | ReplaceRemote)
    return total_usage([place.uploaded(decision.size_bytes), removed]) if is_upload else removed


def _bytes(usage: StorageUsage) -> int:
    return usage.small_bytes + sum(each.size_bytes for each in usage.data.values())


def _priced_run(place: _Place, run: list[Decision]) -> list[DecisionCost]:
    lines: list[DecisionCost] = []
    for decision in run:
        requests = Counter(_own_requests(place, decision))
        if not lines:
            requests.update(_shared_requests(run))
        lines.append(_line(place, decision, requests))
    return lines


def _own_requests(place: _Place, decision: Decision) -> dict[str, int]:
    match decision:
        case CopySegment():
            return {"puts": _data_puts(place, decision) + 1, "gets": 2}
        case ReplaceRemote():
            return {"puts": _data_puts(place, decision) + 2, "gets": 3}
        case BuildView():
            return {"gets": ceil(decision.size_bytes / RANGE_BYTES)}
        case DisableTier():
            return {"puts": 1, "gets": 1}
        case AdvanceLogStart() if place.snapshot.is_tiered:
            return {"puts": 1, "gets": 1}
        case DeletePage():
            pages = [each.page for each in place.snapshot.pending_page_deletes if each.page.key == decision.key]
            objects = sum(2 * page.segment_count for page in pages)
            return {"gets": 1, "deletes": ceil(objects / LIST_PAGE) + 1}
        case CollectManifests():
            return {"puts": 1, "gets": 3, "lists": 2, "deletes": 1}
        case _:
            return {}


def _shared_requests(run: Sequence[Decision]) -> dict[str, int]:
    match run[0]:
        case CopySegment():
            commits = 1 if run[0].is_indivisible else commits_of(each.size_bytes for each in run)
            return {"puts": commits, "gets": commits}
        case ExpireRemote() | ExpirePage() | AdvanceCleanedOffset():
            return {"puts": 1, "gets": 1}
        case DeletePage():
            return {"puts": 1, "gets": 3, "lists": 1}
        case DeletePending():
            return {"puts": 1, "gets": 3, "lists": 1, "deletes": ceil(len(run) / LIST_PAGE)}
        case _:
            return {}


def _data_puts(place: _Place, decision: Decision) -> int:
    if not isinstance(decision, CopySegment | ReplaceRemote):
        return 0
    return upload_requests(max(1, round(decision.size_bytes * place.stored_share)), place.part_bytes)


def _line(place: _Place, decision: Decision, requests: Mapping[str, int]) -> DecisionCost:
    line = DecisionCost(
        partition=place.snapshot.partition, decision=decision, early_dollars=_early_dollars(place, decision), **requests
    )
    data_puts, new = _data_puts(place, decision), place.prices.of(place.new_class)
    small = place.prices.of(STANDARD)
    dollars = request_cost(puts=line.puts - data_puts, gets=line.gets, lists=line.lists, prices=small)
    if not data_puts:
        return replace(line, dollars=dollars)
    dollars += request_cost(puts=data_puts, prices=new)
    dollars += decision.size_bytes * place.stored_share / GIB * new.write_per_gb
    return replace(line, dollars=dollars, bytes_in=_bytes(place.uploaded(decision.size_bytes)))


def _early_dollars(place: _Place, decision: Decision) -> float:
    """Dollars for early deletion, after the grace period. Entries of an unread page cost nothing."""
    snapshot, dollars = place.snapshot, 0.0
    for entry in place.unlinked_entries(decision):
        lived_ms = snapshot.now_ms + snapshot.rules.delete_grace_ms - entry.committed_ms
        dollars += early_deletion(entry.stored_bytes, lived_ms / DAY_MS, place.prices.of(entry.storage_class))
    return dollars
