"""SipHash-2-4-128, compared with the vectors of its reference implementation and with plain Python."""

from __future__ import annotations

import random

import numpy as np
import pytest
from disk_model import ModelDisk
from hypothesis import given
from hypothesis import strategies as st
from test_cleaner import append, open_log, read_all

from local import kernels
from local.cleaner import cleaner
from local.cleaner.offset_map import digest_keys
from local.errors import CleaningAborted, InvalidRequest
from local.format.record import Record
from local.log import Log
from local.records.batch import HEADER_BYTES

SECRET = bytes(range(16))
MASK = (1 << 64) - 1
# The first 3 of the 64 vectors (``vectors_sip128``) of the reference implementation: inputs of 0, 1, 2 bytes 00 01 ...
VECTORS = [
    "a3817f04ba25a8e66df67214c7550293",
    "da87c1d86b99af44347659119b22fc45",
    "8177228da4a45dc7fca38bdef60affe4",
]


def digest(*keys: bytes, secret: bytes = SECRET) -> list[bytes]:
    data = b"".join(keys)
    lengths = np.array([len(key) for key in keys], np.int32)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    low, high = digest_keys(memoryview(data), starts, lengths, secret)
    return [
        int(one).to_bytes(8, "little", signed=True) + int(other).to_bytes(8, "little", signed=True)
        for one, other in zip(low, high, strict=True)
    ]


def plain(key: bytes, secret: bytes) -> bytes:
    """The algorithm of the paper, one key at a time."""
    k0, k1 = int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:], "little")
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]
    v[1] ^= 0xEE

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & MASK

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = rotate(v[1], 13) ^ v[0]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = rotate(v[1], 17) ^ v[2]
            v[2] = rotate(v[2], 32)

    padded = key + bytes(7 - len(key) % 8) + bytes([len(key) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return first.to_bytes(8, "little") + (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")


def test_digests_equal_the_vectors_of_the_reference_implementation() -> None:
    assert [each.hex() for each in digest(*(bytes(range(size)) for size in range(3)))] == VECTORS


@given(st.lists(st.binary(max_size=300), max_size=30), st.binary(min_size=16, max_size=16))
def test_digests_equal_a_plain_implementation_of_the_paper(keys: list[bytes], secret: bytes) -> None:
    assert digest(*keys, secret=secret) == [plain(key, secret) for key in keys]


def test_digests_of_several_blocks_of_keys_and_of_no_keys() -> None:
    keys = [random.Random(at).randbytes(at % 20) for at in range(20_000)]
    found = digest(*keys)
    assert found[::997] == [plain(key, SECRET) for key in keys[::997]]
    assert digest() == []


def test_another_secret_gives_another_digest() -> None:
    assert digest(b"k") != digest(b"k", secret=bytes(16))


def test_ranges_outside_the_data_and_secrets_of_wrong_length_are_refused() -> None:
    one = np.array([0], np.int64)
    for starts, lengths, secret in ((one, 3, SECRET), (one - 1, 1, SECRET), (one, -1, SECRET), (one, 1, b"short")):
        with pytest.raises(InvalidRequest):
            digest_keys(memoryview(b"ab"), starts, np.array([lengths], np.int32), secret)


def filled() -> tuple[ModelDisk, Log]:
    disk = ModelDisk()
    log = open_log(disk)
    append(log, random.Random(7), 400, 40)
    log.roll(now_ms=0)
    return disk, log


def newest_values(log: Log) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in read_all(log)}


def steps_of_a_pass() -> int:
    _disk, log = filled()
    asked = 0

    def count() -> bool:
        nonlocal asked
        asked += 1
        return False

    cleaner.clean(log, clean_from=0, now_ms=0, should_stop=count)
    return asked


STEPS = steps_of_a_pass()


@pytest.mark.parametrize("step", range(0, STEPS, 3))
def test_a_pass_aborted_at_any_step_changes_nothing_and_the_next_pass_completes(step: int) -> None:
    disk, log = filled()
    expected = newest_values(log)
    asked = iter([False] * step + [True])
    with pytest.raises(CleaningAborted):
        cleaner.clean(log, clean_from=0, now_ms=0, should_stop=lambda: next(asked))
    assert log.cleaner_offset == 0
    assert not [name for name in disk.list("./t-0") if name.endswith((".cleaned", ".swap"))]
    assert newest_values(log) == expected
    assert cleaner.clean(log, clean_from=0, now_ms=0) is not None
    _whole_disk, whole = filled()
    cleaner.clean(whole, clean_from=0, now_ms=0)
    assert read_all(log) == read_all(whole)
    assert log.cleaner_offset == whole.cleaner_offset


def test_the_throttle_counts_every_byte_read_and_written() -> None:
    _disk, log = filled()
    told: list[int] = []
    clock = iter(float(at) for at in range(100))
    done = cleaner.clean(log, clean_from=0, now_ms=0, throttle=told.append, clock=lambda: next(clock))
    assert done is not None
    assert sum(told) == done.bytes_read + done.bytes_written
    assert done.indexed_bytes == done.bytes_before
    assert done.bytes_written == done.bytes_after
    assert (done.index_seconds, done.clean_seconds) == (1.0, 1.0)


def test_a_pass_reads_its_input_twice_as_kafka_does() -> None:
    """The first read is for the offset map, the second for the remaining records. Between them only batch headers are
    read."""
    disk = ModelDisk()
    log = open_log(disk)
    draw = random.Random(7)
    for _ in range(40):
        log.append([Record(b"k%d" % draw.randrange(30), draw.randbytes(200), 5000) for _ in range(20)], now_ms=1000)
    log.roll(now_ms=0)
    dirty = [info for info in log.segments() if not info.is_active]
    size = sum(info.size_bytes for info in dirty)
    bodies = [log.segment(info.base_offset).read(0, info.size_bytes) for info in dirty]
    batches = sum(len(kernels.scan_batches(body)) for body in bodies)
    told: list[int] = []
    done = cleaner.clean(log, clean_from=0, now_ms=0, throttle=told.append)
    assert done is not None
    assert 2 * size < done.bytes_read <= 2 * size + HEADER_BYTES * batches
    assert sum(told) == done.bytes_read + done.bytes_written
