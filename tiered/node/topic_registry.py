"""The topics of a node: their ids, partition counts and own settings, in one small file.

``topics.json`` is at the root of every log directory, where a broker ignores unknown files, so that no lost disk loses
the topics. A change raises `version` and replaces each copy in turn; a copy that cannot be written is skipped if
another takes the change. The copy with the highest version is valid: a crash in between leaves the change made or not
made, and `heal` updates the other copies. While a copy is unavailable, the version rises by two: that copy may be ahead
by one unreported change, which must not win.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

import msgspec

from local.errors import AccessDenied, Corrupt, DiskFailed, InvalidRequest, LogError, NotFound
from local.names import TopicPartition, check_topic, check_topic_id
from local.storage import Storage, join, replace_file
from tiered.config.properties import nearest

FILE = "topics.json"
FORMAT_VERSION = 1
PARTITIONS_MAX = 10_000
# A coordinator finds the partition of a group or a transaction by a hash modulo the number of partitions.
COORDINATOR_TOPICS = frozenset(("__consumer_offsets", "__transaction_state"))
Places = Sequence[tuple[Storage, str]]  # the log directories and their storages
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic; `properties` are its own settings, unparsed. Partitions are numbered from 0.

    `was_tiered`: the bucket may hold its objects. It is set before the first manifest is written, and never reset.
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
    topic: Topic
    deleted_ms: int


class TopicRegistry:
    """The topics of a node: read once, written on every change before it is visible. Thread safe."""

    def __init__(self, places: Places) -> None:
        """Raises Corrupt if a file does not hold topics, DiskFailed or AccessDenied without a readable copy."""
        self._file = CopiedFile(places, FILE, _FILE, FORMAT_VERSION, "topic registry")
        newest = self._read()
        self._version = newest.version
        self._topics = {topic.name: topic for topic in newest.topics}
        self._deleted = tuple(newest.deleted)
        self._changing = threading.RLock()

    def all(self) -> list[Topic]:
        topics = self._topics
        return [topics[name] for name in sorted(topics)]

    def find(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def get(self, name: str) -> Topic:
        """The topic. Raises NotFound, naming the topics that exist."""
        check_topic(name)
        if name not in self._topics:
            there_are = ", ".join(sorted(self._topics)[:10]) or "none"
            raise NotFound("topic not found", topic=name, there_are=there_are, did_you_mean=nearest(name, self._topics))
        return self._topics[name]

    def check_new(self, topic: Topic) -> None:
        check_topic(topic.name)
        if topic.name in self._topics:
            wrong = "cannot create the topic, it already exists: 'tiered topic alter' changes its settings"
            raise InvalidRequest(wrong, topic=topic.name)
        if not 1 <= topic.partition_count <= PARTITIONS_MAX:
            wrong = f"cannot create the topic, the number of partitions is not in 1..{PARTITIONS_MAX}"
            raise InvalidRequest(wrong, topic=topic.name, partitions=topic.partition_count)

    def add(self, *topics: Topic) -> None:
        """Add all of these topics or none, durable on return. Raises as `check_new`."""
        for each in topics:
            self.check_new(each)
        with self._changing:
            self._write({**self._topics, **{each.name: each for each in topics}})

    def alter(self, name: str, properties: dict[str, str], *, is_tiered: bool = False) -> Topic:
        """Replace the topic's own settings, durable on return. `is_tiered` sets `was_tiered`."""
        with self._changing:
            known = self.get(name)
            altered = replace(known, properties=properties, was_tiered=known.was_tiered or is_tiered)
            self._write({**self._topics, name: altered})
        return altered

    def grown(self, name: str, count: int) -> Topic:
        """The topic with `count` partitions, more than it has. Raises InvalidRequest, NotFound."""
        known = self.get(name)
        facts = {"topic": name, "partitions": known.partition_count, "requested": count}
        if name in COORDINATOR_TOPICS:
            wrong = "cannot add partitions, groups and transactions find theirs by the number of partitions"
            raise InvalidRequest(wrong, **facts)
        if not known.partition_count < count <= PARTITIONS_MAX:
            wrong = f"cannot add partitions, the new total is not in {known.partition_count + 1}..{PARTITIONS_MAX}"
            raise InvalidRequest(wrong, **facts)
        return replace(known, partition_count=count)

    @contextmanager
    def growing(self, name: str, count: int) -> Iterator[Topic]:
        """Raise the number of partitions: durable within the block, visible after it. Raises as `grown`."""
        with self._changing:
            after = {**self._topics, name: self.grown(name, count)}
            self._save(after, self._deleted)
            try:
                yield after[name]
            finally:
                self._topics = after

    def deletable(self, name: str) -> Topic:
        """The topic to delete. Raises NotFound, and InvalidRequest for a topic of a coordinator."""
        if name in COORDINATOR_TOPICS:
            raise InvalidRequest("cannot delete the topic, it holds the state of groups or transactions", topic=name)
        return self.get(name)

    def delete(self, name: str, *, now_ms: int) -> DeletedTopic:
        """Mark the topic deleted, durable on return; its name is free. `deleted` lists it until `forget`."""
        with self._changing:
            deleted = DeletedTopic(topic=self.deletable(name), deleted_ms=now_ms)
            remaining = {each: topic for each, topic in self._topics.items() if each != name}
            self._write(remaining, (*self._deleted, deleted))
        return deleted

    def deleted(self) -> tuple[DeletedTopic, ...]:
        return self._deleted

    def forget(self, topic_id: str) -> None:
        with self._changing:
            self._write(self._topics, tuple(each for each in self._deleted if each.topic.topic_id != topic_id))

    def heal(self) -> None:
        """Replace copies that are behind or missing by the newest one."""
        with self._changing:
            behind = [at for at, version in enumerate(self._file.versions) if version != self._version]
            if behind and (self._topics or self._deleted):
                self._write_copies(self._topics, self._deleted, behind)

    def _read(self) -> _File:
        copies = self._file.read()
        if copies.damaged:
            raise copies.damaged[0]
        if copies.newest is None and copies.unavailable:
            raise copies.unavailable[-1]
        newest = copies.newest or _File(format_version=FORMAT_VERSION, topics=[])
        for topic in [*newest.topics, *(each.topic for each in newest.deleted)]:
            check_topic(topic.name)
            check_topic_id(topic.topic_id)
        return newest

    def _write(self, topics: dict[str, Topic], deleted: tuple[DeletedTopic, ...] | None = None) -> None:
        deleted = self._deleted if deleted is None else deleted
        self._save(topics, deleted)
        self._topics, self._deleted = topics, deleted

    def _save(self, topics: dict[str, Topic], deleted: tuple[DeletedTopic, ...]) -> None:
        self._version += 1 if all(version == self._version for version in self._file.versions) else 2
        errors = self._write_copies(topics, deleted)
        if errors and self._version not in self._file.versions:
            raise errors[-1]

    def _write_copies(
        self, topics: dict[str, Topic], deleted: Sequence[DeletedTopic], at: Iterable[int] | None = None
    ) -> list[LogError]:
        ordered = [topics[name] for name in sorted(topics)]
        body = _File(format_version=FORMAT_VERSION, topics=ordered, version=self._version, deleted=list(deleted))
        return self._file.write(msgspec.json.format(msgspec.json.encode(body), indent=1), self._version, at)


class _Versioned(Protocol):
    @property
    def format_version(self) -> int: ...
    @property
    def version(self) -> int: ...


T = TypeVar("T", bound=_Versioned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies(Generic[T]):
    newest: T | None
    damaged: list[Corrupt]
    unavailable: list[LogError]


class CopiedFile(Generic[T]):
    """A small JSON file with a copy in every log directory; the highest of `versions` is valid."""

    def __init__(
        self, places: Places, name: str, decoder: msgspec.json.Decoder[T], format_version: int, thing: str
    ) -> None:
        self._places = [(storage, join(root, name)) for storage, root in places]
        self._decoder, self._format_version, self._thing = decoder, format_version, thing
        self.versions: list[int | None] = [None] * len(self._places)

    def read(self) -> Copies[T]:
        found, damaged, unavailable = list[T](), list[Corrupt](), list[LogError]()
        for at, (storage, path) in enumerate(self._places):
            try:
                body = self._decoder.decode(storage.read(path))
            except NotFound:
                continue
            except msgspec.MsgspecError as error:
                damaged.append(Corrupt(f"cannot read the {self._thing}", path=path, cause=str(error)))
                continue
            except LogError as error:
                unavailable.append(error)
                continue
            if body.format_version != self._format_version:
                attempt = f"cannot read the {self._thing}, unknown format"
                damaged.append(Corrupt(attempt, path=path, format_version=body.format_version))
                continue
            self.versions[at] = body.version
            found.append(body)
        newest = max(found, key=lambda each: each.version, default=None)
        return Copies(newest=newest, damaged=damaged, unavailable=unavailable)

    def write(self, body: bytes, version: int, at: Iterable[int] | None = None) -> list[LogError]:
        """Write all copies, or those `at` these places; return the errors of copies left unchanged."""
        errors: list[LogError] = []
        for each in range(len(self._places)) if at is None else at:
            storage, path = self._places[each]
            self.versions[each] = None
            try:
                replace_file(storage, path, body)
            except (DiskFailed, AccessDenied, NotFound) as error:
                errors.append(error)
                if len(self._places) > 1:
                    _log.warning(f"cannot write a copy of the {self._thing}: path=%s error=%s", path, error)
            else:
                self.versions[each] = version
        return errors


class _File(msgspec.Struct):
    format_version: int
    topics: list[Topic]
    version: int = 0
    deleted: list[DeletedTopic] = []


# Built at import: building it in two threads in parallel ends the process (msgspec 0.22).
_FILE = msgspec.json.Decoder(_File)
