"""Commands that serve the pages, run as processes: their addresses, and access to them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from headless import PHONE, Chromium
from page_audit import keyboard_problems, problems

pytestmark = pytest.mark.browser


def tiered(home: Path, *words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "tiered", "-C", str(home), *words], check=True, capture_output=True, timeout=60
    )


@contextmanager
def serving(home: Path, *words: str, until: str = "http://") -> Iterator[str]:
    """The output of a command up to the line with `until`. The command must stop cleanly at the end."""
    command = [sys.executable, "-m", "tiered", "-C", str(home), *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = [process.stderr.readline()]
        while said[-1] and until not in said[-1]:
            said.append(process.stderr.readline())
        yield "".join(said)
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tiered.toml").write_text(f'[remote]\nurl = "file://{tmp_path}/bucket"\n')
    (tmp_path / "bucket").mkdir()
    tiered(tmp_path, "topic", "create", "orders", "-p", "2", "-X", "remote.storage.enable=true")
    return tmp_path


def test_daemon_serves_its_pages_at_the_printed_address(chromium: Chromium, home: Path) -> None:
    with serving(home, "run", "--metrics", "127.0.0.1:0") as line:
        root = re.findall(r"pages at (http://127\.0\.0\.1:[0-9]+)/", line)[0]
        with chromium.open(root) as tab:
            assert tab.go("/topics/orders/1") == 200
            assert tab.text("h1") == "orders/1"
            tab.click("nav a[href='/']")
            tab.wait("location.pathname === '/' && document.querySelector('#topics caption')")
            assert "1 topic" in tab.text("#topics caption")
            assert (tab.said, tab.failed, tab.elsewhere()) == ([], [], [])


def test_daemon_on_another_address_serves_no_pages(chromium: Chromium, home: Path) -> None:
    with serving(home, "run", "--metrics", "0.0.0.0:0") as line:
        assert "pages at" not in line
        port = re.findall(r":([0-9]+)/metrics", line)[0]
        with chromium.open(f"http://127.0.0.1:{port}") as tab:
            assert tab.go("/") == 404
            assert "orders" not in tab.text()


def test_web_command_serves_pages_while_a_manager_runs(chromium: Chromium, home: Path) -> None:
    with (
        serving(home, "web", "--listen", "127.0.0.1:0") as line,
        chromium.open(re.findall(r"http://127\.0\.0\.1:[0-9]+", line)[0]) as tab,
    ):
        assert tab.go("/") == 200
        assert "1 topic" in tab.text("#topics caption")
        assert (tab.said, tab.failed, tab.elsewhere()) == ([], [], [])


def test_web_command_on_another_address_asks_once_for_a_token(chromium: Chromium, home: Path) -> None:
    with serving(home, "web", "--listen", "0.0.0.0:0", until="token: ") as lines:
        port = re.findall(r"http://0\.0\.0\.0:([0-9]+)", lines)[0]
        token = re.findall(r"token: (\S+)", lines)[0]
        with chromium.open(f"http://127.0.0.1:{port}", PHONE) as tab:
            for address in ("/", "/topics/orders", "/nothing"):
                assert tab.go(address) == 401
                assert "orders" not in tab.text()
            assert problems(tab) == []
            for given, words in [("not the token at all", "Wrong token."), (token, "1 topic")]:
                assert keyboard_problems(tab) == []
                tab.js("document.getElementById('token').focus()")
                tab.type(given)
                tab.press("Enter")
                tab.wait("(words) => document.body?.textContent.includes(words)", words)
            assert tab.go("/topics/orders") == 200
            assert token not in tab.js("document.documentElement.outerHTML + document.cookie")
            assert [each for each in tab.said if "401" not in each] == []
            with chromium.open(f"http://127.0.0.1:{port}") as other:
                assert other.go("/") == 401, "another browser must need the token too"
