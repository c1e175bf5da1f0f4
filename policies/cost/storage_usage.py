"""What lies in the bucket for a partition or a topic, and what keeping it costs a month. Pure, in US dollars.

Every figure of storage comes from here: the status, the bill, the gauges, the pages. Counted is what is paid for: data
as stored, so after compression, views too; indexes; heads, and pages of rows; objects that left the index and wait for
their deletion. All but data lies in STANDARD, but of what waits the class is not told any more.

A price's bands are filled by the whole bucket. So everybody's share is asked about together (`keeping_dollars`), and
each pays the average price of its class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from policies.cost.prices import STANDARD

if TYPE_CHECKING:
    from policies.cost.prices import Prices, PriceTable
    from remote.manifest.manifest import Head, SpillRow
    from remote.segment_entry import RemoteSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Objects of one storage class: how many, their bytes, and their bytes where one is billed as at least so much.

    `floored` has for each minimum size of the price table the sum of max(size, minimum) over the objects.
    """

    objects: int = 0
    size_bytes: int = 0
    floored: Mapping[int, int] = field(default_factory=dict)

    def billed(self, min_bytes: int) -> int:
        return self.floored.get(min_bytes, max(self.size_bytes, min_bytes * self.objects))

    def __add__(self, other: Stored) -> Stored:
        floors = sorted({*self.floored, *other.floored})
        return Stored(
            objects=self.objects + other.objects,
            size_bytes=self.size_bytes + other.size_bytes,
            floored={floor: self.billed(floor) + other.billed(floor) for floor in floors},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lying:
    """Bytes in the bucket: `data` by storage class, `small_bytes` indexes, `index_bytes` heads and pages of rows,
    `waiting_bytes` what left the index."""

    data: Mapping[str, Stored] = field(default_factory=dict)
    small_bytes: int = 0
    index_bytes: int = 0
    waiting_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepingDollars:
    """Dollars a month: `storage` of data and its indexes, the rest as in `Lying`."""

    storage: float
    index: float
    waiting: float

    @property
    def total(self) -> float:
        return self.storage + self.index + self.waiting


def lying_of(head: Head, prices: PriceTable, *, head_bytes: int, rows: Iterable[RemoteSegment] | None = None) -> Lying:
    """What a head of `head_bytes` says lies there. `rows`: all of them, where the pages' were read.

    Without, the head says it of its pages (`of_page`), but for how many of their objects are smaller than a class bills
    at the least. Of the heads that are kept each is taken to be as large as the newest.
    """
    known = list(rows) if rows is not None else [*head.segments, *head.view_rows]
    sizes: dict[str, list[int]] = {}
    for row in known:
        sizes.setdefault(row.storage_class or STANDARD, []).append(row.stored_bytes)
    data = {name: stored_of(each, prices) for name, each in sorted(sizes.items())}
    small = sum(row.indexes_bytes for row in known)
    parts = [Lying(data=data, small_bytes=small)]
    if rows is None and head.spills:
        newest = (head.segments[-1].storage_class if head.segments else None) or STANDARD
        held = sum(row.size_bytes for row in known)
        parts += [of_page(spill, newest, small / held if held else 0.0) for spill in head.spills]
    kept = max(1, head.sequence - head.void_upto)
    return replace(
        together(parts),
        index_bytes=head_bytes * kept + sum(spill.page_bytes for spill in head.spills),
        waiting_bytes=head.waiting_bytes,
    )


def of_page(page: SpillRow, newest_class: str, indexes_share: float) -> Lying:
    """The objects of a page's rows. Where the head was written before it noted classes and indexes, all of them are
    taken to be of `newest_class`, and the indexes to be that share of the segments' bytes."""
    rest = Stored(objects=page.segment_count, size_bytes=page.stored_bytes)
    data: dict[str, Stored] = {}
    for name, count, size in page.other_classes or ():
        data[name] = Stored(objects=count, size_bytes=size)
        rest = Stored(objects=rest.objects - count, size_bytes=rest.size_bytes - size)
    if rest.objects:
        name = newest_class if page.other_classes is None else STANDARD
        data[name] = data.get(name, Stored()) + rest
    small = page.indexes_bytes
    return Lying(data=data, small_bytes=round(page.size_bytes * indexes_share) if small is None else small)


def together(parts: Iterable[Lying]) -> Lying:
    """All of it as one."""
    data: dict[str, Stored] = {}
    sums = Counter[str]()
    for each in parts:
        for name, stored in each.data.items():
            data[name] = data.get(name, Stored()) + stored
        for name in ("small_bytes", "index_bytes", "waiting_bytes"):
            sums[name] += getattr(each, name)
    return Lying(data=data, **sums)


def keeping_dollars(parts: Sequence[Lying], prices: PriceTable) -> list[KeepingDollars]:
    """What each of `parts` pays, in their order; together they are the whole bucket, which fills the bands."""
    from policies.cost.storage_cost import monthly_storage  # whoever has no dollars to show does without it

    whole = together(parts)
    standard = prices.of(STANDARD)
    in_standard = whole.small_bytes + whole.index_bytes + whole.waiting_bytes
    in_standard += sum(each.size_bytes for name, each in whole.data.items() if prices.of(name) is standard)
    per_byte = monthly_storage(in_standard, standard) / in_standard if in_standard else monthly_storage(1, standard)
    found = []
    for part in parts:
        storage = part.small_bytes * per_byte
        for name, stored in part.data.items():
            of = prices.of(name)
            is_standard = of is standard
            storage += stored.size_bytes * per_byte if is_standard else _in_class(stored, whole.data[name], of)
        found.append(
            KeepingDollars(storage=storage, index=part.index_bytes * per_byte, waiting=part.waiting_bytes * per_byte)
        )
    return found


def beside(
    parts: Sequence[Lying], others: Sequence[Lying], prices: PriceTable
) -> tuple[list[KeepingDollars], list[KeepingDollars]]:
    """What each of `parts` pays as if they were alone, and each of `others` what the bucket costs more for them.

    So whoever knows nothing of the others tells the same of `parts`, and all of it is the whole bucket's bill.
    """
    alone = keeping_dollars(parts, prices)
    together_ = keeping_dollars([*parts, *others], prices)
    added = together_[len(parts) :]
    more = sum(each.total for each in together_) - sum(each.total for each in alone)
    share = sum(each.total for each in added)
    factor = more / share if share else 0.0
    return alone, [
        KeepingDollars(storage=each.storage * factor, index=each.index * factor, waiting=each.waiting * factor)
        for each in added
    ]


def _in_class(stored: Stored, everybody: Stored, of: Prices) -> float:
    from policies.cost.storage_cost import intelligent_storage, monthly_storage

    if of.later_bands:
        # As dear as it can be: how long each object has been unread is known to the store alone.
        return intelligent_storage(_billed(stored, of), stored.objects, 0, of)
    total = _billed(everybody, of)
    return monthly_storage(total, of) * _billed(stored, of) / total if total else 0.0


def _billed(stored: Stored, of: Prices) -> int:
    return stored.billed(of.min_bytes) + of.overhead_bytes * stored.objects


def stored_of(sizes: Sequence[int], prices: PriceTable) -> Stored:
    """Objects of these sizes in one class."""
    floors = sorted({each.min_bytes for each in prices.classes.values() if each.min_bytes})
    return Stored(
        objects=len(sizes),
        size_bytes=sum(sizes),
        floored={floor: sum(max(size, floor) for size in sizes) for floor in floors},
    )
