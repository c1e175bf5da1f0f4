"""The arithmetic of bucket costs over `policies.cost.prices`. Pure, in US dollars.

A GB is 2^30 bytes, as on the bill. A month has 30 days. Deletes are free, lists cost like puts.
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
    """Return the dollars per month for storing `size_bytes`, band by band."""
    left = size_bytes / GIB
    dollars = 0.0
    for width, price in prices.storage_bands:
        in_band = left if width is None else min(left, width)
        dollars += in_band * price
        left -= in_band
    return dollars


def last_price(size_bytes: float, prices: Prices = S3_STANDARD) -> float:
    """Return the dollars per GB-month of the last byte: the first saving of leaving the class."""
    left = size_bytes / GIB
    for width, price in prices.storage_bands:
        if width is None or left <= width:
            return price
        left -= width
    return prices.storage_bands[-1][1]


def billed_bytes(size_bytes: float, object_count: int, prices: Prices = S3_STANDARD) -> float:
    """Return the billed bytes of objects of this total size, with minimum size and overhead.

    Exact if all objects have one size. If some are below the minimum and some above, compute each.
    """
    if object_count <= 0:
        return 0.0
    return max(size_bytes, float(prices.min_bytes * object_count)) + prices.overhead_bytes * object_count


def intelligent_storage(size_bytes: float, object_count: float, days_unread: float, prices: Prices) -> float:
    """Return the dollars per month in a class that moves objects by itself.

    The objects were last read `days_unread` days ago. Objects too small for monitoring are neither charged for it nor
    moved, however long they are unread. The average size decides: exact if all objects have one size.
    """
    if size_bytes < object_count * prices.monitored_min_bytes:
        return monthly_storage(size_bytes, prices)
    reached = [price for days, price in prices.later_bands if days_unread >= days]
    storage = size_bytes / GIB * reached[-1] if reached else monthly_storage(size_bytes, prices)
    return storage + object_count * prices.monitoring_per_1000 / 1000


def early_deletion(size_bytes: float, age_days: float, prices: Prices) -> float:
    """Return the one-time dollars for deleting data younger than the class's minimum.

    The rest of the minimum is billed anyway. The objects count as larger than the minimum size.
    """
    return monthly_storage(size_bytes, prices) * max(0.0, prices.min_days - age_days) / DAYS_PER_MONTH


def retrieval_cost(size_bytes: float, prices: Prices = S3_STANDARD) -> float:
    """Return the dollars for bytes read, without their requests."""
    return size_bytes / GIB * prices.retrieval_per_gb


def request_cost(*, puts: float = 0, gets: float = 0, lists: float = 0, prices: Prices = S3_STANDARD) -> float:
    """Return the dollars for this many requests; deletes cost nothing."""
    return (puts * prices.put_per_1000 + gets * prices.get_per_1000 + lists * prices.list_per_1000) / 1000


def break_even_reads(
    colder: Prices, warmer: Prices = S3_STANDARD, *, range_bytes: int | None = None, stored_bytes: float = 0
) -> float | None:
    """Return the monthly read share of the stored bytes at which both classes cost the same.

    1.05 means all bytes and a little more. Below the share the colder class is cheaper. The warmer price is that of the
    band with the last of `stored_bytes`, the colder price that of its first band. `range_bytes` adds the price of GETs
    of this size. None if reading the colder class costs no more: then storage alone decides.
    """
    saved = last_price(stored_bytes, warmer) - colder.storage_bands[0][1]
    dearer = colder.retrieval_per_gb - warmer.retrieval_per_gb
    if range_bytes:
        dearer += (colder.get_per_1000 - warmer.get_per_1000) / 1000 * GIB / range_bytes
    return saved / dearer if dearer > 0 else None


def equal_object_bytes(prices: Prices = S3_STANDARD) -> float:
    """Return the object size at which a PUT costs as much as a month of storage.

    Below it requests dominate.
    """
    return prices.put_per_1000 / 1000 / prices.storage_bands[0][1] * GIB


def upload_requests(size_bytes: int, part_bytes: int = PART_BYTES) -> int:
    """Return the PUT-class requests for one object.

    One, or its parts plus the start and the completion of a multipart upload, as the uploader does it. `part_bytes`
    defaults to the uploader's; parts grow with huge objects.
    """
    parts = -(-size_bytes // part_step(size_bytes, part_bytes))
    return parts + 2 if parts > 1 else 1


def segment_requests(size_bytes: int, part_bytes: int = PART_BYTES) -> int:
    """Return the PUT-class requests to copy and commit one segment: data, indexes, manifest."""
    return upload_requests(size_bytes, part_bytes) + 2
