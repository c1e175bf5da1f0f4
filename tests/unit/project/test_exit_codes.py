"""Every documented exit code is returned by a real command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tiered.cli.errors import Exit
from tiered.cli.main import invoke
from tiered.config.config import Config
from tiered.manager.manager import LogManager

DESIGNED = (0, 1, 2, 3, 4, 5, 6, 10, 130)
SHOWN: set[int] = set()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    (tmp_path / "bucket").mkdir()
    (tmp_path / "tiered.toml").write_text(
        f'[local]\ndirs = ["data", "second"]\n[remote]\nurl = "file://{tmp_path}/bucket"\n'
        '[defaults]\n"remote.storage.enable" = true\n'
    )
    assert invoke(["-q", "topic", "create", "orders", "-p", "2"]) == 0
    (tmp_path / "lines").write_text("".join(f"line {number}\n" for number in range(50)))
    assert invoke(["-q", "append", "orders", "lines"]) == 0
    return tmp_path


def ends_with(code: int, *words: str) -> None:
    assert invoke(list(words)) == code
    SHOWN.add(code)


def test_every_exit_code_is_returned_by_a_command(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ends_with(0, "status")
    ends_with(1, "topic", "describe", "ordres")
    ends_with(2, "statsu")
    ends_with(2, "-X", "retenton.ms=1d", "status")
    ends_with(3, "-X", "remote.log.delete.grace.ms=1m", "config", "lint")
    with LogManager.open(Config.load("tiered.toml"), now_ms=1_795_176_000_000):
        ends_with(5, "topic", "create", "bills")
    log = max((home / "data").glob("orders-*/*.log"), key=lambda path: path.stat().st_size)
    sound = log.read_bytes()
    log.write_bytes(sound[:80] + bytes([sound[80] ^ 1]) + sound[81:])
    ends_with(4, "verify")
    log.write_bytes(sound)
    (home / "second").rename(home / "away")
    ends_with(10, "log-dirs")
    (home / "away").rename(home / "second")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    ends_with(6, "remote", "ls", "s3://bucket", "--option", "endpoint_url=http://127.0.0.1:9")
    words = [sys.executable, "-m", "tiered", "run"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("running"):
                break
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        SHOWN.add(process.wait(60))
    assert set(DESIGNED) == SHOWN
    assert set(DESIGNED) | {Exit.TERMINATED} == set(Exit)
