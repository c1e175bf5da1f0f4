"""Generated IAM policies against a server that enforces IAM, and bucket lifecycle rules.
1. The policy of a role suffices for all operations of the role.
2. Without any one of its actions, an operation fails."""

from __future__ import annotations

import copy
import fnmatch
import http.client
import json
from collections.abc import Callable, Iterator

import boto3
import pytest
from care_world import NOW, batches, to_copy

from local.errors import AccessDenied, LogError, NotFound
from remote.gc.pins import pin_newest, release
from remote.keys import (
    boundary_key,
    data_key,
    indexes_key,
    manifest_key,
    page_key,
    parse_epoch,
    partition_prefix,
    pin_key,
)
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import add_segments, expire_segments, remove_pending_deletes
from remote.segment_entry import PART_BYTES
from remote.store import ObjectStore, UploadSource
from remote.store.middleware.store_wrapper import ImmutableStore
from remote.store.open_store import open_store
from remote.store.probe import probe_store
from remote.store.unfinished_uploads import (
    UnfinishedUploads,
    bucket_rules,
    inline_policy,
    missing_rules,
    put_inline_policy,
    put_rules,
)
from remote.upload.segment_upload import copy_segment
from tiered.demo.s3_endpoint import S3Endpoint
from tiered.observe.monitoring_files import Role, iam_policy, lifecycle_rules
from tiered.read.bucket_reader import RemoteLog

pytestmark = pytest.mark.timeout(180)
BUCKET, PREFIX, TOPIC_ID = "policies", "logs/prod", "P" * 22
PARTITION = partition_prefix("t", TOPIC_ID, 0)
ORPHAN = PARTITION + data_key(970, 979, 1, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
ROOT = f"s3://{BUCKET}/{PREFIX}"


class Broken(Exception):
    """The error that the source of an upload raises."""


class Enforcing:
    """A server with IAM, one bucket and one user. The user has the policy of the last `allow` call."""

    def __init__(self, endpoint: S3Endpoint) -> None:
        self.endpoint = endpoint
        self.root = {**endpoint.options(), "client": "s3fs"}
        login = {"aws_access_key_id": "loopback", "aws_secret_access_key": "loopback"}
        self.iam = boto3.client("iam", endpoint_url=endpoint.url, region_name="us-east-1", **login)
        self.s3 = boto3.client("s3", endpoint_url=endpoint.url, region_name="us-east-1", **login)
        self.s3.create_bucket(Bucket=BUCKET)
        self.iam.create_user(UserName="someone")
        key = self.iam.create_access_key(UserName="someone")["AccessKey"]
        self.user = {**self.root, "key": key["AccessKeyId"], "secret": key["SecretAccessKey"]}

    def enforce(self, *, is_on: bool) -> None:
        host = self.endpoint.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host)
        connection.request("POST", "/moto-api/reset-auth", body=b"0" if is_on else b"1000000000")
        assert connection.getresponse().status == 200
        connection.close()

    def allow(self, policy: dict[str, object]) -> None:
        """Give the user this policy.
        This server checks DeleteObjects against the bucket and AWS checks it against each object, so the bucket is
        added."""
        statements = copy.deepcopy(policy["Statement"])
        assert isinstance(statements, list)
        for each in statements:
            if "s3:DeleteObject" in each["Action"]:
                named = each["Resource"] if isinstance(each["Resource"], list) else [each["Resource"]]
                each["Resource"] = [*named, f"arn:aws:s3:::{BUCKET}"]
        document = json.dumps({**policy, "Statement": statements})
        self.iam.put_user_policy(UserName="someone", PolicyName="p", PolicyDocument=document)

    def run(self, deed: Callable[[Enforcing, ObjectStore], None], policy: dict[str, object]) -> LogError | None:
        """Run `deed` under this policy and return the error that it raised."""
        self.allow(policy)
        self.enforce(is_on=True)
        store = open_store(ROOT, self.user)
        try:
            deed(self, store)
        except LogError as error:
            return error
        finally:
            store.close()
            self.enforce(is_on=False)
        return None


@pytest.fixture(scope="module")
def server() -> Iterator[Enforcing]:
    with S3Endpoint() as endpoint:
        made = Enforcing(endpoint)
        store = open_store(ROOT, made.root)
        _as_manager(made, store)
        store.close()
        yield made


def _as_manager(server: Enforcing, store: ObjectStore) -> None:
    """Probe, take over, copy, commit, expire, delete, and fail in the middle of an upload."""
    assert probe_store(store, now_ms=NOW).allows_writers
    log = MetadataLog(store, PARTITION)
    head = log.become_writer("w", NOW, topic="t", topic_id=TOPIC_ID, partition=0)
    base = head.entries_end_offset
    for at in (base, base + 10):
        source = to_copy(b"".join(batches(at, (10,), epoch=0)), at + 10)
        row = copy_segment(store, PARTITION, source, epoch=log.epoch, now_ms=NOW, chunk_bytes=512)
        log.commit(add_segments([row]), NOW)
    first = log.refresh().segments[0]
    expire = expire_segments([first.ulid], now_ms=NOW, log_start_offset=first.next_offset)
    gone = [each.key for each in log.commit(expire, NOW).pending_deletes]
    store.delete([PARTITION + key for key in gone])
    log.commit(remove_pending_deletes(gone), NOW)

    def parts() -> Iterator[bytes]:
        yield b"x" * PART_BYTES
        yield b"x" * PART_BYTES
        raise Broken

    name = PARTITION + data_key(90, 99, 1, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
    with pytest.raises(Broken):
        store.upload(name, UploadSource(parts=parts))
    server.enforce(is_on=False)
    assert UnfinishedUploads(ROOT, server.root).list() == [] or _denied()


def _denied() -> bool:
    raise AccessDenied("an upload that failed is still there")


def _as_reader(server: Enforcing, store: ObjectStore) -> None:
    bucket = RemoteLog(store)
    (name,) = bucket.partitions("t")
    start, _ = bucket.reader().offsets(name)
    assert list(bucket.reader().records(name, start))
    with pytest.raises(NotFound):  # a missing permission would raise AccessDenied
        store.get(f"{PARTITION}meta/head/{9**9:020d}")


def _as_spark(server: Enforcing, store: ObjectStore) -> None:
    _as_reader(server, store)
    log = MetadataLog(store, PARTITION)
    pin, _ = pin_newest(store, PARTITION, log, now_ms=NOW, expires_ms=NOW + 1, holder="job")
    release(store, PARTITION, [pin])


def _as_gc(server: Enforcing, store: ObjectStore) -> None:
    server.enforce(is_on=False)
    server.s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}/{ORPHAN}", Body=b"x")
    begun = server.s3.create_multipart_upload(Bucket=BUCKET, Key=f"{PREFIX}/{ORPHAN}")["UploadId"]
    server.s3.upload_part(Bucket=BUCKET, Key=f"{PREFIX}/{ORPHAN}", UploadId=begun, PartNumber=1, Body=b"p" * (5 << 20))
    server.enforce(is_on=True)
    MetadataLog(store, PARTITION).refresh(exact=True)
    assert [info.key for info in store.list(PARTITION) if info.key == ORPHAN]
    store.delete([ORPHAN])
    uploads = UnfinishedUploads(ROOT, server.user)
    for each in uploads.list(PARTITION):
        assert uploads.size_bytes(each) > 0
        uploads.abort(each)
    assert uploads.list(PARTITION) == []


DEEDS = {Role.MANAGER: _as_manager, Role.READER: _as_reader, Role.SPARK: _as_spark, Role.GC: _as_gc}


def _actions(policy: dict[str, object]) -> list[tuple[int, int]]:
    statements = policy["Statement"]
    assert isinstance(statements, list)
    return [(at, number) for at, each in enumerate(statements) for number in range(len(each["Action"]))]


@pytest.mark.parametrize("role", Role)
def test_the_policy_of_each_role_suffices_and_has_no_unneeded_action(server: Enforcing, role: Role) -> None:
    policy = iam_policy(role, BUCKET, PREFIX)
    assert server.run(DEEDS[role], policy) is None
    for at, number in _actions(policy):
        less = copy.deepcopy(policy)
        taken = less["Statement"][at]["Action"].pop(number)  # type: ignore[index]
        if not less["Statement"][at]["Action"]:  # type: ignore[index]
            del less["Statement"][at]  # type: ignore[attr-defined]
        failed = server.run(DEEDS[role], less)
        assert failed is not None, f"{role.value} does not need {taken}"
    store = open_store(ROOT, server.root)
    store.delete([ORPHAN])
    for each in (uploads := UnfinishedUploads(ROOT, server.root)).list():
        uploads.abort(each)
    store.close()


@pytest.mark.parametrize("role", [Role.READER, Role.SPARK, Role.GC])
def test_only_the_manager_role_may_commit_a_manifest(server: Enforcing, role: Role) -> None:
    def commits(server: Enforcing, store: ObjectStore) -> None:
        MetadataLog(store, PARTITION).become_writer("x", NOW, topic="t", topic_id=TOPIC_ID, partition=0)

    assert isinstance(server.run(commits, iam_policy(role, BUCKET, PREFIX)), AccessDenied)


def test_the_gc_role_may_delete_data_objects_and_pages_but_no_manifest() -> None:
    """Checked against key names, because this server authorizes deletes by bucket and not by object."""
    policy = iam_policy(Role.GC, BUCKET, PREFIX)
    statements = policy["Statement"]
    assert isinstance(statements, list)
    (orphans,) = [each for each in statements if "s3:DeleteObject" in each["Action"]]
    root = f"arn:aws:s3:::{BUCKET}/{PREFIX}/"

    def may(key: str, root: str = root) -> bool:
        return any(fnmatch.fnmatchcase(root + key, pattern) for pattern in orphans["Resource"])

    ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    stem = (0, 9, 1, ulid)
    for name in (data_key(*stem), indexes_key(*stem), data_key(*stem, view="v"), page_key(0, 9, (0, 0), 1, ulid)):
        assert parse_epoch(name) is not None
        assert may(PARTITION + name)
        assert not may(PARTITION + name, f"arn:aws:s3:::{BUCKET}/logs/other/")
    for name in (manifest_key(7), pin_key(ulid), boundary_key(1)):
        assert not may(PARTITION + name)


def test_the_manager_role_of_an_immutable_bucket_needs_no_delete_and_may_not_delete(server: Enforcing) -> None:
    def lives(server: Enforcing, store: ObjectStore) -> None:
        locked = ImmutableStore(store)
        probe_store(locked, now_ms=NOW)
        log = MetadataLog(locked, PARTITION)
        log.become_writer("w", NOW, topic="t", topic_id=TOPIC_ID, partition=0)
        locked.delete(["anything"])

    def deletes(server: Enforcing, store: ObjectStore) -> None:
        store.delete([PARTITION + "data/nothing"])

    policy = iam_policy(Role.MANAGER, BUCKET, PREFIX, is_immutable=True)
    assert server.run(lives, policy) is None
    assert isinstance(server.run(deletes, policy), AccessDenied)


def test_lifecycle_rules_are_compared_and_rules_of_other_software_stay(server: Enforcing) -> None:
    theirs = {"ID": "theirs", "Status": "Enabled", "Filter": {"Prefix": "tmp/"}, "Expiration": {"Days": 3}}
    assert bucket_rules(ROOT, server.root) == []
    put_rules(ROOT, server.root, [theirs])
    wanted = lifecycle_rules(PREFIX, is_versioned=True)
    assert missing_rules(wanted, bucket_rules(ROOT, server.root)) == wanted
    put_rules(ROOT, server.root, wanted)
    found = bucket_rules(ROOT, server.root)
    assert missing_rules(wanted, found) == []
    assert {rule["ID"] for rule in found} == {"theirs", *(rule["ID"] for rule in wanted)}
    later = lifecycle_rules(PREFIX, is_versioned=True, abort_days=9)
    assert [rule["ID"] for rule in missing_rules(later, found)] == ["tiered-abort-uploads-logs-prod"]


def test_an_inline_policy_is_written_to_a_user_and_compared(server: Enforcing) -> None:
    policy = iam_policy(Role.READER, BUCKET, PREFIX)
    assert inline_policy("user/someone", "tiered-reader", server.root) is None
    put_inline_policy("user/someone", "tiered-reader", policy, server.root)
    assert inline_policy("user/someone", "tiered-reader", server.root) == policy
    server.iam.delete_user_policy(UserName="someone", PolicyName="tiered-reader")
