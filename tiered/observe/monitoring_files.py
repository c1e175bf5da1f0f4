"""Files of `tiered generate`: alert rules, dashboard, systemd unit, policies and rules of a bucket.

Expressions name only metrics of `tiered.observe.metrics`. Each alert has a page in ``docs/runbooks``.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum

from local.errors import InvalidRequest

RUNBOOKS_URL = "docs/runbooks"
_RATE = "[$__rate_interval]"
ABORT_DAYS, NONCURRENT_DAYS = 3, 7
PINS = "*/meta/pin/*"
NAMED = ("*/data/*", "*/view/*", "*/meta/spill/*")  # objects that a manifest may name, so possible orphans


class Severity(Enum):
    """Urgency: immediate action, or a ticket."""

    PAGE = "page"
    TICKET = "ticket"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `expr` is PromQL, with placeholders for limits, and must hold for `lasts`."""

    name: str
    severity: Severity
    lasts: str
    expr: str
    summary: str

    @property
    def page(self) -> str:
        """Name of the runbook page: ``TieredCopyLagGrows`` is ``copy-lag-grows``."""
        words = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in self.name)
        return words.removeprefix("-tiered-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    at_risk_bytes: int = 50 << 30
    copy_lag_s: int = 3600
    paused_s: int = 86_400
    free_share: float = 0.1
    store_failure_share: float = 0.05


ALERTS: tuple[Alert, ...] = (
    Alert("TieredCopyLagGrows", Severity.TICKET, "15m",
          "max by (topic) (tiered_remote_copy_lag_seconds) > {copy_lag_s} "
          "unless on (topic) max by (topic) (tiered_remote_copy_paused) == 1",
          "Closed segments of {{ $labels.topic }} have waited for their upload for {{ $value | humanizeDuration }}"),
    # Due segments only. Started uploads less failed ones count, not bytes: refused bytes are sent again and again.
    Alert("TieredNoUploadFinishes", Severity.PAGE, "15m",
          "max(tiered_remote_copy_lag_seconds unless tiered_remote_copy_paused == 1) > 1800 "
          "and sum(increase(tiered_remote_copy_requests_total[30m])) "
          "- sum(increase(tiered_remote_copy_errors_total[30m])) < 1",
          "Segments are due for upload, and for half an hour no upload has finished"),
    Alert("TieredUploadsPaused", Severity.TICKET, "5m",
          "max by (topic) (tiered_remote_copy_paused_seconds) > {paused_s}",
          "Uploads of {{ $labels.topic }} have been paused for {{ $value | humanizeDuration }}"),
    Alert("TieredAtRiskBytes", Severity.TICKET, "15m",
          "sum(tiered_unreplicated_bytes) > {at_risk_bytes}",
          "{{ $value | humanize1024 }}B exist on this disk only"),
    Alert("TieredStoreFails", Severity.TICKET, "10m",
          'sum(rate(tiered_objstore_failures_total{{class!="InvalidRequest"}}[10m])) '
          "/ sum(rate(tiered_objstore_operations_total[10m])) > {store_failure_share}",
          "{{ $value | humanizePercentage }} of the calls to the store fail"),
    Alert("TieredCorruption", Severity.PAGE, "0m",
          'sum(tiered_partition_problems{{class="Corrupt"}}) > 0',
          "{{ $value }} partitions met bytes that contradict their checksum"),
    Alert("TieredUnopened", Severity.PAGE, "5m",
          'tiered_partitions{{state="unopened"}} > 0',
          "{{ $value }} partitions could not be opened"),
    Alert("TieredHalted", Severity.PAGE, "0m",
          "tiered_halted > 0",
          "{{ $value }} partitions are stopped: another writer took over, or the tiers contradict each other"),
    Alert("TieredBucketLost", Severity.PAGE, "0m",
          "tiered_remote_lost > 0",
          "{{ $value }} partitions have records in a bucket that does not hold them: it is lost or wrong"),
    Alert("TieredDiskFull", Severity.PAGE, "10m",
          "tiered_log_dir_free_bytes / tiered_log_dir_total_bytes < {free_share} "
          "or predict_linear(tiered_log_dir_free_bytes[6h], 4 * 3600) < 0",
          "{{ $labels.directory }} is nearly full, or will be within four hours"),
    Alert("TieredDeleteLag", Severity.TICKET, "1h",
          "max by (topic) (tiered_remote_delete_overdue_seconds) > 86400",
          "Objects of {{ $labels.topic }} should have been deleted a day ago"),
    # No time of day: the machine's clock may jump, be held, or differ from Prometheus'.
    Alert("TieredNoRounds", Severity.PAGE, "5m",
          "tiered_last_round_age_seconds > 1800 or absent(tiered_last_round_age_seconds)",
          "No maintenance round has ended for half an hour, or no manager exports its metrics"),
    Alert("TieredLogDirOffline", Severity.PAGE, "0m",
          "tiered_log_dir_offline > 0",
          "The log directory {{ $labels.directory }} has failed"),
    Alert("TieredCleanerStuck", Severity.TICKET, "30m",
          "tiered_cleaner_uncleanable_partitions > 0",
          "{{ $value }} compacted logs cannot be cleaned"),
    Alert("TieredClockJumped", Severity.PAGE, "0m",
          "abs(tiered_clock_jump_seconds) > 0",
          "The machine's clock has jumped by {{ $value | humanizeDuration }}"),
    Alert("TieredCopiersBusy", Severity.TICKET, "15m",
          "tiered_copier_oldest_wait_seconds > 900",
          "A partition has waited {{ $value | humanizeDuration }} for a task thread of the store"),
    Alert("TieredRoundsFail", Severity.PAGE, "5m",
          "increase(tiered_round_failures_total[30m]) > 3",
          "Maintenance rounds fail"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard; `width` of 24. `exprs` are PromQL with their legends."""

    row: str
    title: str
    unit: str
    exprs: Mapping[str, str]
    kind: str = "timeseries"
    width: int = 6


PANELS: tuple[Panel, ...] = (
    Panel("Overview", "Upload lag", "s", {"max(tiered_remote_copy_lag_seconds)": ""}, kind="stat"),
    Panel("Overview", "At risk", "bytes", {"sum(tiered_unreplicated_bytes)": ""}, kind="stat"),
    Panel("Overview", "Store failures", "reqps",
          {f"sum(rate(tiered_objstore_failures_total{_RATE}))": ""}, kind="stat"),
    Panel("Overview", "Dollars a month", "currencyUSD", {"sum(tiered_cost_dollars_per_month)": ""}, kind="stat"),
    Panel("Overview", "Problems", "short",
          {"sum by (class) (tiered_partition_problems) > 0": "{{class}}",
           "tiered_halted > 0": "halted",
           "tiered_remote_lost > 0": "bucket lost",
           'tiered_partitions{state="unopened"} > 0': "unopened"}, width=12),
    Panel("Overview", "Last round", "s", {"tiered_last_round_age_seconds": "ago"}, width=12),
    Panel("Tiers", "Bytes on the disk", "bytes", {"sum by (topic) (tiered_local_log_bytes)": "{{topic}}"}, width=12),
    Panel("Tiers", "Bytes in the bucket", "bytes", {"sum by (topic) (tiered_remote_log_bytes)": "{{topic}}"}, width=12),
    Panel("Tiers", "Waiting for upload", "bytes",
          {"sum by (topic) (tiered_remote_copy_lag_bytes)": "{{topic}}"}, width=8),
    Panel("Tiers", "Waiting for deletion", "bytes",
          {"sum by (topic) (tiered_remote_delete_lag_bytes)": "{{topic}}"}, width=8),
    Panel("Tiers", "Room on the disks", "percentunit",
          {"tiered_log_dir_free_bytes / tiered_log_dir_total_bytes": "{{directory}}"}, width=8),
    Panel("Traffic", "Appended", "Bps",
          {f"sum by (topic) (rate(tiered_append_bytes_total{_RATE}))": "{{topic}}"}, width=8),
    Panel("Traffic", "Copied up", "Bps",
          {f"sum by (topic) (rate(tiered_remote_copy_bytes_total{_RATE}))": "{{topic}}"}, width=8),
    Panel("Traffic", "Fetched", "Bps",
          {f"sum by (topic) (rate(tiered_remote_fetch_bytes_total{_RATE}))": "{{topic}}"}, width=8),
    Panel("Store", "Calls", "reqps",
          {f"sum by (op) (rate(tiered_objstore_operations_total{_RATE}))": "{{op}}"}, width=8),
    Panel("Store", "Failures", "reqps",
          {f"sum by (op, class) (rate(tiered_objstore_failures_total{_RATE}))": "{{op}} {{class}}"}, width=8),
    Panel("Store", "Time of a call, 99 in 100", "s",
          {f"histogram_quantile(0.99, sum by (op, le) (rate(tiered_objstore_duration_seconds_bucket{_RATE})))":
           "{{op}}"}, width=8),
    Panel("Store", "Turns at the store", "short",
          {"sum by (state) (tiered_copier_tasks)": "copies {{state}}",
           "sum by (state) (tiered_expirer_tasks)": "expiry {{state}}",
           "tiered_copier_threads": "copiers",
           "tiered_expirer_threads": "expirers"}, width=12),
    Panel("Store", "Longest wait and longest turn", "s",
          {"tiered_copier_oldest_wait_seconds": "copies, wait",
           "tiered_copier_oldest_turn_seconds": "copies, turn",
           "tiered_expirer_oldest_wait_seconds": "expiry, wait",
           "tiered_expirer_oldest_turn_seconds": "expiry, turn"}, width=12),
    Panel("Machine", "fsync, 99 in 100", "s",
          {f"histogram_quantile(0.99, sum by (le) (rate(tiered_fsync_duration_seconds_bucket{_RATE})))": ""}),
    Panel("Machine", "Memory", "bytes", {"process_resident_memory_bytes": ""}),
    Panel("Machine", "CPU", "percentunit", {f"rate(process_cpu_seconds_total{_RATE})": ""}),
    Panel("Machine", "Cleaner: dirty share", "percent", {"tiered_cleaner_max_dirty_percent": "largest"}),
)  # fmt: skip


def alert_rules(limits: Limits | None = None, *, runbooks_url: str = RUNBOOKS_URL) -> str:
    """Return Prometheus' rule file: YAML, with JSON strings."""
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


def dashboard() -> str:
    """Return Grafana's dashboard as JSON; the import asks for the data source."""
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
            for at, (expr, legend) in enumerate(panel.exprs.items())
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


def systemd_unit(*, executable: str, directory: str, user: str = "tiered", metrics: str = ":9464") -> str:
    """Return a systemd unit for `tiered run`."""
    command = shlex.join([executable, "-C", directory, "run", "--metrics", metrics])
    return f"""\
[Unit]
Description=tiered log manager
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
NotifyAccess=main
User={user}
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
# Ready once every log is loaded: after a crash each is recovered first.
TimeoutStartSec=infinity
WatchdogSec=300
# A stop waits for the current step; a large upload may take minutes.
TimeoutStopSec=300
KillMode=mixed
Restart=on-failure
RestartSec=30
# No restart after a wrong setting, damage or a newer writer; other causes may end by themselves.
RestartPreventExitStatus=2 4 5
LimitNOFILE=65536
UMask=0077
NoNewPrivileges=true
ProtectSystem=strict
ProtectHome=true
PrivateTmp=true
ReadWritePaths={directory}

[Install]
WantedBy=multi-user.target
"""


class Role(Enum):
    """Roles of IAM policies, each with least privilege (tests/contract/test_access_policies).

    | role | reads | creates | deletes | purpose |
    |---|---|---|---|---|
    | manager | all | all | all, unless the bucket is immutable | the daemon, `tiered` with a directory, writing jobs |
    | reader | all | nothing | nothing | `open_remote`, `consume`, `restore` without a takeover |
    | spark | all | pins | pins | reads that pin a manifest |
    | gc | all | nothing | objects that a manifest may name, not manifests; unfinished uploads | `tiered gc --delete` |

    ListBucket is limited to the prefix. Without it S3 answers 403 instead of 404 for a missing object.
    """

    MANAGER = "manager"
    READER = "reader"
    SPARK = "spark"
    GC = "gc"


def iam_policy(
    role: Role, bucket: str, prefix: str = "", *, is_immutable: bool = False, kms_key: str | None = None
) -> dict[str, object]:
    """Return the policy document of a role. Raises InvalidRequest for role GC in an immutable bucket."""
    if role is Role.GC and is_immutable:
        raise InvalidRequest("cannot write a policy, an immutable bucket deletes nothing", role=role.value)
    root = f"arn:aws:s3:::{bucket}/{_root(prefix)}"
    deletes = [] if is_immutable else ["s3:DeleteObject"]
    writes = ["s3:PutObject", "s3:AbortMultipartUpload", *deletes] if role is Role.MANAGER else []
    statements = [_allow("Objects", ["s3:GetObject", *writes], f"{root}*"), _listing(bucket, prefix)]
    if role is Role.SPARK:
        statements.append(_allow("Pins", ["s3:PutObject", *deletes], f"{root}{PINS}"))
    if role is Role.GC:
        unfinished = ["s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
        statements.append(_allow("Orphans", [*deletes, *unfinished], *(f"{root}{each}" for each in NAMED)))
        statements.append(_allow("Uploads", ["s3:ListBucketMultipartUploads"], f"arn:aws:s3:::{bucket}"))
    if kms_key is not None:
        uses = ["kms:Decrypt"] if role in (Role.READER, Role.GC) else ["kms:Decrypt", "kms:GenerateDataKey"]
        statements.append(_allow("Key", uses, kms_key))
    return {"Version": "2012-10-17", "Statement": statements}


def lifecycle_rules(
    prefix: str = "", *, is_immutable: bool = False, is_versioned: bool = False, abort_days: int = ABORT_DAYS
) -> list[dict[str, object]]:
    """Return rules that end incomplete uploads and, in a versioned bucket, expire deleted versions.

    No rule expires objects by age: objects as old as the topic are in use.
    """
    suffix = f"-{prefix.strip('/').replace('/', '-')}" if prefix.strip("/") else ""

    def rule(name: str, **effects: Mapping[str, object]) -> dict[str, object]:
        where = {"Prefix": _root(prefix)}
        return {"ID": f"tiered-{name}{suffix}", "Status": "Enabled", "Filter": where, **effects}

    rules = [rule("abort-uploads", AbortIncompleteMultipartUpload={"DaysAfterInitiation": abort_days})]
    if is_versioned and not is_immutable:
        old, markers = {"NoncurrentDays": NONCURRENT_DAYS}, {"ExpiredObjectDeleteMarker": True}
        rules.append(rule("deleted-versions", NoncurrentVersionExpiration=old, Expiration=markers))
    return rules


def _listing(bucket: str, prefix: str) -> dict[str, object]:
    root = _root(prefix)
    found = _allow("Names", ["s3:ListBucket"], f"arn:aws:s3:::{bucket}")
    return found if not root else {**found, "Condition": {"StringLike": {"s3:prefix": [root, f"{root}*"]}}}


def _allow(name: str, actions: list[str], *resources: str) -> dict[str, object]:
    named = resources[0] if len(resources) == 1 else list(resources)
    return {"Sid": name, "Effect": "Allow", "Action": actions, "Resource": named}


def _root(prefix: str) -> str:
    return prefix.strip("/") + "/" if prefix.strip("/") else ""
