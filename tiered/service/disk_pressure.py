"""Relief of a full disk: segments with a remote copy are dropped early.

`tiered.partition.disk_room` refuses appends before this helps. The relief waits for no copy in progress: the store may
not answer, and the disk would fill in that time.

A segment that only this disk has is never dropped. A dropped segment frees its bytes after ``file.delete.delay.ms``.
Until then they count as free, so that no more is dropped than needed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from local.errors import DiskFailed, LogError
from local.logdirs.log_dir_info import LogDirFacts
from local.names import TopicPartition
from policies.decisions import Decision, DropLocal, Plan
from policies.disk_relief import disk_relief
from tiered.config.disk_properties import APPEND_FREE_MIN, RELIEF_FREE_MIN
from tiered.manager.manager import LogManager

_log = logging.getLogger(__name__)


class DiskRelief:
    """Checks the disks before each maintenance run. Not thread safe: maintenance runs are sequential."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self.disk_error: LogError | None = None  # error of a log directory that refuses records because it is full
        self._leaving: list[tuple[int, int, str, int]] = []  # dropped at, delay in ms, directory, bytes

    def relieve(self, now_ms: int) -> int:
        """Drop segments as needed; return their bytes. Problems of partitions are in the manager, not raised."""
        directories = self._manager.directory_facts()
        self._look_for_room(directories)
        least = self._manager.config.bytes_of(RELIEF_FREE_MIN)
        self._leaving = [each for each in self._leaving if 0 <= now_ms - each[0] < each[1]]
        dropped = 0
        for facts in directories if least else ():
            if facts.is_offline or facts.free_bytes is None or facts.free_bytes >= least:
                continue
            wanted = least - facts.free_bytes - sum(each[3] for each in self._leaving if each[2] == facts.path)
            if wanted > 0:
                dropped += self._relieve(facts.path, wanted, now_ms)
        return dropped

    def _look_for_room(self, directories: Iterable[LogDirFacts]) -> None:
        least = max(1, self._manager.config.bytes_of(APPEND_FREE_MIN))
        before, self.disk_error = self.disk_error, None
        for facts in directories:
            if not facts.is_offline and facts.free_bytes is not None and facts.free_bytes < least:
                self.disk_error = DiskFailed(
                    "cannot append, the disk is full: appends are refused until it has space",
                    directory=facts.path,
                    free_bytes=facts.free_bytes,
                    least_bytes=least,
                    cause="enospc",
                )
                if before is None:
                    _log.error("the disk is full: error=%s", self.disk_error)
                return
        if before is not None:
            _log.warning("the disk has space again")

    def _relieve(self, root: str, wanted: int, now_ms: int) -> int:
        inside = self._manager.partitions_in(root)
        there = [held for held in self._manager.partitions() if held.name in inside]
        snapshots = [held.snapshot(now_ms, may_ask=False) for held in there if held.is_writer]
        drops = disk_relief(snapshots, wanted)
        decisions: Mapping[TopicPartition, list[Decision]] = {name: [*each] for name, each in drops.items()}
        applied = self._manager.drop_early(Plan(now_ms=now_ms, decisions=decisions))
        delays = {each.partition: each.rules.file_delete_delay_ms for each in snapshots}
        dropped = 0
        for name, result in applied.items():
            size = sum(each.size_bytes for each in result.done if isinstance(each, DropLocal))
            self._leaving.append((now_ms, delays[name], root, size))
            dropped += size
        _log.warning(
            ("the disk is nearly full, copied segments are dropped early: directory=%s wanted=%d dropped=%d"),
            root,
            wanted,
            dropped,
        )
        return dropped
