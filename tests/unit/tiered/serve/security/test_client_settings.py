"""The properties file of a client: its keys, what they need, and that no secret leaves it."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from kafka_security import Authority

from local.errors import InvalidRequest, NotFound
from tiered.serve.security.client_settings import ClientSettings, read_client_settings

SECRET = "never shown"
SCRAM = f"sasl.mechanism=SCRAM-SHA-512\nsasl.username=replica\nsasl.password={SECRET}\n"


def written(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "client.properties"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_an_empty_file_is_plain_text_without_authentication(tmp_path: Path) -> None:
    assert read_client_settings(written(tmp_path, "")) == ClientSettings()
    assert read_client_settings(written(tmp_path, "# one\n\nsecurity.protocol = plaintext\n")) == ClientSettings()


def test_a_user_is_read_as_it_stands(tmp_path: Path) -> None:
    text = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username= a b \nsasl.password=x=y\\z#\n"
    found = read_client_settings(written(tmp_path, text, 0o640))
    assert (found.context, found.mechanism, found.user, found.password) == (None, "PLAIN", "a b", "x=y\\z#")


def test_files_of_tls_are_relative_to_the_file(tmp_path: Path) -> None:
    authority = Authority.new(tmp_path)
    authority.issue("client")
    text = "ssl.ca.location=ca.pem\nssl.certificate.location=client.pem\nssl.key.location=client.key\n"
    found = read_client_settings(written(tmp_path, f"security.protocol=SSL\n{text}"))
    assert found.context is not None
    assert (found.context.verify_mode, found.context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(found.context.get_ca_certs()) == 1
    assert read_client_settings(written(tmp_path, f"security.protocol=SASL_SSL\n{text}{SCRAM}")).user == "replica"


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    found = read_client_settings(written(tmp_path, f"security.protocol=SASL_PLAINTEXT\n{SCRAM}"))
    assert found.password == SECRET
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("security.protocol=SASL", ["security.protocol", "SASL_SSL"]),
        ("sasl.mechanisms=PLAIN", ["unknown key", "sasl.mechanisms", "near=sasl.mechanism"]),
        (f"{SECRET}", ["line=1", "NAME=VALUE"]),
        (f"security.protocol=SASL_SSL\n{SCRAM}sasl.password={SECRET}", ["twice", "sasl.password", "line=5"]),
        (SCRAM, ["PLAINTEXT does not use", "sasl.mechanism", "SASL_SSL"]),
        (f"security.protocol=SSL\n{SCRAM}", ["SSL does not use", "sasl.mechanism"]),
        ("security.protocol=PLAINTEXT\nssl.ca.location=x", ["does not use", "ssl.ca.location"]),
        ("security.protocol=SASL_SSL\nsasl.username=a\nsasl.mechanism=PLAIN", ["missing", "sasl.password"]),
        ("security.protocol=SASL_SSL\nsasl.username=a\nsasl.password=", ["missing", "sasl.mechanism"]),
        (f"security.protocol=SASL_SSL\n{SCRAM.replace('SCRAM-SHA-512', 'OAUTHBEARER')}", ["SCRAM-SHA-256"]),
        (f"security.protocol=SASL_SSL\nssl.ca.location=none.pem\n{SCRAM}", ["PEM", "none.pem", "no such file"]),
        ("security.protocol=SSL\nssl.key.location=x", ["missing", "ssl.certificate.location"]),
        (f"security.protocol=SASL_SSL\n{SCRAM.rstrip()}\0x", ["NUL"]),
        ("a" * 70_000, ["too large"]),
    ],
)
def test_a_wrong_file_is_refused_with_the_key_and_without_a_secret(text: str, words: list[str], tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidRequest) as caught:
        read_client_settings(path)
    message = str(caught.value)
    assert all(each in message for each in words), message
    assert path in message
    assert SECRET not in message
    assert "\n" not in message


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o666])
def test_a_file_that_others_can_read_is_refused(mode: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="run chmod 600"):
        read_client_settings(written(tmp_path, "", mode))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="none"):
        read_client_settings(str(tmp_path / "none"))
