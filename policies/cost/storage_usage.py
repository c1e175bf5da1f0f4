"""The bytes of a partition or topic in the bucket, and their monthly cost. Pure, in US dollars.

Every storage figure comes from here: status, bill, gauges, pages. All paid bytes count: data as stored (after
compression), views, indexes, manifests, manifest pages, pending deletes. All but data is in STANDARD; the class of
pending deletes is no longer recorded.

The whole bucket fills a price's bands. So all shares are computed together (`storage_dollars`), and each pays the
average price of its class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from policies.cost.prices import STANDARD

if TYPE_CHECKING:
    from policies.cost.prices import Prices, PriceTable
    from remote.manifest.manifest import Manifest, PageEntry
    from remote.segment_entry import SegmentEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Objects of one storage class: number, bytes, and billed bytes per minimum size.

    `floored` has, for each minimum size of the price table, the sum of max(size, minimum) over the objects.
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
class StorageUsage:
    """Bytes in the bucket.

    | field | bytes of |
    |---|---|
    | `data` | segments and views, by storage class |
    | `small_bytes` | indexes |
    | `index_bytes` | manifests and manifest pages |
    | `waiting_bytes` | pending deletes |
    """

    data: Mapping[str, Stored] = field(default_factory=dict)
    small_bytes: int = 0
    index_bytes: int = 0
    waiting_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageDollars:
    """Dollars a month: `storage` of data and its indexes, the rest as in `StorageUsage`."""

    storage: float
    index: float
    waiting: float

    @property
    def total(self) -> float:
        return self.storage + self.index + self.waiting


def usage_of(
    manifest: Manifest, prices: PriceTable, *, manifest_bytes: int, entries: Iterable[SegmentEntry] | None = None
) -> StorageUsage:
    """Return the bytes in the bucket that a manifest of `manifest_bytes` describes.

    `entries`: all entries, if the pages were read. Without them the manifest describes its pages (`of_page`), except
    how many objects are below a class's minimum size. All stored manifests count with the size of the newest.
    """
    known = list(entries) if entries is not None else [*manifest.segments, *manifest.view_entries]
    sizes: dict[str, list[int]] = {}
    for entry in known:
        sizes.setdefault(entry.storage_class or STANDARD, []).append(entry.stored_bytes)
    data = {name: stored_of(each, prices) for name, each in sorted(sizes.items())}
    small = sum(entry.indexes_bytes for entry in known)
    parts = [StorageUsage(data=data, small_bytes=small)]
    if entries is None and manifest.pages:
        newest = (manifest.segments[-1].storage_class if manifest.segments else None) or STANDARD
        held = sum(entry.size_bytes for entry in known)
        parts += [of_page(page, newest, small / held if held else 0.0) for page in manifest.pages]
    kept = max(1, manifest.sequence - manifest.gc_boundary)
    return replace(
        total_usage(parts),
        index_bytes=manifest_bytes * kept + sum(page.page_bytes for page in manifest.pages),
        waiting_bytes=manifest.waiting_bytes,
    )


def of_page(page: PageEntry, newest_class: str, indexes_share: float) -> StorageUsage:
    """Return the objects of a page's entries.

    A manifest of an older version does not record classes and indexes. Then all objects count in `newest_class`, and
    the indexes as `indexes_share` of the segments' bytes.
    """
    rest = Stored(objects=page.segment_count, size_bytes=page.stored_bytes)
    data: dict[str, Stored] = {}
    for name, count, size in page.other_classes or ():
        data[name] = Stored(objects=count, size_bytes=size)
        rest = Stored(objects=rest.objects - count, size_bytes=rest.size_bytes - size)
    if rest.objects:
        name = newest_class if page.other_classes is None else STANDARD
        data[name] = data.get(name, Stored()) + rest
    small = page.indexes_bytes
    return StorageUsage(data=data, small_bytes=round(page.size_bytes * indexes_share) if small is None else small)


def total_usage(parts: Iterable[StorageUsage]) -> StorageUsage:
    """Return the sum of the parts."""
    data: dict[str, Stored] = {}
    sums = Counter[str]()
    for each in parts:
        for name, stored in each.data.items():
            data[name] = data.get(name, Stored()) + stored
        for name in ("small_bytes", "index_bytes", "waiting_bytes"):
            sums[name] += getattr(each, name)
    return StorageUsage(data=data, **sums)


def storage_dollars(parts: Sequence[StorageUsage], prices: PriceTable) -> list[StorageDollars]:
    """Return the dollars of each part, in order; together they are the bucket, which fills the bands."""
    from policies.cost.storage_cost import monthly_storage  # imported here: a caller without dollars does not load it

    whole = total_usage(parts)
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
            StorageDollars(storage=storage, index=part.index_bytes * per_byte, waiting=part.waiting_bytes * per_byte)
        )
    return found


def dollars_added(
    parts: Sequence[StorageUsage], others: Sequence[StorageUsage], prices: PriceTable
) -> tuple[list[StorageDollars], list[StorageDollars]]:
    """Return the dollars of `parts` alone, and the dollars that each of `others` adds to them.

    So the result for `parts` does not depend on `others`, and the sum of both is the bill of the whole bucket.
    """
    alone = storage_dollars(parts, prices)
    together_ = storage_dollars([*parts, *others], prices)
    added = together_[len(parts) :]
    more = sum(each.total for each in together_) - sum(each.total for each in alone)
    share = sum(each.total for each in added)
    factor = more / share if share else 0.0
    return alone, [
        StorageDollars(storage=each.storage * factor, index=each.index * factor, waiting=each.waiting * factor)
        for each in added
    ]


def _in_class(stored: Stored, everybody: Stored, of: Prices) -> float:
    from policies.cost.storage_cost import intelligent_storage, monthly_storage

    if of.later_bands:
        # The highest possible price: only the store knows how long each object has been unread.
        return intelligent_storage(_billed(stored, of), stored.objects, 0, of)
    total = _billed(everybody, of)
    return monthly_storage(total, of) * _billed(stored, of) / total if total else 0.0


def _billed(stored: Stored, of: Prices) -> int:
    return stored.billed(of.min_bytes) + of.overhead_bytes * stored.objects


def stored_of(sizes: Sequence[int], prices: PriceTable) -> Stored:
    """Return objects of these sizes in one class."""
    floors = sorted({each.min_bytes for each in prices.classes.values() if each.min_bytes})
    return Stored(
        objects=len(sizes),
        size_bytes=sum(sizes),
        floored={floor: sum(max(size, floor) for size in sizes) for floor in floors},
    )
