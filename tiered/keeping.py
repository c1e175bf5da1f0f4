"""What the partitions of a manager have in the bucket, and what keeping it costs (`policies.stored`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from policies.stored import KeepingDollars, Lying, keeping_dollars, lying_of
from remote.head import Head, encode_head

if TYPE_CHECKING:
    from local.names import TopicPartition
    from policies.prices import PriceTable
    from remote.segment import RemoteSegment
    from tiered.manager import LogManager
    from tiered.partition import Partition


SIZES_KEPT = 10_000
_SIZES: dict[str, int] = {}  # bytes of heads by their commits; written by several threads at once without harm


def keeping_costs(manager: LogManager, prices: PriceTable) -> dict[TopicPartition, KeepingDollars]:
    """Dollars a month of every open partition with objects in the bucket, from what is known: no request is sent.

    Always of all topics, because they fill the bands of the price together.
    """
    found = {each.name: lying_for(each, prices) for each in manager.partitions() if each.head() is not None}
    return dict(zip(found, keeping_dollars(list(found.values()), prices), strict=True))


def lying_for(held: Partition, prices: PriceTable, rows: Iterable[RemoteSegment] | None = None) -> Lying:
    """What one partition has there; nothing without a head. `rows` as `policies.stored.lying_of` has them."""
    head = held.head()
    return Lying() if head is None else lying_of(head, prices, head_bytes=_size(head), rows=rows)


def _size(head: Head) -> int:
    """Encoded once for each commit: whoever scrapes every few seconds asks about the same heads again."""
    known = _SIZES.get(head.commit_id)
    if known is None:
        if len(_SIZES) >= SIZES_KEPT:
            _SIZES.clear()
        known = _SIZES[head.commit_id] = len(encode_head(head))
    return known
