"""What commands show of a group, by the answers of a coordinator to the requests of both protocols."""

from __future__ import annotations

from typing import Any

import pytest

from local.errors import NotFound
from tiered.serve.commands.client import Client
from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.consumer_groups import (
    ConsumerGroupDescribeResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from tiered.serve.messages.groups import DescribedGroup, DescribeGroupsResponse
from tiered.serve.node.group_calls import GroupFacts, describe_group

MODERN = DescribedConsumerGroup(group_id="g", group_state="Stable", members=(DescribedConsumer(member_id="one"),))
MISSING = DescribedConsumerGroup(group_id="g", error_code=Error.GROUP_ID_NOT_FOUND)


class Coordinator(Client):
    def __init__(self, modern: DescribedConsumerGroup, classic: DescribedGroup | None = None) -> None:
        self.is_old = False
        self.answers = {
            Api.CONSUMER_GROUP_DESCRIBE: ConsumerGroupDescribeResponse(groups=(modern,)),
            Api.DESCRIBE_GROUPS: DescribeGroupsResponse(groups=() if classic is None else (classic,)),
        }

    def serves(self, api: int) -> bool:
        return not (self.is_old and api == Api.CONSUMER_GROUP_DESCRIBE)

    def call(self, api: Any, request: object, *_: object, **__: object) -> Any:
        return self.answers[api]


def test_a_group_is_of_the_protocol_that_knows_it() -> None:
    assert describe_group(Coordinator(MODERN), "g") == GroupFacts("consumer", "Stable", 1)
    classic = DescribedGroup(group_id="g", group_state="Empty")
    assert describe_group(Coordinator(MISSING, classic), "g") == GroupFacts("classic", "Empty", 0)
    old = Coordinator(MODERN, classic)
    old.is_old = True
    assert describe_group(old, "g") == GroupFacts("classic", "Empty", 0)


def test_a_group_that_neither_knows_is_not_found() -> None:
    for state, error in (("Dead", Error.NONE), ("Dead", Error.GROUP_ID_NOT_FOUND)):
        with pytest.raises(NotFound):
            describe_group(Coordinator(MISSING, DescribedGroup(group_id="g", group_state=state, error_code=error)), "g")
