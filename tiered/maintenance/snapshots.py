"""Snapshots of a manager's partitions, for decisions or for figures alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from local.errors import LogError
from local.logdirs.log_dirs import LogDirectories
from local.names import TopicPartition
from tiered.maintenance.cleaning import Cleaning
from tiered.partition.partition import Partition

if TYPE_CHECKING:
    from policies.snapshot import PartitionFigures, PartitionSnapshot

T = TypeVar("T")


class Snapshots(ABC):
    """Mixed into the manager; every method may be called from any thread."""

    cleaning: Cleaning
    _directory: LogDirectories
    _partitions: dict[TopicPartition, Partition]
    _unseen: set[TopicPartition]

    @abstractmethod
    def _note(self, name: TopicPartition, error: LogError) -> None: ...

    @abstractmethod
    def _forget(self, name: TopicPartition) -> None: ...

    def partitions(self, topics: Iterable[str] | None = None) -> list[Partition]:
        """The open partitions with an online disk, by name."""
        return self._held(topics)

    def snapshots(self, now_ms: int, topics: Iterable[str] | None = None) -> list[PartitionSnapshot]:
        """Both tiers of every partition (or of some topics') at this moment.

        Partitions that could not be opened or read (an index that the disk does not return) are left out and in
        `problems`.
        """
        return self._looked_at(self._held(topics), now_ms)

    def figures(self, now_ms: int, topics: Iterable[str] | None = None) -> list[PartitionFigures]:
        """The same without reading the logs, for figures alone (`Partition.figures`)."""
        return self._taken(self._held(topics), lambda held: held.figures(now_ms))

    def _held(self, topics: Iterable[str] | None = None) -> list[Partition]:
        """The open partitions with an online disk, in order; a copy, as others may be added concurrently."""
        wanted = None if topics is None else set(topics)
        open_ones = [(name, held) for name, held in list(self._partitions.items()) if self._directory.is_online(name)]
        return [held for name, held in sorted(open_ones) if wanted is None or name.topic in wanted]

    def _looked_at(
        self, partitions: Iterable[Partition], now_ms: int, *, may_ask: bool = True
    ) -> list[PartitionSnapshot]:
        def take(held: Partition) -> PartitionSnapshot:
            return held.snapshot(now_ms, may_clean=self.cleaning.may_clean(held, now_ms), may_ask=may_ask)

        return self._taken(partitions, take)

    def _taken(self, partitions: Iterable[Partition], take: Callable[[Partition], T]) -> list[T]:
        found = []
        for held in partitions:
            try:
                found.append(take(held))
            except LogError as error:
                self._unseen.add(held.name)
                self._note(held.name, error)
            else:
                if held.name in self._unseen:
                    self._unseen.discard(held.name)
                    self._forget(held.name)
        return found
