"""``tiered repair``: repair the findings of a scrub from good copies; shows the plan first."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import click

from tiered.cli.bucket_options import bucket_options, open_bucket
from tiered.cli.errors import Exit
from tiered.cli.progress import byte_progress, progress_option
from tiered.cli.render import Struct, Work, number, output_option, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.config.units import counted, format_bytes

if TYPE_CHECKING:
    from tiered.health.repair import PageRepair, RepairPlan, SegmentRepair, Untouched
    from tiered.health.scrub_report import ScrubReport


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


@click.command("repair")
@click.argument("report", metavar="REPORT.json")
@click.option("--dry-run", is_flag=True, help="Show what would be repaired, change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@bucket_options
@output_option()
@progress_option
@click.pass_obj
def repair(
    session: Session,
    report: str,
    dry_run: bool,
    yes: bool,
    url: str | None,
    options: dict[str, object],
    topic_id: str | None,
    output: str,
) -> int:
    """Make good what a scrub's report says is damaged, from this machine's disk or the bucket's own bytes."""
    from tiered.health.repair import plan_repair, run_repair

    if topic_id is not None:
        raise click.UsageError("--topic-id does not apply to repair; the report names topics by their ids")
    found = _read(report)
    with open_bucket(session, url, options, copies=True, writes_segments=True) as bucket:
        for topic in sorted({each.topic for each in found.of("corrupt")}):
            bucket.settings_of(topic, {})  # unsupported settings are not damage without a good copy
        plan = plan_repair(bucket.store, found, keys=bucket.keys, copies=bucket.copies)
        todo: list[PageRepair | SegmentRepair] = [*plan.pages, *plan.segments]
        rows = [_row(each, "to do") for each in todo] + _left(plan)
        failed: tuple[Untouched, ...] = ()
        if todo and not dry_run:
            if not yes:
                _ask(plan)
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
            rows = [_row(each, "repaired") for each in done.done] + _left(plan)
            rows += [_untouched(each, "failed") for each in done.failed]
            failed = done.failed
    print_result(Repaired(dry_run=dry_run, size_bytes=plan.size_bytes, repairs=rows), output)
    _print_summary(session, plan, failed, dry_run=dry_run)
    return Exit.CORRUPTION if plan.hopeless or failed else Exit.FINDINGS if todo and dry_run else Exit.DONE


def _read(path: str) -> ScrubReport:
    from tiered.config.user_files import read_given
    from tiered.health.scrub_report import decode_report

    return decode_report(
        read_given(path, "cannot read the scrub report", "run 'tiered scrub --deep'", name="path"), path
    )


def _ask(plan: RepairPlan) -> None:
    summary = f"{counted(len(plan.segments), 'segment')} and {counted(len(plan.pages), 'page')}"
    summary = f"{summary}, {format_bytes(plan.size_bytes)}"
    if not sys.stdin.isatty():
        raise click.UsageError(f"{summary} would be rewritten; add --yes")
    click.confirm(f"rewrite {summary}?", abort=True, err=True)


def _left(plan: RepairPlan) -> list[RepairRow]:
    return [_untouched(each, "hopeless") for each in plan.hopeless] + [
        _untouched(each, "needless") for each in plan.needless
    ]


def _print_summary(session: Session, plan: RepairPlan, failed: tuple[Untouched, ...], *, dry_run: bool) -> None:
    if dry_run and (plan.segments or plan.pages):
        session.say("nothing changed; next: tiered repair without --dry-run")
    elif plan.segments or plan.pages:
        session.say("next: tiered scrub --deep, which now checks the segments of the repaired manifest pages")
    for each in (*plan.hopeless, *failed):
        lost = f" offsets={each.offsets[0]}-{each.offsets[1] - 1}" if each.offsets is not None else ""
        click.echo(f"! {each.name.topic}/{each.name.partition} {each.object}: no good copy{lost}: {each.why}", err=True)


def _row(each: SegmentRepair | PageRepair, state: str) -> RepairRow:
    from tiered.health.repair import SegmentRepair

    part = each.entry if isinstance(each, SegmentRepair) else each.page
    return RepairRow.of(each, each.name, part, state=state, relative=_relative(each), why=None)


def _relative(each: SegmentRepair | PageRepair) -> str | None:
    """Return the fork, or the origin of the fork, that has the good copy."""
    relative = getattr(each, "relative", None)
    return str(relative.topic_partition) if relative is not None else None


def _untouched(each: Untouched, state: str) -> RepairRow:
    base_offset, next_offset = each.offsets or (None, None)
    words = {"state": state, "source": None, "relative": None, "why": " ".join(each.why.split())}
    return RepairRow.of(each, each.name, base_offset=base_offset, next_offset=next_offset, **words)
