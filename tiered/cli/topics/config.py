"""``tiered config``: describe settings, show their values, find invalid ones, and export all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from tiered.cli.errors import Exit
from tiered.cli.options import OUTPUT, TOPICS, argument, command, option
from tiered.cli.render import Result, Struct, print_result, text, write_lines
from tiered.cli.session import Session
from tiered.config.units import counted

if TYPE_CHECKING:
    from tiered.config.properties import Property
    from tiered.topics.config_export import KafkaConfigs


class ExplainedSetting(Struct):
    """A setting: its value here, its origin, how it is written and what it does."""

    setting: str
    value: str
    origin: str
    default: str
    expected: str
    example: str
    variable: str
    kafka: str
    of_: str = msgspec.field(name="of")
    meaning: str


class ConfigExplained(Result):
    """``tiered config explain``; one setting."""

    settings: list[ExplainedSetting]


class LintFinding(Struct):
    """`where` is a line of a file or another place; `topics` are the affected ones, none for all."""

    severity: Annotated[str, text("SEVERITY")]
    where: Annotated[str, text("WHERE")]
    key: str
    what: Annotated[str, text("WHAT")]
    next_step: Annotated[str, text("NEXT")]
    topics: Annotated[list[str], text("TOPICS", " ".join)]
    code: str


class ConfigLinted(Result):
    """``tiered config lint``."""

    findings: list[LintFinding]


class TopicConfigs(Struct):
    """Kafka's configs of a topic."""

    topic: str
    configs: dict[str, str]


class ConfigExported(Result):
    """``tiered config export --format json``."""

    topics: list[TopicConfigs]


@click.group("config")
def config() -> None:
    """Explain, check and export settings."""


@command("explain", config, example="config explain retention.ms --topic orders")
def explain(
    session: Session,
    setting: str = argument("SETTING"),
    topic: str | None = option(
        "-t, --topic TOPIC", "Show the value for this topic; default: for a topic without own settings."
    ),
    output: str = OUTPUT,
) -> None:
    """Explain SETTING: its effect, its form, its value here and the origin of the value. Opens no store and no log."""
    from tiered.config.properties import Source, find_property

    known = find_property(setting)
    own = session.topics().get(topic).properties if topic else None
    effective = {each.name: each for each in session.config().explain(topic or "", own)}[known.name]
    explained = ExplainedSetting(
        setting=known.name,
        value=effective.value,
        origin=effective.origin,
        default=known.default,
        expected=known.expected,
        example=f"-X {known.name}={example_of(known)}",
        variable=known.environment_variable,
        kafka=known.name if known.source is Source.KAFKA else "none, it is a setting of tiered",
        of_="topic" if known.is_per_topic else "manager",
        meaning=known.doc.replace("`", ""),
    )
    if output == "table":
        for name, value in msgspec.to_builtins(explained).items():
            click.echo(f"{name:<9} {value}")
        return
    print_result(ConfigExplained([explained]), output)


@command("lint", config, example="config lint")
def lint(
    session: Session,
    topics: tuple[str, ...] = TOPICS,
    file: str | None = option("--properties FILE", "Check a file of a Kafka broker instead.", type=click.Path()),
    output: str = OUTPUT,
) -> int:
    """Check tiered.toml, the environment and topics' settings for errors and bad choices. Exit 3 with a finding."""
    if file is not None:
        from tiered.health.broker_file import lint_broker_file

        if topics:
            raise click.UsageError("--properties checks a file; remove the topics")
        found = lint_broker_file(file)
    else:
        import os

        from tiered.health.lint import lint_place

        found = lint_place(
            session.config_path(), overrides=session.overrides, environ=os.environ, topics=topics or None
        )
    findings = [LintFinding.of(each, severity=each.state, topics=list(each.topics)) for each in found]
    print_result(ConfigLinted(findings), output)
    session.say(counted(len(found), "finding") if found else "no problems found")
    return Exit.FINDINGS if found else Exit.DONE


_FORMATS = ("toml", "kafka-configs", "json", "properties")


@command("export", config, example="config export")
def export(
    session: Session,
    form: str = option("--format", "Choose the target of the export.", choices=_FORMATS, default="toml"),
    names: tuple[str, ...] = option("-t, --topic TOPIC", "Export only these topics; may be repeated."),
    everything: bool = option("--all", "Include settings with built-in values."),
    bootstrap: str = option("--bootstrap ADDRESS", "Set the server for kafka-configs.", default="localhost:9092"),
) -> None:
    """Export the effective settings, as a tiered.toml or for Kafka. Opens no store and no log."""
    from tiered.topics import config_export

    if form == "properties" and len(names) > 1:
        raise click.UsageError("one properties file belongs to one topic; use one -t, or none for the defaults")
    known, registry = session.config(), session.topics()
    topics = [registry.get(name) for name in names] if names else registry.all()
    if form == "toml":
        exported = config_export.export_config(known, topics, everything=everything)
        click.echo(config_export.as_toml(known, exported), nl=False)
        return
    of_broker = form == "properties" and not names
    configs = (
        config_export.broker_properties(known, everything=everything)
        if of_broker
        else config_export.kafka_configs(known, topics, everything=everything)
    )
    _print_configs(form, configs, bootstrap)
    if configs.left_out:
        session.say(f"omitted, because Kafka has no such setting: {', '.join(configs.left_out)}")


def _print_configs(form: str, configs: KafkaConfigs, bootstrap: str) -> None:
    from tiered.topics.config_export import as_properties, kafka_commands

    if form == "json":
        topics = [TopicConfigs(topic, dict(settings)) for topic, settings in configs.topics.items()]
        print_result(ConfigExported(topics), "json")
    elif form == "kafka-configs":
        write_lines(kafka_commands(configs, bootstrap))
    else:
        for settings in configs.topics.values():
            click.echo(as_properties(settings), nl=False)


def example_of(known: Property) -> str:
    """Return a valid value of this setting, different from its default if possible."""
    from tiered.config.properties import Kind

    if known.kind is Kind.BOOL:
        return "false" if known.default == "true" else "true"
    if known.choices:
        return next((choice for choice in known.choices if choice != known.default), known.default)
    usual = {Kind.MS: ("7d", 7 * 86_400_000), Kind.BYTES: ("512MiB", 512 << 20)}.get(known.kind)
    if usual is None or (known.maximum is not None and known.maximum < usual[1]):
        return known.default
    return usual[0]
