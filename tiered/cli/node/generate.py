"""``tiered generate``: configuration files for monitoring and other systems, from the metric and alert tables."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import click
from click.shell_completion import CompletionItem, get_completion_class

from local.errors import InvalidRequest, LogError
from tiered.cli.arguments import Number, duration_ms, size_bytes
from tiered.cli.errors import Exit
from tiered.cli.options import GROUP, REMOTE_OPTIONS, argument, command, option
from tiered.cli.session import UNNAMED, Session
from tiered.config.units import counted
from tiered.observe.monitoring_files import Role, alert_rules, dashboard, lifecycle_rules, systemd_unit
from tiered.observe.monitoring_files import iam_policy as made

VARIABLE = "_TIERED_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


class AliasedGroup(click.Group):
    """`aliases` maps aliases to documented names. Command lists and completion have only the latter."""

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
    from tiered.observe.monitoring_files import RUNBOOKS_URL, Limits

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
    from tiered.web.http.metrics_server import parse_address

    parse_address(metrics)
    if not _USER.fullmatch(user):
        raise InvalidRequest("invalid --user", user=repr(user), expected="a user's name such as tiered")
    executable = os.path.abspath(sys.argv[0])
    directory = os.path.abspath(session.directory)
    click.echo(systemd_unit(executable=executable, directory=directory, user=user, metrics=metrics), nl=False)


_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")  # names that systemd accepts, or a number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bucket:
    """The bucket that a policy or rules are for."""

    immutable: bool = option("--immutable", "Deny every delete; default: from remote.immutable.")
    options: dict[str, object] = REMOTE_OPTIONS
    url: str | None = option("--remote URL", "Name the bucket; default: the configured one.")

    def place(self, session: Session) -> tuple[str, dict[str, object], bool]:
        """Return (url, client options, whether it is immutable) of the named or the configured bucket."""
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
    import json

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
    import json

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
    """Print the candidates for the word under the cursor, as the ``bash_complete`` script and similar ones ask."""
    shell = instruction.partition("_")[0]
    kind = get_completion_class(shell)
    if kind is None or not instruction.endswith("_complete"):
        return 1
    from tiered.cli.main import main

    completer = kind(main, {}, "tiered", VARIABLE)
    words, incomplete = completer.get_completion_args()
    try:
        found = candidates(words, incomplete)
    except (click.ClickException, LogError, OSError):
        found = []  # invalid words so far, or no node here: running the command reports it
    click.echo("\n".join(completer.format_completion(each) for each in found))
    return 0


def candidates(words: list[str], incomplete: str) -> list[CompletionItem]:
    """Return the candidates for `incomplete` after `words`."""
    from tiered.cli.main import COMMANDS, main

    context = main.make_context("tiered", list(words), resilient_parsing=True)
    command: click.Command = main
    typed = _behind_options(main, context, words)
    while isinstance(command, click.Group) and typed:
        name, rest = typed[0], typed[1:]
        found = command.get_command(context, name)
        if found is None:
            return []
        command = found
        context = command.make_context(name, list(rest), parent=context, resilient_parsing=True)
        typed = _behind_options(command, context, rest)
    if words and words[-1] == "-X":
        return _starting(_settings(), incomplete)
    if command is main and not incomplete.startswith("-"):
        return _starting({each: summary for each, (_, summary) in COMMANDS.items()}, incomplete)
    if command.name == "explain" and not incomplete.startswith("-"):
        return _starting({each[:-1]: text for each, text in _settings().items()}, incomplete)
    if not incomplete.startswith("-") and _takes_topics(command):
        return _starting(_topics_or_partitions(command, context, incomplete), incomplete)
    return command.shell_complete(context, incomplete)


def _behind_options(command: click.Command, context: click.Context, words: list[str]) -> list[str]:
    """Return the words after a group's own options: the command's name and its words. Empty for other commands."""
    if not isinstance(command, click.Group):
        return []
    _, rest, _ = command.make_parser(context).parse_args(list(words))
    return rest


def _starting(known: Mapping[str, str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(each, help=text) for each, text in known.items() if each.startswith(incomplete)]


def _settings() -> dict[str, str]:
    from tiered.config.properties import PROPERTIES

    return {f"{name}=": row.expected for name, row in PROPERTIES.items()}


def _takes_topics(command: click.Command) -> bool:
    """Whether the command's first argument names topics or partitions of this node."""
    first = next((each for each in command.params if isinstance(each, click.Argument)), None)
    if first is None:
        return False
    is_name = first.name == "name" and command.name in ("alter", "delete", "describe")
    return is_name or first.name in ("topic", "topics") or "TOPIC" in (first.metavar or "")


def _topics_or_partitions(command: click.Command, context: click.Context, incomplete: str) -> dict[str, str]:
    """Return the topics of the node, or ``orders/0`` and so on for the topic before the slash."""
    directory = context.find_root().params.get("directory") or os.environ.get("TIERED_DIR") or "."
    topics = Session(directory=directory).topics().all()
    metavars = [each.metavar or "" for each in command.params if isinstance(each, click.Argument)]
    if "/" not in incomplete or not any("PARTITION" in metavar for metavar in metavars):
        return {each.name: counted(each.partition_count, "partition") for each in topics}
    topic = incomplete.partition("/")[0]
    count = next((each.partition_count for each in topics if each.name == topic), 0)
    return {f"{topic}/{number}": "" for number in range(count)}
