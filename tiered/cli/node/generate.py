"""``tiered generate``: configuration files for monitoring and other systems, from the metric and alert tables."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping

import click

from local.errors import InvalidRequest
from tiered.cli.arguments import Number
from tiered.cli.completion import completion
from tiered.cli.errors import Exit
from tiered.cli.session import UNNAMED, Session, store_options
from tiered.config.units import parse_bytes, parse_duration


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
    """Print a dashboard, alert rules, a unit, a policy, lifecycle rules, to be kept in a file or applied."""


generate.aliases = {"grafana-dashboard": "grafana", "prometheus-alerts": "alerts"}
generate.add_command(completion)  # the same command as ``tiered completion``


@generate.command("grafana")
def grafana() -> None:
    """A Grafana dashboard, JSON to import."""
    from tiered.observe.monitoring_files import dashboard

    click.echo(dashboard(), nl=False)


@generate.command("alerts")
@click.option(
    "--at-risk", default="50GiB", show_default=True, metavar="SIZE", help="Alert above this amount of bytes at risk."
)
@click.option(
    "--copy-lag", default="1h", show_default=True, metavar="TIME", help="Alert above this age of a waiting upload."
)
@click.option(
    "--free", default=0.1, show_default=True, type=Number(0, 1), help="Alert below this free share of a disk."
)
@click.option("--runbooks", metavar="URL", help="Set the address of the runbook pages; default: docs/runbooks.")
def alerts(at_risk: str, copy_lag: str, free: float, runbooks: str | None) -> None:
    """Prometheus' alert rules, each with the page that tells what to do."""
    from tiered.observe.alert_table import RUNBOOKS_URL, Limits
    from tiered.observe.monitoring_files import alert_rules

    size, lag_ms = parse_bytes(at_risk), parse_duration(copy_lag)
    if size is None or size < 0:
        raise InvalidRequest("invalid --at-risk", text=repr(at_risk), expected="a size such as 50GiB")
    if lag_ms is None or lag_ms < 0:
        raise InvalidRequest("invalid --copy-lag", text=repr(copy_lag), expected="a duration such as 1h")
    limits = Limits(at_risk_bytes=size, copy_lag_s=lag_ms // 1000, free_share=free)
    click.echo(alert_rules(limits, runbooks_url=(runbooks or RUNBOOKS_URL).rstrip("/")), nl=False)


@generate.command("systemd")
@click.option("--user", default="tiered", show_default=True, help="Set the user of the service.")
@click.option(
    "--metrics", default=":9464", show_default=True, metavar="[HOST]:PORT", help="Set the address for metrics."
)
@click.pass_obj
def systemd(session: Session, user: str, metrics: str) -> None:
    """A systemd unit of `tiered run` over this directory."""
    from tiered.observe.monitoring_files import systemd_unit
    from tiered.web.http.metrics_server import parse_address

    parse_address(metrics)
    if not _USER.fullmatch(user):
        raise InvalidRequest("invalid --user", user=repr(user), expected="a user's name such as tiered")
    executable = os.path.abspath(sys.argv[0])
    directory = os.path.abspath(session.directory)
    click.echo(systemd_unit(executable=executable, directory=directory, user=user, metrics=metrics), nl=False)


_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")  # names that systemd accepts, or a number

_BUCKET = (
    click.option("--remote", "url", metavar="URL", help="Name the bucket; default: the configured one."),
    click.option(
        "--option",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        callback=store_options,
        help="Option of the store of --remote.",
    ),
    click.option("--immutable", is_flag=True, help="Deny every delete; default: from remote.immutable."),
)


def _bucket_options(command: Callable[..., object]) -> Callable[..., object]:
    for option in _BUCKET:
        command = option(command)
    return command


@generate.command("iam-policy")
@click.option(
    "--role",
    type=click.Choice(["manager", "reader", "spark", "gc"]),
    default="manager",
    show_default=True,
    help="Whose.",
)
@click.option("--kms-key", metavar="ARN", help="Name the key that encrypts the bucket.")
@click.option(
    "--check", metavar="user/NAME|role/NAME", help="Compare with the policy of this user or role; exit 3 if it differs."
)
@click.option("--apply", metavar="user/NAME|role/NAME", help="Write this policy to this user or role.")
@click.option("--dry-run", is_flag=True, help="With --apply: compare and print only.")
@_bucket_options
@click.pass_obj
def iam_policy(
    session: Session,
    role: str,
    kms_key: str | None,
    check: str | None,
    apply: str | None,
    dry_run: bool,
    url: str | None,
    options: dict[str, object],
    immutable: bool,
) -> int:
    """The least that a role may do to the bucket, as an IAM policy."""
    import json

    from remote.store.s3_administration import inline_policy, put_inline_policy, split_bucket
    from tiered.health.access_policies import Role
    from tiered.health.access_policies import iam_policy as made

    place, given, is_immutable = _place(session, url, options)
    bucket, prefix = split_bucket(place)
    policy = made(Role(role), bucket, prefix, is_immutable=immutable or is_immutable, kms_key=kms_key)
    name = f"tiered-{role}"
    if dry_run:
        click.echo(json.dumps(policy, indent=2))
        check = apply or check
        if check is None:
            return Exit.DONE
    elif apply is not None:
        put_inline_policy(apply, name, policy, given)
        session.say(f"{apply} has the policy {name}")
        return Exit.DONE
    if check is not None:
        is_same = inline_policy(check, name, given) == policy
        session.say(f"{check}: {name} " + ("is correct" if is_same else "differs or does not exist"))
        return Exit.DONE if is_same else Exit.FINDINGS
    click.echo(json.dumps(policy, indent=2))
    return Exit.DONE


@generate.command("lifecycle")
@click.option("--versioned", is_flag=True, help="Add a rule that deletes old versions, for a versioned bucket.")
@click.option("--check", is_flag=True, help="Compare with the bucket; exit 3 if a rule is missing.")
@click.option("--apply", is_flag=True, help="Write these rules to the bucket; its other rules stay.")
@click.option("--dry-run", is_flag=True, help="With --apply: compare and print only.")
@_bucket_options
@click.pass_obj
def lifecycle(
    session: Session,
    versioned: bool,
    check: bool,
    apply: bool,
    dry_run: bool,
    url: str | None,
    options: dict[str, object],
    immutable: bool,
) -> int:
    """What the bucket should do by itself, as lifecycle rules of S3."""
    import json

    from remote.store.s3_administration import bucket_rules, missing_rules, put_rules, split_bucket
    from tiered.health.access_policies import lifecycle_rules

    place, given, is_immutable = _place(session, url, options)
    rules = lifecycle_rules(split_bucket(place)[1], is_immutable=immutable or is_immutable, is_versioned=versioned)
    if dry_run:
        click.echo(json.dumps({"Rules": rules}, indent=2))
        if not (apply or check):
            return Exit.DONE
    elif apply:
        put_rules(place, given, rules)
    if check or apply:
        missing = missing_rules(rules, bucket_rules(place, given))
        for rule in missing:
            click.echo(f"! {rule['ID']}: missing or different", err=True)
        session.say(f"{len(rules) - len(missing)} of {len(rules)} rules exist")
        return Exit.FINDINGS if missing else Exit.DONE
    click.echo(json.dumps({"Rules": rules}, indent=2))
    return Exit.DONE


def _place(session: Session, url: str | None, options: dict[str, object]) -> tuple[str, dict[str, object], bool]:
    """Return (url, client options, whether it is immutable) of the named or the configured bucket."""
    if url is not None:
        return url, options, False
    if options:
        raise click.UsageError(UNNAMED)
    config = session.config()
    if config.remote_url is None:
        raise InvalidRequest("no bucket is configured: set url in [remote] of tiered.toml")
    is_immutable = config.topic_properties("")["remote.immutable"] == "true"
    return config.remote_url, dict(config.remote_options), is_immutable
