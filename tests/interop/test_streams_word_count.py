"""Kafka Streams counts words on a node in two lives, at least once and exactly once: each word has the right counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from kafka_artifacts import Kafka
from manager_world import HOUR, NOW, settle
from witness_node import Node, run_java

from local.format.record import Record
from local.names import TopicPartition
from local.records.isolation import Isolation

pytestmark = [pytest.mark.kafka, pytest.mark.deep("a Kafka Streams application")]
PROGRAM = Path(__file__).with_name("WordCount.java")
WORDS = ("orders", "refunds", "a", "tier", "segment", "batch", "offset", "żółw")
LINES, PARTITIONS = 240, 2
TIERED = {"remote.storage.enable": "true", "local.retention.ms": "1ms", "retention.ms": "-1", "segment.bytes": "2000"}


def lines(partition: int) -> list[str]:
    return [
        " ".join(WORDS[(at * 7 + partition + each * each) % len(WORDS)] for each in range(4)) for at in range(LINES)
    ]


def append(node: Node, topic: str, numbers: range) -> None:
    for partition in range(PARTITIONS):
        records = [Record(None, lines(partition)[at].encode(), NOW + at) for at in numbers]
        for at in range(0, len(records), 20):
            node.manager.append(topic, records[at : at + 20], partition, now_ms=NOW)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_the_word_count_of_two_lives_equals_the_count_of_this_projects_reader(
    kafka_streams: Kafka, node: Node, tmp_path: Path, guarantee: str
) -> None:
    source, target = f"lines-{guarantee}", f"counts-{guarantee}"
    node.create(source, PARTITIONS, TIERED)
    node.create(target, PARTITIONS)
    append(node, source, range(0, LINES - 60))
    settle(node.manager, NOW + HOUR)
    append(node, source, range(LINES - 60, LINES))
    log = node.manager.partitions.find(TopicPartition(source, 0)).log
    assert 0 < log.local_log_start_offset < LINES, "both tiers have lines"
    counts: Counter[str] = Counter()
    for partition in range(PARTITIONS):
        for record in node.records(source, partition):
            assert record.value is not None
            counts.update(record.value.decode().split(" "))
    total = counts.total()
    words = [node.address, guarantee, source, target, str(tmp_path), str(total // 3), str(total)]
    printed = run_java(kafka_streams, str(PROGRAM), *words).split()
    assert total // 3 <= int(printed[0]) < total, "the second life has words to count"
    assert int(printed[1]) == total
    found: dict[str, list[int]] = {}
    for partition in range(PARTITIONS):
        for record in node.records(target, partition, Isolation.READ_COMMITTED):
            assert record.key is not None
            assert record.value is not None
            found.setdefault(record.key.decode(), []).append(int.from_bytes(record.value, "big"))
    assert found == {word: list(range(1, count + 1)) for word, count in counts.items()}
