"""The price table: the cost of each storage class, with its date. Data only, in US dollars.

The numbers are list prices of us-east-1 as quoted between 2026-03 and 2026-06; `unverified` names prices that were not
checked on the vendor's page. Every price can be replaced (`tiered.config.price_file`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

KB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The prices of one storage class.

    | field | meaning |
    |---|---|
    | `storage_bands` | (GB of the band or None for the rest, dollars per GB-month) |
    | `min_bytes` | an object is billed for at least this size, unless the class puts small objects in another one |
    | `overhead_bytes` | billed for each object in addition |
    | `min_days` | an object is billed for at least this time |
    | `later_bands` | (days without a read, dollars per GB-month) of a class that moves objects by itself |
    | `monitoring_per_1000` | price of such a class per 1000 objects and month |
    | `monitored_min_bytes` | smaller objects are neither moved nor monitored |
    | `transition_per_1000` | for objects that a lifecycle rule moves into the class |
    | `is_readable` | False: an object needs a restore first, so no reader here may depend on it |
    """

    as_of: str
    region: str
    storage_class: str
    storage_bands: tuple[tuple[float | None, float], ...]
    put_per_1000: float
    get_per_1000: float
    list_per_1000: float
    retrieval_per_gb: float = 0.0
    write_per_gb: float = 0.0
    min_days: float = 0.0
    min_bytes: int = 0
    overhead_bytes: int = 0
    later_bands: tuple[tuple[float, float], ...] = ()
    monitoring_per_1000: float = 0.0
    monitored_min_bytes: int = 0
    transition_per_1000: float = 0.0
    is_readable: bool = True
    unverified: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """All classes by S3's names. `disk_per_gb_month` is the price of the local tier's disk."""

    as_of: str
    region: str
    classes: Mapping[str, Prices]
    disk_per_gb_month: float

    def of(self, storage_class: str | None) -> Prices:
        """Return the prices of a class; None and unlisted classes are priced as STANDARD."""
        return self.classes.get(storage_class or STANDARD, self.classes[STANDARD])


STANDARD = "STANDARD"
AS_OF, REGION = "2026-06", "us-east-1"
LIST_PER_1000 = 0.005


def _prices(storage_class: str, per_gb_month: float, put: float, get: float, **more: object) -> Prices:
    return Prices(
        as_of=AS_OF,
        region=REGION,
        storage_class=storage_class,
        storage_bands=((None, per_gb_month),),
        put_per_1000=put,
        get_per_1000=get,
        list_per_1000=LIST_PER_1000,
        **more,  # type: ignore[arg-type]
    )


def _cold(
    storage_class: str, per_gb_month: float, put: float, get: float, retrieval: float, min_days: float, **more: object
) -> Prices:
    """Return the prices of a class for rare reads; a transition into it costs as much as a PUT."""
    more |= {"retrieval_per_gb": retrieval, "min_days": min_days, "transition_per_1000": put}
    return _prices(storage_class, per_gb_month, put, get, unverified=_REQUESTS, **more)


_REQUESTS = ("put_per_1000", "get_per_1000", "transition_per_1000")
_INTELLIGENT = {
    "later_bands": ((30.0, 0.0125), (90.0, 0.004)),
    "monitoring_per_1000": 0.0025,
    "monitored_min_bytes": 128 * KB,
    "transition_per_1000": 0.01,
    "unverified": ("later_bands", "transition_per_1000"),
}
_EXPRESS = {"retrieval_per_gb": 0.0006, "write_per_gb": 0.0032, "min_days": 1 / 24, "min_bytes": 512 * KB}
S3_STANDARD = replace(
    _prices(STANDARD, 0.023, 0.005, 0.0004), storage_bands=((50_000, 0.023), (450_000, 0.022), (None, 0.021))
)
_CLASSES = (
    S3_STANDARD,
    _prices("INTELLIGENT_TIERING", 0.023, 0.005, 0.0004, **_INTELLIGENT),
    _cold("STANDARD_IA", 0.0125, 0.01, 0.001, 0.01, 30, min_bytes=128 * KB),
    _cold("ONEZONE_IA", 0.01, 0.01, 0.001, 0.01, 30, min_bytes=128 * KB),
    _cold("GLACIER_IR", 0.004, 0.02, 0.01, 0.03, 90, min_bytes=128 * KB),
    _cold("GLACIER", 0.0036, 0.03, 0.0004, 0.01, 90, overhead_bytes=40 * KB, is_readable=False),
    _cold("DEEP_ARCHIVE", 0.00099, 0.05, 0.0004, 0.02, 180, overhead_bytes=40 * KB, is_readable=False),
    _prices("EXPRESS_ONEZONE", 0.11, 0.00113, 0.00003, **_EXPRESS, unverified=("min_bytes",)),
)
BUILT_IN = PriceTable(
    as_of=AS_OF,
    region=REGION,
    disk_per_gb_month=0.08,
    classes={each.storage_class: each for each in _CLASSES},
)
