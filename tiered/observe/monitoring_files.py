"""Files of `tiered generate`: alert rules, dashboard, systemd unit, policies and rules of a bucket.

Alerts, dashboard and unit are data files of this folder. Each alert has a page in ``docs/runbooks``.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from importlib.resources import files
from typing import Literal, TypeVar

import msgspec

from local.errors import InvalidRequest

RUNBOOKS_URL = "docs/runbooks"
Row = TypeVar("Row")
ABORT_DAYS, NONCURRENT_DAYS = 3, 7
PINS = "*/meta/pin/*"
NAMED = ("*/data/*", "*/view/*", "*/meta/spill/*")  # objects that a manifest may name, so possible orphans


class Alert(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One alert of ``alerts.toml``. `expr` is PromQL, with placeholders for limits, and must hold for `lasts`."""

    name: str
    severity: Literal["page", "ticket"]  # immediate action, or a ticket
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


def read_table(file: str, name: str, row: type[Row]) -> list[Row]:
    """Return the rows ``[[name]]`` of a TOML file here. Call at import only: it creates a decoder."""
    rows = msgspec.json.Decoder(list[row])  # type: ignore[valid-type]
    return rows.decode(msgspec.json.encode(msgspec.toml.decode(_packaged(file))[name]))


def _packaged(file: str) -> str:
    return files(__package__).joinpath(file).read_text(encoding="utf-8")


ALERTS = tuple(read_table("alerts.toml", "alert", Alert))


def alert_rules(limits: Limits | None = None, *, runbooks_url: str = RUNBOOKS_URL) -> str:
    values = asdict(limits or Limits())
    lines = ["groups:", "  - name: tiered", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expr.format(**values))}",
            f"        for: {alert.lasts}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          runbook_url: {json.dumps(f'{runbooks_url}/{alert.page}.md')}",
        ]
    return "\n".join([*lines, ""])


def dashboard() -> str:
    return _packaged("dashboard.json")


def systemd_unit(*, executable: str, directory: str, user: str = "tiered", metrics: str = ":9464") -> str:
    command = shlex.join([executable, "-C", directory, "run", "--metrics", metrics])
    return _packaged("tiered.service").format(user=user, command=command, directory=directory)


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
    folder, names = _root(prefix), _allow("Names", ["s3:ListBucket"], f"arn:aws:s3:::{bucket}")
    if folder:
        names["Condition"] = {"StringLike": {"s3:prefix": [folder, f"{folder}*"]}}
    root = f"arn:aws:s3:::{bucket}/{folder}"
    deletes = [] if is_immutable else ["s3:DeleteObject"]
    writes = ["s3:PutObject", "s3:AbortMultipartUpload", *deletes] if role is Role.MANAGER else []
    statements = [_allow("Objects", ["s3:GetObject", *writes], f"{root}*"), names]
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
    """Return rules that end incomplete uploads and expire deleted versions, but no objects by age: all are in use."""
    suffix = f"-{prefix.strip('/').replace('/', '-')}" if prefix.strip("/") else ""

    def rule(name: str, **effects: Mapping[str, object]) -> dict[str, object]:
        return {"ID": f"tiered-{name}{suffix}", "Status": "Enabled", "Filter": {"Prefix": _root(prefix)}, **effects}

    rules = [rule("abort-uploads", AbortIncompleteMultipartUpload={"DaysAfterInitiation": abort_days})]
    if is_versioned and not is_immutable:
        old, markers = {"NoncurrentDays": NONCURRENT_DAYS}, {"ExpiredObjectDeleteMarker": True}
        rules.append(rule("deleted-versions", NoncurrentVersionExpiration=old, Expiration=markers))
    return rules


def _allow(name: str, actions: list[str], *resources: str) -> dict[str, object]:
    named = resources[0] if len(resources) == 1 else list(resources)
    return {"Sid": name, "Effect": "Allow", "Action": actions, "Resource": named}


def _root(prefix: str) -> str:
    return prefix.strip("/") + "/" if prefix.strip("/") else ""
