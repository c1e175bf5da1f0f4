"""``tiered generate``: files for the systems around a manager, made from the tables of metrics and alerts."""

from __future__ import annotations

import os
import sys

import click

from local.errors import InvalidRequest
from tiered.cli.session import Session
from tiered.units import parse_bytes, parse_ms


@click.group("generate")
def generate() -> None:
    """Print a dashboard, alert rules, a unit, to be kept in a file."""


@generate.command("grafana")
def grafana() -> None:
    """A Grafana dashboard, JSON to import."""
    from tiered.generating import dashboard

    click.echo(dashboard(), nl=False)


@generate.command("alerts")
@click.option("--at-risk", default="50GiB", show_default=True, metavar="SIZE", help="What may exist on a disk only.")
@click.option("--copy-lag", default="1h", show_default=True, metavar="TIME", help="How long an upload may wait.")
@click.option(
    "--free", default=0.1, show_default=True, type=click.FloatRange(0, 1), help="Share of a disk to stay free."
)
@click.option("--runbooks", metavar="URL", help="Where the runbook pages are; default: docs/runbooks.")
def alerts(at_risk: str, copy_lag: str, free: float, runbooks: str | None) -> None:
    """Prometheus' alert rules, each with the page that tells what to do."""
    from tiered.alert_table import RUNBOOKS_URL, Limits
    from tiered.generating import alert_rules

    size, lag_ms = parse_bytes(at_risk), parse_ms(copy_lag)
    if size is None or size < 0:
        raise InvalidRequest("reading --at-risk", text=repr(at_risk), expected="a size such as 50GiB")
    if lag_ms is None or lag_ms < 0:
        raise InvalidRequest("reading --copy-lag", text=repr(copy_lag), expected="a duration such as 1h")
    limits = Limits(at_risk_bytes=size, copy_lag_s=lag_ms // 1000, free_share=free)
    click.echo(alert_rules(limits, runbooks_url=(runbooks or RUNBOOKS_URL).rstrip("/")), nl=False)


@generate.command("systemd")
@click.option("--user", default="tiered", show_default=True, help="Who it runs as.")
@click.option("--metrics", default=":9464", show_default=True, metavar="[HOST]:PORT", help="Where metrics are served.")
@click.pass_obj
def systemd(session: Session, user: str, metrics: str) -> None:
    """A systemd unit of `tiered run` over this directory."""
    from tiered.generating import systemd_unit

    executable = os.path.abspath(sys.argv[0])
    directory = os.path.abspath(session.directory)
    click.echo(systemd_unit(executable=executable, directory=directory, user=user, metrics=metrics), nl=False)
