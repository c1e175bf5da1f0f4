"""Files generated from the tables of metrics and alerts: documentation pages, alert rules, dashboard, systemd unit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from monitoring_pages import RUNBOOKS, SECTIONS, metric_names, pages, runbook, runbook_commands

from tiered.cli.main import COMMANDS, invoke
from tiered.observe.metrics import METRICS, Kind
from tiered.observe.monitoring_files import ALERTS, Limits, alert_rules, dashboard, systemd_unit

BY_NAME = {each.name: each for each in METRICS}

PANELS = json.loads(dashboard())["panels"]
PANEL_EXPRS = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]


def test_committed_pages_equal_the_generated_pages() -> None:
    for path, text in pages().items():
        assert path.read_text() == text, f"{path.name}: run python tests/unit/support/monitoring_pages.py"


def test_every_alert_has_one_page_and_every_page_one_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {alert.page for alert in ALERTS} | {"index"}
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


def test_every_runbook_has_the_sections_in_order() -> None:
    for alert in ALERTS:
        assert re.findall(r"^## (.*)$", runbook(alert), re.MULTILINE) == SECTIONS, alert.page


def test_every_metric_named_by_an_alert_or_panel_exists() -> None:
    exprs = [*(alert.expr for alert in ALERTS), *PANEL_EXPRS]
    for expr in exprs:
        names = metric_names(expr)
        assert names, expr
        assert names <= set(BY_NAME), expr
    assert metric_names("rate(tiered_gone_total[5m])") - set(BY_NAME) == {"tiered_gone_total"}


def test_expressions_use_rates_of_counters_and_values_of_gauges() -> None:
    for expr in PANEL_EXPRS:
        for name in metric_names(expr):
            is_rated = re.search(rf"(rate|increase)\({name}", expr) is not None
            assert is_rated == (BY_NAME[name].kind is not Kind.GAUGE), expr


def test_labels_in_expressions_exist_on_their_metrics() -> None:
    for expr in [*(alert.expr for alert in ALERTS), *PANEL_EXPRS]:
        asked = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expr) for label in group.split(",")} - {"le"}
        for name in metric_names(expr):
            assert asked <= set(BY_NAME[name].labels), expr


def test_alert_rules_are_yaml_equal_to_the_table() -> None:
    limits = Limits(at_risk_bytes=7, copy_lag_s=60)
    text = alert_rules(limits, runbooks_url="https://example.org/r")
    found = re.findall(r'- alert: (\w+)\n +expr: (".*")\n +for: (\w+)', text)
    assert [name for name, _, _ in found] == [alert.name for alert in ALERTS]
    for (_, expr, lasts), alert in zip(found, ALERTS, strict=True):
        assert "{at_risk" not in json.loads(expr)
        assert lasts == alert.lasts
        assert f'runbook_url: "https://example.org/r/{alert.page}.md"' in text
    assert "> 7" in text
    assert 'class="Corrupt"' in json.loads(next(expr for name, expr, _ in found if name == "TieredCorruption"))
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load(text)["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [alert.name for alert in ALERTS]


def test_runbooks_name_commands_that_exist() -> None:
    for path, text in pages().items():
        for command in re.findall(r"(?:^|`)tiered ([a-z][a-z-]*)", text, re.MULTILINE):
            assert command in COMMANDS, f"{path.name}: tiered {command}"


@pytest.mark.parametrize(
    "command", sorted({line for alert in ALERTS for line in runbook_commands(alert) if line[:6] == "tiered"})
)
def test_commands_in_runbooks_have_only_known_options(command: str, capfd) -> None:
    words = command.split()[1:]
    options = [word for word in words if word.startswith("--")]
    names = [word for word in words if not word.startswith("-")][: 2 if words[0] == "compaction" else 1]
    assert invoke([*names, "--help"]) == 0
    assert [option for option in options if option not in capfd.readouterr().out] == []


def test_dashboard_is_json_with_panels_that_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert cells.isdisjoint(taken), panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
    rows = [panel["title"] for panel in PANELS if panel["type"] == "row"]
    assert rows == ["Overview", "Tiers", "Traffic", "Store", "Machine"]
    assert len([panel for panel in PANELS if panel["type"] != "row"]) <= 30, (
        "the dashboard must stay readable: at most 30 panels"
    )


def test_systemd_unit_notifies_and_does_not_restart_after_permanent_failures() -> None:
    unit = systemd_unit(executable="/opt/t/bin/tiered", directory="/srv/a b", user="log")
    assert "Type=notify\n" in unit
    assert "ExecStart=/opt/t/bin/tiered -C '/srv/a b' run --metrics :9464\n" in unit
    assert "RestartPreventExitStatus=2 4 5\n" in unit
    assert "User=log\n" in unit


def test_generate_commands_print_the_files(capfd, tmp_path: Path) -> None:
    for words, begin in ((["grafana"], "{"), (["alerts", "--at-risk", "1GiB"], "groups:"), (["systemd"], "[Unit]")):
        assert invoke(["-C", str(tmp_path), "generate", *words]) == 0
        assert capfd.readouterr().out.startswith(begin)
    assert invoke(["generate", "alerts", "--at-risk", "much"]) == 2
    assert invoke(["generate", "alerts", "--copy-lag", "long"]) == 2


def test_every_kafka_tiered_storage_metric_has_a_counterpart() -> None:
    wanted = (
        "RemoteFetchBytesPerSec", "RemoteFetchRequestsPerSec", "RemoteFetchErrorsPerSec", "RemoteCopyBytesPerSec",
        "RemoteCopyRequestsPerSec", "RemoteCopyErrorsPerSec", "RemoteCopyLagBytes", "RemoteCopyLagSegments",
        "RemoteDeleteRequestsPerSec", "RemoteDeleteErrorsPerSec", "RemoteDeleteLagBytes", "RemoteLogSizeBytes",
        "RemoteLogMetadataCount", "MessagesInPerSec", "BytesInPerSec", "LogStartOffset", "LogEndOffset", "Size",
        "NumLogSegments", "LogFlushRateAndTimeMs", "max-dirty-percent", "max-clean-time-secs", "uncleanable-bytes",
        "max-buffer-utilization-percent", "max-compaction-delay-secs", "uncleanable-partitions-count",
        "time-since-last-run-ms", "LogDirectoryOffline",
    )  # fmt: skip
    told = {metric.kafka.rpartition("name=")[2] for metric in METRICS if metric.kafka}
    assert set(wanted) <= told
