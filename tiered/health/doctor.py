"""Checks of a node: versions, settings, log directories, limits, the manager. Each finding has a next step.

`tiered.health.doctor_store` checks the store and the content of both tiers.

The checks run one after another. An exception in one check becomes its finding, and the next check runs. The checks
write one small file in each log directory and a few objects under the probe's prefix in the store, and remove both.
Without `may_write` they write nothing. They may run while a manager works. The first word of a finding's code is its
check.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from local.errors import LogError
from local.names import CLEAN_SHUTDOWN, LOCK
from local.storage import DiskStorage, Storage, join
from local.verify.findings import Finding, Severity, error, passed, warning
from tiered.config.units import counted, format_bytes, format_lasted
from tiered.node.problems import directory_holder, flat, lock_holder, next_step

if TYPE_CHECKING:
    from remote.store import ObjectStore
    from tiered.config.config import Config
    from tiered.inspect.log_dir_usage import LogDirStatus

FSYNC_SLOW_MS = 100
FILES_PER_PARTITION = 3  # of an active segment: .log, .index, .timeindex
FILES_BESIDE = 256  # connections, maps, checkpoints
PROBE = ".tiered-doctor-probe"

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

_FAILED = error("*.failed", "an error ended the check", "run the named command, and read the cause")
_OLD = error("versions.old", "{package} {version} ({purpose}) is older than {least}", "pip install --upgrade {package}")
_PURE = warning(
    "kernels.pure",
    "pure Python kernels: many times slower",
    "install a C compiler and reinstall tiered; unset TIERED_PURE_KERNELS",
)
_UNUSABLE = error("log-dirs.unusable", "the log directory cannot be used", "mount it, or correct its owner")
_NO_PERMISSION = error(
    "log-dirs.permission", "no permission to read and write", "run as the owner of the files, or chown"
)
_NOT_CLOSED = warning(
    "lock.not-closed", "free, and not cleanly closed; the next start recovers the logs", "tiered run --once"
)
_LITTLE_SPACE = warning("space.low", "{free}", "lower local.retention.*, or add a disk")
_NO_SPACE = error(
    "space.below-minimum",
    "{free}, below log.dir.free.*.min",
    "lower local.retention.*, or add a disk; tiered plan",
)
_SLOW_FSYNC = warning(
    "fsync.slow",
    "an fsync takes more than 100 ms",
    "durable appends wait that long; use a local disk, or larger batches",
)
_FEW_FILES = error(
    "open-files.low",
    "{limit} allowed, {partitions} partitions may need {needed}",
    "ulimit -n {needed}, or LimitNOFILE={needed} in the unit",
)
_FUTURE_REPORT = error(
    "work.clock", "the last maintenance round is in the future: this clock was set back", "set the clock by NTP"
)
_SILENT = warning(
    "work.silent", "a process holds the directory, its report is old", "check its log, and the free space of the disk"
)
_NOT_ENDED = warning(
    "work.not-ended",
    "process {pid} finished its last maintenance round {age} ago and did not end cleanly",
    "check its log; tiered run",
)
_PROBLEM = error("work.problem", "{problem}, for {lasted}", "tiered status")
_PAUSED = warning("pauses.paused", "uploads paused{lasted}{reason}", "tiered resume")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The machine, as the checks see it.

    `clock_ms` is the wall clock, `files_max` the limit of open files (None: unknown), `lock_holder` the process that
    holds a lock file (None: no visible process).
    """

    storage: Storage
    clock_ms: Callable[[], int]
    files_max: int | None
    lock_holder: Callable[[str], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """Subject of the checks. `store` None: no store is configured.

    `may_write`: the checks may write their temporary files and objects. `is_away` returns whether the store was asked
    and has not answered.
    """

    config: Config
    around: Surroundings
    store: ObjectStore | None = None
    may_write: bool = True
    is_away: Callable[[], bool] = lambda: False

    @property
    def places(self) -> list[tuple[Storage, str]]:
        """The log directories."""
        return [(self.around.storage, root) for root in self.config.data_dirs]


Check = Callable[[Patient], Iterable[Finding]]


def examine(config: Config, *, may_write: bool = True, around: Surroundings | None = None) -> Iterator[Finding]:
    """Yield findings as they are made: the machine, the store, then the content of both.

    Closes everything that it opens.
    """
    from tiered.health.doctor_store import PARTITION_CHECKS, STORE_CHECKS
    from tiered.stores.configured_store import BriefStore

    patient = Patient(config=config, around=around or surroundings(), may_write=may_write)
    yield from run_checks(patient, NODE_CHECKS)
    if config.remote_url is None:
        yield not_checked("store", "no store is configured: nothing is tiered")
        yield from run_checks(patient, PARTITION_CHECKS)
        return
    try:
        store = BriefStore.of(config)
    except (LogError, ImportError) as problem:
        yield failed("store", problem)
        return
    assert store is not None, "a store is configured"
    patient = replace(patient, store=store.as_store, is_away=lambda: store.is_away)
    try:
        yield from run_checks(patient, STORE_CHECKS)
        yield from run_checks(patient, PARTITION_CHECKS)
    finally:
        store.close()


def run_checks(patient: Patient, checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """Yield the findings of each check; an exception becomes a finding."""
    for name, check in checks:
        try:
            yield from check(patient)
        except (LogError, OSError, ImportError) as problem:
            yield failed(name, problem)


def failed(check: str, problem: BaseException, where: str = "") -> Finding:
    """Convert an error to a finding."""
    step = None
    if isinstance(problem, ImportError):
        step = f"pip install {problem.name or 'the package'}"
    elif isinstance(problem, LogError):
        step = next_step(problem)
    return replace(_FAILED.found(where, what=flat(problem), next_step=step), code=f"{check}.failed")


def not_checked(check: str, what: str, where: str = "") -> Finding:
    """Return the result of a check that was impossible or not wanted."""
    return passed(check, what, where, severity=Severity.SKIPPED)


def surroundings() -> Surroundings:
    """Return the access to this machine."""
    return Surroundings(
        storage=DiskStorage(),
        clock_ms=lambda: time.time_ns() // 1_000_000,
        files_max=_files_max(),
        lock_holder=lock_holder,
    )


def _files_max() -> int | None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def versions(patient: Patient) -> Iterator[Finding]:
    """Report the installed versions, and packages that are too old."""
    from importlib.metadata import PackageNotFoundError, version

    from tiered import __version__

    installed = {}
    for name, _, _ in _PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    packages = ", ".join(f"{name} {text}" for name, text in installed.items())
    yield passed("versions", f"tiered {__version__}, Python {platform.python_version()}, {packages}")
    for name, purpose, least in _PACKAGES:
        numbers = takewhile(str.isdigit, installed.get(name, "").split("."))  # the leading numbers of a version
        if name in installed and tuple(int(each) for each in numbers) < least:
            wanted = ".".join(map(str, least))
            yield _OLD.found("", package=name, version=installed[name], purpose=purpose, least=wanted)


def kernels(patient: Patient) -> Iterator[Finding]:
    """Report whether the compiled kernels or the slow ones run."""
    from local.kernels import implementation

    yield passed("kernels", "compiled") if implementation() == "compiled" else _PURE.found("")


def settings(patient: Patient) -> Iterator[Finding]:
    """Report settings of topics that cannot work or hardly make sense: findings of `tiered config lint`."""
    from tiered.health.lint import lint_config
    from tiered.node.topic_registry import TopicRegistry

    topics = TopicRegistry(patient.places).all()
    found = lint_config(patient.config, topics, with_defaults=False)
    for each in found:
        named = ", ".join(each.topics[:5]) + (" ..." if len(each.topics) > 5 else "")
        yield replace(each, where=f"topic {named}" if named else "")
    if not found:
        yield passed("settings", f"sound for {counted(len(topics), 'topic')}")


def key_ring(patient: Patient) -> Iterator[Finding]:
    """Check that a configured key file can be read, and only by its owner."""
    from tiered.config.secrets import load_key_ring

    ring = load_key_ring(patient.config.key_ring, os.environ)
    if ring:
        yield passed("key-ring", f"keys: {ring!r}")


def log_directories(patient: Patient) -> Iterator[Finding]:
    """Check each directory: existence, permissions, state, lock holder, free space, fsync time."""
    from tiered.inspect.log_dir_usage import describe_log_dirs

    for status in describe_log_dirs(patient.config, storage=patient.around.storage):
        root = status.facts.path
        if status.error is not None:
            yield _UNUSABLE.found(root, what=flat(status.error))
        elif not patient.around.storage.is_directory(root):
            yield passed("log-dirs", "does not exist yet; the first topic creates it", root)
        else:
            if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
                yield _NO_PERMISSION.found(root)
            yield _lock(patient, root)
            yield _space(status, patient.config)
            if patient.may_write:
                yield _fsync(patient, root)


def _lock(patient: Patient, root: str) -> Finding:
    holder = patient.around.lock_holder(join(root, LOCK))
    if holder is not None:
        return passed("lock", f"locked by process {holder}", root)
    if patient.around.storage.exists(join(root, CLEAN_SHUTDOWN)):
        return passed("lock", "free, and cleanly closed", root)
    return _NOT_CLOSED.found(root)


def _space(status: LogDirStatus, config: Config) -> Finding:
    facts = status.facts
    if facts.free_bytes is None or not facts.total_bytes:
        return not_checked("space", "the file system does not report its free space", facts.path)
    share = facts.free_bytes / facts.total_bytes
    free = f"{format_bytes(facts.free_bytes)} free of {format_bytes(facts.total_bytes)} ({share:.0%})"
    if facts.free_bytes < config.int_of("log.dir.free.bytes.min") or share < config.dir_free_share_min:
        return _NO_SPACE.found(facts.path, free=free)
    return _LITTLE_SPACE.found(facts.path, free=free) if share < 0.05 else passed("space", free, facts.path)


def _fsync(patient: Patient, root: str) -> Finding:
    """Take the median of five: a single fsync may wait for another process."""
    storage, path, took = patient.around.storage, join(root, PROBE), []
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
    return _SLOW_FSYNC.found(root, what=what) if median > FSYNC_SLOW_MS else passed("fsync", what, root)


def open_files(patient: Patient) -> Iterator[Finding]:
    """Check that the limit of open files allows an active segment for every partition."""
    from tiered.node.topic_registry import TopicRegistry

    count = sum(topic.partition_count for topic in TopicRegistry(patient.places).all())
    needed, limit = FILES_PER_PARTITION * count + FILES_BESIDE, patient.around.files_max
    if limit is not None and limit < needed:
        yield _FEW_FILES.found("", limit=limit, partitions=count, needed=needed)
        return
    allowed = "no limit" if limit is None else f"{limit} allowed"
    yield passed("open-files", f"{allowed}, {count} partitions may need {needed}")


def work(patient: Patient) -> Iterator[Finding]:
    """Report the last running manager and its problems."""
    from tiered.node.problems import read_report
    from tiered.status.status_report import holder_line

    report = read_report(patient.places)
    now_ms = patient.around.clock_ms()
    holder = directory_holder(patient.config.data_dirs, patient.around.lock_holder)
    if report is None:
        nothing = "no manager has written a report yet"
        yield passed("work", nothing if holder is None else holder_line(holder, None, now_ms))
        return
    age = format_lasted(now_ms - report.seen_ms)
    if report.seen_ms > now_ms + 60_000:
        yield _FUTURE_REPORT.found("")
    if report.is_at_work(now_ms):
        yield passed("work", f"process {report.pid} finished a maintenance round {age} ago")
    elif holder is not None:
        what = holder_line(holder, report, now_ms)
        is_silent = holder == report.pid and not report.is_ended
        yield _SILENT.found("", what=what) if is_silent else passed("work", what)
    elif report.is_ended:
        yield passed("work", f"no manager runs; the last one ended cleanly {age} ago")
    else:
        yield _NOT_ENDED.found("", pid=report.pid, age=age)
    for each in report.troubles:
        where = str(each.name) if each.name is not None else "the whole node"
        yield _PROBLEM.found(where, problem=each.message, lasted=format_lasted(report.round_ms - each.since_ms))


def pauses(patient: Patient) -> Iterator[Finding]:
    """Report topics with paused uploads, and since when."""
    from tiered.node.upload_pause import paused_topics

    now_ms = patient.around.clock_ms()
    paused = paused_topics(patient.places)
    for name, pause in sorted(paused.items()):
        lasted = "" if pause.since_ms is None else f" for {format_lasted(now_ms - pause.since_ms)}"
        step = None if pause.is_of_all or pause.since_ms is None else f"tiered resume {name}"
        reason = f": {pause.reason}" if pause.reason else ""
        yield _PAUSED.found(f"topic {name}", next_step=step, lasted=lasted, reason=reason)
    if not paused:
        yield passed("pauses", "no uploads are paused")


NODE_CHECKS: Iterable[tuple[str, Check]] = (
    ("versions", versions),
    ("kernels", kernels),
    ("settings", settings),
    ("key-ring", key_ring),
    ("log-dirs", log_directories),
    ("open-files", open_files),
    ("work", work),
    ("pauses", pauses),
)
