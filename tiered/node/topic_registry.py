"""The topics of a node: their ids, partition counts and own settings, in one small file.

``topics.json`` is at the root of every log directory, next to Kafka's checkpoints, and is replaced whole. A broker
reads directories there and ignores unknown files. The settings are the topic's own, as text under Kafka's names.
`tiered.config.config` layers defaults and overrides on top. A file without `was_tiered` or `version` (later additions)
is read as false and 0.

With several log directories each has a copy, so that no lost disk loses the topics. A change raises `version` and is
written to each copy in turn. A copy that cannot be written is skipped if another takes the change. The copy with the
highest version is valid: a crash in between leaves the change made or not made, and `heal` updates the other copies.
While a copy is unavailable, the version rises by two. That copy may be ahead by one unreported change, which must not
win over the changes made without it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from local.errors import AccessDenied, Corrupt, DiskFailed, InvalidRequest, LogError, NotFound
from local.names import TopicPartition, check_topic, check_topic_id
from local.storage import Storage, join, replace_file
from tiered.config.properties import nearest

FILE = "topics.json"
FORMAT_VERSION = 1
PARTITIONS_MAX = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic; `properties` are its own settings, unparsed. Partitions are numbered from 0.

    `was_tiered`: the bucket may hold objects of it. True from before the first manifest is written, and for good.
    """

    name: str
    topic_id: str
    partition_count: int
    properties: dict[str, str] = field(default_factory=dict)
    was_tiered: bool = False

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.partition_count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    """A deleted topic with possible remains on a disk or in the bucket."""

    topic: Topic
    deleted_ms: int


class TopicRegistry:
    """The topics of a node. Reads the file once and writes it on every change.

    A change becomes visible after it was written. Thread safe; changes wait for each other.
    """

    def __init__(self, places: Sequence[tuple[Storage, str]]) -> None:
        """`places` are the log directories and their storages.

        Raises Corrupt if a file does not hold topics. Raises DiskFailed or AccessDenied if no copy was found and one
        could not be read.
        """
        self._copies = [_Copy(storage, join(root, FILE)) for storage, root in places]
        newest = self._read()
        self._version = newest.version
        self._topics = {topic.name: topic for topic in newest.topics}
        self._deleted = tuple(newest.deleted)
        self._changing = threading.RLock()

    def all(self) -> list[Topic]:
        topics = self._topics
        return [topics[name] for name in sorted(topics)]

    def get(self, name: str) -> Topic:
        """The topic. Raises NotFound, naming the topics that exist."""
        check_topic(name)
        if name not in self._topics:
            there_are = ", ".join(sorted(self._topics)[:10]) or "none"
            raise NotFound("topic not found", topic=name, there_are=there_are, did_you_mean=nearest(name, self._topics))
        return self._topics[name]

    def check_new(self, topic: Topic) -> None:
        """Check a new topic. Raises InvalidRequest for a taken name or an invalid partition count."""
        check_topic(topic.name)
        if topic.name in self._topics:
            raise InvalidRequest(
                "cannot create the topic, it already exists: 'tiered topic alter' changes its settings",
                topic=topic.name,
            )
        if not 1 <= topic.partition_count <= PARTITIONS_MAX:
            raise InvalidRequest(
                f"cannot create the topic, the number of partitions is not in 1..{PARTITIONS_MAX}",
                topic=topic.name,
                partitions=topic.partition_count,
            )

    def add(self, *topics: Topic) -> None:
        """Add all of these topics or none, durable on return. Raises as `check_new`."""
        for each in topics:
            self.check_new(each)
        with self._changing:
            self._write({**self._topics, **{each.name: each for each in topics}})

    def alter(self, name: str, properties: dict[str, str], *, is_tiered: bool = False) -> Topic:
        """Replace the topic's own settings, durable on return.

        With `is_tiered` it has `was_tiered` from now on; this cannot be undone.
        """
        with self._changing:
            known = self.get(name)
            altered = replace(known, properties=properties, was_tiered=known.was_tiered or is_tiered)
            self._write({**self._topics, name: altered})
        return altered

    def delete(self, name: str, *, now_ms: int) -> DeletedTopic:
        """Mark the topic deleted, durable on return; its name is free. `deleted` lists it until `forget`."""
        with self._changing:
            deleted = DeletedTopic(topic=self.get(name), deleted_ms=now_ms)
            remaining = {each: topic for each, topic in self._topics.items() if each != name}
            self._write(remaining, (*self._deleted, deleted))
        return deleted

    def deleted(self) -> tuple[DeletedTopic, ...]:
        """Deleted topics with possible remains, in the order of their deletion."""
        return self._deleted

    def forget(self, topic_id: str) -> None:
        """Remove a deleted topic without remains from the list."""
        with self._changing:
            self._write(self._topics, tuple(each for each in self._deleted if each.topic.topic_id != topic_id))

    def heal(self) -> None:
        """Update copies that are behind or missing from the newest one."""
        with self._changing:
            behind = [copy for copy in self._copies if copy.version != self._version]
            if behind and (self._topics or self._deleted):
                self._write_copies(behind, self._topics, self._deleted)

    def _read(self) -> _File:
        """The newest copy."""
        found = []
        failed: LogError | None = None
        for copy in self._copies:
            try:
                body = copy.read()
            except (DiskFailed, AccessDenied) as error:
                failed = error
                continue
            if body is not None:
                found.append(body)
        if not found and failed is not None:
            raise failed
        return max(found, key=lambda body: body.version, default=_File(format_version=FORMAT_VERSION, topics=[]))

    def _write(self, topics: dict[str, Topic], deleted: tuple[DeletedTopic, ...] | None = None) -> None:
        deleted = self._deleted if deleted is None else deleted
        self._version += 1 if all(copy.version == self._version for copy in self._copies) else 2
        error = self._write_copies(self._copies, topics, deleted)
        if error is not None and all(copy.version != self._version for copy in self._copies):
            raise error
        self._topics, self._deleted = topics, deleted

    def _write_copies(
        self, copies: Sequence[_Copy], topics: dict[str, Topic], deleted: Sequence[DeletedTopic]
    ) -> LogError | None:
        """Write these copies; returns the last error, of a copy left unchanged."""
        ordered = [topics[name] for name in sorted(topics)]
        body = _File(format_version=FORMAT_VERSION, topics=ordered, version=self._version, deleted=list(deleted))
        failed: LogError | None = None
        for copy in copies:
            try:
                copy.write(body)
            except (DiskFailed, AccessDenied) as error:
                failed = error
                if len(self._copies) > 1:
                    _log.warning("cannot write a copy of the topic registry: path=%s error=%s", copy.path, error)
        return failed


class _Copy:
    """The file in one directory; `version` is that of its content, None if unknown."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.path = path
        self.version: int | None = None
        self._storage = storage

    def read(self) -> _File | None:
        try:
            body = _FILE.decode(self._storage.read(self.path))
        except NotFound:
            return None
        except msgspec.MsgspecError as error:
            raise Corrupt("cannot read the topic registry", path=self.path, cause=str(error)) from None
        if body.format_version != FORMAT_VERSION:
            raise Corrupt(
                "cannot read the topic registry, unknown format", path=self.path, format_version=body.format_version
            )
        for topic in [*body.topics, *(each.topic for each in body.deleted)]:
            check_topic(topic.name)
            check_topic_id(topic.topic_id)
        self.version = body.version
        return body

    def write(self, body: _File) -> None:
        self.version = None
        replace_file(self._storage, self.path, msgspec.json.format(msgspec.json.encode(body), indent=1))
        self.version = body.version


class _File(msgspec.Struct):
    format_version: int
    topics: list[Topic]
    version: int = 0
    deleted: list[DeletedTopic] = []


# Built at import: building it in two threads in parallel ends the process (msgspec 0.22).
_FILE = msgspec.json.Decoder(_File)
