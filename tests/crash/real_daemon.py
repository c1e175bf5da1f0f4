"""A directory with `tiered run` as a process of its own, for tests of faults in its environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from local.format.record import Record
from local.log import Durability
from local.names import TopicPartition
from tiered.config.config import Config
from tiered.manager.manager import LogManager

T = TypeVar("T")
NOW = 1_700_000_000_000
LIMIT_S = 120.0
END_S = 45.0  # seconds; a call to a store that hangs ends after 60
COUNT = 200
# The daemon with less patience: two attempts for a call, no minimum age of a client, and a shorter wait for the store
# at the end.
IMPATIENT = """
import functools, sys
from remote.store import open_store, s3_store
from remote.store.middleware.deadlines_and_retries import RetryPolicy
from tiered.manager import manager
s3_store.CLIENT_AGE_MIN_S = 0.0
manager.DRAIN_S = 2.0
open_store.RetryPolicy = functools.partial(RetryPolicy, attempts_max=2, wait_first_s=0.05, wait_max_s=0.1)
from tiered.cli.main import run
run(sys.argv[1:])
"""
PLAIN_ENCODING = ("-m", "tiered")
FOR_EVER = ("run", "--interval", "100ms", "--metrics", ":0")


class Node:
    """A data directory, the address of its bucket, and the records sent."""

    def __init__(self, home: Path, url: str | None, bucket: str = "fault-days") -> None:
        """Configure the node. `url` is the server's; None for a node without a remote tier.

        The disk of the directory may become full, so the facts about it are in this object.
        """
        self.home, self.url, self.bucket = home, url, bucket
        self.copied: list[str] = []
        self.options = {"key": "loopback", "secret": "loopback"}
        self.defaults = {"segment.bytes": "2000", "append.batch.bytes": "500", "remote.log.copy.disable": "true"}
        self.sent: dict[str, list[Record]] = {}
        self.configure()

    @property
    def config_path(self) -> Path:
        return self.home / "tiered.toml"

    def configure(self, *copied: str) -> None:
        """Allow copying of the segments of these topics too."""
        self.copied += copied
        lines = ['[local]\ndir = "data"']
        if self.url is not None:
            lines += [f'[remote]\nurl = "s3://{self.bucket}/p"\n[remote.options]']
            lines += [f"{key} = {json.dumps(value)}" for key, value in self.options.items()]
            lines += [f"endpoint_url = {json.dumps(self.url)}"]
            lines += ['client_kwargs = { region_name = "us-east-1" }\nconfig_kwargs = { proxies = {} }']
        lines += ["[defaults]", *(f'"{key}" = "{value}"' for key, value in self.defaults.items())]
        lines += [f'[topics."{topic}"]\n"remote.log.copy.disable" = "false"' for topic in self.copied]
        aside = self.config_path.with_suffix(".new")
        aside.write_text("\n".join(lines) + "\n")
        aside.rename(self.config_path)

    def manager(self) -> LogManager:
        return LogManager.open(Config.load(str(self.config_path), {}, {}), now_ms=NOW)

    def fill(self, *topics: str, count: int = COUNT, at_ms: int = NOW, **settings: str) -> None:
        """Create topics of one partition with records of that time, all in closed segments."""
        told = {"remote.storage.enable": "true" if self.url else "false", "retention.ms": "-1"}
        told |= {key.replace("_", "."): value for key, value in settings.items()}
        with self.manager() as manager:
            for topic in topics:
                manager.topics.create(topic, 1, told, now_ms=at_ms)
                self.sent[topic] = [Record(b"k", b"%s %d" % (topic.encode(), at), at_ms) for at in range(count)]
                manager.append(topic, self.sent[topic], 0, now_ms=at_ms, durability=Durability.FLUSHED)
                manager.partitions.roll(topic, now_ms=at_ms)

    def file(self, topic: str) -> Path:
        return self.files(topic)[1]

    def files(self, topic: str) -> list[Path]:
        return sorted((self.home / "data" / f"{topic}-0").glob("*.log"))

    def check_read(self, manager: LogManager) -> None:
        """Every record sent is readable in the stream over both tiers."""
        for topic, records in self.sent.items():
            name = TopicPartition(topic, 0)
            first = manager.reader().offsets(name)[0]
            found = [record.value for record in manager.reader().records(name, first)]
            assert found == [record.value for record in records], topic


class Daemon:
    """The daemon process and its output."""

    def __init__(
        self,
        node: Node,
        words: Sequence[str] = FOR_EVER,
        *,
        program: Sequence[str] = ("-c", IMPATIENT),
        environ: Mapping[str, str] = {},
        is_served: bool = True,
        said: Path | None = None,
    ) -> None:
        """Start it; the output is written to the file `said`.

        With `is_served`, wait until the daemon serves its metrics.
        """
        self.said = said or node.home.with_name(node.home.name + ".said")
        path = os.pathsep.join(each for each in sys.path if each)
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, *program, "-C", str(node.home), *words],
                stdin=subprocess.PIPE,
                stderr=said,
                stdout=said,
                env={**os.environ, "PYTHONPATH": path, **environ},
            )
        self.url = self.wait_for(self._url, "it serves") if is_served else ""

    @property
    def words(self) -> str:
        return self.said.read_text()

    def _url(self) -> str | None:
        found = [line for line in self.words.splitlines() if line.startswith("metrics at ")]
        return found[0].split()[2].rstrip(",").removesuffix("metrics") if found else None

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """The sum of a metric over all labels."""
        lines = [line.split() for line in self.ask("metrics")[1].splitlines() if not line.startswith("#")]
        return sum(float(value) for sample, value in lines if sample.partition("{")[0] == name)

    def wait_for_trouble(self, *parts: str) -> str:
        """Wait until /health is bad and names all parts; return its text."""

        def told() -> str | None:
            code, text = self.ask("health")
            return text if code == 503 and all(part in text for part in parts) else None

        return self.wait_for(told, f"trouble that tells of {parts}")

    def wait_until_well(self) -> None:
        self.wait_for(lambda: True if self.ask("health")[0] == 200 else None, "all is well")

    def wait_until_copied(self, topic: str) -> None:
        line = f'tiered_remote_copy_lag_segments{{topic="{topic}"}} 0'
        before = self.ask("metrics")[1]

        def told() -> bool | None:
            text = self.ask("metrics")[1]  # metrics are cached for a second: the first text may be old
            return True if text != before and line in text.splitlines() else None

        self.wait_for(told, f"{topic} in the bucket")

    def wait_for(self, look: Callable[[], T | None], what: str) -> T:
        try:
            return wait_for(look, what, lambda: self.process.poll() is None)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.words[-4000:]}") from None

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(END_S)

    def append(self, topic: str, first: int, count: int) -> bool:
        """Whether the `APPENDING` daemon acknowledged the records."""
        assert self.process.stdin is not None
        asked = f"{topic} {first} "
        before = self.words.count(f"acked {asked.strip()}\n"), self.words.count(f"refused {asked}")
        self.process.stdin.write(f"{asked}{count}\n".encode())
        self.process.stdin.flush()

        def answered() -> tuple[int, int] | None:
            found = self.words.count(f"acked {asked.strip()}\n"), self.words.count(f"refused {asked}")
            return found if found != before else None

        return self.wait_for(answered, "an answer to an append")[0] > before[0]

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


def wait_for(look: Callable[[], T | None], what: str, may_wait: Callable[[], bool] = lambda: True) -> T:
    begun = time.monotonic()
    while time.monotonic() - begun < LIMIT_S:
        if (found := look()) is not None:
            return found
        assert may_wait(), f"waited for {what}, and it ended"
        time.sleep(0.05)
    raise AssertionError(f"waited for {what}")


# The daemon with a thread that appends, as in a program that embeds it. A line on stdin names a topic, the first number
# and the count of records; the answer goes to stdout.
APPENDING = """
import sys, threading, time
from local.log.log import Durability
from local.format.record import Record
from tiered.cli.node import run as running
started = running._started
def _started(*words, **more):
    worker, own = started(*words, **more)
    threading.Thread(target=serve, args=(worker.manager,), daemon=True).start()
    return worker, own
running._started = _started
def serve(manager):
    for line in sys.stdin:
        topic, first, count = line.split()
        now_ms = time.time_ns() // 1_000_000
        numbers = range(int(first), int(first) + int(count))
        records = [Record(b"k%d" % (at % 5), b"%s %d" % (topic.encode(), at), now_ms) for at in numbers]
        try:
            manager.append(topic, records, 0, now_ms=now_ms, durability=Durability.FLUSHED)
            print("acked", topic, first, flush=True)
        except Exception as error:
            print("refused", topic, first, type(error).__name__, error, flush=True)
"""


def appending(program: str) -> str:
    """A program that ends in `run`, with a thread that appends."""
    return APPENDING + program


class SmallDisk:
    """A file system of `size_bytes` in memory, reached through a process that holds it. A context manager."""

    def __init__(self, place: Path, size_bytes: int) -> None:
        """Mount it. Raises OSError when this machine allows no mounts."""
        place.mkdir(exist_ok=True)
        mount = f"mount -t tmpfs -o size={size_bytes} tmpfs '{place}' && echo there && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "--user", "--mount", "--map-root-user", "sh", "-c", mount],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"there\n":
            self.__exit__()
            raise OSError("this machine lets nobody mount a file system of his own")
        self.path = Path(f"/proc/{self._holder.pid}/root{place}")

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self) -> None:
        """Fill the file system to the last byte."""
        fd = os.open(self.path / "ballast", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with suppress(OSError):  # ENOSPC
            while True:
                os.write(fd, bytes(4096))
        os.close(fd)

    def make_room(self) -> None:
        (self.path / "ballast").unlink()

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._holder.stdin, self._holder.stdout):
            assert pipe is not None
            pipe.close()
        self._holder.wait()


class ShiftedClock:
    """The wall clock of processes that start with `environ`; it is set from here while they run."""

    def __init__(self, place: Path) -> None:
        """Raises OSError without a compiler."""
        place.mkdir(exist_ok=True)
        library, self._shift = place / "clock_shift.so", place / "shift"
        source = Path(__file__).with_name("clock_shift.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True, timeout=60)
        self.environ = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(self._shift)}
        self._shift.write_bytes(bytes(8))

    def set(self, seconds: int) -> None:
        """Set the distance to the machine's clock: above 0 ahead of it, below 0 behind it."""
        with self._shift.open("r+b") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))
