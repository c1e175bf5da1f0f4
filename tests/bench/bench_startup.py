"""Start-up cost of commands, and a status of many topics: whole processes, CPU and wall time.

    python tests/bench/bench_startup.py [TOPICS] [SEGMENTS] [TURNS]
    python tests/bench/bench_startup.py make DIR [TOPICS] [SEGMENTS]
    python tests/bench/bench_startup.py records [RECORDS] [TURNS]

Creates topics (default 100) with segments (default 20, half of them in the bucket only) in a temporary directory with a
bucket as a directory, and copies the bucket to an S3 server on loopback. Each command is its own process with compiled
bytecode, like in real use. A process that only starts Python is the reference. CPU seconds are user and system time of
the process. Medians of TURNS (default 15), with all commands in turn. Far: every answer of the S3 server arrives 20 ms
later. The CPU of the server, which shares the machine, is in no column.

`records`: `append` and `consume` of RECORDS (default 500,000) lines of 100 bytes, and kcat, if installed,
against `tiered run --kafka` on the same directory. The CPU of that node is in no column; kcat's is.
"""

from __future__ import annotations

import compileall
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from far_proxy import far

sys.path.insert(0, str(Path(__file__).parents[2] / "localstack"))
from local_servers import ACCESS_KEY, KINDS, SECRET_KEY, RunningServer

from local.format.record import Record
from remote.store.open_store import open_store
from tiered.config.config import Config, file_url
from tiered.manager.manager import LogManager

NOW = 1_800_000_000_000
FAR_S = 0.02
BUCKET = "bench-bucket"
TIERED = (sys.executable, "-c", "from tiered.cli.main import run; run()")
ROOT = Path(__file__).parents[2]


class Cost(NamedTuple):
    """Seconds of one process."""

    cpu_s: float
    wall_s: float


def make(root: str, topics: int, segments: int) -> None:
    """Ten records for each segment. The newer half of the segments of each topic is also on the disk."""
    Path(root, "bucket").mkdir(parents=True)
    Path(root, "tiered.toml").write_text(f'[local]\ndir = "data"\n[remote]\nurl = "{file_url(f"{root}/bucket")}"\n')
    os.fsync = lambda fd: None
    config = Config.load(f"{root}/tiered.toml", {"file.delete.delay.ms": "0"}, {})
    settings = {
        "remote.storage.enable": "true",
        "retention.ms": "-1",
        "local.retention.ms": "-1",
        "local.retention.bytes": str(segments // 2 * 1000),
        "segment.bytes": "1024",
    }
    with LogManager.open(config, now_ms=NOW) as manager:
        for number in range(topics):
            topic = f"topic-{number}"
            manager.topics.create(topic, 1, settings, now_ms=NOW)
            for at in range(segments):
                manager.append(topic, [Record(b"k", b"v" * 80, NOW + at)] * 10, 0, now_ms=NOW)
                if at % 5 == 4:
                    manager.tick(NOW)
        while manager.tick(NOW):
            pass


def upload(root: str, server: RunningServer) -> None:
    """Copy the objects of the bucket, under the same names, to a bucket of the server."""
    server.create_bucket(BUCKET)
    store = open_store(f"s3://{BUCKET}", server.options())
    for path in sorted(Path(root, "bucket").rglob("*")):
        if path.is_file():
            store.put(path.relative_to(f"{root}/bucket").as_posix(), path.read_bytes())
    store.close()


def configure(root: str, endpoint: str) -> None:
    """Set the server's bucket instead of the directory in the configuration."""
    Path(root, "tiered.toml").write_text(
        f'[local]\ndir = "data"\n[remote]\nurl = "s3://{BUCKET}"\n[remote.options]\nendpoint_url = "{endpoint}"\n'
        f'key = "{ACCESS_KEY}"\nsecret = "{SECRET_KEY}"\nclient_kwargs = {{ region_name = "us-east-1" }}\n'
        "config_kwargs = { proxies = {} }\n"
    )


def run(command: Sequence[str]) -> Cost:
    """Run a command. Raises CalledProcessError if it fails."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(ROOT)
    begun = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as child:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - begun
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return Cost(used.ru_utime + used.ru_stime, wall_s)


def table(commands: dict[str, Sequence[str]], turns: int) -> None:
    """A row for each command: medians, and the cost above the bare interpreter."""
    found: dict[str, list[Cost]] = {name: [] for name in commands}
    for command in commands.values():
        run(command)  # later runs find the files in the page cache
    for _ in range(turns):
        for name, command in commands.items():
            found[name].append(run(command))
    print("| | CPU-s | wall, s |\n|---|---|---|")
    for name, costs in found.items():
        cpu, wall = (statistics.median(each) for each in zip(*costs, strict=True))
        print(f"| {name} | {cpu:.3f} | {wall:.3f} |")


def on(root: str, *words: str) -> Sequence[str]:
    return (*TIERED, "-C", root, *words)


def all_commands(root: str) -> dict[str, Sequence[str]]:
    return {
        "`python -c pass`": (sys.executable, "-c", "pass"),
        "`python -c 'import numpy'`": (sys.executable, "-c", "import numpy"),
        "`tiered --help`": (*TIERED, "--help"),
        "`tiered status`": on(root, "status"),
        "`tiered topic list`": on(root, "topic", "list"),
        "`tiered plan`": on(root, "plan"),
        "`tiered consume -n 1`": on(root, "consume", "topic-0", "--from", "start", "-n", "1"),
    }


def records(root: str, count: int, turns: int) -> None:
    """Tables of `append` and `consume`, each with kcat against a node of its own."""
    lines = Path(root, "lines")
    draw = random.Random(1)
    with lines.open("w") as out:
        out.writelines(f"k{draw.randrange(100_000):06d}:{draw.getrandbits(368):092x}\n" for _ in range(count))
    make(root, 1, 2)
    for name, partitions in (("one", 1), ("four", 4)):
        run(on(root, "topic", "create", name, "-p", str(partitions)))
    run(on(root, "append", "one", str(lines), "-K", ":"))
    table(
        {
            "`cat` of the lines": ("cat", str(lines)),
            "`append` of no line": on(root, "append", "one", os.devnull),
            "`append -K :`, one partition": on(root, "append", "one", str(lines), "-K", ":"),
            "`append -K :`, four partitions": on(root, "append", "four", str(lines), "-K", ":"),
            "`consume -n 1`": on(root, "consume", "one", "-n", "1"),
            "`consume`": on(root, "consume", "one", "-n", str(count)),
            "`consume -f '%o %k %v\\n'`": on(root, "consume", "one", "-n", str(count), "-f", "%o %k %v\\n"),
            "`consume -o jsonl`": on(root, "consume", "one", "-n", str(count), "-o", "jsonl"),
        },
        turns,
    )
    kcat = shutil.which("kcat")
    if kcat is None:
        print("\nkcat is not installed: its table is left out.")
        return
    with node(root) as address:
        read = (kcat, "-b", address, "-C", "-q", "-e", "-t", "one", "-p", "0", "-o", "beginning", "-c", str(count))
        print()
        table(
            {
                "`kcat -P -K :`": (kcat, "-b", address, "-P", "-t", "one", "-p", "0", "-K", ":", "-l", str(lines)),
                "`kcat -C`": read,
                "`kcat -C -f '%o %k %s\\n'`": (*read, "-f", "%o %k %s\\n"),
                "`kcat -C -J`": (*read, "-J"),
            },
            turns,
        )


@contextmanager
def node(root: str) -> Iterator[str]:
    """A running node of the directory; yields its Kafka address."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = on(root, "run", "--kafka", "127.0.0.1:0")
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        try:
            assert child.stdout is not None, "a pipe was asked for"
            for line in child.stdout:
                if found := re.search(r"serving Kafka clients at (\S+)", line):
                    yield found[1]
                    return
            raise RuntimeError("the node ended before it served")
        finally:
            child.terminate()


def main() -> None:
    words = sys.argv[1:]

    def number(at: int, default: int) -> int:
        return int(words[at]) if len(words) > at else default

    if words[:1] == ["make"]:
        make(os.path.abspath(words[1]), number(2, 100), number(3, 20))
        return
    if words[:1] == ["records"]:
        with tempfile.TemporaryDirectory() as root:
            records(root, number(1, 500_000), number(2, 5))
        return
    for package in ("local", "remote", "policies", "tiered"):
        compileall.compile_dir(ROOT / package, quiet=1)
    with tempfile.TemporaryDirectory() as root, RunningServer(KINDS["versitygw"], Path(root, "server")) as server:
        make(root, number(0, 100), number(1, 20))
        table(all_commands(root), number(2, 15))
        upload(root, server)
        with far(server.url, FAR_S) as distant:
            for name, url in (("on loopback", server.url), ("20 ms away", distant)):
                configure(root, url)
                print(f"\nThe bucket on S3, {name}:\n")
                table({"`tiered status`": on(root, "status"), "`tiered plan`": on(root, "plan")}, number(2, 15))


if __name__ == "__main__":
    main()
