"""Acknowledgements of appends by the bucket, for the topics with ``append.acks=remote``.

The rule and the order of effects are those of `tiered.manager.remote_acks`, for ``tiered append --acks remote``. A
batch is acknowledged when a committed manifest holds it. One thread copies for all waiting appends. While a copy runs,
the next appends gather, and one segment for each partition takes them all.

| event | effect on a waiting append |
|---|---|
| a committed manifest holds it | acknowledged |
| an attempt fails for a time (`Unavailable`) | waits for the next attempt, after PAUSE_S or the next append |
| another problem of the partition, such as a takeover | NOT_ENOUGH_REPLICAS_AFTER_APPEND: the records stay in the log |
| `TIMEOUT_MS` passed | the same |
| its request ends, with REQUEST_TIMED_OUT or its connection | is cancelled: the records stay in the log |

An append that the bucket cannot acknowledge now is refused before its write, with NOT_ENOUGH_REPLICAS: the client tries
again. Kafka does the same with too few replicas in sync.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from local.errors import LogError, Unavailable
from local.names import TopicPartition
from tiered.manager.manager import DRAIN_S, LogManager
from tiered.manager.remote_acks import PAUSE_S, TIMEOUT_MS, held_upto, wait_for_bucket
from tiered.partition.partition import Partition
from tiered.serve.handlers.repeated_errors import RepeatedErrors
from tiered.serve.messages.base import Error
from tiered.serve.record_sink import RefusedBatch

Notify = Callable[[Exception | None], None]
_NAMED_MAX = 10
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    partition: TopicPartition
    next_offset: int
    since_ms: int
    notify: Notify


class BucketAcks:
    """Thread safe. `clock` gives ms. Close it before the manager."""

    def __init__(self, manager: LogManager, clock: Callable[[], int]) -> None:
        self._manager, self._clock = manager, clock
        self._errors = RepeatedErrors(_log, attempt="appends wait for the bucket")
        self._changed = threading.Condition()
        self._waiting: dict[_Waiting, None] = {}  # in the order of the appends
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def check(self, held: Partition) -> None:
        """Raise RefusedBatch if the bucket cannot acknowledge an append to the partition now."""
        reason = None
        if not held.is_tiered or held.rules.copy_disabled or held.rules.gives_up_remote:
            reason = "the topic is not copied to the bucket: see remote.storage.enable"
        elif held.rules.cleanup_compact:
            reason = "a compacted topic is copied after it is cleaned: use append.acks=local"
        elif held.is_paused_now():
            reason = "uploads are paused: run 'tiered resume' first"
        elif held.name in self._manager.problems or not held.is_writer:
            reason = "the partition has a problem in the bucket, or its writer role is not acquired yet"
        if reason is not None:
            attempt = f"cannot append with append.acks=remote, {reason}"
            raise RefusedBatch(attempt, error=Error.NOT_ENOUGH_REPLICAS, partition=held.name)

    def when_held(self, partition: TopicPartition, next_offset: int, notify: Notify) -> Callable[[], None]:
        """Call `notify`, from any thread, once the bucket holds all records below `next_offset`, or with an error.

        The result cancels the wait: a running call of `notify` ends.
        """
        waiting = _Waiting(partition, next_offset, self._clock(), notify)
        if self._is_settled(waiting):
            return lambda: None
        with self._changed:
            self._waiting[waiting] = None
            self._changed.notify_all()
            if self._thread is None and not self._is_closed.is_set():
                self._thread = threading.Thread(target=self._work, name="tiered-bucket-acks", daemon=True)
                self._thread.start()
        return partial(self._cancel, waiting)

    def _cancel(self, waiting: _Waiting) -> None:
        with self._changed:
            self._waiting.pop(waiting, None)

    def close(self) -> None:
        """End the thread; its running attempt has DRAIN_S to end. Waiting appends are not acknowledged."""
        self._is_closed.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(DRAIN_S)

    def _work(self) -> None:
        while not self._is_closed.is_set():
            with self._changed:
                while not self._waiting and not self._is_closed.is_set():
                    self._changed.wait()
                waiting = self._waiting.copy()
            has_failed = self._attempt(waiting)
            settled = [each for each in waiting if each in self._waiting and self._is_settled(each)]
            with self._changed:
                for each in settled:
                    self._waiting.pop(each, None)
                is_new = not self._waiting.keys() <= waiting.keys()
                if has_failed and not is_new and not self._is_closed.is_set():
                    self._changed.wait(PAUSE_S)

    def _attempt(self, waiting: Iterable[_Waiting]) -> bool:
        """Copy what the waiting appends need; return whether a part of it failed."""
        ends: dict[TopicPartition, int] = {}
        for each in waiting:
            ends[each.partition] = max(each.next_offset, ends.get(each.partition, 0))
        try:
            wait_for_bucket(
                self._manager,
                ends,
                clock=self._clock,
                pause=lambda seconds: None,
                timeout_ms=0,  # one attempt: the appends that it copied do not wait for the others
                should_stop=self._is_closed.is_set,
            )
        except LogError as error:
            self._errors.warn(",".join(map(str, sorted(ends)[:_NAMED_MAX])), error)
        except Exception:  # noqa: BLE001 - the thread serves the other partitions
            _log.exception("appends wait for the bucket: partitions=%d", len(ends))
        else:
            return False
        return True

    def _is_settled(self, waiting: _Waiting) -> bool:
        """Notify the append if it is acknowledged, or never will be."""
        error: Exception | None = None
        try:
            if held_upto(self._manager, waiting.partition) < waiting.next_offset:
                error = self._manager.problems.get(waiting.partition)
                if error is None or isinstance(error, Unavailable):
                    if 0 <= self._clock() - waiting.since_ms < TIMEOUT_MS:
                        return False
                    error = error or Unavailable("cannot copy records to the bucket", partition=waiting.partition)
        except LogError as problem:
            error = problem
        if error is not None:
            attempt = f"the records are in the log, but not in the bucket: {error}"
            code = Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            error = RefusedBatch(attempt, error=code, partition=waiting.partition)
        waiting.notify(error)
        return True
