"""The change of the monthly storage bill by each decision of a plan. Pure, in US dollars.

It uses the rules of the status (`policies.cost.storage_usage`), one decision after the other on the whole bucket. So
price bands fill and empty correctly, and the changes add up to the difference between the bills before and after.

Bytes that a decision unlinks count as deleted at once, although they are paid for until their deletion. Bytes unlinked
earlier count as waiting until a decision deletes them. Manifests written or deleted by the plan are left out: a few
KiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from local.names import TopicPartition
from policies.cost.prices import STANDARD, PriceTable
from policies.cost.storage_usage import (
    StorageDollars,
    StorageUsage,
    Stored,
    of_page,
    storage_dollars,
    stored_of,
    total_usage,
)
from policies.snapshot import PartitionSnapshot
from remote.manifest.manifest import PageEntry
from remote.segment_entry import SegmentEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class PageEstimate:
    """Assumptions about a page's objects where the manifest does not describe them.

    See `policies.cost.storage_usage.of_page`. `storage_class` is the class of the newest entry. `indexes_share` is the
    ratio of index bytes to segment bytes of the known entries.
    """

    storage_class: str
    indexes_share: float


def page_estimate(snapshot: PartitionSnapshot) -> PageEstimate:
    """Return the assumptions from the known entries.

    Entries of a disabled tier have the lower offsets, so the last known entry is the newest.
    """
    known = [*(each for each in snapshot.tier_disabled if isinstance(each, SegmentEntry)), *snapshot.remote]
    size = sum(entry.size_bytes for entry in known)
    return PageEstimate(
        storage_class=(known[-1].storage_class if known else None) or STANDARD,
        indexes_share=sum(entry.indexes_bytes for entry in known) / size if size else 0.0,
    )


def usage_of_snapshot(snapshot: PartitionSnapshot, prices: PriceTable) -> StorageUsage:
    """Return the snapshot's bytes in the bucket, without manifests, pages and views."""
    to = page_estimate(snapshot)
    parts = [of_part(each, to, prices) for each in (*snapshot.committed_parts, *snapshot.tier_disabled)]
    waiting = sum(each.size_bytes for each in snapshot.pending_deletes)
    waiting += sum(each.size_bytes for each in snapshot.pending_page_deletes)
    return total_usage([*parts, StorageUsage(waiting_bytes=waiting)])


def of_part(part: PageEntry | SegmentEntry, to: PageEstimate, prices: PriceTable) -> StorageUsage:
    """Return the objects of an entry, or of all entries of a page."""
    if isinstance(part, SegmentEntry):
        data = {part.storage_class or STANDARD: stored_of([part.stored_bytes], prices)}
        return StorageUsage(data=data, small_bytes=part.indexes_bytes)
    return of_page(part, to.storage_class, to.indexes_share)


def removed_usage(parts: Iterable[StorageUsage], prices: PriceTable) -> StorageUsage:
    """Return the parts as negative amounts, to be added to the stored bytes."""
    whole = total_usage(parts)
    floors = {each.min_bytes for each in prices.classes.values() if each.min_bytes}
    return StorageUsage(
        data={
            name: Stored(
                objects=-each.objects,
                size_bytes=-each.size_bytes,
                floored={floor: -each.billed(floor) for floor in floors},
            )
            for name, each in whole.data.items()
        },
        small_bytes=-whole.small_bytes,
        index_bytes=-whole.index_bytes,
        waiting_bytes=-whole.waiting_bytes,
    )


def bill_of(
    usage: Mapping[TopicPartition, StorageUsage], names: Iterable[TopicPartition], prices: PriceTable
) -> StorageDollars:
    """Return the share of the whole bill that these partitions pay."""
    shares = dict(zip(usage, storage_dollars(list(usage.values()), prices), strict=True))
    ours = [shares[name] for name in names if name in shares]
    return StorageDollars(
        storage=sum(each.storage for each in ours),
        index=sum(each.index for each in ours),
        waiting=sum(each.waiting for each in ours),
    )


def bill_changes(usage: Iterable[StorageUsage], changes: Iterable[StorageUsage], prices: PriceTable) -> Iterator[float]:
    """Yield the dollars a month that each of `changes` adds, one after the other, to all of `usage`.

    An estimate can remove more than is stored. The remainder is then 0, not a debt that later changes would pay.
    """
    whole = total_usage(usage)
    dollars = _dollars(whole, prices)
    for change in changes:
        if not (change.data or change.small_bytes or change.index_bytes or change.waiting_bytes):
            yield 0.0
            continue
        whole = _left(total_usage([whole, change]))
        before, dollars = dollars, _dollars(whole, prices)
        yield dollars - before


def _left(whole: StorageUsage) -> StorageUsage:
    return StorageUsage(
        data={name: each for name, each in whole.data.items() if each.objects > 0 and each.size_bytes > 0},
        small_bytes=max(0, whole.small_bytes),
        index_bytes=max(0, whole.index_bytes),
        waiting_bytes=max(0, whole.waiting_bytes),
    )


def _dollars(whole: StorageUsage, prices: PriceTable) -> float:
    return storage_dollars([whole], prices)[0].total
