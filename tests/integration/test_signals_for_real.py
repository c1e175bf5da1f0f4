"""Signals to the real `tiered run` in every stage from its start to its end: one table, one process for each row.

A configuration that is a pipe blocks the start until it is written. A server without answers blocks it at the first
request to the bucket.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from between_server import BetweenServer, Request
from real_daemon import FOR_EVER, NOW, PLAIN_ENCODING, Daemon, Node

from tiered.demo.s3_endpoint import S3Endpoint

pytestmark = pytest.mark.server

SLOW_IMPORTS = """
import os, sys, time
from tiered.cli.main import run
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "tiered.service.observations":
            print("importing", flush=True)
            while not os.path.exists({go!r}):
                time.sleep(0.05)
sys.meta_path.insert(0, Slow())
run(sys.argv[1:])
"""
ONCE = ("run", "--once")
SOON_S = 20.0  # a hang would last a minute
# The daemon with a shutdown that waits for the store longer than `SOON_S`.
PATIENT = """
import sys
from tiered.manager import manager
manager.DRAIN_S = 60.0
from tiered.cli.main import run
run(sys.argv[1:])
"""


class Stage:
    """A node whose bucket can be made to hang."""

    def __init__(self, home: Path, endpoint: S3Endpoint) -> None:
        self.hangs, self.asked = threading.Event(), threading.Event()
        self.holds_uploads, self.sent = threading.Event(), threading.Event()
        self._let_go = threading.Event()
        self.server = BetweenServer(endpoint.url, self._answer)
        self.server.__enter__()
        home.mkdir()
        self.go = home / "go"
        self.node = Node(home, self.server.url)

    def _answer(self, request: Request) -> tuple[int, str] | None:
        # Only data objects: the shutdown does not wait for the probe of the store's clock.
        is_upload = request.verb in ("PUT", "POST") and "/data/" in request.path
        if self.hangs.is_set():
            self.asked.set()
        elif self.holds_uploads.is_set() and is_upload:
            self.sent.set()
        else:
            return None
        self._let_go.wait(120)
        return 503, "SlowDown"

    def close(self) -> None:
        self._let_go.set()
        self.server.__exit__()

    # -- stages of a start; each returns the process in that stage

    def while_modules_are_imported(self, words: tuple[str, ...]) -> Daemon:
        program = ("-c", SLOW_IMPORTS.format(go=str(self.go)))
        daemon = Daemon(self.node, words, program=program, is_served=False)
        daemon.wait_for(lambda: True if "importing" in daemon.words else None, "it imports")
        return daemon

    def while_settings_are_read(self, words: tuple[str, ...]) -> Daemon:
        self.node.config_path.rename(self.node.home / "settings")
        os.mkfifo(self.node.config_path)
        daemon = Daemon(self.node, words, program=PLAIN_ENCODING, is_served=False)
        daemon.wait_for(lambda: self._pipe(), "it reads its settings")
        return daemon

    def put_settings_back(self) -> None:
        if (self.node.home / "settings").exists():
            os.close(self.pipe)
            (self.node.home / "settings").rename(self.node.config_path)

    def _pipe(self) -> bool | None:
        try:
            self.pipe = os.open(self.node.config_path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # ENXIO: no process reads it yet
            return None
        return True

    def while_the_bucket_hangs(self, words: tuple[str, ...]) -> Daemon:
        self.hangs.set()
        daemon = Daemon(self.node, words, program=PLAIN_ENCODING, is_served=False)
        daemon.wait_for(lambda: True if self.asked.is_set() else None, "it asks the bucket")
        return daemon

    def at_work(self, words: tuple[str, ...]) -> Daemon:
        return Daemon(self.node, words, program=PLAIN_ENCODING)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with S3Endpoint() as running:
        running.create_bucket("fault-days")
        yield running


@pytest.fixture
def stage(tmp_path: Path, endpoint: S3Endpoint) -> Iterator[Stage]:
    found = Stage(tmp_path / "home", endpoint)
    found.node.fill("orders")
    with found.node.manager() as manager:
        manager.topics.create("all", 3, {"remote.storage.enable": "true"}, now_ms=NOW)  # acquired in parallel
    yield found
    found.close()


TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
ENDS = [
    (Stage.while_settings_are_read, FOR_EVER, TERM, 0),
    (Stage.while_modules_are_imported, ONCE, INT, 130),
    (Stage.while_the_bucket_hangs, FOR_EVER, TERM, 0),
    (Stage.while_the_bucket_hangs, ONCE, TERM, 143),
    (Stage.at_work, FOR_EVER, INT, 130),
]


@pytest.mark.parametrize(("reach", "words", "number", "code"), ENDS, ids=lambda each: getattr(each, "__name__", None))
def test_signal_ends_the_daemon_cleanly_in_every_stage(stage: Stage, reach, words, number: int, code: int) -> None:
    with reach(stage, words) as daemon:
        begun = time.monotonic()
        assert daemon.end(number) == code
        assert time.monotonic() - begun < SOON_S
        assert "Traceback" not in daemon.words
        assert "error:" not in daemon.words, daemon.words
    stage.put_settings_back()
    stage.hangs.clear()
    with stage.node.manager() as manager:
        stage.node.check_read(manager)


def test_sighup_during_the_start_is_applied_after_loading(stage: Stage) -> None:
    with stage.while_modules_are_imported(FOR_EVER) as daemon:
        daemon.process.send_signal(HUP)  # pending before the file exists, so the import sees it first
        stage.go.touch()
        daemon.wait_for(lambda: True if "the configuration was read again" in daemon.words else None, "it was heard")
        assert daemon.end() == 0


def _upload_hangs(stage: Stage, daemon: Daemon) -> None:
    stage.holds_uploads.set()
    stage.node.configure("orders")
    daemon.wait_for(lambda: True if stage.sent.is_set() else None, "an upload hangs")


def _is_unserved(daemon: Daemon) -> bool | None:
    """Whether the daemon has received a signal: it closes its metrics before it waits for the store."""
    try:
        daemon.ask("metrics")
    except OSError:
        return True
    return None


def test_shutdown_waits_for_a_hanging_store_for_the_configured_time(stage: Stage) -> None:
    with Daemon(stage.node) as daemon:
        _upload_hangs(stage, daemon)
        begun = time.monotonic()
        assert daemon.end() == 0
        assert 2.0 <= time.monotonic() - begun < 2.0 + SOON_S
        assert "closing before the store replied" in daemon.words, daemon.words
        assert "Traceback" not in daemon.words
    stage.holds_uploads.clear()
    with stage.node.manager() as manager:
        stage.node.check_read(manager)


@pytest.mark.parametrize(("number", "code"), [(TERM, 143), (INT, 130)])
def test_second_signal_ends_the_daemon_at_once(stage: Stage, number: int, code: int) -> None:
    with Daemon(stage.node, program=("-c", PATIENT)) as daemon:
        _upload_hangs(stage, daemon)
        daemon.process.send_signal(number)
        daemon.wait_for(lambda: _is_unserved(daemon), "it ends")  # two pending signals of a kind would merge into one
        time.sleep(0.5)  # it waits for the upload now
        assert daemon.process.poll() is None
        begun = time.monotonic()
        assert daemon.end(number) == code
        assert time.monotonic() - begun < SOON_S
        assert "Traceback" not in daemon.words
    stage.holds_uploads.clear()
    with stage.node.manager() as manager:
        stage.node.check_read(manager)
