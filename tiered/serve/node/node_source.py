"""The topics of a running node as a `RecordSource`: both tiers, as new as the last append.

| offset | read from |
|---|---|
| from the local log start offset on | the local log; also while the bucket is unavailable |
| the same, in one segment and in the page cache | its file, in the event loop (`tiered.serve.node.file_reads`) |
| below it | the bucket, by an open stream that ends at the local log start offset |

- The high watermark is the log end offset, as in Kafka with one replica: a record is readable once it is in the log.
  `acks=all` waits for the disk, reads do not.
- A read takes its data first and the bounds after it, so the high watermark is never below the data. The end for an
  empty batch (a log that ends in removed records) is taken before the data.
- A partition whose writer role another node took over raises Fenced. A diverged partition, or one whose bucket is lost,
  raises that error. An offline directory raises DiskFailed. The other partitions are served.
- `watch` is called back by the append, under the lock of the log: no thread polls.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from local import kernels
from local.errors import Conflict, LogError, OffsetOutOfRange
from local.format.batch_header import TRANSACTIONAL
from local.index.txn_index import AbortedTransaction
from local.log import Log
from local.log.leader_epochs import LeaderEpochs
from local.names import TopicPartition
from local.records.isolation import Isolation
from local.records.offset_spec import FoundOffset, OffsetSpec
from tiered.manager.manager import LogManager
from tiered.partition.partition import Partition
from tiered.read.partition_source import PartitionSource, out_of_range
from tiered.serve.handlers.service import BROKER_ID
from tiered.serve.node.file_reads import FileReads
from tiered.serve.open_streams import OpenStreams, Stream, gap
from tiered.serve.record_source import Bounds, Leader, ReadBatches, ServedTopic, uuid_of

if TYPE_CHECKING:
    from tiered.node.topic_registry import Topic

Notify = Callable[[TopicPartition], None]
_log = logging.getLogger(__name__)


class NodeSource:
    """Thread safe. Close it before the manager, which the caller closes. Ids are those of ``meta.properties``."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._table = manager.partitions
        self._readers = {each: manager.reader(each) for each in Isolation}
        self._streams = OpenStreams()
        self._files = FileReads()
        self._watchers = _Watchers()
        identity = manager.directories.online[0].identity  # None: read-only, and no manager has written there yet
        node_id = identity.node_id if identity is not None else ""
        self.cluster_id = identity.cluster_id if identity is not None else ""
        self.broker_id = int(node_id) if node_id.isdigit() else BROKER_ID
        self._listed: list[Topic] = []
        self._topics: Mapping[str, ServedTopic] = {}

    def topics(self) -> Mapping[str, ServedTopic]:
        listed = self._manager.topics.all()
        if listed != self._listed:
            self._topics = {each.name: _served(each) for each in listed}
            self._listed = listed
        return self._topics

    def leaders(self, topic: ServedTopic) -> Mapping[int, Leader]:
        return {number: self._leader(TopicPartition(topic.name, number)) for number in topic.partitions}

    def bounds(self, partition: TopicPartition) -> Bounds:
        held = self._held(partition)
        return _bounds(held.source(), held.log)

    def read(self, partition: TopicPartition, offset: int, *, isolation: Isolation, bytes_max: int) -> ReadBatches:
        held = self._held(partition)
        source, log = held.source(), held.log
        before, cuts = _bounds(source, log), log.cuts
        is_committed = isolation is Isolation.READ_COMMITTED
        end = before.last_stable_offset if is_committed else before.high_watermark
        if not before.log_start_offset <= offset <= before.high_watermark:
            raise out_of_range(partition, offset, before.log_start_offset, before.high_watermark)
        if offset >= end:
            return ReadBatches(bounds=before, aborted=[] if is_committed else None)
        runs = self._runs(source, log, offset, end, isolation, bytes_max)
        if not runs and cuts == log.cuts:
            runs = gap(offset, end)
        aborted = self._aborted(partition, offset, runs) if is_committed else None
        bounds = _bounds(source, log)
        if aborted is not None and bounds.log_start_offset > offset:
            # The records expired during the read: the entries of their aborted transactions may be deleted.
            raise out_of_range(partition, offset, bounds.log_start_offset, bounds.high_watermark)
        is_remote = offset < log.local_log_start_offset
        return ReadBatches(bounds=bounds, runs=runs, aborted=aborted, is_remote=is_remote)

    def topics_now(self) -> Mapping[str, ServedTopic]:
        return self.topics()  # in memory

    def read_now(
        self, partition: TopicPartition, offset: int, *, isolation: Isolation, bytes_max: int
    ) -> ReadBatches | None:
        """A read of the local log at once (`tiered.serve.node.file_reads`). None, also for every error: use `read`.

        Under READ_COMMITTED only the end of the log is read: aborted transactions need the headers of all batches.
        """
        try:
            held = self._held(partition)
            source, log, cuts = held.source(), held.log, held.log.cuts
        except LogError:
            return None
        if not source.has_local_records() or offset < log.local_log_start_offset:
            return None
        view = log.view  # before the bounds, which are never older
        before, is_committed = _bounds(source, log), isolation is Isolation.READ_COMMITTED
        if not before.log_start_offset <= offset <= before.high_watermark:
            return None
        if offset == (before.last_stable_offset if is_committed else before.high_watermark):
            return ReadBatches(bounds=before, aborted=[] if is_committed else None)
        run = self._files.read(log, offset, bytes_max) if not is_committed else None
        if run is None or log.cuts != cuts:
            return None
        # Without an append or another change since, the bounds are those of the data.
        return ReadBatches(bounds=before if log.view is view else _bounds(source, log), runs=[run])

    def find_offset(self, partition: TopicPartition, spec: int, isolation: Isolation) -> FoundOffset | None:
        held = self._held(partition)
        if spec == OffsetSpec.LATEST:
            bounds = _bounds(held.source(), held.log)
            is_committed = isolation is Isolation.READ_COMMITTED
            offset = bounds.last_stable_offset if is_committed else bounds.high_watermark
            return FoundOffset(offset, None, bounds.leader_epoch)
        found = self._manager.list_offsets({partition: spec}, isolation=isolation)[partition]
        if (
            found is not None
            and found.leader_epoch is None
            and spec in (OffsetSpec.EARLIEST, OffsetSpec.EARLIEST_LOCAL)
        ):
            return found._replace(leader_epoch=_epochs(held.log).epoch_at(found.offset))
        return found

    def epochs(self, partition: TopicPartition) -> Sequence[tuple[int, int]]:
        """The epochs of the records, and the current one at the log end if no record has it yet, as in Kafka.

        Source: kafka `Partition.makeLeader`.
        """
        return _epochs(self._held(partition).log).entries

    @contextmanager
    def watch(self, partitions: Collection[TopicPartition], notify: Notify) -> Iterator[None]:
        names = set(partitions)
        for each in names:
            if (log := self._log(each)) is not None:
                self._watchers.add(each, log, notify)
        try:
            yield
        finally:
            for each in names:
                self._watchers.remove(each, notify)

    def close(self) -> None:
        self._streams.close()

    def _held(self, name: TopicPartition) -> Partition:
        """The partition, to read it. Raises NotFound, DiskFailed, Fenced, Diverged, RemoteLost."""
        held = self._table.find(name)
        if isinstance(held.tier.error, Conflict):
            raise held.tier.error
        held.check_not_fenced()
        return held

    def _log(self, name: TopicPartition) -> Log | None:
        try:
            return self._table.find(name).log
        except LogError:
            return None

    def _leader(self, name: TopicPartition) -> Leader:
        try:
            return Leader(epoch=self._held(name).log.leader_epoch)
        except LogError as error:
            return Leader(error=error, is_offline=not self._manager.directories.is_online(name))

    def _runs(
        self, source: PartitionSource, log: Log, offset: int, end: int, isolation: Isolation, bytes_max: int
    ) -> Sequence[memoryview]:
        """Whole batches from `offset` on; none if no record is in ``[offset, end)``."""
        at = offset
        while at < end:
            local_start = log.local_log_start_offset
            if at >= local_start:
                try:
                    data = log.read(at, bytes_max, isolation=isolation)
                except OffsetOutOfRange:
                    if at >= log.local_log_start_offset:
                        raise
                    continue  # the disk dropped or expired the records: they are in the bucket (I2) or expired
                return [data] if data else []
            stop = min(local_start, end)
            stream = self._streams.take(source.partition, isolation, at)
            if stream is None:
                stream = Stream(self._readers[isolation].batches(source.partition, at, stop), at)
            try:
                runs = stream.take(bytes_max)
            except BaseException:
                stream.close()
                raise
            if runs:
                self._streams.put(source.partition, isolation, stream)
                return runs
            stream.close()
            at = stop
        return []

    def _aborted(
        self, partition: TopicPartition, offset: int, runs: Sequence[memoryview]
    ) -> Sequence[AbortedTransaction]:
        tables = [kernels.scan_batches(run, verify=False) for run in runs]
        if not any((each.attributes & TRANSACTIONAL).any() for each in tables):
            return []
        next_offset = int(tables[-1].last_offsets[-1]) + 1
        return self._readers[Isolation.READ_COMMITTED].aborted_transactions(partition, offset, next_offset)


class _Watchers:
    """The callbacks by partition. Appends read the table without a lock: each change replaces an entry whole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[TopicPartition, tuple[Notify, ...]] = {}

    def add(self, partition: TopicPartition, log: Log, notify: Notify) -> None:
        with self._lock:
            self._of[partition] = (*self._of.get(partition, ()), notify)
        log.on_publish = partial(self._call, partition)  # a topic that is created again has another log

    def remove(self, partition: TopicPartition, notify: Notify) -> None:
        with self._lock:
            remaining = tuple(each for each in self._of.get(partition, ()) if each is not notify)
            if remaining:
                self._of[partition] = remaining
            else:
                self._of.pop(partition, None)

    def _call(self, partition: TopicPartition) -> None:
        for notify in self._of.get(partition, ()):
            try:
                notify(partition)
            except Exception:  # noqa: BLE001 - it must not fail the append
                _log.exception("cannot wake a reader: partition=%s", partition)


def _served(topic: Topic) -> ServedTopic:
    numbers = tuple(range(topic.partition_count))
    return ServedTopic(name=topic.name, topic_id=uuid_of(topic.topic_id), partitions=numbers)


def _epochs(log: Log) -> LeaderEpochs:
    return log.epochs.assign(log.leader_epoch, log.next_offset)


def _bounds(source: PartitionSource, log: Log) -> Bounds:
    """The bounds as known now. A request is sent only for an empty disk. Raises Unavailable."""
    manifest = source.known_manifest() if source.has_local_records() else source.manifest()
    view = log.view
    start = view.log_start_offset if manifest is None else manifest.log_start_offset
    end = max(view.next_offset, start if manifest is None else manifest.next_offset)
    return Bounds(
        log_start_offset=start,
        high_watermark=end,
        last_stable_offset=max(min(view.last_stable_offset, end), start),
        leader_epoch=log.leader_epoch,
    )
