"""The place of a partition's compacted views: its manifest, or its disk. One builder, two places.

| | bucket | disk |
|---|---|---|
| for | a topic with a remote tier | a topic without one, or whose tier was disabled |
| a run reads | the bucket alone | the local log |
| horizon | the bucket's end, or its first undecided transaction | the last stable offset, as far as it is durable |
| parts | objects, in the topic's object encoding | plain files (`tiered.read.local_views`) |
| switched by | a commit | a replaced catalog (`tiered.read.local_views`) |

A topic that gets a remote tier keeps its local views. Readers and retention use a local view until the bucket has one
of that name. The first run in the bucket:

1. It reads the parts of the local view.
2. It writes all of them to the bucket, together with the bucket's records beyond the local horizon.
3. It commits the view.
4. It removes the local view from the catalog.

A manifest names such views without parts before the first segment is copied (`unannounced`). A job that compacts the
bucket sees them and keeps the tombstones that they have not merged yet (I5). No run is due until the bucket holds
everything that the local view has merged.

| a crash | leaves | then |
|---|---|---|
| before the commit | the local view, objects of an old epoch | the next run starts over |
| after the commit | both views | readers use the bucket's; maintenance drops the local one (`drop_superseded`) |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from local.errors import InvalidRequest
from remote.fetch.range_reader import RemotePartition
from remote.manifest.view import CompactedView, find_view
from remote.manifest.view_changes import begin_view, drop_view, fail_view, switch_view
from remote.segments.object_encoding import PLAIN_ENCODING, ObjectEncoding
from remote.store import ObjectStore
from tiered.read.partition_source import PartitionSource

if TYPE_CHECKING:
    from remote.manifest.commit_protocol import MetadataLog
    from remote.manifest.manifest import Manifest
    from tiered.partition.partition import Partition
    from tiered.read.local_views import LocalViews


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The input of a run. `parts` reads the parts of `old`; `own_parts`: new parts go to the same place.

    `records_max` bounds the records of the log from the horizon of `old` on; None if unknown.
    """

    old: CompactedView
    parts: RemotePartition
    own_parts: bool
    epoch: int
    log_start_offset: int
    records_max: int | None = None
    source_sequence: int | None = None


class ViewPlace(Protocol):
    """A place of views. All methods raise the errors of the disk and the store."""

    store: ObjectStore
    prefix: str
    object_encoding: ObjectEncoding
    source: PartitionSource

    def known(self, name: str) -> CompactedView | None:
        """The view that readers find."""
        ...

    def log_start_offset(self) -> int: ...

    def horizon(self) -> int:
        """The horizon that a run would reach now."""
        ...

    def begin(self, name: str, now_ms: int) -> Basis:
        """Note that a run has started."""
        ...

    def switch(self, built: CompactedView, now_ms: int) -> None:
        """Replace the view that the run started with by the new one."""
        ...

    def fail(self, name: str, error: str, now_ms: int) -> None:
        """Note why a run failed."""
        ...


class BucketPlace:
    """Views in the manifest."""

    def __init__(self, held: Partition, store: ObjectStore | None) -> None:
        """Use this partition. Raises InvalidRequest without the writer role in a bucket."""
        if (
            held.metadata is None
            or held.manifest() is None
            or held.remote is None
            or store is None
            or not held.is_writer
        ):
            raise InvalidRequest("cannot build the view, the partition has no remote tier", partition=held.name)
        self.store, self.prefix, self.object_encoding = store, held.prefix, held.object_encoding
        self.source = PartitionSource(held.name, None, held.remote, held.metadata)
        self._metadata: MetadataLog = held.metadata
        self._remote: RemotePartition = held.remote
        self._local: LocalViews | None = held.local_views
        self._replaces: CompactedView | None = None
        self._is_carried = False

    def known(self, name: str) -> CompactedView | None:
        own, local = find_view(self._manifest().views, name), self._of_disk(name)
        return local if local is not None and (own is None or not own.is_built) else own

    def log_start_offset(self) -> int:
        return self._manifest().log_start_offset

    def horizon(self) -> int:
        return self.source.stable_end()

    def begin(self, name: str, now_ms: int) -> Basis:
        manifest = self._metadata.commit(begin_view(name, now_ms=now_ms), now_ms)
        self._replaces, local = find_view(manifest.views, name), self._of_disk(name)
        old, parts = self._replaces or CompactedView(name=name), self._remote
        self._is_carried = local is not None and not old.is_built
        if local is not None and self._local is not None and self._is_carried:
            old, parts = local, self._local.parts
        start = old.horizon_offset if old.is_built else manifest.log_start_offset
        return Basis(
            old=old,
            parts=parts,
            own_parts=not self._is_carried,
            epoch=manifest.epoch,
            log_start_offset=manifest.log_start_offset,
            records_max=sum(each.record_count for each in manifest.parts if each.next_offset > start),
            source_sequence=manifest.sequence,
        )

    def switch(self, built: CompactedView, now_ms: int) -> None:
        self._metadata.commit(switch_view(built, replaces=self._replaces, now_ms=now_ms), now_ms)
        if self._is_carried and self._local is not None:
            self._local.commit(drop_view(built.name, now_ms=now_ms))

    def fail(self, name: str, error: str, now_ms: int) -> None:
        self._metadata.commit(fail_view(name, error, now_ms=now_ms), now_ms)

    def _manifest(self) -> Manifest:
        manifest = self._metadata.cached
        assert manifest is not None, "a writer has a head"
        return manifest

    def _of_disk(self, name: str) -> CompactedView | None:
        view = find_view(self._local.known(), name) if self._local is not None else None
        return view if view is not None and view.is_built else None


class DiskPlace:
    """Views on the disk. The caller holds the partition's lock against cleaning, moves and deletion."""

    prefix = ""
    object_encoding = PLAIN_ENCODING

    def __init__(self, held: Partition) -> None:
        assert held.local_views is not None, "an opened partition has them"
        self.source = PartitionSource(held.name, held.log)
        self._log, self._views = held.log, held.local_views
        self._replaces: CompactedView | None = None
        self.store: ObjectStore = held.local_views.files

    def known(self, name: str) -> CompactedView | None:
        return find_view(self._views.catalog().views, name)

    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    def horizon(self) -> int:
        """At most the durable end: after a power cut, offsets above it would be given to other records."""
        self._log.flush()
        return min(self._log.last_stable_offset, self._log.recovery_point)

    def begin(self, name: str, now_ms: int) -> Basis:
        self._views.commit(begin_view(name, now_ms=now_ms))
        self._replaces = self.known(name)
        return Basis(
            old=self._replaces or CompactedView(name=name),
            parts=self._views.parts,
            own_parts=True,
            epoch=self._views.epoch,
            log_start_offset=self._log.log_start_offset,
        )

    def switch(self, built: CompactedView, now_ms: int) -> None:
        self._views.commit(switch_view(built, replaces=self._replaces, now_ms=now_ms))

    def fail(self, name: str, error: str, now_ms: int) -> None:
        self._views.commit(fail_view(name, error, now_ms=now_ms))


def unannounced(held: Partition) -> list[str]:
    """The views on the disk that the manifest does not name and that a run will bring to the bucket."""
    manifest, local = held.manifest(), held.local_views
    if manifest is None or local is None or held.rules.gives_up_remote:
        return []
    named = {view.name for view in manifest.views}
    return [view.name for view in local.known() if view.is_built and view.name not in named]


def maintain_views(held: Partition, now_ms: int) -> None:
    """Maintain the views on the disk: `drop_superseded`, and delete old parts. Raises DiskFailed."""
    local = held.local_views
    if local is not None and not held.log.is_read_only:
        drop_superseded(held, now_ms)
        local.delete_due(now_ms, held.rules.file_delete_delay_ms)


def drop_superseded(held: Partition, now_ms: int) -> int:
    """Drop local views whose name has a built view in the bucket; returns how many. Raises DiskFailed."""
    manifest, local = held.reconciled_manifest(), held.local_views
    if manifest is None or local is None or not held.is_writer:
        return 0
    built = {view.name for view in manifest.views if view.is_built}
    doomed = [view.name for view in local.known() if view.name in built]
    for name in doomed:
        local.commit(drop_view(name, now_ms=now_ms))
    return len(doomed)
