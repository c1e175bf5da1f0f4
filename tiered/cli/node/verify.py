"""``tiered verify``: check segments, partitions and log directories. Read-only except with --fix-index."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import Conflict, LogError, NotFound
from local.names import parse_partition_directory
from tiered.cli.errors import Exit, stopped_code
from tiered.cli.options import OUTPUT, argument, command, option, parse_partition, parse_share
from tiered.cli.progress import byte_progress
from tiered.cli.render import Result, Struct, number, print_result, text
from tiered.cli.session import Session, now_ms, stop_signals
from tiered.config.units import counted, format_bytes

if TYPE_CHECKING:
    from local.storage import Storage
    from local.verify.directories import VerifyOptions
    from local.verify.findings import Finding
    from local.verify.segment_checks import OnBytes
    from tiered.health.bucket_verifying import BucketVerdict, Sample

_INTERVAL = "index.interval.bytes"
_BAR_BYTES_MIN = 256 << 20  # less work shows no bar


class VerifyFinding(Struct):
    """`at` is a byte of the file, ``[base_offset, next_offset)`` the affected offsets. Info, warning or corrupt."""

    severity: Annotated[str, text("SEVERITY")]
    path: Annotated[str, text("PATH")]
    at: Annotated[int | None, number("BYTE")]
    what: Annotated[str, text("FINDING")]
    base_offset: Annotated[int | None, number("FROM")]
    next_offset: Annotated[int | None, number("TO")]
    code: str


class VerifiedRemote(Result):
    """``tiered verify --remote``; `sample_share` and `seed` null without ``--sample``.

    `lost` are partitions with records that the bucket lacks although this disk has dropped them.
    """

    store: str
    partitions: int
    segments: int
    read_segments: int
    read_bytes: int
    unread_segments: int
    unread_partitions: int
    sample_share: float | None
    seed: int | None
    lost: list[str]
    findings: list[VerifyFinding]


class Verified(Result):
    """``tiered verify``."""

    findings: list[VerifyFinding]


@command("verify", has_progress=True, example="verify orders --deep")
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
    """Check segments, partitions and log directories: batches, indexes, other files, checkpoints, unknown files.

    With --remote, check the topics in the bucket as 'tiered scrub' does; 'tiered repair' repairs that damage.
    """
    if remote:
        if fix_index:
            raise click.UsageError("--fix-index applies to the disk; 'tiered repair' repairs the bucket")
        return verify_remote(session, targets, read_sample(sample, seed), output, deep=deep, threads=threads)
    if sample is not None or seed is not None:
        raise click.UsageError("--sample and --seed require --remote; the disk is read completely")
    return _verify_local(session, targets, output, deep=deep, fix_index=fix_index and not dry_run, threads=threads)


def _verify_local(
    session: Session, targets: tuple[str, ...], output: str, *, deep: bool, fix_index: bool, threads: int | None
) -> int:
    from local.storage import DiskStorage
    from local.verify.directories import VerifyOptions, check_log_dirs, size_of
    from local.verify.findings import Severity, finding, worst

    storage, paths = DiskStorage(), _paths(session, targets)
    default, of_topics = _index_intervals(session)
    options = VerifyOptions(
        deep=deep,
        threads=threads or os.cpu_count() or 1,
        known_names=_own_names(),
        interval_bytes=default,
        topic_intervals=of_topics,
    )
    found: list[Finding] = check_log_dirs(storage, session.config().data_dirs) if not targets else []
    size_bytes = sum(size_of(storage, path) for path in paths)
    with byte_progress(session, "verified", size_bytes, bar_least_bytes=_BAR_BYTES_MIN) as on_bytes:
        for path in paths:
            if not targets and len(paths) > 1 and not storage.is_directory(path):
                found.append(finding("log-dir.missing", path))
                continue
            found += _verified(session, storage, path, options, on_bytes, fix_index=fix_index)
    rows = []
    for each in sorted(found, key=lambda each: (-each.severity, each.where, each.at or 0)):
        base_offset, next_offset = each.offsets or (None, None)
        facts = {"severity": each.state, "path": each.where, "what": each.line}
        rows.append(VerifyFinding.of(each, base_offset=base_offset, next_offset=next_offset, **facts))
    if rows or output != "table":
        print_result(Verified(rows), output)
    kinds = (Severity.INFO, Severity.WARNING, Severity.CORRUPT)
    counts = " ".join(f"{kind.name.lower()}={sum(each.severity is kind for each in found)}" for kind in kinds)
    session.say(f"{len(paths)} verified: {counts}")
    return {Severity.CORRUPT: Exit.CORRUPTION, Severity.WARNING: Exit.FINDINGS}.get(worst(found), Exit.DONE)


def _index_intervals(session: Session) -> tuple[int, dict[str, int]]:
    """Return ``index.interval.bytes`` by default, and of every topic on this disk."""
    from tiered.node.topic_registry import Topic

    config, known = session.config(), list[Topic]()
    with suppress(LogError):  # opening the directory reports a damaged list
        known = session.topics().all()
    effective = {each.name: config.topic_properties(each.name, each.properties) for each in known}
    default = int(config.topic_properties("")[_INTERVAL])
    return default, {name: int(properties[_INTERVAL]) for name, properties in effective.items()}


def _own_names() -> frozenset[str]:
    from tiered.node import problems, topic_registry, upload_pause
    from tiered.serve.commands import unix_socket
    from tiered.serve.node import producer_ids
    from tiered.status import tier_history
    from tiered.stores import configured_store, persistent_meter

    modules = (topic_registry, configured_store, persistent_meter, tier_history, upload_pause)
    serving = (producer_ids.FILE, unix_socket.FILE)
    return frozenset((*(module.FILE for module in modules), *serving, problems.REPORT_FILE, upload_pause.LOCK))


def _paths(session: Session, targets: Sequence[str]) -> list[str]:
    """Return existing paths, else directories of the named topics; without targets all log directories."""
    if not targets:
        return list(session.config().data_dirs)
    found: list[str] = []
    for target in targets:
        found += [target] if os.path.exists(target) or target.startswith(("/", ".")) else _of_topic(session, target)
    return list(dict.fromkeys(found))


def _of_topic(session: Session, target: str) -> list[str]:
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
    from local.verify.segment_checks import fix_indexes
    from tiered.health.bucket_verifying import verify_views

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


def verify_remote(
    session: Session, targets: tuple[str, ...], sample: Sample | None, output: str, *, deep: bool, threads: int | None
) -> int:
    from tiered.cli.job_command import lost_partitions, open_bucket
    from tiered.health.bucket_verifying import verify_bucket
    from tiered.health.scrub import THREADS

    for target in targets:
        if target.startswith(("/", ".")):
            raise click.UsageError(f"--remote takes TOPIC[/PARTITION], not a path: {target}")
    with stop_signals() as stop, open_bucket(session, None, {}, copies=True) as bucket:
        names = bucket.partitions(targets, None)
        verdict = verify_bucket(
            bucket.store,
            names,
            missing=bucket.missing(targets, names),
            now_ms=now_ms(),
            deep=deep,
            sample=sample,
            keys=bucket.keys,
            threads=threads or THREADS,
            local_copy=bucket.copies if bucket.copies is not None else lambda name, row: False,
            should_stop=lambda: stop.is_set,
            telling=lambda size_bytes: byte_progress(session, "verified", size_bytes),
        )
        if verdict is None:
            session.say("interrupted; no result")
            return stopped_code(stop)
    lost = lost_partitions(session, targets)
    found = verdict.report
    if found.findings or output != "table":
        print_result(_verified_remote(verdict, [str(name) for name in lost]), output)
    _print_bucket_summary(session, verdict, targets)
    session.report_problems(lost)
    serious = [each for each in found.findings if each.severity != "info"]
    if found.of("corrupt"):
        return Exit.CORRUPTION
    return Exit.CONFLICT if lost else Exit.FINDINGS if serious else Exit.DONE


def read_sample(text: str | None, seed: int | None) -> Sample | None:
    """Parse the sample options. Raises UsageError for a seed alone, InvalidRequest for an invalid share."""
    import secrets

    from tiered.health.bucket_verifying import Sample

    if text is None:
        if seed is not None:
            raise click.UsageError("--seed requires --sample")
        return None
    return Sample(share=parse_share("--sample", text), seed=secrets.randbelow(100_000) if seed is None else seed)


def _verified_remote(verdict: BucketVerdict, lost: list[str]) -> VerifiedRemote:
    sample, report = verdict.sample, verdict.report
    paths = [f"{each.topic}-{each.topic_id}/{each.partition}/{each.object}" for each in report.findings]
    findings = [VerifyFinding.of(each, path=path) for each, path in zip(report.findings, paths, strict=True)]
    share = sample.share if sample is not None else None
    facts = {"partitions": len(report.partitions), "sample_share": share, "lost": lost, "findings": findings}
    return VerifiedRemote.of(verdict, report, sample, **facts)


def _print_bucket_summary(session: Session, verdict: BucketVerdict, targets: Sequence[str]) -> None:
    found, sample = verdict.report, verdict.sample
    depth = f"bytes of {verdict.read_segments} of {verdict.segments} segments decoded, {format_bytes(found.read_bytes)}"
    if found.unread_segments:
        depth += f"; {counted(found.unread_segments, 'segment')} could not be read, see the findings"
    if found.unread_partitions:
        depth += f"; {counted(found.unread_partitions, 'partition')} could not be read, see the findings"
    if sample is not None:
        depth += f"; sample of --seed {sample.seed}"
    elif not (verdict.read_segments or found.unread_segments or found.unread_partitions):
        depth = f"{verdict.segments} segments by metadata only, see --deep and --sample"
    session.say(f"{len(found.partitions)} partitions, {found.object_count} objects in {found.store}: {depth}")
    session.say(found.counts("info", "warning", "corrupt"))
    if found.of("corrupt"):
        session.say(
            f"next: tiered scrub --deep {' '.join([*targets, '--report found.json'])}; tiered repair found.json"
        )
