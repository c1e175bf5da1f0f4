"""A co-writer of a partition: a job that commits in the writer's epoch without taking over.

A job of hours that rewrites objects must not stop the manager that appends, nor be stopped by it. So the job does not
raise the epoch; it **joins** the current epoch. Its manifests carry the writer's epoch and name and are created only if
absent. To the writer such a manifest looks like an earlier commit of its own with a lost reply. So the writer applies
its change on top of it (`remote.manifest.commit_protocol`, rebase). Every change is a pure function of the manifest
before it, so neither process overwrites the other's changes.

| | co-writer | writer |
|---|---|---|
| names of new objects | the joined epoch, ULIDs of its own | the same epoch, ULIDs of its own |
| finds N+1 of the joined epoch | applies its change to it | the same |
| finds N+1 of a higher epoch | Fenced: its objects are of an older epoch now, orphans | Fenced |
| unlinks entries | yes | yes |
| deletes objects, deletes old manifests, raises the GC boundary | never | yes |
| may treat unnamed objects of the epoch as orphans | never | only its own uploads |

The last line protects the co-writer's uploads. Before their commit they are unnamed objects of the newest epoch, and
only the process that made them may judge them (`remote.gc.orphans`). After the start of another epoch they can never be
named: the co-writer is fenced, at the latest when it creates its manifest. So a co-writer never carries objects into a
later epoch; it starts again there. To fence all co-writers and delete their remains, raise the epoch; every manager
does that at its start.

| crash of the co-writer | leaves |
|---|---|
| before its commit | objects that no manifest names, until the next epoch |
| after its commit (one manifest) | all of its work |
"""

from __future__ import annotations

from local.errors import Conflict, Fenced, InvalidRequest, NotFound
from remote.manifest.commit_protocol import LogState, MetadataLog
from remote.manifest.manifest import Manifest, PageEntry
from remote.manifest.manifest_changes import Change
from remote.manifest.manifest_page import Rows


class CoWriterLog(MetadataLog):
    """`MetadataLog` for a co-writer: it can join an epoch and commit; other verbs of a writer raise."""

    def join(self, *, epoch: int | None = None) -> Manifest:
        """Join the newest manifest's epoch, or `epoch` if that is the newest; returns the manifest.

        Raises NotFound if no writer ever opened the partition, Conflict if its topic was deleted, Fenced if `epoch` is
        over, InvalidRequest if this log has joined already.
        """
        with self._lock:
            if self._state is not LogState.READER:
                raise InvalidRequest(
                    "cannot join a partition, the log is not open for reading", state=self._state.value
                )
            manifest = self.load(exact=True)
            if manifest is None:
                raise NotFound(
                    "cannot join a partition, it has no manifest", store=self._store.url, prefix=self._prefix
                )
            _check_living(manifest)
            if epoch is not None and manifest.epoch != epoch:
                facts = {"prefix": self._prefix, "epoch": manifest.epoch, "ours": epoch, "writer": manifest.writer_id}
                raise Fenced("cannot join a partition, another writer took over", **facts)
            self._move(LogState.WRITER)
            self._epoch = manifest.epoch
            return manifest

    def commit(self, change: Change, now_ms: int, *, touches: tuple[int, int] | None = None) -> Manifest:
        """As a writer's commit. Also raises Conflict if the topic was deleted since."""

        def guarded(manifest: Manifest) -> Manifest:
            _check_living(manifest)
            return change(manifest)

        return super().commit(guarded, now_ms, touches=touches)

    def certify_page(self, page: PageEntry, entries: Rows) -> None:
        """Use `entries` as the content of a page that cannot be read, for a commit that rewrites the page."""
        self._pages.keep(page, entries)

    def become_writer(self, *_: object, **__: object) -> Manifest:
        raise InvalidRequest("a co-writer cannot become the writer", prefix=self._prefix)

    def check_still_writer(self) -> Manifest:
        raise InvalidRequest("a co-writer cannot delete objects", prefix=self._prefix)

    def set_gc_boundary(self, upto: int) -> None:
        raise InvalidRequest("a co-writer cannot collect manifests", prefix=self._prefix, upto=upto)


def _check_living(manifest: Manifest) -> None:
    if manifest.deleted_ms is not None:
        facts = {"topic": manifest.topic, "partition": manifest.partition, "deleted_ms": manifest.deleted_ms}
        raise Conflict("cannot commit the work of a job, the topic was deleted", **facts)
