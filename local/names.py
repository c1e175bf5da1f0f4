"""Every file and directory name of the local tier, with its inverse.

The partition of a directory name follows the last dash. A second suffix marks a file that is not live yet
(``.cleaned``, ``.swap``) or is about to be deleted (``.deleted``). Source: kafka `LogFileUtils`, `LocalLog`, `Topic`.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from local.errors import InvalidRequest

if TYPE_CHECKING:
    import uuid

LOG, OFFSET_INDEX, TIME_INDEX = ".log", ".index", ".timeindex"
TXN_INDEX, PRODUCER_SNAPSHOT = ".txnindex", ".snapshot"
SEGMENT_SUFFIXES = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
FUTURE_DIRECTORY, DELETED_DIRECTORY = "-future", "-delete"
DELETED, CLEANED, SWAP, TEMPORARY = ".deleted", ".cleaned", ".swap", ".tmp"

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
VIEW_CATALOG = "view-catalog"  # not a Kafka name: the compacted views of the log, see `tiered.read.view_places`
VIEW_PARTS = "view"  # not a Kafka name: the directory of the parts of compacted views
QUORUM_STATE = "quorum-state"  # of a KRaft controller, in the directory of `__cluster_metadata`
UNCONFIRMED_APPENDS = "unconfirmed-appends"  # not a Kafka name: the first unconfirmed offset, as text
FENCED_BY = "fenced-by"  # not a Kafka name: the writer that fenced this log, as text
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
CLEANER_REACHES = "cleaner-reach-checkpoint"  # not a Kafka name; same format
CLEANER_HISTORY = "cleaner-history.jsonl"
META_PROPERTIES = "meta.properties"
LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

PARTITION_MAX = 2**31 - 1
TOPIC_LENGTH_MAX = 249
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
NAME_LENGTH_MAX = 255
_MARKED_DIRECTORY = re.compile(r"(.+)\.([0-9a-f]{32})(-future|-delete)")
_SEGMENT_FILE = re.compile(r"([0-9]{20})((?:\.[a-z]+)+)")


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """The name of one log. Raises InvalidRequest if Kafka refuses the topic or the partition."""

    topic: str
    partition: int

    def __post_init__(self) -> None:
        check_topic(self.topic)
        if not 0 <= self.partition <= PARTITION_MAX:
            raise InvalidRequest(
                "invalid partition number, it is not in 0..2147483647", topic=self.topic, partition=self.partition
            )

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    @property
    def directory(self) -> str:
        """The partition's directory name below a log directory: ``orders-3``."""
        return f"{self.topic}-{self.partition}"


def check_topic(topic: str) -> str:
    """Return the topic. Raises InvalidRequest if Kafka refuses the name, so it cannot contain a path."""
    if not topic or topic in (".", "..") or len(topic) > TOPIC_LENGTH_MAX or not _TOPIC.fullmatch(topic):
        allowed = "at most 249 of a-z A-Z 0-9 . _ -, but not '.' or '..'"
        raise InvalidRequest("invalid topic name", topic=repr(topic), allowed=allowed)
    return topic


def parse_partition_directory(name: str) -> TopicPartition | None:
    """The inverse of `TopicPartition.directory`; None for any other name."""
    topic, dash, digits = name.rpartition("-")
    if not dash or not digits.isascii() or not digits.isdigit() or str(int(digits)) != digits:
        return None
    try:
        return TopicPartition(topic, int(digits))
    except InvalidRequest:
        return None


def future_directory(partition: TopicPartition, mark: str) -> str:
    """``orders-3.<32 hex>-future``: a future replica. As in Kafka, a long name is not shortened."""
    return f"{partition.directory}.{mark}{FUTURE_DIRECTORY}"


def deleted_directory(partition: TopicPartition, mark: str) -> str:
    """``orders-3.<32 hex>-delete``: to be deleted. A long topic is shortened to the file system's limit."""
    tail = f"-{partition.partition}.{mark}{DELETED_DIRECTORY}"
    return partition.topic[: NAME_LENGTH_MAX - len(tail)] + tail


def parse_marked_directory(name: str) -> tuple[TopicPartition, str, str] | None:
    """``(orders/3, "<32 hex>", "-future")``, None for any other name. A long topic may be shortened."""
    found = _MARKED_DIRECTORY.fullmatch(name)
    partition = parse_partition_directory(found[1]) if found else None
    return (partition, found[2], found[3]) if found and partition else None


def segment_file(base_offset: int, suffix: str) -> str:
    """``00000000000000000042.log``"""
    return f"{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """``(42, ".log.swap")`` for ``00000000000000000042.log.swap``; None if the name is not a segment file."""
    digits, suffix = name[:20], name[20:]
    if suffix in SEGMENT_SUFFIXES and len(digits) == 20 and digits.isascii() and digits.isdigit():
        return int(digits), suffix  # nearly all files of a large directory
    found = _SEGMENT_FILE.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def new_topic_id() -> str:
    """A new topic id in Kafka's notation: 22 characters of URL-safe base64. It never starts with a dash."""
    import uuid

    while True:
        text = encode_uuid(uuid.uuid4())
        if not text.startswith("-"):
            return text


def encode_uuid(value: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def check_topic_id(text: str) -> str:
    """Return the id unchanged. Raises InvalidRequest unless it is 22 characters of URL-safe base64."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{22}", text):
        raise InvalidRequest("invalid topic id, it is not 22 characters of URL-safe base64", topic_id=repr(text))
    return text
