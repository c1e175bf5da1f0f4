"""The effective prices: the built-in ones, overridden by the user's JSON file.

The file names only the differences (`price_rows` is a template). A class that is not built in needs `storage_bands`,
`put_per_1000`, `get_per_1000` and `list_per_1000`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, fields, replace

import msgspec

from local.errors import InvalidRequest, LogError, NotFound
from local.storage import DiskStorage
from policies.cost.prices import BUILT_IN, STANDARD, Prices, PriceTable
from tiered.config.config import Config
from tiered.config.properties import nearest

SETTING = "cost.prices"
_log = logging.getLogger(__name__)
_KEYS = ("as_of", "region", "disk_per_gb_month", "classes")
# Built at import: building it in two threads in parallel ends the process (msgspec 0.22).
msgspec.json.Decoder(Prices)
_OF_CLASS = tuple(each.name for each in fields(Prices) if each.name not in ("as_of", "region", "storage_class"))


class PricesUsed(msgspec.Struct, forbid_unknown_fields=True):
    """The price table from which printed dollars are computed."""

    as_of: str
    region: str

    @classmethod
    def of(cls, table: PriceTable) -> PricesUsed:
        return cls(table.as_of, table.region)


def configured_prices(config: Config) -> PriceTable:
    """The prices in the file of `cost.prices`, else the built-in ones. Raises NotFound and InvalidRequest."""
    path = config.topic_properties("")[SETTING]
    return load_prices(os.path.abspath(os.path.join(os.path.dirname(config.path or ""), path))) if path else BUILT_IN


def prices_or_none(config: Config) -> PriceTable | None:
    """As `configured_prices`; None, with a logged warning, if the prices cannot be read."""
    try:
        return configured_prices(config)
    except LogError as error:
        _log.warning("dollars are not shown: error=%s", error)
        return None


def new_class(config: Config) -> str:
    """The storage class of new segments; S3 uses the standard one by default."""
    found = config.topic_properties("")["remote.storage.class"]
    return STANDARD if found == "default" else found


def load_prices(path: str) -> PriceTable:
    try:
        return with_prices(BUILT_IN, msgspec.json.decode(DiskStorage().read(path), type=dict[str, object]))
    except NotFound:
        raise NotFound("the price file does not exist", file=path) from None
    except msgspec.MsgspecError as error:
        text = str(error)
        raise InvalidRequest(f"cannot read the price file, {text[:1].lower()}{text[1:]}", file=path) from None
    except InvalidRequest as error:
        raise InvalidRequest(error.attempt, file=path, **error.facts) from None


def with_prices(base: PriceTable, body: Mapping[str, object]) -> PriceTable:
    """`base` overridden by a price file's object. Raises InvalidRequest and msgspec's errors."""
    _check_keys(body, _KEYS)
    classes = msgspec.convert(body.get("classes", {}), dict[str, dict[str, object]])
    as_of = msgspec.convert(body.get("as_of", base.as_of), str)
    region = msgspec.convert(body.get("region", base.region), str)
    known = {name: replace(each, as_of=as_of, region=region) for name, each in base.classes.items()}
    for name, said in classes.items():
        _check_keys(said, _OF_CLASS, storage_class=name)
        before = asdict(known[name]) if name in known else {"storage_class": name, "as_of": as_of, "region": region}
        merged = {**before, **said}
        if name in known and "unverified" not in said:
            # The user has verified the prices in the file.
            merged["unverified"] = tuple(each for each in known[name].unverified if each not in said)
        known[name] = _checked(msgspec.convert(merged, Prices))
    disk = msgspec.convert(body.get("disk_per_gb_month", base.disk_per_gb_month), float, strict=False)
    return PriceTable(as_of=as_of, region=region, classes=known, disk_per_gb_month=disk)


def price_rows(table: PriceTable) -> dict[str, object]:
    classes = {name: {key: getattr(each, key) for key in _OF_CLASS} for name, each in table.classes.items()}
    return {**{key: getattr(table, key) for key in _KEYS}, "classes": classes}


def _checked(prices: Prices) -> Prices:
    numbers = [getattr(prices, name) for name in _OF_CLASS]
    numbers += [number for pair in (*prices.storage_bands, *prices.later_bands) for number in pair]
    if any(isinstance(each, (int, float)) and each < 0 for each in numbers):
        raise InvalidRequest("invalid prices, a number is negative", storage_class=prices.storage_class)
    if not prices.storage_bands or prices.storage_bands[-1][0] is not None:
        wrong = "invalid prices, the last entry of storage_bands must be [null, price]"
        raise InvalidRequest(wrong, storage_class=prices.storage_class)
    return prices


def _check_keys(said: Mapping[str, object], known: tuple[str, ...], **where: object) -> None:
    for key in said:
        if key not in known:
            hint = nearest(key, known) or ",".join(known)
            raise InvalidRequest("invalid prices, unknown key", key=key, **where, did_you_mean=hint)
