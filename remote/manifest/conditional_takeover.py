"""Taking over a partition from a writer that is over, and from nobody else; and going on as a writer elsewhere.

`MetadataLog.become_writer` takes the epoch from whoever has it: right for a manager, which is its node's, and for an
ingest, which was asked for. Housekeeping must not: between its look and its head somebody may have begun to write. The
head by which the epoch begins is created only if absent behind the head it was built on, so it is enough to judge that
one: whoever comes in between takes the name, and then is judged instead.

An ingest begins its epoch in one process and commits, as a guest of it, in others (`tiered.jobs.ingest`). What a guest
may not, it may, for the epoch is its own: `ResumedLog` is the writer there as long as no other epoch has begun.
"""

from __future__ import annotations

from collections.abc import Callable

from local.errors import Conflict, Fenced, InvalidRequest, NotFound
from remote.manifest.commit_protocol import LogState, MetadataLog
from remote.manifest.manifest import Head


class HeirLog(MetadataLog):
    """`MetadataLog` for a job that becomes the writer only where that costs nobody anything."""

    _judge: Callable[[Head], None] | None = None

    def inherit(self, writer_id: str, now_ms: int, *, judge: Callable[[Head], None]) -> Head:
        """Become the writer, if `judge` raises nothing for the very head that ours follows; the head.

        Raises NotFound where there is no head, Conflict when the topic was deleted, and what `judge` raises.
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


class ResumedLog(MetadataLog):
    """`MetadataLog` for a process that goes on with an epoch which its job began in another one."""

    def resume(self, *, epoch: int, writer_id: str) -> Head:
        """Be the writer of `epoch` again; the newest head.

        Raises NotFound where there is no head, Fenced when another epoch has begun, Conflict when the topic was
        deleted, InvalidRequest for a log that is a writer already.
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
