"""The cleaner's map against its twin: the same bits cleared, whatever collides, wherever the keys lie, however full."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local import pure_key_map
from local.errors import InvalidRequest
from local.varint import append_varint, varint_bytes

compiled = pytest.importorskip("local._kernels", reason="the extension was not built")
TWINS = (compiled.KeyMap, pure_key_map.KeyMap)
ALL = 2**64 - 1

KEYS = (
    st.none()
    | st.binary(max_size=3)
    | st.sampled_from([bytes(7), bytes(8), bytes(9), bytes(63), bytes(64), bytes(300)])
)
# (keys with their skip flags, held or not, padded length or not) of one call.
CALLS = st.lists(
    st.tuples(st.lists(st.tuples(KEYS, st.booleans()), max_size=150), st.booleans(), st.booleans()), max_size=5
)


def laid_out(keys, padded=False):
    """(bytes as in records: a varint length before each key; starts; lengths). Padded: in more bytes than needed."""
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
    """(rows done by call, final bits, keys found, size) of one twin; stops where a call is not done whole."""
    made = twin(entries_max * 10 // 9 + 2, entries_max, arena_bytes_max=arena_bytes, seed=77, hash_mask=mask)
    total = sum(len(rows) for rows, *_ in calls)
    keep = np.full(total // 8 + 1, 0xFF, np.uint8)
    done, ordinal, laid = [], 0, []
    for rows, is_held, is_padded in calls:
        data, starts, lengths = laid_out([key for key, _ in rows], is_padded)
        skip = np.array([flag for _, flag in rows], np.bool_)
        where = {}
        if is_held:
            around = memoryview(b"ab" + bytes(data) + b"cd")
            where = {"buffer": made.hold(around), "position": 2}
            data = around[2:-2]
        laid.append((data, starts, lengths))
        done.append(made.add(data, starts, lengths, skip, ordinal, keep, **where))
        ordinal += len(rows)
        if done[-1] < len(rows):
            break
    found = [made.find(*each).tolist() for each in laid]
    return done, keep.tolist(), found, len(made)


@settings(max_examples=300, deadline=None)
@given(CALLS, st.integers(1, 400), st.sampled_from([ALL, 0, 0x3FFF, ALL << 50 & ALL]))
def test_the_twins_clear_the_same_bits_and_find_the_same_keys_whatever_collides(calls, entries_max, mask):
    calls = [(rows, is_held, False) for rows, is_held, _ in calls]
    ours, oracle = (played(twin, calls, entries_max, 1 << 20, mask) for twin in TWINS)
    assert ours == oracle


@settings(max_examples=100, deadline=None)
@given(CALLS, st.integers(0, 1000))
def test_the_twins_stop_at_the_same_row_when_the_copies_of_keys_have_no_more_room(calls, arena_bytes):
    calls = [(rows, False, False) for rows, *_ in calls]
    ours, oracle = (played(twin, calls, 1000, arena_bytes, ALL) for twin in TWINS)
    assert ours == oracle


@settings(max_examples=100, deadline=None)
@given(CALLS)
def test_a_key_whose_length_is_written_in_too_many_bytes_is_still_the_same_key(calls):
    ours, oracle = (played(twin, calls, 1000, 1 << 20, ALL) for twin in TWINS)
    assert ours == oracle


@pytest.mark.parametrize("twin", TWINS)
def test_a_full_map_takes_no_new_key_but_every_newer_record_of_a_known_one(twin):
    made, keep = twin(10, 3), np.full(1, 0xFF, np.uint8)
    data, starts, lengths = laid_out([b"a", b"b", b"c", b"a", b"b", b"d", b"a"])
    skip = np.zeros(7, np.bool_)
    assert made.add(data, starts, lengths, skip, 0, keep, buffer=made.hold(data)) == 5
    assert len(made) == 3
    assert keep.tolist() == [0b11111100]
    assert made.find(data, starts, lengths).tolist() == [True, True, True, True, True, False, True]


@pytest.mark.parametrize("twin", TWINS)
def test_many_keys_fill_nine_tenths_of_the_slots_in_less_than_sixteen_bytes_each(twin):
    count = 20_000
    made = twin(count * 10 // 9 + 1, count)
    data, starts, lengths = laid_out([b"key %d" % at for at in range(count)])
    keep = np.full(count // 8, 0xFF, np.uint8)
    assert made.add(data, starts, lengths, np.zeros(count, np.bool_), 0, keep, buffer=made.hold(data)) == count
    assert made.memory_bytes / len(made) < 14
    assert (keep == 0xFF).all()


@pytest.mark.parametrize("twin", TWINS)
def test_what_lies_outside_is_refused_before_a_byte_is_read(twin):
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
def test_flags_that_lack_a_record_of_an_earlier_call_are_refused(twin):
    """The map clears the bits of older records: a shorter array would be written past its end."""
    made = twin(10, 5, arena_bytes_max=100)
    data, starts, lengths = laid_out([b"a"])
    none = np.zeros(1, np.bool_)
    assert made.add(data, starts, lengths, none, 80, np.full(11, 0xFF, np.uint8)) == 1
    with pytest.raises(InvalidRequest):
        made.add(data, starts, lengths, none, 0, np.full(10, 0xFF, np.uint8))


def test_a_length_takes_as_many_bytes_as_the_layout_here_says():
    assert [varint_bytes(size) for size in (0, 63, 64, 8191, 8192)] == [1, 1, 2, 2, 3]
