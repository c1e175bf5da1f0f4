"""``tiered verify --remote``: check the bucket as ``tiered scrub`` does, or a sample of it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import click

from tiered.cli.arguments import parse_share
from tiered.cli.errors import Exit
from tiered.cli.render import Result, Struct, number, print_result, text
from tiered.cli.session import Session, now_ms

if TYPE_CHECKING:
    from tiered.health.bucket_verifying import BucketVerdict, Sample


class VerifyFinding(Struct):
    """`at` is a byte of the file, ``[base_offset, next_offset)`` the affected offsets. Info, warning or corrupt."""

    severity: Annotated[str, text("SEVERITY")]
    path: Annotated[str, text("PATH")]
    at: Annotated[int | None, number("BYTE")]
    what: Annotated[str, text("FINDING")]
    base_offset: Annotated[int | None, number("FROM")]
    next_offset: Annotated[int | None, number("TO")]


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


def verify_remote(
    session: Session,
    targets: tuple[str, ...],
    sample: Sample | None,
    output: str,
    *,
    deep: bool,
    threads: int | None,
) -> int:
    """Check the bucket and print the findings.

    | exit code | condition |
    |---|---|
    | 4 | damage |
    | 5 | the bucket lacks data that this disk dropped |
    | 3 | other findings |
    """
    from tiered.cli.bucket_options import lost_partitions, open_bucket
    from tiered.cli.progress import byte_progress
    from tiered.cli.signals import stop_signals
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
            return Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED
    lost = lost_partitions(session, targets)
    found = verdict.report
    if found.findings or output != "table":
        print_result(_verified(verdict, [str(name) for name in lost]), output)
    _print_summary(session, verdict, targets)
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


def _verified(verdict: BucketVerdict, lost: list[str]) -> VerifiedRemote:
    sample, report = verdict.sample, verdict.report
    findings = [
        VerifyFinding.of(each, path=f"{each.topic}-{each.topic_id}/{each.partition}/{each.object}")
        for each in report.findings
    ]
    return VerifiedRemote.of(
        verdict,
        report,
        partitions=len(report.partitions),
        sample_share=sample.share if sample is not None else None,
        seed=sample.seed if sample is not None else None,
        lost=lost,
        findings=findings,
    )


def _print_summary(session: Session, verdict: BucketVerdict, targets: Sequence[str]) -> None:
    """Print the checked part, the total, the seed, and the next step for damage."""
    from tiered.config.units import counted, format_bytes

    found, sample = verdict.report, verdict.sample
    objects = sum(count for each in found.partitions for count in each.objects.values())
    depth = f"bytes of {verdict.read_segments} of {verdict.segments} segments decoded, {format_bytes(found.read_bytes)}"
    if found.unread_segments:
        depth += f"; {counted(found.unread_segments, 'segment')} could not be read, see the findings"
    if found.unread_partitions:
        depth += f"; {counted(found.unread_partitions, 'partition')} could not be read, see the findings"
    if sample is not None:
        depth += f"; sample of --seed {sample.seed}"
    elif not (verdict.read_segments or found.unread_segments or found.unread_partitions):
        depth = f"{verdict.segments} segments by metadata only, see --deep and --sample"
    session.say(f"{len(found.partitions)} partitions, {objects} objects in {found.store}: {depth}")
    counts = {weight: len(found.of(weight)) for weight in ("info", "warning", "corrupt")}
    session.say(" ".join(f"{weight}={count}" for weight, count in counts.items()))
    if found.of("corrupt"):
        session.say(
            f"next: tiered scrub --deep {' '.join([*targets, '--report found.json'])}; tiered repair found.json"
        )
