"""Target assignments: range is exact, uniform is complete, balanced and sticky."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tiered.serve.groups.consumer.assignors import Assign, Subscriber, assign_range, assign_uniform
from tiered.serve.groups.consumer.records import Assignment

A, B, C = (UUID(int=at) for at in range(1, 4))
COUNTS = st.fixed_dictionaries({A: st.integers(1, 12), B: st.integers(1, 12), C: st.integers(1, 4)})
SUBSCRIPTIONS = st.lists(st.sets(st.sampled_from([A, B, C])).map(frozenset), min_size=1, max_size=7)


def members(subscriptions: list[frozenset[UUID]], targets: dict[str, Assignment] | None = None) -> list[Subscriber]:
    found = targets or {}
    return [Subscriber(f"m{at}", None, topics, found.get(f"m{at}", {})) for at, topics in enumerate(subscriptions)]


def sizes(found: dict[str, Assignment]) -> list[int]:
    return [sum(map(len, own.values())) for own in found.values()]


def check_complete(found: dict[str, Assignment], asked: list[Subscriber], counts: dict[UUID, int]) -> None:
    """Every partition with a subscriber has one owner, which subscribes to its topic."""
    owned = [(topic, each) for own in found.values() for topic, numbers in own.items() for each in numbers]
    wanted = {
        (topic, each) for topic in counts for each in range(counts[topic]) if any(topic in m.topics for m in asked)
    }
    assert len(owned) == len(set(owned))
    assert set(owned) == wanted
    for member in asked:
        assert found[member.member_id].keys() <= member.topics
        assert all(found[member.member_id].values()), "no empty sets"


def moved(before: dict[str, Assignment], after: dict[str, Assignment]) -> int:
    return sum(
        len(numbers - after.get(name, {}).get(topic, frozenset()))
        for name, own in before.items()
        for topic, numbers in own.items()
    )


def plain_range(asked: list[Subscriber], counts: dict[UUID, int]) -> dict[str, Assignment]:
    """The definition, in the order of `asked`."""
    found: dict[str, dict[UUID, frozenset[int]]] = {each.member_id: {} for each in asked}
    for topic, count in counts.items():
        subscribers = [each.member_id for each in asked if topic in each.topics]
        numbers = list(range(count))
        for at, name in enumerate(subscribers):
            size = count // len(subscribers) + (at < count % len(subscribers))
            taken, numbers = numbers[:size], numbers[size:]
            if taken:
                found[name][topic] = frozenset(taken)
    return dict(found)


def plain_uniform(asked: list[Subscriber], counts: dict[UUID, int]) -> dict[str, Assignment]:
    """The rule for different subscriptions, one partition after the other, with all members compared each time."""
    owner = {
        (topic, number): at
        for at, each in enumerate(asked)
        for topic, numbers in each.target.items()
        for number in numbers
        if topic in each.topics and number < counts.get(topic, 0)
    }
    load = lambda at: sum(each == at for each in owner.values())  # noqa: E731
    subscribers = {topic: [at for at, each in enumerate(asked) if topic in each.topics] for topic in counts}
    topics = sorted((each for each in counts if subscribers[each]), key=lambda each: len(subscribers[each]))
    for topic in topics:
        for number in range(counts[topic]):
            if (topic, number) not in owner:
                owner[topic, number] = min(subscribers[topic], key=load)
    has_moved = True
    while has_moved:
        has_moved = False
        for topic in topics:
            donors = {owner[topic, number] for number in range(counts[topic])}  # those before the first move
            while having := sorted(donors & {owner[topic, number] for number in range(counts[topic])}):
                donor, receiver = max(having, key=load), min(subscribers[topic], key=load)
                if load(donor) - load(receiver) < 2:
                    break
                number = max(each for each in range(counts[topic]) if owner[topic, each] == donor)
                owner[topic, number], has_moved = receiver, True
    found: dict[str, dict[UUID, frozenset[int]]] = {each.member_id: {} for each in asked}
    for (topic, number), at in owner.items():
        own = found[asked[at].member_id]
        own[topic] = own.get(topic, frozenset()) | {number}
    return dict(found)


@given(counts=COUNTS, subscriptions=SUBSCRIPTIONS, later=SUBSCRIPTIONS)
def test_assignments_are_those_of_the_plain_definitions(
    counts: dict[UUID, int], subscriptions: list[frozenset[UUID]], later: list[frozenset[UUID]]
) -> None:
    assert assign_range(members(later), counts) == plain_range(members(later), counts)
    if len(set(later)) > 1:
        asked = members(later, assign_uniform(members(subscriptions), counts))
        assert assign_uniform(asked, counts) == plain_uniform(asked, counts)


def test_range_gives_ranges_in_the_order_of_instances_and_ids() -> None:
    topics = frozenset({A, B})
    asked = [Subscriber("b", None, topics, {}), Subscriber("a", None, topics, {}), Subscriber("z", "1", topics, {})]
    assert assign_range(asked, {A: 7, B: 2}) == {
        "z": {A: frozenset({0, 1, 2}), B: frozenset({0})},
        "a": {A: frozenset({3, 4}), B: frozenset({1})},
        "b": {A: frozenset({5, 6})},
    }
    asked = [Subscriber("a", None, frozenset({A}), {}), Subscriber("b", None, topics, {})]
    assert assign_range(asked, {A: 3, B: 1}) == {
        "a": {A: frozenset({0, 1})},
        "b": {A: frozenset({2}), B: frozenset({0})},
    }


def test_no_members_and_no_topics_have_no_assignment() -> None:
    for assign in (assign_range, assign_uniform):
        assert assign([], {}) == {}
        assert assign(members([frozenset()]), {}) == {"m0": {}}
        assert assign(members([frozenset({A})]), {}) == {"m0": {}}, "the topic does not exist"


@given(counts=COUNTS, subscriptions=SUBSCRIPTIONS, assign=st.sampled_from([assign_range, assign_uniform]))
def test_every_partition_has_one_owner(
    counts: dict[UUID, int], subscriptions: list[frozenset[UUID]], assign: Assign
) -> None:
    asked = members(subscriptions)
    check_complete(assign(asked, counts), asked, counts)


@given(counts=COUNTS, before=st.integers(1, 8), after=st.integers(1, 8))
def test_uniform_with_one_subscription_moves_only_what_balance_needs(
    counts: dict[UUID, int], before: int, after: int
) -> None:
    every = frozenset(counts)
    first = assign_uniform(members([every] * before), counts)
    asked = members([every] * after, first)
    second = assign_uniform(asked, counts)
    check_complete(second, asked, counts)
    assert max(sizes(second)) - min(sizes(second)) <= 1
    survivors = {name: own for name, own in first.items() if name in second}
    least = sum(counts.values()) // after
    extras = sum(counts.values()) % after
    loads = sorted(sizes(survivors), reverse=True)
    needed = sum(max(0, load - least - (at < extras)) for at, load in enumerate(loads))
    assert moved(survivors, second) == needed
    assert assign_uniform(members([every] * after, second), counts) == second, "it is stable"


@given(counts=COUNTS, subscriptions=SUBSCRIPTIONS, later=SUBSCRIPTIONS)
def test_uniform_with_other_subscriptions_cannot_be_improved_by_a_move(
    counts: dict[UUID, int], subscriptions: list[frozenset[UUID]], later: list[frozenset[UUID]]
) -> None:
    first = assign_uniform(members(subscriptions), counts)
    asked = members(later, first)
    second = assign_uniform(asked, counts)
    check_complete(second, asked, counts)
    loads = {name: sum(map(len, own.values())) for name, own in second.items()}
    for donor, own in second.items():
        for topic in own:
            others = [each.member_id for each in asked if topic in each.topics]
            assert all(loads[donor] - loads[each] <= 1 for each in others), (donor, topic)
    assert assign_uniform(members(later, second), counts) == second, "it is stable"


def test_partitions_that_do_not_exist_any_more_are_dropped() -> None:
    target = {A: frozenset({0, 9}), B: frozenset({0})}
    asked = [Subscriber("m0", None, frozenset({A}), target), Subscriber("m1", None, frozenset({A}), {})]
    found = assign_uniform(asked, {A: 2})
    assert found == {"m0": {A: frozenset({0})}, "m1": {A: frozenset({1})}}
