"""Decoders of keys, values and headers to readable text or JSON.

A decoder never loses bytes. Bytes that it cannot read (text that is no UTF-8, a number of another width, invalid JSON)
become ``{"base64": "..."}``, a form that `tiered append --jsonl` accepts too. The caller handles null.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable

import msgspec

from local.errors import InvalidRequest

# Returns a value that msgspec can write as JSON.
Decoder = Callable[[bytes], object]


def utf8(data: bytes) -> object:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return undecoded(data)


def undecoded(data: bytes) -> dict[str, str]:
    """Return the form of bytes that a decoder cannot read."""
    return {"base64": base64.b64encode(data).decode()}


def _json(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)  # encoded again, because the original may have line breaks
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return undecoded(data)


def _number(form: str) -> Decoder:
    packed = struct.Struct(form)

    def decode(data: bytes) -> object:
        number = packed.unpack(data)[0] if len(data) == packed.size else math.inf
        return number if math.isfinite(number) else undecoded(data)  # JSON has no infinity

    return decode


# Kafka's own decoders and serializers by their plain names; numbers are big-endian.
DECODERS: dict[str, Decoder] = {
    "utf8": utf8,
    "base64": lambda data: base64.b64encode(data).decode(),
    "hex": bytes.hex,
    "json": _json,
    "short": _number(">h"),
    "integer": _number(">i"),
    "long": _number(">q"),
    "float": _number(">f"),
    "double": _number(">d"),
}
ENCODINGS = ("utf8", "base64", "hex")


def encode(text: str, encoding: str) -> bytes:
    """Encode `text` by one of ENCODINGS. Raises InvalidRequest."""
    try:
        if encoding == "hex":
            return bytes.fromhex(text)
        if encoding == "base64":
            return base64.b64decode(text, validate=True)
        return text.encode("utf-8", "surrogateescape")
    except (ValueError, binascii.Error):
        raise InvalidRequest(
            "cannot decode the key, it is not in this encoding", text=repr(text), encoding=encoding
        ) from None
