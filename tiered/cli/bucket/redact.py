"""``tiered rewrite redact``: erase all records of given keys, and prove it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import LogError
from tiered.cli.bucket.rewrite import RewriteCommand, rewrite
from tiered.cli.errors import Exit, worst
from tiered.cli.job_command import Bucket
from tiered.cli.options import GROUP, command, option, parse_partition
from tiered.cli.progress import byte_progress
from tiered.cli.render import PartitionRow, PricedWork, Result, Struct, Work, number, text
from tiered.cli.session import Session, confirm, now_ms
from tiered.config.units import counted, format_bytes, format_count, format_dollars, rfc3339

if TYPE_CHECKING:
    from tiered.jobs.job_bucket import Bucket as TaskBucket
    from tiered.jobs.key_search import KeyCount, KeyDigests, Scan, Survey
    from tiered.jobs.redacting import Redaction
    from tiered.jobs.rewriting import RewriteOutcome
    from tiered.jobs.runner import Executor

STATE = "redact-state.jsonl"
_ATTEMPT = "cannot read the key file"


class RecordHolder(PartitionRow):
    """What keeps erased records readable after the commit, and until when; null: without an end that is known here."""

    holder: str
    until_ms: int | None
    detail: str


class KeyFinding(Struct):
    """A segment with records of the keys, or an unread one. Never has a key."""

    code: Annotated[str, text("CODE")]
    object: Annotated[str, text("OBJECT")]
    base_offset: Annotated[int, number("FROM")]
    next_offset: Annotated[int, number("TO")]
    what: Annotated[str, text("FINDING")]


class PlannedRedaction(PartitionRow):
    """`matched` segments have `records` of the keys. `view_parts` are to be rewritten too.

    `unread` segments are damaged. `held_back` segments hide older records of the keys in an unread one.
    `scan_dollars` is the price of both searches, null if the prices of a storage class are unknown: all segments once,
    which is already paid, and for the proof again the unread segments and those with keys. `scan_gets` and `scan_bytes`
    are its requests and bytes. `storage_dollars` is the price of the old objects until they are deleted.
    """

    segments: Annotated[int, number("SEGMENTS READ", format_count)]
    matched: Annotated[int, number("WITH KEYS", format_count)]
    records: Annotated[int, number("RECORDS", format_count)]
    record_bytes: Annotated[int, number("RECORD BYTES", format_bytes)]
    view_parts: Annotated[int, number("VIEW PARTS", format_count)]
    unread: Annotated[int, number("UNREAD", format_count)]
    read_bytes: Annotated[int, number("BYTES READ", format_bytes)]
    write_bytes: Annotated[int, number("BYTES WRITTEN", format_bytes)]
    gets: Annotated[int, number("GET", format_count)]
    puts: Annotated[int, number("PUT", format_count)]
    dollars: Annotated[float, number("$", format_dollars)]
    scan_dollars: Annotated[float | None, number("$ SEARCHES", format_dollars)]
    storage_dollars: Annotated[float, number("$ OLD OBJECTS", format_dollars)]
    held_back: int
    scan_gets: int
    scan_bytes: int


class RedactPlanned(PricedWork):
    """``tiered rewrite redact --dry-run``; `keys` is the number of different keys.

    `scan_dollars` is the sum over the partitions, null if a price is unknown.
    """

    scan_dollars: float | None
    keys: int
    holders: list[RecordHolder]
    partitions: list[PlannedRedaction]


class RedactedPartition(PartitionRow):
    """`records` were found before, `remaining` are still readable there; null if the proof left a segment `unread`.

    Other fields as of `tiered rewrite`.
    """

    records: Annotated[int, number("RECORDS", format_count)]
    remaining: Annotated[int | None, number("REMAINING", format_count)]
    rows_before: Annotated[int, number("SEGMENTS", format_count)]
    view_parts: Annotated[int, number("VIEW PARTS", format_count)]
    stored_before: Annotated[int, number("BYTES", format_bytes)]
    stored_after: Annotated[int, number("BYTES NOW", format_bytes)]
    given_up: Annotated[int, number("NOT REWRITTEN", format_count)]
    expired: int
    unread: int
    is_complete: bool


@dataclass(kw_only=True)
class _Work:
    job: RewriteCommand
    bucket: Bucket
    tasks: TaskBucket
    executor: Executor
    keys: KeyDigests

    def surveys(self) -> list[Survey]:
        from tiered.jobs.key_search import survey

        bucket = self.bucket
        return [survey(bucket.store, name, bucket.settings_of) for name in self.job.names(bucket)]

    def scan(
        self,
        surveys: Sequence[Survey],
        known: Mapping[str, KeyCount] | None = None,
        on_count: Callable[[KeyCount], None] = lambda count: None,
        *,
        verb: str = "searched",
    ) -> list[Scan]:
        from tiered.jobs.key_search import scan_keys

        known = known or {}
        due = sum(each.stored_bytes for one in surveys for each in one.scanned if each.ulid not in known)
        with byte_progress(self.job.session, verb, due) as progress:
            return scan_keys(
                self.executor, self.tasks, surveys, self.keys, known=known, on_count=on_count, progress=progress
            )

    def rewrite(self, plans: Sequence[Redaction]) -> tuple[list[RewriteOutcome], Exit]:
        from tiered.jobs.redacting import run_redaction

        errors: dict[int, LogError] = {}
        with byte_progress(self.job.session, "rewritten", sum(each.size_bytes for each in plans)) as progress:
            outcomes = run_redaction(
                self.executor, self.tasks, plans, self.keys, now_ms=now_ms, progress=progress, errors=errors
            )
        for at, cause in sorted(errors.items()):
            self.job.session.warn(f"{plans[at].name.topic_partition}: {cause}")
        return outcomes, worst(errors.values())


class Redacted(Work):
    """``tiered rewrite redact``. `findings` are the result of the proof: empty if no readable record has a key."""

    keys: int
    holders: list[RecordHolder]
    findings: list[KeyFinding]
    partitions: list[RedactedPartition]


class KeysSearched(Result):
    """``tiered rewrite redact --verify``."""

    keys: int
    segments: int
    read_bytes: int
    findings: list[KeyFinding]


@command("redact", rewrite, example="rewrite redact orders --key-file keys --dry-run", has_progress=True)
def redact(
    session: Session,
    key_file: str = option("--key-file FILE", "Erase the records of these keys, one in each line.", required=True),
    key_format: str = option(
        "--key-format", "Set the form of the lines.", choices=("text", "hex", "base64"), default="text"
    ),
    verify: bool = option("--verify", "Only search: list the segments that have records of the keys; exit 3 if any."),
    resume: bool = option(
        "--resume", "Continue an interrupted run with the same keys: finished segments are not searched again."
    ),
    job: RewriteCommand = GROUP,
) -> int:
    """Erase all records of given keys from segments and compacted views, and search them again as a proof.

    Offsets of other records do not change. The plan reads every selected segment. Keys are in no output, log or file.
    Segments on the disk of the manager are not touched.
    """
    from local.storage import DiskStorage
    from tiered.config.user_files import read_given
    from tiered.jobs.key_search import KeyDigests, RedactState, parse_keys

    if verify and (job.dry_run or job.yes or resume):
        raise click.UsageError("--verify changes nothing and begins anew: leave out --dry-run, --yes and --resume")
    if resume and job.dry_run:
        raise click.UsageError("--resume does not apply to --dry-run, which writes no state file")
    keys = parse_keys(read_given(key_file, _ATTEMPT, "one key in each line"), key_format, path=key_file)
    digests = KeyDigests.of(keys)
    with job.opened(rate=job.rate, writes_segments=not verify) as bucket, job.executor("rewrite redact") as executor:
        work = _Work(job=job, bucket=bucket, tasks=job.tasks_of(bucket), executor=executor, keys=digests)
        if verify:
            return _verify(work)
        if job.dry_run:
            return _redact(work, work.scan(work.surveys()))
        surveys = work.surveys()  # before the state file: a command that cannot begin leaves none
        path = os.path.join(session.directory, STATE)
        with RedactState(DiskStorage(), path, bucket.store.url, keys, resume=resume) as state:
            code = _redact(work, work.scan(surveys, state.counts, state.append))
            if not job.should_stop():
                state.remove()
    return code


def _redact(work: _Work, scans: Sequence[Scan]) -> int:
    from tiered.jobs.redacting import plan_redaction

    session, job = work.job.session, work.job
    if not all(each.is_whole for each in scans):
        return job.interrupted("continue with the same command and --resume")
    prices = session.prices()
    plans = [plan_redaction(each, now_ms=now_ms(), prices=prices) for each in scans]
    matched = sum(len(each.due) for each in plans)
    if job.dry_run or not matched:
        return _print_plans(work, scans, plans)
    records = sum(each.records for each in plans)
    summary = f"{counted(records, 'record')} in {counted(matched, 'segment')}, for about {_price(plans)}"
    confirm(f"erase {summary}?", yes=job.yes, without=f"{summary} would be erased; add --yes")
    outcomes, failed = work.rewrite(plans)
    committed_ms = now_ms()
    if job.should_stop():
        return job.interrupted("finished segments are committed, run the same command with --resume")
    known = {ulid: count for each in scans for ulid, count in each.clean.items()}
    again = work.scan(work.surveys(), known, verb="searched again")
    if not all(each.is_whole for each in again):
        return job.interrupted("the records are erased, but not searched again: run the same command with --verify")
    proofs = {each.survey.name: each for each in again}
    rows_done = [
        RedactedPartition.of(plan.name, outcome, plan, **_proved(proofs.get(plan.name)))
        for plan, outcome in zip(plans, outcomes, strict=True)
    ]
    holders, findings = _holders(work, again, plans, committed_ms), _findings(again)
    job.print(Redacted(dry_run=False, keys=work.keys.count, holders=holders, findings=findings, partitions=rows_done))
    _say_holders(session, holders)
    code = max(failed, _report_findings(work, findings))
    if any(outcome.given_up for outcome in outcomes):
        session.warn("another writer or job replaced some segments first; run the same command again")
        return max(code, Exit.CONFLICT)
    if not all(outcome.is_complete for outcome in outcomes):
        session.warn("some segments are not rewritten; correct the errors, or wait for pending deletes, and run again")
        return max(code, Exit.FINDINGS)
    return code


def _print_plans(work: _Work, scans: Sequence[Scan], plans: Sequence[Redaction]) -> Exit:
    """Print the plans; the findings are the unread segments, and without a segment to rewrite those with keys too."""
    session, job = work.job.session, work.job
    holders, findings = _holders(work, scans, plans, now_ms()), _findings(scans)
    job.print(
        RedactPlanned(
            dry_run=job.dry_run,
            dollars=sum(each.rewrite.cost.dollars for each in plans),
            scan_dollars=_scan_dollars(plans),
            keys=work.keys.count,
            holders=holders,
            partitions=[PlannedRedaction.of(each.name, each, each.rewrite.cost) for each in plans],
        )
    )
    _say_holders(session, holders)
    if not any(each.due for each in plans):
        session.say(_why_nothing(plans))
        return _report_findings(work, findings)
    session.say(f"{_price(plans)}; nothing changed")
    unread = [each for each in findings if each.code == "redact.not-read"]
    return _report_findings(work, unread) if unread else Exit.DONE


def _verify(work: _Work) -> int:
    scans = work.scan(work.surveys())
    if not all(each.is_whole for each in scans):
        return work.job.interrupted("run the same command again")
    entries = [entry for each in scans for entry in each.survey.scanned]
    findings = _findings(scans)
    size = sum(entry.stored_bytes + entry.indexes_bytes for entry in entries)
    work.job.print(KeysSearched(keys=work.keys.count, segments=len(entries), read_bytes=size, findings=findings))
    _say_holders(work.job.session, _holders(work, scans))
    return _report_findings(work, findings)


def _proved(proof: Scan | None) -> dict[str, int | None]:
    """Return the result of the proof; without a scan the partition was deleted, and no record of it is readable."""
    if proof is None:
        return {"remaining": 0, "unread": 0}
    return {"remaining": None if proof.unread else proof.records, "unread": len(proof.unread)}


def _scan_dollars(plans: Sequence[Redaction]) -> float | None:
    known = [each.scan_dollars for each in plans if each.scan_dollars is not None]
    return sum(known) if len(known) == len(plans) else None


def _price(plans: Sequence[Redaction]) -> str:
    dollars, scan_dollars = sum(each.rewrite.cost.dollars for each in plans), _scan_dollars(plans)
    searches = "an unknown price" if scan_dollars is None else f"${format_dollars(scan_dollars)}"
    return f"${format_dollars(dollars)}, and {searches} for both searches, of which the first is paid"


def _why_nothing(plans: Sequence[Redaction]) -> str:
    if held_back := sum(each.held_back for each in plans):
        return (
            f"nothing to erase now: unread segments hold back {counted(held_back, 'segment')} with records of the keys"
        )
    return "nothing to erase: no readable segment that was read has a record of the keys"


def _findings(scans: Sequence[Scan]) -> list[KeyFinding]:
    found = ((finding, finding.offsets or (0, 0)) for each in scans for finding in each.findings())
    return [
        KeyFinding(code=each.code, object=each.where, base_offset=base, next_offset=following, what=each.line)
        for each, (base, following) in found
    ]


def _report_findings(work: _Work, findings: Sequence[KeyFinding]) -> Exit:
    for each in findings:
        click.echo(f"! {each.object}: offsets {each.base_offset} to {each.next_offset - 1}: {each.what}", err=True)
    if not findings:
        work.job.session.say(f"proved: no readable record in {_searched_place(work.job.targets)} has one of the keys")
    return Exit.FINDINGS if findings else Exit.DONE


def _searched_place(targets: Sequence[str]) -> str:
    if not targets:
        return "the bucket"
    return "these topics" if all(parse_partition(each)[1] is None for each in targets) else "these partitions"


def _holders(
    work: _Work, scans: Sequence[Scan], plans: Sequence[Redaction] = (), committed_ms: int = 0
) -> list[RecordHolder]:
    from tiered.jobs.redacting import holders_of, view_builds_of

    found = [one for each in plans for one in holders_of(work.bucket.store, each, committed_ms=committed_ms)]
    found += [one for each in scans for one in view_builds_of(each.survey)]
    return [RecordHolder.of(each.name, each) for each in found]


def _say_holders(session: Session, holders: Sequence[RecordHolder]) -> None:
    for each in holders:
        until = f" until {rfc3339(each.until_ms)}" if each.until_ms is not None else ""
        session.say(f"{each.topic}/{each.partition}: still held by the {each.holder}{until}: {each.detail}")
