"""Offset and time index: entry bytes, lookups, damage."""

from __future__ import annotations

import bisect
import random
from dataclasses import replace

import numpy as np
import pytest

from local.errors import Corrupt
from local.format.columns import TABLE_DTYPES, BatchTable
from local.index import offset_index, time_index
from local.index.index_files import Indexes, build_indexes, time_entry
from local.kernels import scan_batches


def test_the_bytes_of_index_entries_equal_kafkas() -> None:
    assert offset_index.pack(100, 105, 4096).hex() == "0000000500001000"
    assert time_index.pack(100, 1_700_000_000_000, 105).hex() == "0000018bcfe5680000000005"


def test_an_offset_lookup_returns_the_largest_entry_at_or_below_the_offset() -> None:
    rng = random.Random(1)
    offsets = sorted(rng.sample(range(1000, 5000), 300))
    data = b"".join(offset_index.pack(1000, offset, at * 10) for at, offset in enumerate(offsets))
    for target in range(990, 5010):
        at = bisect.bisect_right(offsets, target) - 1
        expected = (offsets[at], at * 10) if at >= 0 else (1000, 0)
        assert offset_index.lookup(data, 1000, target) == expected


def test_a_time_lookup_returns_the_largest_entry_at_or_below_the_time() -> None:
    rng = random.Random(2)
    times = sorted(rng.sample(range(10_000), 200))
    data = b"".join(time_index.pack(7, timestamp, 7 + at) for at, timestamp in enumerate(times))
    for target in range(-5, 10_005, 3):
        at = bisect.bisect_right(times, target) - 1
        expected = (times[at], 7 + at) if at >= 0 else (-1, 7)
        assert time_index.lookup(data, 7, target) == expected


def test_a_lookup_in_an_empty_index_returns_the_segment_start() -> None:
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
    ids=["torn", "offset repeats", "position repeats", "past the end of the log", "zero-filled tail"],
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


def test_indexes_built_from_a_table_equal_indexes_built_batch_by_batch() -> None:
    rng = random.Random(7)
    for _ in range(300):
        count, latest = rng.choice([0, 1, 2, 3, 10, 40]), rng.choice([-1, 0, 3, 100])
        sizes = [rng.randint(61, 300) for _ in range(count)]
        times = [rng.randint(-1, latest) for _ in range(count)]
        offsets = sorted(rng.sample(range(1000, 1400), count))
        interval = rng.choice([0, 100, 250, 1000, 10**6])
        table = table_of(sizes, times, offsets)
        assert build_indexes(table, 1000, interval) == one_by_one(sizes, times, offsets, interval)


def test_an_offset_outside_the_range_of_index_entries_is_refused() -> None:
    for offset in (999, 1000 + 2**31):
        with pytest.raises(Corrupt, match="outside the segment"):
            build_indexes(table_of([61], [5], [offset]), 1000, 0)


def table_of(sizes: list[int], times: list[int], offsets: list[int]) -> BatchTable:
    none = scan_batches(b"")
    positions = np.cumsum([0, *sizes], dtype=np.int64)[:-1]
    columns = {"sizes": sizes, "max_timestamps": times, "last_offsets": offsets}
    return replace(none, positions=positions, **{n: np.array(c, TABLE_DTYPES[n]) for n, c in columns.items()})


def one_by_one(sizes: list[int], times: list[int], offsets: list[int], interval: int) -> Indexes:
    made, made_times, latest, latest_offset, since, position = bytearray(), bytearray(), None, 1000, 0, 0
    for size, timestamp, offset in zip(sizes, times, offsets, strict=True):
        if timestamp >= 0 and (latest is None or timestamp > latest):
            latest, latest_offset = timestamp, offset
        if since > interval:
            made += offset_index.pack(1000, offset, position)
            made_times += time_entry(made_times, 1000, latest, latest_offset)
            since = 0
        since, position = since + size, position + size
    made_times += time_entry(made_times, 1000, latest, latest_offset)
    return Indexes(made, made_times)


@pytest.mark.parametrize("index", [offset_index, time_index])
def test_the_checks_with_and_without_numpy_accept_the_same_entries(index, monkeypatch):
    draw = random.Random(7)
    for _ in range(2000):
        pairs = [(draw.randrange(-1, 6), draw.randrange(-1, 6)) for _ in range(draw.randrange(5))]
        pairs = sorted(pairs) if draw.random() < 0.5 else pairs
        data = b"".join(index.ENTRY.pack(*pair) for pair in pairs) + bytes(draw.randrange(4))
        more = (4,) if index is offset_index else ()
        few = index.sound_entries(data, *more)
        with monkeypatch.context() as patch:
            patch.setattr("local.index.index_files.FEW", -1)
            assert (index.sound_entries(data, *more) if pairs else 0) == few, pairs
