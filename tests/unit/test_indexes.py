"""Offset and time index: bytes, lookups, damage."""

from __future__ import annotations

import bisect
import random

import pytest

from local import offset_index, time_index
from local.errors import Corrupt


def test_entries_have_kafkas_bytes() -> None:
    assert offset_index.pack(100, 105, 4096).hex() == "0000000500001000"
    assert time_index.pack(100, 1_700_000_000_000, 105).hex() == "0000018bcfe5680000000005"


def test_an_offset_lookup_is_the_greatest_entry_at_or_below() -> None:
    rng = random.Random(1)
    offsets = sorted(rng.sample(range(1000, 5000), 300))
    data = b"".join(offset_index.pack(1000, offset, at * 10) for at, offset in enumerate(offsets))
    for target in range(990, 5010):
        at = bisect.bisect_right(offsets, target) - 1
        expected = (offsets[at], at * 10) if at >= 0 else (1000, 0)
        assert offset_index.lookup(data, 1000, target) == expected


def test_a_time_lookup_is_the_greatest_entry_at_or_below() -> None:
    rng = random.Random(2)
    times = sorted(rng.sample(range(10_000), 200))
    data = b"".join(time_index.pack(7, timestamp, 7 + at) for at, timestamp in enumerate(times))
    for target in range(-5, 10_005, 3):
        at = bisect.bisect_right(times, target) - 1
        expected = (times[at], 7 + at) if at >= 0 else (-1, 7)
        assert time_index.lookup(data, 7, target) == expected


def test_an_empty_index_sends_to_the_start() -> None:
    assert offset_index.lookup(b"", 5, 9) == (5, 0)
    assert time_index.lookup(b"", 5, 9) == (-1, 5)


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 7,
        offset_index.pack(0, 5, 10) + offset_index.pack(0, 5, 20),
        offset_index.pack(0, 5, 10) + offset_index.pack(0, 6, 10),
        offset_index.pack(0, 5, 100),
        offset_index.pack(0, 5, 10) + b"\0" * 8,
    ],
    ids=["torn", "offset repeats", "position repeats", "past the log", "zero-filled tail"],
)
def test_a_damaged_offset_index_is_refused_with_its_path(data: bytes) -> None:
    with pytest.raises(Corrupt, match=r"path=x\.index"):
        offset_index.check(data, 100, path="x.index")


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 11,
        time_index.pack(0, 5, 1) + time_index.pack(0, 4, 2),
        time_index.pack(0, 5, 2) + time_index.pack(0, 6, 1),
    ],
    ids=["torn", "time falls", "offset falls"],
)
def test_a_damaged_time_index_is_refused_with_its_path(data: bytes) -> None:
    with pytest.raises(Corrupt, match=r"path=x\.timeindex"):
        time_index.check(data, path="x.timeindex")
