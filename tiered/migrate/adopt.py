"""A sidecar that copies the closed segments of a running Kafka broker to the bucket.

The sidecar opens the broker's files only for reading. The broker may roll, delete and compact at any time: an open file
stays readable through its inode. One pass over a partition:

1. The sidecar lists the directory, opens the closed segments that the bucket lacks, and lists the directory again. If
   the listings differ in files, sizes or topic id, the broker is changing them: the next pass tries again.
2. A segment is due when it ends at or below all of three offsets:
   - the high watermark (``replication-offset-checkpoint``), because records above it may be truncated;
   - the newest producer snapshot, because a broker rolls first and then writes the snapshot of the segment's end;
   - the first offset of the oldest transaction that this snapshot calls open.
3. `remote.upload.segment_upload` and the commit protocol copy it: every batch is checked on the way, and manifests are
   created only if absent. One sidecar writes a partition. A fenced sidecar does not take over again by itself.

In a **compacted** topic the sidecar copies at most `WORK_BYTES` of the due segments to a work directory, cleans them
there (tombstones stay) and uploads the result in one commit: each entry is as if the broker's cleaner had never read
older records. A work directory may be lost at any time.

Leader epochs are Kafka's (``leader-epoch-checkpoint``). If bucket and broker have different epochs for the same offset,
the log was truncated and rewritten, as after an unclean leader election: the sidecar raises Conflict with the first
such offset and copies nothing more. Until the new leader writes records, the high watermark is below the bucket's end
(`AdoptedPartition.ahead`) and nothing is due. Manifests have writer epochs far above Kafka's (`EPOCHS_APART`), so that
a later takeover appends in a later epoch.

The sidecar repeats DeleteRecords of the broker: it raises the bucket's log start offset to the broker's
(`policies.tier_relation`). Segments that the broker's retention deletes stay in the bucket, on purpose. Segments that
the broker deleted before they were copied are a gap: it is reported once and skipped.

| a crash after | leaves |
|---|---|
| some uploads | objects that no manifest names; the next pass uploads the segments again under other names |
| the commit | entries; the next pass continues behind them |
"""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import accumulate, pairwise, takewhile

from local import names
from local.cleaner.cleaner import clean
from local.errors import Conflict, LogError, NotFound
from local.index.index_files import slices_of
from local.log import Log, checkpoints
from local.log.checkpoints import encode_epochs
from local.log.leader_epochs import LeaderEpochs
from local.names import LOG, OFFSET_INDEX, PRODUCER_SNAPSHOT, TIME_INDEX, TXN_INDEX, TopicPartition, segment_file
from local.storage import Storage, join
from policies.retention import collectable_upto
from policies.tier_relation import BrokerRetention, is_deletion
from remote.gc.delayed_delete import collect_manifests
from remote.keys import partition_prefix
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import add_segments, expire_segments, set_properties
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from remote.upload.segment_upload import SegmentToCopy, copy_segment
from tiered.config.clock_guard import counted_ms
from tiered.config.config import log_settings, resolve_rules
from tiered.jobs.bucket_copying import EPOCHS_APART
from tiered.migrate.broker import (
    ClosedSegment,
    adopted_partitions,
    copy_batches,
    log_sizes,
    log_start_facts,
    open_closed,
    stable_offset,
)
from tiered.node.writer_ids import ADOPT, COPY, DELETION, signed_for
from tiered.observe.metrics import Form, Sample, exposition
from tiered.partition.partition import coverage
from tiered.partition.segment_inspection import SegmentInspector, segment_to_copy
from tiered.stores.configured_store import check_writers
from tiered.stores.object_encoding import encoding_of

IN_DOUBT_BYTES = 256 << 20  # of a compacted partition: more than this is copied uncleaned if no segment is settled
WORK_BYTES = 4 << 30  # of a compacted partition in one pass: the work directory needs this much room
HIGH_WATERMARKS = "replication-offset-checkpoint"
OnCopied = Callable[[TopicPartition, int, int, int], None]
_GAUGES = {
    "tiered_unreplicated_bytes": "at_risk_bytes",
    "tiered_remote_copy_lag_bytes": "lag_bytes",
    "tiered_remote_copy_lag_segments": "lag_segments",
    "tiered_adopt_ahead_offsets": "ahead",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedPartition:
    """One partition after a pass. Offset ranges are half open. With a `problem` the pass stopped at these figures.

    `lag_bytes` are closed and not in the bucket yet. `at_risk_bytes` are only on the broker's disk, including the
    active segment. The broker deleted the ranges in `lost` before they were copied. `lag_since_ms` is the last write to
    the oldest waiting segment. `ahead` counts the bucket's offsets at or above the broker's high watermark, after an
    unclean election or while its disk catches up. A figure is None if the bucket's end is not known.
    """

    partition: TopicPartition
    copied: int = 0
    copied_bytes: int = 0
    tiered_upto: int | None = 0
    log_end: int | None = None
    lag_segments: int | None = 0
    lag_bytes: int | None = 0
    at_risk_bytes: int | None = 0
    lost: tuple[tuple[int, int], ...] = ()
    lag_since_ms: int | None = None
    ahead: int | None = 0
    problem: LogError | None = None


class AdoptMetrics:
    """Metrics of the passes; an unknown figure keeps its last value. `text` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[TopicPartition, AdoptedPartition] = {}
        self._troubles = Counter[str]()
        self._copied, self._copied_bytes, self._lost = Counter[str](), Counter[str](), Counter[str]()
        self._rounds = self._failures = self._round_ms = 0
        self._ended_at = counted_ms()

    @property
    def is_well(self) -> bool:
        with self._lock:
            return not self._troubles

    def note(self, done: Sequence[AdoptedPartition], now_ms: int) -> None:
        with self._lock:
            self._rounds, self._round_ms, self._ended_at = self._rounds + 1, now_ms, counted_ms()
            self._troubles = Counter(type(each.problem).__name__ for each in done if each.problem is not None)
            self._failures += bool(self._troubles)
            there = {each.partition for each in done}
            self._known = {name: each for name, each in self._known.items() if name in there}
            for each in done:
                if each.at_risk_bytes is not None:
                    self._known[each.partition] = each
                topic = each.partition.topic
                self._copied[topic] += each.copied
                self._copied_bytes[topic] += each.copied_bytes
                self._lost[topic] += sum(end - start for start, end in each.lost)

    def text(self, now_ms: int, form: Form = Form.PROMETHEUS) -> str:
        with self._lock:
            return exposition(list(self._samples(now_ms)), form)

    def _samples(self, now_ms: int) -> Iterator[Sample]:
        by_topic: dict[str, list[AdoptedPartition]] = {}
        for each in self._known.values():
            by_topic.setdefault(each.partition.topic, []).append(each)
        for topic, some in sorted(by_topic.items()):
            labels = (("topic", topic),)
            for metric, field in _GAUGES.items():
                yield Sample(metric, sum(getattr(each, field) for each in some), labels)
            since = min((each.lag_since_ms for each in some if each.lag_since_ms is not None), default=now_ms)
            yield Sample("tiered_remote_copy_lag_seconds", max(0, now_ms - since) / 1000, labels)
            yield Sample("tiered_remote_copy_bytes_total", self._copied_bytes[topic], labels)
            yield Sample("tiered_adopt_lost_offsets_total", self._lost[topic], labels)
        for kind in sorted({"Conflict", "Corrupt", "Fenced", "Unavailable", *self._troubles}):
            yield Sample("tiered_partition_problems", self._troubles[kind], (("class", kind),))
        passing = self._troubles["Unavailable"] + self._troubles["Corrupt"]  # other alerts cover these
        yield Sample("tiered_halted", self._troubles.total() - passing)
        yield Sample("tiered_rounds_total", self._rounds)
        yield Sample("tiered_round_failures_total", self._failures)
        yield Sample("tiered_last_round_timestamp_seconds", self._round_ms / 1000)
        yield Sample("tiered_last_round_age_seconds", (counted_ms() - self._ended_at) / 1000)


@dataclass(slots=True)
class _Work:
    partition: TopicPartition
    directory: str
    watermark: int
    log_start: int = 0
    copied: int = 0
    copied_bytes: int = 0

    def figures(self, sizes: dict[int, int], waiting: Sequence[int], reached: int | None) -> AdoptedPartition:
        """The figures. `sizes` by base offset, `waiting` sizes to copy, the bucket's end `reached` (None: unknown)."""
        bases, lag = sorted(sizes), sum(waiting)
        active = sizes[bases[-1]] if bases else 0
        return AdoptedPartition(
            partition=self.partition,
            copied=self.copied,
            copied_bytes=self.copied_bytes,
            tiered_upto=reached,
            log_end=bases[-1] if bases else None,
            lag_segments=None if reached is None else len(waiting),
            lag_bytes=None if reached is None else lag,
            at_risk_bytes=None if reached is None else lag + active,
            ahead=None if reached is None else max(0, reached - self.watermark),
        )


def _check_free(newest: Manifest | None) -> None:
    """Raise Conflict unless a sidecar or a finished job wrote the manifest: other writers add records."""
    if newest is not None and not newest.writer_id.startswith((ADOPT, COPY, DELETION)):
        wrong = "cannot adopt the partition, another writer owns it in the bucket"
        raise Conflict(wrong, topic=newest.topic, partition=newest.partition, writer=newest.writer_id)


@dataclass
class Adopter:
    """Passes over one log directory. Without `effective`, a topic's own `properties` and the defaults apply.

    `work` is a directory for compacted topics, used by this object alone, with room for twice `WORK_BYTES`.
    `is_single_writer`: no other process ever writes to that store, so it may overwrite objects. `on_copied` receives
    the partition, the segment's base offset, the bytes copied and the segment's size.
    """

    store: ObjectStore
    storage: Storage
    root: str
    work: str
    _: KW_ONLY
    properties: Callable[[str], dict[str, str]]
    topics: Sequence[str] = ()
    effective: Callable[[str], dict[str, str]] | None = None
    keys: KeyRing = NO_KEYS
    retention: Callable[[TopicPartition], BrokerRetention] | None = None
    is_single_writer: bool = False
    on_copied: OnCopied | None = None

    def __post_init__(self) -> None:
        self._is_checked = False
        self._is_deletion: dict[tuple[TopicPartition, int], bool] = {}  # by log start: whether DeleteRecords raised it
        self._logs: dict[tuple[TopicPartition, str], MetadataLog] = {}
        self._writer = signed_for(f"{ADOPT}{socket.gethostname()} {os.getpid()}", self.storage, self.root)

    def tick(self, now_ms: int, *, should_stop: Callable[[], bool] = lambda: False) -> list[AdoptedPartition]:
        """Run a pass over all wanted partitions; return them. Raises InvalidRequest if two writers could commit."""
        if not self._is_checked and not self.is_single_writer:
            check_writers(self.store, now_ms)
            self._is_checked = True
        return self._each(partial(self._round, now_ms=now_ms), should_stop)

    def look(self) -> list[AdoptedPartition]:
        """Return each partition with the segments that the next pass would copy. Writes nothing."""
        return self._each(self._forecast)

    def _each(
        self, do: Callable[[_Work], AdoptedPartition], should_stop: Callable[[], bool] = lambda: False
    ) -> list[AdoptedPartition]:
        found = []
        for work in takewhile(lambda work: not should_stop(), self._works()):
            try:
                found.append(do(work))
            except LogError as error:
                found.append(self._stopped(work, error))
        return found

    def _works(self) -> list[_Work]:
        watermarks = checkpoints.read_offsets(self.storage, join(self.root, HIGH_WATERMARKS))
        starts = checkpoints.read_offsets(self.storage, join(self.root, names.LOG_START_OFFSETS))
        return [
            _Work(each, join(self.root, each.directory), watermarks.get(each, 0), starts.get(each, 0))
            for each in adopted_partitions(self.storage, self.root, self.topics)
        ]

    def _stopped(self, work: _Work, problem: LogError) -> AdoptedPartition:
        """Return copy lag and bytes at risk of a stopped partition, by current files and the newest read manifest."""
        try:
            topic_id = checkpoints.read_topic_id(self.storage, work.directory)
            known = self._logs.get((work.partition, topic_id)) if topic_id is not None else None
            reached = None if known is None or known.cached is None else known.cached.allocated_end_offset
            sizes = log_sizes(self.storage, work.directory)
            closed = [base for base, end in pairwise(sorted(sizes)) if reached is not None and end > reached]
            times = [self.storage.modified_ms(join(work.directory, segment_file(base, LOG))) for base in closed[:1]]
            found = work.figures(sizes, [sizes[base] for base in closed], reached)
            return replace(found, lag_since_ms=min(times, default=None), problem=problem)
        except LogError:  # the disk fails: no figure is known
            found = _Work(work.partition, work.directory, 0).figures({}, [], None)
            return replace(found, problem=problem)

    def _forecast(self, work: _Work) -> AdoptedPartition:
        topic_id = self._topic_id(work)
        topic = work.partition.topic
        manifest = MetadataLog(self.store, partition_prefix(topic, topic_id, work.partition.partition)).load()
        reached = manifest.allocated_end_offset if manifest is not None else 0
        upto = min(work.watermark, stable_offset(self.storage, work.directory))
        sizes = log_sizes(self.storage, work.directory)
        with open_closed(self.storage, work.directory, topic_id, reached) as closed:
            due, _ = self._due(topic, closed, upto, reached)
            waiting = [each for each in closed if each not in due]
            return replace(
                work.figures(sizes, [each.size_bytes for each in closed], reached),
                copied=len(due),
                copied_bytes=sum(each.size_bytes for each in due),
                lag_segments=len(waiting),
                lag_bytes=sum(each.size_bytes for each in waiting),
                log_end=None,
            )

    def _topic_id(self, work: _Work) -> str:
        topic_id = checkpoints.read_topic_id(self.storage, work.directory)
        if topic_id is None:
            raise NotFound("cannot adopt the partition, it has no topic id yet", partition=work.partition)
        encoding_of(self._effective(work.partition.topic), self.keys)  # refuses settings before any write
        return topic_id

    def _due(
        self, topic: str, closed: Sequence[ClosedSegment], upto: int, reached: int
    ) -> tuple[list[ClosedSegment], bool]:
        """Return (the segments that a pass copies, whether the pass cleans them first)."""
        due = [each for each in closed if each.next_offset <= upto]
        is_settled = not due or due[0].base_offset < reached or any(each.is_settled for each in due)
        is_in_doubt = not is_settled and sum(each.size_bytes for each in due) >= IN_DOUBT_BYTES
        cleans = log_settings(self._effective(topic)).is_compacted and not is_in_doubt
        return (_settled(due, WORK_BYTES) if cleans else due), cleans

    def _effective(self, topic: str) -> dict[str, str]:
        return (self.effective or self.properties)(topic)

    def _mirrored_start(
        self, partition: TopicPartition, log: MetadataLog, start: int, epochs: LeaderEpochs, now_ms: int
    ) -> Manifest:
        """Raise the bucket's log start offset to the broker's if DeleteRecords raised it; return the last manifest."""
        manifest, directory = log.refresh(), join(self.root, partition.directory)
        if start <= manifest.log_start_offset:
            return manifest
        if (partition, start) not in self._is_deletion:
            facts = log_start_facts(self.storage, directory, log_sizes(self.storage, directory), start, epochs)
            if facts is None:
                return manifest
            if self.retention is not None:
                retention = self.retention(partition)
            else:
                rules = resolve_rules(self.properties(partition.topic))
                retention = BrokerRetention(retention_ms=rules.retention_ms, retention_bytes=rules.retention_bytes)
            self._is_deletion[partition, start] = is_deletion(facts, retention, now_ms)
        if not self._is_deletion[partition, start]:
            return manifest
        return log.commit(expire_segments([], now_ms=now_ms, log_start_offset=start), now_ms)

    def _round(self, work: _Work, now_ms: int) -> AdoptedPartition:
        partition, directory, topic_id = work.partition, work.directory, self._topic_id(work)
        epochs = LeaderEpochs(tuple(checkpoints.read_epochs(self.storage, join(directory, names.LEADER_EPOCHS))))
        log = self._owned(partition, topic_id, epochs, now_ms)
        manifest, properties = log.refresh(), self.properties(partition.topic)
        if manifest.properties != properties:
            manifest = log.commit(set_properties(properties), now_ms)
        _check_lineage(partition, manifest, epochs)
        manifest = self._mirrored_start(partition, log, work.log_start, epochs, now_ms)
        sizes = log_sizes(self.storage, directory)
        reached = manifest.allocated_end_offset  # below the bucket's log start offset no segment is due
        upto = min(work.watermark, stable_offset(self.storage, directory))  # read before a segment is opened
        with open_closed(self.storage, directory, topic_id, reached) as closed:
            first = next((each.base_offset for each in closed if each.next_offset <= upto), reached)
            due, cleans = self._due(partition.topic, closed, upto, reached)
            epochs = _covering(due, epochs)
            if due and cleans:
                work.copied = self._copy_cleaned(partition, log, due, epochs, reached, now_ms)
                work.copied_bytes = sum(each.size_bytes for each in due)
            else:
                for each in due:
                    entry = self._uploaded(log, _as_it_is(directory, each, epochs), now_ms)
                    log.commit(add_segments([entry]), now_ms)
                    work.copied, work.copied_bytes = work.copied + 1, work.copied_bytes + each.size_bytes
            manifest = log.refresh()
            if collected_upto := collectable_upto(manifest.sequence, log.gc_boundary):
                place = partition_prefix(manifest.topic, manifest.topic_id, manifest.partition)
                collect_manifests(self.store, place, log, collected_upto, now_ms=now_ms)
            waiting = [each for each in closed if each not in due]
            return replace(
                work.figures(sizes, [each.size_bytes for each in waiting], reached),
                tiered_upto=log.refresh().allocated_end_offset,
                lost=((reached, first),) if reached < first else (),
                lag_since_ms=min((each.modified_ms for each in waiting), default=None),
            )

    def _owned(self, partition: TopicPartition, topic_id: str, epochs: LeaderEpochs, now_ms: int) -> MetadataLog:
        known = self._logs.get((partition, topic_id))
        if known is not None:
            known.check_not_fenced()  # a fenced sidecar stays fenced until its restart
            return known
        log = MetadataLog(self.store, partition_prefix(partition.topic, topic_id, partition.partition))
        log.become_writer(
            self._writer,
            now_ms,
            topic=partition.topic,
            topic_id=topic_id,
            partition=partition.partition,
            properties=self.properties(partition.topic),
            first_epoch=(epochs.latest or 0) + EPOCHS_APART,
            appends=True,
            check_newest=_check_free,
        )
        self._logs[partition, topic_id] = log
        return log

    def _uploaded(self, log: MetadataLog, segment: SegmentToCopy, now_ms: int) -> SegmentEntry:
        manifest, done = log.refresh(), 0
        place = partition_prefix(manifest.topic, manifest.topic_id, manifest.partition)

        def report(read_bytes: int) -> None:
            nonlocal done
            done += read_bytes
            if self.on_copied is not None:
                name = TopicPartition(manifest.topic, manifest.partition)
                self.on_copied(name, segment.base_offset, done, segment.size_bytes)

        encoding = encoding_of(self._effective(manifest.topic), self.keys)
        return copy_segment(
            self.store, place, segment, epoch=log.epoch, now_ms=now_ms, object_encoding=encoding, progress=report
        )

    def _copy_cleaned(
        self,
        partition: TopicPartition,
        log: MetadataLog,
        due: Sequence[ClosedSegment],
        epochs: LeaderEpochs,
        reached: int,
        now_ms: int,
    ) -> int:
        """Clean a copy of the due segments in the work directory and upload it; return the number of new entries.

        The broker's cleaner may have merged a segment that is in the bucket with one that is not: the copy takes the
        batches from `reached` on. No batch spans `reached`, because a segment once ended there.
        """
        place = join(self.work, partition.directory)
        self.storage.make_directory(place)
        for name in self.storage.list(place):
            self.storage.unlink(join(place, name))
        start = max(reached, due[0].base_offset)
        for each in due:
            base = max(each.base_offset, start)
            copy_batches(self.storage, each, join(place, segment_file(base, LOG)), from_offset=base)
        end = due[-1].next_offset
        self.storage.create(join(place, segment_file(end, LOG))).close()
        checkpoints.write_epochs(self.storage, join(place, names.LEADER_EPOCHS), epochs.truncate_from_end(end).entries)
        settings = log_settings(self._effective(partition.topic))
        copy = Log.open(self.storage, place, partition, settings, now_ms=now_ms, log_start_offset=start)
        try:
            clean(copy, clean_from=start, now_ms=now_ms, tombstones_below=0)
            copy.remove_deleted(now_ms)
            entries = [info for info in copy.segments() if not info.is_active and not info.is_empty]
            producers = {each.next_offset: each.others[PRODUCER_SNAPSHOT] for each in due}
            made = []
            for info in entries:
                segment = segment_to_copy(copy, info, cleaned_through=end)
                snapshot = producers.get(info.next_offset) or segment.producer_snapshot
                made.append(self._uploaded(log, replace(segment, producer_snapshot=snapshot), now_ms))
            if made:  # in one commit: the newer record that replaced an older one may be in the last segment
                log.commit(add_segments(made), now_ms)
            return len(made)
        finally:
            copy.release()


def _settled(due: Sequence[ClosedSegment], size_bytes: int) -> list[ClosedSegment]:
    """Return the first due segments, about `size_bytes`, up to a segment end without an open transaction."""
    sizes = accumulate(each.size_bytes for each in due)
    ends = [(at + 1, size) for at, size in enumerate(sizes) if due[at].is_settled]
    fitting = [count for count, size in ends if size <= size_bytes] or [count for count, _ in ends[:1]]
    return list(due[: max(fitting, default=0)])


def _covering(due: Sequence[ClosedSegment], epochs: LeaderEpochs) -> LeaderEpochs:
    for each in reversed(due):
        first = epochs.entries[0][1] if epochs.entries else each.next_offset
        if each.base_offset < first:
            found = LeaderEpochs()
            for _, _, table in slices_of(each.log.read):
                found = found.with_batches(table, first)
                if int(table.last_offsets[-1]) >= first:
                    break
            for epoch, start in epochs.entries:
                found = found.assign(epoch, start)
            epochs = found
    return epochs


def _as_it_is(directory: str, each: ClosedSegment, epochs: LeaderEpochs) -> SegmentToCopy:
    path = join(directory, segment_file(each.base_offset, LOG))
    lineage = epochs.between(each.base_offset, each.next_offset) or ((0, each.base_offset),)
    indexes = each.others[OFFSET_INDEX], each.others[TIME_INDEX]
    return SegmentToCopy(
        base_offset=each.base_offset,
        next_offset=each.next_offset,
        size_bytes=each.size_bytes,
        epochs=lineage,
        offset_index=indexes[0],
        time_index=indexes[1],
        txn_index=each.others[TXN_INDEX],
        producer_snapshot=each.others[PRODUCER_SNAPSHOT],
        leader_epochs=encode_epochs(epochs.truncate_from_end(each.next_offset).entries),
        read=each.log.read,
        inspect=partial(
            SegmentInspector, path, each.base_offset, each.next_offset, lineage, indexes, aborted=each.others[TXN_INDEX]
        ),
    )


def _check_lineage(partition: TopicPartition, manifest: Manifest, epochs: LeaderEpochs) -> None:
    in_bucket = LeaderEpochs(tuple(manifest.lineage))
    held = coverage(manifest)
    first = epochs.entries[0][1] if epochs.entries else 0
    for offset in sorted({max(first, start) for _, start in (*in_bucket.entries, *epochs.entries)}):
        if held.holds(offset, offset + 1) and in_bucket.epoch_at(offset) != epochs.epoch_at(offset):
            facts = {"bucket": in_bucket.epoch_at(offset), "broker": epochs.epoch_at(offset), "from_offset": offset}
            wrong = "cannot adopt the partition, the broker rewrote its log below the end of the bucket"
            wrong += " (unclean leader election): the bucket retains the lost branch"
            raise Conflict(wrong, partition=partition, **facts, bucket_next_offset=manifest.entries_end_offset)
