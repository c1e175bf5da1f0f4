"""Generated files for monitoring and operation: alert rules, runbooks, a dashboard, a systemd unit."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from tiered.observe.alert_table import ALERTS, RUNBOOKS_URL, Alert, Limits
from tiered.observe.metric_table import METRICS, Kind, Metric

_RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel of the dashboard; `width` of 24. `exprs` are pairs of PromQL and legend."""

    row: str
    title: str
    exprs: tuple[tuple[str, str], ...]
    unit: str
    kind: str = "timeseries"
    width: int = 6


PANELS: tuple[Panel, ...] = (
    Panel(
        row="Overview",
        title="Upload lag",
        exprs=(("max(tiered_remote_copy_lag_seconds)", ""),),
        unit="s",
        kind="stat",
    ),
    Panel(row="Overview", title="At risk", exprs=(("sum(tiered_unreplicated_bytes)", ""),), unit="bytes", kind="stat"),
    Panel(
        row="Overview",
        title="Store failures",
        exprs=((f"sum(rate(tiered_objstore_failures_total{_RATE}))", ""),),
        unit="reqps",
        kind="stat",
    ),
    Panel(
        row="Overview",
        title="Dollars a month",
        exprs=(("sum(tiered_cost_dollars_per_month)", ""),),
        unit="currencyUSD",
        kind="stat",
    ),
    Panel(
        row="Overview",
        title="Problems",
        exprs=(
            ("sum by (class) (tiered_partition_problems) > 0", "{{class}}"),
            ("tiered_halted > 0", "halted"),
            ("tiered_remote_lost > 0", "bucket lost"),
            ('tiered_partitions{state="unopened"} > 0', "unopened"),
        ),
        unit="short",
        width=12,
    ),
    Panel(
        row="Overview",
        title="Last round",
        exprs=(("tiered_last_round_age_seconds", "ago"),),
        unit="s",
        width=12,
    ),
    Panel(
        row="Tiers",
        title="Bytes on the disk",
        exprs=(("sum by (topic) (tiered_local_log_bytes)", "{{topic}}"),),
        unit="bytes",
        width=12,
    ),
    Panel(
        row="Tiers",
        title="Bytes in the bucket",
        exprs=(("sum by (topic) (tiered_remote_log_bytes)", "{{topic}}"),),
        unit="bytes",
        width=12,
    ),
    Panel(
        row="Tiers",
        title="Waiting for upload",
        exprs=(("sum by (topic) (tiered_remote_copy_lag_bytes)", "{{topic}}"),),
        unit="bytes",
        width=8,
    ),
    Panel(
        row="Tiers",
        title="Waiting for deletion",
        exprs=(("sum by (topic) (tiered_remote_delete_lag_bytes)", "{{topic}}"),),
        unit="bytes",
        width=8,
    ),
    Panel(
        row="Tiers",
        title="Room on the disks",
        exprs=(("tiered_log_dir_free_bytes / tiered_log_dir_total_bytes", "{{directory}}"),),
        unit="percentunit",
        width=8,
    ),
    Panel(
        row="Traffic",
        title="Appended",
        exprs=((f"sum by (topic) (rate(tiered_append_bytes_total{_RATE}))", "{{topic}}"),),
        unit="Bps",
        width=8,
    ),
    Panel(
        row="Traffic",
        title="Copied up",
        exprs=((f"sum by (topic) (rate(tiered_remote_copy_bytes_total{_RATE}))", "{{topic}}"),),
        unit="Bps",
        width=8,
    ),
    Panel(
        row="Traffic",
        title="Fetched",
        exprs=((f"sum by (topic) (rate(tiered_remote_fetch_bytes_total{_RATE}))", "{{topic}}"),),
        unit="Bps",
        width=8,
    ),
    Panel(
        row="Store",
        title="Calls",
        exprs=((f"sum by (op) (rate(tiered_objstore_operations_total{_RATE}))", "{{op}}"),),
        unit="reqps",
        width=8,
    ),
    Panel(
        row="Store",
        title="Failures",
        exprs=((f"sum by (op, class) (rate(tiered_objstore_failures_total{_RATE}))", "{{op}} {{class}}"),),
        unit="reqps",
        width=8,
    ),
    Panel(
        row="Store",
        title="Time of a call, 99 in 100",
        exprs=(
            (
                f"histogram_quantile(0.99, sum by (op, le) (rate(tiered_objstore_duration_seconds_bucket{_RATE})))",
                "{{op}}",
            ),
        ),
        unit="s",
        width=8,
    ),
    Panel(
        row="Store",
        title="Turns at the store",
        exprs=(
            ("sum by (state) (tiered_copier_tasks)", "copies {{state}}"),
            ("sum by (state) (tiered_expirer_tasks)", "expiry {{state}}"),
            ("tiered_copier_threads", "copiers"),
            ("tiered_expirer_threads", "expirers"),
        ),
        unit="short",
        width=12,
    ),
    Panel(
        row="Store",
        title="Longest wait and longest turn",
        exprs=(
            ("tiered_copier_oldest_wait_seconds", "copies, wait"),
            ("tiered_copier_oldest_turn_seconds", "copies, turn"),
            ("tiered_expirer_oldest_wait_seconds", "expiry, wait"),
            ("tiered_expirer_oldest_turn_seconds", "expiry, turn"),
        ),
        unit="s",
        width=12,
    ),
    Panel(
        row="Machine",
        title="fsync, 99 in 100",
        exprs=((f"histogram_quantile(0.99, sum by (le) (rate(tiered_fsync_duration_seconds_bucket{_RATE})))", ""),),
        unit="s",
    ),
    Panel(row="Machine", title="Memory", exprs=(("process_resident_memory_bytes", ""),), unit="bytes"),
    Panel(row="Machine", title="CPU", exprs=((f"rate(process_cpu_seconds_total{_RATE})", ""),), unit="percentunit"),
    Panel(
        row="Machine",
        title="Cleaner: dirty share",
        exprs=(("tiered_cleaner_max_dirty_percent", "largest"),),
        unit="percent",
    ),
)


def alert_rules(limits: Limits | None = None, *, runbooks_url: str = RUNBOOKS_URL) -> str:
    """Return Prometheus' rule file (YAML, with JSON strings where YAML needs quotes)."""
    values = asdict(limits or Limits())
    lines = ["groups:", "  - name: tiered", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expr.format(**values))}",
            f"        for: {alert.lasts}",
            "        labels:",
            f"          severity: {alert.severity.value}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          runbook_url: {json.dumps(f'{runbooks_url}/{alert.page}.md')}",
        ]
    return "\n".join([*lines, ""])


def runbook(alert: Alert) -> str:
    """Return the runbook page of one alert, as Markdown."""
    expr = alert.expr.format(**asdict(Limits()))
    look = "\n".join(alert.look)
    return (
        f"# {_title(alert)}\n\n"
        "Generated from `tiered/observe/alert_table.py` by "
        "`python tests/unit/tiered/observe/test_monitoring_files.py`; a test fails when the two differ.\n\n"
        f"Alert `{alert.name}`, severity {alert.severity.value}. It fires when this holds for {alert.lasts}:\n\n"
        f"```promql\n{expr}\n```\n\n"
        f"## Condition\n\n{alert.says}\n\n## Why it matters\n\n{alert.means}\n\n"
        f"## Checks\n\n```sh\n{look}\n```\n\n{_steps(alert.check)}\n\n"
        f"## Steps\n\n{_steps(alert.mend)}\n\n## When it is over\n\n{alert.over}\n"
    )


def _title(alert: Alert) -> str:
    return alert.page.replace("-", " ").capitalize()


def _steps(steps: tuple[str, ...]) -> str:
    return "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))


def runbook_index() -> str:
    """Return the page that lists the runbooks."""
    rows = "\n".join(
        f"| [{_title(each)}]({each.page}.md)<br>`{each.name}` | {each.severity.value} | {each.says} |"
        for each in ALERTS
    )
    return (
        "# Runbooks\n\nOne page for each alert of `tiered generate alerts`, generated from the same table.\n\n"
        f"| alert | severity | condition |\n|---|---|---|\n{rows}\n"
    )


def metrics_page() -> str:
    """Return the reference of the metrics, as Markdown."""
    rows = "\n".join(_metric_row(each) for each in METRICS)
    return (
        "# Metrics\n\n"
        "Generated from `tiered/observe/metric_table.py` by "
        "`python tests/unit/tiered/observe/test_monitoring_files.py`; a test fails when the two differ.\n\n"
        "`tiered run --metrics :9464` serves these metrics under `/metrics`, in Prometheus' text format "
        "or, if the Accept header asks for it, as OpenMetrics ([how to](../how-to/monitor.md)). "
        "With `--metrics-partitions` the metrics marked P also have the label `partition`. "
        "Kafka's rates (`PerSec`) are `rate()` of these counters, its percentiles are those of these histograms.\n\n"
        f"| metric | type | labels | meaning | Kafka |\n|---|---|---|---|---|\n{rows}\n\n"
        "`compaction status --metrics` prints the gauges of the cleaner by Kafka's own names. Kafka has more metrics: "
        "of a network server (requests, purgatories, quotas), which does not exist here, and "
        "`BuildRemoteLogAuxState*`, because nothing is rebuilt from a leader.\n"
    )


def _metric_row(metric: Metric) -> str:
    labels = ", ".join(f"`{each}`" for each in metric.labels) + (" P" if metric.by_partition else "")
    kafka = f"`{metric.kafka}`" if metric.kafka else ""
    return f"| `{metric.name}` | {metric.kind.value} | {labels.strip()} | {metric.doc} | {kafka} |"


def dashboard() -> str:
    """Return Grafana's dashboard, as JSON to import; the import asks for the data source."""
    body = {
        "__inputs": [{"name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource", "pluginId": "prometheus"}],
        "title": "tiered",
        "uid": "tiered",
        "tags": ["tiered"],
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": []},
        "panels": list(_panels()),
    }
    return json.dumps(body, indent=1) + "\n"


def _panels() -> Iterator[dict[str, object]]:
    """Yield rows in the order of the table, with as many panels in a row as fit."""
    source = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    x = y = number = 0
    row = ""
    for panel in PANELS:
        if panel.row != row or x + panel.width > 24:
            x, y = 0, y + 8 if number else 0
        if panel.row != row:
            row, number = panel.row, number + 1
            yield {
                "id": number,
                "type": "row",
                "title": row,
                "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
                "panels": [],
            }
            y += 1
        number += 1
        targets = [
            {"refId": chr(ord("A") + at), "expr": expr, "legendFormat": legend or "__auto", "datasource": source}
            for at, (expr, legend) in enumerate(panel.exprs)
        ]
        yield {
            "id": number,
            "type": panel.kind,
            "title": panel.title,
            "datasource": source,
            "gridPos": {"x": x, "y": y, "w": panel.width, "h": 8},
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": targets,
        }
        x += panel.width


def metric_names(expr: str) -> set[str]:
    """Return the metrics that a PromQL expression names, a histogram's parts as the histogram."""
    import re

    found = set()
    for name in re.findall(r"\b(?:tiered|process)_[a-z0-9_]+", expr):
        whole = re.sub(r"_(bucket|sum|count)$", "", name)
        is_part = any(each.name == whole and each.kind is Kind.HISTOGRAM for each in METRICS)
        found.add(whole if is_part else name)
    return found


def systemd_unit(*, executable: str, directory: str, user: str = "tiered", metrics: str = ":9464") -> str:
    """Return a unit for `tiered run`: reports readiness, restarts if it hangs, drains when stopped."""
    command = shlex.join([executable, "-C", directory, "run", "--metrics", metrics])
    return (
        "[Unit]\n"
        "Description=tiered log manager\n"
        "After=network-online.target\n"
        "Wants=network-online.target\n"
        "\n[Service]\n"
        "Type=notify\n"
        "NotifyAccess=main\n"
        f"User={user}\n"
        f"ExecStart={command}\n"
        "ExecReload=/bin/kill -HUP $MAINPID\n"
        "# Ready once every log is loaded: after a crash each is recovered first.\n"
        "TimeoutStartSec=infinity\n"
        "WatchdogSec=300\n"
        "# A stop lets the step under way end; a large upload takes as long as it takes.\n"
        "TimeoutStopSec=300\n"
        "KillMode=mixed\n"
        "Restart=on-failure\n"
        "RestartSec=30\n"
        "# A wrong setting, damage, a newer writer: restarting does not help. Credentials and buckets come back.\n"
        "RestartPreventExitStatus=2 4 5\n"
        "LimitNOFILE=65536\n"
        "UMask=0077\n"
        "NoNewPrivileges=true\n"
        "ProtectSystem=strict\n"
        "ProtectHome=true\n"
        "PrivateTmp=true\n"
        f"ReadWritePaths={directory}\n"
        "\n[Install]\n"
        "WantedBy=multi-user.target\n"
    )
