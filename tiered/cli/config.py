"""``tiered config``: what a setting does, what it is here, and where that comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tiered.cli.render import Column, emit, output_option
from tiered.cli.session import Session

if TYPE_CHECKING:
    from tiered.property_table import Property


@click.group("config")
def config() -> None:
    """What settings there are, and what they are here."""


@config.command("explain")
@click.argument("setting", metavar="SETTING")
@click.option("-t", "--topic", metavar="TOPIC", help="As it holds for this topic; default: for one without its own.")
@output_option()
@click.pass_obj
def explain(session: Session, setting: str, topic: str | None, output: str) -> None:
    """What SETTING does, how it is written, what it is here and where that comes from. Needs no store and no log."""
    from tiered.properties import Source, find_property

    known = find_property(setting)
    own = session.topics().get(topic).properties if topic else None
    effective = {each.name: each for each in session.config().explain(topic or "", own)}[known.name]
    facts = {
        "setting": known.name,
        "value": effective.value,
        "origin": effective.origin,
        "default": known.default,
        "expected": known.expected,
        "example": f"-X {known.name}={example_of(known)}",
        "variable": known.environment_variable,
        "kafka": known.name if known.source is Source.KAFKA else "none, it is ours",
        "of": "topic" if known.is_per_topic else "manager",
        "meaning": known.doc.replace("`", ""),
    }
    if output == "table":
        for name, value in facts.items():
            click.echo(f"{name:<9} {value}")
        return
    emit("settings", [facts], [Column(name) for name in facts], output)


def example_of(known: Property) -> str:
    """A value that this setting takes, and another than its default where there is one at hand."""
    from tiered.properties import Kind

    if known.kind is Kind.BOOL:
        return "false" if known.default == "true" else "true"
    if known.choices:
        return next((choice for choice in known.choices if choice != known.default), known.default)
    usual = {Kind.MS: ("7d", 7 * 86_400_000), Kind.BYTES: ("512MiB", 512 << 20)}.get(known.kind)
    if usual is None or (known.maximum is not None and known.maximum < usual[1]):
        return known.default
    return usual[0]
