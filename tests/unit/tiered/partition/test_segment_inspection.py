"""Inspection of a local segment before its copy: its facts come from its bytes, invalid bytes never become an entry."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from disk_model import ModelDisk
from legacy_samples import many
from log_world import fill, open_log

from local.errors import Corrupt, InvalidRequest
from local.names import OFFSET_INDEX, TIME_INDEX
from remote.store.memory_store import MemoryStore
from remote.upload.segment_upload import copy_segment
from tiered.partition.segment_inspection import SegmentInspector, segment_to_copy

PREFIX = "t-AAAAAAAAAAAAAAAAAAAAAA/0/"


@pytest.fixture
def log():
    log = open_log(ModelDisk())
    fill(log, 200)
    log.roll(now_ms=2000)
    return log


def sealed(log):
    return next(info for info in log.segments() if not info.is_active and info.base_offset > 0)


def body_of(log, info):
    return bytes(log.segment(info.base_offset).read(0, info.size_bytes))


def watch(log, info, **changes):
    facts = {"base_offset": info.base_offset, "next_offset": info.next_offset, "epochs": ((0, info.base_offset),)}
    return SegmentInspector("the.log", **{**facts, **changes})


def test_facts_of_an_entry_equal_those_of_the_bytes(log):
    store = MemoryStore()
    for info in log.segments():
        if info.is_active:
            continue
        entry = copy_segment(store, PREFIX, segment_to_copy(log, info), epoch=1, now_ms=0)
        expected = range(info.base_offset, info.next_offset)
        assert entry.record_count == len(expected)
        assert (entry.min_timestamp_ms, entry.max_timestamp_ms) == (5000 + expected[0], 5000 + expected[-1])
        assert store.get(PREFIX + entry.data_key) == body_of(log, info)


@pytest.mark.parametrize("step", [1, 100, 331, 10_000])
def test_inspection_takes_whole_batches_and_leaves_a_partial_one(log, step):
    info = sealed(log)
    body, seen, at = memoryview(body_of(log, info)), watch(log, info), 0
    want = step
    while at < len(body):
        taken = seen.take(body[at : at + want])
        at, want = at + taken, step if taken else want * 2
    facts = seen.facts()
    assert (facts.first_offset, facts.last_offset) == (info.base_offset, info.next_offset - 1)
    assert facts.record_count == info.next_offset - info.base_offset


def test_every_flipped_bit_is_detected(log):
    """The base offset and the leader epoch have no CRC. They are checked against the neighbours and the log."""
    info = sealed(log)
    body = body_of(log, info)
    for at in range(0, len(body), 7):
        spoilt = bytearray(body)
        spoilt[at] ^= 1 << at % 8
        found = outcome(watch(log, info), bytes(spoilt))
        if isinstance(found, int):
            assert found < len(body), f"a flipped bit went by, at={at}"
        else:
            assert found.facts["path"] == "the.log"
            assert 0 <= found.facts["at"] < len(body)


def outcome(seen, data):
    """Number of bytes taken, or the error."""
    try:
        return seen.take(memoryview(data))
    except (Corrupt, InvalidRequest) as error:
        return error


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base_offset": 1_000_000}, "it exceeds its offset range in the log"),
        ({"next_offset": 1}, "it exceeds its offset range in the log"),
        ({"epochs": ((5, 0),)}, "another leader epoch"),
        ({"epochs": ((0, 1_000_000),)}, "another leader epoch"),
    ],
)
def test_batches_with_offsets_outside_their_segment_are_refused(log, changes, words):
    info = sealed(log)
    with pytest.raises(
        Corrupt, match=rf"cannot copy a segment: the segment is invalid.*{words}.*: path=the.log at=0 offset="
    ):
        watch(log, info, **changes).take(memoryview(body_of(log, info)))


def test_decreasing_offsets_are_refused_across_pieces_too(log):
    info = sealed(log)
    body = memoryview(body_of(log, info))
    seen = watch(log, info)
    seen.take(body)
    with pytest.raises(Corrupt, match="its offsets decrease"):
        seen.take(body)


def test_messages_of_old_formats_are_refused(log):
    with pytest.raises(InvalidRequest, match=r"format 0 or 1 cannot be tiered: path=the.log at=0"):
        watch(log, sealed(log)).take(memoryview(many(1, 3)))


@pytest.mark.parametrize("index", [0, 1])
def test_index_that_contradicts_the_bytes_is_rebuilt_for_the_copy(log, index):
    """KAFKA-15401. Each entry in turn has a position, offset or timestamp that is slightly wrong."""
    info = sealed(log)
    segment = log.segment(info.base_offset)
    good = [bytes(segment.index(OFFSET_INDEX)), bytes(segment.index(TIME_INDEX))]
    entry_bytes = (8, 12)[index]
    assert len(good[index]) >= 2 * entry_bytes
    for last_byte in range(entry_bytes - 1, len(good[index]), entry_bytes):
        spoilt = bytearray(good[index])
        spoilt[last_byte] ^= 1
        indexes = tuple(bytes(spoilt) if number == index else each for number, each in enumerate(good))
        told = []
        interval_bytes = log.settings.index_interval_bytes
        seen = watch(log, info, indexes=indexes, interval_bytes=interval_bytes, on_wrong=told.append)
        seen.take(memoryview(body_of(log, info)))
        facts = seen.facts()
        assert [facts.offset_index, facts.time_index] == good
        assert "index entry" in told[0]
    fine = watch(log, info, indexes=tuple(good), on_wrong=pytest.fail)
    fine.take(memoryview(body_of(log, info)))
    assert (fine.facts().offset_index, fine.facts().time_index) == (None, None)


def test_refused_segment_leaves_no_object_in_the_store(log):
    info, store = sealed(log), MemoryStore()
    segment = segment_to_copy(log, info)
    body = bytearray(body_of(log, info))
    struct.pack_into(">i", body, len(body) // 2, 0x7FFFFFFF)
    spoilt = replace(segment, read=lambda start, length: bytes(body[start : start + length]))
    with pytest.raises(Corrupt):
        copy_segment(store, PREFIX, spoilt, epoch=1, now_ms=0)
    assert list(store.list("")) == []
