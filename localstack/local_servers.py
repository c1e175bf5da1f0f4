"""Real servers on loopback without Docker, for `services.py` and for the tests: what to run, and when it answers.

| server | what | ports |
|---|---|---|
| ``moto`` | moto's S3 server, from the project's own environment | 1 |
| ``localstack`` | LocalStack in host mode, S3 alone | 1 |
| ``versitygw`` | Versity S3 Gateway over a directory | 1 |
| ``hdfs`` | Hadoop's NameNode and DataNode, a process each | 2: the NameNode's RPC and its HTTP |

A server's state lies in one folder that is given: configuration, logs, data. Nothing is kept of an earlier life but by
HDFS, whose NameNode is formatted only in a fresh folder.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from fetched import Missing, hadoop_jars, java, localstack_python, versitygw

HOST = "127.0.0.1"
ACCESS_KEY, SECRET_KEY = "local", "localsecret"  # loopback alone; versitygw does check them
START_SECONDS_MAX = 150  # some five where nothing else runs
STARTS_MAX = 3  # a port that was free a moment ago may be taken
_ATTENDED = str(Path(__file__).with_name("attended.py"))
_NO_PROXY = {"NO_PROXY": HOST, "no_proxy": HOST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a server. Its output goes to ``<folder>/<name>.log``."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`prepare` fetches and configures in the folder, for these ports. `answers` says whether it can be worked with.

    `is_s3`: ``http://127.0.0.1:<first port>`` is an S3 endpoint; else the first port is a NameNode's.
    """

    name: str
    ports: int
    prepare: Callable[[Path, Sequence[int]], list[Process]]
    answers: Callable[[Sequence[int]], bool]
    fetch: Callable[[], object]
    is_s3: bool = True

    def url(self, ports: Sequence[int]) -> str:
        return f"{'http' if self.is_s3 else 'hdfs'}://{HOST}:{ports[0]}"


class RunningServer:
    """A server of a kind on ports the system picks, as a context manager. It dies with this process, however that ends.

    `start` raises Missing when this machine cannot have it, AssertionError with the last words of its log when it does
    not come up.
    """

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind, self.folder, self.ports = kind, folder, ()
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> RunningServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return self.kind.url(self.ports)

    def options(self) -> dict[str, object]:
        """Options for `remote.store.open_store.open_store`."""
        if not self.kind.is_s3:
            return {}
        return {
            "endpoint_url": self.url,
            "key": ACCESS_KEY,
            "secret": SECRET_KEY,
            "client_kwargs": {"region_name": "us-east-1"},
            "config_kwargs": {"proxies": {}},  # a proxy for the internet is none for loopback
        }

    def create_bucket(self, name: str) -> None:
        assert create_bucket(self.kind, self.folder, self.ports, name), f"{self.kind.name}: no bucket {name}"

    def start(self) -> None:
        for attempt in range(STARTS_MAX):
            folder = self.folder / f"life-{attempt}" if attempt else self.folder
            folder.mkdir(parents=True, exist_ok=True)
            self.folder, self.ports = folder, free_ports(self.kind.ports)
            self._children = [self._child(process) for process in self.kind.prepare(folder, self.ports)]
            if self._came_up():
                return
            told = self.last_words()
            self.stop()
            if "in use" not in told.lower() and "BindException" not in told:
                break
        raise AssertionError(f"{self.kind.name} did not come up:\n{told}")

    def stop(self) -> None:
        """Kill it; its data is nobody's. Idempotent."""
        children, self._children = self._children, []
        for child in children:
            assert child.stdin is not None
            child.stdin.close()
        for child in children:
            child.wait(30)

    def last_words(self) -> str:
        return "\n".join(file.read_text(errors="replace")[-3000:] for file in sorted(self.folder.glob("*.log")))

    def _child(self, process: Process) -> subprocess.Popen[bytes]:
        with (self.folder / f"{process.name}.log").open("wb") as log:
            return subprocess.Popen(  # noqa: S603 - our own commands
                [sys.executable, _ATTENDED, *process.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, **process.environment},
            )

    def _came_up(self) -> bool:
        due = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < due and all(child.poll() is None for child in self._children):
            if self.kind.answers(self.ports):
                return True
            time.sleep(0.05)
        return False


def create_bucket(kind: Kind, folder: Path, ports: Sequence[int], name: str) -> bool:
    """Whether the bucket is there now; it may have been before."""
    if kind.name == "versitygw":  # a directory is a bucket there, and requests would have to be signed
        files = folder / "files"
        if files.is_dir():
            (files / name).mkdir(exist_ok=True)
        return files.is_dir()
    answer = request(ports[0], "PUT", f"/{name}")
    return answer is not None and answer[0] in (200, 409)


def free_ports(count: int) -> tuple[int, ...]:
    """Ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return tuple(each.getsockname()[1] for each in sockets)


def request(port: int, method: str, path: str) -> tuple[int, bytes] | None:
    """(status, body) of the answer; None without one."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


# --- S3 ---------------------------------------------------------------------------------------------------------------


def _s3_answers(ports: Sequence[int]) -> bool:
    answer = request(ports[0], "GET", "/")
    return answer is not None and answer[0] < 500


def _moto(_: Path, ports: Sequence[int]) -> list[Process]:
    return [Process(name="moto", command=[sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(ports[0])])]


def _localstack(folder: Path, ports: Sequence[int]) -> list[Process]:
    python = localstack_python()
    for name in ("files", "home"):  # objects lie in its temporary folder
        (folder / name).mkdir(exist_ok=True)
    environment = {
        "SERVICES": "s3",
        "STRICT_SERVICE_LOADING": "1",
        "EAGER_SERVICE_LOADING": "1",
        "GATEWAY_LISTEN": f"{HOST}:{ports[0]}",
        "DISABLE_EVENTS": "1",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "FILESYSTEM_ROOT": str(folder / "files"),
        "TMPDIR": str(folder / "home"),
        "HOME": str(folder / "home"),
        "PYTHONPATH": "",  # its own environment alone
        **_NO_PROXY,
    }
    command = [str(python), "-m", "localstack.runtime.main"]
    return [Process(name="localstack", command=command, environment=environment)]


def _versitygw(folder: Path, ports: Sequence[int]) -> list[Process]:
    binary = versitygw()
    for name in ("files", "metadata"):  # beside the files: not every file system has extended attributes
        (folder / name).mkdir(exist_ok=True)
    words = [str(binary), "--port", f"{HOST}:{ports[0]}", "--quiet", "--keep-alive"]
    backend = ["posix", "--sidecar", str(folder / "metadata"), str(folder / "files")]
    environment = {"ROOT_ACCESS_KEY_ID": ACCESS_KEY, "ROOT_SECRET_ACCESS_KEY": SECRET_KEY}
    return [Process(name="versitygw", command=[*words, *backend], environment=environment)]


# --- HDFS -------------------------------------------------------------------------------------------------------------

_SERVER = "org.apache.hadoop.hdfs.server"
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")  # quick to start, small
_OPENED = ("java.lang", "java.nio", "java.net", "java.util", "sun.nio.ch")  # Hadoop reaches into them


def _hdfs(folder: Path, ports: Sequence[int]) -> list[Process]:
    command = [java(), *_JVM, *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED)]
    command += ["-cp", f"{folder / 'conf'}:{hadoop_jars()}/*"]
    _write_configuration(folder, ports)
    if not (folder / "namenode").exists():
        words = [*command, f"{_SERVER}.namenode.NameNode", "-format", "-force", "-nonInteractive"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=START_SECONDS_MAX)  # noqa: S603 - a java
        assert done.returncode == 0, f"formatting the NameNode: {done.stderr[-2000:]}"
    return [
        Process(name="namenode", command=[*command, f"{_SERVER}.namenode.NameNode"]),
        Process(name="datanode", command=[*command, f"{_SERVER}.datanode.DataNode"]),
    ]


def _write_configuration(folder: Path, ports: Sequence[int]) -> None:
    settings = {
        "fs.defaultFS": f"hdfs://{HOST}:{ports[0]}",
        "hadoop.tmp.dir": str(folder / "tmp"),
        "dfs.namenode.name.dir": (folder / "namenode").as_uri(),
        "dfs.datanode.data.dir": (folder / "datanode").as_uri(),
        "dfs.namenode.http-address": f"{HOST}:{ports[1]}",
        "dfs.datanode.address": f"{HOST}:0",
        "dfs.datanode.http.address": f"{HOST}:0",
        "dfs.datanode.ipc.address": f"{HOST}:0",
        "dfs.replication": "1",
        "dfs.permissions.enabled": "false",
        "dfs.namenode.safemode.extension": "0",
        # A DataNode tells of finished blocks at its next heartbeat but for this; a close waits for it.
        "dfs.blockreport.incremental.intervalMsec": "0",
        "ipc.client.tcpnodelay": "true",
        "ipc.server.tcpnodelay": "true",
    }
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    (folder / "conf").mkdir(exist_ok=True)
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / "conf" / name).write_text(f"<configuration>{rows}</configuration>")


def _hdfs_answers(ports: Sequence[int]) -> bool:
    """Out of safe mode, and a DataNode with room has told of itself."""
    answer = request(ports[1], "GET", "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState")
    if answer is None or answer[0] != 200:
        return False
    beans = json.loads(answer[1]).get("beans") or [{}]
    told = beans[0]
    return told.get("FSState") == "Operational" and told.get("NumLiveDataNodes", 0) > 0 and told["CapacityTotal"] > 0


def _fetch_hdfs() -> None:
    java()
    hadoop_jars()


def _fetch_moto() -> None:
    for library in ("moto", "flask"):
        if not _has(library):
            raise Missing(f"{library} is not installed: pip install 'tiered[demo]'")


def _has(library: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(library) is not None


KINDS = {
    kind.name: kind
    for kind in (
        Kind(name="moto", ports=1, prepare=_moto, answers=_s3_answers, fetch=_fetch_moto),
        Kind(name="localstack", ports=1, prepare=_localstack, answers=_s3_answers, fetch=localstack_python),
        Kind(name="versitygw", ports=1, prepare=_versitygw, answers=_s3_answers, fetch=versitygw),
        Kind(name="hdfs", ports=2, prepare=_hdfs, answers=_hdfs_answers, fetch=_fetch_hdfs, is_s3=False),
    )
}
