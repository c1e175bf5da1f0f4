"""The servers that `bench_serve.py` compares, each a process of its own: its address, CPU and memory."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))
from kafka_broker import KafkaBroker
from serve_clients import BATCH_RECORDS

_CPUCLOCK_SCHED = 2  # the clock of another process, as `clock_getcpuclockid` makes it
_JVM = ("-server", "-Xms1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
TIERED = """\
remote.log.storage.system.enable=true
remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage
remote.log.storage.manager.impl.prefix=rsm.config.
rsm.config.dir={remote}
rsm.config.delete.on.close=false
remote.log.metadata.manager.listener.name=PLAINTEXT
rlmm.config.remote.log.metadata.topic.replication.factor=1
rlmm.config.remote.log.metadata.topic.num.partitions=1
remote.log.manager.task.interval.ms=200
log.retention.check.interval.ms=500
log.initial.task.delay.ms=100
log.index.size.max.bytes=10485760
num.network.threads=3
"""


class Server:
    """A running server. Resident memory is in MiB."""

    def __init__(self, name: str, address: str, pid: int) -> None:
        self.name, self.address, self.pid = name, address, pid

    def cpu_s(self) -> float:
        """Of all its threads, in ns: `/proc` has ticks of 10 ms, and 256 MiB by `sendfile` take few of them."""
        return time.clock_gettime((~self.pid << 3) | _CPUCLOCK_SCHED)

    def resident_mib(self) -> float:
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())[1]) / 1024


class Broker(KafkaBroker):
    """A broker with the JVM options of Kafka's start script, instead of those for a fast start."""

    def _java(self, heap: str, *words: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.home / 'log4j2.properties'}"
        return [self._kafka.java, "-Xmx1g", *_JVM, logging, "-cp", self._kafka.class_path, *words]


@contextmanager
def tiered(name: str, folder: Path, *words: str) -> Iterator[Server]:
    """`python -m tiered WORDS` in a folder; its log names the address."""
    command = [sys.executable, "-m", "tiered", *words]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        lines = list[str]()
        while not (found := re.search(r"Kafka clients at (\S+:\d+)", line := process.stderr.readline())):
            lines.append(line)
            assert line, f"the server did not start: {''.join(lines)}"
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield Server(name, found[1], process.pid)
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def bare_sendfile(log: Path, batch_bytes: int) -> Iterator[Server]:
    """A process that answers every Fetch with a blocking `sendfile` of one file, and knows nothing else."""
    words = [sys.executable, __file__, str(log), str(batch_bytes)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        yield Server("bare sendfile", process.stdout.readline().strip(), process.pid)
    finally:
        process.terminate()
        process.wait(60)


def _serve_file(path: str, batch_bytes: int) -> None:
    import struct

    file = os.open(path, os.O_RDONLY)
    size_bytes = os.fstat(file).st_size
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print("{}:{}".format(*listener.getsockname()), flush=True)
        while True:
            client = listener.accept()[0]
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with client, client.makefile("rb") as reader:
                while head := reader.read(4):
                    request = reader.read(int.from_bytes(head, "big"))
                    offset, _, limit = struct.unpack_from(">qqi", request, len(request) - 20 - 6)
                    position = offset // BATCH_RECORDS * batch_bytes
                    count = min(limit, size_bytes - position) // batch_bytes * batch_bytes
                    (named,) = struct.unpack_from(">h", request, 8 + 7 + 29)
                    topic = request[8 + 7 + 29 : 8 + 7 + 29 + 2 + named]
                    answer = struct.pack(">iihii", 7, 0, 0, 0, 1) + topic
                    answer += struct.pack(">iihqqqiii", 1, 0, 0, 1 << 40, 1 << 40, 0, -1, -1, count)
                    client.sendall(struct.pack(">i", len(answer) + count) + answer)
                    end = position + count
                    while position < end:
                        position += os.sendfile(client.fileno(), file, position, end - position)


if __name__ == "__main__":
    _serve_file(sys.argv[1], int(sys.argv[2]))
