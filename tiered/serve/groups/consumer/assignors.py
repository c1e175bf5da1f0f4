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
    subscribers = {topic: sum(topic in each.topics for each in members) for topic in counts}
    begins = dict.fromkeys(counts, 0)
    extras = {topic: counts[topic] % number for topic, number in subscribers.items() if number}
    found: dict[str, Assignment] = {}
    for member in sorted(members, key=_range_order):
        own: dict[UUID, frozenset[int]] = {}
        for topic in sorted(member.topics & counts.keys()):
            quota = counts[topic] // subscribers[topic] + (extras[topic] > 0)
            extras[topic] -= 1
            begin = begins[topic]
            begins[topic] = end = min(begin + quota, counts[topic])
            if begin < end:
                own[topic] = frozenset(range(begin, end))
        found[member.member_id] = own
    return found


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


def _assign_different(members: Sequence[Subscriber], counts: Counts) -> dict[str, _Sets]:
    found = {each.member_id: _valid(each, counts) for each in members}
    loads = {name: sum(map(len, own.values())) for name, own in found.items()}
    subscribers = {topic: [each.member_id for each in members if topic in each.topics] for topic in counts}
    topics = sorted((topic for topic in counts if subscribers[topic]), key=lambda topic: len(subscribers[topic]))
    for topic in topics:
        taken = {each for own in found.values() for each in own.get(topic, ())}
        heap = [(loads[name], at, name) for at, name in enumerate(subscribers[topic])]
        heapq.heapify(heap)
        for number in range(counts[topic]):
            if number not in taken:
                load, at, name = heapq.heappop(heap)
                found[name].setdefault(topic, set()).add(number)
                loads[name] = load + 1
                heapq.heappush(heap, (load + 1, at, name))
    # Each move lowers the sum of the squares of the loads, so it ends.
    has_moved = True
    while has_moved:
        has_moved = sum(_balance(topic, subscribers[topic], found, loads) for topic in topics) > 0
    return found


def _balance(topic: UUID, subscribers: Sequence[str], found: dict[str, _Sets], loads: dict[str, int]) -> bool:
    """Move partitions of one topic from members with many to members with few. Whether any moved."""
    receivers = [(loads[name], at, name) for at, name in enumerate(subscribers)]
    donors = [(-loads[name], at, name) for at, name in enumerate(subscribers) if found[name].get(topic)]
    heapq.heapify(receivers)
    heapq.heapify(donors)
    has_moved = False
    while donors:
        most, at, donor = donors[0]
        least, to_at, receiver = receivers[0]
        if loads[receiver] != least:
            heapq.heapreplace(receivers, (loads[receiver], to_at, receiver))
        elif loads[donor] != -most or not found[donor][topic]:
            heapq.heappop(donors)
            if found[donor][topic]:
                heapq.heappush(donors, (-loads[donor], at, donor))
        elif -most - least < 2:
            return has_moved
        else:
            number = max(found[donor][topic])
            found[donor][topic].discard(number)
            found[receiver].setdefault(topic, set()).add(number)
            loads[donor], loads[receiver], has_moved = loads[donor] - 1, least + 1, True
    return has_moved


ASSIGNORS: Mapping[str, Assign] = MappingProxyType({"uniform": assign_uniform, "range": assign_range})
