"""Sealed manifests and pages: encrypted and authenticated as a whole, for an encrypted topic.

An object of the index of an encrypted topic is an envelope around the bytes that a plain topic would store:

| bytes | field |
|---|---|
| line | ``tiered-sealed 1 <key id> <key> <CRC32C of the body, 8 lower-case hex digits> <its length>\\n`` |
| body | nonce of 12 bytes, ciphertext, tag of 16 bytes: AES-256-GCM |

* `key` is the object's key, relative to the partition's prefix.
* Encryption key: HKDF-SHA256 of the ring's key, info ``tiered manifest 1``.
* Associated data: ``tiered manifest 1 <name> <key id>``. `name` is the object's name, starting with its topic's
  directory (`remote.keys.object_identity`).
* Nonce: the first 12 bytes of HMAC-SHA256 over associated data and content, under a third key (HKDF-SHA256, info
  ``tiered manifest nonce 1``). Sealing is deterministic, so a commit that is sent again and a copy on a disk compare
  equal. Two contents share a nonce only by a collision of 96 bits.
* The CRC32C distinguishes damage from forgery.

A manifest names its parent's commit id, and a commit id is new for every commit. So the tags form a keyed MAC over the
chain of commits. A sealed chain stays sealed. docs/how-to/encrypt-the-bucket.md lists the remaining attacks.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from local.errors import AccessDenied, Corrupt
from local.format.crc32c import crc32c
from remote.keys import object_identity, parse_topic_directory
from remote.segments.encryption import NO_KEYS, NONCE_BYTES, TAG_BYTES, KeyRing, gcm
from remote.store import Body, ObjectStore
from remote.store.middleware.store_wrapper import StoreWrapper

MAGIC = b"tiered-sealed "
LINE_BYTES_MAX = 512
_SEAL, _NONCE = b"tiered manifest 1", b"tiered manifest nonce 1"
_LINE = re.compile(rb"tiered-sealed 1 ([A-Za-z0-9._-]{1,64}) (meta/[!-~]{1,200}) ([0-9a-f]{8}) ([1-9][0-9]{0,9})\n")


class Opened(NamedTuple):
    """Content of an object of the index; `key_id` and `key` are from its seal, None if it is not sealed."""

    key_id: str | None
    key: str | None
    body: Body


class Sealer:
    """Seals (encrypts and authenticates) and opens the manifests and pages of one partition. Thread safe."""

    def __init__(self, prefix: str, keys: KeyRing = NO_KEYS) -> None:
        self._prefix, self.keys = prefix, keys

    @property
    def is_required(self) -> bool:
        directory = self._prefix.rstrip("/").split("/")[-2:][0]
        parsed = parse_topic_directory(directory)
        return self.keys.requires(parsed[0] if parsed is not None else directory)

    def seal(self, key: str, body: bytes, key_id: str | None) -> bytes:
        """The object's bytes under `key`; `body` itself if `key_id` is None. Raises AccessDenied without the key."""
        if key_id is None:
            return body
        associated = self._associated(key, key_id)
        nonce = _nonce(self._derived(key_id, _NONCE, key), associated, body)
        sealed = nonce + gcm(self._derived(key_id, _SEAL, key)).encrypt(nonce, body, associated)
        return _line(key_id, key, sealed) + sealed

    def open(self, data: Body) -> Opened:
        """Return a sealed object's content. Raises Corrupt for damage or another name, AccessDenied without the key."""
        view = memoryview(data)
        if bytes(view[: len(MAGIC)]) != MAGIC:
            return Opened(None, None, data)
        line = _LINE.match(bytes(view[:LINE_BYTES_MAX]))
        if line is None:
            raise Corrupt("cannot read a sealed manifest, it is damaged or of a newer format", size_bytes=len(data))
        key_id, key, expected, length = line[1].decode(), line[2].decode(), int(line[3], 16), int(line[4])
        body = view[line.end() :]
        if len(body) != length or (found := crc32c(body)) != expected:
            facts: dict[str, object] = {"expected_bytes": length, "found_bytes": len(body)}
            if len(body) == length:
                facts = {"expected": f"{expected:08x}", "found": f"{found:08x}"}
            raise Corrupt("a sealed manifest is damaged, its length or checksum differs", **facts)
        return Opened(key_id, key, self._opened(key, key_id, body))

    def _opened(self, key: str, key_id: str, body: memoryview) -> bytes:
        from cryptography.exceptions import InvalidTag

        cipher = gcm(self._derived(key_id, _SEAL, key))
        try:
            return cipher.decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], self._associated(key, key_id))
        except (InvalidTag, ValueError) as error:
            wrong = "it was not sealed with this key under this name: forged, moved or edited"
            raise Corrupt(f"cannot decrypt a sealed manifest, {wrong}", key_id=key_id) from error

    def _derived(self, key_id: str, purpose: bytes, key: str) -> bytes:
        if key_id not in self.keys:
            missing = "cannot decrypt a sealed manifest, its key is not in the key ring"
            raise AccessDenied(missing, key_id=key_id, object=self._prefix + key)
        return self.keys.derived(key_id, purpose, key)

    def _associated(self, key: str, key_id: str) -> bytes:
        return b"%s %s %s" % (_SEAL, object_identity(self._prefix, key).encode(), key_id.encode())


def sealed_size(key: str, size_bytes: int, key_id: str | None) -> int:
    if key_id is None:
        return size_bytes
    sealed = bytes(NONCE_BYTES + size_bytes + TAG_BYTES)
    return len(_line(key_id, key, sealed)) + len(sealed)


def is_sealed(data: Body) -> bool:
    return bytes(memoryview(data)[: len(MAGIC)]) == MAGIC


class KeyedStore(StoreWrapper):
    def __init__(self, inner: ObjectStore, keys: KeyRing) -> None:
        super().__init__(inner)
        self.keys = keys


def keyed(store: ObjectStore, keys: KeyRing) -> ObjectStore:
    """The store with this key ring; the store itself if the ring is empty or is the store's already."""
    return KeyedStore(store, keys) if keys and key_ring_of(store) is not keys else store


def key_ring_of(store: ObjectStore) -> KeyRing:
    """The key ring of a store, or of a store inside it; an empty ring if there is none."""
    inner: object = store
    while inner is not None:
        if isinstance(inner, KeyedStore):
            return inner.keys
        inner = getattr(inner, "_inner", None) or getattr(inner, "inner", None)
    return NO_KEYS


def sealer_of(store: ObjectStore, prefix: str) -> Sealer:
    return Sealer(prefix, key_ring_of(store))


def _nonce(key: bytes, associated: bytes, body: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.hmac import HMAC

    mac = HMAC(key, SHA256())
    mac.update(b"%d %s" % (len(associated), associated))
    mac.update(body)
    return mac.finalize()[:NONCE_BYTES]


def _line(key_id: str, key: str, sealed: bytes) -> bytes:
    return b"tiered-sealed 1 %s %s %08x %d\n" % (key_id.encode(), key.encode(), crc32c(sealed), len(sealed))
