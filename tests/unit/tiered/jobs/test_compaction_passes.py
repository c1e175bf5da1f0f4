"""The key exchange finds the newest record of each key, as a dictionary would, in bounded memory."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest

from local.errors import Corrupt
from tiered.jobs.compaction_passes import (
    Combiner,
    KeyRun,
    bucket_count,
    by_group,
    newest,
    newest_offsets,
    offsets_of,
    parted,
    records_held,
)

LARGE = 2**62


def run_of(keys, offsets):
    """A run of keys and offsets. Each key is a pair of numbers, the halves of a digest."""
    halves = np.array(keys, np.int64).reshape(-1, 2)
    return KeyRun(halves[:, 0].copy(), halves[:, 1].copy(), np.array(offsets, np.int64))


def drawn(rng, count, base):
    """Random digests. Some share one half with another key, and some keys are repeated."""
    halves = rng.integers(-(2**63), 2**63 - 1, (max(1, count // 3), 2))
    halves[: len(halves) // 4, 1] = halves[0, 1]
    keys = halves[rng.integers(0, len(halves), count)].tolist()
    offsets = (base + np.cumsum(rng.integers(1, 400, count))).tolist()
    return keys, offsets


def wanted_of(keys, offsets):
    return sorted(
        {tuple(key): offset for key, offset in sorted(zip(keys, offsets, strict=True), key=lambda e: e[1])}.values()
    )


@pytest.mark.parametrize("buckets", [1, 2, 7, 1000])
@pytest.mark.parametrize("held", [1, 50, 10_000])
def test_newest_record_of_each_key_is_found_for_any_buckets_and_memory(buckets, held):
    rng = np.random.default_rng(buckets * held)
    for base in (0, 17, LARGE):
        keys, offsets = drawn(rng, 700, base)
        strings, combiner = {}, Combiner(held)
        for at in range(0, 700, 90):
            run = run_of(keys[at : at + 90], offsets[at : at + 90])
            for ready in combiner.add(run):
                add(strings, ready, buckets)
        for ready in combiner.rest():
            add(strings, ready, buckets)
        assert list(combiner.rest()) == []
        found = np.sort(np.concatenate([newest(each) for each in strings.values()]))
        assert found.tolist() == wanted_of(keys, offsets)
        assert newest_offsets([run_of(keys, offsets)]).tolist() == found.tolist()


def add(strings, run, buckets):
    for number, string in parted(run, buckets):
        assert 0 <= number < buckets
        strings.setdefault(number, []).append(string)


def test_every_bucket_has_about_the_same_share_of_the_keys():
    rng = np.random.default_rng(1)
    run = run_of(rng.integers(-(2**63), 2**63 - 1, (64_000, 2)), np.arange(64_000))
    shares = {}
    add(shares, run, 64)
    assert len(shares) == 64
    assert all(800 < len(newest(each)) < 1200 for each in shares.values())


def test_combiner_has_a_bounded_number_of_records_and_sends_repeated_keys_once():
    combiner = Combiner(1000)
    given = [
        len(each.offsets)
        for at in range(50)
        for each in combiner.add(run_of([(k, k) for k in range(400)], range(at * 400, at * 400 + 400)))
    ]
    assert given == []
    (rest,) = combiner.rest()
    assert rest.offsets.tolist() == list(range(49 * 400, 50 * 400))
    combiner = Combiner(1000)
    given = [
        len(each.offsets)
        for at in range(50)
        for each in combiner.add(
            run_of([(k, k) for k in range(at * 400, at * 400 + 400)], range(at * 400, at * 400 + 400))
        )
    ]
    assert given == [1200] * 16


@pytest.mark.parametrize("start", [0, 5, LARGE])
def test_offsets_are_returned_to_the_group_that_has_them(start):
    rng = np.random.default_rng(start % 7)
    offsets = start + np.unique(rng.integers(0, 5000, 900))
    bases = start + np.array([0, 1, 1000, 1001, 4000, 4990])
    strings = {}
    for number, string in by_group(offsets, bases):
        strings.setdefault(number, []).append(string)
    for number, (base, following) in enumerate(zip(bases, [*bases[1:], start + 5000], strict=True)):
        mine = offsets[(offsets >= base) & (offsets < following)]
        assert offsets_of(strings.get(number, [])).tolist() == mine.tolist()


def test_encoded_runs_are_split_at_the_maximum_length(monkeypatch):
    monkeypatch.setattr("tiered.jobs.compaction_passes.STRING_RECORDS", 10)
    keys, offsets = drawn(np.random.default_rng(3), 95, 0)
    strings = [string for _, string in parted(run_of(keys, offsets), 1)]
    assert len(strings) == 10
    assert newest(strings).tolist() == wanted_of(keys, offsets)
    back = [string for _, string in by_group(np.arange(95), np.array([0]))]
    assert len(back) == 10
    assert offsets_of(back).tolist() == list(range(95))


def test_encoded_record_takes_19_bytes_to_the_bucket_and_2_back():
    rng = np.random.default_rng(5)
    keys = rng.integers(-(2**63), 2**63 - 1, (100_000, 2))
    offsets = np.sort(rng.choice(2_000_000, 100_000, replace=False)) + LARGE
    (out,) = [string for _, string in parted(run_of(keys, offsets), 1)]
    (back,) = [string for _, string in by_group(offsets, np.array([LARGE]))]
    assert len(out) < 19.1 * 100_000
    assert len(back) < 2.1 * 100_000


def test_truncated_run_raises_corrupt():
    (string,) = [string for _, string in parted(run_of([(1, 2), (3, 4)], [5, 900]), 1)]
    (back,) = [string for _, string in by_group(np.array([5, 900]), np.array([0]))]
    assert newest([string]).tolist() == [5, 900]
    assert offsets_of([back]).tolist() == [5, 900]
    for length in range(len(string)):
        with pytest.raises(Corrupt):
            newest([string[:length]])
    for length in range(len(back)):
        with pytest.raises(Corrupt):
            offsets_of([back[:length]])


def test_small_buffer_compares_few_records_at_a_time():
    assert [records_held(each) for each in (0, 31, 64, 64 << 20)] == [1, 1, 2, 2 << 20]


def peak_bytes(directory, keys, buffer_bytes):
    """Peak memory of finding the newest of `keys` keys, each of which appears twice.
    Encoded runs are on the disk."""
    buckets, found = bucket_count(2 * keys, buffer_bytes), 0
    places = [directory / str(number) for number in range(buckets)]
    tracemalloc.start()
    for turn in range(2):
        combiner = Combiner(records_held(buffer_bytes))
        for at in range(0, keys, 2000):
            halves = np.arange(at, min(at + 2000, keys), dtype=np.int64)
            run = KeyRun(halves, halves * -(7**22), halves + turn * keys)
            append(places, [each for ready in combiner.add(run) for each in parted(ready, buckets)])
        append(places, [each for ready in combiner.rest() for each in parted(ready, buckets)])
    for place in places:
        offsets = newest(strings_in(place))
        assert (offsets >= keys).all()
        found += len(offsets)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == keys
    return peak


def append(places, strings):
    for number, string in strings:
        with places[number].open("ab") as file:
            file.write(struct.pack("<I", len(string)) + string)


def strings_in(place):
    with place.open("rb") as file:
        while manifest := file.read(4):
            yield file.read(*struct.unpack("<I", manifest))


def test_memory_is_bounded_by_the_buffer_for_any_number_of_keys(tmp_path):
    few, many = (peak_bytes(fresh(tmp_path / str(keys)), keys, 512 << 10) for keys in (20_000, 320_000))
    whole = peak_bytes(fresh(tmp_path / "whole"), 320_000, 64 << 20)
    assert many < 1.5 * few + (1 << 20) < 4 << 20
    assert whole > 320_000 * 2 * 24 > 3 * many, "the keys must not fit into the small buffer"


def fresh(directory):
    directory.mkdir()
    return directory
