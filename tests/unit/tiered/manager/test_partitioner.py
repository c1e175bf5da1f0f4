"""Kafka's default partitioner."""

from __future__ import annotations

import pytest

from local.format.record import Record
from local.kernels.pure_kernels import murmur2
from tiered.manager.manager import Partitioner


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_kafkas_values(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % 2**32


def test_murmur2_agrees_with_an_independent_client() -> None:
    from aiokafka.partitioner import murmur2 as theirs

    for length in range(40):
        key = bytes(range(7, 7 + length))
        assert murmur2(key) == theirs(key) % 2**32


def test_records_of_one_key_stay_in_one_partition_and_in_order() -> None:
    records = [Record(b"k%d" % (at % 7), b"%d" % at, 0) for at in range(100)]
    shares = Partitioner().split(records, 5)
    assert sorted(record for share in shares.values() for record in share) == sorted(records)
    for key in {record.key for record in records}:
        holders = [share for share in shares.values() if any(record.key == key for record in share)]
        assert len(holders) == 1
        values = [record.value for record in holders[0] if record.key == key]
        assert values == [record.value for record in records if record.key == key]


def test_records_without_key_rotate_over_partitions_by_call() -> None:
    partitioner = Partitioner()
    chosen = [next(iter(partitioner.split([Record(None, b"v", 0)] * 3, 3))) for _ in range(6)]
    assert chosen == [0, 1, 2, 0, 1, 2]
