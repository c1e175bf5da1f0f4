"""Open logs later that could not be recovered at the start because the disk was full.

A start on a full disk, for example right after a process was killed there, leaves each such log closed, like a damaged
one. But the log is sound and needs no repair: it is tried again before each maintenance run.
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


class DeferredOpen:
    """The part of a manager that opens logs left closed at the start. One thread at a time."""

    _opener: Opener
    _registry: TopicRegistry
    _topics_lock: threading.RLock
    _unopened: dict[TopicPartition, LogError]

    def _keep(self, loaded: Loaded) -> list[Partition]:
        raise NotImplementedError

    def _forget(self, name: TopicPartition) -> None:
        raise NotImplementedError

    def _open_late(self, now_ms: int) -> None:
        """Retry the logs that wait for room, and note the new errors. Acquiring the partitions comes later."""
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
            _log.info("a log was opened after the disk had space again: partition=%s", each.name)


def _waits(error: LogError) -> bool:
    return isinstance(error, DiskFailed) and error.lacks_room
