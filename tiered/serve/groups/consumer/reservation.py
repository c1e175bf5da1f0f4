"""What the assignments of one group may take: memory, which is reserved for all partitions, and time.

A reservation is made before a target assignment is computed, for all its partitions and for the assignments that follow
it. So no heartbeat that only follows its target needs room.

| need of room | without room |
|---|---|
| a member joins or changes its subscription | the request is refused with GROUP_MAX_SIZE_REACHED, and changes nothing |
| topics or partitions were created | those of the target before are assigned, the new ones once there is room |
| an expression matches names for the first time | its members are refused with GROUP_MAX_SIZE_REACHED |
| an expression matches other names | it retains those before |

A target of many members and partitions takes long, and other clients wait. After it, the group computes none for a time
in proportion. Meanwhile members that join have no partitions, and those of removed members have no owner. Small groups
do not pause. Kafka has such a pause from KIP-1263 on, of one second for all groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from tiered.serve.groups.consumer.records import Assignment
from tiered.serve.groups.consumer.sizes import assigned_bytes_max
from tiered.serve.groups.consumer.targets import given_counts

WORK_PER_MS = 10  # members and partitions for each ms of the pause: about 5 to 20 % of one core
PAUSE_MS_MIN, PAUSE_MS_MAX = 100, 5_000
HasRoom = Callable[[int], bool]


class Reservation:
    """`has_room` is whether the node has room for further bytes of members. `counts` are partitions by topic."""

    def __init__(self, has_room: HasRoom) -> None:
        self.has_room = has_room
        self.size_bytes = 0
        self.is_short: bool | None = None  # the target lacks partitions; None: after a load or a failed write
        self.counts: Mapping[UUID, int] = {}  # of the target
        self.unfit: dict[str, int] = {}  # expressions whose names have no room, and the bytes that they need
        self._due_ms = 0  # when the next target may be computed

    def has_room_for(self, counts: Mapping[UUID, int], members: int, used_bytes: int, more_bytes: int = 0) -> bool:
        """Reserve what all partitions need beyond `used_bytes`, if the node has room for it and `more_bytes`.

        Whether it has room.
        """
        wanted = assigned_bytes_max(counts, members)
        grown = more_bytes + max(0, wanted - max(self.size_bytes, used_bytes))
        if grown > 0 and not self.has_room(grown):
            return False
        self.size_bytes = wanted
        return True

    def lacks(self, counts: Mapping[UUID, int], targets: Collection[Assignment]) -> bool:
        """Whether the target lacks partitions of `counts`."""
        if self.is_short is None:
            given: Counter[UUID] = Counter()
            for each in targets:
                given.update({topic: len(numbers) for topic, numbers in each.items()})
            self.is_short, self.counts = given != counts, given_counts(targets)
        return self.is_short

    def admitted(self, counts: Mapping[UUID, int]) -> dict[UUID, int]:
        """What may be assigned without a reservation: the partitions of the target before."""
        return {topic: min(number, self.counts[topic]) for topic, number in counts.items() if topic in self.counts}

    def is_due(self, now_ms: int) -> bool:
        return now_ms >= self._due_ms

    def assigned(self, counts: Mapping[UUID, int], members: int, now_ms: int, *, is_short: bool) -> None:
        """A target of these partitions was computed."""
        self.counts, self.is_short = counts, is_short
        pause_ms = (members + sum(counts.values())) // WORK_PER_MS
        self._due_ms = now_ms + min(pause_ms, PAUSE_MS_MAX) if pause_ms >= PAUSE_MS_MIN else 0
