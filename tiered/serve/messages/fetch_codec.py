"""A faster codec of usual Fetch messages: a consumer sends thousands of them a second.

It reads and writes what `tiered.serve.codec` does, whose results are the same, from fixed formats instead of schemas.

| message | not usual: the result is None, and `tiered.serve.codec` reads or writes it |
|---|---|
| request | above BYTES_MAX bytes, forgotten topics, tagged fields, a compact length above 126, wrong bytes |
| response | a current leader, node endpoints, a compact length above 126, small fields above the limit |

Source: kafka `FetchRequest.json`, `FetchResponse.json`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from uuid import UUID

from tiered.serve.messages.base import Piece, size_of
from tiered.serve.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

BYTES_MAX = 4096  # so the number of items needs no other bound
_VERSIONS = range(4, 19)
# The first versions with a field or a format.
_LOG_START, _SESSIONS, _EPOCHS, _RACKS, _FLEXIBLE, _IDS, _NO_REPLICA = 5, 7, 9, 11, 12, 13, 15
_BYTE_MAX = 0x7F  # the largest number of one byte in a compact format
_NO_ID = UUID(int=0)
_HEADER = struct.Struct(">2xhih")  # after the API key: version, correlation id, length of the client id
_INT16, _INT32, _ABORTED = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">qq")
_PREFIX = struct.Struct(">ii")  # length, correlation id


class _Form:
    """The fixed parts of one version."""

    def __init__(self, version: int) -> None:
        self.is_flexible = version >= _FLEXIBLE
        self.has_ids, self.has_sessions, self.has_racks = version >= _IDS, version >= _SESSIONS, version >= _RACKS
        replica, session = "" if version >= _NO_REPLICA else "4x", "ii" if self.has_sessions else ""
        self.request = struct.Struct(f">{replica}iiib{session}")
        epoch, last = "i" if version >= _EPOCHS else "", "4x" if self.is_flexible else ""
        self.has_epochs = version >= _EPOCHS
        start = "8x" if version >= _LOG_START else ""
        self.requested = struct.Struct(f">i{epoch}q{last}{start}i")
        self.response = struct.Struct(">ihi" if self.has_sessions else ">i")
        self.has_starts = version >= _LOG_START
        self.partition = struct.Struct(">ihqqq" if self.has_starts else ">ihqq")


_FORMS = {version: _Form(version) for version in _VERSIONS}


def read(frame: bytes | bytearray) -> tuple[int, int, str | None, FetchRequest] | None:
    """The version, the correlation id, the client id and the body of a usual request, which is a whole frame.

    None for any other. The caller checks the API key and BYTES_MAX.
    """
    try:
        return _read(frame)
    except (struct.error, IndexError, ValueError):
        return None


def _read(frame: bytes | bytearray) -> tuple[int, int, str | None, FetchRequest] | None:
    version, correlation_id, length = _HEADER.unpack_from(frame)
    form = _FORMS.get(version)
    if form is None or length < -1:
        return None
    at = _HEADER.size + max(length, 0)
    client_id = None if length < 0 else frame[_HEADER.size : at].decode()
    if form.is_flexible:
        _none(frame[at])
        at += 1
    limits = form.request.unpack_from(frame, at)
    at += form.request.size
    count, at = _count(form, frame, at)
    topics = []
    for _ in range(count):
        topic, at = _topic(form, frame, at)
        topics.append(topic)
    if form.has_sessions:
        forgotten, at = _count(form, frame, at)
        _none(forgotten)
    if form.has_racks:
        _, at = _text(form, frame, at)
    if form.is_flexible:
        _none(frame[at])
        at += 1
    if at > len(frame):
        return None
    wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = (*limits, 0, -1)[:6]
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=tuple(topics),
    )
    return version, correlation_id, client_id, request


def _topic(form: _Form, frame: bytes | bytearray, at: int) -> tuple[FetchTopic, int]:
    name, topic_id = None, None
    if form.has_ids:
        topic_id = _id(bytes(frame[at : at + 16]))
        at += 16
    else:
        name, at = _text(form, frame, at)
    count, at = _count(form, frame, at)
    partitions = []
    for _ in range(count):
        numbers = form.requested.unpack_from(frame, at)
        at += form.requested.size
        if form.is_flexible:
            _none(frame[at])
            at += 1
        number, epoch, offset, bytes_max = numbers if form.has_epochs else (numbers[0], -1, *numbers[1:])
        partitions.append(
            FetchPartition(
                partition=number, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=bytes_max
            )
        )
    if form.is_flexible:
        _none(frame[at])
        at += 1
    return FetchTopic(topic=name, topic_id=topic_id, partitions=tuple(partitions)), at


def _none(count: int) -> None:
    """Raise ValueError for tagged fields or items, which a usual request does not have."""
    if count:
        raise ValueError(count)


def _count(form: _Form, frame: bytes | bytearray, at: int) -> tuple[int, int]:
    """The number of items of an array, and the position after it."""
    if not form.is_flexible:
        count = int(_INT32.unpack_from(frame, at)[0])
        return _length(count), at + 4
    return _compact(frame[at]), at + 1


def _text(form: _Form, frame: bytes | bytearray, at: int) -> tuple[str, int]:
    if form.is_flexible:
        length, at = _compact(frame[at]), at + 1
    else:
        length, at = _length(int(_INT16.unpack_from(frame, at)[0])), at + 2
    return frame[at : at + length].decode(), at + length


def _compact(byte: int) -> int:
    if byte > _BYTE_MAX:
        raise ValueError(byte)
    return _length(byte - 1)


def _length(length: int) -> int:
    if length < 0:
        raise ValueError(length)
    return length


@lru_cache(maxsize=1024)
def _id(data: bytes) -> UUID | None:
    found = UUID(bytes=data)
    return None if found == _NO_ID else found


def write(version: int, correlation_id: int, response: FetchResponse, bytes_max: int) -> list[Piece] | None:
    """The frame of a usual response, with its length prefix, as pieces to send in order. None for any other.

    `bytes_max` limits the fields without the records.
    """
    form = _FORMS.get(version)
    if form is None or response.node_endpoints:
        return None
    first = small = bytearray(_PREFIX.size)
    pieces: list[Piece] = [small]
    if form.is_flexible:
        small.append(0)
    if form.has_sessions:
        small += form.response.pack(response.throttle_time_ms, response.error_code, response.session_id)
    else:
        small += form.response.pack(response.throttle_time_ms)
    try:
        _put_count(form, small, len(response.responses))
        small_bytes = record_bytes = 0
        for topic in response.responses:
            _put_topic(form, small, topic)
            _put_count(form, small, len(topic.partitions))
            for data in topic.partitions:
                record_bytes += _put_partition(form, small, data)
                if data.records:
                    small_bytes += len(small)
                    pieces += data.records
                    small = bytearray()
                    pieces.append(small)
                if form.is_flexible:
                    small.append(0)
                if small_bytes + len(small) > bytes_max:
                    return None
            if form.is_flexible:
                small.append(0)
        if form.is_flexible:
            small.append(0)
    except ValueError:
        return None
    small_bytes += len(small)
    if small_bytes > bytes_max:
        return None
    _PREFIX.pack_into(first, 0, small_bytes + record_bytes - 4, correlation_id)
    return [each for each in pieces if len(each)]


def _put_count(form: _Form, small: bytearray, count: int) -> None:
    """Write the length of an array or of a string with a compact format; -1 for null."""
    if not form.is_flexible:
        small += _INT32.pack(count)
    elif count < _BYTE_MAX:
        small.append(count + 1)
    else:
        raise ValueError(count)


def _put_topic(form: _Form, small: bytearray, topic: FetchableTopicResponse) -> None:
    if form.has_ids:
        small += (topic.topic_id or _NO_ID).bytes
        return
    name = (topic.topic or "").encode()
    if form.is_flexible:
        _put_count(form, small, len(name))
    else:
        small += _INT16.pack(len(name))
    small += name


def _put_partition(form: _Form, small: bytearray, data: PartitionData) -> int:
    """Write the fields before the records; the bytes of the records."""
    if data.current_leader is not None:
        raise ValueError(data.partition_index)
    head = data.partition_index, data.error_code, data.high_watermark, data.last_stable_offset
    small += form.partition.pack(*head, data.log_start_offset) if form.has_starts else form.partition.pack(*head)
    aborted = data.aborted_transactions
    _put_count(form, small, -1 if aborted is None else len(aborted))
    for each in aborted or ():
        small += _ABORTED.pack(each.producer_id, each.first_offset)
        if form.is_flexible:
            small.append(0)
    if form.has_racks:
        small += b"\xff\xff\xff\xff"  # no preferred read replica
    size_bytes = sum(map(size_of, data.records))
    if not form.is_flexible:
        small += _INT32.pack(size_bytes)
        return size_bytes
    length = size_bytes + 1
    while length > _BYTE_MAX:
        small.append(length & _BYTE_MAX | 0x80)
        length >>= 7
    small.append(length)
    return size_bytes
