"""The part of a manager that reports on its log directories and its cache."""

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
    from tiered.maintenance.maintenance import Maintenance


class OverDirectories:
    """Mixed into the manager; every method may be called from any thread."""

    _directory: LogDirectories
    _opener: Opener
    _own_rounds: Maintenance | None  # None: a read-only open, which does not import their modules

    @property
    def _rounds(self) -> Maintenance:
        assert self._own_rounds is not None, "the caller may write"
        return self._own_rounds

    def offline_directories(self) -> Mapping[str, LogError]:
        """The log directories that are offline until the next start, and why. The others stay in use."""
        return self._directory.offline

    def directory_facts(self) -> Sequence[LogDirFacts]:
        """Free room and partitions of each log directory, in the order of configuration."""
        return self._directory.facts()

    def first_directory(self) -> tuple[Storage, str]:
        """The first online log directory and its storage, for files that a node has once."""
        return self._directory.first_online()

    def directory_places(self) -> Sequence[tuple[Storage, str]]:
        """Every log directory with its storage; the storage of an offline one refuses every call."""
        return self._directory.places()

    def drop_early(self, plan: Plan) -> Mapping[TopicPartition, Applied]:
        """Apply only a plan's local drops, without waiting for a running copy.

        For `tiered.service.worker`.
        A partition that another thread changes on the disk is left out; errors are in `problems`.
        """
        return self._rounds.drop_early(plan)

    def partitions_in(self, root: str) -> frozenset[TopicPartition]:
        """The partitions in one log directory."""
        return frozenset(self._directory.partitions_of(root))

    def fetch_cache(self) -> ChunkCache:
        """The memory cache of fetched bytes."""
        return self._opener.cache
