"""Stored credentials: their file, its mode, and passwords that are checked against them."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from kafka_security import PASSWORDS, credentials

from local.errors import InvalidRequest, NotFound
from tiered.serve.security import credentials as module
from tiered.serve.security.credentials import Credentials, read_credentials, write_credentials


def test_a_file_has_mode_0600_and_no_password(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text("an older file that others may read")
    path.chmod(0o644)
    mask = os.umask(0o022)
    os.umask(mask)
    write_credentials(str(path), credentials())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.umask(mask) == mask
    assert not any(password in path.read_text() for password in PASSWORDS.values())
    assert read_credentials(str(path)) == credentials()


@pytest.mark.parametrize(
    ("user", "password", "is_valid"),
    [("alice", "alice-secret", True), ("alice", "bob, the =secret", False), ("alice", "", False), ("eve", "x", False)],
)
def test_a_password_is_checked_with_one_derivation(
    user: str, password: str, is_valid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived = []

    def counted(*given: object) -> object:
        derived.append(given[1:3])
        return derive(*given)  # type: ignore[arg-type]

    users, derive = credentials(), module.derive
    monkeypatch.setattr(module, "derive", counted)
    assert users.check_password(user, password) is is_valid
    assert len(derived) == 1


def test_a_user_is_replaced_and_deleted() -> None:
    changed = credentials().with_user("alice", "new", iterations=4096)
    assert changed.check_password("alice", "new")
    assert not changed.check_password("alice", "alice-secret")
    without = changed.without_user("alice")
    assert not without.check_password("alice", "new")
    assert without.secret == credentials().secret
    with pytest.raises(InvalidRequest, match="no such user"):
        without.without_user("alice")


@pytest.mark.parametrize(
    ("user", "password", "iterations"),
    [("", "x", 4096), ("a\nb", "x", 4096), ("a" * 2000, "x", 4096), ("a", "", 4096), ("a", "x\0y", 4096),
     ("a", "x" * 2000, 4096), ("a", "x", 4095), ("a", "x", 16385)],
)  # fmt: skip
def test_unusable_names_passwords_and_iterations_are_refused(user: str, password: str, iterations: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Credentials().with_user(user, password, iterations=iterations)
    assert password == "x" or not password or password not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.update(version=2),
        lambda body: body.pop("secret"),
        lambda body: body.update(secret="%%"),
        lambda body: body["users"]["alice"]["SCRAM-SHA-256"].update(iterations=1),
        lambda body: body["users"]["alice"]["SCRAM-SHA-256"].update(iterations="4096"),
        lambda body: body["users"]["alice"]["SCRAM-SHA-512"].update(stored_key="c2hvcnQ="),
        lambda body: body["users"].update(alice=[]),
        lambda body: body.update(users=[1]),
    ],
)
def test_a_file_of_another_format_is_refused_without_its_content(tmp_path: Path, change) -> None:
    path = tmp_path / "users.json"
    write_credentials(str(path), credentials())
    body = json.loads(path.read_text())
    secret = body["secret"]
    change(body)
    path.write_text(json.dumps(body))
    with pytest.raises(InvalidRequest, match="another format") as caught:
        read_credentials(str(path))
    assert secret not in str(caught.value)


def test_a_missing_file_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="tiered credentials FILE USER"):
        read_credentials(str(tmp_path / "none"))


def test_no_text_of_an_object_has_a_key() -> None:
    found = credentials()
    assert "users" not in repr(found)
    assert "salt" not in repr(found.users["alice"]["SCRAM-SHA-256"])
