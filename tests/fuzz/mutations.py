"""Mutations without feedback of a fuzzer: seed inputs are cut, repeated, combined and changed, repeatably per seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

_ODD = [0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]
_WORDS = [b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00" * 8, b"\xff" * 8, b"\x7f" + b"\xff" * 7]


def mutations(seeds: Sequence[bytes], *, seed: int) -> Iterator[bytes]:
    """The seed inputs, then an endless sequence of their mutants."""
    yield from seeds
    draw = random.Random(seed)
    while True:
        data = bytearray(draw.choice(seeds))
        for _ in range(draw.choice((1, 1, 2, 3, 6))):
            _mutate(data, seeds, draw)
        yield bytes(data)


def _mutate(data: bytearray, seeds: Sequence[bytes], draw: random.Random) -> None:
    at = draw.randrange(len(data) + 1)
    match draw.randrange(7):
        case 0 if data:
            data[at % len(data)] ^= 1 << draw.randrange(8)
        case 1 if data:
            data[at % len(data)] = draw.choice(_ODD)
        case 2:
            word = draw.choice(_WORDS)
            data[at : at + len(word)] = word
        case 3:
            del data[at : at + draw.choice((1, 2, 4, 8, 61, 1000))]
        case 4:
            data[at:at] = data[at : at + draw.choice((1, 4, 20, 100))]
        case 5:
            other = draw.choice(seeds)
            begin = draw.randrange(len(other) + 1)
            data[at:at] = other[begin : begin + draw.choice((1, 8, 100))]
        case _:
            data[at:at] = draw.randbytes(draw.choice((1, 2, 8)))
