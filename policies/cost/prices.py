"""The price table: the cost of each storage class, with its date. Data only, in US dollars.

``prices.json`` has the form of a price file. Its numbers are list prices of us-east-1 as quoted between 2026-03 and
2026-06; `unverified` names prices that were not checked on the vendor's page. Every price can be replaced
(`tiered.config.price_file`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import get_data
from typing import Any

from msgspec import json


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The prices of one storage class."""

    as_of: str
    region: str
    storage_class: str
    storage_bands: tuple[tuple[float | None, float], ...]  # (GB of the band or None for the rest, dollars per GB-month)
    put_per_1000: float
    get_per_1000: float
    list_per_1000: float
    retrieval_per_gb: float = 0.0
    write_per_gb: float = 0.0
    min_days: float = 0.0  # billed for at least this time
    min_bytes: int = 0  # billed for at least this size, unless the class puts small objects in another one
    overhead_bytes: int = 0  # billed for each object in addition
    later_bands: tuple[tuple[float, float], ...] = ()  # (days without a read, dollars per GB-month): it moves objects
    monitoring_per_1000: float = 0.0  # price of such a class per 1000 objects and month
    monitored_min_bytes: int = 0  # smaller objects are neither moved nor monitored
    transition_per_1000: float = 0.0  # price of 1000 moves into the class by a lifecycle rule
    is_readable: bool = True  # False: an object needs a restore first, so no reader here may depend on it
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


def _built_in() -> PriceTable:
    table: dict[str, Any] = json.decode(get_data(__package__, "prices.json") or b"")
    source = {"as_of": table["as_of"], "region": table["region"]}
    classes = {
        name: Prices(storage_class=name, **source, **{field: _frozen(value) for field, value in row.items()})
        for name, row in table["classes"].items()
    }
    return PriceTable(**{**table, "classes": classes})


def _frozen(value: Any) -> Any:  # noqa: ANN401 - any value of JSON
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


STANDARD = "STANDARD"
BUILT_IN = _built_in()
S3_STANDARD = BUILT_IN.classes[STANDARD]
