"""``tiered gc``: list the orphans of a bucket, then delete objects from that list."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from local.errors import InvalidRequest
from tiered.cli.arguments import duration_ms
from tiered.cli.errors import Exit, worst
from tiered.cli.job_command import JobCommand
from tiered.cli.options import GROUP, PARTITIONS, YES, command, option
from tiered.cli.render import Result, Struct, number, text
from tiered.cli.session import Session, confirm, now_ms
from tiered.config.units import counted, format_bytes, format_dollars, format_ms

if TYPE_CHECKING:
    from tiered.jobs.orphan_deletion import Garbage

LIST = "gc-list.json"
_WRITING = "cannot write the list of orphans"


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
    """``tiered gc``; `more` orphans were found than the list holds."""

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
    """List what nothing names and nobody can name any more: objects, unfinished uploads. Deletes only with --delete."""
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
        check_target(path, _WRITING)
        session.progress.expect(len(names), "partitions")
        with job.executor("gc") as executor:
            listed = search_garbage(executor, job.tasks_of(bucket), names, now_ms=now, progress=session.progress.reach)
    if listed is None:
        return job.interrupted("no list was written")
    if not dry_run:
        write_given(path, encode_garbage(listed), _WRITING)
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
            raise InvalidRequest(
                "cannot delete orphans, the bucket is immutable (remote.immutable): its lifecycle deletes them"
            )
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
        f"{done.somebodys} that a manifest names or that no longer exist"
    )
    for prefix, error in done.unjudged.items():
        click.echo(f"! {prefix}: cannot be checked, its objects stay: {' '.join(str(error).split())}", err=True)
    if job.should_stop():
        return job.interrupted("the other objects stay in the list, run the same command to resume")
    return worst(done.unjudged.values())


def _orphan(each: Garbage, now: int) -> Orphan:
    return Orphan.of(each, age_ms=max(0, now - each.modified_ms) if each.modified_ms is not None else None)
