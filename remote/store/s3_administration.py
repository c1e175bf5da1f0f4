"""One-time S3 settings, made by an authorized person: bucket lifecycle, and inline IAM policies.

Rules and policies are compared by content, in any order. Rules and policies with other names stay unchanged. Requests
are not retried: an operator is waiting for the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from local.errors import InvalidRequest, NotFound
from remote.store.s3_answers import translated
from remote.store.unfinished_uploads import boto3_client

Rule = Mapping[str, object]


def split_bucket(url: str) -> tuple[str, str]:
    """Return (bucket, prefix) of ``s3://bucket/prefix``. Raises InvalidRequest for another url."""
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise InvalidRequest("cannot set up the bucket, only S3 has these settings", url=url)
    return parts.netloc, parts.path.strip("/")


def bucket_rules(url: str, options: Mapping[str, object]) -> list[dict[str, object]]:
    """Return all lifecycle rules of the bucket.

    Raises AccessDenied, Unavailable, or NotFound without a bucket.
    """
    bucket, _ = split_bucket(url)
    client = boto3_client("s3", options)
    try:
        with translated("cannot read the lifecycle of a bucket", options=options, store=url):
            return list(client.get_bucket_lifecycle_configuration(Bucket=bucket).get("Rules", ()))
    except NotFound as error:
        if error.facts.get("cause") == "NoSuchLifecycleConfiguration":
            return []
        raise


def missing_rules(wanted: Sequence[Rule], found: Sequence[Rule]) -> list[Rule]:
    """Return the rules of `wanted` that the bucket lacks, or has with other content."""
    known = {rule.get("ID"): rule for rule in found}
    return [rule for rule in wanted if not _is_same(rule, known.get(rule["ID"]))]


def put_rules(url: str, options: Mapping[str, object], wanted: Sequence[Rule]) -> None:
    """Write these rules, and leave rules with other names unchanged."""
    names = {rule["ID"] for rule in wanted}
    others = [rule for rule in bucket_rules(url, options) if rule.get("ID") not in names]
    bucket, _ = split_bucket(url)
    client = boto3_client("s3", options)
    with translated("cannot write the lifecycle of a bucket", options=options, store=url):
        client.put_bucket_lifecycle_configuration(
            Bucket=bucket, LifecycleConfiguration={"Rules": [*others, *map(dict, wanted)]}
        )


def inline_policy(whose: str, name: str, options: Mapping[str, object]) -> dict[str, Any] | None:
    """Return the policy `name` of ``user/NAME`` or ``role/NAME``; None without one.

    Raises InvalidRequest.
    """
    kind, owner = _owner(whose)
    client = boto3_client("iam", options)
    try:
        with translated("cannot read a policy", options=options, whose=whose):
            call = client.get_user_policy if kind == "user" else client.get_role_policy
            document = call(**{f"{kind.title()}Name": owner}, PolicyName=name)["PolicyDocument"]
    except NotFound:
        return None
    return json.loads(document) if isinstance(document, str) else dict(document)


def put_inline_policy(whose: str, name: str, policy: Mapping[str, object], options: Mapping[str, object]) -> None:
    """Give ``user/NAME`` or ``role/NAME`` this policy under that name."""
    kind, owner = _owner(whose)
    client = boto3_client("iam", options)
    with translated("cannot write a policy", options=options, whose=whose):
        call = client.put_user_policy if kind == "user" else client.put_role_policy
        call(**{f"{kind.title()}Name": owner}, PolicyName=name, PolicyDocument=json.dumps(policy))


def _owner(whose: str) -> tuple[str, str]:
    kind, slash, owner = whose.partition("/")
    if kind not in ("user", "role") or not slash or not owner:
        raise InvalidRequest("invalid owner of a policy", text=repr(whose), expected="user/NAME or role/NAME")
    return kind, owner


def _is_same(rule: Rule, other: Rule | None) -> bool:
    """Compare only the fields of this project: the server may add others."""
    return other is not None and all(other.get(name) == value for name, value in rule.items())
