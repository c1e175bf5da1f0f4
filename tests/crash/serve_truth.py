"""What must hold after a race of Kafka clients: every acknowledged effect, in both tiers and in the bucket alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

from bucket_truth import sound_roots
from racing_clients import Groups, Pipeline, Sent, number_of
from serve_commands import Commands, Java, Topics, Trimmed, missing_lines
from serve_world import PARTITIONS, RETENTION_MS, Race, World, now_ms

from local.format.record import StoredRecord
from local.names import TopicPartition
from local.records.isolation import Isolation
from tiered.manager.manager import LogManager
from tiered.read.bucket_reader import RemoteLog
from tiered.serve.groups.offsets_records import OffsetKey, OffsetValue, decode_key, decode_value
from tiered.tables.remote_tables import open_remote

COMMITTED = Isolation.READ_COMMITTED


class Tiers(Protocol):
    def reader(self, isolation: Isolation = ...) -> object: ...


def read(tiers: LogManager | RemoteLog, topic: str, partition: int, isolation: Isolation) -> list[StoredRecord]:
    name, reader = TopicPartition(topic, partition), tiers.reader(isolation)
    return list(reader.records(name, reader.offsets(name)[0]))


def plain(tiers: LogManager, topic: str, partition: int) -> list[StoredRecord]:
    return read(tiers, topic, partition, Isolation.READ_UNCOMMITTED)


def check_whole(race: Race, manager: LogManager, sent: Sent) -> None:
    """Each record once, in order, at the offset of its number: the producer waited for all."""
    for partition in range(PARTITIONS):
        found = plain(manager, sent.topic, partition)
        numbers = [number_of(each.value) for each in found]
        if numbers != list(range(sent.sent[partition])):
            wrong = next((at for at, each in enumerate(numbers) if at != each), len(numbers))
            text = f"{len(numbers)} records of {sent.sent[partition]}, the first wrong one is {wrong}"
            race.broken(f"{sent.topic}-{partition}: {text}")
        if [each.offset for each in found] != numbers:
            race.broken(f"{sent.topic}-{partition}: a record has another offset than its number")


def check_latest(race: Race, manager: LogManager, sent: Sent) -> None:
    for partition in range(PARTITIONS):
        found = plain(manager, sent.topic, partition)
        numbers = [number_of(each.value) for each in found]
        newest = {number % sent.keys: number for number in range(sent.sent[partition])}
        if lost := set(newest.values()) - set(numbers):
            race.broken(f"{sent.topic}-{partition}: {len(lost)} newest records of keys are missing: {sorted(lost)[:5]}")
        if numbers != sorted(set(numbers)) or [each.offset for each in found] != numbers:
            race.broken(f"{sent.topic}-{partition}: records are out of order, twice or moved")
        race.count("records removed by compaction", sent.sent[partition] - len(numbers))


def check_suffix(race: Race, manager: LogManager, sent: Sent, starts: Sequence[tuple[int, int]]) -> None:
    """The log is a suffix of the records. `starts`: least and greatest first record of each partition."""
    for partition, (least, greatest) in enumerate(starts):
        numbers = [number_of(each.value) for each in plain(manager, sent.topic, partition)]
        end = sent.sent[partition]
        first = numbers[0] if numbers else end
        if numbers != list(range(first, end)) or not least <= first <= greatest:
            race.broken(f"{sent.topic}-{partition} begins at {first}, not in {least}..{greatest}, or has gaps")
        race.count(f"records deleted of {sent.topic}", first)


def check_pipeline(
    race: Race, manager: LogManager, pipeline: Pipeline, offsets: dict[tuple[str, str, int], int]
) -> None:
    """Committed transactions are whole, with their offsets; aborted ones hidden; no transaction is open."""
    for partition in range(PARTITIONS):
        found = [each.value for each in read(manager, pipeline.target, partition, COMMITTED)]
        done = offsets.get((pipeline.group, pipeline.source, partition), 0)
        if found != [each.value for each in itertools.islice(plain(manager, pipeline.source, partition), done)]:
            text = f"{len(found)} records, {done} are consumed by committed transactions"
            race.broken(f"{pipeline.target}-{partition}: {text}")
        log = manager.partitions.find(TopicPartition(pipeline.target, partition)).log
        if log.view.last_stable_offset != log.next_offset:
            race.broken(f"{pipeline.target}-{partition} has an open transaction")


def committed_offsets(manager: LogManager) -> dict[tuple[str, str, int], int]:
    """The newest committed offset of each group and partition, as the records of ``__consumer_offsets`` state it."""
    found: dict[tuple[str, str, int], int] = {}
    for name in manager.topics.get("__consumer_offsets").partitions():
        for each in read(manager, name.topic, name.partition, COMMITTED):
            key = decode_key(each.key) if each.key is not None else None
            if not isinstance(key, OffsetKey):
                continue
            place = key.group, key.topic, key.partition
            found.pop(place, None)
            if each.value is not None and isinstance(value := decode_value(key, each.value), OffsetValue):
                found[place] = value.offset
    return found


def check_groups(race: Race, groups: Groups, offsets: dict[tuple[str, str, int], int]) -> None:
    for place, floor in groups.committed.items():
        found = offsets.get(place, -1)
        if found < floor:
            race.broken(f"the committed offset of {place} is {found}, {floor} was acknowledged")
        if skipped := set(range(floor)) - groups.received[place]:
            race.broken(f"{place}: {len(skipped)} records below the committed offset reached no member: {min(skipped)}")


def check_topics(race: Race, manager: LogManager, topics: Topics) -> None:
    there = {each.name: each for each in manager.topics.all()}
    for name, possible in topics.possible.items():
        topic = there.get(name)
        found = (topic.partition_count, topic.properties.get("retention.ms", "")) if topic is not None else None
        if found not in possible:
            race.broken(f"the topic {name} is {found}, possible is {possible}")


def check_bucket(race: Race, world: World, manager: LogManager) -> dict[TopicPartition, int]:
    """The bucket equals the node's log as far as it goes. The end of each partition in the bucket."""
    ends: dict[TopicPartition, int] = {}
    with open_remote(world.url, world.endpoint.options()) as bucket:
        for topic in manager.topics.all():
            if topic.name.startswith(("tmp-", "java-", "__")) or topic.name == "latest":
                continue  # most have no records; of compacted ones both tiers are cleaned by themselves
            for name in topic.partitions():
                held = manager.partitions.find(name)
                if not held.is_tiered:
                    continue
                start, end = bucket.reader().offsets(name)
                ends[name] = end
                in_bucket = list(bucket.reader().records(name, start, end))
                here = list(manager.reader().records(name, start, end))
                race.count("records compared with the bucket", len(here))
                if in_bucket != here:
                    race.broken(
                        f"{name}: the bucket has {len(in_bucket)} records of {start}..{end}, the log {len(here)}"
                    )
                if name.topic == "remote" and end < manager.reader().offsets(name)[1]:
                    race.broken(f"{name}: records are acknowledged, and the bucket ends at {end}")
    sound_roots(f"s3://{world.bucket}", world.endpoint.options())
    return ends


def check_commands(race: Race, world: World) -> None:
    """The checks of the project itself find nothing."""
    for words in (("verify", "--deep"), ("scrub", "--deep")):
        done = world.tiered(*words, "-o", "json", timeout_s=600)
        if done.returncode:
            race.broken(f"{' '.join(words)} ended with {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}")


def check_java(race: Race, manager: LogManager, java: Java) -> None:
    values = [{each.offset: each.value for each in plain(manager, "verified", at)} for at in range(PARTITIONS)]
    for (partition, offset), value in java.acked().items():
        if values[partition].get(offset) != value.encode():
            race.broken(f"verified-{partition}: {value} is acknowledged at {offset}: {values[partition].get(offset)!r}")
            return


def expired(sent: Sent, before_ms: int) -> list[tuple[int, int]]:
    """For each partition no bound below, and the first record that is younger than the retention."""
    limit_ms = before_ms - RETENTION_MS
    return [(0, sum(1 for at_ms in times if at_ms <= limit_ms)) for times in sent.sent_ms]


def check_all(
    world: World,
    sent: dict[str, Sent],
    groups: Groups,
    pipelines: list[Pipeline],
    commands: Commands,
    java: Java | None,
    trimmed: Trimmed,
) -> dict[TopicPartition, int]:
    """All checks of an ended node. The end of each partition in the bucket."""
    race = world.race
    with world.home.manager() as manager:
        for problem in manager.problems.items():
            race.broken(f"a partition has a problem: {problem}")
        for each in sent.values():
            if each.topic == "latest":
                check_latest(race, manager, each)
            elif each.topic == "short":
                check_suffix(race, manager, each, expired(each, now_ms()))
            elif each.topic == "trimmed":
                check_suffix(race, manager, each, list(zip(trimmed.floor, trimmed.limit, strict=True)))
            else:
                check_whole(race, manager, each)
        offsets = committed_offsets(manager)
        check_groups(race, groups, offsets)
        for pipeline in pipelines:
            check_pipeline(race, manager, pipeline, offsets)
        found = [each.value for each in plain(manager, "lines", 0)]
        if (wrong := missing_lines(commands.lines, found)) is not None:
            race.broken(wrong)
        race.count("lines appended", len(found))
        check_topics(race, manager, commands.topics)
        if java is not None:
            check_topics(race, manager, java.topics)
            check_java(race, manager, java)
        return check_bucket(race, world, manager)
