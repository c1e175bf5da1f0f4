"""The cleaner's offset map compared with its Python implementation: the same bits are cleared in every case.
The cases have hash collisions, keys in any buffer, and full maps."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_profile import examples

from local import kernels
from local.errors import Corrupt, InvalidRequest
from local.format.record import Record, append_varint, varint_bytes
from local.kernels import pure_key_map
from local.kernels.pure_key_map import LET_GO, PASS_BY, TAKE
from local.records.batch import encode_batch

compiled = pytest.importorskip("local.kernels._kernels", reason="the extension was not built")
TWINS = (compiled.KeyMap, pure_key_map.KeyMap)
ALL = 2**64 - 1

KEYS = (
    st.none()
    | st.binary(max_size=3)
    | st.sampled_from([bytes(7), bytes(8), bytes(9), bytes(63), bytes(64), bytes(300)])
)
# One call: (keys with skip flags, whether the map holds the buffer, whether lengths are padded).
CALLS = st.lists(
    st.tuples(st.lists(st.tuples(KEYS, st.booleans()), max_size=150), st.booleans(), st.booleans()), max_size=5
)


def laid_out(keys, padded=False):
    """(bytes with a varint length before each key as in records, starts, lengths); `padded`: varints longer than
    needed."""
    data, starts, lengths = bytearray(b"\x05"), [], []
    for key in keys:
        if key is None:
            starts.append(0)
            lengths.append(-1)
            continue
        append_varint(data, len(key))
        if padded:
            data[-1] |= 0x80
            data.append(0)
        starts.append(len(data))
        lengths.append(len(key))
        data += key
    return memoryview(bytes(data)), np.array(starts, np.int64), np.array(lengths, np.int32)


def played(twin, calls, entries_max, arena_bytes, mask):
    """(rows done per call, final bits, keys found, size) of one implementation. Stops at the first incomplete call."""
    made = twin(entries_max * 10 // 9 + 2, entries_max, arena_bytes_max=arena_bytes, seed=77, hash_mask=mask)
    total = sum(len(entries) for entries, *_ in calls)
    keep = np.full(total // 8 + 1, 0xFF, np.uint8)
    done, ordinal, laid = [], 0, []
    for entries, is_held, is_padded in calls:
        data, starts, lengths = laid_out([key for key, _ in entries], is_padded)
        skip = np.array([flag for _, flag in entries], np.bool_)
        where = {}
        if is_held:
            around = memoryview(b"ab" + bytes(data) + b"cd")
            where = {"buffer": made.hold(around), "position": 2}
            data = around[2:-2]
        laid.append((data, starts, lengths))
        done.append(made.add(data, starts, lengths, skip, ordinal, keep, **where))
        ordinal += len(entries)
        if done[-1] < len(entries):
            break
    found = [made.find(*each).tolist() for each in laid]
    return done, keep.tolist(), found, len(made)


@settings(max_examples=examples(300), deadline=None)
@given(CALLS, st.integers(1, 400), st.sampled_from([ALL, 0, 0x3FFF, ALL << 50 & ALL]))
def test_both_maps_clear_the_same_bits_and_find_the_same_keys_with_any_collisions(calls, entries_max, mask):
    calls = [(entries, is_held, False) for entries, is_held, _ in calls]
    ours, oracle = (played(twin, calls, entries_max, 1 << 20, mask) for twin in TWINS)
    assert ours == oracle


@settings(max_examples=examples(100), deadline=None)
@given(CALLS, st.integers(0, 1000))
def test_both_maps_stop_at_the_same_row_when_the_copied_keys_have_no_more_room(calls, arena_bytes):
    calls = [(entries, False, False) for entries, *_ in calls]
    ours, oracle = (played(twin, calls, 1000, arena_bytes, ALL) for twin in TWINS)
    assert ours == oracle


@settings(max_examples=examples(100), deadline=None)
@given(CALLS)
def test_a_key_with_a_padded_length_is_the_same_key(calls):
    ours, oracle = (played(twin, calls, 1000, 1 << 20, ALL) for twin in TWINS)
    assert ours == oracle


# Batches as lists of (key, value), each with its role: TAKE, PASS_BY or LET_GO.
BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=3)), min_size=1, max_size=90),
        st.sampled_from([TAKE, TAKE, TAKE, PASS_BY, LET_GO]),
    ),
    max_size=6,
)


def entered(twin, batches, entries_max, mask, *, damage_at=None):
    """(number of keyless records or the error, bits, keys found, size) of one implementation after whole batches."""
    made = twin(entries_max * 10 // 9 + 2, entries_max, seed=77, hash_mask=mask)
    plain = [
        encode_batch([Record(k, v, 5) for k, v in entries], base_offset=100 * at)
        for at, (entries, _) in enumerate(batches)
    ]
    data = bytearray(b"ab" + b"".join(plain) + b"cd")
    if damage_at is not None and plain:
        data[2 + damage_at % (len(data) - 4)] ^= 1
    around = memoryview(bytes(data))
    table = compiled.scan_batches(around[2:-2], verify=False)
    roles = np.array([role for _, role in batches], np.uint8)[: len(table)]
    records = int(table.record_counts.sum())
    keep, tombstones = np.full(records // 8 + 3, 0xFF, np.uint8), np.zeros(records // 8 + 3, np.uint8)
    buffer = made.hold(around)
    try:
        told = made.add_batches(around[2:-2], table, roles, 11, keep, tombstones, buffer=buffer, position=2)
    except Corrupt as error:
        return error.attempt, error.facts
    if damage_at is not None:
        return told, len(made)
    columns = kernels.decode_columns(around[2:-2], table=table)
    found = made.find(columns.data, columns.key_starts, columns.key_lengths).tolist()
    return told, found, len(made), *([keep.tolist(), tombstones.tolist()] if told is not None else [])


@settings(max_examples=examples(300), deadline=None)
@given(BATCHES, st.integers(1, 300), st.sampled_from([ALL, 0, 0x3FFF, ALL << 50 & ALL]))
def test_whole_batches_give_the_same_bits_and_keys_in_both_maps_with_any_collisions(batches, entries_max, mask):
    ours, oracle = (entered(twin, batches, entries_max, mask) for twin in TWINS)
    assert ours == oracle


@settings(max_examples=examples(150), deadline=None)
@given(BATCHES, st.integers(0, 10**6), st.integers(1, 300))
def test_a_damaged_batch_gives_the_same_error_in_both_maps(batches, at, entries_max):
    ours, oracle = (entered(twin, batches, entries_max, ALL, damage_at=at) for twin in TWINS)
    assert ours == oracle


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("mask", [0, 0x3FFF, ALL])
def test_keys_with_the_same_hash_stay_different_keys(twin, mask):
    """With this mask, only the comparison of key bytes distinguishes the keys."""
    batches = [([(b"key %d" % (at % 70), b"v") for at in range(start, start + 50)], TAKE) for start in (0, 50, 100)]
    told, _, size, keep, _ = entered(twin, batches, 200, mask)
    stays = [bool(keep[(11 + at) >> 3] >> ((11 + at) & 7) & 1) for at in range(150)]
    assert (told, size) == (0, 70)
    assert stays == [at >= 80 for at in range(150)]


@pytest.mark.parametrize("twin", TWINS)
def test_batches_outside_the_flags_or_the_buffer_are_refused_before_any_read(twin):
    data = memoryview(encode_batch([(b"a", b"v", 5), (b"b", None, 5)]))
    table = compiled.scan_batches(data)
    role, bits = np.zeros(1, np.uint8), np.full(1, 0xFF, np.uint8)
    below_zero = replace(table, record_counts=-table.record_counts)
    wrong = [
        lambda made: made.add_batches(data, table, role[:0], 0, bits, bits, buffer=0, position=0),
        lambda made: made.add_batches(data, table, role, 0, bits, bits, buffer=1, position=0),
        lambda made: made.add_batches(data, table, role, 0, bits, bits, buffer=-1, position=0),
        lambda made: made.add_batches(data, table, role, 7, bits, bits, buffer=0, position=0),
        lambda made: made.add_batches(data, table, role, -1, bits, bits, buffer=0, position=0),
        lambda made: made.add_batches(data, table, role, 0, bits[:0], bits, buffer=0, position=0),
        lambda made: made.add_batches(data, table, role, 0, bits, bits[:0], buffer=0, position=0),
        lambda made: made.add_batches(data, table, role, 0, bits, bits, buffer=0, position=1),
        lambda made: made.add_batches(data, table, role, 0, bits, bits, buffer=0, position=-1),
        lambda made: made.add_batches(data, below_zero, role, 0, bits, bits, buffer=0, position=0),
    ]
    for call in wrong:
        made = twin(10, 5)
        made.hold(data)
        with pytest.raises(InvalidRequest):
            call(made)
        assert len(made) == 0


@pytest.mark.parametrize("twin", TWINS)
def test_a_full_map_accepts_no_new_key_but_newer_records_of_known_keys(twin):
    made, keep = twin(10, 3), np.full(1, 0xFF, np.uint8)
    data, starts, lengths = laid_out([b"a", b"b", b"c", b"a", b"b", b"d", b"a"])
    skip = np.zeros(7, np.bool_)
    assert made.add(data, starts, lengths, skip, 0, keep, buffer=made.hold(data)) == 5
    assert len(made) == 3
    assert keep.tolist() == [0b11111100]
    assert made.find(data, starts, lengths).tolist() == [True, True, True, True, True, False, True]


@pytest.mark.parametrize("twin", TWINS)
def test_a_map_filled_to_the_load_factor_needs_less_than_14_bytes_per_key(twin):
    count = 20_000
    made = twin(count * 10 // 9 + 1, count)
    data, starts, lengths = laid_out([b"key %d" % at for at in range(count)])
    keep = np.full(count // 8, 0xFF, np.uint8)
    assert made.add(data, starts, lengths, np.zeros(count, np.bool_), 0, keep, buffer=made.hold(data)) == count
    assert made.memory_bytes / len(made) < 14
    assert (keep == 0xFF).all()


@pytest.mark.parametrize("twin", TWINS)
def test_keys_outside_the_buffer_or_the_flags_are_refused_before_any_read(twin):
    data, starts, lengths = laid_out([b"abc", b"de"])
    none = np.zeros(2, np.bool_)
    keep = np.full(1, 0xFF, np.uint8)
    wrong = [
        lambda made: made.add(data, starts + 2, lengths, none, 0, keep),
        lambda made: made.add(data, starts - 3, lengths, none, 0, keep),
        lambda made: made.add(data, np.array([2**62, 1]), lengths, none, 0, keep),
        lambda made: made.add(data, starts, lengths[:1], none, 0, keep),
        lambda made: made.add(data, starts, lengths, none[:1], 0, keep),
        lambda made: made.add(data, starts, lengths, none, 7, keep),
        lambda made: made.add(data, starts, lengths, none, -1, keep),
        lambda made: made.add(data, starts, lengths, none, 2**36, np.full(1, 0xFF, np.uint8)),
        lambda made: made.add(data, starts, lengths, none, 0, keep, buffer=0),
        lambda made: made.add(data, starts, lengths, none, 0, keep, buffer=made.hold(data[:-1])),
        lambda made: made.add(data, starts, lengths, none, 0, keep, buffer=made.hold(data), position=1),
        lambda made: made.add(data, starts, lengths, none, 0, keep, buffer=made.hold(data), position=-1),
        lambda made: made.find(data, starts + 2, lengths),
        lambda made: made.find(data, starts, lengths[:1]),
    ]
    for call in wrong:
        made = twin(10, 5, arena_bytes_max=100)
        with pytest.raises(InvalidRequest):
            call(made)
        assert len(made) == 0
    for slots, entries in ((0, 0), (5, 5), (5, 0), (5, -1)):
        with pytest.raises(InvalidRequest):
            twin(slots, entries)


@pytest.mark.parametrize("twin", TWINS)
def test_flags_that_are_too_short_for_records_of_an_earlier_call_are_refused(twin):
    """The map clears the bits of older records, and would write past the end of a shorter array."""
    made = twin(10, 5, arena_bytes_max=100)
    data, starts, lengths = laid_out([b"a"])
    none = np.zeros(1, np.bool_)
    assert made.add(data, starts, lengths, none, 80, np.full(11, 0xFF, np.uint8)) == 1
    with pytest.raises(InvalidRequest):
        made.add(data, starts, lengths, none, 0, np.full(10, 0xFF, np.uint8))


def test_the_length_of_a_varint_equals_the_layout_in_this_file():
    assert [varint_bytes(size) for size in (0, 63, 64, 8191, 8192)] == [1, 1, 2, 2, 3]
