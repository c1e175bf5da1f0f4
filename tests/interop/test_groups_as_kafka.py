"""The responses to group requests are those of a real broker, field by field, in every version."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import group_calls as calls
import pytest
from fake_offsets_log import FakeOffsetsLog
from fake_source import FakeSource
from kafka_artifacts import Kafka
from kafka_broker import KafkaBroker
from kafka_clients import create_topics

from local.names import TopicPartition
from tiered.serve.groups.coordinator import GroupCoordinator
from tiered.serve.groups.group import Group
from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.groups.group_states import Moment
from tiered.serve.groups.loader import Loaded, apply
from tiered.serve.groups.offsets_log import batches_of
from tiered.serve.handlers.service import Service
from tiered.serve.server import KafkaServer

pytestmark = pytest.mark.kafka
SETTINGS = f"""\
group.max.size={calls.MEMBERS_MAX}
offset.metadata.max.bytes={calls.METADATA_BYTES_MAX}
unstable.api.versions.enable=true
"""


def test_every_response_equals_that_of_a_broker(kafka: Kafka, tmp_path: Path) -> None:
    broker = KafkaBroker(kafka, tmp_path / "kafka", settings=SETTINGS)
    broker.format()
    with ThreadPoolExecutor(20) as pool:
        broker.start()
        try:
            create_topics(broker.address, {calls.TOPIC: {}})
            server = calls.Server(broker.address, pool)
            calls.until(lambda: not server.call(calls.FIND, 3, key="one").error_code.value)
            loading = calls.fetching(9, "none")
            calls.until(lambda: not server.call(calls.FETCH, 9, **loading).groups[0].error_code.value)
            theirs = calls.run(server)
            states = {each.group_id: each.group_state for each in server.call(calls.LIST, 5).groups}
            answers = {name: committed(server, name) for name in states}
        finally:
            broker.stop()
        check_loaded(broker.log_dirs[0] / "__consumer_offsets-0", states, answers)
        settings = GroupSettings(
            initial_rebalance_delay_ms=0, max_size=calls.MEMBERS_MAX, offset_metadata_max_bytes=calls.METADATA_BYTES_MAX
        )
        groups = GroupCoordinator(FakeOffsetsLog(), settings)
        endpoint = KafkaServer("127.0.0.1", 0, Service(source=FakeSource(**{calls.TOPIC: 5}), groups=groups))
        endpoint.start()
        try:
            server = calls.Server("{}:{}".format(*endpoint.address), pool)
            calls.until(lambda: not server.call(calls.LIST, 0).error_code.value)
            ours = calls.run(server)
        finally:
            endpoint.close()
    found = list(calls.differences(ours, theirs))
    assert not found, "\n".join(found)
    assert len(theirs) > 250


def committed(server: calls.Server, group: str) -> dict[TopicPartition, tuple[int, int, str | None]]:
    """All committed offsets of a group, as the broker answers."""
    found = server.call(calls.FETCH, 9, **calls.fetching(9, group, None)).groups[0]
    return {
        TopicPartition(topic.name, each.partition_index): (
            each.committed_offset,
            each.committed_leader_epoch,
            each.metadata,
        )
        for topic in found.topics
        for each in topic.partitions
    }


def check_loaded(
    folder: Path, states: dict[str, str], answers: dict[str, dict[TopicPartition, tuple[int, int, str | None]]]
) -> None:
    """The records of the broker are loaded as the groups and offsets that it had."""
    loaded = Loaded()
    for file in sorted(folder.glob("*.log")):
        for batch, _ in batches_of(memoryview(file.read_bytes())):
            apply(loaded, 0, batch)
    names = {*loaded.groups, *loaded.offsets.groups()}
    assert names == set(states)
    for name, offsets in answers.items():
        found = {
            where: (each.value.offset, each.value.leader_epoch, each.value.metadata)
            for where, each in loaded.offsets.of(name).items()
        }
        assert found == offsets, name
        if name in loaded.groups:
            group = Group.stored(name, loaded.groups[name], GroupSettings(), str, Moment(0, 0))
            assert group.state.value == states[name], name
    assert any(answers.values()), "the broker has offsets"
