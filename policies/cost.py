"""What the bucket costs: a price list with its date, and the arithmetic over it. Pure, in US dollars.

Prices are us-east-1, quoted 2026-03 to 2026-06, and want a fresh look at the vendor's page before anyone decides by
them; every number can be replaced. A GB is 2^30 bytes, as the bill counts. Deletes are free, lists cost like puts.
"""

from __future__ import annotations

from dataclasses import dataclass

from remote.segment import PART_BYTES, part_step

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """One storage class. `storage_bands` are (GB that the band holds or None for the rest, dollars per GB-month)."""

    as_of: str
    region: str
    storage_class: str
    storage_bands: tuple[tuple[float | None, float], ...]
    put_per_1000: float
    get_per_1000: float
    list_per_1000: float


S3_STANDARD = Prices(
    as_of="2026-06",
    region="us-east-1",
    storage_class="STANDARD",
    storage_bands=((50_000, 0.023), (450_000, 0.022), (None, 0.021)),
    put_per_1000=0.005,
    get_per_1000=0.0004,
    list_per_1000=0.005,
)


def monthly_storage(size_bytes: int, prices: Prices = S3_STANDARD) -> float:
    """Dollars per month for keeping `size_bytes`, band by band."""
    left = size_bytes / GIB
    dollars = 0.0
    for width, price in prices.storage_bands:
        in_band = left if width is None else min(left, width)
        dollars += in_band * price
        left -= in_band
    return dollars


def request_cost(*, puts: int = 0, gets: int = 0, lists: int = 0, prices: Prices = S3_STANDARD) -> float:
    """Dollars for that many requests; deletes cost nothing."""
    return (puts * prices.put_per_1000 + gets * prices.get_per_1000 + lists * prices.list_per_1000) / 1000


def upload_requests(size_bytes: int, part_bytes: int = PART_BYTES) -> int:
    """PUT-class requests for one object: one, or its parts plus the start and the completion of a multipart upload.

    As the uploader does it: `part_bytes` are its own unless others are asked about, and parts grow with huge objects.
    """
    parts = -(-size_bytes // part_step(size_bytes, part_bytes))
    return parts + 2 if parts > 1 else 1


def segment_requests(size_bytes: int, part_bytes: int = PART_BYTES) -> int:
    """PUT-class requests to copy and commit one segment: its data, its indexes, its head."""
    return upload_requests(size_bytes, part_bytes) + 2
