"""Conditional takeover: become the writer only if the newest manifest passes a check.

The module also resumes a writer in another process.

`MetadataLog.become_writer` takes over from any writer. That is right for a manager on its own node, and for an ingest
that an operator started. Housekeeping must not do it: another writer may have started between its check and its
manifest. The first manifest of an epoch is created only if absent behind its base manifest. So it is enough to check
that base: a writer that commits in between takes the name, and the check runs again on its manifest.

An ingest starts its epoch in one process and commits, as a co-writer, in others (`tiered.jobs.ingest`). It may also do
what a co-writer must not do, because the epoch is its own. `ResumedWriterLog` is the writer there until another epoch
starts.
"""

from __future__ import annotations

from collections.abc import Callable

from local.errors import Conflict, Fenced, InvalidRequest, NotFound
from remote.manifest.commit_protocol import LogState, MetadataLog
from remote.manifest.manifest import Manifest


class ConditionalTakeoverLog(MetadataLog):
    """`MetadataLog` for a job that becomes the writer only if that harms no other writer."""

    _check_newest: Callable[[Manifest], None] | None = None

    def take_over_if(self, writer_id: str, now_ms: int, *, check_newest: Callable[[Manifest], None]) -> Manifest:
        """Become the writer if `check_newest` accepts the base of our first manifest; returns the first manifest.

        Raises NotFound if there is no manifest, Conflict if the topic was deleted, and the errors of `check_newest`.
        """
        with self._lock:
            manifest = self.refresh(exact=True)
            self._check_newest = check_newest
            facts = {"topic": manifest.topic, "topic_id": manifest.topic_id, "partition": manifest.partition}
            return self.become_writer(writer_id, now_ms, **facts)  # type: ignore[arg-type]

    def _successor(
        self, base: Manifest | None, draft: Manifest, *, epoch: int, writer_id: str, now_ms: int
    ) -> Manifest:
        if self._state is LogState.READER:
            if base is None or self._check_newest is None:
                raise NotFound("cannot take over the partition, it has no writer", prefix=self._prefix)
            self._check_newest(base)
        return super()._successor(base, draft, epoch=epoch, writer_id=writer_id, now_ms=now_ms)


class ResumedWriterLog(MetadataLog):
    """`MetadataLog` for a process that continues an epoch which its job started in another process."""

    def resume(self, *, epoch: int, writer_id: str) -> Manifest:
        """Become the writer of `epoch` again; returns the newest manifest.

        Raises NotFound if there is no manifest, Fenced if another epoch has started, Conflict if the topic was deleted,
        InvalidRequest if this log is a writer already.
        """
        with self._lock:
            if self._state is not LogState.READER:
                raise InvalidRequest(
                    "cannot take over the partition, the log is not open for reading", state=self._state.value
                )
            manifest = self.refresh(exact=True)
            if (manifest.epoch, manifest.writer_id) != (epoch, writer_id):
                facts = {"prefix": self._prefix, "epoch": manifest.epoch, "ours": epoch, "writer": manifest.writer_id}
                raise Fenced("cannot take over the partition, another writer took over", **facts)
            if manifest.deleted_ms is not None:
                raise Conflict(
                    "cannot take over the partition, the topic was deleted", topic=manifest.topic, prefix=self._prefix
                )
            self._move(LogState.WRITER)
            self._epoch = manifest.epoch
            return manifest
