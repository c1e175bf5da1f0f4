"""``tiered gc``: list the orphans of a bucket, then delete objects from that list."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from local.errors import InvalidRequest
from tiered.cli.bucket_options import Bucket, bucket_options, open_bucket
from tiered.cli.errors import Exit, worst
from tiered.cli.progress import progress_option
from tiered.cli.render import Result, Struct, number, output_option, print_result, text
from tiered.cli.session import Session, now_ms
from tiered.cli.signals import Stop, stop_signals
from tiered.cli.spark_jobs import OnSpark, spark_job, spark_options, task_bucket
from tiered.config.units import counted, format_bytes, format_dollars, format_ms, parse_duration

if TYPE_CHECKING:
    from remote.manifest.catalog import RemotePartitionName
    from remote.store.unfinished_uploads import UnfinishedUploads
    from tiered.jobs.job_bucket import Bucket as TaskBucket
    from tiered.jobs.orphan_deletion import Deleted, Garbage, GarbageList

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


@click.command("gc")
@click.argument("targets", nargs=-1, metavar="[TOPIC[/PARTITION] ...]")
@click.option("--delete", is_flag=True, help="Delete the objects of the list that are still orphans and old enough.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Delete nothing, and write no list.")
@click.option("--older-than", default="3d", show_default=True, metavar="AGE", help="Set the minimum age of an orphan.")
@click.option(
    "--list", "path", metavar="FILE", help=f"Name the list, to write or to read; default: {LIST} in the directory."
)
@bucket_options
@output_option()
@progress_option
@click.pass_obj
@spark_options
def gc(
    session: Session,
    targets: tuple[str, ...],
    delete: bool,
    yes: bool,
    dry_run: bool,
    older_than: str,
    path: str | None,
    url: str | None,
    options: dict[str, object],
    topic_id: str | None,
    output: str,
    on_spark: OnSpark,
) -> int:
    """List what nothing names and nobody can name any more: objects, unfinished uploads. Deletes only with --delete."""
    grace_ms = parse_duration(older_than)
    if grace_ms is None or grace_ms < 0:
        raise InvalidRequest("invalid --older-than", text=repr(older_than), expected="a duration such as 3d")
    if dry_run and on_spark.is_wanted:
        raise click.UsageError("--dry-run runs in this process; remove --spark")
    if delete and targets:
        raise click.UsageError("--delete uses the list; select topics when the list is made")
    where = path or os.path.join(session.directory, LIST)
    with stop_signals() as stop, open_bucket(session, url, options) as bucket:
        work = _Work(session, bucket, on_spark, stop, is_configured=url is None)
        if delete:
            return _delete(session, work, where, grace_ms, output, yes=yes, dry_run=dry_run)
        names = bucket.partitions(targets, topic_id)
        return _list(session, work, names, where, grace_ms, output, dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class _Work:
    """The search and the deletion, in this process or in Spark tasks."""

    session: Session
    bucket: Bucket
    on_spark: OnSpark
    stop: Stop
    is_configured: bool = field(kw_only=True)

    def list(self, names: Sequence[RemotePartitionName]) -> GarbageList | None:
        """Return None if asked to stop before the end."""
        from tiered.jobs.orphan_deletion import list_garbage

        progress = self.session.progress
        progress.expect(len(names), "partitions")
        if not self.on_spark.is_wanted:
            uploads = _uploads(self.bucket)
            advance: Callable[[RemotePartitionName], None] = lambda name: progress.advance()  # noqa: E731
            return list_garbage(self.bucket.store, names, now_ms=now_ms(), uploads=uploads, progress=advance)
        from tiered.spark.jobs import garbage

        with spark_job(self.session, "gc", self.on_spark) as spark:
            stop = lambda: self.stop.is_set  # noqa: E731
            return garbage.list_garbage(spark, self._for_tasks(), names, should_stop=stop, progress=progress.reach)

    def delete(self, listed: GarbageList, grace_ms: int, *, dry_run: bool) -> Deleted:
        from tiered.jobs.orphan_deletion import delete_garbage

        self.session.progress.expect(len(listed.entries), "orphans")
        if not self.on_spark.is_wanted:
            uploads = _uploads(self.bucket)
            return delete_garbage(
                self.bucket.store,
                listed,
                now_ms=now_ms(),
                grace_ms=grace_ms,
                uploads=uploads,
                dry_run=dry_run,
                progress=self.session.progress.advance,
            )
        from tiered.spark.jobs import garbage

        with spark_job(self.session, "gc --delete", self.on_spark) as spark:
            stop = lambda: self.stop.is_set  # noqa: E731
            done = garbage.delete_garbage(spark, self._for_tasks(), listed, grace_ms=grace_ms, should_stop=stop)
        if not self.stop.is_set:
            self.session.progress.reach(len(listed.entries))
        return done

    def _for_tasks(self) -> TaskBucket:
        return task_bucket(self.session, self.bucket, is_configured=self.is_configured)


def _list(
    session: Session,
    work: _Work,
    names: Sequence[RemotePartitionName],
    path: str,
    grace_ms: int,
    output: str,
    *,
    dry_run: bool,
) -> int:
    from tiered.config.user_files import check_target, write_given
    from tiered.jobs.orphan_deletion import encode_garbage

    check_target(path, _WRITING)
    now, listed = now_ms(), work.list(names)
    if listed is None:
        session.say("interrupted; no list was written")
        return _interrupted(work.stop)
    if not dry_run:
        write_given(path, encode_garbage(listed), _WRITING)
    dollars = listed.dollars_per_month(session.prices().of(None))
    orphans = [_orphan(each, now) for each in listed.entries]
    print_result(OrphansListed.of(listed, list_=path, dollars_per_month=dollars, orphans=orphans), output)
    for prefix, why in {**listed.left_out, **listed.refused}.items():
        click.echo(f"! {prefix}: cannot be checked: {' '.join(why.split())}", err=True)
    due = sum(each.is_due(now, grace_ms) for each in listed.entries)
    price = format_dollars(dollars)
    found = counted(len(listed.entries), "orphan")
    session.say(f"{found}, {format_bytes(listed.size_bytes)}, ${price} a month; {due} old enough")
    if listed.more:
        session.say(f"and {listed.more} more than one list holds: make another list after these are deleted")
    if due:
        session.say("nothing changed" if dry_run else "nothing changed; next: tiered gc --delete")
    if listed.left_out or listed.refused:
        return Exit.CORRUPTION if listed.left_out else Exit.FAILED
    return Exit.FINDINGS if listed.entries else Exit.DONE


def _delete(session: Session, work: _Work, path: str, grace_ms: int, output: str, *, yes: bool, dry_run: bool) -> int:
    from tiered.config.user_files import read_given
    from tiered.jobs.orphan_deletion import decode_garbage

    if work.is_configured and session.config().topic_properties("")["remote.immutable"] == "true":
        raise InvalidRequest(
            "cannot delete orphans, the bucket is immutable (remote.immutable): its lifecycle deletes them"
        )
    listed = decode_garbage(
        read_given(path, "cannot delete orphans without their list", "run 'tiered gc' first", name="path"), path
    )
    if not (yes or dry_run):
        _ask(listed, work.bucket)
    done = work.delete(listed, grace_ms, dry_run=dry_run)
    print_result(OrphansDeleted([_orphan(each, now_ms()) for each in done.entries]), output)
    session.say(
        f"{('would delete' if dry_run else 'deleted')} {len(done.entries)}, "
        f"{format_bytes(done.size_bytes)}; kept {done.young} younger than {format_ms(grace_ms)}, "
        f"{done.somebodys} that a manifest names or that no longer exist"
    )
    for prefix, error in done.unjudged.items():
        click.echo(f"! {prefix}: cannot be checked, its objects stay: {' '.join(str(error).split())}", err=True)
    if work.stop.is_set:
        session.say("interrupted; the other objects stay in the list, run the same command to resume")
        return _interrupted(work.stop)
    return worst(done.unjudged.values())


def _interrupted(stop: Stop) -> int:
    return Exit.TERMINATED if stop.signal == signal.SIGTERM else Exit.INTERRUPTED


def _ask(listed: GarbageList, bucket: Bucket) -> None:
    count, size = counted(len(listed.entries), "orphan"), format_bytes(listed.size_bytes)
    if not sys.stdin.isatty():
        raise click.UsageError(f"{count}, {size}, would be deleted from {bucket.store.url}; add --yes")
    click.confirm(f"delete up to {count}, {size}, from {bucket.store.url}?", abort=True, err=True)


def _uploads(bucket: Bucket) -> UnfinishedUploads | None:
    """Return None for a store without multipart uploads."""
    if not bucket.url.startswith("s3://"):
        return None
    from remote.store.unfinished_uploads import UnfinishedUploads

    return UnfinishedUploads(bucket.url, bucket.options)


def _orphan(each: Garbage, now: int) -> Orphan:
    return Orphan.of(each, age_ms=max(0, now - each.modified_ms) if each.modified_ms is not None else None)
