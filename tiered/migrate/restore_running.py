"""Carry out a plan of `tiered.migrate.restore_plan`: write log directories, take topics over.

Order of effects for a topic, and the state after a crash or an interruption behind each step:

| step | effect | after a crash |
|---|---|---|
| 1 | lock the directory and delete its clean-shutdown mark | its logs are recovered at the next start |
| 2 | with `takes_over`: take over each partition in the bucket | the former writer is fenced; run it again |
| 3 | write the files of each partition in ``<topic>-<partition>.restoring`` | whole segments are not fetched again |
| 4 | with `takes_over`: check that this run is still the writer | as 3; after another takeover: Fenced |
| 5 | rename the directories | partitions that no registry names; the next run uses them unchanged |
| 6 | open the logs, recover the cut ones, write checkpoints | as 5 |
| 7 | the registry names the topic | done |

If two machines take over at once, the machine that did step 2 last is the writer. The other one raises Fenced at step
4, or at its next commit.

**Files.** A Kafka broker refuses to start on a log directory with a ``.restoring`` directory; our manager ignores it.
For each entry its indexes are written first. Then its ``.log`` is written under a temporary name, synced, compared with
the entry's checksum, and renamed: a ``.log`` under its final name is whole. A later run compares its bytes again.

| file | content |
|---|---|
| ``<base>.log .index .timeindex .txnindex`` of each entry | the bytes of the source's disk |
| ``<offset>.snapshot`` at each entry's end | the producers at that offset |
| ``<next offset>.log``, empty | the active segment: the log ends where the bucket does, holes included |
| ``leader-epoch-checkpoint``, ``partition.metadata`` | the lineage of the entries; the topic id |

A cut entry has only its ``.log``: recovery reads it whole and builds the other files.

Records that the bucket lacks are never replaced:

| present | without takeover | with `takes_over` |
|---|---|---|
| nothing | restored, under the bucket's topic id | the same |
| an empty partition, just created by a broker | filled, keeps its topic id | its id must be the bucket's |
| the result of an earlier run by the same plan | used unchanged | used unchanged |
| segments of its topic id that are all in the bucket, byte for byte | refused | renamed aside, then restored |
| anything else | refused | refused |

Records that only a disk has look much like the fourth case. The check therefore compares every file with an entry's
size and checksum, before any rename and before any takeover.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np

from local import kernels, names
from local.errors import Conflict, Corrupt, InvalidRequest, LogError, NotFound
from local.format.batch_header import HEADER_BYTES, read_header
from local.format.crc32c import crc32c, crc32c_of
from local.index.index_files import slices_of
from local.log import checkpoints
from local.logdirs.log_dir import LogDirectory
from local.logdirs.log_moves import remove_tree
from local.names import TopicPartition, deleted_directory, parse_marked_directory, parse_segment_file, segment_file
from local.storage import Storage, join, replace_file
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RANGE_BYTES, RemotePartition, why_missing
from remote.manifest.commit_protocol import MetadataLog
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import NO_KEYS, KeyRing
from remote.store import ObjectStore
from tiered.config.config import log_settings
from tiered.config.properties import DEFAULTS
from tiered.jobs.runner import Clock, Failures, Here, LocalJob, run_job
from tiered.migrate.restore_plan import PartitionRestore, SkippedPartition, TopicRestore, plan_partition
from tiered.node.topic_registry import Topic, TopicRegistry
from tiered.node.writer_ids import RESTORE, signed_for
from tiered.partition.reconciliation import lineage
from tiered.read.reader import index_is_wrong

CACHE_BYTES = 64 << 20
STAGING = ".restoring"
READ_BYTES = 4 * RANGE_BYTES
_CRC_START, _LAST_OFFSET_DELTA = 21, 23  # in a batch's header


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredPartition:
    """A restored partition. `read_committed` readers stop at the first of its `open_transactions`."""

    partition: TopicPartition
    log_start_offset: int
    next_offset: int
    size_bytes: int
    remote_bytes: int
    epoch: int | None
    open_transactions: int = 0
    exact_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOutcome:
    partitions: tuple[RestoredPartition, ...] = ()
    is_complete: bool = True
    skipped: tuple[SkippedPartition, ...] = ()


def run_restore(
    store: ObjectStore,
    topics: Sequence[TopicRestore],
    storage: Storage,
    root: str,
    *,
    now_ms: Clock,
    keys: KeyRing = NO_KEYS,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda size_bytes: None,
) -> RestoreOutcome:
    """Restore into the log directory `root`, created if absent. May be repeated.

    A topic with damaged or missing segments is left out if another one is restored. Raises Conflict if another process
    has the directory open or has another partition of the name. Raises Fenced if another machine took over. Raises
    NotFound if the bucket no longer has an entry (plan again), Corrupt if an entry's bytes are wrong.
    """
    job = RestoreJob(store=store, plans=topics, storage=storage, root=root, now_ms=now_ms, keys=keys)
    errors: dict[int, LogError] = {}
    done = run_job(job, Here(should_stop), progress=progress, errors=errors)
    skipped = tuple(SkippedPartition(name=job.current[number], error=error) for number, error in errors.items())
    is_complete = len(done) + len(skipped) == len(topics)
    if skipped and is_complete and not done:
        raise skipped[0].error
    partitions = tuple(each for topic in done for each in topic)
    return RestoreOutcome(partitions=partitions, is_complete=is_complete, skipped=skipped)


class RestoreUnit(NamedTuple):
    """An entry to write, and the one after it; or the other files of a partition. `is_last`: last of its topic."""

    number: int
    files: _PartitionFiles
    entry: SegmentEntry | None
    following: SegmentEntry | None = None
    is_last: bool = False


@dataclass(kw_only=True)
class RestoreJob(LocalJob[RestoreUnit, None, list[RestoredPartition]]):
    """A unit is a segment. Steps 4 to 7 of a topic follow its last unit."""

    errors_of_plan = (Corrupt, NotFound)  # a takeover of the next topic after another error would only fence its writer
    store: ObjectStore
    plans: Sequence[TopicRestore]
    storage: Storage
    root: str
    now_ms: Clock
    keys: KeyRing = NO_KEYS

    def __post_init__(self) -> None:
        self.current = [topic.partitions[0].name for topic in self.plans]
        self.failures = Failures(self.current)
        self.description = f"restoring {len(self.plans)} topics to {self.root}"
        self.cache = ChunkCache(CACHE_BYTES)
        self._topics: dict[int, _TopicWork] = {}
        self._done: list[list[RestoredPartition]] = []

    def begin(self, opened: ExitStack) -> None:
        self.directory = LogDirectory(self.storage, self.root)
        self._is_clean = self.directory.was_clean or not self.directory.partitions()
        opened.push(self._close)
        check_restore(self.plans, self.storage, self.root)
        self._registry = TopicRegistry([(self.storage, self.root)])

    def _close(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.directory.close(is_clean=self._is_clean)
        else:
            self.directory.abandon()

    def units(self) -> Iterator[RestoreUnit]:
        for number, topic in enumerate(self.plans):
            with self.failures.noted(number, self.errors_of_plan):
                work = self._topics[number] = _TopicWork(self, topic)
                for each in topic.partitions:
                    self.current[number] = each.name
                    work.take_over(each)
                for part in work.parts:
                    if number in self.failures.first:
                        break
                    self.current[number] = part.planned.name
                    entries = part.missing_entries()
                    for entry, following in zip_longest(entries, entries[1:]):
                        yield RestoreUnit(number, part, entry, following)
                    yield RestoreUnit(number, part, None, is_last=part is work.parts[-1])

    def size_of(self, unit: RestoreUnit) -> int:
        return unit.entry.size_bytes if unit.entry is not None else 0

    def do(self, unit: RestoreUnit) -> None:
        unit.files.write(unit.entry, unit.following)

    def commit(self, results: Sequence[tuple[RestoreUnit, LogError | None]]) -> None:
        for unit, result in results:
            if unit.is_last and result is None:
                self._done.append(self._topics.pop(unit.number).finish(self._registry))

    def outcomes(self) -> list[list[RestoredPartition]]:
        return self._done


class _TopicWork:
    """Steps 2 and 4 to 7 of one topic."""

    def __init__(self, job: RestoreJob, topic: TopicRestore) -> None:
        self._job, self._storage, self._directory, self._topic = job, job.storage, job.directory, topic
        self._writers: list[MetadataLog] = []
        self.parts: list[_PartitionFiles] = []

    def take_over(self, planned: PartitionRestore) -> None:
        """Add a partition; with `takes_over`, take it over and plan again: no other writer changes it now."""
        job, name, log = self._job, planned.name, MetadataLog(self._job.store, planned.name.prefix)
        if self._topic.wish.takes_over:
            now_ms = job.now_ms()
            writer = signed_for(f"{RESTORE}{uuid.uuid4().hex[:8]}", self._storage, self._directory.root)
            log.become_writer(writer, now_ms, **name.identity, properties=None, appends=True)
            self._writers.append(log)
            planned = plan_partition(log, job.store, name, self._topic.wish, now_ms=now_ms, keys=job.keys)
        place = self._directory.path(name.topic_partition)
        topic_id = topic_id_for(self._storage, self._directory.root, name.topic_partition, self._topic.topic_id)
        self.parts.append(_PartitionFiles(job, planned, place, topic_id))

    def finish(self, registry: TopicRegistry) -> list[RestoredPartition]:
        for writer in self._writers:
            writer.check_still_writer()
        for part in self.parts:
            part.put_in_place(self._directory.root)
        done = [self._opened(part.planned) for part in self.parts]
        self._directory.write_checkpoints()
        topic = Topic(
            name=self._topic.topic,
            topic_id=self.parts[0].topic_id,
            partition_count=self._topic.partition_count,
            properties=self._topic.properties,
            was_tiered=self._topic.wish.takes_over,
        )
        registry.add(topic)
        return done

    def _opened(self, planned: PartitionRestore) -> RestoredPartition:
        wish, partition = self._topic.wish, planned.name.topic_partition
        settings = log_settings({**DEFAULTS, **self._topic.properties})
        log = self._directory.take_in(
            partition,
            settings,
            {
                names.RECOVERY_POINTS: planned.whole_upto,
                names.LOG_START_OFFSETS: planned.manifest.log_start_offset,
                names.CLEANER_OFFSETS: planned.clean_upto if settings.is_compacted else 0,
                names.CLEANER_REACHES: planned.cleaned_reach,
            },
            now_ms=self._job.now_ms(),
            is_tiered=wish.takes_over,
        )
        if log.next_offset != planned.next_offset:
            facts = {"expected": planned.next_offset, "found": log.next_offset}
            raise Corrupt("cannot restore the partition, its log ends at another offset", partition=partition, **facts)
        return RestoredPartition(
            partition=partition,
            log_start_offset=log.log_start_offset,
            next_offset=log.next_offset,
            size_bytes=log.size_bytes,
            remote_bytes=planned.remote_bytes,
            epoch=planned.manifest.epoch if wish.takes_over else None,
            open_transactions=sum(each.transaction_first_offset >= 0 for each in log.producers()),
            exact_from=planned.exact_from,
        )


class _PartitionFiles:
    """The files of one partition, in the staging directory until all are written; then they are at `place`."""

    def __init__(self, job: RestoreJob, planned: PartitionRestore, place: str, topic_id: str) -> None:
        self.planned, self.topic_id = planned, topic_id
        self._storage, self._place, self._directory = job.storage, place, place + STAGING
        self._log = MetadataLog(job.store, planned.name.prefix)
        self._remote = RemotePartition(job.store, planned.name.prefix, job.cache, metadata=self._log, keys=job.keys)

    def missing_entries(self) -> Sequence[SegmentEntry]:
        """Return the entries to write, none if an earlier run has put the files in place.

        Deletes files of another plan's run, and the active segment, which is written last. The topic id stays: the
        empty partition with that id may already be renamed aside.
        """
        self._is_there = self._storage.is_directory(self._place) and holds_all(self._storage, self._place, self.planned)
        if self._is_there:
            return ()
        self._storage.make_directory(self._directory)
        wanted = {entry.base_offset for entry in self.planned.entries if entry.next_offset <= self.planned.next_offset}
        for name in self._storage.list(self._directory):
            if name == names.PARTITION_METADATA:
                continue
            parsed = parse_segment_file(name)
            if parsed is None or parsed[0] not in wanted or name.endswith(names.TEMPORARY):
                self._storage.unlink(join(self._directory, name))
        return self.planned.entries

    def write(self, entry: SegmentEntry | None, following: SegmentEntry | None) -> None:
        """Write the files of `entry`, durable on return; without one, the others. Raises NotFound, Corrupt."""
        try:
            if entry is None:
                self._write_others()
            elif entry.next_offset > self.planned.next_offset:
                self._write_cut(entry, self.planned.next_offset)
            else:
                self._write_entry(entry)
                self._write_producers(entry, self.planned.next_offset if following is None else following.base_offset)
        except NotFound as error:
            raise why_missing(self._log, self.planned.entries, error) from error

    def put_in_place(self, root: str) -> None:
        if self._is_there:
            if self._storage.is_directory(self._directory):  # of a run by another plan
                remove_tree(self._storage, root, self._directory)
            return
        if self._storage.is_directory(self._place):  # holds nothing that the bucket lacks: `check_restore` verified it
            aside = deleted_directory(self.planned.name.topic_partition, uuid.uuid4().hex)
            self._storage.rename(self._place, join(root, aside))
        self._storage.rename(self._directory, self._place)
        self._storage.sync_directory(root)

    def _write_others(self) -> None:
        planned = self.planned
        if self._is_there:
            return
        if not planned.entries and planned.last_entry is not None:  # the producers at the end of the bucket
            self._write_producers(planned.last_entry, planned.next_offset)
        if not planned.entries or planned.entries[-1].base_offset < planned.next_offset:
            for suffix in (names.LOG, names.OFFSET_INDEX, names.TIME_INDEX):
                self._write_file(planned.next_offset, suffix, b"")
        epochs = lineage(planned.manifest).truncate_from_end(planned.next_offset)
        checkpoints.write_epochs(self._storage, join(self._directory, names.LEADER_EPOCHS), epochs.entries)
        checkpoints.write_topic_id(self._storage, self._directory, self.topic_id)

    def _write_entry(self, entry: SegmentEntry) -> None:
        if is_whole(self._storage, self._directory, entry):
            return
        bundle = self._remote.indexes(entry)
        bodies = {names.OFFSET_INDEX: bundle.offset, names.TIME_INDEX: bundle.time, names.TXN_INDEX: bundle.txn}
        for suffix, body in bodies.items():
            if suffix != names.TXN_INDEX or len(body):
                self._write_file(entry.base_offset, suffix, bytes(body))
        self._write_log(entry, self._checked(entry))

    def _write_file(self, offset: int, suffix: str, body: bytes) -> None:
        replace_file(self._storage, join(self._directory, segment_file(offset, suffix)), body)

    def _checked(self, entry: SegmentEntry) -> Iterator[memoryview]:
        found = 0
        for position in range(0, entry.size_bytes, READ_BYTES):
            piece = self._remote.read(entry, position, READ_BYTES)
            found = crc32c(piece, found)
            yield piece
        if found != entry.content_crc32c:
            facts = {"expected": f"{entry.content_crc32c:08x}", "found": f"{found:08x}", "object": entry.data_key}
            raise Corrupt("cannot restore a segment, its checksum differs", base_offset=entry.base_offset, **facts)

    def _write_cut(self, entry: SegmentEntry, end: int) -> None:
        """Write the batches below `end`; a batch that contains `end` keeps only its records below it."""
        at, found = self._remote.position_of_offset(entry, end), b""
        if at and index_is_wrong(entry, self._remote.read(entry, at, HEADER_BYTES), end, at):
            at = 0
        while at + len(found) < entry.size_bytes:
            found += self._remote.read(entry, at + len(found), READ_BYTES)
            table = kernels.scan_batches(found, verify=False)
            if len(table) and int(table.last_offsets[-1]) >= end:
                break
        before = (self._remote.read(entry, each, min(READ_BYTES, at - each)) for each in range(0, at, READ_BYTES))
        self._write_log(entry, chain(before, [cut_batches(found, end)]))

    def _write_log(self, entry: SegmentEntry, pieces: Iterable[bytes | memoryview]) -> None:
        path = join(self._directory, segment_file(entry.base_offset, names.LOG))
        with closing(self._storage.create(path + names.TEMPORARY)) as file:
            for piece in pieces:
                file.append(piece)
            file.sync()
        self._storage.rename(path + names.TEMPORARY, path)
        self._storage.sync_directory(self._directory)

    def _write_producers(self, entry: SegmentEntry, offset: int) -> None:
        if snapshot := bytes(self._remote.indexes(entry).producers):
            self._write_file(offset, names.PRODUCER_SNAPSHOT, snapshot)


def is_whole(storage: Storage, directory: str, entry: SegmentEntry) -> bool:
    """Whether the segment's ``.log`` there has exactly the entry's bytes. A restore writes this file last."""
    path = join(directory, segment_file(entry.base_offset, names.LOG))
    with suppress(NotFound):
        if storage.size(path) == entry.size_bytes:
            return crc32c_of(partial(storage.read, path), entry.size_bytes) == entry.content_crc32c
    return False


def cut_batches(data: bytes, end: int) -> bytes:
    """The batches of `data` below the offset `end`; a batch that contains it keeps the records below.

    In that batch only the records, their largest timestamp and the last offset (`end` - 1) change. `data` begins with a
    batch and may end inside one.
    """
    table = kernels.scan_batches(data, verify=False)
    below = int((table.last_offsets < end).sum())
    whole_bytes = int(table.positions[below]) if below < len(table) else table.valid_bytes
    if below == len(table) or int(table.base_offsets[below]) >= end:
        return data[:whole_bytes]
    batch = data[whole_bytes : whole_bytes + int(table.sizes[below])]
    columns = kernels.decode_columns(batch, include_control=True)
    keep = np.asarray(columns.offsets < end, np.bool_)
    rest = bytearray(kernels.filter_batches(batch, keep, keep_last_batch=True))
    header = read_header(rest)
    assert header is not None, "what was filtered is a batch"
    struct.pack_into(">i", rest, _LAST_OFFSET_DELTA, end - 1 - header.base_offset)
    struct.pack_into(">I", rest, _CRC_START - 4, crc32c(memoryview(rest)[_CRC_START:]))
    return data[:whole_bytes] + bytes(rest)


def check_restore(topics: Sequence[TopicRestore], storage: Storage, root: str) -> None:
    """Raises InvalidRequest if `root` is a file or has a topic already, Conflict if files may not be replaced."""
    if storage.exists(root) and not storage.is_directory(root):
        raise InvalidRequest("cannot restore, the target is a file: name a directory", directory=root)
    registry = TopicRegistry([(storage, root)])
    for topic in topics:
        _check_free(storage, root, registry, topic)


def holds_all(storage: Storage, directory: str, planned: PartitionRestore) -> bool:
    """Whether `directory` is the finished result of an earlier run of this plan."""
    expected = {entry.base_offset: entry for entry in planned.entries}
    found = _logs(storage, directory)
    if found.pop(segment_file(planned.next_offset, names.LOG), None) != 0:
        return False
    if found.keys() != {segment_file(base, names.LOG) for base in expected}:
        return False
    return all(_is_as_planned(storage, directory, entry, planned.next_offset) for entry in planned.entries)


def topic_id_for(storage: Storage, root: str, partition: TopicPartition, topic_id: str) -> str:
    """The id of the empty partition here, or of one that an earlier run renamed; else `topic_id`."""
    place = join(root, partition.directory)
    if storage.is_directory(place):
        return checkpoints.read_topic_id(storage, place) or topic_id
    staged_id = checkpoints.read_topic_id(storage, place + STAGING) if storage.is_directory(place + STAGING) else None
    return staged_id if staged_id in _put_aside(storage, root, partition) else topic_id


def _check_free(storage: Storage, root: str, registry: TopicRegistry, topic: TopicRestore) -> None:
    if topic.topic in {each.name for each in registry.all()}:
        wrong = "cannot restore the topic, the directory already has it"
        raise InvalidRequest(wrong, topic=topic.topic, directory=root)
    ids = set()
    for each in topic.partitions:
        partition = each.name.topic_partition
        place = join(root, partition.directory)
        if not storage.is_directory(place):
            continue
        topic_id = checkpoints.read_topic_id(storage, place)
        ids.add(topic_id)
        if not any(_logs(storage, place).values()):
            if topic.wish.takes_over and topic_id != topic.topic_id:
                facts = {"partition": partition, "topic_id": topic_id, "in_the_bucket": topic.topic_id}
                wrong = "cannot take over the topic, the directory has an empty partition with another topic id"
                raise Conflict(wrong, **facts)
        elif not _may_give_way(storage, root, each, topic, topic_id):
            wrong = "cannot restore the partition, its directory contains other files"
            raise Conflict(wrong, partition=partition, directory=place)
    if len(ids) > 1:
        raise Conflict("cannot restore the topic, its partitions in the directory have several ids", topic=topic.topic)


def _may_give_way(
    storage: Storage, root: str, planned: PartitionRestore, topic: TopicRestore, topic_id: str | None
) -> bool:
    partition = planned.name.topic_partition
    place = join(root, partition.directory)
    if topic.wish.takes_over:
        return topic_id == topic.topic_id and _is_in_the_bucket(storage, place, planned)
    is_ours = topic_id == topic.topic_id or topic_id in _put_aside(storage, root, partition)
    return is_ours and holds_all(storage, place, planned)


def _is_in_the_bucket(storage: Storage, place: str, planned: PartitionRestore) -> bool:
    all_entries = *planned.remote_only_entries, *planned.entries
    entries = {segment_file(entry.base_offset, names.LOG): entry for entry in all_entries}
    found = [name for name, size in _logs(storage, place).items() if size]
    return all(name in entries and is_whole(storage, place, entries[name]) for name in found)


def _is_as_planned(storage: Storage, directory: str, entry: SegmentEntry, end: int) -> bool:
    if entry.next_offset <= end:
        return is_whole(storage, directory, entry)
    path = join(directory, segment_file(entry.base_offset, names.LOG))
    reached = 0
    for at, _, table in slices_of(lambda position, length: storage.read(path, position, length)):
        reached = at + table.valid_bytes
        if len(table) and int(table.last_offsets[-1]) >= end:
            return False
    return reached == storage.size(path) <= entry.size_bytes


def _logs(storage: Storage, directory: str) -> dict[str, int]:
    """Size by name of the files that may hold records: unfinished ones too, pending deletions not."""
    found = {}
    for name, facts in storage.list_files(directory).items():
        parsed = parse_segment_file(name)
        if parsed is not None and parsed[1].startswith(names.LOG) and not name.endswith((names.DELETED, names.CLEANED)):
            found[name] = facts.size_bytes
    return found


def _put_aside(storage: Storage, root: str, partition: TopicPartition) -> set[str]:
    """The topic ids of this partition's empty directories that an earlier run renamed."""
    found = set()
    for name in storage.list(root):
        parsed = parse_marked_directory(name)
        if parsed is None or parsed[0] != partition or any(_logs(storage, join(root, name)).values()):
            continue
        if (topic_id := checkpoints.read_topic_id(storage, join(root, name))) is not None:
            found.add(topic_id)
    return found
