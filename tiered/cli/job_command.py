"""The skeleton of a command that runs a job: options, bucket, work here or on Spark, result, exit code.

1. `BucketCommand.opened` opens the bucket; from here on a signal only asks to stop (`BucketCommand.should_stop`).
2. The command makes a plan. `BucketCommand.proceeds` prints it under ``--dry-run``, else asks, unless ``--yes``.
3. `BucketCommand.carry_out` runs the job, in this process or in tasks, which open `JobCommand.tasks_of` the bucket.
4. `BucketCommand.print` prints the result; `BucketCommand.interrupted` gives the exit code after a signal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from local.errors import InvalidRequest, LogError, NotFound, RemoteLost
from local.names import TopicPartition
from tiered.cli.errors import Exit, stopped_code
from tiered.cli.options import OUTPUT, REMOTE, REMOTE_OPTIONS, option, parse_partition
from tiered.cli.progress import byte_progress
from tiered.cli.render import PricedWork, Result, print_result
from tiered.cli.session import UNNAMED, Session, Stop, confirm, now_ms, stop_signals
from tiered.config.units import format_dollars, parse_bytes

if TYPE_CHECKING:
    from local.verify.findings import Finding
    from remote.manifest.catalog import RemotePartitionName
    from remote.segments.encryption import KeyRing
    from remote.store import ObjectStore
    from tiered.health.repair_sources import LocalCopies
    from tiered.jobs.job_bucket import Bucket as TaskBucket
    from tiered.jobs.runner import Executor, Job, PlanUnit
    from tiered.stores.object_encoding import BucketSettings

U = TypeVar("U", bound="PlanUnit")
R = TypeVar("R")
Outcome = TypeVar("Outcome")
DRY_RUN = option("--dry-run", "Show requests, bytes and dollars, change nothing.")
_JOB_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")


@dataclass(kw_only=True)
class BucketCommand:
    """One invocation of a command about a bucket."""

    url: str | None = REMOTE
    options: dict[str, object] = REMOTE_OPTIONS
    topic_id: str | None = option("--topic-id ID", "Choose one of several topics of this name in the bucket.")
    output: str = OUTPUT

    def __post_init__(self) -> None:
        self._stop: Stop | None = None

    @property
    def session(self) -> Session:
        session = click.get_current_context().find_object(Session)
        assert session is not None, "made by the main command"
        return session

    @property
    def stop(self) -> Stop:
        assert self._stop is not None, "from `stoppable` on"
        return self._stop

    def should_stop(self) -> bool:
        return self.stop.is_set

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        with stop_signals() as self._stop:
            yield

    @contextmanager
    def opened(
        self, *, rate: str | None = None, copies: bool = False, writes_segments: bool = False
    ) -> Iterator[Bucket]:
        """Open the bucket as `open_bucket`."""
        with (
            self.stoppable(),
            open_bucket(
                self.session, self.url, self.options, rate=rate, copies=copies, writes_segments=writes_segments
            ) as bucket,
        ):
            yield bucket

    @contextmanager
    def executor(self, description: str, *, job_id: str | None = None, threads: int = 1) -> Iterator[Executor]:
        from tiered.jobs.runner import Here

        yield Here(self.should_stop, threads=threads)

    def proceeds(
        self, planned: PricedWork, doing: str, done: str, summary: str, *, yes: bool, nothing: str | None = None
    ) -> bool:
        """Print the plan of a dry run or of no work and return False; else ask, unless `yes`, and return True."""
        if planned.dry_run or nothing is not None:
            self.print(planned)
            self.session.say(nothing or f"${format_dollars(planned.dollars)}; nothing changed")
            return False
        confirm(f"{doing} {summary}?", yes=yes, without=f"{summary} would be {done}; add --yes")
        return True

    def carry_out(
        self, work: Job[U, R, Outcome], size_bytes: int, *, done: str, description: str, job_id: str | None = None
    ) -> list[Outcome]:
        """Run a job by the executor and return its outcomes; `done` is the verb of the progress of its bytes."""
        from tiered.jobs.runner import run_job

        with (
            self.executor(description, job_id=job_id) as executor,
            byte_progress(self.session, done, size_bytes) as progress,
        ):
            return run_job(work, executor, progress=progress)

    def print(self, result: Result) -> None:
        print_result(result, self.output)

    def interrupted(self, text: str | None = None) -> int:
        if text is not None:
            self.session.say(f"interrupted; {text}")
        return stopped_code(self.stop)


@dataclass(kw_only=True)
class JobCommand(BucketCommand):
    """One invocation of a command whose work can run on Spark."""

    spark_master: str | None = option(
        "--spark, --master MASTER", "Run the work as Spark tasks: local[*], spark://..., yarn, k8s://..."
    )
    spark_conf: tuple[str, ...] = option("--conf NAME=VALUE", "Set a Spark property; may be repeated.")

    @property
    def is_on_spark(self) -> bool:
        return self.spark_master is not None or is_submitted()

    @contextmanager
    def opened(
        self, *, rate: str | None = None, copies: bool = False, writes_segments: bool = False
    ) -> Iterator[Bucket]:
        """Open the bucket. Raises UsageError for a rate with Spark, which decides how many tasks run."""
        if self.is_on_spark and rate is not None:
            raise click.UsageError(
                "--rate limits one process; with Spark use fewer cores: --spark 'local[2]', --conf spark.cores.max=4"
            )
        with super().opened(rate=rate, copies=copies, writes_segments=writes_segments) as bucket:
            yield bucket

    @contextmanager
    def spark(self, description: str) -> Iterator[Any]:
        """A Spark session, stopped at the end. Raises InvalidRequest for invalid settings, or without Spark."""
        from tiered.spark.session import launched_session

        conf = parse_conf(self.spark_conf)
        self.session.set_up_logging(reports_problems=True)
        spark = launched_session(f"tiered {description}", self.spark_master, conf)
        try:
            yield spark
        finally:
            spark.stop()

    @contextmanager
    def executor(
        self, description: str, *, job_id: str | None = None, threads: int = 1, is_on_spark: bool | None = None
    ) -> Iterator[Executor]:
        """Yield the executor of the work, by default as `is_on_spark`. `threads` are for work in this process."""
        if not (self.is_on_spark if is_on_spark is None else is_on_spark):
            with super().executor(description, threads=threads) as executor:
                yield executor
            return
        from tiered.spark.jobs.runner import SparkRunner

        with self.spark(description) as spark:
            yield SparkRunner(spark, job_id=job_id, should_stop=self.should_stop)

    def tasks_of(self, bucket: Bucket) -> TaskBucket:
        """Return the open bucket, or with Spark its description for tasks."""
        if self.is_on_spark:
            return task_bucket(self.session, bucket, is_configured=self.url is None)
        from tiered.jobs.job_bucket import OpenBucket

        return OpenBucket(url=bucket.url, options=bucket.options, store=bucket.store, ring=bucket.keys)

    @contextmanager
    def target_of(
        self, bucket: Bucket, url: str, options: Mapping[str, object], *, storage_class: str | None, rate: str | None
    ) -> Iterator[TaskBucket]:
        """Open the store that a rewrite of `bucket` writes to, as `open_target`; with Spark only as a check."""
        from tiered.jobs.job_bucket import OpenBucket

        more, session = {"is_configured": self.url is None}, self.session
        with closing(open_target(session, url, options, storage_class=storage_class, rate=rate, **more)) as store:
            if not self.is_on_spark:
                yield OpenBucket(url=url, store=store, ring=bucket.keys)
                return
        values = {**_settings(session, **more), "remote.storage.class": storage_class or "default"}
        yield _described(session, url, options, values, **more)


def check_job_id(job_id: str | None) -> None:
    if job_id is not None and not _JOB_ID.fullmatch(job_id):
        raise InvalidRequest("invalid --resume, a job has letters, digits, _ and - only", job=repr(job_id))


def is_submitted() -> bool:
    """Whether ``spark-submit`` runs this process: it sets the address of its JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def parse_conf(conf: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in conf:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("spark."):
            raise InvalidRequest("invalid --conf", text=repr(text), expected="spark.NAME=VALUE")
        found[name] = value
    return found


def task_bucket(session: Session, bucket: Bucket, *, is_configured: bool) -> TaskBucket:
    from tiered.config.properties import IMMUTABLE

    values = _settings(session, is_configured=is_configured)
    if not is_configured:
        values = {IMMUTABLE: values[IMMUTABLE]}
    return _described(session, bucket.url, bucket.options, values, is_configured=is_configured)


def _settings(session: Session, *, is_configured: bool) -> dict[str, str]:
    from tiered.config.properties import DEFAULTS

    return session.config().topic_properties("") if is_configured else {**DEFAULTS, **session.overrides}


def _described(
    session: Session, url: str, options: Mapping[str, object], values: Mapping[str, str], *, is_configured: bool
) -> TaskBucket:
    from tiered.config.properties import DEFAULTS
    from tiered.jobs.job_bucket import Bucket as TaskBucket

    settings = {name: value for name, value in values.items() if value != DEFAULTS[name]}
    key_ring = session.config().key_ring if is_configured else None
    return TaskBucket(url=url, options=dict(options), key_ring=key_ring, settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket as a command addresses it, by `url` and `options`.

    `is_single_writer` is the user's declaration. `copies` are the segments on this machine's disk. `settings` are those
    of the bucket's topics, as far as this command knows them.
    """

    store: ObjectStore
    keys: KeyRing
    url: str
    options: Mapping[str, object]
    settings: BucketSettings
    is_single_writer: bool = False
    copies: LocalCopies | None = None

    def settings_of(self, topic: str, own: Mapping[str, str], **more: str) -> dict[str, str]:
        """Return a topic's settings; `more` wins over `own`. Raises InvalidRequest for a key not in the ring."""
        from tiered.stores.object_encoding import encoding_of

        found = {**self.settings.of(topic, own), **more}
        encoding_of(found, self.keys)
        return found

    def partitions(self, targets: Sequence[str], topic_id: str | None) -> list[RemotePartitionName]:
        """Return the partitions that `targets` name, or all. Raises NotFound for a target without a partition."""
        from remote.manifest.catalog import chosen_partitions

        requested = [parse_partition(each) for each in targets]
        ids = {topic: topic_id for topic, _ in requested} if topic_id is not None else {}
        found = chosen_partitions(self.store, requested, topic_ids=ids)
        for text, (topic, number) in zip(targets, requested, strict=True):
            if not any(each.topic == topic and number in (None, each.partition) for each in found):
                raise NotFound("the partition is not in the bucket", name=text, store=self.store.url)
        return found

    def missing(self, targets: Sequence[str], names: Sequence[RemotePartitionName]) -> list[RemotePartitionName]:
        """Return the partitions that `names` lacks below its highest one, of topics that are targets as a whole."""
        from remote.manifest.catalog import missing_between

        topics = {topic for topic, number in map(parse_partition, targets) if number is None}
        return [each for each in missing_between(names) if not targets or each.topic in topics]


@contextmanager
def open_bucket(
    session: Session,
    url: str | None,
    options: dict[str, object],
    *,
    rate: str | None = None,
    copies: bool = False,
    writes_segments: bool = False,
) -> Iterator[Bucket]:
    """Open the bucket at `url`, or the configured one. `rate` limits reads and writes separately.

    `writes_segments` refuses settings that the bucket cannot honour for new segments. With `copies` this directory's
    logs serve as good copies, opened read-only on the first request.
    """
    from remote.store.middleware.store_wrapper import ThrottledStore
    from tiered.config.config import Config
    from tiered.config.secrets import load_key_ring
    from tiered.stores.configured_store import addressed_store, configured_store
    from tiered.stores.configured_store import store_options as options_of
    from tiered.stores.object_encoding import BucketSettings

    if url is None and options:
        raise click.UsageError(UNNAMED)
    limit = parse_rate(rate) if rate is not None else None
    session.set_up_logging(reports_problems=True)
    config = session.config() if url is None else None
    known = config if config is not None else Config.load(None, session.overrides, os.environ)
    if config is not None:
        store = configured_store(known)
    else:
        store = addressed_store(url or "", options, known, writes_segments=writes_segments)
    if store is None:
        raise InvalidRequest("no bucket is configured: set url in [remote] of tiered.toml")
    limited = ThrottledStore(store, limit, limit) if limit is not None else store
    found = Bucket(
        store=limited,
        keys=load_key_ring(config.key_ring if config is not None else None, os.environ),
        url=(config.remote_url or "") if config is not None else url or "",
        options=options_of(config) if config is not None else options,
        settings=BucketSettings(config=known, is_node=config is not None),
        is_single_writer=known.is_single_writer,
    )
    with closing(store):
        if not copies or config is None:
            yield found
            return
        from tiered.health.repair_sources import LocalCopies
        from tiered.manager.manager import LogManager

        with LocalCopies(partial(LogManager.open, config, now_ms=now_ms(), read_only=True, store=store)) as local:
            yield replace(found, copies=local)


def lost_partitions(session: Session, targets: Sequence[str]) -> dict[TopicPartition, LogError]:
    """Return the partitions of this directory whose dropped records the bucket lacks; `targets` limit them."""
    wanted = [parse_partition(each) for each in targets]
    with session.manager(read_only=True) as manager:
        return {
            name: error
            for name, error in sorted(manager.problems.items())
            if isinstance(error, RemoteLost)
            and (
                not wanted or any(name.topic == topic and number in (None, name.partition) for topic, number in wanted)
            )
        }


def open_target(
    session: Session,
    url: str,
    options: Mapping[str, object],
    *,
    storage_class: str | None,
    rate: str | None,
    is_configured: bool,
) -> ObjectStore:
    """Open the store that a rewrite writes to; settings as configured if the source `is_configured`, else by -X."""
    from remote.store.middleware.store_wrapper import ThrottledStore
    from remote.store.open_store import open_store
    from remote.store.s3_options import ObjectSettings
    from tiered.config.secrets import keyed_store
    from tiered.stores.configured_store import object_settings

    objects = ObjectSettings(storage_class=storage_class)
    if url.startswith("s3:"):
        values = _settings(session, is_configured=is_configured)
        objects = replace(object_settings(values), storage_class=storage_class)
    ring = session.config().key_ring if is_configured else None
    store = keyed_store(open_store(url, options, objects=objects), ring)
    limit = parse_rate(rate) if rate is not None else None
    return ThrottledStore(store, limit, limit) if limit is not None else store


def parse_rate(text: str) -> int:
    """Parse ``50MB/s`` to bytes per second. Raises InvalidRequest."""
    rate = parse_bytes(text.removesuffix("/s"))
    if rate is None or rate <= 0:
        raise InvalidRequest("invalid rate", text=repr(text), expected="a size for a second, such as 50MB/s")
    return rate


def report_findings(name: TopicPartition, found: Sequence[Finding]) -> None:
    for each in found:
        where = f" offsets {each.offsets[0]} to {each.offsets[1] - 1}" if each.offsets is not None else ""
        click.echo(f"! {name}: {each.where}:{where} {' '.join(each.what.split())}", err=True)


def findings_code(found: Sequence[Finding]) -> Exit:
    from local.verify.findings import Severity

    if any(each.severity is Severity.CORRUPT for each in found):
        return Exit.CORRUPTION
    return Exit.FINDINGS if found else Exit.DONE
