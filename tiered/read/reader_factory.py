"""The base class of everything that offers readers. Reader modules are imported at the first request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from local.names import TopicPartition
from local.records.isolation import Isolation
from remote.manifest.view import DEFAULT_VIEW

if TYPE_CHECKING:
    from tiered.read.partition_source import PartitionSource
    from tiered.read.reader import TieredReader


class Readable(ABC):
    """Base class that makes readers from the partition sources of its subclass."""

    @abstractmethod
    def _source(self, name: TopicPartition) -> PartitionSource: ...

    def reader(
        self,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        *,
        read_compacted: bool = False,
        view: str = DEFAULT_VIEW,
    ) -> TieredReader:
        """A reader of the full log, or with `read_compacted` of that compacted view and the log behind it.

        Under READ_COMMITTED on the bucket alone, a stream ends before the first transaction whose end is not in the
        bucket.
        """
        if read_compacted:
            from tiered.read.view_reader import CompactedReader

            return CompactedReader(self._source, isolation, view)
        from tiered.read.reader import TieredReader

        return TieredReader(self._source, isolation)
