"""One Kafka connection that sends requests as plain values and returns the responses as plain values, through `kio`."""

from __future__ import annotations

import dataclasses
import datetime
import io
import socket
import struct
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

LIMIT_S = 60.0


class KafkaRequests:
    """A client that speaks any version of any API. Closes as a context manager."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=LIMIT_S)
        self._count = 0

    def __enter__(self) -> KafkaRequests:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, api: int, version: int, request: Mapping[str, Any]) -> dict[str, Any]:
        """The response to a request; fields that `request` lacks have their defaults or are zero."""
        self._count += 1
        message = _message(load_request_schema(api, version), request)
        head_schema = type(message).__header_schema__
        head = head_schema(
            request_api_key=api, request_api_version=version, correlation_id=self._count, client_id="tester"
        )
        buffer = io.BytesIO()
        entity_writer(head_schema)(buffer, head)
        entity_writer(type(message))(buffer, message)
        self._socket.sendall(struct.pack(">i", buffer.tell()) + buffer.getvalue())
        data = self._take(struct.unpack(">i", self._take(4))[0])
        schema = load_response_schema(api, version)
        answered, size = entity_reader(schema.__header_schema__)(data, 0)
        assert answered.correlation_id == self._count
        response, length = entity_reader(schema)(data, size)
        assert size + length == len(data)
        found = _plain(response)
        assert isinstance(found, dict)
        return found

    def _take(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = self._socket.recv(length - len(data))
            assert piece, "the server closed the connection"
            data += piece
        return data


def _message(schema: Any, values: Mapping[str, Any]) -> Any:
    fields = {each.name: each for each in dataclasses.fields(schema)}
    assert set(values) <= set(fields), f"{schema}: {set(values) - set(fields)} are unknown fields"
    return schema(
        **{
            name: _value(field, values[name]) if name in values else _nothing(field)
            for name, field in fields.items()
            if name in values or field.default is dataclasses.MISSING
        }
    )


def _value(field: dataclasses.Field[Any], value: Any) -> Any:
    item, is_array = _item(field)
    if value is None:
        return None
    if is_array:
        return tuple(_single(field, item, each) for each in value)
    return _single(field, item, value)


def _single(field: dataclasses.Field[Any], item: Any, value: Any) -> Any:
    if isinstance(value, Mapping):
        return _message(item, value)
    is_time = str(field.metadata.get("kafka_type", "")).startswith("timedelta")
    return datetime.timedelta(milliseconds=value) if is_time else value


def _item(field: dataclasses.Field[Any]) -> tuple[Any, bool]:
    hint: Any = field.type
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (each for each in get_args(hint) if each is not types.NoneType)
    is_array = get_origin(hint) is tuple
    return (get_args(hint)[0] if is_array else hint), is_array


def _nothing(field: dataclasses.Field[Any]) -> Any:
    item, is_array = _item(field)
    kind = field.metadata.get("kafka_type")
    if get_origin(field.type) in (Union, types.UnionType):
        return None
    if is_array:
        return ()
    return _value(field, {"string": "", "bool": False}.get(str(kind), 0)) if kind else _message(item, {})


def _plain(value: Any) -> Any:
    match value:
        case datetime.timedelta():
            return value // datetime.timedelta(milliseconds=1)
        case tuple() | list():
            return [_plain(each) for each in value]
        case _ if dataclasses.is_dataclass(value):
            return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
        case int() if not isinstance(value, bool):
            return int(value)
    return value
