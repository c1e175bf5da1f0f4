"""Kafka's text side files: their bytes equal Kafka's, and damaged files are refused."""

from __future__ import annotations

import pytest
from disk_model import ModelDisk

from local.errors import Corrupt
from local.log import checkpoints
from local.log.leader_epochs import LeaderEpochs
from local.names import TopicPartition


def _put(disk: ModelDisk, path: str, body: bytes) -> None:
    disk.create(path).append(body)


def test_the_bytes_of_an_offset_checkpoint_equal_kafkas() -> None:
    disk = ModelDisk()
    checkpoints.write_offsets(disk, "./c", {TopicPartition("b", 1): 7, TopicPartition("a", 0): 42})
    assert disk.read("./c") == b"0\n2\na 0 42\nb 1 7\n"
    assert checkpoints.read_offsets(disk, "./c") == {TopicPartition("a", 0): 42, TopicPartition("b", 1): 7}


def test_the_bytes_of_a_leader_epoch_checkpoint_equal_kafkas() -> None:
    disk = ModelDisk()
    checkpoints.write_epochs(disk, "./e", [(0, 0), (3, 100)])
    assert disk.read("./e") == b"0\n2\n0 0\n3 100\n"
    assert checkpoints.read_epochs(disk, "./e") == [(0, 0), (3, 100)]


ODD_NUMBERS = {
    "a count in other digits": "0\n²\n",
    "a count of 5000 digits": "0\n" + "9" * 5000 + "\n",
    "a count with a sign": "0\n+1\na 0 5\n",
    "an offset of 5000 digits": "0\n1\na 0 " + "9" * 5000 + "\n",
    "an offset above 64 bits": "0\n1\na 0 9223372036854775808\n",
    "an offset with underscores": "0\n1\na 0 1_0\n",
    "an offset in other digits": "0\n1\na 0 ٣\n",
    "a partition above 32 bits": "0\n1\na 2147483648 5\n",
}


@pytest.mark.parametrize("case", ODD_NUMBERS)
def test_a_checkpoint_with_numbers_that_kafka_never_writes_is_corrupt(case: str) -> None:
    disk = ModelDisk()
    _put(disk, "./c", ODD_NUMBERS[case].encode())
    with pytest.raises(Corrupt, match=r"path=\./c"):
        checkpoints.read_offsets(disk, "./c")
    _put(disk, "./e", ODD_NUMBERS[case].encode().replace(b"\na ", b"\n"))
    with pytest.raises(Corrupt, match=r"path=\./e"):
        checkpoints.read_epochs(disk, "./e")


@pytest.mark.parametrize("body", [b"", None], ids=["empty", "absent"])
def test_an_empty_or_absent_checkpoint_has_no_entries(body: bytes | None) -> None:
    disk = ModelDisk()
    if body is not None:
        _put(disk, "./c", body)
    assert checkpoints.read_offsets(disk, "./c") == {}


@pytest.mark.parametrize(
    "body",
    [
        b"1\n0\n",
        b"0\n2\na 0 1\n",
        b"0\n1\na 0\n",
        b"0\n1\na x 1\n",
        b"0\n1\na/b 0 1\n",
        b"0\nx\n",
        b"\xff\xfe\n1\n",
        b"0\n",
    ],
)
def test_a_damaged_checkpoint_is_refused_with_its_path(body: bytes) -> None:
    disk = ModelDisk()
    _put(disk, "./c", body)
    with pytest.raises(Corrupt, match=r"path=\./c"):
        checkpoints.read_offsets(disk, "./c")


def test_the_bytes_of_partition_metadata_equal_kafkas() -> None:
    disk = ModelDisk()
    checkpoints.write_topic_id(disk, ".", "A" * 22)
    assert disk.read("./partition.metadata") == b"version: 0\ntopic_id: " + b"A" * 22 + b"\n"
    assert checkpoints.read_topic_id(disk, ".") == "A" * 22


def test_the_directory_id_in_meta_properties_does_not_change() -> None:
    disk = ModelDisk()
    first = checkpoints.ensure_meta_properties(disk, ".")
    assert len(first.directory_id) == len(first.cluster_id) == 22
    assert first.node_id == "1"
    assert checkpoints.ensure_meta_properties(disk, ".") == first


@pytest.mark.parametrize(
    ("before", "assign", "after"),
    [
        ([], (0, 0), [(0, 0)]),
        ([(0, 0)], (0, 5), [(0, 0)]),
        ([(0, 0)], (2, 10), [(0, 0), (2, 10)]),
        ([(0, 0), (2, 10)], (3, 10), [(0, 0), (3, 10)]),
        ([(0, 0), (2, 10), (4, 20)], (1, 15), [(0, 0), (1, 15)]),
    ],
)
def test_a_new_epoch_removes_the_epochs_that_contradict_it(
    before: list[tuple[int, int]], assign: tuple[int, int], after: list[tuple[int, int]]
) -> None:
    assert list(LeaderEpochs(tuple(before)).assign(*assign).entries) == after


def test_the_first_epoch_of_a_range_starts_at_the_range_base() -> None:
    epochs = LeaderEpochs(((0, 0), (2, 10), (5, 30)))
    assert epochs.between(5, 20) == ((0, 5), (2, 10))
    assert epochs.between(10, 30) == ((2, 10),)
    assert epochs.between(12, 31) == ((2, 12), (5, 30))
