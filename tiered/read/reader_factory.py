"""Whoever knows where records lie gives readers of them. The readers themselves are loaded when one is asked for."""

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
    """Whoever knows where the records of a partition lie gives readers of them."""

    @abstractmethod
    def _source(self, name: TopicPartition) -> PartitionSource: ...

    def reader(
        self,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        *,
        read_compacted: bool = False,
        view: str = DEFAULT_VIEW,
    ) -> TieredReader:
        """Of the full log, or with `read_compacted` of that compacted view and the log behind it: never one for both.

        Under READ_COMMITTED, with nothing but the bucket, a stream ends before the first transaction that the bucket
        does not know the end of.
        """
        if read_compacted:
            from tiered.read.view_reader import CompactedReader

            return CompactedReader(self._source, isolation, view)
        from tiered.read.reader import TieredReader

        return TieredReader(self._source, isolation)
