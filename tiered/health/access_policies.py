"""IAM policies and lifecycle rules of a bucket, as values.

Least privilege by role. Every action is needed: tests/contract/test_access_policies removes each once and sees a
failure.

| role | reads | creates | deletes | purpose |
|---|---|---|---|---|
| manager | all | all | all, unless the bucket is immutable | the daemon, `tiered` with a directory, writing jobs |
| reader | all | nothing | nothing | `open_remote`, `consume`, `restore` without a takeover |
| spark | all | pins | pins | reads that pin a manifest |
| gc | all | nothing | objects that a manifest may name, not manifests; unfinished uploads | `tiered gc --delete` |

ListBucket is limited to the prefix. Without it a missing object is answered with 403 instead of 404, which does not
distinguish "missing" from "not allowed".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from local.errors import InvalidRequest

ABORT_DAYS, NONCURRENT_DAYS = 3, 7
PINS = "*/meta/pin/*"
NAMED = ("*/data/*", "*/view/*", "*/meta/spill/*")  # objects that a manifest may name, so possible orphans


class Role(Enum):
    """Roles; see the module text."""

    MANAGER = "manager"
    READER = "reader"
    SPARK = "spark"
    GC = "gc"


_OBJECT_ACTIONS: Mapping[Role, tuple[str, ...]] = {
    Role.MANAGER: ("s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload", "s3:DeleteObject"),
    Role.READER: ("s3:GetObject",),
    Role.SPARK: ("s3:GetObject",),
    Role.GC: ("s3:GetObject",),
}


def iam_policy(
    role: Role, bucket: str, prefix: str = "", *, is_immutable: bool = False, kms_key: str | None = None
) -> dict[str, object]:
    """Return the policy document of a role. `kms_key` is the ARN of the bucket's encryption key, if any.

    Raises InvalidRequest for role GC in an immutable bucket.
    """
    if role is Role.GC and is_immutable:
        raise InvalidRequest("cannot write a policy, an immutable bucket deletes nothing", role=role.value)
    root = f"arn:aws:s3:::{bucket}/{_root(prefix)}"
    spared = {"s3:DeleteObject"} if is_immutable else set()
    actions = [action for action in _OBJECT_ACTIONS[role] if action not in spared]
    statements: list[dict[str, object]] = [_allow("Objects", actions, f"{root}*"), _listing(role, bucket, prefix)]
    if role is Role.SPARK:
        pins = ["s3:PutObject"] if is_immutable else ["s3:PutObject", "s3:DeleteObject"]
        statements.append(_allow("Pins", pins, f"{root}{PINS}"))
    if role is Role.GC:
        deletes = ["s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
        statements.append(_allow("Orphans", deletes, *(f"{root}{each}" for each in NAMED)))
        statements.append(_allow("Uploads", ["s3:ListBucketMultipartUploads"], f"arn:aws:s3:::{bucket}"))
    if kms_key is not None:
        uses = ["kms:Decrypt"] if role in (Role.READER, Role.GC) else ["kms:Decrypt", "kms:GenerateDataKey"]
        statements.append(_allow("Key", uses, kms_key))
    return {"Version": "2012-10-17", "Statement": statements}


def lifecycle_rules(
    prefix: str = "", *, is_immutable: bool = False, is_versioned: bool = False, abort_days: int = ABORT_DAYS
) -> list[dict[str, object]]:
    """Return the lifecycle rules for `prefix`.

    The rules end incomplete uploads and, in a versioned bucket, expire deleted versions. No rule expires objects by
    age: objects as old as the topic are in use.
    """
    where = {"Prefix": _root(prefix)}
    rules: list[dict[str, object]] = [
        {
            "ID": _id("abort-uploads", prefix),
            "Status": "Enabled",
            "Filter": where,
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": abort_days},
        }
    ]
    if is_versioned and not is_immutable:
        rules.append(
            {
                "ID": _id("deleted-versions", prefix),
                "Status": "Enabled",
                "Filter": where,
                "NoncurrentVersionExpiration": {"NoncurrentDays": NONCURRENT_DAYS},
                "Expiration": {"ExpiredObjectDeleteMarker": True},
            }
        )
    return rules


def _listing(role: Role, bucket: str, prefix: str) -> dict[str, object]:
    root = _root(prefix)
    found = _allow("Names", ["s3:ListBucket"], f"arn:aws:s3:::{bucket}")
    return found if not root else {**found, "Condition": {"StringLike": {"s3:prefix": [root, f"{root}*"]}}}


def _allow(name: str, actions: list[str], *resources: str) -> dict[str, object]:
    named = resources[0] if len(resources) == 1 else list(resources)
    return {"Sid": name, "Effect": "Allow", "Action": actions, "Resource": named}


def _root(prefix: str) -> str:
    return prefix.strip("/") + "/" if prefix.strip("/") else ""


def _id(name: str, prefix: str) -> str:
    return f"tiered-{name}" + (f"-{prefix.strip('/').replace('/', '-')}" if prefix.strip("/") else "")
