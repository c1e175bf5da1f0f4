"""Roles in the commit protocol: what a process may do with the manifests of a partition.

A `MetadataLog` begins as READER and takes at most one other role; FENCED is final:

| role | begins by | may start if | may delete | on a newer epoch |
|---|---|---|---|---|
| READER | the constructor | always | no | follows it |
| WRITER | `become_writer`: a manifest of epoch + 1 | the topic exists, or the writer removes it | yes | fenced |
| CONDITIONAL | `take_over_if`: the same | in addition the newest manifest passes the caller's check | yes | fenced |
| CO_WRITER | `join`: no manifest, the writer's epoch | the topic exists, the epoch is the expected one | no | fenced |
| RESUMED | `resume`: no manifest, its own epoch | the newest manifest has its epoch and writer id | yes | fenced |

**CONDITIONAL**: housekeeping must not take over from a writer that started after its check. The first manifest of an
epoch is created only if absent behind its base manifest, so it is enough to check that base: a writer that commits in
between takes the name, and the check runs again on its manifest.

**CO_WRITER**: a job of hours that rewrites objects must not stop the manager that appends, nor be stopped by it. Its
manifests carry the writer's epoch and name. To the writer such a manifest looks like an earlier commit of its own with
a lost reply, and it rebases its change (`remote.manifest.commit_protocol`). Every change is a pure function of the
manifest before it, so neither process overwrites the other's changes.

The names of its objects have the joined epoch and ULIDs of its own. It never deletes objects or old manifests, and
never raises the GC boundary. Before their commit its uploads are unnamed objects of the newest epoch, which only the
process that uploaded them may treat as orphans (`remote.gc.orphan_search`). A crash leaves them until the next epoch; a
crash after its commit (one manifest) leaves all of its work. To fence all co-writers, raise the epoch; every manager
does that at its start.

**RESUMED**: an ingest starts its epoch in one process and commits, as a co-writer, in others (`tiered.jobs.ingest`). It
may also do what a co-writer must not do, because the epoch is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from local.errors import Conflict, Fenced, InvalidRequest, NotFound
from remote.manifest.manifest import Manifest


class WriterState(Enum):
    READER = "reader"
    WRITER = "writer"
    FENCED = "fenced"


NEXT_STATES: dict[WriterState, frozenset[WriterState]] = {
    WriterState.READER: frozenset({WriterState.WRITER}),
    WriterState.WRITER: frozenset({WriterState.FENCED}),
    WriterState.FENCED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A row of the table above. `attempt` begins the messages of its errors."""

    name: str
    attempt: str = "cannot become the writer"
    needs_manifest: bool = True
    deletes: bool = True
    outlives_topic: bool = True
    on_newer_epoch: WriterState = WriterState.FENCED

    def may_start(
        self,
        newest: Manifest | None,
        prefix: str,
        *,
        epoch: int | None = None,
        writer_id: str | None = None,
        removes: bool = False,
    ) -> None:
        """Raise unless the role may start behind `newest`, with the expected `epoch` and `writer_id` if given.

        Raises NotFound without a needed manifest, Fenced for another epoch or writer, and Conflict if the topic was
        deleted, unless the writer `removes` the partition. A role that ends with its topic raises Conflict for both.
        """
        if newest is None:
            if self.needs_manifest:
                raise NotFound(f"{self.attempt}, the partition has no manifest", prefix=prefix)
            return
        is_other = epoch not in (None, newest.epoch) or writer_id not in (None, newest.writer_id)
        is_deleted = newest.deleted_ms is not None and not removes
        if is_other and not (is_deleted and not self.outlives_topic):  # the deletion of a topic raises the epoch too
            facts = {"prefix": prefix, "epoch": newest.epoch, "ours": epoch, "writer": newest.writer_id}
            raise Fenced(f"{self.attempt}, another writer took over", **facts)
        if is_deleted:
            raise Conflict(f"{self.attempt}, the topic was deleted", prefix=prefix, deleted_ms=newest.deleted_ms)

    def may_commit(self, newest: Manifest) -> None:
        """Raise Conflict for a commit behind `newest` if the topic was deleted and the role ends with its topic."""
        if newest.deleted_ms is not None and not self.outlives_topic:
            facts = {"topic": newest.topic, "partition": newest.partition, "deleted_ms": newest.deleted_ms}
            raise Conflict("cannot commit the work of a job, the topic was deleted", **facts)

    def may_delete(self, prefix: str) -> None:
        if not self.deletes:
            raise InvalidRequest(f"a {self.name} cannot delete objects", prefix=prefix)


READER = Role(name="reader", needs_manifest=False, deletes=False, on_newer_epoch=WriterState.READER)
WRITER = Role(name="writer", needs_manifest=False)
CONDITIONAL = Role(name="conditional writer", attempt="cannot take over the partition")
CO_WRITER = Role(name="co-writer", attempt="cannot join a partition", deletes=False, outlives_topic=False)
RESUMED = Role(name="resumed writer", attempt="cannot take over the partition")


def takeover_draft(
    latest: Manifest | None, topic: str, topic_id: str, partition: int, seal_key_id: str | None
) -> Manifest:
    """The first manifest of an epoch: as `latest`, or empty. Raises InvalidRequest for another partition."""
    names = {"topic": topic, "topic_id": topic_id, "partition": partition}
    if latest is None:
        unset = {"commit_id": "", "parent_id": None, "writer_id": "", "log_start_offset": 0, "committed_ms": 0}
        return Manifest(sequence=1, epoch=1, **unset, **names, properties={}, seal_key_id=seal_key_id or None)  # type: ignore[arg-type]
    if (latest.topic, latest.topic_id, latest.partition) != (topic, topic_id, partition):
        found = f"{latest.topic}-{latest.topic_id}/{latest.partition}"
        facts = {"found": found, "expected": f"{topic}-{topic_id}/{partition}"}
        raise InvalidRequest("cannot become the writer, the manifests belong to another partition", **facts)
    return latest


def last_appender(latest: Manifest | None) -> str | None:
    if latest is None:
        return None
    return latest.writer_id if latest.appender_id is None else latest.appender_id
