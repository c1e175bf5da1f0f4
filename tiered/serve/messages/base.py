"""What the messages of all APIs share: keys, error codes, versions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

Piece = bytes | bytearray | memoryview  # bytes to send
NO_OPERATIONS = -(2**31)  # Kafka's value for "authorized operations were not requested"


class Api(IntEnum):
    """The keys of the served APIs."""

    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    API_VERSIONS = 18
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CLUSTER = 60


class Error(IntEnum):
    """The error codes that this endpoint sends. Source: kafka `Errors`."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_TOPIC_EXCEPTION = 17
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    KAFKA_STORAGE_ERROR = 56
    FETCH_SESSION_ID_NOT_FOUND = 70
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNKNOWN_TOPIC_ID = 100


@dataclass(frozen=True, slots=True)
class Versions:
    """The served versions of an API, both inclusive, and its messages."""

    min_version: int
    max_version: int
    request: type[Any]
    response: type[Any]
