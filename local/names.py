"""Every file and directory name of the local tier and its inverse, in one place.

Kafka's rules: a partition directory is ``<topic>-<partition>`` (the partition is what follows the last dash), a
segment file is the base offset in 20 digits plus a suffix, and a second suffix tells that the file is on its way
in (``.cleaned``, ``.swap``) or out (``.deleted``). Source: kafka `LogFileUtils`, `LocalLog`, `Topic`.
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
VIEW_CATALOG = "view-catalog"  # ours: what compacted views lie beside the log, see `tiered.read.local_views`
VIEW_PARTS = "view"  # ours: the directory of their parts
QUORUM_STATE = "quorum-state"  # a KRaft controller's, in the directory of `__cluster_metadata`
UNCONFIRMED_APPENDS = "unconfirmed-appends"  # ours: the first offset, as text
FENCED_BY = "fenced-by"  # ours: the writer that fenced this log, as text
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
CLEANER_REACHES = "cleaner-reach-checkpoint"  # ours, in the same format
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
    """One log's name. Raises InvalidRequest where Kafka would refuse the topic or the partition."""

    topic: str
    partition: int

    def __post_init__(self) -> None:
        check_topic(self.topic)
        if not 0 <= self.partition <= PARTITION_MAX:
            raise InvalidRequest("naming a partition, not in 0..2147483647", topic=self.topic, partition=self.partition)

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    @property
    def directory(self) -> str:
        """``orders-3``: the partition's directory below a log dir."""
        return f"{self.topic}-{self.partition}"


def check_topic(topic: str) -> str:
    """The topic unchanged. Raises InvalidRequest for a name Kafka refuses (so no path can hide in it)."""
    if not topic or topic in (".", "..") or len(topic) > TOPIC_LENGTH_MAX or not _TOPIC.fullmatch(topic):
        allowed = "a-z A-Z 0-9 . _ - and at most 249 of them, not '.' or '..'"
        raise InvalidRequest("naming a topic, not a legal name", topic=repr(topic), allowed=allowed)
    return topic


def parse_partition_directory(name: str) -> TopicPartition | None:
    """The inverse of `TopicPartition.directory`; None for anything else, ``-delete`` and ``-future`` included."""
    topic, dash, digits = name.rpartition("-")
    if not dash or not digits.isascii() or not digits.isdigit() or str(int(digits)) != digits:
        return None
    try:
        return TopicPartition(topic, int(digits))
    except InvalidRequest:
        return None


def future_directory(partition: TopicPartition, mark: str) -> str:
    """``orders-3.<32 hex>-future``: a copy on its way in; never cut, as Kafka has it."""
    return f"{partition.directory}.{mark}{FUTURE_DIRECTORY}"


def deleted_directory(partition: TopicPartition, mark: str) -> str:
    """``orders-3.<32 hex>-delete``: on its way out; a long topic is cut so that the name fits a file system."""
    tail = f"-{partition.partition}.{mark}{DELETED_DIRECTORY}"
    return partition.topic[: NAME_LENGTH_MAX - len(tail)] + tail


def parse_marked_directory(name: str) -> tuple[TopicPartition, str, str] | None:
    """``(orders/3, "<32 hex>", "-future")``; None for anything else. The topic of a ``-delete`` may have been cut."""
    found = _MARKED_DIRECTORY.fullmatch(name)
    partition = parse_partition_directory(found[1]) if found else None
    return (partition, found[2], found[3]) if found and partition else None


def segment_file(base_offset: int, suffix: str) -> str:
    """``00000000000000000042.log``"""
    return f"{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """``(42, ".log.swap")`` for ``00000000000000000042.log.swap``; None when it is no segment file."""
    digits, suffix = name[:20], name[20:]
    if suffix in SEGMENT_SUFFIXES and len(digits) == 20 and digits.isascii() and digits.isdigit():
        return int(digits), suffix  # nearly all of a large directory
    found = _SEGMENT_FILE.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def new_topic_id() -> str:
    """A fresh topic id as Kafka prints it: 22 characters of URL-safe base64, never starting with a dash."""
    import uuid

    while True:
        text = encode_uuid(uuid.uuid4())
        if not text.startswith("-"):
            return text


def encode_uuid(value: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def check_topic_id(text: str) -> str:
    """The id unchanged. Raises InvalidRequest unless it is 22 characters of URL-safe base64."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{22}", text):
        raise InvalidRequest("reading a topic id, not 22 characters of url-safe base64", topic_id=repr(text))
    return text
