"""Requests of admin clients in every version, and with any values: each is answered, and the node is never asked twice
for one name."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest
from fake_admin import FakeAdmin, run
from fake_source import CALL
from hypothesis import given, settings
from hypothesis import strategies as st

from tiered.serve.handlers.dispatch import HANDLERS
from tiered.serve.handlers.service import PART_OF
from tiered.serve.handlers.topics import delete_topics
from tiered.serve.messages.base import Api
from tiered.serve.messages.topics import DeleteTopicsRequest, DeleteTopicState
from tiered.serve.protocol import SERVED, Header, encode

APIS = sorted(key for key in SERVED if PART_OF.get(key) in ("admin", "configs") or key == Api.DESCRIBE_TOPIC_PARTITIONS)
NAMES = st.sampled_from(["orders", "b", "nope", "", "bad name", "__consumer_offsets", "0", "1", "x" * 300])
EXAMPLES = 25  # each starts the threads of a service
BYTES = ("resource_type", "config_operation")
SMALL = st.sampled_from([-128, -1, 0, 1, 2, 3, 4, 8, 127])
NUMBERS = st.sampled_from([-(2**31), -2, -1, 0, 1, 2, 3, 4, 8, 5000, 10_001, 2**31 - 1])


def requests(kind: Any) -> st.SearchStrategy[Any]:
    """Any instance of a message class, or of a field."""
    if get_origin(kind) in (Union, type(int | None)):
        return st.one_of(*(st.none() if each is type(None) else requests(each) for each in get_args(kind)))
    if get_origin(kind) is tuple:
        return st.lists(requests(get_args(kind)[0]), max_size=4).map(tuple)
    if dataclasses.is_dataclass(kind):
        fields = get_type_hints(kind).items()
        return st.builds(kind, **{name: SMALL if name in BYTES else requests(each) for name, each in fields})
    plain: dict[object, st.SearchStrategy[Any]] = {
        str: NAMES,
        int: NUMBERS,
        bool: st.booleans(),
        UUID: st.sampled_from([UUID(int=9), FakeAdmin.id_of("orders"), FakeAdmin.id_of("b")]),
    }
    return plain[kind]


@pytest.mark.parametrize("key", APIS)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_any_request_is_answered_in_every_version(key: int, data: st.DataObject) -> None:
    request = data.draw(requests(SERVED[key].request))
    admin = FakeAdmin(orders=3, b=1, __consumer_offsets=50)
    response = run(admin, lambda service: HANDLERS[key](service, request, CALL))
    for version in range(SERVED[key].min_version, SERVED[key].max_version + 1):
        encode(Header(api_key=key, api_version=version, correlation_id=1), response)
    changed = [each[1] for each in admin.calls if each[0] in ("delete", "add", "alter", "replace")]
    assert len(changed) == len(set(map(str, changed))), "a topic is changed twice by one request"


def test_a_change_outlives_its_client_and_nothing_after_it_begins() -> None:
    """The connection of a client ends while the first of two changes runs."""
    admin = FakeAdmin(a=1, b=1)
    admin.gate = threading.Event()

    async def work(service: Any) -> None:
        states = (DeleteTopicState(name="a"), DeleteTopicState(name="b"))
        request = DeleteTopicsRequest(topics=states, timeout_ms=60_000)
        task = asyncio.create_task(delete_topics(service, request, CALL))
        await asyncio.to_thread(admin.has_begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert admin.gate is not None
        admin.gate.set()
        await service.changes.run("changes", "after", lambda: None)

    run(admin, work)
    assert [each[1] for each in admin.calls] == ["a"]
