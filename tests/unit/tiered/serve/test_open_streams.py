"""Streams that are cut into reads: whole batches, limits, and the bytes that were read already."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from bucket_samples import batch_at

from local.errors import Corrupt
from tiered.serve.open_streams import Stream

RUNS = [[batch_at(at, 5) for at in range(start, start + 20, 5)] for start in (0, 20, 40)]
SIZES = [len(batch) for run in RUNS for batch in run]


def stream() -> Stream:
    def runs() -> Generator[memoryview]:
        for run in RUNS:
            yield memoryview(b"".join(run))

    return Stream(runs(), 0)


@pytest.mark.parametrize("bytes_max", [1, max(SIZES), 2 * max(SIZES), sum(SIZES[:6]), 1 << 20])
def test_reads_return_whole_batches_within_the_limit(bytes_max: int) -> None:
    reading, found, offsets = stream(), list[bytes](), list[int]()
    while taken := reading.take(bytes_max):
        data = b"".join(taken)
        assert len(data) <= bytes_max or len(data) in SIZES
        found.append(data)
        offsets.append(reading.offset)
    assert b"".join(found) == b"".join(batch for run in RUNS for batch in run)
    assert offsets[-1] == 60
    assert offsets == sorted(offsets)
    assert reading.is_at_end


def test_a_read_at_once_takes_no_bytes_from_the_source() -> None:
    reading = stream()
    assert reading.take_now(1 << 20) is None
    (first,) = reading.take(1)
    (rest,) = reading.take_now(1 << 20) or []
    assert bytes(first) + bytes(rest) == b"".join(RUNS[0])
    assert reading.offset == 20
    assert reading.take_now(1 << 20) is None
    assert b"".join(reading.take(1)) == bytes(RUNS[1][0])
    assert reading.take_now(1) == [RUNS[1][1]], "at least one batch"
    reading.close()
    assert reading.take_now(1) is None


def test_bytes_that_are_no_whole_batches_are_refused() -> None:
    reading = Stream((each for each in [memoryview(RUNS[0][0][:-1])]), 0)
    with pytest.raises(Corrupt, match="no whole batches"):
        reading.take(1 << 20)
