"""The cost of a plan: requests, bytes and dollars per decision, and the bill before and after. Pure.

Adjacent decisions of one kind share a commit (`tiered.maintenance.apply`), and the first of them pays for it. Many
copies share several commits. The size of a view is unknown in advance, so a `BuildView` is priced for reading its
backlog alone. Uploads are priced in the class of new segments, whatever class older ones have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import ceil, nan

from local.names import TopicPartition
from policies.cost.plan_bill import (
    PageEstimate,
    bill_changes,
    bill_of,
    of_part,
    page_estimate,
    removed_usage,
    usage_of_snapshot,
)
from policies.cost.prices import STANDARD, Prices, PriceTable
from policies.cost.simulation import RANGE_BYTES
from policies.cost.storage_cost import DAY_MS, GIB, early_deletion, request_cost, upload_requests
from policies.cost.storage_usage import StorageDollars, StorageUsage, stored_of, total_usage
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
from remote.store.middleware.metered_store import LIST_PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionCost:
    """The cost of one decision.

    Requests are counted by verb (HEADs among the GETs). `bytes_in` are uploaded bytes.

    | field | meaning |
    |---|---|
    | `dollars` | once, for requests |
    | `early_dollars` | once, for data deleted before its class's minimum duration |
    | `monthly_dollars` | change of the bill (`policies.cost.plan_bill`); unlinked bytes cost until their deletion |
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCost:
    """All decisions in the plan's order, with the bill before and after.

    `now_*` is before, `then_*` after the plan, when all bytes it unlinks are deleted. Dollars are per month for all
    paid bytes. Pending deletes count in `now`, and in `then_dollars` unless the plan deletes them. Bytes are data and
    indexes that readers see. The disk is the local tier's.
    """

    lines: tuple[DecisionCost, ...]
    now: StorageDollars
    now_bytes: int
    then_bytes: int
    now_disk_bytes: int
    then_disk_bytes: int

    @property
    def now_dollars(self) -> float:
        return self.now.total

    @property
    def then_dollars(self) -> float:
        return max(self.now.total + sum(each.monthly_dollars for each in self.lines), 0.0)  # in this order for a NaN

    @property
    def dollars(self) -> float:
        """The one-time dollars, for requests and for early deletions."""
        return sum(each.dollars + each.early_dollars for each in self.lines)

    def without_dollars(self) -> PlanCost:
        """Return the same cost where prices are unknown: all dollars are NaN."""
        nothing = StorageDollars(storage=nan, index=nan, waiting=nan)
        lines = tuple(replace(each, dollars=nan, early_dollars=nan, monthly_dollars=nan) for each in self.lines)
        return replace(self, lines=lines, now=nothing)

    def sum_of(self, name: str) -> float:
        """Return the sum of one field over all lines."""
        return sum(float(getattr(each, name)) for each in self.lines)


@dataclass(frozen=True, slots=True)
class _Place:
    """The known facts about one partition's objects."""

    snapshot: PartitionSnapshot
    table: PriceTable
    new_class: str
    small: Prices
    stored_share: float
    indexes_share: float
    page_estimate: PageEstimate
    entries: Mapping[str, SegmentEntry] = field(default_factory=dict)
    pages: Mapping[str, PageEntry] = field(default_factory=dict)

    @property
    def new(self) -> Prices:
        """The prices of uploaded data."""
        return self.table.of(self.new_class)


def plan_cost(
    plan: Plan,
    snapshots: Sequence[PartitionSnapshot],
    prices: PriceTable,
    usage: Mapping[TopicPartition, StorageUsage] | None = None,
    *,
    new_class: str = STANDARD,
) -> PlanCost:
    """Return the cost of `plan`, which was made from `snapshots` (more of them only add to the bill).

    `usage` is everything in the bucket, other partitions included, because they share the price bands. Without it, it
    is taken from the snapshots. `new_class` is the storage class of uploads.
    """
    places = {each.partition: _place(each, prices, new_class) for each in snapshots}
    lines: list[DecisionCost] = []
    for name, decisions in plan.decisions.items():
        for _, run in groupby(decisions, key=type):
            lines += _priced_run(places[name], list(run))
    if usage is None:
        usage = {each.partition: usage_of_snapshot(each, prices) for each in snapshots}
    changes = bill_changes(usage.values(), [_change(*each, prices) for each in _on_places(lines, places)], prices)
    lines = [replace(line, monthly_dollars=change) for line, change in zip(lines, changes, strict=True)]
    stored = sum(map(_stored, places.values()))
    disk = sum(segment.size_bytes for each in snapshots for segment in each.segments)
    dropped = sum(each.decision.size_bytes for each in lines if isinstance(each.decision, DropLocal))
    return PlanCost(
        lines=tuple(lines),
        now=bill_of(usage, places, prices),
        now_bytes=stored,
        then_bytes=stored + sum(map(_stored_change, _on_places(lines, places))),
        now_disk_bytes=disk,
        then_disk_bytes=disk - dropped,
    )


def _change(place: _Place, decision: Decision, prices: PriceTable) -> StorageUsage:
    """Return the change of stored bytes by a decision; negative for unlinked bytes."""
    went: Iterable[PageEntry | SegmentEntry | None] = ()
    come = StorageUsage()
    match decision:
        case CopySegment() | ReplaceRemote():
            data = round(decision.size_bytes * place.stored_share)
            small = _uploaded(place, decision.size_bytes) - data
            come = StorageUsage(data={place.new_class: stored_of([data], prices)}, small_bytes=small)
            went = _counted(place, decision.ulids if isinstance(decision, ReplaceRemote) else ())
        case DisableTier():
            went = place.snapshot.committed_parts
        case ExpireRemote():
            went = _counted(place, [decision.ulid])
        case ExpirePage():
            went = [place.pages.get(decision.key)]
        case DeletePending() | DeletePage():
            return StorageUsage(waiting_bytes=-decision.size_bytes)
    return total_usage(
        [come, removed_usage([of_part(each, place.page_estimate, prices) for each in went if each is not None], prices)]
    )


def _counted(place: _Place, ulids: Iterable[str]) -> Iterator[SegmentEntry]:
    """Yield the entries as the bill counts them.

    An entry of a page without recorded classes counts in the class assumed for such pages.
    """
    pages = [each for each in place.snapshot.known_pages if each.other_classes is None]
    for entry in (place.entries[ulid] for ulid in ulids if ulid in place.entries):
        in_page = any(page.base_offset <= entry.base_offset < page.next_offset for page in pages)
        yield replace(entry, storage_class=place.page_estimate.storage_class) if in_page else entry


def _on_places(lines: Sequence[DecisionCost], places: Mapping[TopicPartition, _Place]) -> list[tuple[_Place, Decision]]:
    return [(places[each.partition], each.decision) for each in lines]


def _place(snapshot: PartitionSnapshot, prices: PriceTable, new_class: str) -> _Place:
    known = snapshot.committed
    size = sum(entry.size_bytes for entry in known)
    parts = (*snapshot.pages, *snapshot.known_pages, *known, *snapshot.tier_disabled)
    return _Place(
        snapshot=snapshot,
        table=prices,
        new_class=new_class,
        small=prices.of(STANDARD),
        stored_share=sum(entry.stored_bytes for entry in known) / size if size else 1.0,
        indexes_share=sum(entry.indexes_bytes for entry in known) / size if size else 0.005,
        page_estimate=page_estimate(snapshot),
        entries={entry.ulid: entry for entry in parts if isinstance(entry, SegmentEntry)},
        pages={page.key: page for page in parts if isinstance(page, PageEntry)},
    )


def _stored(place: _Place) -> int:
    """Return the data and index bytes of all entries that readers see, those in pages included."""
    entries = sum(entry.stored_bytes + entry.indexes_bytes for entry in place.snapshot.committed)
    return entries + sum(_page_bytes(place, page) for page in place.snapshot.pages)


def _stored_change(of: tuple[_Place, Decision]) -> int:
    place, decision = of
    match decision:
        case CopySegment():
            return _uploaded(place, decision.size_bytes)
        case ReplaceRemote():
            gone = [place.entries[ulid] for ulid in decision.ulids if ulid in place.entries]
            return _uploaded(place, decision.size_bytes) - sum(
                entry.stored_bytes + entry.indexes_bytes for entry in gone
            )
        case DisableTier():
            return -_stored(place)
        case ExpireRemote() | ExpirePage() if place.snapshot.tier_disabled:
            return 0  # the tier was disabled: it counts for nothing already
        case ExpireRemote():
            entry = place.entries.get(decision.ulid)
            return -(entry.stored_bytes + entry.indexes_bytes) if entry is not None else -decision.size_bytes
        case ExpirePage():
            pages = [*place.snapshot.pages, *place.snapshot.known_pages]
            return -sum(_page_bytes(place, each) for each in pages if each.key == decision.key)
        case _:
            return 0


def _page_bytes(place: _Place, page: PageEntry) -> int:
    """Return the data and index bytes of a page's entries.

    Where the manifest does not record the index bytes, the share of known entries is used.
    """
    indexes = page.indexes_bytes
    return page.stored_bytes + (round(page.size_bytes * place.indexes_share) if indexes is None else indexes)


def _uploaded(place: _Place, size_bytes: int) -> int:
    return round(size_bytes * place.stored_share) + round(size_bytes * place.indexes_share)


def _priced_run(place: _Place, run: list[Decision]) -> list[DecisionCost]:
    """Return the costs of adjacent decisions of one kind; the first pays for shared requests."""
    name = place.snapshot.partition
    lines = [_own(place, DecisionCost(partition=name, decision=each)) for each in run]
    shared = _shared(place, run)
    lines[0] = replace(
        lines[0],
        **{verb: getattr(lines[0], verb) + count for verb, count in shared.items()},
    )
    return [_with_dollars(place, each) for each in lines]


def _own(place: _Place, line: DecisionCost) -> DecisionCost:
    """Return the requests of one decision alone.

    These are its uploads, a HEAD of each uploaded object, and its own commit if it has one.
    """
    decision = line.decision
    match decision:
        case CopySegment() | ReplaceRemote():
            stored = max(1, round(decision.size_bytes * place.stored_share))
            commits = 1 if isinstance(decision, ReplaceRemote) else 0
            uploaded = _uploaded(place, decision.size_bytes)
            return replace(line, puts=upload_requests(stored) + 1 + commits, gets=2 + commits, bytes_in=uploaded)
        case BuildView():
            return replace(line, gets=ceil(decision.size_bytes / RANGE_BYTES))
        case DisableTier():
            return replace(line, puts=1, gets=1)
        case AdvanceLogStart():
            return replace(line, puts=1, gets=1) if place.snapshot.is_tiered else line
        case DeletePage():
            pages = [each for each in place.snapshot.pending_page_deletes if each.page.key == decision.key]
            objects = sum(2 * each.page.segment_count for each in pages)
            return replace(line, gets=1, deletes=ceil(objects / LIST_PAGE) + 1)
        case CollectManifests():
            return replace(line, puts=1, gets=3, lists=2, deletes=1)
        case _:
            return line


def _shared(place: _Place, run: Sequence[Decision]) -> dict[str, int]:
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


def _with_dollars(place: _Place, line: DecisionCost) -> DecisionCost:
    decision = line.decision
    data_puts = 0
    if isinstance(decision, CopySegment | ReplaceRemote):
        data_puts = upload_requests(max(1, round(decision.size_bytes * place.stored_share)))
    small = request_cost(puts=line.puts - data_puts, gets=line.gets, lists=line.lists, prices=place.small)
    data = request_cost(puts=data_puts, prices=place.new)
    if data_puts:
        data += decision.size_bytes * place.stored_share / GIB * place.new.write_per_gb
    return replace(
        line,
        dollars=small + data,
        early_dollars=_early(place, decision),
    )


def _early(place: _Place, decision: Decision) -> float:
    """Return the early deletion dollars of unlinked entries, each by its own class.

    The grace period counts as lived. The age of unread entries of a page is unknown, so they cost nothing here.
    """
    snapshot, dollars = place.snapshot, 0.0
    for entry in _leaving(place, decision):
        lived_ms = snapshot.now_ms + snapshot.rules.delete_grace_ms - entry.committed_ms
        dollars += early_deletion(entry.stored_bytes, lived_ms / DAY_MS, place.table.of(entry.storage_class))
    return dollars


def _leaving(place: _Place, decision: Decision) -> Iterable[SegmentEntry]:
    """Return the known entries that a decision removes from the manifest."""
    match decision:
        case ExpireRemote():
            ulids: tuple[str, ...] = (decision.ulid,)
        case ReplaceRemote():
            ulids = decision.ulids
        case ExpirePage() if (page := place.pages.get(decision.key)) is not None:
            return [
                entry for entry in place.entries.values() if page.base_offset <= entry.base_offset < page.next_offset
            ]
        case _:
            return ()
    return [place.entries[ulid] for ulid in ulids if ulid in place.entries]
