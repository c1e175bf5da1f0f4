"""Documentation pages that belong to the tables of metrics and alerts.

`docs/reference/metrics.md` and `docs/runbooks/index.md` are generated. A runbook is written by hand, except the
paragraph under its title, which states the alert. After a change to the tables, or to a condition in a runbook, write
the pages:

    python tests/unit/support/monitoring_pages.py
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

from tiered.observe.metrics import METRICS, Kind, Metric
from tiered.observe.monitoring_files import ALERTS, Alert, Limits

DOCS = Path(__file__).parents[3] / "docs"
RUNBOOKS = DOCS / "runbooks"
SECTIONS = ["Condition", "Why it matters", "Checks", "Steps", "When it is over"]
_COMMANDS = re.compile(r"^## Checks\n\n```sh\n(.*?)\n```\n", re.MULTILINE | re.DOTALL)


def pages() -> dict[Path, str]:
    """Every page with generated text."""
    found = {RUNBOOKS / f"{alert.page}.md": _with_alert(runbook(alert), alert) for alert in ALERTS}
    return {**found, RUNBOOKS / "index.md": runbook_index(), DOCS / "reference" / "metrics.md": metrics_page()}


def runbook(alert: Alert) -> str:
    """The committed page of an alert."""
    return (RUNBOOKS / f"{alert.page}.md").read_text()


def runbook_commands(alert: Alert) -> list[str]:
    """The commands under "Checks" in the runbook of an alert."""
    found = _COMMANDS.search(runbook(alert))
    assert found is not None, alert.page
    return found[1].split("\n")


def runbook_index() -> str:
    rows = "\n".join(
        f"| [{_title(each)}]({each.page}.md)<br>`{each.name}` | {each.severity} | {_condition(each)} |"
        for each in ALERTS
    )
    return (
        "# Runbooks\n\nOne page for each alert of `tiered generate alerts`, with its checks and its steps.\n\n"
        f"| alert | severity | condition |\n|---|---|---|\n{rows}\n"
    )


def metrics_page() -> str:
    rows = "\n".join(_metric_row(each) for each in METRICS)
    return (
        "# Metrics\n\n"
        "Generated from `tiered/observe/metrics.toml` by "
        "`python tests/unit/support/monitoring_pages.py`; a test fails when the two differ.\n\n"
        "`tiered run --metrics :9464` serves these metrics under `/metrics`, in Prometheus' text format "
        "or, if the Accept header asks for it, as OpenMetrics ([how to](../how-to/monitor.md)). "
        "With `--metrics-partitions` the metrics marked P also have the label `partition`. "
        "Kafka's rates (`PerSec`) are `rate()` of these counters, its percentiles are those of these histograms.\n\n"
        f"| metric | type | labels | meaning | Kafka |\n|---|---|---|---|---|\n{rows}\n\n"
        "`compaction status --metrics` prints the gauges of the cleaner by Kafka's own names. Kafka has more metrics: "
        "of a network server (requests, purgatories, quotas), which does not exist here, and "
        "`BuildRemoteLogAuxState*`, because nothing is rebuilt from a leader.\n"
    )


def metric_names(expr: str) -> set[str]:
    """The metrics that a PromQL expression names, a histogram's parts as the histogram."""
    found = set()
    for name in re.findall(r"\b(?:tiered|process)_[a-z0-9_]+", expr):
        whole = re.sub(r"_(bucket|sum|count)$", "", name)
        is_part = any(each.name == whole and each.kind is Kind.HISTOGRAM for each in METRICS)
        found.add(whole if is_part else name)
    return found


def _with_alert(page: str, alert: Alert) -> str:
    """The page with its title and the statement of the alert as the table has them."""
    _, section, rest = page.partition(f"\n## {SECTIONS[0]}\n")
    expr = alert.expr.format(**asdict(Limits()))
    since = "as soon as this holds" if alert.lasts == "0m" else f"when this holds for {alert.lasts}"
    return (
        f"# {_title(alert)}\n\nAlert `{alert.name}`, severity {alert.severity}. "
        f"It fires {since}:\n\n```promql\n{expr}\n```\n{section}{rest}"
    )


def _condition(alert: Alert) -> str:
    """The text of the runbook's first section."""
    return runbook(alert).partition(f"\n## {SECTIONS[0]}\n\n")[2].partition("\n")[0]


def _title(alert: Alert) -> str:
    return alert.page.replace("-", " ").capitalize()


def _metric_row(metric: Metric) -> str:
    labels = ", ".join(f"`{each}`" for each in metric.labels) + (" P" if metric.by_partition else "")
    kafka = f"`{metric.kafka}`" if metric.kafka else ""
    return f"| `{metric.name}` | {metric.kind.value} | {labels.strip()} | {metric.doc} | {kafka} |"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
