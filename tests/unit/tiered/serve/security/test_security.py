"""The settings in force: what a changed file changes, and what it cannot."""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path

import pytest
from kafka_security import SASL, TLS, Clock, Place

from local.errors import InvalidRequest, NotFound
from tiered.serve.messages.base import Api
from tiered.serve.security import security as module
from tiered.serve.security.acl import Kind, Operation
from tiered.serve.security.principals import LOCAL, Principal
from tiered.serve.security.security import Security

ALICE = Principal("alice")
ACL = """
[[acl]]
principal = "User:alice"
operations = "Read"
topic = "{}"
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.new(tmp_path / "secured")


def opened(place: Place, *parts: str, wall: Clock | None = None) -> Security:
    place.write(*parts)
    return Security(str(place.file), Clock(), wall or Clock())


def reads(security: Security, topic: str) -> bool:
    return security.may(ALICE, "10.0.0.1", Operation.READ, Kind.TOPIC, topic)


def change(place: Place, *parts: str) -> None:
    """Replace the file by one with another inode, so that its change is seen in any case."""
    newer = place.folder / "newer"
    newer.write_text("\n".join(parts))
    os.replace(newer, place.file)


def test_changed_rules_apply_at_once_and_a_broken_file_keeps_the_old_ones(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    security = opened(place, ACL.format("orders"))
    assert (reads(security, "orders"), reads(security, "prices")) == (True, False)
    change(place, "[[acl")
    for _ in range(3):
        security.refresh()
    assert (reads(security, "orders"), reads(security, "prices")) == (True, False)
    assert len([each for each in caplog.messages if "old ones stay in force" in each]) == 1
    change(place, ACL.format("prices"))
    security.refresh()
    assert (reads(security, "orders"), reads(security, "prices")) == (False, True)


@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [
        ([SASL, TLS], [SASL], "TLS"),
        ([SASL, TLS], [TLS], "authentication"),
        ([ACL.format("orders")], [""], "ACLs"),
    ],
)
def test_a_changed_file_removes_no_protection(
    place: Place, before: list[str], after: list[str], missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    security = opened(place, *before)
    old = security.settings
    change(place, *after)
    security.refresh()
    assert security.settings is old
    assert f"missing={missing}" in caplog.text


def test_a_changed_file_that_it_names_is_read_again(place: Place) -> None:
    security = opened(place, SASL, TLS)
    context = security.context
    security.refresh()
    assert security.context is context
    os.utime(place.folder / "users.json", ns=(1, 1))
    security.refresh()
    assert security.context is not context


def test_a_reload_reads_all_files_in_its_thread(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RELOAD_S", 1000.0)
    read, loaded = threading.Event(), module._load
    security = opened(place, SASL, TLS)
    monkeypatch.setattr(module, "_load", lambda settings: (read.set(), loaded(settings))[1])
    security.start()
    security.reload()
    assert read.wait(60)
    security.close()
    assert not security._thread.is_alive()


def test_unusable_files_end_the_start(place: Place) -> None:
    (place.folder / "server.key").write_text("no key")
    with pytest.raises(InvalidRequest, match="certificate"):
        opened(place, TLS)
    (place.folder / "users.json").unlink()
    with pytest.raises(NotFound, match="credentials"):
        opened(place, SASL)


def test_credentials_that_others_may_read_are_reported(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    path = place.folder / "users.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    opened(place, SASL)
    assert not caplog.messages
    path.chmod(0o640)
    opened(place, SASL)
    assert "mode=640 expected=600" in caplog.text


@pytest.mark.parametrize(
    ("parts", "is_protected"),
    [([SASL, TLS], True), ([TLS], False), ([SASL], False),
     (['ssl.client.auth = "required"\nssl.client.ca.file = "ca.pem"', TLS], True),
     (['ssl.client.auth = "requested"\nssl.client.ca.file = "ca.pem"', TLS], False)],
)  # fmt: skip
def test_protection_is_tls_and_authentication(place: Place, parts: list[str], is_protected: bool) -> None:
    assert opened(place, *parts).is_protected is is_protected


def test_a_session_ends_with_the_token_or_the_setting(place: Place) -> None:
    wall = Clock()
    security = opened(place, wall=wall)
    assert security.lifetime_s(None) is None
    assert security.lifetime_s(wall.now_s + 50) == 50
    assert security.lifetime_s(wall.now_s - 50) == 0
    change(place, "connections.max.reauth.ms = 20000")
    security.refresh()
    assert [security.lifetime_s(each) for each in (None, wall.now_s + 50, wall.now_s + 5)] == [20, 20, 5]


def test_refusals_of_a_principal_are_logged_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    security = opened(place, ACL.format("orders"))
    for at in range(9):
        assert not reads(security, f"topic\n{at}")
    assert not security.may_some(ALICE, "10.0.0.1", Operation.WRITE, Kind.TOPIC)
    assert caplog.messages == [
        "access denied: principal='User:alice' address=10.0.0.1 operation=READ resource=topic name='topic\\n0' times=1",
        "access denied: principal='User:alice' address=10.0.0.1 operation=WRITE resource=topic name=any times=1",
    ]
    assert security.may(LOCAL, "", Operation.WRITE, Kind.TOPIC, "orders")


def test_requests_are_charged_by_their_api(place: Place) -> None:
    quota = '[[quota]]\nprincipal = "User:alice"\nproducer_byte_rate = 10\nconsumer_byte_rate = 20\nrequest_rate = 1'
    security = opened(place, quota)
    assert security.charge(ALICE, Api.PRODUCE, 110, 10**6) == 1.0
    assert security.charge(ALICE, Api.FETCH, 10**6, 240) == 2.0
    assert [security.charge(ALICE, Api.METADATA, 10**6, 10**6) for _ in range(9)] == [0.0] * 8 + [1.0]
    assert security.charge(ALICE, Api.FETCH, 0, 10**6) == 60.0


def test_levels_of_logs_name_no_secret(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        opened(place, SASL, TLS)
    assert "secret" not in caplog.text
