"""Options and helpers of the bucket commands: the bucket of the configuration or of an address."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from local.errors import InvalidRequest, LogError, NotFound, RemoteLost
from tiered.cli.arguments import parse_partition
from tiered.cli.errors import Exit
from tiered.cli.session import UNNAMED, Session, now_ms, store_options

if TYPE_CHECKING:
    from local.names import TopicPartition
    from local.verify.findings import Finding
    from remote.manifest.catalog import RemotePartitionName
    from remote.segments.encryption import KeyRing
    from remote.store import ObjectStore
    from tiered.health.repair_from_local import LocalCopies
    from tiered.stores.object_encoding import BucketSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket as a command addresses it, by `url` and `options`.

    `is_single_writer` is the user's declaration. `copies` are the segments on this machine's disk, None without a
    directory. `settings` are those of the bucket's topics, as far as this command knows them.
    """

    store: ObjectStore
    keys: KeyRing
    url: str
    options: Mapping[str, object]
    settings: BucketSettings
    is_single_writer: bool = False
    copies: LocalCopies | None = None

    def settings_of(self, topic: str, own: Mapping[str, str], **more: str) -> dict[str, str]:
        """Return the settings of a topic whose manifest has `own`; `more` are command flags, which win.

        Raises InvalidRequest for a key that the key ring lacks, before any read or write.
        """
        from tiered.stores.object_encoding import encoding_of

        found = {**self.settings.of(topic, own), **more}
        encoding_of(found, self.keys)
        return found

    def partitions(self, targets: Sequence[str], topic_id: str | None) -> list[RemotePartitionName]:
        """Return the partitions that ``TOPIC[/PARTITION]`` words name, all without a word.

        Raises NotFound if a word names none.
        """
        from remote.manifest.catalog import chosen_partitions

        asked = [parse_partition(each) for each in targets]
        ids = {topic: topic_id for topic, _ in asked} if topic_id is not None else {}
        found = chosen_partitions(self.store, asked, topic_ids=ids)
        for text, (topic, number) in zip(targets, asked, strict=True):
            if not any(each.topic == topic and number in (None, each.partition) for each in found):
                raise NotFound("the partition is not in the bucket", name=text, store=self.store.url)
        return found

    def missing(self, targets: Sequence[str], names: Sequence[RemotePartitionName]) -> list[RemotePartitionName]:
        """Return the partitions without any object among `names`, of topics that the targets name as a whole."""
        from remote.manifest.catalog import missing_between

        asked = [parse_partition(each) for each in targets]
        whole = {topic for topic, number in asked if number is None}
        return [each for each in missing_between(names) if not asked or each.topic in whole]


def bucket_options(command: Callable[..., object]) -> Callable[..., object]:
    """Add ``--remote``, ``--option`` and ``--topic-id`` to a command."""
    for option in (
        click.option("--topic-id", metavar="ID", help="Choose one of several topics of this name in the bucket."),
        click.option(
            "--option",
            "options",
            multiple=True,
            metavar="NAME=VALUE",
            callback=store_options,
            help="Option of the store of --remote.",
        ),
        click.option("--remote", "url", metavar="URL", help="Read this bucket only; needs no configuration."),
    ):
        command = option(command)
    return command


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

    With `writes_segments` it refuses settings that the bucket cannot honour for new segments. With `copies` this
    directory's logs serve as good copies; a log is opened read-only on the first request for it.
    """
    from remote.store.middleware.throttled_store import ThrottledStore
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
    try:
        if not copies or config is None:
            yield found
            return
        from tiered.health.repair_from_local import LocalCopies
        from tiered.manager.manager import LogManager

        opened = partial(LogManager.open, config, now_ms=now_ms(), read_only=True, store=store)
        with LocalCopies(opened) as local:
            yield replace(found, copies=local)
    finally:
        store.close()


def lost_partitions(session: Session, targets: Sequence[str]) -> dict[TopicPartition, LogError]:
    """Return the partitions whose dropped records the configured bucket lacks: it is lost or wrong.

    Checks this directory's partitions, or only `targets` if given. Every log is opened read-only.
    """
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
    """Open the store that a rewrite writes to, with that storage class and server-side encryption of the settings.

    The settings are those of the configuration if the source bucket `is_configured`, else those of -X.
    """
    from dataclasses import replace

    from remote.store.middleware.throttled_store import ThrottledStore
    from remote.store.object_settings import ObjectSettings
    from remote.store.open_store import open_store
    from tiered.config.properties import DEFAULTS
    from tiered.config.secrets import keyed_store
    from tiered.stores.configured_store import object_settings

    objects = ObjectSettings(storage_class=storage_class)
    if url.startswith("s3:"):
        values = session.config().topic_properties("") if is_configured else {**DEFAULTS, **session.overrides}
        objects = replace(object_settings(values), storage_class=storage_class)
    ring = session.config().key_ring if is_configured else None
    store = keyed_store(open_store(url, options, objects=objects), ring)
    limit = parse_rate(rate) if rate is not None else None
    return ThrottledStore(store, limit, limit) if limit is not None else store


def parse_rate(text: str) -> int:
    """Parse ``50MB/s`` to bytes per second. Raises InvalidRequest."""
    from tiered.config.units import parse_bytes

    rate = parse_bytes(text.removesuffix("/s"))
    if rate is None or rate <= 0:
        raise InvalidRequest("invalid rate", text=repr(text), expected="a size for a second, such as 50MB/s")
    return rate


def report_findings(name: TopicPartition, found: Sequence[Finding]) -> None:
    """Print a line on stderr for each inconsistency in a bucket of an external layout."""
    for each in found:
        where = f" offsets {each.offsets[0]} to {each.offsets[1] - 1}" if each.offsets is not None else ""
        click.echo(f"! {name}: {each.path}:{where} {' '.join(each.what.split())}", err=True)


def findings_code(found: Sequence[Finding]) -> Exit:
    """Return CORRUPTION if findings make segments unreadable, FINDINGS if they come from the batches."""
    from local.verify.findings import Severity

    if any(each.severity is Severity.CORRUPT for each in found):
        return Exit.CORRUPTION
    return Exit.FINDINGS if found else Exit.DONE
