"""Client-side encryption: the stored bytes of a segment need a key that the store never sees.

Every segment has a **data key** of its own, 32 random bytes. Its chunks and indexes are encrypted with AES-256-GCM
under it. The data key is wrapped with AES-256-GCM under a key that HKDF-SHA256 derives from a **key of the ring** (info
``tiered wrap 2``). The segment's entry holds the wrapped key: a change of the ring's key changes entries, not objects.

| sealed | nonce, 12 bytes | associated data | result |
|---|---|---|---|
| chunk n | int32 0, int64 n | ``tiered chunk 2 <name> <n>`` | ciphertext, tag of 16 bytes |
| indexes | int32 1, int64 0 | ``tiered indexes 2 <name>`` | ``TIERENC`` and a line feed, ciphertext, tag |
| data key | 12 random bytes | ``tiered key 2 <binding> <name> <key id>`` | ``2:<binding>:<base64>`` |

Big-endian. `base64` is of nonce, ciphertext and tag. `name` is the data object's name, starting with its topic's
directory (`remote.keys.object_identity`). A chunk that is moved to another place, object, partition or topic fails
authentication there. So does a wrapped key in another entry.

`binding` is the version of the associated data of chunks and indexes: 2 as above. Objects of binding 1
(docs/reference/formats.md) stay readable for ever; ``tiered rotate-keys`` wraps their keys in the new form.

A nonce is used once for a data key. Names and keys are new for every copy attempt. Within an attempt, a chunk that is
sent again has the same bytes. SHA-256 checks this before the encryption (`remote.upload.segment_upload_stream`).
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import struct
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from local.errors import AccessDenied, Corrupt, InvalidRequest
from local.names import check_topic
from remote.keys import stem_of
from remote.store import Body

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16
STEM_BINDING, BINDING = 1, 2  # of associated data: by the objects' stem alone, by the data object's whole name
WRAPPING = 2  # the form of wrapped keys; keys of the older form are base64 alone
ALL_TOPICS = "*"
REQUIRE = "@require"  # first word of a line of the ring that names topics which must be encrypted
INDEXES_MAGIC = b"TIERENC\n"
_NONCE = struct.Struct(">iq")
_CHUNK, _INDEXES = 0, 1
_WRAP = b"tiered wrap 2"
_WRAPPED = re.compile(rf"{WRAPPING}:([{STEM_BINDING}{BINDING}]):([A-Za-z0-9+/=]+)", re.ASCII)
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class ObjectCipher:
    """Encrypts and decrypts the chunks and the indexes of one segment. Thread safe."""

    def __init__(self, data_key: bytes, name: str, binding: int = BINDING) -> None:
        """`name` is the data object's identity; binding 1 uses only its stem."""
        self._gcm = gcm(data_key)
        self._name = stem_of(name) if binding == STEM_BINDING else name
        self._version = "" if binding == STEM_BINDING else f"{binding} "

    def __repr__(self) -> str:
        return f"ObjectCipher({self._name!r})"

    def seal_chunk(self, number: int, body: Body) -> bytes:
        """The encrypted chunk, TAG_BYTES longer than `body`. Never call it with other bytes for the same number."""
        return self._gcm.encrypt(_NONCE.pack(_CHUNK, number), body, self._of_chunk(number))

    def open_chunk(self, number: int, sealed: Body) -> bytes:
        """Decrypt a chunk. Raises Corrupt for bytes that were not encrypted as this chunk of this segment."""
        return self._open(_NONCE.pack(_CHUNK, number), sealed, self._of_chunk(number), {"chunk": number})

    def seal_indexes(self, body: Body) -> bytes:
        return INDEXES_MAGIC + self._gcm.encrypt(_NONCE.pack(_INDEXES, 0), body, self._of_indexes())

    def open_indexes(self, sealed: Body) -> bytes:
        """Decrypt the indexes. Raises Corrupt for bytes that were not encrypted as this segment's indexes."""
        view = memoryview(sealed)
        if bytes(view[: len(INDEXES_MAGIC)]) != INDEXES_MAGIC:
            raise Corrupt("encrypted indexes do not start with the magic bytes", segment=self._name)
        return self._open(_NONCE.pack(_INDEXES, 0), view[len(INDEXES_MAGIC) :], self._of_indexes(), {})

    def _open(self, nonce: bytes, sealed: Body, associated: bytes, facts: dict[str, object]) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._gcm.decrypt(nonce, sealed, associated)
        except (InvalidTag, ValueError) as error:
            raise Corrupt("cannot decrypt, the authentication tag does not match", **facts) from error

    def _of_chunk(self, number: int) -> bytes:
        return f"tiered chunk {self._version}{self._name} {number}".encode()

    def _of_indexes(self) -> bytes:
        return f"tiered indexes {self._version}{self._name}".encode()


class KeyRing:
    """Keys by id, which are never shown, and the topics that must be encrypted. Immutable, thread safe.

    For a topic in `required` (``*``: all topics) a reader refuses unsealed manifests and unencrypted segments.
    """

    def __init__(self, keys: Mapping[str, bytes], required: Collection[str] = ()) -> None:
        for key_id, key in keys.items():
            if not _KEY_ID.fullmatch(key_id):
                raise InvalidRequest("invalid key id in the key ring", key_id=repr(key_id))
            if len(key) != KEY_BYTES:
                wrong = "invalid key in the key ring, a key has 32 bytes"
                raise InvalidRequest(wrong, key_id=key_id, key_bytes=len(key))
        self._keys = dict(keys)
        self._required = frozenset(required)
        self._derived: dict[tuple[str, bytes], bytes] = {}

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(sorted(self._keys)) or 'no keys'})"

    def __contains__(self, key_id: str) -> bool:
        return key_id in self._keys

    def __bool__(self) -> bool:
        return bool(self._keys or self._required)

    def requires(self, topic: str) -> bool:
        return ALL_TOPICS in self._required or topic in self._required

    def new_object(self, key_id: str, name: str) -> tuple[ObjectCipher, str]:
        """A cipher with a new data key, and this key wrapped by `key_id`. Raises AccessDenied without it."""
        data_key = os.urandom(KEY_BYTES)
        return ObjectCipher(data_key, name), self._wrapped(key_id, name, BINDING, data_key)

    def open_object(self, key_id: str, wrapped: str, name: str) -> ObjectCipher:
        """The cipher of a segment. Raises AccessDenied if the ring's key is missing or is the wrong key."""
        binding, data_key = self._unwrapped(key_id, wrapped, name)
        return ObjectCipher(data_key, name, binding)

    def rewrapped(self, key_id: str, wrapped: str, name: str, new_key_id: str) -> str:
        """The same data key wrapped by another key of the ring. Raises AccessDenied as `open_object`."""
        return self._wrapped(new_key_id, name, *self._unwrapped(key_id, wrapped, name))

    def derived(self, key_id: str, purpose: bytes, name: str) -> bytes:
        """HKDF-SHA256 of a key of the ring, 32 bytes. Raises AccessDenied, naming `name`, without the key."""
        known = self._derived.get((key_id, purpose))
        if known is None:
            of_ring = self._key(key_id, name)
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF

            kdf = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose)
            known = self._derived[key_id, purpose] = kdf.derive(of_ring)
        return known

    def _wrapped(self, key_id: str, name: str, binding: int, data_key: bytes) -> str:
        nonce = os.urandom(NONCE_BYTES)
        sealed = gcm(self.derived(key_id, _WRAP, name)).encrypt(nonce, data_key, _of_key(key_id, name, binding))
        return f"{WRAPPING}:{binding}:{base64.b64encode(nonce + sealed).decode()}"

    def _unwrapped(self, key_id: str, wrapped: str, name: str) -> tuple[int, bytes]:
        from cryptography.exceptions import InvalidTag

        of_ring = self._key(key_id, name)
        try:
            if found := _WRAPPED.fullmatch(wrapped):
                key, binding = self.derived(key_id, _WRAP, name), int(found[1])
                associated, text = _of_key(key_id, name, binding), found[2]
            else:
                key, binding = of_ring, STEM_BINDING
                associated, text = f"tiered key {stem_of(name)} {key_id}".encode(), wrapped
            body = base64.b64decode(text, validate=True)
            return binding, gcm(key).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], associated)
        except (InvalidTag, ValueError, binascii.Error):
            wrong = "cannot decrypt a segment, the key of this id is not the key that encrypted it"
            raise AccessDenied(wrong, key_id=key_id, object=stem_of(name)) from None

    def _key(self, key_id: str, name: str) -> bytes:
        if key_id not in self._keys:
            there_are = ",".join(sorted(self._keys)) or None
            missing = "cannot decrypt a segment, its key is not in the key ring"
            raise AccessDenied(missing, key_id=key_id, object=stem_of(name), there_are=there_are)
        return self._keys[key_id]


NO_KEYS = KeyRing({})


def parse_key_ring(lines: Iterable[str], where: str) -> KeyRing:
    """Parse lines ``<key id> <base64 of 32 bytes>`` and ``@require <topic>...`` (``*``: all topics).

    Skips empty lines and comments (#). Raises InvalidRequest with `where` and the line number, never with the content.
    """
    keys: dict[str, bytes] = {}
    required: set[str] = set()
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] == REQUIRE:
            required |= _required(words[1:], where, number)
            continue
        try:
            key_id, text = words
            key = base64.b64decode(text, validate=True)
        except ValueError:  # binascii.Error is one
            wrong = "invalid line in the key ring, expected: key id, base64 of 32 bytes"
            raise InvalidRequest(wrong, file=where, line=number) from None
        if not _KEY_ID.fullmatch(key_id) or len(key) != KEY_BYTES or key_id in keys:
            facts = {"key_bytes": len(key)} if len(key) != KEY_BYTES else {}
            wrong = "invalid line in the key ring, the key is wrong or repeated"
            raise InvalidRequest(wrong, file=where, line=number, **facts)
        keys[key_id] = key
    return KeyRing(keys, required)


def _required(topics: list[str], where: str, number: int) -> set[str]:
    try:
        if topics:
            return {each if each == ALL_TOPICS else check_topic(each) for each in topics}
    except InvalidRequest:
        pass
    wrong = "invalid line in the key ring, expected: @require, topic names or *"
    raise InvalidRequest(wrong, file=where, line=number)


def is_current(wrapped: str | None) -> bool:
    """Whether a wrapped key has the current form, which binds it to its entry. True for None."""
    return wrapped is None or _WRAPPED.fullmatch(wrapped) is not None


def _of_key(key_id: str, name: str, binding: int) -> bytes:
    return f"tiered key {WRAPPING} {binding} {name} {key_id}".encode()


def gcm(key: bytes) -> AESGCM:
    """AES-GCM under this key. Raises InvalidRequest if the library is missing."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        hint = "pip install 'tiered[encryption]'"
        wrong = "cannot decrypt a segment, a library is missing"
        raise InvalidRequest(wrong, library="cryptography", install=hint) from error
    return AESGCM(key)
