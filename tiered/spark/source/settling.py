"""What a task finds out before it reads: the segments and offsets of its split, from the planned manifest.

The manifest of the plan, and the page that holds the task's offsets, are read once in a process. They never change, so
their copies need no check. A pinned manifest exists while the pin is renewed; without a pin it exists until GC deletes
it, some hundred commits later.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

from local.errors import LogError, NotFound
from local.index.txn_index import AbortedTransaction
from local.names import TopicPartition
from remote.external.external_layout import OURS
from remote.fetch.range_reader import RemotePartition
from remote.gc.pins import Pin
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest, PageEntry
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.manifest_lookup import MetadataIndex
from remote.manifest.manifest_page import Rows
from remote.manifest.view import find_view
from remote.segment_entry import SegmentEntry
from remote.store import ObjectStore
from tiered.read.partition_source import PartitionSource
from tiered.spark.source.splits import Split, share_offsets

KEPT = 8  # manifests and pages in one process: a worker's tasks mostly read one partition, in order
T = TypeVar("T")
_kept: dict[object, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The offsets ``[start_offset, next_offset)`` of a task, its segments and its aborted transactions."""

    start_offset: int
    next_offset: int
    entries: tuple[SegmentEntry, ...] = ()
    aborted: Sequence[AbortedTransaction] = ()


def settled(store: ObjectStore, split: Split, remote: RemotePartition, *, is_newest: bool = False) -> Settled:
    """Settle a task by the planned manifest, or by the newest one. Raises NotFound if it, or a page, is deleted."""
    start, end = split.start_offset, split.next_offset
    entries, aborted = split.given
    if split.layout == OURS.layout:
        log = MetadataLog(store, split.prefix) if is_newest else _planned(store, split)
        manifest = log.load()
        if manifest is None or manifest.deleted_ms is not None:
            return Settled(start_offset=start, next_offset=end)
        index = MetadataIndex(manifest, lambda page: _page(log, page))
        view = find_view(manifest.views, split.view) if split.view is not None else None
        if split.shares > 1:
            start, end = _share(index, split)
        inside = (each for each in view.entries if each.base_offset < end and start < each.next_offset) if view else ()
        entries = tuple(index.entries(start, end) if view is None else inside)
        if split.is_committed and entries:
            source = PartitionSource(TopicPartition(split.topic, split.partition), None, remote, log)
            aborted = tuple(source.aborted_transactions(start, end))
    return Settled(start_offset=start, next_offset=end, entries=entries, aborted=aborted)  # type: ignore[arg-type]


def _planned(store: ObjectStore, split: Split) -> MetadataLog:
    name = split.head_sequence, split.commit_id
    chain = ManifestChain(store, split.prefix)
    manifest = _once((store.url, split.prefix, *name), _OneManifest(chain, split.prefix, *name).newest)
    return MetadataLog(store, split.prefix, source=_OneManifest(chain, split.prefix, *name, manifest))


def _share(index: MetadataIndex, split: Split) -> tuple[int, int]:
    page = next(page for page in index.manifest.pages if page.base_offset <= split.start_offset < page.next_offset)
    rows = index.page(page)
    first = bisect_right(rows, split.start_offset, key=attrgetter("next_offset"))
    end = bisect_left(rows, split.next_offset, key=attrgetter("base_offset"))
    return share_offsets(rows, first, end - first, split)


def _page(log: MetadataLog, page: PageEntry) -> Rows:
    return _once((log.store.url, log.prefix, page.key, page.page_crc32c), lambda: log.page_entries(page))


def _once(name: object, read: Callable[[], T]) -> T:
    """What `read` returned for `name` before in this process, or returns now."""
    _kept[name] = found = _kept.pop(name, None) or read()
    for oldest in list(_kept)[:-KEPT]:
        _kept.pop(oldest, None)
    return found


def pinned_log(store: ObjectStore, prefix: str, pin: Pin) -> MetadataLog:
    """The metadata log of a pinned manifest. A read is one GET; NotFound if pin and manifest are deleted."""
    source = _OneManifest(ManifestChain(store, prefix), prefix, pin.sequence, pin.commit_id)
    return MetadataLog(store, prefix, source=source)


@dataclass(frozen=True)
class _OneManifest:
    chain: ManifestChain
    prefix: str
    sequence: int
    commit_id: str
    copy: Manifest | None = None

    def newest(self, known: Manifest | None = None) -> Manifest:
        found = known or self.copy or self.chain.read(self.sequence)
        if found is None or found.commit_id != self.commit_id:
            raise self.missing()
        return found

    def missing(self) -> LogError:
        facts = {"prefix": self.prefix, "sequence": self.sequence}
        return NotFound("the planned manifest does not exist, the pin has expired", **facts)
