"""Messages to systemd over a notify socket, and a service that starts, reloads its settings and stops."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.names import TopicPartition
from tiered.cli.main import invoke
from tiered.cli.node import run as running
from tiered.cli.session import stop_signals
from tiered.service.worker import Heartbeat, ServiceManager, Worker

DAY_MS = 86_400_000


@pytest.fixture
def notify(tmp_path: Path) -> Iterator[socket.socket]:
    """The receiving end of the notify socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "notify"))
        end.settimeout(60)
        yield end


def heard(notify: socket.socket) -> list[str]:
    return notify.recv(4096).decode().splitlines()


def test_each_notification_is_one_datagram_of_lines(notify: socket.socket) -> None:
    service = ServiceManager.of({"NOTIFY_SOCKET": notify.getsockname()})
    service.ready("12 partitions\nREADY=0")
    assert heard(notify) == ["READY=1", "STATUS=12 partitions READY=0"]
    service.reloading()
    word, since = heard(notify)
    assert (word, since.split("=")[0]) == ("RELOADING=1", "MONOTONIC_USEC")
    service.stopping()
    assert heard(notify)[0] == "STOPPING=1"
    service.alive()
    assert heard(notify) == ["WATCHDOG=1"]


def test_abstract_socket_name_is_supported() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(f"\0tiered-test-{os.getpid()}")
        end.settimeout(60)
        ServiceManager.of({"NOTIFY_SOCKET": f"@tiered-test-{os.getpid()}"}).ready("x")
        assert heard(end)[0] == "READY=1"


@pytest.mark.parametrize(
    "environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "host:1"}, {"NOTIFY_SOCKET": "/no/such"}]
)
def test_missing_or_invalid_notify_socket_is_ignored(environ: dict[str, str]) -> None:
    ServiceManager.of(environ).ready("x")


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [({"WATCHDOG_USEC": "30000000"}, 30.0), ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
     ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None), ({"WATCHDOG_USEC": "0"}, None),
     ({"WATCHDOG_USEC": "soon"}, None), ({}, None)],
)  # fmt: skip
def test_watchdog_interval_is_read_from_the_environment(environ: dict[str, str], seconds: float | None) -> None:
    assert ServiceManager.of(environ, pid=7).watchdog_s == seconds


def test_heartbeat_is_sent_while_work_progresses_or_the_worker_sleeps(notify: socket.socket) -> None:
    now, seen = 1000.0, [1000.0]
    service = ServiceManager(notify.getsockname(), 30.0)
    heart = Heartbeat(service, lambda: seen[0], clock=lambda: now, silence_s=900)
    assert heart.beat()
    seen[0] = 99.0
    assert not heart.beat(), "a hanging loop must send no heartbeat, so that systemd restarts it"
    seen[0] = float("inf")
    assert heart.beat(), "a worker that sleeps on purpose must send a heartbeat"
    assert [heard(notify), heard(notify)] == [["WATCHDOG=1"]] * 2


def test_repeated_sighup_wakes_once_and_requests_one_reload() -> None:
    with stop_signals(reloads=True) as stop:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        stop.wait(60)
        assert stop.take_reload()
        assert not stop.take_reload()
        stop.wait(0)
        assert select.select([stop._wake_fd], [], [], 0)[0] == [], "no further wake-up may be pending"
        assert not stop.is_set


@pytest.mark.server
def test_service_reports_ready_reload_and_stop_in_order(
    tmp_path: Path, notify: socket.socket, monkeypatch, capfd
) -> None:
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    home = tmp_path / "home"
    assert invoke(["init", str(home)]) == 0
    assert invoke(["-C", str(home), "topic", "create", "orders", "-p", "2"]) == 0
    environ = {**os.environ, "NOTIFY_SOCKET": notify.getsockname(), "WATCHDOG_USEC": "200000"}
    words = [sys.executable, "-m", "tiered", "-C", str(home), "--log-format", "json", "run", "--interval", "1h"]
    with subprocess.Popen(words, env=environ, stderr=subprocess.PIPE, text=True) as service:
        assert heard(notify) == ["READY=1", "STATUS=2 partitions"]
        assert heard(notify) == ["WATCHDOG=1"]
        file = home / "tiered.toml"
        file.write_text(file.read_text() + '[topics."orders"]\n"retention.ms" = "3d"\n')
        service.send_signal(signal.SIGHUP)
        said: list[str] = []
        while "READY=1" not in said:
            said += heard(notify)
        assert "RELOADING=1" in said
        service.send_signal(signal.SIGTERM)
        assert service.wait(timeout=60) == 0
        assert service.stderr is not None
        log = service.stderr.read()
    assert '"message": "the configuration was read again", "topics": "orders"' in log


def test_settings_changed_during_the_start_are_applied(tmp_path: Path, monkeypatch) -> None:
    """A start may take minutes. The settings loaded at its beginning may differ from the file at its end."""
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    home = tmp_path / "home"
    assert invoke(["init", str(home)]) == 0
    assert invoke(["-C", str(home), "topic", "create", "orders"]) == 0
    file, started, work = home / "tiered.toml", running._started, Worker.round
    was_ns, taken = file.stat().st_mtime_ns, []

    def changed_meanwhile(*words, **more) -> Worker:
        worker = started(*words, **more)
        file.write_text(file.read_text() + '[topics."orders"]\n"retention.ms" = "3d"\n')
        os.utime(file, ns=(was_ns, was_ns + 10**9))
        return worker

    def round_(worker: Worker, *words, **more) -> bool:
        taken.append(worker.manager.partitions.find(TopicPartition("orders", 0)).rules.retention_ms)
        if len(taken) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return work(worker, *words, **more)

    monkeypatch.setattr(running, "_started", changed_meanwhile)
    monkeypatch.setattr(Worker, "round", round_)
    assert invoke(["-C", str(home), "run", "--interval", "1ms"]) == 0
    assert taken == [7 * DAY_MS, 3 * DAY_MS, 3 * DAY_MS]
