"""Names of topics, partitions and files, and the functions that parse them."""

from __future__ import annotations

import pytest

from local import names
from local.errors import InvalidRequest
from local.names import TopicPartition, new_topic_id, parse_partition_directory, parse_segment_file, segment_file


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "../x", "a b", "a\n", "ü", "x" * 250, "a\0b", "a\\b"])
def test_a_topic_name_that_kafka_refuses_is_refused(topic: str) -> None:
    with pytest.raises(InvalidRequest, match="invalid topic name"):
        TopicPartition(topic, 0)


@pytest.mark.parametrize("partition", [-1, 2**31])
def test_a_partition_outside_int32_is_refused(partition: int) -> None:
    with pytest.raises(InvalidRequest, match="partition="):
        TopicPartition("t", partition)


@pytest.mark.parametrize("name", [TopicPartition("orders", 0), TopicPartition("a-b.c_d", 2**31 - 1)])
def test_a_partition_directory_is_parsed_back(name: TopicPartition) -> None:
    assert parse_partition_directory(name.directory) == name


@pytest.mark.parametrize(
    "directory", ["orders", "orders-", "-0", "orders-01", "orders-x", "orders-0.0123-delete", "a/b-0", "..-0", "o-²"]
)
def test_other_directory_names_are_not_parsed_as_partitions(directory: str) -> None:
    assert parse_partition_directory(directory) is None


def test_a_segment_file_name_is_parsed_back() -> None:
    assert segment_file(42, ".log") == "00000000000000000042.log"
    assert parse_segment_file("00000000000000000042.log.swap") == (42, ".log.swap")


@pytest.mark.parametrize("name", ["42.log", "00000000000000000042", "000000000000000000420.log", "x.log", ".lock"])
def test_other_file_names_are_not_parsed_as_segments(name: str) -> None:
    assert parse_segment_file(name) is None


def test_a_topic_id_has_22_url_safe_characters_and_does_not_begin_with_a_dash() -> None:
    ids = {new_topic_id() for _ in range(500)}
    assert len(ids) == 500
    assert all(len(each) == 22 and not each.startswith("-") for each in ids)


def test_the_directory_names_of_a_move_equal_kafkas_and_are_parsed_back() -> None:
    mark, name = "0123456789abcdef" * 2, TopicPartition("orders-eu", 3)
    assert names.future_directory(name, mark) == f"orders-eu-3.{mark}-future"
    assert names.deleted_directory(name, mark) == f"orders-eu-3.{mark}-delete"
    assert names.parse_marked_directory(f"orders-eu-3.{mark}-future") == (name, mark, "-future")
    assert names.parse_marked_directory(f"orders-eu-3.{mark}-delete") == (name, mark, "-delete")
    long = TopicPartition("t" * 249, 12345)
    assert len(names.deleted_directory(long, mark)) == 255
    assert names.deleted_directory(long, mark).endswith(f"t-12345.{mark}-delete")
    for other in (f"t-1.{mark}", f"t-1.{mark[:-1]}-future", f"t.{mark}-future", "t-1", f"t-1.{mark.upper()}-delete"):
        assert names.parse_marked_directory(other) is None
