"""Where a stream stands: offsets as JSON in Spark's checkpoint, and how far one micro-batch may go.

| JSON | meaning |
|---|---|
| ``{"orders":{"0":120}}`` | the first offset that was not read yet, as Spark's Kafka source writes it |
| ``"@ids": {"orders":"<topic id>"}`` | whose offsets these are: a topic created anew begins at 0 again |
| ``"@since": {"orders":{"0":100}}`` | where the batch that ends here begins, where its start does not say it |
| ``"@initial": true`` | nobody has read anything: the start may still be another one after a restart |

The last two make a batch that was planned and not finished the same batch after a restart. Spark does not keep the
initial offsets; `latest` is another offset by then, and a new partition's log may begin later. No name of a topic
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
    """See the module text."""

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
        """Raises InvalidRequest for what is no position, as when the checkpoint is another source's."""
        try:
            return StreamPosition(
                offsets=_flat({name: each for name, each in given.items() if not name.startswith("@")}),
                topic_ids=_words(given.get(_IDS, {})),
                since=_flat(given.get(_SINCE, {})),
                is_initial=given.get(_INITIAL) is True,
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidRequest("reading a stream's checkpoint, not an offset of this source", offset=given) from error


def batch_start(start: StreamPosition, end: StreamPosition, partition: TopicPartition) -> int:
    """Where the batch between the two begins in a partition of `end`."""
    if partition in end.since:
        return end.since[partition]
    return start.offsets[partition]


def prorated(start: Offsets, ends: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Ends that are `limit` offsets in all behind `start`, each partition by its share of what there is.

    As Kafka's source does it: a share below one is one, so `limit` may be passed by a few where partitions are many.
    """
    sizes = {each: max(0, ends[each] - start[each]) for each in ends}
    total = sum(sizes.values())
    if total <= limit:
        return dict(ends)
    return {each: min(ends[each], start[each] + share(limit, sizes[each], total)) for each in ends}


def share(limit: int, size: int, total: int) -> int:
    """What `size` of `total` gets of `limit`; at least one of anything."""
    exact = limit * size / total
    return ceil(exact) if exact < 1 else floor(exact)


def _nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(offsets.items()):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return found


def _flat(nested: object) -> dict[TopicPartition, int]:
    if not isinstance(nested, dict):
        raise TypeError("not an object")
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, partitions in nested.items()
        for number, offset in partitions.items()
    }


def _words(given: object) -> dict[str, str]:
    if not isinstance(given, dict) or not all(isinstance(each, str) for each in given.values()):
        raise TypeError("not an object of strings")
    return given
