"""``__consumer_offsets`` over a node: created with Kafka's settings, read to its end, transactions included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from manager_world import NOW, World

from local.errors import Corrupt
from local.names import TopicPartition
from tiered.manager.manager import LogManager
from tiered.serve.groups import offsets_log
from tiered.serve.groups.committed import Transaction
from tiered.serve.groups.loader import Loaded, load
from tiered.serve.groups.offsets_log import OFFSETS_TOPIC, OffsetsLog, Producer, TopicOffsetsLog
from tiered.serve.groups.offsets_records import (
    GroupKey,
    GroupValue,
    Key,
    OffsetKey,
    OffsetValue,
    Value,
    encode_key,
    encode_value,
)
from tiered.serve.node.node_sink import NodeSink
from tiered.serve.node.node_source import NodeSource

P = TopicPartition("orders", 0)
KEY = OffsetKey("g", "orders", 0)
SEGMENT_BYTES = 1 << 20


class Node:
    def __init__(self, manager: LogManager, source: NodeSource) -> None:
        self.manager, self.sink = manager, NodeSink(manager, lambda: NOW)

        def create(name: str, partitions: int, settings: object) -> None:
            manager.topics.create(name, partitions, dict(settings), now_ms=NOW)  # type: ignore[call-overload]

        self.log = TopicOffsetsLog(source, self.sink, create, SEGMENT_BYTES)

    def append(self, *records: tuple[Key, Value | None], producer: Producer | None = None) -> int:
        encoded = [(encode_key(key), None if value is None else encode_value(value)) for key, value in records]
        return self.log.append(0, encoded, now_ms=NOW, producer=producer)

    def mark(self, producer_id: int, *, is_commit: bool) -> None:
        where = TopicPartition(OFFSETS_TOPIC, 0)
        self.sink.append_marker(where, producer_id, 0, is_commit=is_commit, coordinator_epoch=0)

    def loaded(self) -> Loaded:
        count, loaded = load(self.log)
        assert count == 1
        return loaded

    def offset(self) -> int | None:
        found = self.loaded().offsets.get("g", P)
        return None if found is None else found.offset


@pytest.fixture
def node() -> Iterator[Node]:
    with World().open() as manager, closing(NodeSource(manager)) as source:
        made = Node(manager, source)
        assert made.log.partition_count() is None
        assert load(made.log)[0] is None
        assert made.log.create(1) == 1
        yield made


def value(offset: int) -> OffsetValue:
    return OffsetValue(offset=offset, commit_ms=NOW)


def test_the_topic_has_kafkas_settings_and_is_created_once(node: Node) -> None:
    assert node.log.create(5) == 1
    topic = node.manager.partitions.registry.find(OFFSETS_TOPIC)
    assert topic is not None
    expected = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(SEGMENT_BYTES)}
    assert {name: topic.properties[name] for name in expected} == expected


def test_the_newest_record_of_a_key_counts_and_tombstones_remove(node: Node) -> None:
    group = GroupValue(protocol_type="consumer", generation=3, state_ms=NOW)
    assert node.append((KEY, value(1)), (GroupKey("g"), group)) == 0
    assert node.append((KEY, value(2))) == 2
    assert (node.offset(), node.loaded().groups) == (2, {"g": group})
    node.append((KEY, None), (GroupKey("g"), None))
    loaded = node.loaded()
    assert (list(loaded.offsets.groups()), loaded.groups) == ([], {})


@pytest.mark.parametrize(("is_commit", "expected"), [(True, 7), (False, 1)])
def test_a_transaction_counts_from_its_marker_on(node: Node, is_commit: bool, expected: int) -> None:
    node.append((KEY, value(1)))
    node.append((KEY, value(7)), producer=Producer(9, 0))
    assert node.offset() == 1
    assert node.loaded().offsets.is_pending("g", P)
    node.mark(9, is_commit=is_commit)
    node.append((OffsetKey("other", "orders", 0), value(3)))
    assert node.offset() == expected
    assert not node.loaded().offsets.is_pending("g", P)
    node.append((KEY, value(8)), producer=Producer(9, 0))  # the next transaction of the producer
    loaded = node.loaded()
    loaded.offsets.end(Transaction(0, 9), is_commit=True)
    found = loaded.offsets.get("g", P)
    assert found is not None
    assert found.offset == 8


def test_a_log_that_is_longer_than_one_read_is_read_to_its_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_log, "READ_BYTES", 1000)
    for at in range(200):
        node.append((OffsetKey(f"g{at % 20}", "orders", at % 3), value(at)))
    loaded = node.loaded()
    assert sorted(loaded.offsets.groups()) == sorted(f"g{at}" for at in range(20))
    expected = {(f"g{at % 20}", at % 3): at for at in range(200)}
    found = {
        (group, where.partition): each.value.offset
        for group, of in loaded.offsets.items()
        for where, each in of.items()
    }
    assert found == expected


def test_records_of_newer_protocols_are_skipped_and_other_bytes_are_corrupt(node: Node) -> None:
    node.append((KEY, value(1)))
    node.log.append(0, [(b"\0\x09\0\1g", b"\0\0")], now_ms=NOW)
    loaded = node.loaded()
    assert (loaded.skipped, loaded.offsets.count) == (1, 1)
    node.log.append(0, [(b"\xff", b"")], now_ms=NOW)
    with pytest.raises(Corrupt):
        node.loaded()


def test_the_log_of_a_node_is_an_offsets_log(node: Node) -> None:
    log: OffsetsLog = node.log
    assert log.partition_count() == 1
