"""Client-side encryption: what the store keeps of a segment is unreadable without a key that it never sees.

Every segment has a **data key** of its own, 32 random bytes, under which its chunks and its indexes are sealed with
AES-256-GCM. The data key is wrapped by a **key of the ring**, also with AES-256-GCM, and lies so in the segment's row.
Changing the ring's key means wrapping data keys anew: rows change, no object does.

| sealed | nonce, 12 bytes | additional data | result |
|---|---|---|---|
| chunk n | int32 0, int64 n | ``tiered chunk <stem> <n>`` | ciphertext, tag of 16 bytes |
| indexes | int32 1, int64 0 | ``tiered indexes <stem>`` | ``TIERENC`` and a line feed, ciphertext, tag |
| data key | 12 random bytes | ``tiered key <stem> <key id>`` | base64 of nonce, ciphertext, tag |

Big-endian; `stem` is the objects' common name without prefix and suffix, ``<base>-<last>-<epoch>-<ulid>``. So a chunk
that is moved to another place or another object does not open there, nor does a wrapped key in another row. A nonce is
used once for a data key: names and keys are new for every attempt at a copy, and within one a chunk that has to be
sent again is the same bytes, which is checked before it is sealed (`remote.outgoing`).

What it does not hide or protect: names, sizes, offsets, times and counts lie open in names and heads; whoever may write
to the bucket can remove rows and objects, or put back an older head. `cryptography` is loaded when first used.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from local.errors import AccessDenied, Corrupt, InvalidRequest
from remote.store import Body

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16
INDEXES_MAGIC = b"TIERENC\n"
_NONCE = struct.Struct(">iq")
_CHUNK, _INDEXES = 0, 1
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class ObjectCipher:
    """Seals and opens the chunks and the indexes of one segment. Thread safe."""

    def __init__(self, data_key: bytes, stem: str) -> None:
        self._gcm = _gcm(data_key)
        self._stem = stem

    def __repr__(self) -> str:
        return f"ObjectCipher({self._stem!r})"

    def seal_chunk(self, number: int, body: Body) -> bytes:
        """TAG_BYTES longer than `body`. The same number must never be sealed with other bytes."""
        return self._gcm.encrypt(_NONCE.pack(_CHUNK, number), body, self._of_chunk(number))

    def open_chunk(self, number: int, sealed: Body) -> bytes:
        """The inverse. Raises Corrupt for what was not sealed as this chunk of this segment."""
        return self._open(_NONCE.pack(_CHUNK, number), sealed, self._of_chunk(number), {"chunk": number})

    def seal_indexes(self, body: Body) -> bytes:
        return INDEXES_MAGIC + self._gcm.encrypt(_NONCE.pack(_INDEXES, 0), body, self._of_indexes())

    def open_indexes(self, sealed: Body) -> bytes:
        """The inverse. Raises Corrupt."""
        view = memoryview(sealed)
        if bytes(view[: len(INDEXES_MAGIC)]) != INDEXES_MAGIC:
            raise Corrupt("opening encrypted indexes, no magic at their start", segment=self._stem)
        return self._open(_NONCE.pack(_INDEXES, 0), view[len(INDEXES_MAGIC) :], self._of_indexes(), {})

    def _open(self, nonce: bytes, sealed: Body, told: bytes, facts: dict[str, object]) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._gcm.decrypt(nonce, sealed, told)
        except (InvalidTag, ValueError) as error:
            raise Corrupt("opening encrypted bytes, they are not as they were sealed", **facts) from error

    def _of_chunk(self, number: int) -> bytes:
        return f"tiered chunk {self._stem} {number}".encode()

    def _of_indexes(self) -> bytes:
        return f"tiered indexes {self._stem}".encode()


class KeyRing:
    """Keys by id, none of them ever shown. Immutable."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        for key_id, key in keys.items():
            if not _KEY_ID.fullmatch(key_id):
                raise InvalidRequest("reading a key ring, not a key id", key_id=repr(key_id))
            if len(key) != KEY_BYTES:
                raise InvalidRequest("reading a key ring, a key has 32 bytes", key_id=key_id, key_bytes=len(key))
        self._keys = dict(keys)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(sorted(self._keys)) or 'no keys'})"

    def __contains__(self, key_id: str) -> bool:
        return key_id in self._keys

    def new_object(self, key_id: str, stem: str) -> tuple[ObjectCipher, str]:
        """A cipher with a fresh data key, and that key wrapped by `key_id`. Raises AccessDenied without that key."""
        data_key = os.urandom(KEY_BYTES)
        return ObjectCipher(data_key, stem), self._wrapped(key_id, stem, data_key)

    def open_object(self, key_id: str, wrapped: str, stem: str) -> ObjectCipher:
        """The cipher of a segment. Raises AccessDenied when the key is missing, or is not the one that was used."""
        return ObjectCipher(self._unwrapped(key_id, wrapped, stem), stem)

    def rewrapped(self, key_id: str, wrapped: str, stem: str, new_key_id: str) -> str:
        """The same data key wrapped by another key of the ring. Raises AccessDenied as `open_object`."""
        return self._wrapped(new_key_id, stem, self._unwrapped(key_id, wrapped, stem))

    def _wrapped(self, key_id: str, stem: str, data_key: bytes) -> str:
        nonce = os.urandom(NONCE_BYTES)
        sealed = _gcm(self._key(key_id, stem)).encrypt(nonce, data_key, _of_key(key_id, stem))
        return base64.b64encode(nonce + sealed).decode()

    def _unwrapped(self, key_id: str, wrapped: str, stem: str) -> bytes:
        from cryptography.exceptions import InvalidTag

        key = self._key(key_id, stem)
        try:
            body = base64.b64decode(wrapped, validate=True)
            return _gcm(key).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], _of_key(key_id, stem))
        except (InvalidTag, ValueError, binascii.Error):
            wrong = "opening an encrypted segment, the key of this id is not the one it was encrypted with"
            raise AccessDenied(wrong, key_id=key_id, object=stem) from None

    def _key(self, key_id: str, stem: str) -> bytes:
        if key_id not in self._keys:
            there_are = ",".join(sorted(self._keys)) or None
            missing = "opening an encrypted segment, its key is not in the key ring"
            raise AccessDenied(missing, key_id=key_id, object=stem, there_are=there_are)
        return self._keys[key_id]


NO_KEYS = KeyRing({})


def parse_key_ring(lines: Iterable[str], where: str) -> KeyRing:
    """From lines ``<key id> <base64 of 32 bytes>``; empty ones and those that begin with # are passed over.

    Raises InvalidRequest naming `where` and the line's number, never what is in it.
    """
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            key_id, text = words
            key = base64.b64decode(text, validate=True)
        except ValueError:  # binascii.Error is one
            wrong = "reading a key ring, not of the form: key id, base64 of 32 bytes"
            raise InvalidRequest(wrong, file=where, line=number) from None
        if not _KEY_ID.fullmatch(key_id) or len(key) != KEY_BYTES or key_id in keys:
            facts = {"key_bytes": len(key)} if len(key) != KEY_BYTES else {}
            raise InvalidRequest("reading a key ring, a wrong or repeated key", file=where, line=number, **facts)
        keys[key_id] = key
    return KeyRing(keys)


def _of_key(key_id: str, stem: str) -> bytes:
    return f"tiered key {stem} {key_id}".encode()


def _gcm(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        hint = "pip install 'tiered[encryption]'"
        wrong = "opening an encrypted segment, a library is missing"
        raise InvalidRequest(wrong, library="cryptography", install=hint) from error
    return AESGCM(key)
