"""The commands that serve the pages, as processes: where they say they are, and to whom."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from headless import Chromium

pytestmark = pytest.mark.browser


def tiered(home: Path, *words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "tiered", "-C", str(home), *words], check=True, capture_output=True, timeout=60
    )


@contextmanager
def serving(home: Path, *words: str) -> Iterator[str]:
    """The line in which a command says where its pages are; it ends well when it is told to."""
    command = [sys.executable, "-m", "tiered", "-C", str(home), *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        yield next(line for line in process.stderr if "http://" in line)
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


def test_the_daemon_has_its_pages_where_it_says(chromium: Chromium, home: Path) -> None:
    with serving(home, "run", "--metrics", "127.0.0.1:0") as line:
        root = re.findall(r"pages at (http://127\.0\.0\.1:[0-9]+)/", line)[0]
        with chromium.open(root) as tab:
            assert tab.go("/topics/orders/1") == 200
            assert tab.text("h1") == "orders/1"
            tab.click("nav a[href='/']")
            tab.wait("location.pathname === '/' && document.querySelector('caption')")
            assert "1 topic" in tab.text("caption")
            assert (tab.said, tab.failed, tab.elsewhere()) == ([], [], [])


def test_elsewhere_than_on_loopback_the_daemon_has_no_pages(chromium: Chromium, home: Path) -> None:
    with serving(home, "run", "--metrics", "0.0.0.0:0") as line:
        assert "pages at" not in line
        port = re.findall(r":([0-9]+)/metrics", line)[0]
        with chromium.open(f"http://127.0.0.1:{port}") as tab:
            assert tab.go("/") == 404
            assert "orders" not in tab.text()
