"""Writes to ``__consumer_offsets``: one append at a time for each partition, waiting writes share the next one.

| step | effect | a crash after it |
|---|---|---|
| 1 | the batch is durable | the commit exists; its client has no answer and commits again |
| 2 | `done`: the memory of the coordinator | the same: memory is rebuilt from the log |
| 3 | the answer | the client knows |

An append has several batches if it is large. A write succeeds if all its batches are durable. A failed write has no
effect in memory. Its records may be in the log: after a restart the commit exists, which its client was not promised.

A write with a record above RECORD_BYTES_MAX fails before its append, so it does not fail the writes of others.

`submit_alone` builds its records when no other write of the partition is at work, so from what the log says. Tombstones
so cover every commit before them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from local.errors import Fenced, InvalidRequest, LogError, NotFound
from tiered.serve.groups.offsets_log import BATCH_BYTES_MAX, LogRecord, OffsetsLog, Producer
from tiered.serve.messages.base import Error

if TYPE_CHECKING:
    import asyncio

WRITES_AT_ONCE = 500  # of one append
RECORD_BYTES_MAX = 1_000_000  # less than the default of max.message.bytes
_RECORD_BYTES = 80  # of a record beyond its key and value, at most
_log = logging.getLogger(__name__)

Done = Callable[[Sequence[int], Error], None]  # the log offset of each record, none after an error
Run = Callable[[int, Callable[[], None]], "asyncio.Future[None]"]  # a call in a thread, by partition


@dataclass(frozen=True, slots=True)
class _Write:
    build: Callable[[], Sequence[LogRecord]]
    done: Done
    producer: Producer | None
    is_alone: bool


class OffsetsWriter:
    """Belongs to one event loop. `done` runs there, in the order of the log."""

    def __init__(self, log: OffsetsLog, run: Run, wall_ms: Callable[[], int]) -> None:
        self._log, self._run, self._wall_ms = log, run, wall_ms
        self._waiting: dict[int, deque[_Write]] = {}
        self._active: set[int] = set()

    def submit(
        self, partition: int, records: Sequence[LogRecord], done: Done, *, producer: Producer | None = None
    ) -> None:
        if is_too_large(records):
            done((), Error.MESSAGE_TOO_LARGE)
        else:
            self._add(partition, _Write(lambda: records, done, producer, producer is not None))

    def submit_alone(self, partition: int, build: Callable[[], Sequence[LogRecord]], done: Done) -> None:
        """Without records nothing is appended and `done` gets none."""
        self._add(partition, _Write(build, done, None, True))

    def _add(self, partition: int, write: _Write) -> None:
        self._waiting.setdefault(partition, deque()).append(write)
        if partition not in self._active:
            self._start(partition)

    def _start(self, partition: int) -> None:
        """Begin the next append of the partition. It is active until the effects of the last one are complete."""
        self._active.add(partition)
        while waiting := self._waiting.get(partition):
            writes = [waiting.popleft()]
            while waiting and not (writes[0].is_alone or waiting[0].is_alone) and len(writes) < WRITES_AT_ONCE:
                writes.append(waiting.popleft())
            built = [list(each.build()) for each in writes]
            records = [record for each in built for record in each]
            if records:
                counts = [len(each) for each in built]
                offsets: list[int] = []
                call = partial(_append_all, self._log, partition, records, self._wall_ms(), writes[0].producer, offsets)
                self._run(partition, call).add_done_callback(partial(self._finish, partition, writes, counts, offsets))
                return
            for each in writes:
                each.done((), Error.NONE)
        self._waiting.pop(partition, None)
        self._active.discard(partition)

    def _finish(
        self,
        partition: int,
        writes: Sequence[_Write],
        counts: Sequence[int],
        offsets: Sequence[int],
        append: asyncio.Future[None],
    ) -> None:
        """`offsets` are those of the durable records."""
        if append.cancelled():
            return
        error = append.exception()
        code = Error.NONE if error is None else _code_of(error, partition)
        at = 0
        for write, count in zip(writes, counts, strict=True):
            is_durable = at + count <= len(offsets)
            try:
                write.done(offsets[at : at + count] if is_durable else (), Error.NONE if is_durable else code)
            except Exception:  # noqa: BLE001 - the other writes have their answers
                _log.exception("cannot finish a write of groups: partition=%d", partition)
            at += count
        self._start(partition)


def group_error(error: Error) -> Error:
    """What a member gets for a failed append.

    Source: kafka `GroupMetadataManager.appendGroupMetadataErrorToResponseError`.
    """
    match error:
        case Error.UNKNOWN_TOPIC_OR_PARTITION:
            return Error.COORDINATOR_NOT_AVAILABLE
        case Error.NOT_LEADER_OR_FOLLOWER | Error.KAFKA_STORAGE_ERROR:
            return Error.NOT_COORDINATOR
        case Error.MESSAGE_TOO_LARGE:
            return Error.UNKNOWN_SERVER_ERROR
        case _:
            return error


def commit_error(error: Error) -> Error:
    """What a client gets for a failed commit. Source: kafka `GroupCoordinatorService.handleOperationException`."""
    return Error.INVALID_COMMIT_OFFSET_SIZE if error is Error.MESSAGE_TOO_LARGE else group_error(error)


def is_too_large(records: Sequence[LogRecord]) -> bool:
    """Whether a log may refuse one of the records."""
    return any(_size_of(each) > RECORD_BYTES_MAX for each in records)


def _size_of(record: LogRecord) -> int:
    key, value = record
    return len(key) + len(value or b"") + _RECORD_BYTES


def _append_all(
    log: OffsetsLog,
    partition: int,
    records: Sequence[LogRecord],
    now_ms: int,
    producer: Producer | None,
    offsets: list[int],
) -> None:
    """Append in batches of at most BATCH_BYTES_MAX; one record may be larger.

    `offsets` receives the log offsets of each durable batch. The first failure ends the append.
    """
    start = size = 0
    for at, record in enumerate(records):
        length = _size_of(record)
        if at > start and size + length > BATCH_BYTES_MAX:
            base = log.append(partition, records[start:at], now_ms=now_ms, producer=producer)
            offsets += range(base, base + at - start)
            start, size = at, 0
        size += length
    base = log.append(partition, records[start:], now_ms=now_ms, producer=producer)
    offsets += range(base, base + len(records) - start)


def _code_of(error: BaseException, partition: int) -> Error:
    """Kafka's code of a failed append, before a coordinator translates it for its clients."""
    match error:
        case NotFound():
            code = Error.UNKNOWN_TOPIC_OR_PARTITION
        case Fenced():
            code = Error.NOT_LEADER_OR_FOLLOWER
        case InvalidRequest():
            code = Error.MESSAGE_TOO_LARGE
        case LogError():
            code = Error.KAFKA_STORAGE_ERROR
        case Exception():
            _log.error("cannot write the offsets of groups: partition=%d", partition, exc_info=error)
            return Error.UNKNOWN_SERVER_ERROR
        case _:
            raise error
    _log.warning("cannot write the offsets of groups: partition=%d error=%s", partition, error)
    return code
