"""The security file: every key, every mistake with the key's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from local.errors import InvalidRequest, NotFound
from tiered.serve.security.acl import CLUSTER_NAME, Kind, Operation
from tiered.serve.security.principals import ANONYMOUS, Principal, certificate_principal
from tiered.serve.security.quotas import Rate
from tiered.serve.security.settings import read_settings
from tiered.serve.security.tls import ClientAuth, Tls

ALICE = Principal("alice")
WHOLE = """
ssl.certificate.file = "server.pem"
ssl.key.file = "keys/server.key"
ssl.client.auth = "requested"
ssl.client.ca.file = "/etc/ca.pem"
"sasl.enabled.mechanisms" = ["SCRAM-SHA-512", "OAUTHBEARER"]
sasl.credentials.file = "users.json"
sasl.oauthbearer.jwks.file = "jwks.json"
sasl.oauthbearer.expected.issuer = "https://issuer"
sasl.oauthbearer.expected.audience = ["one", "two"]
sasl.oauthbearer.clock.skew.seconds = 5
sasl.oauthbearer.sub.claim.name = "azp"
connections.max.reauth.ms = 3600000
connection.failed.authentication.delay.ms = "200ms"
authentication.timeout.ms = "10s"
"max.connections" = 500
"max.connections.per.ip" = 20
"max.connection.creation.rate" = 50
"max.connection.creation.rate.per.ip" = 2.5
super.users = ["User:admin"]

[[acl]]
principal = ["User:alice", "User:bob"]
operations = ["Read", "describe_configs"]
topic = ["orders", "prices"]
group_prefix = "alice-"
host = "10.0.0.1"

[[acl]]
principal = "User:*"
permission = "deny"
operations = "CREATE"
cluster = true

[[quota]]
principal = "User:*"
producer_byte_rate = "1MiB"
consumer_byte_rate = 1000
request_rate = 0.5
"""


def read(tmp_path: Path, text: str):
    path = tmp_path / "security.toml"
    path.write_text(text)
    return read_settings(str(path))


def test_every_key_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, WHOLE.replace('"describe_configs"', '"All"'))
    root = str(tmp_path)
    assert found.tls == Tls(
        certificate=f"{root}/server.pem",
        key=f"{root}/keys/server.key",
        client_auth=ClientAuth.REQUESTED,
        client_ca="/etc/ca.pem",
    )
    assert found.mechanisms == ("SCRAM-SHA-512", "OAUTHBEARER")
    assert found.files[1:] == (*found.files[1:4], f"{root}/users.json", f"{root}/jwks.json")
    rules = found.token_rules
    assert (rules.issuer, rules.audiences, rules.clock_skew_s, rules.principal_claim) == (
        "https://issuer",
        ("one", "two"),
        5,
        "azp",
    )
    assert (found.session_s_max, found.authentication_s) == (3600, 10)
    limits = found.limits
    assert (limits.connections_max, limits.per_address_max, limits.rate, limits.rate_per_address) == (500, 20, 50, 2.5)
    assert limits.failure_delay_s == 0.2
    assert found.rates == {(None, Rate.PRODUCE): 1 << 20, (None, Rate.FETCH): 1000, (None, Rate.REQUESTS): 0.5}
    acl = found.acl
    assert acl is not None
    for topic, host, expected in (
        ("orders", "10.0.0.1", True),
        ("prices", "10.0.0.1", True),
        ("orders", "10.0.0.2", False),
        ("other", "10.0.0.1", False),
    ):
        assert acl.may(ALICE, host, Operation.READ, Kind.TOPIC, topic) is expected
    assert acl.may(ALICE, "10.0.0.1", Operation.READ, Kind.GROUP, "alice-1")
    assert not acl.may(ALICE, "10.0.0.1", Operation.CREATE, Kind.CLUSTER, CLUSTER_NAME)
    assert acl.may(Principal("admin"), "x", Operation.CREATE, Kind.CLUSTER, CLUSTER_NAME)
    assert found.authenticates


def test_an_empty_file_protects_nothing_and_has_kafkas_defaults(tmp_path: Path) -> None:
    found = read(tmp_path, "")
    assert (found.tls, found.mechanisms, found.acl, found.authenticates) == (None, (), None, False)
    assert (found.authentication_s, found.session_s_max, found.limits.failure_delay_s) == (30, None, 0.1)


@pytest.mark.parametrize("text", ["acl = []", "super.users = []", "allow.everyone.if.no.acl.found = false"])
def test_a_file_that_mentions_authorization_denies_by_default(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, text)
    assert found.acl is not None
    assert not found.acl.may(ALICE, "x", Operation.READ, Kind.TOPIC, "orders")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ssl.certificate.fil = 'x'", "key=ssl.certificate.fil near=ssl.certificate.file"),
        ("acls = 1", "key=acls near=acl"),
        ("ssl.key.file = 'x'", "key=ssl.certificate.file"),
        ("ssl.client.auth = 'none'", "key=ssl.certificate.file"),
        ("ssl.certificate.file = 'x'\nssl.client.auth = 'required'", "key=ssl.client.ca.file"),
        ("ssl.client.auth = 'maybe'", "expected=none requested required"),
        ("sasl.enabled.mechanisms = ['GSSAPI']", "expected=PLAIN SCRAM-SHA-256"),
        ("sasl.enabled.mechanisms = ['PLAIN', 'PLAIN']", "sasl.enabled.mechanisms"),
        ("sasl.enabled.mechanisms = 'PLAIN'", "key=sasl.credentials.file"),
        ("sasl.enabled.mechanisms = 'OAUTHBEARER'", "key=sasl.oauthbearer.jwks.file"),
        ("max.connections = 0", "key=max.connections"),
        ("max.connections = true", "key=max.connections"),
        ("max.connection.creation.rate = nan", "max.connection.creation.rate"),
        ("authentication.timeout.ms = 'soon'", "key=authentication.timeout.ms"),
        ("connections.max.reauth.ms = -1", "key=connections.max.reauth.ms"),
        ("super.users = ['alice']", "User:NAME"),
        ("super.users = [1]", "super.users"),
        ("acl = 1", "key=acl"),
        ("[[acl]]\nprincipal = 'User:a'\noperations = 'Read'", "names no resource"),
        ("[[acl]]\nprincipal = 'User:a'\noperations = 'Read'\ncluster = true", "another resource"),
        ("[[acl]]\nprincipal = 'User:a'\noperations = 'Look'\ntopic = 'x'", "operation='Look'"),
        ("[[acl]]\nprincipal = 'User:a'\ntopic = 'x'", "key=acl.operations"),
        ("[[acl]]\noperations = 'Read'\ntopic = 'x'", "key=acl.principal"),
        ("[[acl]]\nprincipal = 'User:a'\noperations = 'Read'\ntopics = 'x'", "key=acl.topics near=topic"),
        ("[[acl]]\nprincipal = 'User:a'\noperations = 'Read'\ntopic = 'x'\npermission = 'no'", "acl.permission"),
        ("[[quota]]\nprincipal = 'User:a'\nconsumer_byte_rate = '1x'", "quota.consumer_byte_rate"),
        ("[[quota]]\nconsumer_byte_rate = 1", "quota.principal"),
        ("this is = no [toml", "not TOML"),
        ("a = " + "[" * 9000, "not TOML"),
    ],
)
def test_a_mistake_is_refused_with_its_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
    assert f"file={tmp_path}" in str(caught.value) or "invalid principal" in str(caught.value)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_settings(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ((), ANONYMOUS),
        ((((("commonName"), "reader"),),), Principal("CN=reader")),
        (
            ((("countryName", "PL"),), (("organizationName", "A, B"),), (("commonName", " r=1 "),)),
            Principal("CN=\\ r=1\\ ,O=A\\, B,C=PL"),
        ),
        (((("commonName", "a"), ("userId", "b")),), Principal("CN=a+UID=b")),
        (((("commonName", '#<">;\\+'),),), Principal('CN=\\#\\<\\"\\>\\;\\\\\\+')),
    ],
)
def test_a_subject_becomes_a_name(subject, expected: Principal) -> None:
    assert certificate_principal({"subject": subject}) == expected
