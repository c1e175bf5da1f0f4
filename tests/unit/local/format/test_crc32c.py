"""CRC-32C: every implementation gives the same checksum for short and long ranges."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import google_crc32c
import pytest

from local.errors import InvalidRequest
from local.format import crc32c as module
from local.format.crc32c import LONG_BYTES, crc32c, crc32c_each
from local.kernels import dispatch as kernels
from local.kernels import pure_kernels

DATA = random.Random(3).randbytes(3 * LONG_BYTES + 5)


@pytest.fixture(params=["chosen", "pure"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "pure":
        monkeypatch.setattr(kernels, "_chosen", pure_kernels)
    module._fastest.cache_clear()
    yield request.param
    module._fastest.cache_clear()


@pytest.mark.parametrize("length", [0, 1, 9, LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 1, 2 * LONG_BYTES + 77])
@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("seed", [0, 1, 0xFFFFFFFF])
def test_short_and_long_ranges_have_the_checksum_of_the_reference_library(
    twin: str, start: int, length: int, seed: int
) -> None:
    piece = DATA[start : start + length]
    expected = google_crc32c.extend(seed, piece)
    view = memoryview(DATA)[start : start + length]
    assert [crc32c(each, seed) for each in (piece, bytearray(piece), view)] == [expected] * 3


def test_checksums_chain_across_a_cut_between_short_and_long_ranges(twin: str) -> None:
    whole = google_crc32c.value(DATA)
    for cut in (1, LONG_BYTES - 1, LONG_BYTES, 2 * LONG_BYTES):
        assert crc32c(DATA[cut:], crc32c(DATA[:cut])) == whole


def test_the_crc32c_check_value_is_correct(twin: str) -> None:
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("lengths", [[], [0], [5], [1, 2, 3], [LONG_BYTES, 0, LONG_BYTES + 1, 77], [len(DATA)]])
@pytest.mark.parametrize("start", [0, 3])
def test_checksums_of_adjacent_pieces_equal_the_checksums_of_each_piece(
    twin: str, start: int, lengths: list[int]
) -> None:
    view = memoryview(DATA)[start if sum(lengths) < len(DATA) else 0 :]
    edges = [sum(lengths[:at]) for at in range(len(lengths) + 1)]
    expected = [google_crc32c.value(bytes(view[a:b])) for a, b in pairwise(edges)]
    assert crc32c_each(view, lengths) == expected


@pytest.mark.parametrize("lengths", [[len(DATA) + 1], [len(DATA), 1], [-1], [10, -10], [2**62, 2**62]])
def test_pieces_that_exceed_the_data_are_refused(twin: str, lengths: list[int]) -> None:
    with pytest.raises(InvalidRequest):
        crc32c_each(DATA, lengths)
