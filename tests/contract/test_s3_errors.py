"""S3 errors: every answer of a server and every refusal of a client becomes the matching error class."""

from __future__ import annotations

import os

import pytest
from botocore.parsers import ResponseParserError

from local.errors import AccessDenied, InvalidRequest, LogError, NotFound, Unavailable
from remote.segment_entry import PART_BYTES
from remote.store import ranged_source
from remote.store.middleware.deadlines_and_retries import RetryPolicy
from remote.store.open_store import S3_CLIENTS as CLIENTS
from remote.store.open_store import open_store
from remote.store.s3_errors import translate
from remote.store.s3_store import of_answer

pytestmark = pytest.mark.server
ONCE = RetryPolicy(attempts_max=1)
LARGE = bytes(2 * PART_BYTES + PART_BYTES // 2)


def source_of(body):
    return ranged_source(len(body), lambda start, length: memoryview(body)[start : start + length])


@pytest.fixture(params=["s3fs", "obstore"])
def client(request):
    """Both S3 clients must give the same errors."""
    return request.param


def test_a_missing_bucket_raises_not_found_with_its_name(s3_endpoint, client):
    store = open_store("s3://no-such-bucket/root", {**s3_endpoint.options(), "client": client})
    for verb in (
        lambda: store.put("a", b"x"),
        lambda: store.put_if_absent("a", b"x"),
        lambda: store.upload("a", source_of(LARGE)),
        lambda: store.get("a"),
        lambda: store.get_range("a", 0, 1),
        lambda: list(store.list("")),
        lambda: store.list_prefixes(""),
        lambda: store.delete(["a"]),
    ):
        with pytest.raises(NotFound, match=r"bucket does not exist.*no-such-bucket"):
            verb()
    store.close()


def test_a_wrong_endpoint_is_unavailable_with_its_url(canned):
    with canned((200, "")) as gone:
        options = gone.options()
    store = open_store("s3://bucket", options, policy=ONCE)
    with pytest.raises(Unavailable, match=r"cannot be reached.*endpoint=http://127.0.0.1:"):
        store.get("a")
    store.close()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "InvalidAccessKeyId", AccessDenied),
        (403, "SignatureDoesNotMatch", AccessDenied),
        (403, "AccessDenied", AccessDenied),
        (400, "ExpiredToken", AccessDenied),
        (401, "", AccessDenied),
        (404, "NoSuchBucket", NotFound),
        (404, "NoSuchKey", NotFound),
        (400, "InvalidBucketName", InvalidRequest),
        (400, "BadDigest", Unavailable),
        (400, "IncompleteBody", Unavailable),
        (409, "ConditionalRequestConflict", Unavailable),
        (429, "TooManyRequests", Unavailable),
        (500, "InternalError", Unavailable),
        (503, "SlowDown", Unavailable),
        (503, "", Unavailable),
    ],
)
def test_an_error_answer_becomes_the_matching_error_class(canned, status, code, kind, client):
    with canned((status, code)) as server:
        store = open_store("s3://bucket/x", {**server.options(), "client": client}, policy=ONCE)
        for verb in (lambda: store.get("a"), lambda: store.put_if_absent("a", b"x"), lambda: list(store.list(""))):
            with pytest.raises(LogError) as caught:
                verb()
            assert type(caught.value) is kind
            told = str(caught.value)
            assert "s3://bucket/x" in told
            assert "\n" not in told
            assert not {"secret text", "the-secret-key", "the-access-key"} & set(told.split())
            assert "secret" not in told + repr(store) + store.url
        store.close()


def test_temporary_errors_are_retried_by_one_layer_only(canned, client):
    waits = []
    policy = RetryPolicy(attempts_max=3, sleep=waits.append)
    with canned((503, "SlowDown"), (500, "InternalError"), (200, "")) as server:
        store = open_store("s3://bucket", {**server.options(), "client": client}, policy=policy)
        assert store.get("a") == b"ok"
        assert len(server.requests) == 3
        store.close()
    with canned((503, "SlowDown")) as server:
        store = open_store("s3://bucket", {**server.options(), "client": client}, policy=policy)
        with pytest.raises(Unavailable, match="attempts=3"):
            store.get("a")
        assert len(server.requests) == 3
        store.close()
    assert len(waits) == 4


def test_missing_credentials_raise_access_denied(canned, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with canned((200, "")) as server:
        options = {name: value for name, value in server.options().items() if name not in ("key", "secret")}
        store = open_store("s3://bucket", options, policy=ONCE)
        with pytest.raises(AccessDenied, match="no credentials"):
            store.get("a")
        store.close()


def test_an_option_that_the_client_refuses_is_named_without_its_value():
    store = open_store("s3://bucket", {"max_concurrency": 0, "secret": "hunter2"})
    with pytest.raises(InvalidRequest, match="max_concurrency") as caught:
        store.get("a")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoint_url": "hunter2"},
        {"endpoint_url": "http://[hunter2"},
        {"endpoint_url": "http://127.0.0.1:99999"},
        {"endpoint_url": 5},
        {"key": 5},
        {"nosuchopt": "hunter2"},
        {"client_kwargs": "hunter2"},
        {"client_kwargs": {"nosuch": "hunter2"}},
        {"client_kwargs": {"region_name": "hunter2!"}},
        {"client_kwargs": {"verify": "/hunter2"}},
        {"config_kwargs": {"nosuch": "hunter2"}},
        {"config_kwargs": {"connect_timeout": "hunter2"}},
        {"config_kwargs": {"proxies": "hunter2"}},
        {"config_kwargs": {"signature_version": "hunter2"}},
        {"config_kwargs": {"s3": {"addressing_style": "hunter2"}}},
        {"s3_additional_kwargs": "hunter2"},
        {"session": "hunter2"},
        {"profile": "hunter2"},
    ],
    ids=repr,
)
def test_wrong_options_are_an_invalid_request_without_retries_and_without_values(canned, wrong, client):
    waits = []
    with canned((200, "")) as server:
        taken = "auto" if client == "obstore" else client  # "auto" uses s3fs for options that obstore does not have
        options = {**server.options(), "client": taken, **wrong}
        store = open_store("s3://bucket", options, policy=RetryPolicy(sleep=waits.append))
        for verb in (lambda: store.put("a", b"x"), lambda: store.get("a"), lambda: list(store.list(""))):
            with pytest.raises(InvalidRequest, match="s3://bucket") as caught:
                verb()
            assert "hunter2" not in str(caught.value)
            assert "the-secret-key" not in str(caught.value)
        store.close()
    assert waits == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"session": "hunter2"}, "session"),
        ({"client_kwargs": {"verify": "hunter2"}}, "client_kwargs.verify"),
        ({"config_kwargs": {"signature_version": "hunter2"}}, "config_kwargs.signature_version"),
        ({"config_kwargs": {"proxies": {"https": "hunter2"}}}, "config_kwargs.proxies"),
        ({"config_kwargs": {"s3": {"addressing_style": "path", "use_accelerate_endpoint": True}}}, "config_kwargs.s3"),
        ({"config_kwargs": "hunter2"}, "config_kwargs"),
    ],
)
def test_options_that_obstore_lacks_select_s3fs_or_are_refused_for_obstore(options, named):
    options = {"endpoint_url": "http://127.0.0.1:1", **options}
    with pytest.raises(InvalidRequest, match=rf"use s3fs.*options={named}$") as caught:
        open_store("s3://bucket", {**options, "client": "obstore"})
    assert "hunter2" not in str(caught.value)
    if named != "config_kwargs":
        assert type(open_store("s3://bucket", options)._inner._inner).__name__ == "S3Store"


def test_the_default_client_is_obstore_if_installed_and_unknown_names_are_refused(monkeypatch):
    options = {"endpoint_url": "http://127.0.0.1:1", "client_kwargs": {"region_name": "eu-central-1"}}
    chosen = {
        name: type(open_store("s3://bucket", {**options, "client": name})._inner._inner).__name__ for name in CLIENTS
    }
    assert chosen == {"auto": "ObstoreS3Store", "s3fs": "S3Store", "obstore": "ObstoreS3Store"}
    with pytest.raises(InvalidRequest, match=r"option=client choices=auto,s3fs,obstore$"):
        open_store("s3://bucket", {**options, "client": "curl"})
    monkeypatch.setattr("remote.store.s3_options.is_installed", lambda: False)
    assert type(open_store("s3://bucket", options)._inner._inner).__name__ == "S3Store"
    with pytest.raises(InvalidRequest, match=r"library=obstore install=pip install 'tiered\[obstore\]'$"):
        open_store("s3://bucket", {**options, "client": "obstore"})


def test_express_buckets_and_access_point_arns_use_s3fs():
    for bucket in ("logs--euc1-az1--x-s3", "arn:aws:s3:eu-central-1:1:accesspoint"):
        store = open_store(f"s3://{bucket}/x", {"endpoint_url": "http://127.0.0.1:1"})
        assert type(store._inner._inner).__name__ == "S3Store"


def test_an_option_that_fails_inside_the_client_is_named_in_the_error(canned):
    with canned((200, "")) as server:
        store = open_store("s3://bucket", {**server.options(), "nosuchopt": 1}, policy=ONCE)
        with pytest.raises(
            InvalidRequest, match=r"the client rejected its options.*options=\S*\bnosuchopt\b.*cause=TypeError"
        ):
            store.get("a")


def test_an_answer_that_is_not_from_s3_is_unavailable(canned, client):
    with canned((200, "")) as server:  # the body "ok" is not a listing
        store = open_store("s3://bucket", {**server.options(), "client": client}, policy=ONCE)
        with pytest.raises(Unavailable, match="cannot list objects"):
            list(store.list(""))
        store.close()
    error = translate(ResponseParserError("text"), "cannot list objects", {"store": "s3://bucket"})
    assert isinstance(error, Unavailable)
    assert str(error).endswith("the reply is not an S3 reply: store=s3://bucket cause=ResponseParserError")


@pytest.mark.parametrize(
    ("codes", "kind", "told"),
    [
        (["AccessDenied"] * 5, AccessDenied, r"keys=k0,k1,k2 refused=5 cause=AccessDenied$"),
        (["AccessDenied"], AccessDenied, r"keys=k0 refused=1 cause=AccessDenied$"),
        (["SlowDown", "InternalError"], Unavailable, r"keys=k0,k1 refused=2 cause=SlowDown attempts=2$"),
        (["SlowDown", "AccessDenied"], AccessDenied, r"keys=k1 refused=1 cause=AccessDenied$"),
        (["Whatever"], InvalidRequest, r"keys=k0 refused=1 cause=Whatever$"),
    ],
)
def test_refused_keys_of_a_delete_are_counted_and_named_with_their_cause(codes, kind, told):
    store, sent = _refusing_deletes(codes)
    with pytest.raises(LogError, match=told) as caught:
        store.delete([f"k{number}" for number in range(9)])
    assert type(caught.value) is kind
    assert len(sent) == (2 if kind is Unavailable else 1)


def test_a_missing_key_in_a_delete_is_not_an_error():
    store, _ = _refusing_deletes(["NoSuchKey"])
    store.delete(["k0"])


def test_every_body_is_sent_with_a_crc32_checksum(s3_endpoint, s3_bucket):
    store = open_store(f"s3://{s3_bucket}/root", {**s3_endpoint.options(), "client": "s3fs"})
    store.put("warm", b"x")
    sent, inner = [], store._inner._inner

    def note(request, operation_name, **_):
        names = [name.lower() for name in request.headers]
        trailer = request.headers.get("x-amz-trailer", b"")
        trailer = trailer.decode() if isinstance(trailer, bytes) else trailer
        sent.append((operation_name, "x-amz-checksum-crc32" in [*names, trailer.lower()]))

    inner._fs.s3.meta.events.register("request-created.s3", note)
    store.put("a", b"x")
    store.put_if_absent("b", b"x")
    store.upload("big", source_of(LARGE))
    bodies = [each for each in sent if each[0] in ("PutObject", "UploadPart")]
    assert bodies == [("PutObject", True)] * 2 + [("UploadPart", True)] * 3
    store.close()


def _refusing_deletes(codes):
    """(a store whose DeleteObjects returns 200 and refuses the first keys with `codes`, its calls)"""
    sent = []

    class Client:
        def call_s3(self, method, *, Delete, **_):  # noqa: N803
            sent.append(method)
            keys = [each["Key"] for each in Delete["Objects"]]
            return {"Errors": [{"Key": key, "Code": code} for key, code in zip(keys, codes, strict=False)]}

    store = open_store("s3://bucket/root", policy=RetryPolicy(attempts_max=2, sleep=lambda _: None))
    store._inner._inner._filesystem, store._inner._inner._pid = Client(), os.getpid()
    return store, sent


def test_a_bucket_in_another_region_is_named_as_the_cause():
    from botocore.exceptions import ClientError

    answer = {"Error": {"Code": "PermanentRedirect"}, "ResponseMetadata": {"HTTPStatusCode": 301}}
    error = translate(ClientError(answer, "GetObject"), "cannot read an object", {"key": "a"})
    assert isinstance(error, InvalidRequest)
    assert str(error).startswith("cannot read an object, the bucket is in another region")


def test_an_archived_object_is_not_reported_as_a_credentials_error() -> None:
    error = of_answer("InvalidObjectState", 403, "cannot read an object", {"key": "a"})
    assert isinstance(error, AccessDenied)
    assert "it is archived" in str(error)
    assert "credentials" not in str(error)
