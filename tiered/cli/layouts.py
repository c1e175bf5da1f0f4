"""Words that say whose bucket it is, for the commands that read any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypedDict

import click

from local.errors import InvalidRequest
from local.verify.findings import Finding, Severity
from tiered.cli.errors import Exit

if TYPE_CHECKING:
    from local.names import TopicPartition

# `remote.external.external_layout.WORDS`, which needs more than a command line has loaded.
LAYOUTS = ("tiered", "auto", "aiven", "local-tiered-storage", "pinterest", "logs")


class LayoutWords(TypedDict):
    """As `tiered.open_remote` takes them."""

    layout: str
    prefixes: tuple[str, ...]
    private_keys: dict[str, str]


def layout_options(default: str, needs: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """``--layout``, ``--layout-prefix`` and ``--layout-key`` of a command; `needs` says what they are for."""
    options = (
        click.option(
            "--layout", type=click.Choice(LAYOUTS), default=default, show_default=True, help=f"{needs} whose."
        ),
        click.option("--layout-prefix", "prefixes", multiple=True, metavar="TEXT", help="Aiven's key.prefix; repeat."),
        click.option(
            "--layout-key", "private_keys", multiple=True, metavar="ID=FILE", help="Aiven's RSA keys; repeat."
        ),
    )

    def decorated(command: Callable[..., object]) -> Callable[..., object]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def layout_words(layout: str, prefixes: tuple[str, ...], private_keys: tuple[str, ...]) -> LayoutWords:
    """The options as typed. Raises InvalidRequest for a key without a file."""
    files = {}
    for text in private_keys:
        key_id, equals, path = text.partition("=")
        if not key_id or not equals or not path:
            raise InvalidRequest("reading --layout-key, not of the form id=file", text=repr(text))
        files[key_id] = path
    return LayoutWords(layout=layout, prefixes=prefixes or ("",), private_keys=files)


def tell_findings(name: TopicPartition, found: Sequence[Finding]) -> None:
    """A line on stderr for everything in a bucket of another layout that makes no sense."""
    for each in found:
        where = f" offsets {each.offsets[0]} to {each.offsets[1] - 1}" if each.offsets is not None else ""
        click.echo(f"! {name}: {each.path}:{where} {' '.join(each.what.split())}", err=True)


def findings_code(found: Sequence[Finding]) -> Exit:
    """Corruption for what keeps segments from being read, findings for what was found out by the batches."""
    if any(each.severity is Severity.CORRUPT for each in found):
        return Exit.CORRUPTION
    return Exit.FINDINGS if found else Exit.DONE
