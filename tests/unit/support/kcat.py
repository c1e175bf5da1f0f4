"""The options of kcat that the tutorial uses, on the same librdkafka: for machines without kcat."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

LIMIT_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in "LQCeq":
        parser.add_argument(f"-{flag}", action="store_true")
    for name in "btf":
        parser.add_argument(f"-{name}", default="")
    parser.add_argument("-o", action="append", default=[])
    parser.add_argument("-c", type=int)
    given = parser.parse_args()
    settings = {"bootstrap.servers": given.b, "group.id": "unused", "enable.auto.commit": False}
    settings["enable.partition.eof"] = True
    consumer = Consumer(settings)
    try:
        if given.L:
            show_topics(consumer)
        elif given.Q:
            topic, partition, time_ms = given.t.split(":")
            print(f"{topic} [{partition}] offset {at_time(consumer, topic, int(time_ms))}")
        else:
            template = (given.f or r"%s\n").replace(r"\n", "\n")
            for message in consumed(consumer, given.t, given.o, given.c):
                print(rendered(message, template), end="")
    finally:
        consumer.close()


def show_topics(consumer: Consumer) -> None:
    found = consumer.list_topics(timeout=LIMIT_S)
    print(f" {len(found.brokers)} brokers:")
    for broker in found.brokers.values():
        print(f"  broker {broker.id} at {broker.host}:{broker.port} (controller)")
    print(f" {len(found.topics)} topics:")
    for topic in found.topics.values():
        print(f'  topic "{topic.topic}" with {len(topic.partitions)} partitions:')
        for each in topic.partitions.values():
            print(f"    partition {each.id}, leader {each.leader}, replicas: {each.leader}, isrs: {each.leader}")


def at_time(consumer: Consumer, topic: str, time_ms: int) -> int:
    (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, time_ms)], timeout=LIMIT_S)
    assert found.error is None
    return int(found.offset)


def consumed(consumer: Consumer, topic: str, offsets: list[str], count: int | None) -> Iterator[Message]:
    """The messages of partition 0 between the `offsets`, of kcat's option ``-o``."""
    start, end_ms = OFFSET_BEGINNING, None
    for each in offsets:
        if each.startswith("s@"):
            start = at_time(consumer, topic, int(each[2:]))
        elif each.startswith("e@"):
            end_ms = int(each[2:])
        elif each != "beginning":
            start = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=LIMIT_S)[1] + int(each)
    consumer.assign([TopicPartition(topic, 0, start)])
    while count is None or count > 0:
        message = consumer.poll(LIMIT_S)
        assert message is not None, "no answer in time"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            return
        if end_ms is not None and message.timestamp()[1] >= end_ms:
            return
        yield message
        count = None if count is None else count - 1


def rendered(message: Message, template: str) -> str:
    facts = {"%o": str(message.offset()), "%T": str(message.timestamp()[1])}
    facts |= {"%k": (message.key() or b"").decode(), "%s": (message.value() or b"").decode()}
    for name, value in facts.items():
        template = template.replace(name, value)
    return template


if __name__ == "__main__":
    main()
