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

from tiered.serve.groups.coordinator import GroupCoordinator
from tiered.serve.groups.group_settings import GroupSettings
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
            theirs = calls.run(server)
        finally:
            broker.stop()
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
