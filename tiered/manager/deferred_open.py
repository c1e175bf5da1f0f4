"""Logs that could not be opened because the disk had no room to recover them: opened as soon as it has.

A start on a full disk (a process was killed there, whoever restarts it did so at once) leaves each such log aside, as
it does a damaged one. But nothing is wrong with it, and nobody has to mend it: before each round it is tried once more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from local.errors import DiskFailed, LogError
from local.names import TopicPartition
from tiered.node.topic_registry import TopicRegistry
from tiered.partition.log_loading import Loaded, load_logs
from tiered.partition.partition import Partition
from tiered.partition.partition_opening import Opener

_log = logging.getLogger(__name__)


class LateOpening:
    """The part of a manager that opens what its start had to leave aside. One thread at a time."""

    _opener: Opener
    _registry: TopicRegistry
    _topics_lock: threading.RLock
    _unopened: dict[TopicPartition, LogError]

    def _keep(self, loaded: Loaded) -> list[Partition]:
        raise NotImplementedError

    def _forget(self, name: TopicPartition) -> None:
        raise NotImplementedError

    def _open_late(self, now_ms: int) -> None:
        """Try again what waits for room; what is in the way now is noted. Whoever owns partitions takes them up."""
        if not any(_waits(each) for each in list(self._unopened.values())):
            return
        with self._topics_lock:
            names = [name for name, error in self._unopened.items() if _waits(error)]
            self._opened(
                self._keep(load_logs({"": names}, lambda name: self._open(name, now_ms), threads_per_directory=1))
            )

    def _open(self, name: TopicPartition, now_ms: int) -> Partition:
        return self._opener.open_log(name, self._registry.get(name.topic), now_ms)

    def _opened(self, held: Iterable[Partition]) -> None:
        for each in held:
            self._unopened.pop(each.name, None)
            self._forget(each.name)
            _log.info("a log was opened, there was no room before: partition=%s", each.name)


def _waits(error: LogError) -> bool:
    return isinstance(error, DiskFailed) and error.lacks_room
