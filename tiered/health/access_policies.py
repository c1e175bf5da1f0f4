"""Who may do what to a bucket, and what the bucket does by itself: IAM policies and lifecycle rules, as values.

Least privilege by role. Each action is there because something fails without it (tests/contract/test_access_policies
takes each away once):

| role | reads | creates | deletes | what for |
|---|---|---|---|---|
| manager | all | all | all, unless the bucket is immutable | the daemon, `tiered` with a directory, writing jobs |
| reader | all | nothing | nothing | `open_remote`, `consume`, `restore` without taking over |
| spark | all | pins | pins | reads that hold on to what they read by |
| gc | all | nothing | what heads name, not heads; unfinished uploads | `tiered gc --delete` |

ListBucket is limited to the prefix. Without it a missing object is answered with 403 and not 404, and nobody could
tell "not there" from "not allowed".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from local.errors import InvalidRequest

ABORT_DAYS, NONCURRENT_DAYS = 3, 7
PINS = "*/meta/pin/*"
NAMED = ("*/data/*", "*/view/*", "*/meta/spill/*")  # what a head may name, and so what may be nobody's


class Role(Enum):
    """See the module text."""

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
    """The policy document of a role. `kms_key` is the ARN of the key that encrypts the bucket, where one does.

    Raises InvalidRequest for a collector of garbage in a bucket that is immutable.
    """
    if role is Role.GC and is_immutable:
        raise InvalidRequest("making a policy, nothing is deleted from an immutable bucket", role=role.value)
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
    """What the bucket is to do below `prefix`: end uploads that nobody completes, and in a versioned one let go of what
    was deleted. Never what expires by age: objects as old as the topic are alive.
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
