"""Groups of the consumer protocol (KIP-848): the responses are those of a real broker, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import consumer_group_calls as calls
import group_calls
import pytest
from fake_offsets_log import FakeOffsetsLog
from fake_source import FakeSource
from kafka_artifacts import Kafka
from kafka_broker import KafkaBroker

from tiered.serve.groups.consumer.group import ConsumerGroup
from tiered.serve.groups.coordinator import GroupCoordinator
from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.groups.group_states import Moment
from tiered.serve.groups.loader import Loaded, apply
from tiered.serve.groups.offsets_log import batches_of
from tiered.serve.handlers.service import Service
from tiered.serve.record_source import ServedTopic
from tiered.serve.server import KafkaServer

pytestmark = pytest.mark.kafka
SETTINGS = f"group.consumer.max.size={calls.MEMBERS_MAX}\nunstable.api.versions.enable=true\n"


class Source(FakeSource):
    """The topics of the script, with ids."""

    def topics(self) -> Mapping[str, ServedTopic]:
        return {
            name: ServedTopic(name=name, topic_id=UUID(int=at), partitions=tuple(range(count)))
            for at, (name, count) in enumerate(calls.TOPICS.items(), 1)
        }


def ids_of(server: group_calls.Server) -> dict[str, UUID]:
    found = server.call(calls.METADATA, 12, topics=[{"name": name} for name in calls.TOPICS])
    return {each.name: each.topic_id for each in found.topics}


def test_every_response_equals_that_of_a_broker(kafka: Kafka, tmp_path: Path) -> None:
    broker = KafkaBroker(kafka, tmp_path / "kafka", settings=SETTINGS)
    broker.format()
    with ThreadPoolExecutor(20) as pool:
        broker.start()
        try:
            server = group_calls.Server(broker.address, pool)
            wanted = [
                {"name": name, "num_partitions": count, "replication_factor": 1} for name, count in calls.TOPICS.items()
            ]
            server.call(calls.CREATE, 5, topics=wanted, timeout=30_000)
            group_calls.until(lambda: all(ids_of(server).values()))
            group_calls.until(lambda: not server.call(group_calls.FIND, 3, key="one").error_code.value)
            loading = group_calls.fetching(9, "none")
            group_calls.until(lambda: not server.call(group_calls.FETCH, 9, **loading).groups[0].error_code.value)
            theirs = calls.run(server, ids_of(server))
            listed = {each.group_id: each for each in server.call(group_calls.LIST, 5).groups}
            shown = {
                each.group_id: each
                for each in server.call(calls.DESCRIBE, 1, group_ids=list(listed)).groups
                if not each.error_code.value
            }
        finally:
            broker.stop()
        check_loaded(broker.log_dirs[0] / "__consumer_offsets-0", listed, shown)
        groups = GroupCoordinator(
            FakeOffsetsLog(),
            GroupSettings(initial_rebalance_delay_ms=0, consumer_max_size=calls.MEMBERS_MAX),
        )
        endpoint = KafkaServer("127.0.0.1", 0, Service(source=Source(), groups=groups))
        endpoint.start()
        try:
            server = group_calls.Server("{}:{}".format(*endpoint.address), pool)
            group_calls.until(lambda: not server.call(group_calls.LIST, 0).error_code.value)
            ours = calls.run(server, ids_of(server))
        finally:
            endpoint.close()
    found = list(group_calls.differences(ours, theirs))
    assert not found, "\n".join(found)
    assert len(theirs) > 200


def check_loaded(folder: Path, listed: Mapping[str, object], shown: Mapping[str, object]) -> None:
    """The records of the broker are loaded as the groups that it had."""
    loaded = Loaded()
    for file in sorted(folder.glob("*.log")):
        for batch, _ in batches_of(memoryview(file.read_bytes())):
            apply(loaded, 0, batch)
    assert {*loaded.consumers, *loaded.groups, *loaded.offsets.groups()} == set(listed)
    assert set(loaded.consumers) == set(shown)
    for name, described in shown.items():
        group = ConsumerGroup.loaded(name, loaded.consumers[name], GroupSettings(), str, Moment(0, 0))
        facts = group.state.value, group.epoch, group.assignment_epoch
        assert facts == (described.group_state, described.group_epoch, described.assignment_epoch), name
        assert group.metadata_hash or name != "full"
        for each in described.members:
            assigned = {one.topic_id: frozenset(one.partitions) for one in each.assignment.topic_partitions}
            assert group.current(each.member_id).assigned == assigned, (name, each.member_id)
            assert group.members[each.member_id].topics == tuple(sorted(each.subscribed_topic_names))
