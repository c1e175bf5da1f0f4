"""``tiered init``: write a configuration and test the store for atomic commits; ``tiered doctor``: check the node."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import click

from local.errors import ErrorCode, InvalidRequest, NotFound
from tiered.cli.errors import Exit
from tiered.cli.options import OUTPUT, argument, command, option
from tiered.cli.render import Result, Struct, print_result, text
from tiered.cli.session import Session, now_ms, store_options

if TYPE_CHECKING:
    from tiered.health.broker_file import Entry


@command("init", example="init logs --remote s3://my-bucket/logs")
def init(
    session: Session,
    directory: str | None = argument(),
    url: str | None = option(
        "--remote URL",
        "Set the url of the store: s3://bucket/prefix or file:///path; default: DIR/bucket on this disk.",
    ),
    options: dict[str, object] = option("--option NAME=VALUE", "Option of the store.", callback=store_options),
    broker_file: str | None = option("--properties FILE", "Import the settings of a Kafka broker.", type=click.Path()),
    dry_run: bool = option("--dry-run", "Print what would be written; sends no request to the store."),
    no_probe: bool = option("--no-probe", "Write the file without testing the store."),
) -> None:
    """Write DIR/tiered.toml, after a check that the store creates and deletes objects.

    The store's credentials come from its own environment variables or profile; none is ever written here.
    """
    from tiered.config.config import FILE, file_url
    from tiered.config.secrets import check_no_secret

    root = os.path.abspath(directory or session.directory)
    path = os.path.join(root, FILE)
    if not os.path.isdir(root) and (above := _file_above(root)) is not None:
        raise InvalidRequest(
            "cannot write the configuration, the path is a file: name a directory", directory=root, file=above
        )
    if os.path.exists(path):
        raise InvalidRequest("cannot write the configuration, it already exists", file=path)
    check_no_secret(url, options, path)
    defaults, ignored = _defaults(broker_file)
    bucket = os.path.join(root, "bucket") if url is None else None
    url = url if url is not None else file_url(os.path.join(root, "bucket"))
    text = configuration(url, options, defaults)
    if dry_run:
        click.echo(text, nl=False)
        _print_ignored(session, broker_file, ignored)
        session.say(f"would write {path}; nothing changed")
        return
    if bucket is not None:
        os.makedirs(bucket, exist_ok=True)
    if not no_probe:
        _probe(session, url, options)
    os.makedirs(root, exist_ok=True)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
    click.echo(path)
    _print_ignored(session, broker_file, ignored)
    place = directory or session.directory
    session.say(f"next: tiered {'' if place == '.' else f'-C {shlex.quote(place)} '}topic create NAME")


def _defaults(broker_file: str | None) -> tuple[dict[str, str], list[tuple[Entry, str]]]:
    if broker_file is None:
        return {}, []
    from tiered.health.broker_file import broker_settings, read_entries, without_effect

    entries = read_entries(broker_file)
    return broker_settings(entries), without_effect(entries)


def _print_ignored(session: Session, broker_file: str | None, ignored: Sequence[tuple[Entry, str]]) -> None:
    for entry, why in ignored:
        session.say(f"no effect: {entry.name} ({broker_file}:{entry.line}): {why}")


def _file_above(path: str) -> str | None:
    """Return `path` or its nearest existing ancestor, if that is a file."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return None if os.path.isdir(path) else path


def configuration(url: str, options: Mapping[str, object], defaults: Mapping[str, str] | None = None) -> str:
    """The text of a new ``tiered.toml``: tiering for every topic, else `defaults` or those of Kafka."""
    from tiered.topics.config_export import toml_text

    own = {name: text for name, text in (defaults or {}).items() if name != "remote.storage.enable"}
    return "\n".join(
        (
            "# The log directories, the store of closed segments, and the default settings of topics.",
            "[local]",
            'dir = "data"',
            "",
            "[remote]",
            f"url = {toml_text(url)}",
            *([f"options = {toml_text(options)}"] if options else []),
            "",
            "[defaults]",
            '"remote.storage.enable" = true',
            *(f"{toml_text(name)} = {toml_text(text)}" for name, text in own.items()),
            "",
        )
    )


def _probe(session: Session, url: str, options: dict[str, object]) -> None:
    from remote.store.probe import probe_store
    from tiered.config.config import Config
    from tiered.stores.configured_store import addressed_store

    store = addressed_store(url, options, Config.load(None, session.overrides, os.environ))
    try:
        guarantees = probe_store(store, now_ms=now_ms(), is_racing=True)
    except NotFound as error:
        if error.code is ErrorCode.STORE_DIRECTORY_MISSING:
            error.add_note("create it, mount its disk, or correct the url of --remote")
        raise
    finally:
        store.close()
    if guarantees.allows_writers:
        session.say(f"store is writable and supports create-if-absent: {store.url}")
    else:
        session.say(f"warning: this store overwrites existing objects; never run two managers on it: {store.url}")


class DoctorFinding(Struct):
    """The result of one check; `state` is ok, warning, error or skipped, `next` empty if there is nothing to do."""

    check: Annotated[str, text("CHECK")]
    state: Annotated[str, text("STATE")]
    what: Annotated[str, text("WHAT")]
    next: Annotated[str, text("NEXT")]
    code: str


Doctor = Result.declare("Doctor", "``tiered doctor``.", findings=list[DoctorFinding])


@command("doctor", example="-C logs doctor")
def doctor(
    session: Session,
    no_probe: bool = option("--no-probe", "Write nothing to the disk or the store, not even temporarily."),
    only_problems: bool = option("--problems", "Print only warnings and errors."),
    output: str = OUTPUT,
) -> int:
    """Check versions, settings, disks, limits, the store and its content.

    Each finding has a next step. Exit 10 with errors, 3 with warnings.
    """
    from local.verify.findings import Severity
    from tiered.health.doctor import examine

    session.set_up_logging(reports_problems=True)
    found = list(examine(session.config(), may_write=not no_probe))
    rows = [
        DoctorFinding.of(each, what=f"{each.where}: {each.what}" if each.where else each.what, next=each.next_step)
        for each in found
        if not only_problems or each.severity >= Severity.WARNING
    ]
    print_result(Doctor(rows), output)
    if any(each.severity is Severity.ERROR for each in found):
        return Exit.UNHEALTHY
    return Exit.FINDINGS if any(each.severity is Severity.WARNING for each in found) else Exit.DONE
