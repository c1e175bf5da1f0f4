"""``tiered verify``: check segments, partitions and log directories. Read-only except with --fix-index."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypedDict

import click

from local.errors import Conflict, LogError, NotFound
from tiered.cli.arguments import parse_partition
from tiered.cli.bucket.verify_remote import VerifyFinding
from tiered.cli.errors import Exit
from tiered.cli.options import OUTPUT, argument, command, option
from tiered.cli.progress import byte_progress
from tiered.cli.render import Result, print_result
from tiered.cli.session import Session

if TYPE_CHECKING:
    from local.storage import Storage
    from local.verify.directories import VerifyOptions
    from local.verify.findings import Finding
    from local.verify.segment_checks import OnBytes

_INTERVAL = "index.interval.bytes"
_BAR_BYTES_MIN = 256 << 20  # less work shows no bar


class Verified(Result):
    """``tiered verify``."""

    findings: list[VerifyFinding]


@command("verify", has_progress=True)
def verify(
    session: Session,
    targets: tuple[str, ...] = argument("[PATH|TOPIC[/PARTITION] ...]"),
    deep: bool = option("--deep", "Decode every record, to the last byte."),
    remote: bool = option(
        "--remote", "Check the bucket instead of the disk: manifests, manifest pages, entries, objects, sizes."
    ),
    sample: str | None = option(
        "--sample SHARE", "With --remote: check all metadata, and the bytes of this share of the segments, such as 5%."
    ),
    seed: int | None = option(
        "--seed N", "Set the seed of the sample; default: random, and printed.", type=click.IntRange(0, 2**63 - 1)
    ),
    fix_index: bool = option("--fix-index", "Rebuild wrong or missing indexes; the directory must not be in use."),
    dry_run: bool = option("--dry-run", "With --fix-index: show wrong indexes, rebuild nothing."),
    threads: int | None = option(
        "--threads",
        "Set the number of segments that are read at the same time; default: the processors.",
        type=click.IntRange(1, 64),
    ),
    output: str = OUTPUT,
) -> int:
    """Check segments, partitions and log directories: batches, indexes, side files, checkpoints, strays.

    With --remote the topics in the bucket, as 'tiered scrub' does; damage is then mended by 'tiered repair'.
    """
    if remote:
        if fix_index:
            raise click.UsageError("--fix-index applies to the disk; 'tiered repair' repairs the bucket")
        from tiered.cli.bucket.verify_remote import read_sample, verify_remote

        drawn = read_sample(sample, seed)
        return verify_remote(session, targets, drawn, output, deep=deep, threads=threads)
    if sample is not None or seed is not None:
        raise click.UsageError("--sample and --seed require --remote; the disk is read completely")
    return _verify_local(session, targets, output, deep=deep, fix_index=fix_index and not dry_run, threads=threads)


def _verify_local(
    session: Session, targets: tuple[str, ...], output: str, *, deep: bool, fix_index: bool, threads: int | None
) -> int:
    from local.storage import DiskStorage
    from local.verify.directories import VerifyOptions, size_of
    from local.verify.findings import Severity, worst
    from local.verify.log_dir_checks import check_log_dirs

    storage, paths = DiskStorage(), _paths(session, targets)
    options = VerifyOptions(
        deep=deep,
        threads=threads or os.cpu_count() or 1,
        known_names=_own_names(),
        **_intervals(session, storage),
    )
    found: list[Finding] = check_log_dirs(storage, session.config().data_dirs) if not targets else []
    size_bytes = sum(size_of(storage, path) for path in paths)
    with byte_progress(session, "verified", size_bytes, bar_least_bytes=_BAR_BYTES_MIN) as on_bytes:
        for path in paths:
            if not targets and len(paths) > 1 and not storage.is_directory(path):
                found.append(_absent(path))
                continue
            found += _verified(session, storage, path, options, on_bytes, fix_index=fix_index)
    rows = [
        VerifyFinding.of(
            each,
            severity=each.severity.name.lower(),
            base_offset=each.offsets[0] if each.offsets else None,
            next_offset=each.offsets[1] if each.offsets else None,
        )
        for each in sorted(found, key=lambda each: (-each.severity, each.path, each.at or 0))
    ]
    if rows or output != "table":
        print_result(Verified(rows), output)
    heaviest = worst(found)
    counts = {kind: sum(each.severity is kind for each in found) for kind in Severity}
    session.say(f"{len(paths)} verified: " + " ".join(f"{kind.name.lower()}={count}" for kind, count in counts.items()))
    return {Severity.CORRUPT: Exit.CORRUPTION, Severity.WARNING: Exit.FINDINGS}.get(heaviest, Exit.DONE)


class _Intervals(TypedDict):
    interval_bytes: int
    topic_intervals: dict[str, int]


def _intervals(session: Session, storage: Storage) -> _Intervals:
    """Return ``index.interval.bytes`` of every topic on this disk, and the default for other files."""
    from tiered.node.topic_registry import Topic, TopicRegistry

    config, known = session.config(), list[Topic]()
    with suppress(LogError):  # opening the directory reports a damaged list
        known = TopicRegistry([(storage, root) for root in config.data_dirs]).all()
    effective = {each.name: config.topic_properties(each.name, each.properties) for each in known}
    return {
        "interval_bytes": int(config.topic_properties("")[_INTERVAL]),
        "topic_intervals": {name: int(properties[_INTERVAL]) for name, properties in effective.items()},
    }


def _own_names() -> frozenset[str]:
    """The manager's own files in a log directory, next to Kafka's."""
    from tiered.node import topic_registry, upload_pause, work_report
    from tiered.status import tier_series
    from tiered.stores import persistent_meter, store_check

    of_managers = (topic_registry.FILE, store_check.FILE, persistent_meter.FILE, work_report.FILE, tier_series.FILE)
    return frozenset((*of_managers, upload_pause.FILE, upload_pause.LOCK))


def _paths(session: Session, targets: Sequence[str]) -> list[str]:
    """Return the existing path of that name, else the topic's directories; without a word all log directories."""
    if not targets:
        return list(session.config().data_dirs)
    found: list[str] = []
    for target in targets:
        found += [target] if os.path.exists(target) or target.startswith(("/", ".")) else _of_topic(session, target)
    return list(dict.fromkeys(found))


def _of_topic(session: Session, target: str) -> list[str]:
    from local.names import parse_partition_directory

    topic, number = parse_partition(target)
    found = []
    for root in session.config().data_dirs:
        for name in sorted(os.listdir(root)) if os.path.isdir(root) else []:
            partition = parse_partition_directory(name)
            if partition is not None and partition.topic == topic and number in (None, partition.partition):
                found.append(os.path.join(root, name))
    if not found:
        raise NotFound("the target is neither a file nor a directory nor a topic on this disk", name=target)
    return found


def _verified(
    session: Session, storage: Storage, path: str, options: VerifyOptions, on_bytes: OnBytes, *, fix_index: bool
) -> list[Finding]:
    from local.verify.directories import verify
    from local.verify.index_checks import fix_indexes
    from tiered.health.view_verifying import verify_views

    found = [*verify(storage, path, options, on_bytes), *verify_views(storage, path)]
    if not fix_index:
        return found
    try:
        fixed = fix_indexes(storage, found, interval_of=options.interval_of)
    except Conflict:
        raise Conflict("cannot rebuild indexes, a manager has the directory open", path=path) from None
    for each in fixed:
        session.say(f"rebuilt: {each}")
    return [*verify(storage, path, options), *verify_views(storage, path)] if fixed else found


def _absent(path: str) -> Finding:
    """A finding for a missing log directory; the others are still checked."""
    from local.verify.findings import Finding, Severity

    return Finding(
        severity=Severity.WARNING, path=path, what="the directory does not exist; check that its disk is mounted"
    )
