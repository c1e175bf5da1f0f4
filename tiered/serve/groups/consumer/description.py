"""What ConsumerGroupDescribe shows of a group. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from tiered.serve.groups.consumer.assignments import described_of
from tiered.serve.groups.consumer.group import ConsumerGroup
from tiered.serve.groups.consumer.records import NO_PARTITIONS
from tiered.serve.messages.consumer_groups import OF_CONSUMER_PROTOCOL, DescribedConsumer, DescribedConsumerGroup


def described(group: ConsumerGroup, names: Mapping[UUID, str]) -> DescribedConsumerGroup:
    """`names` of topics by id. Source: kafka `ConsumerGroup.asDescribedGroup`."""
    return DescribedConsumerGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor(),
        members=tuple(
            DescribedConsumer(
                member_id=name,
                instance_id=each.instance_id,
                rack_id=each.rack_id,
                member_epoch=group.current(name).epoch,
                client_id=each.client_id,
                client_host=each.client_host,
                subscribed_topic_names=each.topics,
                subscribed_topic_regex=each.regex,
                assignment=described_of(group.current(name).assigned, names),
                target_assignment=described_of(group.targets.get(name, NO_PARTITIONS), names),
                member_type=OF_CONSUMER_PROTOCOL,
            )
            for name, each in group.members.items()
        ),
    )
