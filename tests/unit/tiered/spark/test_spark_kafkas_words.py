"""Options of Spark's Kafka source are accepted or refused alike: whole-topic offsets, starts above ends, no topics."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bucket_samples import SampleBucket, batch_at

from local.errors import InvalidRequest, OffsetOutOfRange
from local.names import TopicPartition
from remote.store.memory_store import MemoryStore
from tiered.spark.options import EARLIEST, LATEST, parse_options, parse_stream_options
from tiered.spark.session import check_interpreter
from tiered.spark.source.planning import plan_read

LEAST = {"path": "memory://b", "pin": "none"}
ENDS = {("a", 0): 30, ("a", 1): 20, ("b", 0): 10}


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore("memory://b")
    bucket = SampleBucket(store)
    for (topic, partition), end in ENDS.items():
        bucket.add(topic, partition, [batch_at(at, 10) for at in range(0, end, 10)])
    return store


def ranges(store: MemoryStore, **options: str) -> dict[tuple[str, int], tuple[int, int]]:
    """The offsets that the tasks read together, by (topic, partition)."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for split in plan_read(store, parse_options({**LEAST, **options})):
        first, after = found.get((split.topic, split.partition), (split.start_offset, split.next_offset))
        where = min(first, split.start_offset), max(after, split.next_offset)
        found[split.topic, split.partition] = where
    return found


WHOLE = {("a", 0): (0, 30), ("a", 1): (0, 20), ("b", 0): (0, 10)}


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"startingOffsets": '{"a":"earliest","b":{"0":4}}'}, {("b", 0): (4, 10)}),
        ({"startingOffsets": '{"a":{"0":5,"1":-2},"b":"Earliest"}'}, {("a", 0): (5, 30)}),
        ({"endingOffsets": '{"a":"latest","b":{"0":4}}'}, {("b", 0): (0, 4)}),
    ],
)
def test_offset_of_a_whole_topic_applies_to_all_its_partitions(store: MemoryStore, options, changed) -> None:
    assert ranges(store, subscribe="a,b", **options) == WHOLE | changed
    assert ranges(store, subscribePattern="a|b", **options) == WHOLE | changed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a":"middle","b":"earliest"}', "only .earliest. and .latest."),
        ('{"a":"latest","b":"earliest"}', "makes a batch read empty"),
        ('{"a":3,"b":"earliest"}', "not of the form"),
    ],
)
def test_invalid_offset_of_a_whole_topic_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        parse_options({**LEAST, "subscribe": "a,b", "startingOffsets": text})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a":"earliest"}', "values must name every partition that is read: missing=b/0"),
        ('{"a":"earliest","b":"earliest","c":"earliest"}', "values name a topic that is not read: topic=c"),
    ],
)
def test_offsets_that_do_not_match_the_read_topics_are_refused(store: MemoryStore, text: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        ranges(store, subscribe="a,b", startingOffsets=text)


def test_stream_accepts_whole_topic_offsets_including_latest() -> None:
    options = parse_stream_options({**LEAST, "subscribe": "a,b", "startingOffsets": '{"a":"latest","b":"earliest"}'})
    start = options.read.start
    assert start.value_of(TopicPartition("a", 7)) == LATEST
    assert start.value_of(TopicPartition("b", 0)) == EARLIEST
    assert start.value_of(TopicPartition("c", 0)) is None


START_ABOVE = {"startingOffsets": '{"b":{"0":8}}', "endingOffsets": '{"b":{"0":3}}'}


def test_start_above_the_end_raises_or_reads_nothing(store: MemoryStore) -> None:
    with pytest.raises(OffsetOutOfRange, match="the start is above the end") as caught:
        ranges(store, subscribe="b", **START_ABOVE)
    assert (caught.value.facts["start"], caught.value.facts["end"]) == (8, 3)
    assert ranges(store, subscribe="b", failOnDataLoss="false", **START_ABOVE) == {}


@pytest.mark.parametrize("offset", [11, 1 << 40])
def test_start_above_the_log_end_offset_raises(store: MemoryStore, offset: int) -> None:
    with pytest.raises(OffsetOutOfRange, match="the offset is outside the log"):
        ranges(store, subscribe="b", startingOffsets=f'{{"b":{{"0":{offset}}}}}')


def test_a_start_at_the_end_reads_nothing(store: MemoryStore) -> None:
    assert ranges(store, subscribe="b", startingOffsets='{"b":{"0":10}}') == {}
    assert ranges(store, subscribe="b", startingOffsets='{"b":{"0":3}}', endingOffsets='{"b":{"0":3}}') == {}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"subscribePattern": ""}, "the pattern is empty"),
        ({"subscribePattern": "  "}, "the pattern is empty"),
        ({"subscribe": ""}, "it names no topic"),
        ({"subscribe": " , "}, "it names no topic"),
        ({"assign": "{}"}, "it names no partition"),
        ({"assign": '{"a":[]}'}, "it names no partition"),
    ],
)
def test_empty_topic_selection_is_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        parse_options({**LEAST, **options})


def test_empty_names_between_commas_are_ignored_like_in_the_kafka_source() -> None:
    assert parse_options({**LEAST, "subscribe": "a,,b, "}).topics == ("a", "b")


@pytest.mark.parametrize(
    "given",
    [{}, {"provider": "tiered", "path": "s3://b", "subscribe": "a", "owner": "me"}, {"Provider": "tiered"}],
)
def test_catalog_table_is_refused_and_the_error_names_a_temporary_view(given: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="CREATE TEMPORARY VIEW name USING tiered OPTIONS"):
        parse_options(given)


def test_an_interpreter_without_the_package_is_named(tmp_path: Path) -> None:
    check_interpreter(sys.executable)
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(InvalidRequest, match="lacks the package") as caught:
        check_interpreter(str(bare))
    assert caught.value.facts["interpreter"] == str(bare)
    assert "ModuleNotFoundError" in str(caught.value.facts["missing"])
    assert f"PYSPARK_PYTHON={sys.executable}" in str(caught.value.facts["fix"])
    with pytest.raises(InvalidRequest, match="does not exist"):
        check_interpreter(str(tmp_path / "none"))


def test_another_interpreter_with_the_package_is_accepted(tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    check_interpreter(str(other))
