"""Target assignments of consumer groups: which member gets which partitions. No I/O.

| assignor | result |
|---|---|
| range | per topic a range for each subscriber, by instance id, then by member id; the first get one more |
| uniform | numbers of partitions differ by at most one where subscriptions allow it; a member retains what it has |

`assign_range` gives Kafka's result. `assign_uniform` is as balanced as Kafka's and moves as few partitions; among equal
results Kafka's depends on the order of its hash maps. With different subscriptions no move of a partition improves it.

Source: kafka `RangeAssignor`, `UniformHomogeneousAssignmentBuilder`, `UniformHeterogeneousAssignmentBuilder`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from tiered.serve.groups.consumer.records import Assignment


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member. `target` is its assignment before."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    target: Assignment


Counts = Mapping[UUID, int]  # partitions of every subscribed topic
Assign = Callable[[Sequence[Subscriber], Counts], dict[str, Assignment]]
_Sets = dict[UUID, set[int]]


def assign_range(members: Sequence[Subscriber], counts: Counts) -> dict[str, Assignment]:
    ordered = sorted(members, key=_range_order)
    found: dict[str, dict[UUID, frozenset[int]]] = {each.member_id: {} for each in ordered}
    subscriptions = _Subscriptions(ordered, counts)
    for topic in sorted(counts):
        subscribers = subscriptions.of(topic)
        least, extras = divmod(counts[topic], max(1, len(subscribers)))
        begin = 0
        for at, index in enumerate(subscribers[: counts[topic]]):  # the others get nothing
            end = begin + least + (at < extras)
            found[ordered[index].member_id][topic] = frozenset(range(begin, end))
            begin = end
    return dict(found)


def _range_order(member: Subscriber) -> tuple[bool, bytes]:
    """Java's order of strings is that of UTF-16."""
    name = member.member_id if member.instance_id is None else member.instance_id
    return member.instance_id is None, name.encode("utf-16-be", "surrogatepass")


def assign_uniform(members: Sequence[Subscriber], counts: Counts) -> dict[str, Assignment]:
    if len({each.topics for each in members}) <= 1:
        found = _assign_equal(members, counts)
    else:
        found = _assign_different(members, counts)
    return {
        name: {topic: frozenset(numbers) for topic, numbers in own.items() if numbers} for name, own in found.items()
    }


def _valid(member: Subscriber, counts: Counts) -> _Sets:
    """What the member has of its topics that exist."""
    return {
        topic: {each for each in numbers if each < counts[topic]}
        for topic, numbers in member.target.items()
        if topic in member.topics and topic in counts
    }


def _assign_equal(members: Sequence[Subscriber], counts: Counts) -> dict[str, _Sets]:
    """All members have the same subscription."""
    found = {each.member_id: _valid(each, counts) for each in members}
    wanted = members[0].topics & counts.keys() if members else frozenset()
    total = sum(counts[topic] for topic in wanted)
    least, extras = divmod(total, max(1, len(members)))
    free: list[tuple[UUID, int]] = []
    taken = {(topic, each) for own in found.values() for topic, numbers in own.items() for each in numbers}
    free += [(topic, each) for topic in sorted(wanted) for each in range(counts[topic]) if (topic, each) not in taken]
    unfilled: list[tuple[str, int]] = []
    for at, (name, own) in enumerate(found.items()):
        has_extra = extras > 0
        quota = least + has_extra
        for topic, numbers in own.items():
            surplus = sorted(numbers)[quota:]
            numbers.difference_update(surplus)
            free += [(topic, each) for each in surplus]
            quota -= len(numbers)
        if quota and has_extra and len(members) - at > extras:
            quota, has_extra = quota - 1, False  # a later member may have the extra one already
        extras -= has_extra
        if quota:
            unfilled.append((name, quota))
    rest = iter(free)
    for name, quota in unfilled:
        for _, (topic, number) in zip(range(quota), rest, strict=False):
            found[name].setdefault(topic, set()).add(number)
    return found


class _Subscriptions:
    """The members by their subscription: few members have one of their own. Members are indexes of a sequence."""

    def __init__(self, members: Sequence[Subscriber], counts: Counts) -> None:
        classes: dict[frozenset[UUID], list[int]] = {}
        for at, each in enumerate(members):
            classes.setdefault(each.topics, []).append(at)
        self.classes = list(classes.values())
        self._of_topic: dict[UUID, list[int]] = {topic: [] for topic in counts}  # numbers of classes
        for number, topics in enumerate(classes):
            for topic in topics & counts.keys():
                self._of_topic[topic].append(number)
        self._merged: dict[tuple[int, ...], Sequence[int]] = {}

    def classes_of(self, topic: UUID) -> Sequence[int]:
        return self._of_topic[topic]

    def count_of(self, topic: UUID) -> int:
        return sum(len(self.classes[each]) for each in self._of_topic[topic])

    def of(self, topic: UUID) -> Sequence[int]:
        """The subscribers of a topic in their order."""
        numbers = tuple(self._of_topic[topic])
        if numbers not in self._merged:
            self._merged[numbers] = sorted(at for each in numbers for at in self.classes[each])
        return self._merged[numbers]


class _Loads:
    """How many partitions each member has, and the member of a subscription with the fewest, the first of equal ones.

    Each change of a load adds an entry to the heap of the member's subscription. An entry of an earlier load is void.
    """

    def __init__(self, loads: Sequence[int], classes: Sequence[Sequence[int]]) -> None:
        self._loads = list(loads)
        self._class_of = {at: number for number, members in enumerate(classes) for at in members}
        self._heaps = [[(loads[at], at) for at in members] for members in classes]
        for each in self._heaps:
            heapq.heapify(each)

    def __getitem__(self, member: int) -> int:
        return self._loads[member]

    def change(self, member: int, by: int) -> None:
        load = self._loads[member] = self._loads[member] + by
        heapq.heappush(self._heaps[self._class_of[member]], (load, member))

    def least(self) -> int:
        """The fewest partitions of any member."""
        return min(self._loads)

    def first(self, number: int) -> tuple[int, int]:
        """The load and the member of a subscription with the fewest partitions."""
        heap = self._heaps[number]
        while self._loads[heap[0][1]] != heap[0][0]:
            heapq.heappop(heap)
        return heap[0]


def _assign_different(members: Sequence[Subscriber], counts: Counts) -> dict[str, _Sets]:
    found = [_valid(each, counts) for each in members]
    owners: dict[UUID, dict[int, set[int]]] = {topic: {} for topic in counts}  # the members with partitions of a topic
    for at, own in enumerate(found):
        for topic, numbers in own.items():
            owners[topic][at] = numbers
    subscriptions = _Subscriptions(members, counts)
    loads = _Loads([sum(map(len, own.values())) for own in found], subscriptions.classes)
    topics = sorted(filter(subscriptions.classes_of, counts), key=subscriptions.count_of)
    for topic in topics:
        taken = {each for numbers in owners[topic].values() for each in numbers}
        free = [each for each in range(counts[topic]) if each not in taken]
        receivers = _Receivers(loads, subscriptions.classes_of(topic)) if free else None
        for number in free:
            assert receivers is not None, "there are free partitions"
            receiver = receivers.take()
            owners[topic].setdefault(receiver, found[receiver].setdefault(topic, set())).add(number)
    # Each move lowers the sum of the squares of the loads, so it ends.
    has_moved = True
    while has_moved:
        has_moved = False
        for topic in topics:
            most = max((loads[at] for at, numbers in owners[topic].items() if numbers), default=0)
            if most - loads.least() >= 2:
                has_moved = _balance(topic, subscriptions.classes_of(topic), owners[topic], found, loads) or has_moved
    return {each.member_id: own for each, own in zip(members, found, strict=True)}


class _Receivers:
    """The subscribers of one topic: the one with the fewest partitions is next, the first of equal ones."""

    def __init__(self, loads: _Loads, numbers: Sequence[int]) -> None:
        self._loads = loads
        self._heap = [(*loads.first(each), each) for each in numbers]
        heapq.heapify(self._heap)

    @property
    def first(self) -> tuple[int, int]:
        """Its load, and the member."""
        while True:
            load, member, number = self._heap[0]
            now = self._loads.first(number)
            if now == (load, member):
                return now
            heapq.heapreplace(self._heap, (*now, number))

    def take(self) -> int:
        """Give it one partition more."""
        _, member = self.first
        self._loads.change(member, 1)
        return member


def _balance(
    topic: UUID, numbers: Sequence[int], owners: dict[int, set[int]], found: Sequence[_Sets], loads: _Loads
) -> bool:
    """Move partitions of one topic from members with many to members with few. Whether any moved."""
    receivers = _Receivers(loads, numbers)
    donors = [(-loads[at], at) for at, each in owners.items() if each]
    heapq.heapify(donors)
    has_moved = False
    while donors:
        most, donor = donors[0]
        if loads[donor] != -most or not owners[donor]:
            heapq.heappop(donors)
            if owners[donor]:
                heapq.heappush(donors, (-loads[donor], donor))
            continue
        least, receiver = receivers.first
        if -most - least < 2:
            return has_moved
        number = max(owners[donor])
        owners[donor].discard(number)
        owners.setdefault(receiver, found[receiver].setdefault(topic, set())).add(number)
        loads.change(donor, -1)
        loads.change(receiver, 1)
        has_moved = True
    return has_moved


ASSIGNORS: Mapping[str, Assign] = MappingProxyType({"uniform": assign_uniform, "range": assign_range})
