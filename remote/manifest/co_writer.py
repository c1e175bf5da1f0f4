"""A guest of a partition: a job that commits beside the writer, in the writer's epoch, without taking its place.

A job of hours that rewrites what is in the bucket must not stop the manager that goes on appending, and must not be
stopped by it. So it does not raise the epoch: it **joins** the one there is. Its heads carry the writer's epoch and
name and are created, like all others, only if absent. To the writer such a head looks like an earlier commit of its own
whose answer was lost: it applies its change on top of it (`remote.manifest.commit_protocol`, rebase). Every change is a
pure function that is judged against the head it lands on, so neither overwrites what the other did.

| | the guest | the writer |
|---|---|---|
| names of new objects | the joined epoch, ulids of its own | the same epoch, ulids of its own |
| finds N+1 of the joined epoch | applies its change to it | the same |
| finds N+1 of a higher epoch | Fenced: its objects are of an older epoch now, nobody's | Fenced |
| unlinks rows | yes | yes |
| deletes objects, collects heads, raises the boundary | never | yes |
| may call unnamed objects of the epoch nobody's | never | only those that it uploaded itself |

The last line keeps the guest's uploads safe. Until they are named they are unnamed objects of the newest epoch, which
nobody but their maker may judge (`remote.gc.orphans`). Once another epoch has begun they can never be named any more:
the guest is fenced, at the latest by the name of its head. So a guest never carries objects over into a later epoch; it
begins anew there. Who wants all guests out, and what they left collected, raises the epoch, as any manager does when it
starts.

What a crash of the guest leaves: before its commit, objects that no head names, until the next epoch; after it, all of
its work. Its commit is one head.
"""

from __future__ import annotations

from local.errors import Conflict, Fenced, InvalidRequest, NotFound
from remote.manifest.commit_protocol import LogState, MetadataLog
from remote.manifest.manifest import Head, SpillRow
from remote.manifest.manifest_changes import Change
from remote.manifest.manifest_page import Rows


class GuestLog(MetadataLog):
    """`MetadataLog` for a guest: it joins an epoch, and commits; whatever else a writer does is refused."""

    def join(self, *, epoch: int | None = None) -> Head:
        """Become a guest of the newest head's epoch, or of `epoch` if that is the newest; the head.

        Raises NotFound where nobody ever opened the partition for writing, Conflict when its topic was deleted, Fenced
        when `epoch` is over, InvalidRequest for a log that is a guest already.
        """
        with self._lock:
            if self._state is not LogState.READER:
                raise InvalidRequest("joining a partition, not a reader", state=self._state.value)
            head = self.load(exact=True)
            if head is None:
                raise NotFound("joining a partition, it has no head", store=self._store.url, prefix=self._prefix)
            _check_living(head)
            if epoch is not None and head.epoch != epoch:
                facts = {"prefix": self._prefix, "epoch": head.epoch, "ours": epoch, "writer": head.writer_id}
                raise Fenced("joining a partition, another writer took over", **facts)
            self._move(LogState.WRITER)
            self._epoch = head.epoch
            return head

    def commit(self, change: Change, now_ms: int, *, touches: tuple[int, int] | None = None) -> Head:
        """As a writer's. Raises Conflict as well when the topic was deleted meanwhile."""

        def guarded(head: Head) -> Head:
            _check_living(head)
            return change(head)

        return super().commit(guarded, now_ms, touches=touches)

    def vouch_for_page(self, spill: SpillRow, rows: Rows) -> None:
        """Have `rows` be what the page holds, for a commit that writes it anew: the object itself cannot be read."""
        self._pages.keep(spill, rows)

    def become_writer(self, *_: object, **__: object) -> Head:
        raise InvalidRequest("becoming a writer, a guest does not", prefix=self._prefix)

    def check_still_writer(self) -> Head:
        raise InvalidRequest("deleting objects, a guest does not", prefix=self._prefix)

    def make_void(self, upto: int) -> None:
        raise InvalidRequest("collecting heads, a guest does not", prefix=self._prefix, upto=upto)


def _check_living(head: Head) -> None:
    if head.deleted_ms is not None:
        facts = {"topic": head.topic, "partition": head.partition, "deleted_ms": head.deleted_ms}
        raise Conflict("committing a job's work, the topic was deleted", **facts)
