"""Requests of every version to a Kafka server by the classes of `kio`, and its responses as plain values."""

from __future__ import annotations

import dataclasses
import datetime
import io
import socket
import struct
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from tiered.serve.messages.base import Api

_LIMIT_S = 60.0
_MILLISECOND = datetime.timedelta(milliseconds=1)


class KafkaSocket:
    """One connection. A field that a version lacks is left out of its request; a missing field has its default."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _LIMIT_S)
        self._correlation_id = 0

    def close(self) -> None:
        self._socket.close()

    def versions(self) -> dict[int, tuple[int, int]]:
        """The lowest and highest version of every API."""
        found = self.ask(Api.API_VERSIONS, 3, {"client_software_name": "tests", "client_software_version": "1"})
        return {each["api_key"]: (each["min_version"], each["max_version"]) for each in found["api_keys"]}

    def ask(self, api: int, version: int, fields: Mapping[str, object]) -> dict[str, Any]:
        self.send(api, version, fields)
        response = load_response_schema(api, version)
        (length,) = struct.unpack(">i", self._exactly(4))
        data = self._exactly(length)
        found_head, at = entity_reader(response.__header_schema__)(data, 0)
        assert found_head.correlation_id == self._correlation_id
        found, size = entity_reader(response)(data, at)
        assert at + size == len(data)
        plain = _plain(found)
        assert isinstance(plain, dict)
        return plain

    def send(self, api: int, version: int, fields: Mapping[str, object]) -> None:
        """Send a request; its response is not read."""
        self._correlation_id += 1
        schema = load_request_schema(api, version)
        head = schema.__header_schema__(
            request_api_key=api, request_api_version=version, correlation_id=self._correlation_id, client_id="tests"
        )
        buffer = io.BytesIO()
        entity_writer(type(head))(buffer, head)
        entity_writer(schema)(buffer, _made(schema, fields))
        frame = buffer.getvalue()
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def _exactly(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            piece = self._socket.recv(length - len(data))
            assert piece, "the server closed the connection"
            data += piece
        return bytes(data)


def _made(schema: type, fields: Mapping[str, Any]) -> Any:
    """An instance of a `kio` class."""
    values = {}
    for field in dataclasses.fields(schema):
        hint, is_nullable = field.type, False
        if get_origin(hint) in (Union, types.UnionType):
            (hint,) = (each for each in get_args(hint) if each is not types.NoneType)
            is_nullable = True
        item = get_args(hint)[0] if get_origin(hint) is tuple else hint
        if field.name in fields:
            value = fields[field.name]
            if dataclasses.is_dataclass(item) and value is not None:
                value = (
                    tuple(_made(item, each) for each in value)
                    if isinstance(value, (list, tuple))
                    else _made(item, value)
                )
            if isinstance(value, int) and str(field.metadata.get("kafka_type")).startswith("timedelta"):
                value = value * _MILLISECOND
            values[field.name] = tuple(value) if isinstance(value, list) else value
        elif field.default is dataclasses.MISSING:
            kind = field.metadata.get("kafka_type")
            zeros = {"string": "", "bool": False, "uuid": None, "timedelta_i32": datetime.timedelta()}
            values[field.name] = () if item is not hint else None if is_nullable else zeros.get(kind, 0)
    return schema(**values)


def _plain(value: Any) -> object:
    match value:
        case datetime.timedelta():
            return value // _MILLISECOND
        case datetime.datetime():
            return int(value.timestamp() * 1000)
        case tuple() | list():
            return [_plain(each) for each in value]
        case UUID():
            return str(value)
        case bytes() | memoryview():
            return bytes(value)
        case _ if dataclasses.is_dataclass(value):
            return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    return value if value is None or isinstance(value, (str, bool)) else int(value)


def differences(ours: object, theirs: object, path: str = "") -> list[str]:
    """The fields that differ, one line each."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        return [line for name in ours for line in differences(ours[name], theirs[name], f"{path}.{name}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [line for at, pair in pairs for line in differences(*pair, f"{path}[{at}]")]
    return [] if ours == theirs else [f"{path}: ours={_short(ours)} Kafka's={_short(theirs)}"]


def _short(value: object) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes) else repr(value)[:200]
