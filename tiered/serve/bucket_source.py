"""The topics of a bucket as a `RecordSource`: a read-only replica that keeps nothing but caches.

- A manifest is as new as `refresh_s` seconds. The first read after that requests the next one; concurrent reads use the
  known one. While the store is unavailable the known manifests stay in use.
- The topics are listed every `list_s`: a listing costs a request for each topic.
- Watched partitions are refreshed by one thread every `refresh_s`.
- A consumer that reads on finds its open stream with its read-ahead (`tiered.serve.open_streams`).
- After the last batch a cleaned log may end in offsets without records. A read there returns one empty batch for them,
  as Kafka's cleaner writes it, so that a consumer reaches the end.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from local.errors import LogError, NotFound, Unavailable
from local.log.leader_epochs import LeaderEpochs
from local.names import TopicPartition, encode_uuid
from local.records.isolation import Isolation
from remote.manifest.manifest import Manifest
from tiered.read.bucket_reader import RemoteLog
from tiered.read.partition_source import out_of_range
from tiered.serve.open_streams import OpenStreams, Stream, gap
from tiered.serve.record_source import Bounds, Leader, ReadBatches, ServedTopic, uuid_of
from tiered.stores.parallel import side_by_side

if TYPE_CHECKING:
    from local.index.txn_index import AbortedTransaction
    from local.records.offset_spec import FoundOffset

Notify = Callable[[TopicPartition], None]
REFRESH_S = 5.0
LIST_S = 60.0
REFRESHES_AT_ONCE = 8
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _State:
    """What is known of one partition. `lock` serializes refreshes."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    checked_s: float | None = None  # clock of the last request for a manifest
    manifest: Manifest | None = None
    bounds: Bounds | None = None  # of `manifest`
    epochs: LeaderEpochs | None = None  # of `manifest`


class BucketSource:
    """Thread safe. `clock` returns seconds that never fall. Close it before the bucket, which the caller closes."""

    def __init__(
        self, bucket: RemoteLog, clock: Callable[[], float], *, refresh_s: float = REFRESH_S, list_s: float = LIST_S
    ) -> None:
        self._bucket, self._clock, self._refresh_s, self._list_s = bucket, clock, refresh_s, list_s
        self._readers = {each: bucket.reader(each) for each in Isolation}
        self._lock = threading.Lock()
        self._states: dict[TopicPartition, _State] = {}
        self._topics: Mapping[str, ServedTopic] = {}
        self._listed_s: float | None = None
        self._listing = threading.Lock()
        self._streams = OpenStreams()
        self._watches: dict[object, tuple[Collection[TopicPartition], Notify]] = {}
        self._is_closed = threading.Event()
        self._refresher: threading.Thread | None = None

    @property
    def cluster_id(self) -> str:
        return encode_uuid(uuid.uuid5(uuid.NAMESPACE_URL, self._bucket.store.url))

    def topics(self) -> Mapping[str, ServedTopic]:
        with self._listing:
            now_s = self._clock()
            if self._listed_s is None or now_s - self._listed_s >= self._list_s:
                try:
                    self._bucket.refresh_names()
                    self._topics = _served(self._bucket)
                except Unavailable:
                    if self._listed_s is None:
                        raise
                self._listed_s = now_s
            return self._topics

    def leaders(self, topic: ServedTopic) -> Mapping[int, Leader]:
        """No leader epochs: replicas of one bucket know manifests of different ages, so they must not fence clients."""
        return {}

    def properties(self, topic: str) -> Mapping[str, str]:
        """The topic's own settings. Raises NotFound."""
        served = self.topics().get(topic)
        if served is None:
            raise NotFound(f"the topic '{topic}' does not exist")
        manifest = self._fresh(TopicPartition(topic, served.partitions[0])).manifest
        return {} if manifest is None else manifest.properties

    def bounds(self, partition: TopicPartition) -> Bounds:
        state = self._fresh(partition)
        with state.lock:
            if state.bounds is None:
                state.bounds = self._bounds_of(partition, state)
            return state.bounds

    def read(self, partition: TopicPartition, offset: int, *, isolation: Isolation, bytes_max: int) -> ReadBatches:
        bounds = self.bounds(partition)
        is_committed = isolation is Isolation.READ_COMMITTED
        end = bounds.last_stable_offset if is_committed else bounds.high_watermark
        if not bounds.log_start_offset <= offset <= bounds.high_watermark:
            raise out_of_range(partition, offset, bounds.log_start_offset, bounds.high_watermark)
        none: list[AbortedTransaction] | None = [] if is_committed else None
        if offset >= end:
            return ReadBatches(bounds=bounds, aborted=none)
        reader = self._readers[isolation]
        stream = self._streams.take(partition, isolation, offset)
        if stream is None:
            stream = Stream(reader.batches(partition, offset), offset)
        try:
            runs = stream.take(bytes_max)
        except BaseException:
            stream.close()
            raise
        if not runs:
            stream.close()
            end = min(end, reader.next_offset(partition))  # a newer manifest may end earlier: no gap is known there
            return ReadBatches(bounds=bounds, runs=gap(offset, end) if offset < end else (), aborted=none)
        self._streams.put(partition, isolation, stream)
        aborted = reader.aborted_transactions(partition, offset, stream.offset) if is_committed else None
        return ReadBatches(bounds=bounds, runs=runs, aborted=aborted, is_remote=True)

    def topics_now(self) -> Mapping[str, ServedTopic] | None:
        listed_s = self._listed_s
        return self._topics if listed_s is not None and self._clock() - listed_s < self._list_s else None

    def read_now(
        self, partition: TopicPartition, offset: int, *, isolation: Isolation, bytes_max: int
    ) -> ReadBatches | None:
        """A read of bytes that the stream of a consumer has read ahead, or of the end. None: use `read`.

        Under READ_COMMITTED only the end is read: aborted transactions may need a request.
        """
        state, is_committed = self._states.get(partition), isolation is Isolation.READ_COMMITTED
        bounds = state.bounds if state is not None else None
        if state is None or bounds is None or not self._is_new(state):
            return None
        if offset == (bounds.last_stable_offset if is_committed else bounds.high_watermark):
            return ReadBatches(bounds=bounds, aborted=[] if is_committed else None)
        if is_committed or not bounds.log_start_offset <= offset < bounds.high_watermark:
            return None
        stream = self._streams.take(partition, isolation, offset)
        if stream is None:
            return None
        runs = stream.take_now(bytes_max)
        self._streams.put(partition, isolation, stream)
        return None if runs is None else ReadBatches(bounds=bounds, runs=runs, is_remote=True)

    def _is_new(self, state: _State) -> bool:
        return state.checked_s is not None and self._clock() - state.checked_s < self._refresh_s

    def find_offset(self, partition: TopicPartition, spec: int, isolation: Isolation) -> FoundOffset | None:
        self._fresh(partition)
        return self._bucket.list_offsets({partition: spec}, isolation=isolation)[partition]

    def epochs(self, partition: TopicPartition) -> Sequence[tuple[int, int]]:
        state = self._fresh(partition)
        with state.lock:
            return _epochs(state).entries

    @contextmanager
    def watch(self, partitions: Collection[TopicPartition], notify: Notify) -> Iterator[None]:
        key = object()
        with self._lock:
            self._watches[key] = partitions, notify
            if self._refresher is None and not self._is_closed.is_set():
                self._refresher = threading.Thread(target=self._refresh_watched, name="tiered-refresh", daemon=True)
                self._refresher.start()
        try:
            yield
        finally:
            with self._lock:
                self._watches.pop(key, None)

    def refresh(self, partitions: Collection[TopicPartition]) -> None:
        """Request the newest manifests now, and notify the watches of those that changed."""
        flags = side_by_side(self._has_news, list(partitions), threads=REFRESHES_AT_ONCE, name="tiered-refresh")
        changed = {each for each, has_news in zip(partitions, flags, strict=True) if has_news}
        with self._lock:
            calls = [(notify, changed.intersection(watched)) for watched, notify in self._watches.values()]
        for notify, names in calls:
            for name in names:
                notify(name)

    def close(self) -> None:
        self._is_closed.set()
        self._streams.close()

    def _refresh_watched(self) -> None:
        while not self._is_closed.wait(self._refresh_s):
            with self._lock:
                watched = {name for names, _ in self._watches.values() for name in names}
            self.refresh(sorted(watched))

    def _has_news(self, partition: TopicPartition) -> bool:
        before = self._state(partition).manifest
        try:
            return self._fresh(partition, is_forced=True).manifest is not before
        except LogError as error:
            _log.debug("cannot refresh a partition: partition=%s cause=%s", partition, error)
            return True  # the next read reports it

    def _state(self, partition: TopicPartition) -> _State:
        with self._lock:
            return self._states.setdefault(partition, _State())

    def _fresh(self, partition: TopicPartition, *, is_forced: bool = False) -> _State:
        """The partition with a manifest that is at most `refresh_s` old. Raises NotFound, Unavailable."""
        state, now_s = self._state(partition), self._clock()
        is_old = state.checked_s is None or now_s - state.checked_s >= self._refresh_s
        if state.manifest is not None and not (is_old or is_forced):
            return state
        if not state.lock.acquire(blocking=state.manifest is None or is_forced):
            return state  # another thread requests the newer one
        try:
            known = state.manifest
            is_new = known is not None and state.checked_s is not None and now_s - state.checked_s < self._refresh_s
            if is_new and not is_forced:
                return state  # another thread requested it while this one waited
            try:
                refresh = self._bucket.manifest if known is None else self._bucket.refresh_partition
                found = refresh(partition)
            except Unavailable:
                if known is None:
                    raise
                found = known
            except NotFound:
                state.manifest = state.bounds = state.epochs = None
                raise
            state.checked_s = now_s
            if found is not known:
                state.manifest, state.bounds, state.epochs = found, None, None
        finally:
            state.lock.release()
        return state

    def _bounds_of(self, partition: TopicPartition, state: _State) -> Bounds:
        manifest = state.manifest
        if manifest is None:
            raise NotFound("partition not found in the bucket", partition=partition)
        end = manifest.next_offset
        stable = self._readers[Isolation.READ_COMMITTED].next_offset(partition)
        return Bounds(
            log_start_offset=manifest.log_start_offset,
            high_watermark=end,
            last_stable_offset=max(min(stable, end), manifest.log_start_offset),
            leader_epoch=_epochs(state).latest,
        )


def _served(bucket: RemoteLog) -> dict[str, ServedTopic]:
    """The topics by name. Two topics of one name are left out with a warning: a name must mean one topic."""
    numbers: dict[str, dict[str, list[int]]] = {}
    for name in bucket.living_partitions():
        numbers.setdefault(name.topic, {}).setdefault(name.topic_id, []).append(name.partition)
    found = {}
    for topic, by_id in numbers.items():
        if len(by_id) > 1:
            _log.warning("several topics in the bucket have this name, none is served: topic=%s", topic)
            continue
        ((topic_id, partitions),) = by_id.items()
        found[topic] = ServedTopic(name=topic, topic_id=uuid_of(topic_id), partitions=tuple(sorted(partitions)))
    return found


def _epochs(state: _State) -> LeaderEpochs:
    """The leader epochs of the manifest's entries. The caller holds the lock."""
    if state.epochs is None:
        found = LeaderEpochs()
        for part in state.manifest.parts if state.manifest is not None else ():
            for epoch, start in part.epochs:
                if epoch >= 0 and epoch != found.latest:
                    found = found.assign(epoch, start)
        state.epochs = found
    return state.epochs
