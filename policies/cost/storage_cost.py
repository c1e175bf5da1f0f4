"""What the bucket costs: the arithmetic over `policies.cost.prices`. Pure, in US dollars.

A GB is 2^30 bytes, as the bill counts; a month has 30 days. Deletes are free, lists cost like puts.
"""

from __future__ import annotations

from policies.cost.prices import BUILT_IN, S3_STANDARD, Prices, PriceTable
from remote.segment_entry import PART_BYTES, part_step

__all__ = [
    "BUILT_IN",
    "DAYS_PER_MONTH",
    "GIB",
    "S3_STANDARD",
    "PriceTable",
    "Prices",
    "billed_bytes",
    "break_even_reads",
    "early_deletion",
    "equal_object_bytes",
    "intelligent_storage",
    "last_price",
    "monthly_storage",
    "request_cost",
    "retrieval_cost",
    "segment_requests",
    "upload_requests",
]

GIB = 1 << 30
DAYS_PER_MONTH = 30
DAY_MS = 86_400_000


def monthly_storage(size_bytes: float, prices: Prices = S3_STANDARD) -> float:
    """Dollars per month for keeping `size_bytes`, band by band."""
    left = size_bytes / GIB
    dollars = 0.0
    for width, price in prices.storage_bands:
        in_band = left if width is None else min(left, width)
        dollars += in_band * price
        left -= in_band
    return dollars


def last_price(size_bytes: float, prices: Prices = S3_STANDARD) -> float:
    """Dollars per GB-month of the last of so many bytes: what leaving the class saves first."""
    left = size_bytes / GIB
    for width, price in prices.storage_bands:
        if width is None or left <= width:
            return price
        left -= width
    return prices.storage_bands[-1][1]


def billed_bytes(size_bytes: float, object_count: int, prices: Prices = S3_STANDARD) -> float:
    """What so many objects of that size together are billed for: the class's smallest object, and its overhead.

    Exact where all have one size; where some lie below the smallest and some above, ask for each.
    """
    if object_count <= 0:
        return 0.0
    return max(size_bytes, float(prices.min_bytes * object_count)) + prices.overhead_bytes * object_count


def intelligent_storage(size_bytes: float, object_count: float, days_unread: float, prices: Prices) -> float:
    """Dollars per month in a class that moves objects by itself, for objects that were last read so long ago.

    Those that are too small to be looked after are neither charged for it nor moved, however long they are unread: by
    their average, exact where all have one size.
    """
    if size_bytes < object_count * prices.monitored_min_bytes:
        return monthly_storage(size_bytes, prices)
    reached = [price for days, price in prices.later_bands if days_unread >= days]
    storage = size_bytes / GIB * reached[-1] if reached else monthly_storage(size_bytes, prices)
    return storage + object_count * prices.monitoring_per_1000 / 1000


def early_deletion(size_bytes: float, age_days: float, prices: Prices) -> float:
    """Dollars once for deleting what is younger than the class's minimum: the rest of that time is billed all the same.

    Objects are taken as large enough to be billed for what they are.
    """
    return monthly_storage(size_bytes, prices) * max(0.0, prices.min_days - age_days) / DAYS_PER_MONTH


def retrieval_cost(size_bytes: float, prices: Prices = S3_STANDARD) -> float:
    """Dollars for bytes read, beside their requests."""
    return size_bytes / GIB * prices.retrieval_per_gb


def request_cost(*, puts: float = 0, gets: float = 0, lists: float = 0, prices: Prices = S3_STANDARD) -> float:
    """Dollars for that many requests; deletes cost nothing."""
    return (puts * prices.put_per_1000 + gets * prices.get_per_1000 + lists * prices.list_per_1000) / 1000


def break_even_reads(
    colder: Prices, warmer: Prices = S3_STANDARD, *, range_bytes: int | None = None, stored_bytes: float = 0
) -> float | None:
    """The share of the stored bytes read in a month (1.05 = all and a little more) at which both classes cost the same.

    Below it the colder one is cheaper. By the storage band that the last of `stored_bytes` in the warmer class lies in
    and the first of the colder, with GETs of `range_bytes` where given. None where reading the colder one costs no
    more: then storage alone decides.
    """
    saved = last_price(stored_bytes, warmer) - colder.storage_bands[0][1]
    dearer = colder.retrieval_per_gb - warmer.retrieval_per_gb
    if range_bytes:
        dearer += (colder.get_per_1000 - warmer.get_per_1000) / 1000 * GIB / range_bytes
    return saved / dearer if dearer > 0 else None


def equal_object_bytes(prices: Prices = S3_STANDARD) -> float:
    """The size of an object whose PUT costs what it costs to keep it for a month; below it requests dominate."""
    return prices.put_per_1000 / 1000 / prices.storage_bands[0][1] * GIB


def upload_requests(size_bytes: int, part_bytes: int = PART_BYTES) -> int:
    """PUT-class requests for one object: one, or its parts plus the start and the completion of a multipart upload.

    As the uploader does it: `part_bytes` are its own unless others are asked about, and parts grow with huge objects.
    """
    parts = -(-size_bytes // part_step(size_bytes, part_bytes))
    return parts + 2 if parts > 1 else 1


def segment_requests(size_bytes: int, part_bytes: int = PART_BYTES) -> int:
    """PUT-class requests to copy and commit one segment: its data, its indexes, its head."""
    return upload_requests(size_bytes, part_bytes) + 2
