"""Checks of a node, its store and the content of both tiers. Each finding has a next step.

An exception in one check becomes its finding. The checks write and delete one small file in each log directory and a
few probe objects, nothing without `may_write`. They may run while a manager works.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile

from local.errors import LogError, NotFound
from local.kernels import implementation
from local.names import CLEAN_SHUTDOWN, LOCK
from local.storage import DiskStorage, Storage, join
from local.verify.findings import Finding, Severity, finding, passed
from remote.gc.object_deletion import DeleteReason, delete_objects
from remote.gc.pins import list_pins
from remote.keys import PROBES, new_ulid
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest, lacks_seal, size_of
from remote.store import ObjectStore
from remote.store.probe import probe_store
from remote.store.unfinished_uploads import UnfinishedUploads
from tiered import __version__
from tiered.config.config import Config
from tiered.config.secrets import load_key_ring
from tiered.config.units import counted, format_bytes, format_lasted, format_ms
from tiered.health.lint import lint_config
from tiered.inspect.log_dir_usage import LogDirStatus, describe_log_dirs
from tiered.manager.manager import LogManager
from tiered.node.problems import (
    directory_holder,
    flat,
    group_problems,
    lock_holder,
    next_step,
    problems_of,
    read_report,
    shared_places,
)
from tiered.node.topic_registry import TopicRegistry
from tiered.node.upload_pause import paused_topics
from tiered.partition.partition import Partition
from tiered.partition.reconciliation import check_same_records
from tiered.read.partition_source import PartitionSource
from tiered.status.status_report import holder_line
from tiered.stores.configured_store import BriefStore, store_options

FSYNC_SLOW_MS = 100
FILES_PER_PARTITION = 3  # of an active segment: .log, .index, .timeindex
FILES_BESIDE = 256  # connections, maps, checkpoints
PROBE = ".tiered-doctor-probe"
SKEW_WARNING_MS = 30_000
SKEW_ERROR_MS = 5 * 60_000  # S3 refuses signatures that are 15 minutes off
RESOLUTION_MS = 1000  # stores report whole seconds
PARTITIONS_LOOKED_AT = 200  # pins cost a listing each
PIN_MS_LONG = 7 * 86_400_000
UPLOAD_MS_OLD = 86_400_000
MANIFEST_BYTES_LARGE = 8 << 20

# Package, purpose, minimum version. Only package metadata is read; no package is imported.
_PACKAGES = (
    ("fsspec", "every store", (2026, 2)),
    ("s3fs", "s3://", (2026, 2)),
    ("obstore", "s3://, the faster client", (0, 12)),
    ("boto3", "unfinished uploads of S3", (1, 42)),
    ("hdfs-native", "hdfs://", (0, 14)),
    ("cryptography", "encryption", (42,)),
    ("pyarrow", "manifest pages, Spark", (18,)),
    ("pyspark", "Spark", (4, 0)),
)


def _files_max() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """`store` None: not configured. `is_away`: the store answered no call, one failed. `files_max` None: no limit."""

    config: Config
    store: ObjectStore | None = None
    may_write: bool = True
    is_away: Callable[[], bool] = lambda: False
    storage: Storage = field(default_factory=DiskStorage)
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    files_max: int | None = field(default_factory=_files_max)
    lock_holder: Callable[[str], int | None] = lock_holder

    @property
    def bucket(self) -> ObjectStore:
        assert self.store is not None, "the checks of the store need one"
        return self.store

    @property
    def places(self) -> list[tuple[Storage, str]]:
        return [(self.storage, root) for root in self.config.data_dirs]


Check = Callable[[Patient], Iterable[Finding]]


def examine(config: Config, *, may_write: bool = True) -> Iterator[Finding]:
    """Yield findings as they are made: of the machine, the store, then the content of both."""
    return examine_node(Patient(config=config, may_write=may_write))


def examine_node(patient: Patient) -> Iterator[Finding]:
    yield from run_checks(patient, NODE_CHECKS)
    if patient.config.remote_url is None:
        yield not_checked("store", "no store is configured: nothing is tiered")
        yield from run_checks(patient, PARTITION_CHECKS)
        return
    try:
        store = BriefStore.of(patient.config)
    except (LogError, ImportError) as problem:
        yield failed("store", problem)
        return
    assert store is not None, "a store is configured"
    patient = replace(patient, store=store, is_away=lambda: store.is_away)
    try:
        yield from run_checks(patient, STORE_CHECKS)
        yield from run_checks(patient, PARTITION_CHECKS)
    finally:
        store.close()


def run_checks(patient: Patient, checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    for name, check in checks:
        try:
            yield from check(patient)
        except (LogError, OSError, ImportError) as problem:
            yield failed(name, problem)


def failed(check: str, problem: BaseException, where: str = "") -> Finding:
    step = None
    if isinstance(problem, ImportError):
        step = f"pip install {problem.name or 'the package'}"
    elif isinstance(problem, LogError):
        step = next_step(problem)
    return replace(finding("*.failed", where, what=flat(problem), next_step=step), code=f"{check}.failed")


def not_checked(check: str, what: str, where: str = "") -> Finding:
    return passed(check, what, where, severity=Severity.SKIPPED)


def versions(patient: Patient) -> Iterator[Finding]:
    installed = {}
    for name, _, _ in _PACKAGES:
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    packages = ", ".join(f"{name} {text}" for name, text in installed.items())
    yield passed("versions", f"tiered {__version__}, Python {platform.python_version()}, {packages}")
    for name, purpose, least in _PACKAGES:
        numbers = takewhile(str.isdigit, installed.get(name, "").split("."))  # the leading numbers of a version
        if name in installed and tuple(int(each) for each in numbers) < least:
            wanted = ".".join(map(str, least))
            yield finding("versions.old", "", package=name, version=installed[name], purpose=purpose, least=wanted)


def kernels(patient: Patient) -> Iterator[Finding]:
    yield passed("kernels", "compiled") if implementation() == "compiled" else finding("kernels.pure", "")


def settings(patient: Patient) -> Iterator[Finding]:
    topics = TopicRegistry(patient.places).all()
    found = lint_config(patient.config, topics, with_defaults=False)
    for each in found:
        named = ", ".join(each.topics[:5]) + (" ..." if len(each.topics) > 5 else "")
        yield replace(each, where=f"topic {named}" if named else "")
    if not found:
        yield passed("settings", f"sound for {counted(len(topics), 'topic')}")


def key_ring(patient: Patient) -> Iterator[Finding]:
    ring = load_key_ring(patient.config.key_ring, os.environ)
    if ring:
        yield passed("key-ring", f"keys: {ring!r}")


def log_directories(patient: Patient) -> Iterator[Finding]:
    for status in describe_log_dirs(patient.config, storage=patient.storage):
        root = status.facts.path
        if status.error is not None:
            yield finding("log-dirs.unusable", root, what=flat(status.error))
        elif not patient.storage.is_directory(root):
            yield passed("log-dirs", "does not exist yet; the first topic creates it", root)
        else:
            if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
                yield finding("log-dirs.permission", root)
            yield _lock(patient, root)
            yield _space(status, patient.config)
            if patient.may_write:
                yield _fsync(patient, root)


def _lock(patient: Patient, root: str) -> Finding:
    holder = patient.lock_holder(join(root, LOCK))
    if holder is not None:
        return passed("lock", f"locked by process {holder}", root)
    if patient.storage.exists(join(root, CLEAN_SHUTDOWN)):
        return passed("lock", "free, and cleanly closed", root)
    return finding("lock.not-closed", root)


def _space(status: LogDirStatus, config: Config) -> Finding:
    facts = status.facts
    if facts.free_bytes is None or not facts.total_bytes:
        return not_checked("space", "the file system does not report its free space", facts.path)
    share = facts.free_bytes / facts.total_bytes
    free = f"{format_bytes(facts.free_bytes)} free of {format_bytes(facts.total_bytes)} ({share:.0%})"
    if facts.free_bytes < config.int_of("log.dir.free.bytes.min") or share < config.dir_free_share_min:
        return finding("space.below-minimum", facts.path, free=free)
    return finding("space.low", facts.path, free=free) if share < 0.05 else passed("space", free, facts.path)


def _fsync(patient: Patient, root: str) -> Finding:
    """Report the median time of five fsyncs: a single one may wait for another process."""
    storage, path, took = patient.storage, join(root, PROBE), []
    file = storage.create(path)
    try:
        for _ in range(5):
            file.append(b"tiered doctor\n")
            start = time.perf_counter()
            file.sync()
            took.append((time.perf_counter() - start) * 1000)
    finally:
        file.close()
        storage.unlink(path)
    median = sorted(took)[2]
    what = f"an fsync takes {median:.1f} ms"
    return finding("fsync.slow", root, what=what) if median > FSYNC_SLOW_MS else passed("fsync", what, root)


def open_files(patient: Patient) -> Iterator[Finding]:
    count = sum(topic.partition_count for topic in TopicRegistry(patient.places).all())
    needed, limit = FILES_PER_PARTITION * count + FILES_BESIDE, patient.files_max
    if limit is not None and limit < needed:
        yield finding("open-files.low", "", limit=limit, partitions=count, needed=needed)
        return
    allowed = "no limit" if limit is None else f"{limit} allowed"
    yield passed("open-files", f"{allowed}, {count} partitions may need {needed}")


def work(patient: Patient) -> Iterator[Finding]:
    report = read_report(patient.places)
    now_ms = patient.clock_ms()
    holder = directory_holder(patient.config.data_dirs, patient.lock_holder)
    if report is None:
        nothing = "no manager has written a report yet"
        yield passed("work", nothing if holder is None else holder_line(holder, None, now_ms))
        return
    age = format_lasted(now_ms - report.seen_ms)
    if report.seen_ms > now_ms + 60_000:
        yield finding("work.clock", "")
    if report.is_at_work(now_ms):
        yield passed("work", f"process {report.pid} finished a maintenance round {age} ago")
    elif holder is not None:
        what = holder_line(holder, report, now_ms)
        is_silent = holder == report.pid and not report.is_ended
        yield finding("work.silent", "", what=what) if is_silent else passed("work", what)
    elif report.is_ended:
        yield passed("work", f"no manager runs; the last one ended cleanly {age} ago")
    else:
        yield finding("work.not-ended", "", pid=report.pid, age=age)
    for each in report.troubles:
        where = str(each.name) if each.name is not None else "the whole node"
        yield finding(
            "work.problem", where, problem=each.message, lasted=format_lasted(report.round_ms - each.since_ms)
        )


def pauses(patient: Patient) -> Iterator[Finding]:
    now_ms = patient.clock_ms()
    paused = paused_topics(patient.places)
    for name, pause in sorted(paused.items()):
        lasted = "" if pause.since_ms is None else f" for {format_lasted(now_ms - pause.since_ms)}"
        step = None if pause.is_of_all or pause.since_ms is None else f"tiered resume {name}"
        reason = f": {pause.reason}" if pause.reason else ""
        yield finding("pauses.paused", f"topic {name}", next_step=step, lasted=lasted, reason=reason)
    if not paused:
        yield passed("pauses", "no uploads are paused")


def permissions(patient: Patient) -> Iterator[Finding]:
    store, clock = patient.bucket, patient.clock_ms
    start_ms = clock()
    try:
        store.list_prefixes("")
    except LogError as problem:
        yield failed("store", problem)
        return
    yield passed("store", f"{store.url} replies to a listing in {clock() - start_ms} ms")
    if not patient.may_write:
        yield not_checked("permissions", "creating and deleting were not tried")
        return
    key, body = f"{PROBES}{new_ulid(start_ms)}", b"tiered doctor\n"
    done: list[str] = []
    before = after = clock()
    try:
        store.put_if_absent(key, body)
        after = clock()
        done.append("create")
        if store.get(key) != body:
            yield finding("permissions.other-bytes", "")
        done.append("read")
        modified_ms = store.head(key).modified_ms
        done.append("look")
    except LogError as problem:
        yield failed("permissions", problem)
        modified_ms = None
    finally:
        yield from _deleted(store, key, done)
    yield passed("permissions", f"may list, {', '.join(done)}")
    if modified_ms is not None:
        yield _skew(modified_ms, before, after)


def _deleted(store: ObjectStore, key: str, done: list[str]) -> Iterator[Finding]:
    if not done:
        return
    try:
        delete_objects(store, "", [key], DeleteReason.PROBE)
        store.head(key)
    except NotFound:
        done.append("delete")
    except LogError as problem:
        yield failed("permissions", problem)
    else:
        yield finding("permissions.delete", "", object=key)


def _skew(modified_ms: int, before_ms: int, after_ms: int) -> Finding:
    """Report the smallest difference of the clocks that the measurement proves."""
    late, early = modified_ms - after_ms, before_ms - (modified_ms + RESOLUTION_MS)
    skew_ms = max(late, early, 0)
    if skew_ms < SKEW_WARNING_MS:
        return passed("clock", f"the clocks of the store and this machine differ by {format_ms(skew_ms)} at most")
    severity = Severity.ERROR if skew_ms >= SKEW_ERROR_MS else Severity.WARNING
    relation = "behind" if late > early else "ahead of"
    return finding("clock.skew", "", severity=severity, skew=format_ms(skew_ms), relation=relation)


def guarantees(patient: Patient) -> Iterator[Finding]:
    if not patient.may_write:
        yield not_checked("guarantees", "not tried")
        return
    if probe_store(patient.bucket, now_ms=patient.clock_ms(), is_racing=True).allows_writers:
        yield passed("guarantees", "the store supports create-if-absent; one of several concurrent creates succeeds")
    else:
        yield finding("guarantees.single-writer" if patient.config.is_single_writer else "guarantees.overwrites", "")


def unfinished(patient: Patient) -> Iterator[Finding]:
    """Report old unfinished uploads: they cost money, and no listing shows them."""
    url, now_ms = patient.config.remote_url or "", patient.clock_ms()
    if not url.startswith("s3://"):
        return
    if patient.is_away():  # a separate client with its own timeouts lists them
        yield not_checked("uploads", "the store did not reply")
        return
    options = store_options(patient.config)
    options.pop("client", None)
    found = UnfinishedUploads(url, options).list()
    old = [each for each in found if now_ms - each.begun_ms > UPLOAD_MS_OLD]
    if old:
        age = format_ms((now_ms - min(each.begun_ms for each in old)) // 3_600_000 * 3_600_000)
        yield finding("uploads.old", "", count=len(old), age=age)
    else:
        yield passed("uploads", f"{len(found)} unfinished, none older than a day")


def partitions(patient: Patient) -> Iterator[Finding]:
    now_ms = patient.clock_ms()
    with LogManager.open(
        patient.config, now_ms=now_ms, read_only=True, storage=patient.storage, store=patient.store
    ) as manager:
        for group in group_problems(problems_of(manager.problems)):
            name = group.first.partition
            step = next_step(manager.problems[name]) if name is not None else None
            yield finding("partitions.unopened", shared_places(group.places), what=group.what, next_step=step)
        held = manager.partitions.all()
        count = sum(topic.partition_count for topic in manager.topics.all())
        opened = sum(each.name not in manager.problems for each in held)
        # A partition with a problem does not count, although its log opens: a start refuses it.
        what = f"{opened} of {count} can be opened"
        others = not_checked("partitions", f"{what}; the others are listed above")
        yield passed("partitions", what) if opened == count else others
        for each in held:
            yield from _of_manifest(each)
        yield from _pins(patient, held, now_ms)


def _of_manifest(held: Partition) -> Iterator[Finding]:
    manifest, where = held.manifest(), str(held.name)
    if manifest is None:
        return
    if lacks_seal(manifest):
        yield finding(
            "index.unsealed", where, next_step=f"upgrade all readers, then: tiered rotate-keys {manifest.topic}"
        )
    if held.tier.error is None and held.log.size_bytes and held.log.next_offset < manifest.allocated_end_offset:
        yield _behind(held, manifest)
    size_bytes = size_of(manifest)
    if size_bytes > MANIFEST_BYTES_LARGE:
        pending = counted(len(manifest.pending_deletes), "pending delete")
        yield finding("index.large", where, size=format_bytes(size_bytes), pending=pending)


def _behind(held: Partition, manifest: Manifest) -> Finding:
    try:
        check_same_records(held, PartitionSource(held.name, None, held.remote, held.metadata), manifest)
    except LogError as problem:
        return failed("partitions", problem, str(held.name))
    return finding("index.behind", str(held.name), local=held.log.next_offset, remote=manifest.allocated_end_offset)


def _pins(patient: Patient, held: Iterable[Partition], now_ms: int) -> Iterator[Finding]:
    if patient.store is None:
        return
    with_manifests = [each for each in held if isinstance(each.metadata, MetadataLog)]
    readers = forks = 0
    for each in with_manifests[:PARTITIONS_LOOKED_AT]:
        for pin in list_pins(patient.store, each.prefix):
            remaining_ms = pin.expires_ms - now_ms
            if pin.fork is not None and remaining_ms <= 0:
                forks += 1
                continue
            readers += 1
            if remaining_ms > PIN_MS_LONG:
                key = f"{each.prefix}{pin.key}"
                step = f"no object that it names is deleted until then; delete {key} if its reader has ended"
                remaining = format_ms(remaining_ms // 1000 * 1000)
                yield finding("pins.long", str(each.name), next_step=step, holder=pin.holder, remaining=remaining)
            elif remaining_ms < -PIN_MS_LONG:
                age = format_ms(-remaining_ms // 1000 * 1000)
                yield finding("pins.expired", str(each.name), holder=pin.holder, age=age)
    more = f", {counted(forks, 'fork')} of partitions" if forks else ""
    if len(with_manifests) > PARTITIONS_LOOKED_AT:
        more += f", of the first {PARTITIONS_LOOKED_AT} partitions"
    yield passed("pins", f"{counted(readers, 'reader')} with pins on manifests{more}")


NODE_CHECKS: Sequence[tuple[str, Check]] = (
    ("versions", versions),
    ("kernels", kernels),
    ("settings", settings),
    ("key-ring", key_ring),
    ("log-dirs", log_directories),
    ("open-files", open_files),
    ("work", work),
    ("pauses", pauses),
)
STORE_CHECKS: Sequence[tuple[str, Check]] = (
    ("store", permissions),
    ("guarantees", guarantees),
    ("uploads", unfinished),
)
PARTITION_CHECKS: Sequence[tuple[str, Check]] = (("partitions", partitions),)
