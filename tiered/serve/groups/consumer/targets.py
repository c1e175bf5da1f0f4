"""The target assignment of a consumer group: its topics, and what the assignor gives to each member. No I/O.

Source: kafka `TargetAssignmentBuilder`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from tiered.serve.groups.consumer.assignors import ASSIGNORS, Counts, Subscriber
from tiered.serve.groups.consumer.records import NO_PARTITIONS, Assignment, MemberMetadata, ResolvedRegex
from tiered.serve.record_source import ServedTopic

Topics = Mapping[str, ServedTopic]


def preferred_assignor(members: Iterable[MemberMetadata]) -> str:
    """The assignor that most members want. Source: kafka `ConsumerGroup.computePreferredServerAssignor`."""
    votes = Counter(each.assignor for each in members if each.assignor in ASSIGNORS)
    return next((str(name) for name, _ in votes.most_common(1)), next(iter(ASSIGNORS)))


def counts_of(subscribed: Collection[str], topics: Topics) -> dict[UUID, int]:
    """The number of partitions of each subscribed topic that exists."""
    return {
        each.topic_id: len(each.partitions)
        for each in topics.values()
        if each.topic_id is not None and each.name in subscribed
    }


def given_counts(assignments: Iterable[Assignment]) -> dict[UUID, int]:
    """For each topic the number of partitions up to the highest one that a member has."""
    found: dict[UUID, int] = {}
    for each in assignments:
        for topic, numbers in each.items():
            found[topic] = max(found.get(topic, 0), max(numbers) + 1)
    return found


def computed_targets(
    members: Mapping[str, MemberMetadata],
    regexes: Mapping[str, ResolvedRegex],
    targets: Mapping[str, Assignment],
    topics: Topics,
    counts: Counts,
) -> dict[str, Assignment]:
    """The target of each member. `counts` are the topics and partitions that are assigned, `targets` those before."""
    known: dict[tuple[tuple[str, ...], str | None], frozenset[UUID]] = {}
    subscribers = []
    for name, member in members.items():
        wanted = member.topics, member.regex
        if wanted not in known:
            regex = regexes.get(member.regex or "")
            names = {*member.topics, *(regex.topics if regex is not None else ())} & topics.keys()
            ids = (topics[each].topic_id for each in names)
            known[wanted] = frozenset(each for each in ids if each is not None)
        subscribers.append(Subscriber(name, member.instance_id, known[wanted], targets.get(name, NO_PARTITIONS)))
    return ASSIGNORS[preferred_assignor(members.values())](subscribers, counts)
