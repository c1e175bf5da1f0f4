"""Aiven's envelope encryption: the manifest holds each segment's AES key, wrapped by an RSA key.

| encrypted part | form |
|---|---|
| a chunk, or an index | nonce of 12 bytes, ciphertext, tag of 16 bytes: AES-256-GCM |
| the data key | RSA, OAEP with SHA3-512 for both of its hashes, no label |

The additional data is the manifest's ``aad``, the same for every chunk and index of a segment. It does not contain the
chunk number, so swapped chunks of one segment decrypt without an error. The CRCs of the batches show the swap.

Private keys are PKCS#8 in PEM, read where they are used and never sent. Source: `RsaEncryptionProvider`,
`AesEncryptionProvider`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from local.errors import AccessDenied, Corrupt, InvalidRequest
from remote.external.aiven_manifest import Sealing
from remote.store import Body

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES, _TAG_BYTES, _KEY_BYTES, _HASH_BYTES = 12, 16, 32, 64
_PEM_BYTES_MAX = 1 << 20


class AivenCipher:
    """Decrypts chunks and indexes of one segment. Thread safe."""

    def __init__(self, gcm: AESGCM, aad: bytes) -> None:
        self._gcm = gcm
        self._aad = aad

    def open(self, sealed: Body) -> bytes:
        """Return the plaintext. Raises Corrupt for bytes not encrypted with this key."""
        from cryptography.exceptions import InvalidTag

        view = memoryview(sealed)
        if len(view) < _NONCE_BYTES + _TAG_BYTES:
            raise Corrupt("cannot decrypt, the input is too short", size_bytes=len(view))
        try:
            return self._gcm.decrypt(bytes(view[:_NONCE_BYTES]), view[_NONCE_BYTES:], self._aad)
        except (InvalidTag, ValueError) as error:
            raise Corrupt("cannot decrypt, the authentication tag does not match") from error


class PrivateKeys:
    """RSA keys by the key ids of manifests, from files. No representation shows a key."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """`files`: a path for each key id. Nothing is read yet."""
        self._files = dict(files)
        self._read: dict[str, RSAPrivateKey] = {}

    def __repr__(self) -> str:
        return f"PrivateKeys({', '.join(sorted(self._files)) or 'no keys'})"

    def cipher(self, sealing: Sealing, name: str) -> AivenCipher:
        """Return the cipher for the segment of manifest `name`.

        Raises AccessDenied if the key is missing or is a different one.
        """
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            hint = "pip install 'tiered[encryption]'"
            raise InvalidRequest("cannot decrypt a segment, a library is missing", install=hint) from error
        key = self._key(sealing.key_id, name)
        data_key = _unwrapped(key, sealing.wrapped_key)
        if data_key is None:
            wrong = "cannot decrypt a segment, the key of this id is not the key that encrypted it"
            raise AccessDenied(wrong, key_id=sealing.key_id, object=name)
        if len(data_key) != _KEY_BYTES:
            facts = {"object": name, "key_bytes": len(data_key)}
            raise Corrupt("cannot decrypt a segment, its data key has a wrong length", **facts)
        return AivenCipher(AESGCM(data_key), sealing.aad)

    def _key(self, key_id: str, name: str) -> RSAPrivateKey:
        if key_id not in self._files:
            there_are = ",".join(sorted(self._files)) or None
            missing = "cannot decrypt a segment, no private key of this id is configured"
            raise AccessDenied(missing, key_id=key_id, object=name, there_are=there_are)
        if key_id not in self._read:
            self._read[key_id] = _load(self._files[key_id], key_id)
        return self._read[key_id]


def _unwrapped(key: RSAPrivateKey, wrapped: bytes) -> bytes | None:
    """Unwrap a key by OAEP with SHA3-512, which the library lacks: RFC 8017, 7.1.2.

    None if this key did not wrap it. The timing is not constant. It leaks nothing new, because the reader holds the
    private key.
    """
    numbers = key.private_numbers()
    modulus, size = numbers.public_numbers.n, (key.key_size + 7) // 8
    number = int.from_bytes(wrapped, "big")
    if len(wrapped) != size or number >= modulus or size < 2 * _HASH_BYTES + 2:
        return None
    low, high = pow(number, numbers.dmq1, numbers.q), pow(number, numbers.dmp1, numbers.p)
    padded = (low + (high - low) * numbers.iqmp % numbers.p * numbers.q).to_bytes(size, "big")
    seed, block = padded[1 : 1 + _HASH_BYTES], padded[1 + _HASH_BYTES :]
    seed = _masked(seed, block)
    block = _masked(block, seed)
    told, rest = block[:_HASH_BYTES], block[_HASH_BYTES:].lstrip(b"\0")
    if padded[0] or told != hashlib.sha3_512(b"").digest() or rest[:1] != b"\1":
        return None
    return rest[1:]


def _masked(data: bytes, seed: bytes) -> bytes:
    """Return `data` XORed with the MGF1 mask of `seed`; its own inverse."""
    blocks = -(-len(data) // _HASH_BYTES)
    mask = b"".join(hashlib.sha3_512(seed + number.to_bytes(4, "big")).digest() for number in range(blocks))
    return bytes(one ^ two for one, two in zip(data, mask, strict=False))


def _load(path: str, key_id: str) -> RSAPrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    facts = {"key_id": key_id, "file": path}
    try:
        with open(path, "rb") as file:
            text = file.read(_PEM_BYTES_MAX)
    except OSError as error:
        raise InvalidRequest("cannot read the file of a private key", **facts, cause=error.strerror) from error
    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidRequest("a private key is not an unencrypted key in PEM format", **facts) from None
    if not isinstance(key, RSAPrivateKey):
        raise InvalidRequest("a private key is not an RSA key", **facts)
    return key
