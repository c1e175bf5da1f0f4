"""CRC-32C: whichever implementation a range goes to, the checksum is the same."""

from __future__ import annotations

import random
from collections.abc import Iterator

import google_crc32c
import pytest

from local import crc32c as module
from local import kernels, pure_kernels
from local.crc32c import LONG_BYTES, crc32c

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
def test_short_and_long_ranges_have_the_librarys_checksum(twin: str, start: int, length: int, seed: int) -> None:
    piece = DATA[start : start + length]
    expected = google_crc32c.extend(seed, piece)
    view = memoryview(DATA)[start : start + length]
    assert [crc32c(each, seed) for each in (piece, bytearray(piece), view)] == [expected] * 3


def test_pieces_chain_over_the_seam_between_short_and_long(twin: str) -> None:
    whole = google_crc32c.value(DATA)
    for cut in (1, LONG_BYTES - 1, LONG_BYTES, 2 * LONG_BYTES):
        assert crc32c(DATA[cut:], crc32c(DATA[:cut])) == whole


def test_the_check_value_holds(twin: str) -> None:
    assert crc32c(b"123456789") == 0xE3069283
