"""Fetch sessions (KIP-227): a client names its partitions once; later requests and responses name changes only.

| session id, epoch in the request | meaning | response |
|---|---|---|
| any, -1 | a fetch without a session; ends the named one | all partitions, id 0 |
| any, 0 | ends the named session and begins a new one | all partitions, the new id; 0 without a free slot |
| known, the next epoch | changed and forgotten partitions of the session | partitions with news, the same id |
| known, another epoch | | INVALID_FETCH_SESSION_EPOCH |
| known, topics by id instead of name, or reverse | | FETCH_SESSION_TOPIC_ID_ERROR |
| unknown, a positive epoch | | FETCH_SESSION_ID_NOT_FOUND: the client begins a new one |

News are records, an error, another high watermark or another log start offset. A partition whose records were sent
moves to the end, so that each gets its turn.

- At most SLOTS_MAX sessions (Kafka's ``max.incremental.fetch.session.cache.slots``). A new one takes the slot of the
  session that was not used for EVICTION_MS, else of a smaller session that is older. Otherwise it gets the id 0.
- At most PARTITIONS_MAX partitions in all sessions, which Kafka does not limit. A new session beyond it gets the id 0,
  one that grows beyond it ends.
- A name that no topic can have is in no session: a fetch with one has the id 0, and ends a session that it continues.

Source: kafka `FetchSession`, `FetchSessionCacheShard`, `FetchManager`.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from uuid import UUID

from local.names import TOPIC_LENGTH_MAX
from tiered.serve.messages.base import Error
from tiered.serve.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

SLOTS_MAX = 1000
EVICTION_MS = 120_000.0
PARTITIONS_MAX = 200_000  # some 400 bytes each, and up to 300 of a name
NO_SESSION = 0
_FINAL_EPOCH, _FIRST_EPOCH = -1, 0
_ID_MAX = _EPOCH_MAX = 2**31 - 1
Place = tuple[str | UUID | None, int]  # a topic as the client names it, and a partition


@dataclass(frozen=True, slots=True)
class Requested:
    """One partition of a fetch; `topic` as the client names it."""

    topic: str | UUID | None
    fetch: FetchPartition

    @property
    def place(self) -> Place:
        return self.topic, self.fetch.partition


@dataclass(slots=True)
class _Cached:
    """A partition of a session, with the offsets that its client knows."""

    requested: Requested
    high_watermark: int = -1
    log_start_offset: int = -1

    def has_news(self, data: PartitionData) -> bool:
        """Whether the response must have `data`; the client knows its offsets afterwards."""
        if data.error_code is Error.NONE and data.high_watermark < 0:
            return False  # it was not read yet, or the response had no room for it
        known = self.high_watermark, self.log_start_offset
        has_error = data.error_code is not Error.NONE
        # After an error the next response has the partition again, whatever its offsets.
        self.high_watermark = -1 if has_error else data.high_watermark
        self.log_start_offset = data.log_start_offset
        return bool(data.records) or has_error or known != (data.high_watermark, data.log_start_offset)


@dataclass(slots=True)
class _Session:
    session_id: int
    uses_topic_ids: bool
    created_ms: float
    used_ms: float
    partitions: dict[Place, _Cached]
    epoch: int = 1  # of the next request

    def update(self, changed: Iterable[Requested], forgotten: Iterable[Place]) -> None:
        for each in changed:
            if (known := self.partitions.get(each.place)) is not None:
                known.requested = each
            else:
                self.partitions[each.place] = _Cached(each)
        for place in forgotten:
            self.partitions.pop(place, None)


@dataclass(slots=True)
class Fetching:
    """One fetch: the partitions to read, and its response. Without a `session` the response has all of them."""

    requested: Sequence[Requested]
    session: _Session | None = None
    epoch: int = 0  # of the session after this request
    begin: Callable[[Sequence[tuple[Requested, PartitionData]]], int] | None = None

    def response(self, found: Sequence[tuple[Requested, PartitionData]]) -> FetchResponse:
        """The response with the data of each requested partition."""
        session = self.session
        if session is None:
            session_id = NO_SESSION if self.begin is None else self.begin(found)
            return FetchResponse(session_id=session_id, responses=_by_topic(found))
        if session.epoch != self.epoch:  # another request of this session overtook this one
            return FetchResponse(error_code=Error.INVALID_FETCH_SESSION_EPOCH, session_id=session.session_id)
        news = []
        for requested, data in found:
            cached = session.partitions[requested.place]
            if cached.has_news(data):
                news.append((requested, data))
                if data.records:
                    session.partitions[requested.place] = session.partitions.pop(requested.place)
        return FetchResponse(session_id=session.session_id, responses=_by_topic(news))


@dataclass(slots=True)
class FetchSessions:
    """The sessions of one server, in the order of their last use. Belongs to one event loop.

    `draw(first, last)` returns a random number of that range.
    """

    slots_max: int = SLOTS_MAX
    partitions_max: int = PARTITIONS_MAX
    draw: Callable[[int, int], int] = random.randint
    evicted: int = 0
    partition_count: int = 0
    _sessions: OrderedDict[int, _Session] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest, *, uses_topic_ids: bool, now_ms: float) -> Fetching | Error:
        """The partitions that the request means, or the error of its session."""
        requested = list(_requested(request.topics))
        if request.session_epoch in (_FINAL_EPOCH, _FIRST_EPOCH):
            self._remove(request.session_id)
            if request.session_epoch == _FINAL_EPOCH or not _are_possible(request.topics):
                return Fetching(requested)
            return Fetching(requested, begin=lambda found: self._begin(found, uses_topic_ids, now_ms))
        session = self._sessions.get(request.session_id)
        if session is None:
            return Error.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return Error.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return Error.FETCH_SESSION_TOPIC_ID_ERROR
        if not _are_possible(request.topics):
            self._remove(session.session_id)
            return Error.FETCH_SESSION_ID_NOT_FOUND
        before = len(session.partitions)
        session.update(requested, _forgotten(request.forgotten_topics_data))
        self.partition_count += len(session.partitions) - before
        if not session.partitions:
            self._remove(session.session_id)
            return Fetching(requested)
        if self.partition_count > self.partitions_max:
            self._remove(session.session_id)
            return Error.FETCH_SESSION_ID_NOT_FOUND
        session.used_ms = now_ms
        self._sessions.move_to_end(session.session_id)
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        partitions = [each.requested for each in session.partitions.values()]
        return Fetching(partitions, session, session.epoch)

    def _begin(self, found: Sequence[tuple[Requested, PartitionData]], uses_topic_ids: bool, now_ms: float) -> int:
        """The id of a new session with these partitions; NO_SESSION without room for it."""
        partitions: dict[Place, _Cached] = {}
        for requested, data in found:
            cached = partitions[requested.place] = _Cached(requested)
            cached.has_news(data)
        if not self._has_slot(len(partitions), now_ms) or self.partition_count + len(partitions) > self.partitions_max:
            return NO_SESSION
        while (session_id := self.draw(1, _ID_MAX)) in self._sessions:
            pass
        self._sessions[session_id] = _Session(session_id, uses_topic_ids, now_ms, now_ms, partitions)
        self.partition_count += len(partitions)
        return session_id

    def _has_slot(self, size: int, now_ms: float) -> bool:
        """Whether a slot is free for a session of that many partitions; another session may be evicted for it."""
        if len(self._sessions) < self.slots_max:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms > EVICTION_MS:
            evicted = oldest
        else:
            old = [each for each in self._sessions.values() if each.used_ms - each.created_ms > EVICTION_MS]
            smaller = [each for each in old if len(each.partitions) < size]
            if not smaller:
                return False
            evicted = min(smaller, key=lambda each: (len(each.partitions), each.session_id))
        self._remove(evicted.session_id)
        self.evicted += 1
        return True

    def _remove(self, session_id: int) -> None:
        removed = self._sessions.pop(session_id, None)
        if removed is not None:
            self.partition_count -= len(removed.partitions)


def _are_possible(topics: Iterable[FetchTopic]) -> bool:
    """Whether topics may have these names."""
    return all(each.topic is None or (len(each.topic) <= TOPIC_LENGTH_MAX and each.topic.isascii()) for each in topics)


def _requested(topics: Iterable[FetchTopic]) -> Iterator[Requested]:
    for topic in topics:
        name = topic.topic if topic.topic is not None else topic.topic_id
        for partition in topic.partitions:
            yield Requested(name, partition)


def _forgotten(topics: Iterable[ForgottenTopic]) -> Iterator[Place]:
    for topic in topics:
        name = topic.topic if topic.topic is not None else topic.topic_id
        for partition in topic.partitions:
            yield name, partition


def _by_topic(found: Iterable[tuple[Requested, PartitionData]]) -> tuple[FetchableTopicResponse, ...]:
    """Neighbours of one topic under one name, in their order. Source: kafka `FetchResponse.toMessage`."""
    return tuple(
        FetchableTopicResponse(
            topic=name if isinstance(name, str) else None,
            topic_id=name if isinstance(name, UUID) else None,
            partitions=tuple(data for _, data in of_topic),
        )
        for name, of_topic in groupby(found, key=lambda each: each[0].topic)
    )
