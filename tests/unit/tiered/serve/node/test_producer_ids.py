"""Producer ids are given once, across restarts, crashes, and lost or damaged copies of their file."""

from __future__ import annotations

import random
import secrets

import pytest
from disk_model import ModelDisk

from local.errors import Corrupt, DiskFailed
from local.storage import Storage
from tiered.serve.node.producer_ids import AHEAD, BLOCK, FILE, FOREIGN_END, IGNORED_FROM, ProducerIds


@pytest.fixture(autouse=True)
def the_distance_of_foreign_ids_is_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "randbelow", lambda below: 0)


def ids(disk: Storage, *roots: str, highest: int = -1) -> ProducerIds:
    return ProducerIds([(disk, root) for root in roots or ("data",)], lambda: highest)


@pytest.fixture
def disk() -> ModelDisk:
    disk = ModelDisk()
    for root in ("data", "other"):
        disk.make_directory(root)
    return disk


def test_ids_ascend_from_0_and_continue_in_the_next_block(disk: ModelDisk) -> None:
    made = ids(disk)
    assert [made.take() for _ in range(2 * BLOCK + 3)] == list(range(2 * BLOCK + 3))


def test_a_restart_begins_with_the_next_block(disk: ModelDisk) -> None:
    ids(disk).take()
    assert ids(disk).take() == BLOCK
    assert ids(disk).take() == 2 * BLOCK


def test_a_reservation_is_durable_before_its_first_id() -> None:
    disk = ModelDisk()
    disk.make_directory("data")
    made = ids(disk)
    for _ in range(2 * BLOCK + 1):
        highest = made.take()
    for seed in range(20):
        assert ids(disk.crash(random.Random(seed))).take() > highest


def test_ids_in_the_logs_are_not_given_again(disk: ModelDisk) -> None:
    ids(disk).take()
    assert ids(disk, highest=5000).take() == 5001
    assert ids(disk, highest=-1).take() == 5001 + BLOCK


def test_ids_of_another_node_may_be_higher_than_those_in_the_logs(disk: ModelDisk) -> None:
    """A restored directory has no file: clients of the lost node may use ids whose records were not in the bucket."""
    assert ids(disk, highest=41).take() == 42 + AHEAD
    assert ids(disk, highest=42 + AHEAD).take() == 42 + AHEAD + BLOCK


def test_the_highest_copy_is_valid(disk: ModelDisk) -> None:
    ids(disk, "data", "other").take()
    ids(disk, "other").take()
    assert ids(disk, "data", "other").take() == 2 * BLOCK


def test_an_unreadable_copy_may_be_ahead(disk: ModelDisk) -> None:
    ids(disk, "data", "other").take()
    disk.unlink(f"other/{FILE}")
    disk.create(f"other/{FILE}").append(b"{")
    assert ids(disk, "data", "other").take() == BLOCK + AHEAD
    assert ids(disk, "data", "other").take() == 2 * BLOCK + AHEAD, "the damaged copy was replaced"


def test_no_id_is_given_at_the_end_of_the_range(disk: ModelDisk) -> None:
    ids(disk).take()
    made = ids(disk, highest=2**63 - BLOCK - 1)
    assert [made.take() for _ in range(BLOCK)][-1] == 2**63 - 1
    for each in (made, ids(disk)):
        with pytest.raises(Corrupt, match="end of their range"):
            each.take()


def test_high_ids_are_possible_if_they_are_reserved(disk: ModelDisk) -> None:
    ids(disk).take()
    made = ids(disk, highest=FOREIGN_END - 1)
    assert [made.is_possible(each) for each in (-1, FOREIGN_END - 1, FOREIGN_END)] == [True, True, False]
    assert made.take() == FOREIGN_END
    end = FOREIGN_END + BLOCK
    for each in (made, ids(disk)):
        assert [each.is_possible(at) for at in (FOREIGN_END, end - 1, end, 2**63 - 1)] == [True, True, False, False]


def test_no_id_is_given_without_a_reservation() -> None:
    class Refusing(ModelDisk):
        def create(self, path: str) -> object:  # type: ignore[override]
            raise DiskFailed("full", cause="enospc")

    made = ids(Refusing())
    for _ in range(2):
        with pytest.raises(DiskFailed):
            made.take()


def test_two_nodes_restored_from_one_bucket_give_other_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first may have given ids that the bucket lacks, and its clients still use them."""
    distances = iter([5, 900_000])
    monkeypatch.setattr(secrets, "randbelow", lambda below: next(distances))
    found = []
    for _ in range(2):
        node = ModelDisk()
        node.make_directory("data")
        found.append(ids(node, highest=41).take())
    assert found == [42 + AHEAD + 5, 42 + AHEAD + 900_000]


def test_the_distance_of_foreign_ids_is_one_of_2_to_the_48_far_from_the_end_of_the_range(
    disk: ModelDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids of two nodes that give a million ids each meet with a chance of 2^20 / 2^47."""
    asked: list[int] = []

    def largest(below: int) -> int:
        asked.append(below)
        return below - 1

    monkeypatch.setattr(secrets, "randbelow", largest)
    assert ids(disk, highest=IGNORED_FROM - 1).take() < 2**63 - 2**60, "2^60 ids are left after the largest distance"
    assert asked == [1 << 48]
