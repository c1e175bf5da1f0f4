"""Check log directories: every file, every batch, and every statement of one file about another.

| file | compared with |
|---|---|
| ``.log`` | its checksums, structure and name, the next segment's name; with `deep` every record to the last byte |
| ``.index``, ``.timeindex`` | the batches (`local.verify.segment_checks`) |
| ``.txnindex``, ``.snapshot`` | the result of a replay of all batches |
| ``leader-epoch-checkpoint`` | the epochs in the batches |
| the checkpoints of the log directory | the ends of the logs |
| anything else | the legal names in a log: stray files and leftovers are findings |

Nothing is written. Without the clean-shutdown marker a writer is active or has crashed. A torn end of the last segment,
temporary files, files that wait for deletion, and an unfinished time index are then findings of severity INFO. A
segment that seems damaged is then read again, because the cleaner and retention change files during the check. An
unreadable file is a finding, and all other files are still checked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, zip_longest
from typing import NamedTuple

from local import names
from local.errors import AccessDenied, Corrupt, DiskFailed, InvalidRequest, LogError, NotFound
from local.log import checkpoints
from local.log.leader_epochs import EpochRange, LeaderEpochs
from local.names import TopicPartition, parse_marked_directory, parse_partition_directory, parse_segment_file
from local.storage import Storage, join, parent
from local.verify.findings import Finding, Severity, damaged, finding, unreadable, worst
from local.verify.segment_checks import (
    INTERVAL_BYTES,
    OnBytes,
    SegmentPlace,
    SegmentReport,
    check_producers,
    check_segment,
)

_TRIES = 3  # reads of a segment that seems damaged while another process may change it
_CHECKPOINTS = (names.RECOVERY_POINTS, names.LOG_START_OFFSETS, names.CLEANER_OFFSETS)  # in the order of `Vouched`
_ON_THE_WAY = (names.CLEANED, names.SWAP, names.TEMPORARY)
_OF_A_PARTITION = {
    names.LEADER_EPOCHS,
    names.PARTITION_METADATA,
    names.UNCONFIRMED_APPENDS,
    names.FENCED_BY,
    names.QUORUM_STATE,
    names.VIEW_CATALOG,  # checked by `tiered.health.bucket_verifying`
    names.VIEW_PARTS,
}
_OF_A_LOG_DIR = {
    *_CHECKPOINTS,
    names.CLEANER_REACHES,
    names.CLEANER_HISTORY,
    names.META_PROPERTIES,
    names.LOCK,
    names.CLEAN_SHUTDOWN,
    "replication-offset-checkpoint",
    "bootstrap.checkpoint",
    "remote-log-index-cache",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """`deep` decodes every record. `known_names` are legal. `interval_bytes` is for topics not in `topic_intervals`."""

    deep: bool = False
    interval_bytes: int = INTERVAL_BYTES
    topic_intervals: Mapping[str, int] = field(default_factory=dict)
    threads: int = 2
    known_names: frozenset[str] = frozenset()

    def interval_of(self, directory: str) -> int:
        partition = parse_partition_directory(directory.rpartition("/")[2])
        return self.topic_intervals.get(partition.topic if partition else "", self.interval_bytes)


class Vouched(NamedTuple):
    """The checkpointed offsets of a partition; None if the checkpoint does not name it."""

    recovery_point: int | None = None
    log_start_offset: int | None = None
    cleaner_offset: int | None = None


def verify(
    storage: Storage, path: str, options: VerifyOptions = VerifyOptions(), on_bytes: OnBytes = lambda count: None
) -> list[Finding]:
    """Check a segment's ``.log``, a partition's directory or a log directory, whichever `path` is.

    Raises NotFound, InvalidRequest, and DiskFailed for an error that does not concern the disk.
    """
    path = path.rstrip("/") or "/"
    try:
        return _Check(storage, options, on_bytes).path(path)
    except (DiskFailed, AccessDenied) as error:
        return [unreadable(error, path)]


def size_of(storage: Storage, path: str) -> int:
    """The bytes of log that `verify` will read."""
    if path.endswith(names.LOG):
        return _size(storage, path)
    total = 0
    for name in _listed(storage, path):
        below = join(path, name)
        if name.endswith(names.LOG) and parse_segment_file(name):
            total += _size(storage, below)
        elif parse_partition_directory(name):
            logs = (each for each in _listed(storage, below) if each.endswith(names.LOG))
            total += sum(_size(storage, join(below, each)) for each in logs)
    return total


def check_log_dirs(storage: Storage, roots: Sequence[str]) -> list[Finding]:
    """Find partitions in two directories, and partitions that exist only as ``-future`` or ``-delete``.

    Only names are read, twice: a partition may move between the listings of two directories. A root that cannot be
    listed is skipped.
    """
    found = list(_misplaced(storage, roots))
    return [each for each in _misplaced(storage, roots) if each in found] if found else []


def _misplaced(storage: Storage, roots: Sequence[str]) -> Iterator[Finding]:
    present: dict[TopicPartition, list[str]] = defaultdict(list)
    leftover: dict[TopicPartition, list[str]] = defaultdict(list)
    for root in roots:
        for name in _listed(storage, root):
            marked = parse_marked_directory(name)
            partition = marked[0] if marked else parse_partition_directory(name)
            if partition is not None:
                (leftover if marked else present)[partition].append(join(root, name))
    for partition, paths in sorted(present.items()):
        for path in paths[1:]:
            yield finding("log-dir.twice", path, partition=partition, other=paths[0])
    for partition, paths in sorted(leftover.items()):
        for path in paths if partition not in present else ():
            yield finding("log-dir.moved", path, partition=partition)


@dataclass(frozen=True, slots=True)
class _Check:
    storage: Storage
    options: VerifyOptions
    on_bytes: OnBytes

    def path(self, path: str) -> list[Finding]:
        if not self.storage.is_directory(path):
            return self._file(path)
        there, partition = self.storage.list(path), parse_partition_directory(path.rpartition("/")[2])
        if partition is None and not any(parse_segment_file(name) for name in there):
            return self._log_dir(path)
        root = parent(path)
        vouched = self._vouched(root)[0].get(partition, Vouched()) if partition is not None else Vouched()
        return self._partition(path, vouched, was_clean=self._was_clean(root))

    def _file(self, path: str) -> list[Finding]:
        parsed = parse_segment_file(path.rpartition("/")[2])
        if not self.storage.exists(path):
            raise NotFound("cannot verify, there is no such file or directory", path=path)
        if parsed is None or parsed[1] != names.LOG:
            raise InvalidRequest("cannot verify the file, its name does not end in .log", path=path)
        return self._segment(SegmentPlace(directory=parent(path), base_offset=parsed[0])).findings

    def _log_dir(self, root: str) -> list[Finding]:
        vouched, found = self._vouched(root)
        was_clean = self._was_clean(root)
        there = self.storage.list(root)
        partitions = {name: each for each in there if (name := parse_partition_directory(each))}
        for each in there:
            if each in partitions.values() or each in _OF_A_LOG_DIR | self.options.known_names:
                continue
            is_changing = each.endswith(("-delete", "-stray", "-future"))
            is_temporary = each.endswith(names.TEMPORARY)
            code = "log-dir.changing" if is_changing else "log-dir.leftover" if is_temporary else "log-dir.stray"
            found.append(finding(code, join(root, each)))
        if not partitions and names.META_PROPERTIES not in there:
            found.append(finding("log-dir.empty", root))
        for name in sorted(vouched.keys() - partitions.keys()):
            found.append(finding("checkpoint.unknown-partition", root, partition=name))
        for name in sorted(partitions):
            directory = join(root, partitions[name])
            try:
                found += self._partition(directory, vouched.get(name, Vouched()), was_clean=was_clean)
            except NotFound:
                if self.storage.exists(directory):
                    raise
            except (DiskFailed, AccessDenied) as error:
                found.append(unreadable(error, directory))
        return found

    def _was_clean(self, root: str) -> bool:
        has_mark = self.storage.exists(join(root, names.CLEAN_SHUTDOWN))
        return has_mark or not self.storage.exists(join(root, names.META_PROPERTIES))

    def _vouched(self, root: str) -> tuple[dict[TopicPartition, Vouched], list[Finding]]:
        """The checkpointed offsets, and findings. Read before the logs, because the logs only grow."""
        found: list[Finding] = []
        read: list[dict[TopicPartition, int]] = []
        for path in (join(root, name) for name in _CHECKPOINTS):
            offsets: dict[TopicPartition, int] = {}
            try:
                offsets = checkpoints.read_offsets(self.storage, path)
            except Corrupt as error:
                found.append(damaged(error, path))
            except (DiskFailed, AccessDenied) as error:
                found.append(unreadable(error, path))
            read.append(offsets)
        named = {name for offsets in read for name in offsets}
        return {name: Vouched(*(offsets.get(name) for offsets in read)) for name in named}, found

    def _partition(self, directory: str, vouched: Vouched, *, was_clean: bool) -> list[Finding]:
        there = self.storage.list(directory)
        bases = sorted(found[0] for name in there if (found := parse_segment_file(name)) and found[1] == names.LOG)
        findings = list(_of_names(directory, there, set(bases), was_clean=was_clean))
        places = [
            SegmentPlace(
                directory=directory,
                base_offset=base,
                next_base=following,
                may_be_torn=not was_clean,
                durable_to=vouched.recovery_point or 0,
            )
            for base, following in zip_longest(bases, bases[1:])
        ]
        with ThreadPoolExecutor(max(1, self.options.threads)) as pool:
            check = partial(self._segment_in_use, tries=1 if was_clean else _TRIES)
            reports = [report for report in pool.map(check, places) if report is not None]
        for report in reports:
            findings += report.findings
        findings += _overlaps(reports)
        findings += _as_far_as_read(directory, self._epochs(directory, vouched, reports, was_clean=was_clean))
        findings += _as_far_as_read(directory, self._metadata(directory))
        if all(report.is_read for report in reports):
            end = reports[-1].next_offset if reports else None
            for code, offset in zip(
                ("checkpoint.recovery-point", "checkpoint.log-start", "checkpoint.cleaner"), vouched, strict=True
            ):
                if offset is not None and end is not None and offset > end:
                    findings.append(finding(code, directory, offsets=(end, offset), checkpoint=offset, next_offset=end))
            findings += _as_far_as_read(directory, check_producers(self.storage, directory, there, reports))
        return findings

    def _segment(self, place: SegmentPlace) -> SegmentReport:
        interval = self.options.interval_of(place.directory)
        deep, on_bytes = self.options.deep, self.on_bytes
        return check_segment(self.storage, place, deep=deep, interval_bytes=interval, on_bytes=on_bytes)

    def _segment_in_use(self, place: SegmentPlace, *, tries: int) -> SegmentReport | None:
        """The report of the first read without damage, or of the last one; None if the segment was deleted."""
        report: SegmentReport | None = None
        for _ in range(tries):
            try:
                report = self._segment(place)
            except NotFound:
                return None
            except (DiskFailed, AccessDenied) as error:
                found = [unreadable(error, place.path(names.LOG))]
                return SegmentReport(place=place, findings=found, next_offset=place.base_offset, is_read=False)
            if worst(report.findings) is Severity.INFO:
                break
        return report

    def _epochs(
        self, directory: str, vouched: Vouched, reports: Sequence[SegmentReport], *, was_clean: bool
    ) -> Iterator[Finding]:
        """Compare the leader epoch checkpoint, read after the log, with the batches.

        When the log start offset rises, the epochs below it leave the checkpoint at once; the checkpoint of log starts
        follows later. In an active or killed log the first epoch of the checkpoint may thus be above that log start.
        """
        path = join(directory, names.LEADER_EPOCHS)
        try:
            entries = checkpoints.read_epochs(self.storage, path)
        except Corrupt as error:
            yield damaged(error, path)
            return
        if any(later[0] <= before[0] or later[1] <= before[1] for before, later in pairwise(entries)):
            yield finding("epochs.disorder", path)
            return
        epochs, log_start = LeaderEpochs(tuple(entries)), vouched.log_start_offset
        if not was_clean and entries and entries[0][1] > (log_start or 0):
            yield finding("epochs.above-log-start", path, epochs_from=entries[0][1], log_start_offset=log_start)
            log_start = entries[0][1]
        for report in reports:
            for found in report.epochs:
                offset = _offset_to_compare(found, epochs, log_start)
                if found.epoch is None or offset is None:
                    continue
                known = epochs.epoch_at(offset)
                if known != found.epoch:
                    log, offsets = report.place.path(names.LOG), (offset, offset + 1)
                    yield finding("epochs.other", path, offsets=offsets, epoch=found.epoch, known=known, path=log)
                    break

    def _metadata(self, directory: str) -> Iterator[Finding]:
        path = join(directory, names.PARTITION_METADATA)
        try:
            if checkpoints.read_topic_id(self.storage, directory) is None:
                yield finding("partition.topic-id", path)
        except Corrupt as error:
            yield damaged(error, path)


def _overlaps(reports: Sequence[SegmentReport]) -> Iterator[Finding]:
    """Find segments that start below their name, inside the previous segment. No start can repair them."""
    for before, report in pairwise(reports):
        first, end = report.first_offset, before.next_offset
        if first is not None and first < min(report.place.base_offset, end):
            path = report.place.path(names.LOG)
            yield finding("log.overlaps-previous", path, at=0, offsets=(first, end), first_offset=first, end_before=end)


def _as_far_as_read(directory: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except (DiskFailed, AccessDenied) as error:
        yield unreadable(error, directory)


def _of_names(directory: str, there: Sequence[str], bases: set[int], *, was_clean: bool) -> Iterator[Finding]:
    for name in there:
        path, parsed = join(directory, name), parse_segment_file(name)
        if name in _OF_A_PARTITION:
            continue
        if name.endswith(names.DELETED):
            yield finding("partition.deleting", path)
        elif name.endswith(_ON_THE_WAY):
            yield finding("partition.leftover", path, severity=None if was_clean else Severity.INFO)
        elif parsed is None or parsed[1] not in (*names.SEGMENT_SUFFIXES, names.PRODUCER_SNAPSHOT):
            yield finding("partition.stray", path)
        elif parsed[1] in names.SEGMENT_SUFFIXES and parsed[0] not in bases:
            yield finding("partition.index-alone", path, severity=None if was_clean else Severity.INFO)


def _offset_to_compare(found: EpochRange, epochs: LeaderEpochs, log_start_offset: int | None) -> int | None:
    """The first offset of the range that the checkpoint must cover: the log start or the range's start."""
    is_above = log_start_offset is None or found.base_offset >= log_start_offset
    if is_above or epochs.epoch_at(found.base_offset) is not None:
        return found.base_offset
    return log_start_offset if log_start_offset is not None and log_start_offset < found.next_offset else None


def _size(storage: Storage, path: str) -> int:
    try:
        return storage.size(path)
    except LogError:
        return 0


def _listed(storage: Storage, path: str) -> list[str]:
    try:
        return storage.list(path)
    except LogError:
        return []
