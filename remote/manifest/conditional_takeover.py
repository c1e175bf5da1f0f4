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
from remote.manifest.manifest import Head


class ConditionalTakeoverLog(MetadataLog):
    """`MetadataLog` for a job that becomes the writer only if that harms no other writer."""

    _judge: Callable[[Head], None] | None = None

    def take_over_if(self, writer_id: str, now_ms: int, *, judge: Callable[[Head], None]) -> Head:
        """Become the writer if `judge` accepts the base of our first manifest; returns the first manifest.

        Raises NotFound if there is no manifest, Conflict if the topic was deleted, and the errors of `judge`.
        """
        with self._lock:
            head = self.refresh(exact=True)
            self._judge = judge
            facts = {"topic": head.topic, "topic_id": head.topic_id, "partition": head.partition}
            return self.become_writer(writer_id, now_ms, **facts)  # type: ignore[arg-type]

    def _successor(self, base: Head | None, draft: Head, *, epoch: int, writer_id: str, now_ms: int) -> Head:
        if self._state is LogState.READER:
            if base is None or self._judge is None:
                raise NotFound("taking over a partition, nobody wrote it", prefix=self._prefix)
            self._judge(base)
        return super()._successor(base, draft, epoch=epoch, writer_id=writer_id, now_ms=now_ms)


class ResumedWriterLog(MetadataLog):
    """`MetadataLog` for a process that continues an epoch which its job started in another process."""

    def resume(self, *, epoch: int, writer_id: str) -> Head:
        """Become the writer of `epoch` again; returns the newest manifest.

        Raises NotFound if there is no manifest, Fenced if another epoch has started, Conflict if the topic was deleted,
        InvalidRequest if this log is a writer already.
        """
        with self._lock:
            if self._state is not LogState.READER:
                raise InvalidRequest("going on as a writer, not a reader", state=self._state.value)
            head = self.refresh(exact=True)
            if (head.epoch, head.writer_id) != (epoch, writer_id):
                facts = {"prefix": self._prefix, "epoch": head.epoch, "ours": epoch, "writer": head.writer_id}
                raise Fenced("going on as a writer, another one took over", **facts)
            if head.deleted_ms is not None:
                raise Conflict("going on as a writer, the topic was deleted", topic=head.topic, prefix=self._prefix)
            self._move(LogState.WRITER)
            self._epoch = head.epoch
            return head
