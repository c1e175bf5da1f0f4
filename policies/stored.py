"""How many bytes of a partition lie in which storage class, and what keeping them costs a month. Pure, in US dollars.

As the bill counts: bytes as stored, so after compression, and indexes, which stay in STANDARD. Of a page of rows that
is not known its data is told; its class is taken as that of the newest row, its indexes by the share of the known rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from policies.prices import STANDARD

if TYPE_CHECKING:
    from policies.prices import PriceTable
    from policies.snapshot import PartitionSnapshot


def stored_by_class(snapshot: PartitionSnapshot) -> dict[str, int]:
    """Bytes by storage class of what readers see; empty for nothing."""
    found = Counter[str]()
    rows = snapshot.committed
    for row in rows:
        found[row.storage_class or STANDARD] += row.stored_bytes
        found[STANDARD] += row.indexes_bytes
    size = sum(row.size_bytes for row in rows)
    share = sum(row.indexes_bytes for row in rows) / size if size else 0.0
    newest = rows[-1].storage_class if rows else None
    for spill in snapshot.spills:
        found[newest or STANDARD] += spill.stored_bytes
        found[STANDARD] += round(spill.size_bytes * share)
    return {name: size for name, size in found.items() if size}


def storage_dollars(stored: Mapping[str, int], prices: PriceTable) -> float:
    """Dollars a month for bytes by class; smallest objects and what an object has beside its bytes are left out."""
    from policies.cost import monthly_storage  # the status is shown without it where it has no dollars

    by_price = Counter[str]()
    for name, size in stored.items():
        by_price[prices.of(name).storage_class] += size
    return sum(monthly_storage(size, prices.of(name)) for name, size in by_price.items())
