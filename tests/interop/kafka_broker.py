"""One Kafka broker on loopback: format its directories, start, stop, kill it, and run Kafka's tools.

KRaft with one node that is broker and controller. Every start uses new free ports. The quorum is static with one voter,
so that no file on disk has a port. If another process takes a port first, the next pair is tried. Only the process
started here is signalled.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from class_archives import options
from kafka_artifacts import Kafka

_CLUSTER_ID = "dGllcmVkLWludGVyb3AtMQ"
_START_SECONDS_MAX = 60
_STOP_SECONDS_MAX = 60
_TOOL_SECONDS_MAX = 120
_STARTS_MAX = 3

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
log.dirs={log_dirs}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=300
log.retention.ms=-1
log.segment.delete.delay.ms=1000
log.cleaner.backoff.ms=100
log.cleaner.dedupe.buffer.size=10485760
log.message.timestamp.after.max.ms=9223372036854775807
log.index.size.max.bytes=65536
"""
_LOG4J = """\
appender.file.type=File
appender.file.name=file
appender.file.fileName={path}
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d %p %c{{1}} %m%n
rootLogger.level=WARN
rootLogger.appenderRef.file.ref=file
logger.log.name=kafka.log
logger.log.level=INFO
logger.unified.name=org.apache.kafka.storage.internals.log
logger.unified.level=INFO
"""


class KafkaBroker:
    """A broker with all its files below `home`. It runs between `start` and `stop` or `kill`."""

    def __init__(
        self,
        kafka: Kafka,
        home: Path,
        *,
        log_dirs: Sequence[str] = ("data",),
        settings: str = "",
        classes: Sequence[str] = (),
    ) -> None:
        """`settings` are lines of server.properties, added to those of every broker of the tests.

        `classes` are options of the broker's JVM in place of those that name its archive of classes.
        """
        self.home = home
        self.log_dirs = [home / name for name in log_dirs]
        self.address = ""
        self._more_settings = settings
        self._kafka = kafka
        self._classes = tuple(classes) or options(kafka.broker_archive)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None, "the broker must be running"
        return self._process.pid

    @property
    def log_path(self) -> Path:
        return self.home / "broker.log"

    def format(self) -> None:
        """Create meta.properties of each log directory with Kafka's storage tool."""
        self.home.mkdir(parents=True, exist_ok=True)
        self._write_settings(*_free_ports(2))
        words = ["format", "-t", _CLUSTER_ID, "-c", str(self._settings)]
        self.tool("kafka.tools.StorageTool", *words)

    def start(self) -> None:
        """Start, and return when the broker accepts connections, which is after it has loaded its logs."""
        assert self._process is None, "the broker must not be running"
        for _ in range(_STARTS_MAX):
            port, controller_port = _free_ports(2)
            self._write_settings(port, controller_port)
            self.address = f"127.0.0.1:{port}"
            with (self.home / "broker.out").open("ab") as out:
                words = self._java("-Xmx512m", "kafka.Kafka", str(self._settings), classes=self._classes)
                self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            if self._wait_until_listening(port):
                return
            if "java.net.BindException" not in self._told():
                break
        raise AssertionError(f"the broker did not start:\n{self._told()}")

    def stop(self) -> None:
        """Stop cleanly. Does nothing if it does not run."""
        self._end(kill=False)

    def kill(self) -> None:
        """SIGKILL: no clean-shutdown marker, indexes at their allocated size, checkpoints not updated."""
        self._end(kill=True)

    def tool(self, name: str, *words: str, stdin: bytes = b"") -> str:
        """The stdout of one of Kafka's command-line classes. Fails the test if the tool fails."""
        command = self._java("-Xmx256m", name, *words)
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=_TOOL_SECONDS_MAX)
        told = done.stderr.decode("utf-8", "replace")
        assert done.returncode == 0, (
            f"{name} exited {done.returncode}: {told}\n{done.stdout.decode('utf-8', 'replace')}"
        )
        return done.stdout.decode("utf-8", "surrogateescape")

    def warnings(self) -> list[str]:
        """Warnings and errors that the broker logged."""
        lines = self.log_path.read_text().splitlines() if self.log_path.exists() else []
        return [line for line in lines if " WARN " in line or " ERROR " in line]

    @property
    def _settings(self) -> Path:
        return self.home / "server.properties"

    def _write_settings(self, port: int, controller_port: int) -> None:
        log_dirs = ",".join(map(str, self.log_dirs))
        lines = _SETTINGS.format(broker=port, controller=controller_port, log_dirs=log_dirs)
        self._settings.write_text(lines + self._more_settings)
        (self.home / "log4j2.properties").write_text(_LOG4J.format(path=self.log_path))

    def _java(self, *words: str, classes: Sequence[str] | None = None) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.home / 'log4j2.properties'}"
        return self._kafka.command(logging, *words, classes=classes)

    def _wait_until_listening(self, port: int) -> bool:
        assert self._process is not None
        due = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < due and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
            time.sleep(0.05)
        self.kill()
        return False

    def _end(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill() if kill else process.terminate()
        try:
            process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the broker did not stop:\n{self._told()}") from None

    def _told(self) -> str:
        files = (self.home / "broker.out", self.log_path)
        return "\n".join(file.read_text(errors="replace")[-4000:] for file in files if file.exists())


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
