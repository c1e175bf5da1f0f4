"""The arithmetic of bucket costs over `policies.cost.prices`. Pure, in US dollars.

A GB is 2^30 bytes, as on the bill. A month has 30 days. Deletes are free, lists cost like puts. All paid bytes count;
all but data is in STANDARD. The whole bucket fills a price's bands, so all shares are computed together
(`storage_dollars`), and each pays the average price of its class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING

from policies.cost.prices import S3_STANDARD, STANDARD, Prices, PriceTable
from remote.segment_entry import PART_BYTES, part_step

if TYPE_CHECKING:
    from remote.manifest.manifest import Manifest, PageEntry
    from remote.segment_entry import SegmentEntry

GIB = 1 << 30
DAYS_PER_MONTH = 30
DAY_MS = 86_400_000
IN_STANDARD = ("small_bytes", "index_bytes", "waiting_bytes")  # fields of `StorageUsage` that are never in a class


def monthly_storage(size_bytes: float, prices: Prices = S3_STANDARD) -> float:
    rest = size_bytes / GIB
    dollars = 0.0
    for width, price in prices.storage_bands:
        in_band = rest if width is None else min(rest, width)
        dollars += in_band * price
        rest -= in_band
    return dollars


def last_price(size_bytes: float, prices: Prices = S3_STANDARD) -> float:
    """Return the dollars per GB-month of the last byte: the first saving of leaving the class."""
    rest = size_bytes / GIB
    for width, price in prices.storage_bands:
        if width is None or rest <= width:
            return price
        rest -= width
    return prices.storage_bands[-1][1]


def billed_bytes(size_bytes: float, object_count: int, prices: Prices = S3_STANDARD) -> float:
    """Return the billed bytes of objects, with minimum size and overhead; exact for objects of one size."""
    if object_count <= 0:
        return 0.0
    return max(size_bytes, float(prices.min_bytes * object_count)) + prices.overhead_bytes * object_count


def intelligent_storage(size_bytes: float, object_count: float, days_unread: float, prices: Prices) -> float:
    """Return the dollars a month of unread objects; small ones are not monitored. Exact for equal sizes."""
    if size_bytes < object_count * prices.monitored_min_bytes:
        return monthly_storage(size_bytes, prices)
    reached = [price for days, price in prices.later_bands if days_unread >= days]
    storage = size_bytes / GIB * reached[-1] if reached else monthly_storage(size_bytes, prices)
    return storage + object_count * prices.monitoring_per_1000 / 1000


def early_deletion(size_bytes: float, age_days: float, prices: Prices) -> float:
    """Return the one-time dollars for deleting data younger than the class's minimum duration."""
    return monthly_storage(size_bytes, prices) * max(0.0, prices.min_days - age_days) / DAYS_PER_MONTH


def retrieval_cost(size_bytes: float, prices: Prices = S3_STANDARD) -> float:
    """Return the dollars for bytes read, without their requests."""
    return size_bytes / GIB * prices.retrieval_per_gb


def request_cost(*, puts: float = 0, gets: float = 0, lists: float = 0, prices: Prices = S3_STANDARD) -> float:
    return (puts * prices.put_per_1000 + gets * prices.get_per_1000 + lists * prices.list_per_1000) / 1000


def break_even_reads(
    colder: Prices, warmer: Prices = S3_STANDARD, *, range_bytes: int | None = None, stored_bytes: float = 0
) -> float | None:
    """Return the monthly read share of the stored bytes below which the colder class is cheaper.

    The warmer price is that of the band with the last of `stored_bytes`, the colder price that of its first band.
    `range_bytes` adds the price of GETs of this size. None if reading the colder class costs no more.
    """
    saved = last_price(stored_bytes, warmer) - colder.storage_bands[0][1]
    dearer = colder.retrieval_per_gb - warmer.retrieval_per_gb
    if range_bytes:
        dearer += (colder.get_per_1000 - warmer.get_per_1000) / 1000 * GIB / range_bytes
    return saved / dearer if dearer > 0 else None


def equal_object_bytes(prices: Prices = S3_STANDARD) -> float:
    """Return the object size at which a PUT costs as much as a month of storage."""
    return prices.put_per_1000 / 1000 / prices.storage_bands[0][1] * GIB


def held_part_bytes(entries: Sequence[SegmentEntry]) -> int | None:
    """Return the `part_bytes` of uploads like the newest of `entries`."""
    return PART_BYTES if entries and entries[-1].segment_crc32c is not None else None


def upload_requests(size_bytes: int, part_bytes: int | None = None) -> int:
    """Return the PUT-class requests for one object: 1, or its parts and 2 of a multipart upload.

    `part_bytes` is as in `part_step`: None for a local segment that is stored unchanged, else PART_BYTES.
    """
    parts = -(-size_bytes // part_step(size_bytes, part_bytes))
    return parts + 2 if parts > 1 else 1


def segment_requests(size_bytes: int, part_bytes: int | None = None) -> int:
    """Return the PUT-class requests to copy and commit one segment: data, indexes, manifest."""
    return upload_requests(size_bytes, part_bytes) + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Objects of one storage class. `floored`: by minimum size, the sum of max(size, minimum)."""

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
    """Bytes in the bucket: segments with views by class, indexes, manifests with pages, pending deletes."""

    data: Mapping[str, Stored] = field(default_factory=dict)
    small_bytes: int = 0
    index_bytes: int = 0
    waiting_bytes: int = 0


@dataclass(frozen=True, slots=True)
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
    manifests = max(1, manifest.sequence - manifest.gc_boundary)
    return replace(
        total_usage(parts),
        index_bytes=manifest_bytes * manifests + sum(page.page_bytes for page in manifest.pages),
        waiting_bytes=manifest.waiting_bytes,
    )


def of_page(page: PageEntry, newest_class: str, indexes_share: float) -> StorageUsage:
    """Return the usage of a page's entries. The last two arguments replace facts that the page lacks."""
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
    data: dict[str, Stored] = {}
    sums = Counter[str]()
    for each in parts:
        for name, stored in each.data.items():
            data[name] = data.get(name, Stored()) + stored
        sums.update({name: getattr(each, name) for name in IN_STANDARD})
    return StorageUsage(data=data, **sums)


def storage_dollars(parts: Sequence[StorageUsage], prices: PriceTable) -> list[StorageDollars]:
    """Return the dollars of each part, in order; together they are the bucket, which fills the bands."""
    whole = total_usage(parts)
    standard = prices.of(STANDARD)
    in_standard = sum(each.size_bytes for name, each in whole.data.items() if prices.of(name) is standard)
    in_standard += sum(getattr(whole, name) for name in IN_STANDARD)
    per_byte = monthly_storage(in_standard, standard) / in_standard if in_standard else monthly_storage(1, standard)
    found = []
    for part in parts:
        storage = part.small_bytes * per_byte
        for name, stored in part.data.items():
            of = prices.of(name)
            storage += stored.size_bytes * per_byte if of is standard else _in_class(stored, whole.data[name], of)
        found.append(StorageDollars(storage, part.index_bytes * per_byte, part.waiting_bytes * per_byte))
    return found


def dollars_added(
    parts: Sequence[StorageUsage], others: Sequence[StorageUsage], prices: PriceTable
) -> tuple[list[StorageDollars], list[StorageDollars]]:
    """Return the dollars of `parts` alone, and the dollars that each of `others` adds to them."""
    alone = storage_dollars(parts, prices)
    together = storage_dollars([*parts, *others], prices)
    added = together[len(parts) :]
    more = sum(each.total for each in together) - sum(each.total for each in alone)
    share = sum(each.total for each in added)
    factor = more / share if share else 0.0
    return alone, [StorageDollars(*(dollars * factor for dollars in astuple(each))) for each in added]


def _in_class(stored: Stored, whole: Stored, of: Prices) -> float:
    billed, total = (each.billed(of.min_bytes) + of.overhead_bytes * each.objects for each in (stored, whole))
    if of.later_bands:
        # The highest possible price: only the store knows how long each object has been unread.
        return intelligent_storage(billed, stored.objects, 0, of)
    return monthly_storage(total, of) * billed / total if total else 0.0


def stored_of(sizes: Sequence[int], prices: PriceTable) -> Stored:
    floors = sorted({each.min_bytes for each in prices.classes.values() if each.min_bytes})
    return Stored(
        objects=len(sizes),
        size_bytes=sum(sizes),
        floored={floor: sum(max(size, floor) for size in sizes) for floor in floors},
    )
