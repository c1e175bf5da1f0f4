"""A stream's position: offsets as JSON in Spark's checkpoint, and the limits of a micro-batch.

| JSON | meaning |
|---|---|
| ``{"orders":{"0":120}}`` | the first unread offset, as Spark's Kafka source writes it |
| ``"@ids": {"orders":"<topic id>"}`` | the topic of the offsets: a topic that is created again begins at 0 |
| ``"@since": {"orders":{"0":100}}`` | the begin of the batch that ends here, if its start position lacks it |
| ``"@initial": true`` | no batch was read: a restart may choose another start |

With the last two, a batch that was planned and not finished is the same batch after a restart. Spark does not store the
initial offsets; after a restart `latest` is another offset, and a new partition's log may begin later. No topic name
begins with ``@``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, floor

from local.errors import InvalidRequest
from local.names import TopicPartition

Offsets = Mapping[TopicPartition, int]
_IDS, _SINCE, _INITIAL = "@ids", "@since", "@initial"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """The position of the module text."""

    offsets: Offsets
    topic_ids: Mapping[str, str]
    since: Offsets = field(default_factory=dict)
    is_initial: bool = False

    def encode(self) -> dict[str, object]:
        found: dict[str, object] = dict(_nested(self.offsets))
        found[_IDS] = dict(sorted(self.topic_ids.items()))
        if self.since:
            found[_SINCE] = _nested(self.since)
        if self.is_initial:
            found[_INITIAL] = True
        return found

    @staticmethod
    def decode(given: Mapping[str, object]) -> StreamPosition:
        """Raises InvalidRequest for a value that is no position, as in the checkpoint of another source."""
        try:
            return StreamPosition(
                offsets=_flat({name: each for name, each in given.items() if not name.startswith("@")}),
                topic_ids=_words(given.get(_IDS, {})),
                since=_flat(given.get(_SINCE, {})),
                is_initial=given.get(_INITIAL) is True,
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidRequest(
                "cannot read the checkpoint of a stream, it is not an offset of this source", offset=given
            ) from error


def batch_start(start: StreamPosition, end: StreamPosition, partition: TopicPartition) -> int:
    """The begin of the batch between the two positions in a partition of `end`."""
    if partition in end.since:
        return end.since[partition]
    return start.offsets[partition]


def prorated(start: Offsets, ends: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Ends that are `limit` offsets in all behind `start`, each partition by its share of the backlog.

    As in Kafka's source a share below one is one: with many partitions the total may exceed `limit` by a few.
    """
    sizes = {each: max(0, ends[each] - start[each]) for each in ends}
    total = sum(sizes.values())
    if total <= limit:
        return dict(ends)
    return {each: min(ends[each], start[each] + share(limit, sizes[each], total)) for each in ends}


def share(limit: int, size: int, total: int) -> int:
    """The share of `limit` for `size` of `total`; at least one if `size` is not zero."""
    exact = limit * size / total
    return ceil(exact) if exact < 1 else floor(exact)


def _nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(offsets.items()):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return found


def _flat(nested: object) -> dict[TopicPartition, int]:
    if not isinstance(nested, dict):
        raise TypeError("it is not an object")
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, partitions in nested.items()
        for number, offset in partitions.items()
    }


def _words(given: object) -> dict[str, str]:
    if not isinstance(given, dict) or not all(isinstance(each, str) for each in given.values()):
        raise TypeError("it is not an object of strings")
    return given
