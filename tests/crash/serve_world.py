"""A race of Kafka clients against one node: the processes of the project, and what all threads of a race share.

The node is `tiered run --kafka` on an S3 server of loopback. Replicas are `tiered serve` of its bucket.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from real_daemon import Node

from tiered.demo.s3_endpoint import S3Endpoint

LIMIT_S = 180.0
BUCKET = "served"
PARTITIONS = 2
RETENTION_MS = 20_000  # of the topic `short`
BROKEN_MAX = 5  # of one kind that are printed
HELD = 5  # exit code of a node while a command has the directory
PROGRAM = ("-m", "tiered")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Race:
    """What the threads of a race share. `wrong`: the broken promises."""

    seed: int
    seconds: float
    stop: threading.Event = field(default_factory=threading.Event)
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def random(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def broken(self, text: str) -> None:
        with self.lock:
            kind = text[:40]
            if sum(each.startswith(kind) for each in self.wrong) < BROKEN_MAX:
                self.wrong.append(text)

    def count(self, name: str, number: int = 1) -> None:
        with self.lock:
            self.counts[name] += number

    def pause(self, seconds: float) -> bool:
        """Whether the race goes on after a pause."""
        return not self.stop.wait(seconds)


class Worker:
    """A thread of a race. An exception of its work is a broken promise."""

    def __init__(self, race: Race, name: str, work: Callable[[], None]) -> None:
        self._race, self.name, self._work = race, name, work
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def end(self, limit_s: float = LIMIT_S) -> None:
        self._thread.join(limit_s)
        if self._thread.is_alive():
            self._race.broken(f"{self.name} does not end within {limit_s:.0f} s")

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - the race reports it
            self._race.broken(f"{self.name}: {type(error).__name__} {error}")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}


class Process:
    """A command of the project that serves Kafka clients at one port for its whole life."""

    def __init__(
        self, race: Race, log: Path, words: Callable[[int], Sequence[str]], program: Sequence[str] = PROGRAM
    ) -> None:
        self._race, self.log, self._words, self._program, self.port = race, log, words, program, 0
        self._process: subprocess.Popen[bytes] | None = None
        self.down_s: list[tuple[float, float]] = []  # from and to: it does not serve
        self._down_since_s: float | None = time.monotonic()
        self.rss_max_mb = self.rss_mb = 0.0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, again while a command that runs alone has the directory. Return when it serves."""
        due_s = time.monotonic() + LIMIT_S
        while True:
            assert time.monotonic() < due_s, f"it does not start: {self.log.read_text()[-2000:]}"
            at = self.log.stat().st_size if self.log.exists() else 0
            with self.log.open("ab") as out:
                words = [sys.executable, *self._program, *self._words(self.port)]
                self._process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment(), start_new_session=True
                )
            while self._process.poll() is None:
                found = re.search(r"Kafka clients at 127\.0\.0\.1:(\d+)", self.log.read_text()[at:])
                if found is not None:
                    self.port = int(found[1])
                    if self._down_since_s is not None:
                        self.down_s.append((self._down_since_s, time.monotonic()))
                    self._down_since_s = None
                    return
                assert time.monotonic() < due_s, f"it does not start: {self.log.read_text()[-2000:]}"
                time.sleep(0.02)
            if self._process.returncode != HELD:
                self._race.broken(f"a start failed ({self._process.returncode}): {self.log.read_text()[at:][-2000:]}")
            self._race.count("starts repeated")
            time.sleep(0.2)

    def end(self, number: int) -> int:
        assert self._process is not None
        if self._down_since_s is None:
            self._down_since_s = time.monotonic()
        self._process.send_signal(number)
        return self._process.wait(LIMIT_S)

    def was_up(self, since_s: float) -> bool:
        """Whether it served without a break since that time."""
        return self._down_since_s is None and all(to_s < since_s for _, to_s in self.down_s)

    def measure(self) -> None:
        with suppress(OSError, AttributeError, IndexError, ValueError):
            assert self._process is not None
            status = Path(f"/proc/{self._process.pid}/status").read_text()
            self.rss_mb = int(status.partition("VmRSS:")[2].split()[0]) / 1024
            self.rss_max_mb = max(self.rss_max_mb, self.rss_mb)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class World:
    """A node with its bucket and two replicas. A context manager."""

    def __init__(
        self, race: Race, home: Path, endpoint: S3Endpoint, *, segment: str, program: Sequence[str] = PROGRAM
    ) -> None:
        """`program` runs the node, and nothing else."""
        (home / "node").mkdir(parents=True)
        self.race, self.endpoint, self.bucket = race, endpoint, f"{BUCKET}-{race.seed}"
        endpoint.create_bucket(self.bucket)
        self.home = Node(home / "node", endpoint.url, self.bucket)
        self.home.defaults = {
            "segment.bytes": segment,
            "append.batch.bytes": "16KiB",
            "retention.ms": "-1",
            "local.retention.ms": "5s",
            "remote.storage.enable": "true",
            "remote.log.delete.grace.ms": "5s",
            "file.delete.delay.ms": "1s",
            "offsets.topic.segment.bytes": "64KiB",
            "group.initial.rebalance.delay.ms": "200",
        }
        self.home.configure()
        self.node = Process(race, home / "node.log", self._run, program)
        self.replicas = [Process(race, home / f"replica-{number}.log", self._serve) for number in range(2)]

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/p"

    def _run(self, port: int) -> Sequence[str]:
        return ("-C", str(self.home.home), "run", "--interval", "200ms", "--metrics", ":0", "--kafka", f":{port}")

    def _serve(self, port: int) -> Sequence[str]:
        options = self.endpoint.options()
        words = ["serve", "--remote", self.url, "--port", str(port), "--refresh", "500ms"]
        for name in ("endpoint_url", "key", "secret"):
            words += ["--option", f"{name}={options[name]}"]
        return (
            *words,
            "--option",
            'client_kwargs={"region_name": "us-east-1"}',
            "--option",
            'config_kwargs={"proxies": {}}',
        )

    def health(self) -> tuple[int, str]:
        """The last metrics address of the node's log, asked for its health."""
        url = re.findall(r"metrics at (\S+)metrics", self.node.log.read_text())[-1]
        try:
            with urllib.request.urlopen(f"{url}health", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def tiered(
        self, *words: str, stdin: str | None = None, timeout_s: float = LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tiered", "-C", str(self.home.home), *words]
        return subprocess.run(
            command,
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment(),
            check=False,
        )

    def kill_now_and_then(self, seconds: tuple[float, float]) -> None:
        """Until the end of the race: kill the node or a replica, or stop the node in order; start it again."""
        rng = self.race.random("kills")
        while self.race.pause(rng.uniform(*seconds)):
            kind = rng.choices(("node", "stop", "replica"), (6, 2, 2))[0]
            if kind == "replica":
                replica = rng.choice(self.replicas)
                replica.end(signal.SIGKILL)
                replica.start()
                self.race.count("replicas killed")
                continue
            number = signal.SIGKILL if kind == "node" else signal.SIGTERM
            code = self.node.end(number)
            if number == signal.SIGTERM and code:
                self.race.broken(f"the node ended with {code} after SIGTERM: {self.node.log.read_text()[-1500:]}")
            if rng.random() < 0.3:
                self.race.pause(rng.uniform(0, 2))  # commands work alone
            self.node.start()
            self.race.count("nodes killed" if kind == "node" else "nodes stopped")

    def measure(self) -> None:
        while self.race.pause(0.5):
            for each in (self.node, *self.replicas):
                each.measure()

    def close(self) -> None:
        for each in (self.node, *self.replicas):
            each.close()
