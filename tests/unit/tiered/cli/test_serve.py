"""``tiered serve``: arguments that it refuses before it listens."""

from __future__ import annotations

import socket

import pytest

from tiered.cli.main import invoke


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--host 0.0.0.0", 2, "--without-authentication"),
        ("--host 192.0.2.1 --without-authentication", 2, "cannot listen for Kafka clients: host=192.0.2.1"),
        ("--advertise replica", 2, "invalid --advertise"),
        ("--advertise :9092", 2, "invalid --advertise"),
        ("--advertise replica:0", 2, "invalid --advertise"),
        ("--advertise replica:65536", 2, "invalid --advertise"),
        ("--advertise replica:0000655360", 2, "invalid --advertise"),
        ("--port 65536", 2, "65535"),
        ("--refresh never", 2, "invalid --refresh"),
        ("--cache-dir c --cache-size much", 2, "invalid --cache-size"),
        ("--port {taken}", 2, "address already in use"),
    ],
)
def test_arguments_that_cannot_be_served_are_refused(
    words: str, code: int, message: str, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bucket").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = words.format(taken=taken.getsockname()[1]).split()
        assert invoke(["serve", "--remote", (tmp_path / "bucket").as_uri(), *options]) == code
    assert message in capsys.readouterr().err


def test_a_bucket_that_is_missing_ends_the_start(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["serve", "--remote", (tmp_path / "none").as_uri(), "--port", "0"]) == 1
    assert "none" in capsys.readouterr().err


def test_the_bucket_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["serve"]) == 2
    assert "--remote" in capsys.readouterr().err
