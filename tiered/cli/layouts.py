"""Options that name the layout of a bucket, for the commands that read external layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypedDict

import click

from local.errors import InvalidRequest
from local.verify.findings import Finding, Severity
from tiered.cli.errors import Exit

if TYPE_CHECKING:
    from local.names import TopicPartition

# `remote.external.external_layout.WORDS`; importing it loads more than a command line needs.
LAYOUTS = ("tiered", "auto", "aiven", "local-tiered-storage", "pinterest", "logs")


class LayoutWords(TypedDict):
    """The layout parameters of `tiered.open_remote`."""

    layout: str
    prefixes: tuple[str, ...]
    private_keys: dict[str, str]


def layout_options(default: str, needs: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Add ``--layout``, ``--layout-prefix`` and ``--layout-key`` to a command; `needs` says their purpose."""
    options = (
        click.option(
            "--layout", type=click.Choice(LAYOUTS), default=default, show_default=True, help=f"{needs} whose."
        ),
        click.option(
            "--layout-prefix", "prefixes", multiple=True, metavar="TEXT", help="Set key.prefix of Aiven; repeatable."
        ),
        click.option(
            "--layout-key", "private_keys", multiple=True, metavar="ID=FILE", help="Name RSA keys of Aiven; repeatable."
        ),
    )

    def decorated(command: Callable[..., object]) -> Callable[..., object]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def layout_words(layout: str, prefixes: tuple[str, ...], private_keys: tuple[str, ...]) -> LayoutWords:
    """Return the options as typed. Raises InvalidRequest for a key without a file."""
    files = {}
    for text in private_keys:
        key_id, equals, path = text.partition("=")
        if not key_id or not equals or not path:
            raise InvalidRequest("invalid --layout-key, it is not of the form id=file", text=repr(text))
        files[key_id] = path
    return LayoutWords(layout=layout, prefixes=prefixes or ("",), private_keys=files)


def report_findings(name: TopicPartition, found: Sequence[Finding]) -> None:
    """Print a line on stderr for each inconsistency in a bucket of an external layout."""
    for each in found:
        where = f" offsets {each.offsets[0]} to {each.offsets[1] - 1}" if each.offsets is not None else ""
        click.echo(f"! {name}: {each.path}:{where} {' '.join(each.what.split())}", err=True)


def findings_code(found: Sequence[Finding]) -> Exit:
    """Return CORRUPTION if findings make segments unreadable, FINDINGS if they come from the batches."""
    if any(each.severity is Severity.CORRUPT for each in found):
        return Exit.CORRUPTION
    return Exit.FINDINGS if found else Exit.DONE
