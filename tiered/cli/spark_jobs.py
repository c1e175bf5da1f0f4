"""Common parts of commands that can run on Spark: ``--spark``, ``--conf``, the session, the tasks' bucket."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from local.errors import InvalidRequest
from tiered.cli.session import Session

if TYPE_CHECKING:
    from tiered.cli.bucket_options import Bucket
    from tiered.jobs.job_bucket import Bucket as TaskBucket


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSpark:
    """Where a command's work runs. `master` None: in this process, or as ``spark-submit`` was configured."""

    master: str | None = None
    conf: tuple[str, ...] = ()

    @property
    def is_wanted(self) -> bool:
        """Whether ``--spark`` was given or ``spark-submit`` started this process."""
        return self.master is not None or is_submitted()


def is_submitted() -> bool:
    """Whether ``spark-submit`` runs this process: it sets the address of its JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def spark_options(command: Callable[..., object]) -> Callable[..., object]:
    """Add ``--spark MASTER`` and ``--conf NAME=VALUE``, passed as `on_spark`, an `OnSpark`."""

    def gathered(*words: object, spark_master: str | None, spark_conf: tuple[str, ...], **more: object) -> object:
        return command(*words, on_spark=OnSpark(master=spark_master, conf=spark_conf), **more)

    gathered.__name__, gathered.__doc__ = command.__name__, command.__doc__
    gathered.__dict__.update(command.__dict__)
    for option in (
        click.option(
            "--conf", "spark_conf", multiple=True, metavar="NAME=VALUE", help="Set a Spark property; may be repeated."
        ),
        click.option(
            "--spark",
            "--master",
            "spark_master",
            metavar="MASTER",
            help="Run the work as Spark tasks: local[*], spark://..., yarn, k8s://...",
        ),
    ):
        gathered = option(gathered)
    return gathered


@contextmanager
def spark_job(session: Session, description: str, on_spark: OnSpark) -> Iterator[Any]:
    """A Spark session for one command, stopped at the end.

    Raises InvalidRequest for invalid settings, or without Spark.
    """
    from tiered.spark.session import launched_session

    conf = parse_conf(on_spark.conf)
    session.set_up_logging(reports_problems=True)
    spark = launched_session(f"tiered {description}", on_spark.master, conf)
    try:
        yield spark
    finally:
        spark.stop()


def parse_conf(conf: Sequence[str]) -> dict[str, str]:
    """Parse ``spark.a.b=c`` pairs to a mapping. Raises InvalidRequest."""
    found = {}
    for text in conf:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("spark."):
            raise InvalidRequest("invalid --conf", text=repr(text), expected="spark.NAME=VALUE")
        found[name] = value
    return found


def refuse_rate(on_spark: OnSpark, rate: str | None) -> None:
    """Refuse a rate: it limits one process, and Spark decides how many tasks run at a time."""
    if on_spark.is_wanted and rate is not None:
        raise click.UsageError(
            "--rate limits one process; with Spark use fewer cores: --spark 'local[2]', --conf spark.cores.max=4"
        )


def task_bucket(
    session: Session, bucket: Bucket, *, is_configured: bool, settings: Mapping[str, str] | None = None
) -> TaskBucket:
    """Return the bucket description for tasks; `settings` override the configuration's settings of objects."""
    from tiered.config.properties import DEFAULTS, IMMUTABLE
    from tiered.jobs.job_bucket import Bucket as TaskBucket

    key_ring, values = None, {name: value for name, value in session.overrides.items() if name == IMMUTABLE}
    if is_configured:
        config = session.config()
        key_ring, values = config.key_ring, config.topic_properties("")
    kept = {name: value for name, value in {**values, **(settings or {})}.items() if value != DEFAULTS[name]}
    return TaskBucket(url=bucket.url, options=dict(bucket.options), key_ring=key_ring, settings=kept)


def target_bucket(
    session: Session,
    url: str,
    options: Mapping[str, object],
    *,
    storage_class: str | None,
    is_configured: bool,
    key_ring: str | None,
) -> TaskBucket:
    """As `tiered.cli.bucket_options.open_target`, opened by tasks."""
    from tiered.config.properties import DEFAULTS
    from tiered.jobs.job_bucket import Bucket as TaskBucket

    values = session.config().topic_properties("") if is_configured else {**DEFAULTS, **session.overrides}
    values["remote.storage.class"] = storage_class or "default"
    kept = {name: value for name, value in values.items() if value != DEFAULTS[name]}
    return TaskBucket(url=url, options=dict(options), key_ring=key_ring, settings=kept)
