"""Splits of Spark tasks: every batch once and in order, cut and pruned where the entries and the index allow."""

from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remote_samples import entry

from tiered.spark.source.splits import PartitionRange, plan_splits, trimmed, wanted_segments


def make_range(segments, start_offset=0, next_offset=10**9):
    return PartitionRange(
        topic="orders",
        partition=3,
        prefix="orders-x/3/",
        head_sequence=9,
        start_offset=start_offset,
        next_offset=next_offset,
        segments=tuple(segments),
    )


def segments_of(*sizes, each=100):
    return [
        entry(f"U{number}", number * each, (number + 1) * each, size_bytes=size) for number, size in enumerate(sizes)
    ]


def no_index(each, segment):
    raise AssertionError("the index of an uncut segment was requested")


def shape(splits):
    return [[(piece.segment.ulid, piece.position, piece.end_position) for piece in split.pieces] for split in splits]


def test_small_segments_are_packed_up_to_the_split_size_without_an_index():
    splits = plan_splits([make_range(segments_of(40, 40, 40, 10, 60))], no_index, split_bytes=100)
    assert shape(splits) == [[("U0", 0, 40), ("U1", 0, 40)], [("U2", 0, 40), ("U3", 0, 10)], [("U4", 0, 60)]]


def test_partitions_are_never_packed_together():
    splits = plan_splits([make_range(segments_of(1)), make_range(segments_of(1))], no_index, split_bytes=100)
    assert len(splits) == 2


def test_empty_segments_and_segments_outside_the_range_are_left_out():
    segments = [*segments_of(10, 10, 10, 10), entry("E", 400, 500, size_bytes=0)]
    assert [each.ulid for each in wanted_segments(make_range(segments, 100, 300))] == ["U1", "U2"]
    assert [each.ulid for each in wanted_segments(make_range(segments, 99, 301))] == ["U0", "U1", "U2", "U3"]
    assert wanted_segments(make_range(segments, 250, 250)) == ()
    assert plan_splits([make_range(segments, 400, 500)], no_index, split_bytes=100) == []


def test_a_large_segment_is_cut_into_equal_shares_at_batch_starts():
    entries = [(offset, offset * 10) for offset in range(5, 100, 5)]  # a batch every 50 bytes
    splits = plan_splits([make_range(segments_of(1000))], lambda *_: entries, split_bytes=300)
    assert shape(splits) == [[("U0", 0, 250)], [("U0", 250, 500)], [("U0", 500, 750)], [("U0", 750, 1000)]]


def test_a_large_segment_is_trimmed_to_the_offsets_before_it_is_cut():
    entries = [(offset, offset * 10) for offset in range(5, 100, 5)]
    splits = plan_splits([make_range(segments_of(1000), 52, 71)], lambda *_: entries, split_bytes=300)
    assert shape(splits) == [[("U0", 500, 750)]]


def test_partitions_min_gives_more_tasks():
    splits = plan_splits([make_range(segments_of(*[10] * 20))], no_index, split_bytes=1000, partitions_min=7)
    assert len(splits) >= 7


def test_split_survives_pickling_with_its_planned_entries():
    (split,) = plan_splits([make_range(segments_of(10))], no_index, split_bytes=100)
    again = pickle.loads(pickle.dumps(split))
    assert again == split
    assert again.pieces[0].segment.data_crc32c == 0xFFFFFFFF
    assert again.head_sequence == 9


@st.composite
def logs(draw):
    """(a segment, its batches as (base, last, position, size), an index of some batches, a range)."""
    batches, offset, position = [], 100, 0
    for _ in range(draw(st.integers(1, 30))):
        base = offset + draw(st.integers(0, 3))
        last = base + draw(st.integers(0, 9))
        size = draw(st.integers(61, 200))
        batches.append((base, last, position, size))
        offset, position = last + 1, position + size
    indexed = draw(st.sets(st.sampled_from(batches)))
    segment = entry("U", 100, offset + draw(st.integers(0, 5)), size_bytes=position)
    start = draw(st.integers(90, offset + 10))
    return (
        segment,
        batches,
        [(last, at) for _, last, at, _ in sorted(indexed)],
        (start, draw(st.integers(start, offset + 10))),
    )


@given(logs())
def test_trimming_never_loses_a_wanted_batch_and_cuts_at_batch_starts(log):
    segment, batches, entries, (start, end) = log
    piece = trimmed(entries, segment, start, end)
    wanted = [(at, at + size) for base, last, at, size in batches if last >= start and base < end]
    if wanted:
        assert piece.position <= wanted[0][0]
        assert wanted[-1][1] <= piece.end_position
    edges = {at for _, _, at, _ in batches} | {segment.size_bytes}
    assert {piece.position, piece.end_position} <= edges


@given(logs(), st.integers(1, 3000))
def test_cutting_neither_loses_nor_repeats_a_batch(log, split_bytes):
    segment, batches, entries, _ = log
    splits = plan_splits([make_range([segment])], lambda *_: entries, split_bytes=split_bytes)
    pieces = [piece for split in splits for piece in split.pieces]
    assert pieces[0].position == 0
    assert pieces[-1].end_position == segment.size_bytes
    assert all(left.end_position == right.position for left, right in itertools.pairwise(pieces))
    assert all(piece.size_bytes > 0 for piece in pieces)
    assert {piece.position for piece in pieces} <= {at for _, _, at, _ in batches}


@pytest.mark.parametrize("next_offset", [0, 1])
def test_an_index_without_entries_reads_the_whole_segment(next_offset):
    piece = trimmed([], entry("U", 0, 10, size_bytes=77), 0, next_offset)
    assert (piece.position, piece.end_position) == (0, 77)
