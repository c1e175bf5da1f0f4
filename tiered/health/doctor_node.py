"""The doctor's checks of the machine: versions, settings, log directories, limits, the manager."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from local.names import CLEAN_SHUTDOWN, LOCK
from local.storage import join
from tiered.config.units import counted, format_bytes, format_ms
from tiered.health.doctor import Check, Finding, Patient, State
from tiered.node.work_report import directory_holder
from tiered.status.status_report import holder_line

if TYPE_CHECKING:
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


def versions(patient: Patient) -> Iterator[Finding]:
    """Report the installed versions, and packages that are too old."""
    from importlib.metadata import PackageNotFoundError, version

    from tiered import __version__

    found, old = [], []
    for name, purpose, least in _PACKAGES:
        try:
            text = version(name)
        except PackageNotFoundError:
            continue
        found.append(f"{name} {text}")
        if _numbers(text) < least:
            old.append(f"{name} {text} ({purpose}) is older than {'.'.join(map(str, least))}")
    what = f"tiered {__version__}, Python {platform.python_version()}, {', '.join(found)}"
    yield Finding(check="versions", state=State.OK, what=what)
    for each in old:
        step = f"pip install --upgrade {each.split()[0]}"
        yield Finding(check="versions", state=State.ERROR, what=each, next_step=step)


def kernels(patient: Patient) -> Iterator[Finding]:
    """Report whether the compiled kernels or the slow ones run."""
    from local.kernels import implementation

    if implementation() == "compiled":
        yield Finding(check="kernels", state=State.OK, what="compiled")
        return
    step = "install a C compiler and reinstall tiered; unset TIERED_PURE_KERNELS"
    yield Finding(check="kernels", state=State.WARNING, what="pure Python kernels: many times slower", next_step=step)


def settings(patient: Patient) -> Iterator[Finding]:
    """Report settings of topics that cannot work or hardly make sense: findings of `tiered config lint`."""
    from tiered.health.lint import Severity, lint_config
    from tiered.node.topic_registry import TopicRegistry

    config = patient.config
    topics = TopicRegistry([(patient.around.storage, root) for root in config.data_dirs]).all()
    found = lint_config(config, topics, with_defaults=False)
    for each in found:
        named = ", ".join(each.topics[:5]) + (" ..." if len(each.topics) > 5 else "")
        what = f"topic {named}: {each.what}" if named else each.what
        state = State.ERROR if each.severity is Severity.ERROR else State.WARNING
        yield Finding(check="settings", state=state, what=what, next_step=each.next_step)
    if not found:
        yield Finding(check="settings", state=State.OK, what=f"sound for {counted(len(topics), 'topic')}")


def log_directories(patient: Patient) -> Iterator[Finding]:
    """Check each directory: existence, permissions, state, lock holder, free space, fsync time."""
    from tiered.inspect.log_dir_usage import describe_log_dirs

    config = patient.config
    for status in describe_log_dirs(config, storage=patient.around.storage):
        root = status.facts.path
        if status.error is not None:
            yield _bad("log-dirs", f"{root}: {' '.join(str(status.error).split())}", "mount it, or correct its owner")
            continue
        if not patient.around.storage.is_directory(root):
            yield Finding(
                check="log-dirs", state=State.OK, what=f"{root}: does not exist yet; the first topic creates it"
            )
            continue
        yield from _access(root)
        yield from _lock(patient, root)
        yield from _space(status, config.int_of("log.dir.free.bytes.min"), config.dir_free_share_min)
        if patient.may_write:
            yield from _fsync(patient, root)


def _access(root: str) -> Iterator[Finding]:
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        yield _bad("log-dirs", f"{root}: no permission to read and write", "run as the owner of the files, or chown")


def _lock(patient: Patient, root: str) -> Iterator[Finding]:
    holder = patient.around.lock_holder(join(root, LOCK))
    if holder is not None:
        yield Finding(check="lock", state=State.OK, what=f"{root}: locked by process {holder}")
    elif patient.around.storage.exists(join(root, CLEAN_SHUTDOWN)):
        yield Finding(check="lock", state=State.OK, what=f"{root}: free, and cleanly closed")
    else:
        what = f"{root}: free, and not cleanly closed; the next start recovers the logs"
        yield Finding(check="lock", state=State.WARNING, what=what, next_step="tiered run --once")


def _space(status: LogDirStatus, bytes_min: int, share_min: float) -> Iterator[Finding]:
    facts = status.facts
    if facts.free_bytes is None or not facts.total_bytes:
        yield Finding(
            check="space", state=State.SKIPPED, what=f"{facts.path}: the file system does not report its free space"
        )
        return
    share = facts.free_bytes / facts.total_bytes
    what = f"{facts.path}: {format_bytes(facts.free_bytes)} free of {format_bytes(facts.total_bytes)} ({share:.0%})"
    if facts.free_bytes < bytes_min or share < share_min:
        yield _bad("space", f"{what}, below log.dir.free.*.min", "lower local.retention.*, or add a disk; tiered plan")
    elif share < 0.05:
        step = "lower local.retention.*, or add a disk"
        yield Finding(check="space", state=State.WARNING, what=what, next_step=step)
    else:
        yield Finding(check="space", state=State.OK, what=what)


def _fsync(patient: Patient, root: str) -> Iterator[Finding]:
    """Take the median of five: a single fsync may wait for another process."""
    storage, path, took = patient.around.storage, join(root, PROBE), []
    file = storage.create(path)
    try:
        for _ in range(5):
            file.append(b"tiered doctor\n")
            begun = time.perf_counter()
            file.sync()
            took.append((time.perf_counter() - begun) * 1000)
    finally:
        file.close()
        storage.unlink(path)
    median = sorted(took)[2]
    what = f"{root}: an fsync takes {median:.1f} ms"
    if median > FSYNC_SLOW_MS:
        step = "durable appends wait that long; use a local disk, or larger batches"
        yield Finding(check="fsync", state=State.WARNING, what=what, next_step=step)
    else:
        yield Finding(check="fsync", state=State.OK, what=what)


def open_files(patient: Patient) -> Iterator[Finding]:
    """Check that the limit of open files allows an active segment for every partition."""
    from tiered.node.topic_registry import TopicRegistry

    registry = TopicRegistry([(patient.around.storage, root) for root in patient.config.data_dirs])
    count = sum(topic.partition_count for topic in registry.all())
    needed, limit = FILES_PER_PARTITION * count + FILES_BESIDE, patient.around.files_max
    if limit is None or limit >= needed:
        allowed = "no limit" if limit is None else f"{limit} allowed"
        yield Finding(check="open-files", state=State.OK, what=f"{allowed}, {count} partitions may need {needed}")
        return
    what = f"{limit} allowed, {count} partitions may need {needed}"
    yield _bad("open-files", what, f"ulimit -n {needed}, or LimitNOFILE={needed} in the unit")


def work(patient: Patient) -> Iterator[Finding]:
    """Report the last running manager and its problems."""
    from tiered.node.work_report import read_report

    report = read_report([(patient.around.storage, root) for root in patient.config.data_dirs])
    now_ms = patient.around.clock_ms()
    holder = directory_holder(patient.config.data_dirs, patient.around.lock_holder)
    if report is None:
        what = "no manager has written a report yet" if holder is None else holder_line(holder, None, now_ms)
        yield Finding(check="work", state=State.OK, what=what)
        return
    age = format_ms(max(0, now_ms - report.seen_ms) // 1000 * 1000)
    if report.seen_ms > now_ms + 60_000:
        yield _bad(
            "work", "the last maintenance round is in the future: this clock was set back", "set the clock by NTP"
        )
    if report.is_at_work(now_ms):
        yield Finding(check="work", state=State.OK, what=f"process {report.pid} finished a maintenance round {age} ago")
    elif holder is not None:
        is_same = holder == report.pid and not report.is_ended
        state, step = (State.WARNING, "check its log, and the free space of the disk") if is_same else (State.OK, "")
        yield Finding(check="work", state=state, what=holder_line(holder, report, now_ms), next_step=step)
    elif report.is_ended:
        yield Finding(check="work", state=State.OK, what=f"no manager runs; the last one ended cleanly {age} ago")
    else:
        what = f"process {report.pid} finished its last maintenance round {age} ago and did not end cleanly"
        yield Finding(check="work", state=State.WARNING, what=what, next_step="check its log; tiered run")
    for each in report.troubles:
        lasted = format_ms(max(0, report.round_ms - each.since_ms) // 1000 * 1000)
        where = each.name if each.name is not None else "the whole node"
        yield _bad("work", f"{where}: {each.message}, for {lasted}", "tiered status")


def pauses(patient: Patient) -> Iterator[Finding]:
    """Report topics with paused uploads, and since when."""
    from tiered.node.upload_pause import paused_topics

    now_ms = patient.around.clock_ms()
    found = paused_topics([(patient.around.storage, root) for root in patient.config.data_dirs])
    for name, pause in sorted(found.items()):
        lasted = "" if pause.since_ms is None else f" for {format_ms(max(0, now_ms - pause.since_ms) // 1000 * 1000)}"
        reason = f": {pause.reason}" if pause.reason else ""
        step = "tiered resume" if pause.is_of_all or pause.since_ms is None else f"tiered resume {name}"
        what = f"topic {name}: uploads paused{lasted}{reason}"
        yield Finding(check="pauses", state=State.WARNING, what=what, next_step=step)
    if not found:
        yield Finding(check="pauses", state=State.OK, what="no uploads are paused")


def _numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version."""
    numbers = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _bad(check: str, what: str, step: str) -> Finding:
    return Finding(check=check, state=State.ERROR, what=what, next_step=step)


def key_ring(patient: Patient) -> Iterator[Finding]:
    """Check that a configured key file can be read, and only by its owner."""
    from tiered.config.secrets import load_key_ring

    ring = load_key_ring(patient.config.key_ring, os.environ)
    if ring:
        yield Finding(check="key-ring", state=State.OK, what=f"keys: {ring!r}")


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
