"""``tiered scrub``, ``repair`` and ``gc``: check a bucket, repair damage, list and delete orphans."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from local.errors import InvalidRequest
from tiered.cli.errors import Exit, worst
from tiered.cli.job_command import BucketCommand, JobCommand, lost_partitions, open_bucket
from tiered.cli.options import GROUP, PARTITIONS, YES, argument, command, duration_ms, option
from tiered.cli.progress import byte_progress
from tiered.cli.render import Result, Struct, Work, number, text
from tiered.cli.session import Session, confirm, now_ms
from tiered.config.units import counted, format_bytes, format_dollars, format_ms

if TYPE_CHECKING:
    from tiered.health.repair import PageRepair, RepairPlan, SegmentRepair, Untouched
    from tiered.health.scrub_report import ScrubReport
    from tiered.jobs.orphan_deletion import Garbage


STATE = "scrub-state.jsonl"
_WRITING = "cannot write the scrub report"
LIST = "gc-list.json"
_WRITING_LIST = "cannot write the list of orphans"


class ScrubFinding(Struct):
    """`object` is relative to the partition's prefix, `at` and `length` are bytes of it. `good_copy` is a place."""

    severity: Annotated[str, text("SEVERITY")]
    topic: Annotated[str, text("TOPIC")]
    partition: Annotated[int, number("PARTITION")]
    object: Annotated[str, text("OBJECT")]
    what: Annotated[str, text("FINDING")]
    at: Annotated[int | None, number("BYTE")]
    base_offset: Annotated[int | None, number("FROM")]
    next_offset: Annotated[int | None, number("TO")]
    good_copy: Annotated[str | None, text("GOOD COPY")]
    topic_id: str
    length: int | None
    ulid: str | None
    code: str


class Scrubbed(Result):
    """``tiered scrub``; `report` is the file that it wrote.

    `unread_segments` could not be opened; of `unread_partitions` even the encrypted manifests could not be read.
    `lost` are partitions with records that the bucket lacks although this disk has dropped them.
    """

    store: str
    is_deep: bool
    started_ms: int
    finished_ms: int
    read_bytes: int
    unread_segments: int
    unread_bytes: int
    unread_partitions: int
    report: str | None
    lost: list[str]
    findings: list[ScrubFinding]


@command("scrub", example="scrub orders --deep --report report.json", has_progress=True)
def scrub(
    session: Session,
    targets: tuple[str, ...] = PARTITIONS,
    deep: bool = option("--deep", "Read every byte: chunks, batches, facts of segment entries, indexes against data."),
    rate: str | None = option("--rate SIZE/s", "Limit the read rate, such as 50MB/s."),
    resume: bool = option("--resume", "Resume an interrupted deep scrub."),
    threads: int = option(
        "--threads", "Set the number of segments that are read at the same time.", type=click.IntRange(1, 64), default=4
    ),
    report: str | None = option(
        "--report FILE", "Write the report to this file; default: scrub-<time>.json if there is a finding."
    ),
    job: JobCommand = GROUP,
) -> int:
    """Check a bucket: manifests and their chain, pages, entries, object names and sizes. Changes nothing.

    With --deep every byte is read.
    """
    from tiered.config.user_files import check_target, write_given
    from tiered.health.scrub_report import encode_report

    if resume and not deep:
        raise click.UsageError("--resume requires --deep; a scrub of metadata always starts from the beginning")
    if job.is_on_spark and not deep:
        raise click.UsageError("--spark requires --deep; without it a scrub reads metadata only")
    if report is not None:
        check_target(report, _WRITING)
    found = _scrubbed(job, targets, rate, deep=deep, resume=resume, threads=threads)
    if found is None:
        return job.interrupted("resume with: tiered scrub --deep --resume")
    lost = lost_partitions(session, targets) if job.url is None else {}
    serious = [each for each in found.findings if each.severity != "info"]
    path = report
    if path is None and serious:
        moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(found.finished_ms / 1000))
        path = os.path.join(session.directory, f"scrub-{moment}.json")
    if path is not None:
        write_given(path, encode_report(found), _WRITING)
    findings = [ScrubFinding.of(each) for each in found.findings]
    job.print(Scrubbed.of(found, report=path, lost=[str(name) for name in lost], findings=findings))
    _print_summary(session, found, path)
    session.report_problems(lost)
    if found.of("corrupt"):
        return Exit.CORRUPTION
    return Exit.CONFLICT if lost else Exit.FINDINGS if serious else Exit.DONE


def _scrubbed(
    job: JobCommand, targets: tuple[str, ...], rate: str | None, *, deep: bool, resume: bool, threads: int
) -> ScrubReport | None:
    """Return the report; None after a signal: then the state file stays."""
    from local.storage import DiskStorage
    from tiered.health.scrub import plan_scrub, read_segments, report_of
    from tiered.health.scrub_report import ScrubState

    started_ms, state = now_ms(), None
    with job.opened(rate=rate, copies=True) as bucket:
        names = bucket.partitions(targets, job.topic_id)
        missing = bucket.missing(targets, names)
        plan = plan_scrub(bucket.store, names, deep=deep, settings=bucket.settings.of, missing=missing)
        if deep:
            path = os.path.join(job.session.directory, STATE)
            state = ScrubState(DiskStorage(), path, plan.store_url, now_ms=started_ms, resume=resume)
            started_ms = state.started_ms
        with (
            job.executor("scrub", threads=threads) as executor,
            byte_progress(job.session, "scrubbed", plan.size_bytes) as progress,
        ):
            results = read_segments(executor, job.tasks_of(bucket), plan, state=state, progress=progress)
        if results is None:
            return None
        copies = bucket.copies if bucket.copies is not None else lambda name, row: False
        found = report_of(bucket.store, plan, results, started_ms=started_ms, now_ms=now_ms(), local_copy=copies)
    if state is not None:
        state.remove()
    return found


def _print_summary(session: Session, found: ScrubReport, path: str | None) -> None:
    size = format_bytes(sum(each.size_bytes for each in found.partitions))
    count = f"{counted(len(found.partitions), 'partition')}, {counted(found.object_count, 'object')}"
    session.say(f"{count}, {size}: {_depth(found)}")
    session.say(found.counts("corrupt", "warning", "info"))
    if found.of("corrupt"):
        session.say(f"next: tiered repair {path} --dry-run")


def _depth(found: ScrubReport) -> str:
    if not found.is_deep:
        sealed = f", {counted(found.unread_partitions, 'partition')} not read, see the findings"
        return "metadata only, see --deep" + (sealed if found.unread_partitions else "")
    if not (found.unread_segments or found.unread_partitions):
        return f"every byte of {format_bytes(found.read_bytes)} read"
    unread = f"{counted(found.unread_segments, 'segment')} with {format_bytes(found.unread_bytes)} not read"
    if found.unread_partitions:
        unread = f"{counted(found.unread_partitions, 'partition')} and {unread}"
    return f"{format_bytes(found.read_bytes)} read, {unread}, see the findings"


class RepairRow(Struct):
    """`state` is to do, repaired, hopeless, needless or failed; `source` and `relative` say where the good copy is."""

    state: Annotated[str, text("STATE")]
    topic: Annotated[str, text("TOPIC")]
    partition: Annotated[int, number("PARTITION")]
    object: Annotated[str, text("OBJECT")]
    source: Annotated[str | None, text("SOURCE")]
    relative: Annotated[str | None, text("COPY OF")]
    base_offset: Annotated[int | None, number("FROM")]
    next_offset: Annotated[int | None, number("TO")]
    why: str | None
    topic_id: str


class Repaired(Work):
    """``tiered repair``."""

    size_bytes: int
    repairs: list[RepairRow]


@command("repair", example="repair report.json --dry-run", has_progress=True)
def repair(
    session: Session,
    report: str = argument("REPORT.json"),
    dry_run: bool = option("--dry-run", "Show what would be repaired, change nothing."),
    yes: bool = YES,
    job: BucketCommand = GROUP,
) -> int:
    """Repair the damage in a scrub's report, from this machine's disk or from other objects of the bucket."""
    from tiered.config.user_files import read_given
    from tiered.health.repair import plan_repair, run_repair
    from tiered.health.scrub_report import decode_report

    if job.topic_id is not None:
        raise click.UsageError("--topic-id does not apply to repair; the report names topics by their ids")
    read = read_given(report, "cannot read the scrub report", "run 'tiered scrub --deep'", name="path")
    found = decode_report(read, report)
    with open_bucket(session, job.url, job.options, copies=True, writes_segments=True) as bucket:
        for topic in sorted({each.topic for each in found.of("corrupt")}):
            bucket.settings_of(topic, {})  # unsupported settings are not damage without a good copy
        plan = plan_repair(bucket.store, found, keys=bucket.keys, copies=bucket.copies)
        rows = [_row(each, "to do") for each in plan.repairs]
        failed: tuple[Untouched, ...] = ()
        if plan.repairs and not dry_run:
            summary = f"{counted(len(plan.segments), 'segment')} and {counted(len(plan.pages), 'page')}"
            summary = f"{summary}, {format_bytes(plan.size_bytes)}"
            confirm(f"rewrite {summary}?", yes=yes, without=f"{summary} would be rewritten; add --yes")
            with byte_progress(session, "repaired", plan.size_bytes) as advance:
                done = run_repair(
                    bucket.store,
                    plan,
                    now_ms=now_ms,
                    keys=bucket.keys,
                    copies=bucket.copies,
                    progress=advance,
                    settings=bucket.settings_of,
                )
            rows, failed = [_row(each, "repaired") for each in done.done], done.failed
    untouched = {"hopeless": plan.hopeless, "needless": plan.needless, "failed": failed}
    rows += [_untouched(each, state) for state, those in untouched.items() for each in those]
    job.print(Repaired(dry_run=dry_run, size_bytes=plan.size_bytes, repairs=rows))
    _print_repairs(session, plan, failed, dry_run=dry_run)
    return Exit.CORRUPTION if plan.hopeless or failed else Exit.FINDINGS if plan.repairs and dry_run else Exit.DONE


def _print_repairs(session: Session, plan: RepairPlan, failed: tuple[Untouched, ...], *, dry_run: bool) -> None:
    if dry_run and plan.repairs:
        session.say("nothing changed; next: tiered repair without --dry-run")
    elif plan.repairs:
        session.say("next: tiered scrub --deep, which now checks the segments of the repaired manifest pages")
    for each in (*plan.hopeless, *failed):
        lost = f" offsets={each.offsets[0]}-{each.offsets[1] - 1}" if each.offsets is not None else ""
        click.echo(f"! {each.name.topic}/{each.name.partition} {each.object}: no good copy{lost}: {each.why}", err=True)


def _row(each: SegmentRepair | PageRepair, state: str) -> RepairRow:
    from tiered.health.repair import PageRepair

    part, relative = each.page if isinstance(each, PageRepair) else each.entry, getattr(each, "relative", None)
    copy_of = str(relative.topic_partition) if relative is not None else None
    return RepairRow.of(each, each.name, part, state=state, relative=copy_of, why=None)


def _untouched(each: Untouched, state: str) -> RepairRow:
    base_offset, next_offset = each.offsets or (None, None)
    words = {"state": state, "source": None, "relative": None, "why": " ".join(each.why.split())}
    return RepairRow.of(each, each.name, base_offset=base_offset, next_offset=next_offset, **words)


class Orphan(Struct):
    """An orphan; `age_ms` null: the store does not report it. `upload_id` of an unfinished upload."""

    kind: Annotated[str, text("KIND")]
    topic: Annotated[str, text("TOPIC")]
    partition: Annotated[int, number("PARTITION")]
    key: Annotated[str, text("KEY")]
    size_bytes: Annotated[int, number("SIZE", format_bytes)]
    age_ms: Annotated[int | None, number("AGE", format_ms)]
    topic_id: str
    upload_id: str | None


class OrphansListed(Result):
    """``tiered gc``; `more` counts the orphans above the limit of the list."""

    list_: str = msgspec.field(name="list")
    more: int
    store: str
    size_bytes: int
    dollars_per_month: float
    orphans: list[Orphan]


class OrphansDeleted(Result):
    """``tiered gc --delete``."""

    deleted: list[Orphan]


@command("gc", example="gc --older-than 3d", has_progress=True)
def gc(
    session: Session,
    targets: tuple[str, ...] = PARTITIONS,
    delete: bool = option("--delete", "Delete the objects of the list that are still orphans and old enough."),
    yes: bool = YES,
    dry_run: bool = option("--dry-run", "Delete nothing, and write no list."),
    older_than: str = option("--older-than AGE", "Set the minimum age of an orphan.", default="3d"),
    path: str | None = option("--list FILE", f"Name the list, to write or to read; default: {LIST} in the directory."),
    job: JobCommand = GROUP,
) -> int:
    """List orphans: objects and unfinished uploads that no manifest names or can ever name.

    Only --delete deletes them.
    """
    grace_ms = duration_ms("--older-than", older_than, "3d", least=0)
    if dry_run and job.is_on_spark:
        raise click.UsageError("--dry-run runs in this process; remove --spark")
    if delete and targets:
        raise click.UsageError("--delete uses the list; select topics when the list is made")
    where = path or os.path.join(session.directory, LIST)
    if delete:
        return _delete(session, job, where, grace_ms, yes=yes, dry_run=dry_run)
    return _list(session, job, targets, where, grace_ms, dry_run=dry_run)


def _list(
    session: Session, job: JobCommand, targets: tuple[str, ...], path: str, grace_ms: int, *, dry_run: bool
) -> int:
    from tiered.config.user_files import check_target, write_given
    from tiered.jobs.orphan_deletion import encode_garbage, search_garbage

    now = now_ms()
    with job.opened() as bucket:
        names = bucket.partitions(targets, job.topic_id)
        check_target(path, _WRITING_LIST)
        session.progress.expect(len(names), "partitions")
        with job.executor("gc") as executor:
            listed = search_garbage(executor, job.tasks_of(bucket), names, now_ms=now, progress=session.progress.reach)
    if listed is None:
        return job.interrupted("no list was written")
    if not dry_run:
        write_given(path, encode_garbage(listed), _WRITING_LIST)
    dollars = listed.dollars_per_month(session.prices().of(None))
    orphans = [_orphan(each, now) for each in listed.entries]
    job.print(OrphansListed.of(listed, list_=path, dollars_per_month=dollars, orphans=orphans))
    for prefix, why in {**listed.left_out, **listed.refused}.items():
        click.echo(f"! {prefix}: cannot be checked: {' '.join(why.split())}", err=True)
    due = sum(each.is_due(now, grace_ms) for each in listed.entries)
    found, price = counted(len(listed.entries), "orphan"), format_dollars(dollars)
    session.say(f"{found}, {format_bytes(listed.size_bytes)}, ${price} a month; {due} old enough")
    if listed.more:
        session.say(f"and {listed.more} more than one list holds: make another list after these are deleted")
    if due:
        session.say("nothing changed" if dry_run else "nothing changed; next: tiered gc --delete")
    if listed.left_out or listed.refused:
        return Exit.CORRUPTION if listed.left_out else Exit.FAILED
    return Exit.FINDINGS if listed.entries else Exit.DONE


def _delete(session: Session, job: JobCommand, path: str, grace_ms: int, *, yes: bool, dry_run: bool) -> int:
    from tiered.config.user_files import read_given
    from tiered.jobs.orphan_deletion import decode_garbage, delete_listed

    with job.opened() as bucket:
        if job.url is None and session.config().topic_properties("")["remote.immutable"] == "true":
            wrong = "cannot delete orphans, the bucket is immutable (remote.immutable): its lifecycle deletes them"
            raise InvalidRequest(wrong)
        listed = decode_garbage(
            read_given(path, "cannot delete orphans without their list", "run 'tiered gc' first", name="path"), path
        )
        if not dry_run:
            url = bucket.store.url
            summary = f"{counted(len(listed.entries), 'orphan')}, {format_bytes(listed.size_bytes)}"
            confirm(
                f"delete up to {summary}, from {url}?",
                yes=yes,
                without=f"{summary}, would be deleted from {url}; add --yes",
            )
        session.progress.expect(len(listed.entries), "orphans")
        with job.executor("gc --delete") as executor:
            done = delete_listed(
                executor,
                job.tasks_of(bucket),
                listed,
                now_ms=now_ms(),
                grace_ms=grace_ms,
                dry_run=dry_run,
                progress=session.progress.advance,
            )
    job.print(OrphansDeleted([_orphan(each, now_ms()) for each in done.entries]))
    session.say(
        f"{('would delete' if dry_run else 'deleted')} {len(done.entries)}, "
        f"{format_bytes(done.size_bytes)}; kept {done.young} younger than {format_ms(grace_ms)}, "
        f"{done.named} that a manifest names or that no longer exist"
    )
    for prefix, error in done.unjudged.items():
        click.echo(f"! {prefix}: cannot be checked, its objects stay: {' '.join(str(error).split())}", err=True)
    if job.should_stop():
        return job.interrupted("the other objects stay in the list, run the same command to resume")
    return worst(done.unjudged.values())


def _orphan(each: Garbage, now: int) -> Orphan:
    return Orphan.of(each, age_ms=max(0, now - each.modified_ms) if each.modified_ms is not None else None)
