"""The part of a manager that tells of what it stands on: its log directories, its cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from local.errors import LogError
from local.logdirs.log_dir_info import LogDirFacts
from local.logdirs.log_dirs import LogDirectories
from local.names import TopicPartition
from local.storage import Storage
from remote.fetch.chunk_cache import ChunkCache
from tiered.partition.partition_opening import Opener

if TYPE_CHECKING:
    from policies.decisions import Plan
    from tiered.maintenance.apply import Applied
    from tiered.maintenance.maintenance import Rounds


class OverDirectories:
    """Mixed into the manager; every method may be called from any thread."""

    _directory: LogDirectories
    _opener: Opener
    _own_rounds: Rounds | None  # None: opened to look, which needs none of what they import

    @property
    def _rounds(self) -> Rounds:
        assert self._own_rounds is not None, "the caller may write"
        return self._own_rounds

    def offline_directories(self) -> Mapping[str, LogError]:
        """The log directories that cannot be used until the next start, and why; the others go on."""
        return self._directory.offline

    def directory_facts(self) -> Sequence[LogDirFacts]:
        """Room and partitions of each log directory at this moment, in the order of configuration."""
        return self._directory.facts()

    def first_directory(self) -> tuple[Storage, str]:
        """Where the node keeps what it needs once: the first log directory that is online, and how to reach it."""
        return self._directory.first_online()

    def directory_places(self) -> Sequence[tuple[Storage, str]]:
        """Every log directory with how to reach it; one that is offline refuses."""
        return self._directory.places()

    def drop_early(self, plan: Plan) -> Mapping[TopicPartition, Applied]:
        """Do a plan's local drops (`tiered.service.disk_pressure`), and nothing else of it, without waiting for a copy
        that is under way. A partition that somebody is changing on the disk is left out; errors are in `problems`."""
        return self._rounds.drop_early(plan)

    def partitions_in(self, root: str) -> frozenset[TopicPartition]:
        """What lies in one of them."""
        return frozenset(self._directory.partitions_of(root))

    def fetch_cache(self) -> ChunkCache:
        """What was fetched from the store and is kept in memory."""
        return self._opener.cache
