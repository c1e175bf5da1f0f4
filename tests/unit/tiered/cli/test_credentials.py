"""The command that sets passwords, and the protection that an address of other machines needs."""

from __future__ import annotations

import io
import stat
from pathlib import Path

import pytest
from kafka_security import SASL, TLS, Place

from tiered.cli.main import invoke
from tiered.serve.security.credentials import read_credentials


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_users_are_set_listed_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    file = tmp_path / "users.json"
    for user, password in (("bob", "first"), ("alice", "second"), ("bob", "third")):
        type_in(monkeypatch, f"{password}\nanother line\n")
        assert invoke(["credentials", str(file), user]) == 0
    found = read_credentials(str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [found.check_password(*each) for each in (("bob", "third"), ("alice", "second"), ("bob", "first"))] == [
        True,
        True,
        False,
    ]
    capsys.readouterr()
    assert invoke(["credentials", str(file)]) == 0
    assert capsys.readouterr().out == "alice\nbob\n"
    assert invoke(["credentials", str(file), "bob", "--delete"]) == 0
    assert set(read_credentials(str(file)).users) == {"alice"}


@pytest.mark.parametrize("words", [["eve", "--delete"], [], ["eve"]])
def test_a_missing_file_user_or_password_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, words: list[str]
) -> None:
    type_in(monkeypatch, "\n")
    assert invoke(["credentials", str(tmp_path / "users.json"), *words]) == 2 - (words != ["eve"])
    assert "error: " in capsys.readouterr().err
    assert not (tmp_path / "users.json").exists()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([SASL], "clients are not protected by TLS"),
        ([TLS], "clients are not authenticated"),
        (["x = 1"], "unknown key"),
    ],
)
def test_an_address_of_other_machines_needs_tls_and_authentication(
    tmp_path: Path, capsys, parts: list[str], message: str
) -> None:
    place = Place.new(tmp_path / "secured")
    place.write(*parts)
    words = ["serve", "--remote", (tmp_path / "bucket").as_uri(), "--host", "0.0.0.0", "--port", "0"]
    assert invoke([*words, "--security", str(place.file)]) == 2
    assert message in capsys.readouterr().err
