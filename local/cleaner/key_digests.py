"""A 128-bit digest per key, for comparisons without the key: SipHash-2-4 with a secret.

Machines that search for the newest record of each key exchange digests, not keys. A collision of two keys would lose a
record. The digest is therefore keyed, and SipHash is a pseudorandom function. With a secret drawn per job, the chance
that any two of a billion keys collide is 2^-69, even if an adversary chose the keys. Equal digests are therefore taken
for equal keys.
Source: Aumasson, Bernstein, "SipHash: a fast short-input PRF"; the 128-bit form of its reference implementation.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from local import kernels
from local.errors import InvalidRequest

SECRET_BYTES = 16
_ROWS = 8192  # rows per call: four states and one word of each stay in the CPU cache
_BLOCK_BYTES = 4 << 20  # of gathered keys per call
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)

Words = NDArray[np.uint64]


def digest_keys(
    data: memoryview, starts: NDArray[np.int64], lengths: NDArray[np.int32], secret: bytes
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both halves of each key's digest. A key is `lengths` bytes of `data` from `starts`; no key is null.

    Raises InvalidRequest for ranges outside `data`, or if the secret does not have SECRET_BYTES.
    """
    if len(secret) != SECRET_BYTES:
        raise InvalidRequest("hashing keys, a secret of another length", bytes=len(secret), expected=SECRET_BYTES)
    low, high = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
    if not len(starts):
        return low, high
    ends = starts + lengths
    if int(lengths.min()) < 0 or int(starts.min()) < 0 or int(ends.max()) > len(data):
        raise InvalidRequest("hashing keys, a range outside the data", bytes=len(data))
    for rows, words in _blocks(lengths):
        first, second = _siphash(_words_of(data, starts[rows], lengths[rows], words), secret)
        low[rows], high[rows] = first.view(np.int64), second.view(np.int64)
    return low, high


def _blocks(lengths: NDArray[np.int32]) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Bounded groups of keys with the same number of words, as (rows of the keys, number of words)."""
    words = lengths // 8 + 1
    for count in np.unique(words).tolist():
        rows = np.flatnonzero(words == count)
        step = max(1, min(_ROWS, _BLOCK_BYTES // (8 * count)))
        for at in range(0, len(rows), step):
            yield rows[at : at + step], count


def _words_of(data: memoryview, starts: NDArray[np.int64], lengths: NDArray[np.int32], words: int) -> Words:
    """One row per word, one column per key: the bytes of the key, zeros, and its length in the last byte."""
    padded = np.zeros((len(starts), 8 * words), np.uint8)
    for length in np.unique(lengths).tolist():  # at most eight lengths; keys of one length form a rectangle
        rows = np.flatnonzero(lengths == length)
        _, joined = kernels.gather(data, starts[rows], lengths[rows])
        padded[rows, :length] = joined.reshape(len(rows), length)
    padded[:, -1] = lengths & 0xFF
    return np.ascontiguousarray(padded.view("<u8").astype(np.uint64, copy=False).T)


def _siphash(words: Words, secret: bytes) -> tuple[Words, Words]:
    """Both halves, one value per column of `words`."""
    keys = [int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:], "little")]
    v = [np.full(words.shape[1], start ^ keys[at & 1], np.uint64) for at, start in enumerate(_START)]
    v[1] ^= np.uint64(0xEE)
    spare = np.empty(words.shape[1], np.uint64)
    for word in words:
        v[3] ^= word
        _rounds(v, 2, spare)
        v[0] ^= word
    v[2] ^= np.uint64(0xEE)
    _rounds(v, 4, spare)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= np.uint64(0xDD)
    _rounds(v, 4, spare)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]


def _rounds(v: list[Words], count: int, spare: Words) -> None:
    v0, v1, v2, v3 = v
    for _ in range(count):
        v0 += v1
        v2 += v3
        _rotate(v1, 13, spare)
        _rotate(v3, 16, spare)
        v1 ^= v0
        v3 ^= v2
        _rotate(v0, 32, spare)
        v2 += v1
        v0 += v3
        _rotate(v1, 17, spare)
        _rotate(v3, 21, spare)
        v1 ^= v2
        v3 ^= v0
        _rotate(v2, 32, spare)


def _rotate(words: Words, bits: int, spare: Words) -> None:
    np.right_shift(words, np.uint64(64 - bits), out=spare)
    np.left_shift(words, np.uint64(bits), out=words)
    words |= spare
