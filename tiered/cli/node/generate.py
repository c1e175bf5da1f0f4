"""``tiered config``: explain, check and export settings; ``tiered generate``: files for other systems."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import click
import msgspec
from click.shell_completion import CompletionItem, get_completion_class

from local.errors import InvalidRequest, LogError
from tiered.cli.errors import Exit
from tiered.cli.options import (
    GROUP,
    OUTPUT,
    REMOTE_OPTIONS,
    TOPICS,
    Number,
    argument,
    command,
    duration_ms,
    option,
    size_bytes,
)
from tiered.cli.render import Result, Struct, print_result, text, write_lines
from tiered.cli.session import UNNAMED, Session, completions
from tiered.config.units import counted
from tiered.observe.monitoring_files import (
    RUNBOOKS_URL,
    Limits,
    Role,
    alert_rules,
    dashboard,
    lifecycle_rules,
    systemd_unit,
)
from tiered.observe.monitoring_files import iam_policy as made

if TYPE_CHECKING:
    from tiered.config.properties import Property
    from tiered.topics.config_export import KafkaConfigs

VARIABLE = "_TIERED_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


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


class LintFinding(Struct):
    """`where` is a line of a file or another place; `topics` are the affected ones, none for all."""

    severity: Annotated[str, text("SEVERITY")]
    where: Annotated[str, text("WHERE")]
    key: str
    what: Annotated[str, text("WHAT")]
    next_step: Annotated[str, text("NEXT")]
    topics: Annotated[list[str], text("TOPICS", " ".join)]
    code: str


class TopicConfigs(Struct):
    """Kafka's configs of a topic."""

    topic: str
    configs: dict[str, str]


class ConfigExplained(Result):
    """``tiered config explain``; one setting."""

    settings: list[ExplainedSetting]


class ConfigLinted(Result):
    """``tiered config lint``."""

    findings: list[LintFinding]


class ConfigExported(Result):
    """``tiered config export --format json``."""

    topics: list[TopicConfigs]


def complete_setting_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from tiered.config.properties import PROPERTIES

    return completions({name: row.expected for name, row in PROPERTIES.items()}, incomplete)


@click.group("config")
def config() -> None:
    """Explain, check and export settings."""


@command("explain", config, example="config explain retention.ms --topic orders")
def explain(
    session: Session,
    setting: str = argument("SETTING", shell_complete=complete_setting_names),
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
    explained = ExplainedSetting.of(
        known,
        effective,
        setting=known.name,
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


class AliasedGroup(click.Group):
    """`aliases` maps aliases, which help and completion omit, to documented names."""

    aliases: Mapping[str, str] = {}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self.aliases.get(cmd_name, cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        with formatter.section("Other names"):
            formatter.write_dl([(other, f"Alias of {name}.") for other, name in self.aliases.items()])


@click.group("generate", cls=AliasedGroup)
def generate() -> None:
    """Print a dashboard, alert rules, a systemd unit, an IAM policy or lifecycle rules."""


generate.aliases = {"grafana-dashboard": "grafana", "prometheus-alerts": "alerts"}


def print_script(shell: str = argument(choices=_SHELLS)) -> None:
    """Print the completion script for SHELL. To use it now: eval "$(tiered completion bash)"."""
    from tiered.cli.main import main

    kind = get_completion_class(shell)
    assert kind is not None, "one of click's own"
    click.echo(kind(main, {}, "tiered", VARIABLE).source())


completion = command("completion", example="completion bash")(print_script)
command("completion", generate, example="generate completion bash")(print_script)


@command("grafana", generate, example="generate grafana")
def grafana() -> None:
    """Print a Grafana dashboard as JSON to import."""
    click.echo(dashboard(), nl=False)


@command("alerts", generate, example="generate alerts")
def alerts(
    at_risk: str = option("--at-risk SIZE", "Alert above this amount of bytes at risk.", default="50GiB"),
    copy_lag: str = option("--copy-lag TIME", "Alert above this age of a waiting upload.", default="1h"),
    free: float = option("--free", "Alert below this free share of a disk.", type=Number(0, 1), default=0.1),
    runbooks: str | None = option("--runbooks URL", "Set the address of the runbook pages; default: docs/runbooks."),
) -> None:
    """Print Prometheus alert rules, each with a link to its runbook."""
    at_risk_bytes = size_bytes("--at-risk", at_risk, "50GiB")
    copy_lag_s = duration_ms("--copy-lag", copy_lag, "1h", least=0) // 1000
    limits = Limits(at_risk_bytes=at_risk_bytes, copy_lag_s=copy_lag_s, free_share=free)
    click.echo(alert_rules(limits, runbooks_url=(runbooks or RUNBOOKS_URL).rstrip("/")), nl=False)


@command("systemd", generate, example="generate systemd --metrics :9464")
def systemd(
    session: Session,
    user: str = option("--user", "Set the user of the service.", default="tiered"),
    metrics: str = option("--metrics [HOST]:PORT", "Set the address for metrics.", default=":9464"),
) -> None:
    """Print a systemd unit for `tiered run` in this directory."""
    from tiered.serve.security.addresses import parse_address

    parse_address(metrics)
    if not _USER.fullmatch(user):
        raise InvalidRequest("invalid --user", user=repr(user), expected="a user's name such as tiered")
    executable = os.path.abspath(sys.argv[0])
    directory = os.path.abspath(session.directory)
    click.echo(systemd_unit(executable=executable, directory=directory, user=user, metrics=metrics), nl=False)


_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")  # names that systemd accepts, or a number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bucket:
    immutable: bool = option("--immutable", "Deny every delete; default: from remote.immutable.")
    options: dict[str, object] = REMOTE_OPTIONS
    url: str | None = option("--remote URL", "Name the bucket; default: the configured one.")

    def place(self, session: Session) -> tuple[str, dict[str, object], bool]:
        """Return (url, client options, is immutable) of the named or the configured bucket."""
        if self.url is not None:
            return self.url, self.options, self.immutable
        if self.options:
            raise click.UsageError(UNNAMED)
        config = session.config()
        if config.remote_url is None:
            raise InvalidRequest("no bucket is configured: set url in [remote] of tiered.toml")
        is_immutable = self.immutable or config.topic_properties("")["remote.immutable"] == "true"
        return config.remote_url, dict(config.remote_options), is_immutable


@command("iam-policy", generate, example="generate iam-policy")
def iam_policy(
    session: Session,
    role: str = option("--role", "Whose.", choices=["manager", "reader", "spark", "gc"], default="manager"),
    kms_key: str | None = option("--kms-key ARN", "Name the key that encrypts the bucket."),
    check: str | None = option(
        "--check user/NAME|role/NAME", "Compare with the policy of this user or role; exit 3 if it differs."
    ),
    apply: str | None = option("--apply user/NAME|role/NAME", "Write this policy to this user or role."),
    dry_run: bool = option("--dry-run", "With --apply: compare and print only."),
    at: _Bucket = GROUP,
) -> int:
    """Print an IAM policy with the least permissions that a role needs for the bucket."""
    from remote.store.unfinished_uploads import inline_policy, put_inline_policy, split_bucket

    place, options, is_immutable = at.place(session)
    bucket, prefix = split_bucket(place)
    policy = made(Role(role), bucket, prefix, is_immutable=is_immutable, kms_key=kms_key)
    name = f"tiered-{role}"
    if apply is not None and not dry_run:
        put_inline_policy(apply, name, policy, options)
        session.say(f"{apply} has the policy {name}")
        return Exit.DONE
    compared = (apply or check) if dry_run else check
    if dry_run or compared is None:
        click.echo(json.dumps(policy, indent=2))
    if compared is None:
        return Exit.DONE
    is_same = inline_policy(compared, name, options) == policy
    session.say(f"{compared}: {name} " + ("is correct" if is_same else "differs or does not exist"))
    return Exit.DONE if is_same else Exit.FINDINGS


@command("lifecycle", generate, example="generate lifecycle")
def lifecycle(
    session: Session,
    versioned: bool = option("--versioned", "Add a rule that deletes old versions, for a versioned bucket."),
    check: bool = option("--check", "Compare with the bucket; exit 3 if a rule is missing."),
    apply: bool = option("--apply", "Write these rules to the bucket; its other rules stay."),
    dry_run: bool = option("--dry-run", "With --apply: compare and print only."),
    at: _Bucket = GROUP,
) -> int:
    """Print S3 lifecycle rules for the bucket."""
    from remote.store.unfinished_uploads import bucket_rules, missing_rules, put_rules, split_bucket

    place, options, is_immutable = at.place(session)
    rules = lifecycle_rules(split_bucket(place)[1], is_immutable=is_immutable, is_versioned=versioned)
    if dry_run or not (check or apply):
        click.echo(json.dumps({"Rules": rules}, indent=2))
    if not (check or apply):
        return Exit.DONE
    if apply and not dry_run:
        put_rules(place, options, rules)
    missing = missing_rules(rules, bucket_rules(place, options))
    for rule in missing:
        session.warn(f"{rule['ID']}: missing or different")
    session.say(f"{len(rules) - len(missing)} of {len(rules)} rules exist")
    return Exit.FINDINGS if missing else Exit.DONE


def answer(instruction: str) -> int:
    """Print the completions of the word under the cursor, as ``bash_complete`` and similar scripts ask."""
    kind = get_completion_class(instruction.partition("_")[0])
    if kind is None or not instruction.endswith("_complete"):
        return 1
    from tiered.cli.main import main

    try:
        click.echo(kind(main, {}, "tiered", VARIABLE).complete())
    except (click.ClickException, LogError, OSError):
        click.echo()  # invalid words so far, or no node here: running the command reports it
    return 0
