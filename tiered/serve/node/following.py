"""The wait for new records of a reader beside a node: a long poll of the running node, else a pause.

The reader reads both tiers itself, as without a node. The node only says that there is something to read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Self

from local.errors import LogError
from local.names import TopicPartition
from local.records.isolation import Isolation

if TYPE_CHECKING:
    from local.format.columns import Columns
    from tiered.read.reader import TieredReader
    from tiered.serve.commands.client import Client

PAUSE_S = 1.0
LONG_POLL_MS = 30_000
PART_RECORDS = 1000


def parts_of(columns: Columns) -> Iterator[Columns]:
    """The same records in order, at most PART_RECORDS together."""
    for at in range(0, len(columns), PART_RECORDS):
        yield columns.select(slice(at, at + PART_RECORDS))


class Following:
    """The records of one topic that a reader has had, and the wait for more. Closes as a context manager."""

    def __init__(
        self,
        directories: Sequence[str],
        topic_id: Callable[[], str] | None,
        isolation: Isolation,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`directories` are those of a node, `topic_id` looks the topic up there; None for a bucket."""
        self.count = 0
        self._directories, self._topic_id, self._isolation, self._pause = directories, topic_id, isolation, pause
        self._offsets: dict[TopicPartition, int] = {}  # the next ones to read
        self._seen: dict[TopicPartition, int] = {}
        self._client: Client | None = None

    def columns(
        self,
        reader: TieredReader,
        partitions: Sequence[TopicPartition],
        first: Callable[[TopicPartition], int],
        count: int | None = None,
    ) -> Iterator[tuple[TopicPartition, Columns]]:
        """The records that were not read yet, partition by partition. The first time they begin at `first`.

        Ends when `self.count`, over all calls, is `count`. Records that expired meanwhile are passed over. A partition
        that was added is read from its start.
        """
        if self.count == count:
            return
        is_first = not self._offsets
        for name in partitions:
            if is_first:
                self._offsets[name] = first(name)
            else:
                self._offsets[name] = max(self._offsets.get(name, 0), reader.offsets(name)[0])
            for part in chain.from_iterable(map(parts_of, reader.columns(name, self._offsets[name]))):
                taken = part if count is None else part.select(slice(count - self.count))
                self.count, self._offsets[name] = self.count + len(taken), int(taken.offsets[-1]) + 1
                yield name, taken
                if self.count == count:
                    return

    def wait(self) -> None:
        """Return when there may be more records."""
        if self._seen == self._offsets:
            self._pause(PAUSE_S)  # the last news had no record: an offset that compaction removed, or an error
        self._seen = dict(self._offsets)
        while self._topic_id is not None and self._connected():
            if self._has_news(self._topic_id()):
                return
        self._pause(PAUSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._client is not None:
            self._client.close()

    def _connected(self) -> bool:
        from tiered.serve.node.command_node import find_node

        if self._client is None:
            with suppress(LogError):  # a node of another user: the reader polls
                self._client = find_node(self._directories, lambda text: None)
        return self._client is not None

    def _has_news(self, topic_id: str) -> bool:
        """Whether there are records, an error, or no node any more."""
        from tiered.serve.messages.base import Api
        from tiered.serve.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
        from tiered.serve.record_source import uuid_of

        assert self._client is not None, "connected before"
        partitions = tuple(
            FetchPartition(partition=name.partition, fetch_offset=offset, partition_max_bytes=1)
            for name, offset in self._offsets.items()
        )
        topic = FetchTopic(topic=next(iter(self._offsets)).topic, topic_id=uuid_of(topic_id), partitions=partitions)
        request = FetchRequest(
            max_wait_ms=LONG_POLL_MS,
            min_bytes=1,
            max_bytes=1,
            isolation_level=int(self._isolation is Isolation.READ_COMMITTED),
            topics=(topic,),
        )
        try:
            response: FetchResponse = self._client.call(Api.FETCH, request)
        except LogError:
            self._client.close()
            self._client = None
            return True
        found = [each for topic in response.responses for each in topic.partitions]
        return bool(response.error_code) or any(each.error_code or any(map(len, each.records)) for each in found)
