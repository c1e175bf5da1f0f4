"""The services of compose.yaml without Docker: ``python localstack/services.py up|check|down|fetch [service ...]``.

| service | what | where |
|---|---|---|
| ``moto`` | moto's S3 server, from the project's own environment | 127.0.0.1:4567 |
| ``localstack`` | LocalStack in host mode, in an environment of its own | 127.0.0.1:4566 |
| ``versitygw`` | Versity S3 Gateway | 127.0.0.1:4568 |
| ``hdfs`` | Hadoop's NameNode and DataNode | 127.0.0.1:8020, its web page on 9870 |

`up` starts what does not run yet, waits until it answers, and creates the bucket (HDFS: the directory); `check` says
for each whether it answers (exit 1 when one does not); `down` ends what `up` started. `fetch` only gets what they are
made of into the user's cache folder, so that `up` and the tests need no network later; exit 1 says what is missing.
Without a service named, `up` starts moto alone and `fetch` gets them all. State is under ``localstack/.state/``: one
folder for each service with its pids, its logs and its files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fetched import Missing
from local_servers import KINDS, START_SECONDS_MAX, Kind, Process, create_bucket

STATE = Path(__file__).resolve().parent / ".state"
BUCKET = "tiered-local"
PORTS = {"moto": (4567,), "localstack": (4566,), "versitygw": (4568,), "hdfs": (8020, 9870)}
STOP_SECONDS_MAX = 15


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Start, check and end the local services without Docker.")
    parser.add_argument("verb", choices=tuple(VERBS))
    parser.add_argument("service", nargs="*", choices=(*KINDS, []), help=f"of {', '.join(KINDS)}")
    chosen = parser.parse_args(arguments)
    names = chosen.service or _usual(chosen.verb)
    outcome = [VERBS[chosen.verb](KINDS[name]) for name in names]
    if not names:
        say("nothing was started")
    return 0 if all(outcome) and (names or chosen.verb == "down") else 1


def _usual(verb: str) -> list[str]:
    if verb == "fetch":
        return list(KINDS)
    return ["moto"] if verb == "up" else [name for name in KINDS if (STATE / name / "pids").exists()]


def fetch(kind: Kind) -> bool:
    begun = time.monotonic()
    try:
        kind.fetch()
    except Missing as missing:
        say(f"{kind.name}: {missing}")
        return False
    say(f"{kind.name}: there ({time.monotonic() - begun:.0f} s)")
    return True


def up(kind: Kind) -> bool:
    ports, folder = PORTS[kind.name], STATE / kind.name
    if kind.answers(ports):
        say(f"{kind.name}: answers already at {kind.url(ports)}")
        return _bucket(kind)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        processes = kind.prepare(folder, ports)
    except Missing as missing:
        say(f"{kind.name}: {missing}")
        return False
    children = [_detached(folder, process) for process in processes]
    # A pid alone may be another process's after a restart of the machine; with its start time it is this one.
    noted = [{"pid": child.pid, "started": start_time(child.pid)} for child in children]
    (folder / "pids").write_text(json.dumps(noted))
    due = time.monotonic() + START_SECONDS_MAX
    while not kind.answers(ports):
        if any(child.poll() is not None for child in children) or time.monotonic() > due:
            say(f"{kind.name}: did not come up, see {folder}/*.log")
            down(kind)
            return False
        time.sleep(0.2)
    say(f"{kind.name}: up at {kind.url(ports)}")
    return _bucket(kind)


def check(kind: Kind) -> bool:
    good = kind.answers(PORTS[kind.name])
    say(f"{kind.name}: {'answers' if good else 'does not answer'} at {kind.url(PORTS[kind.name])}")
    return good


def down(kind: Kind) -> bool:
    folder = STATE / kind.name
    noted = folder / "pids"
    if not noted.exists():
        say(f"{kind.name}: not started from here")
        return True
    for told in json.loads(noted.read_text()):
        if start_time(int(told["pid"])) == told["started"]:
            end_group(int(told["pid"]))
    shutil.rmtree(folder)
    say(f"{kind.name}: down")
    return True


VERBS: dict[str, Callable[[Kind], bool]] = {"up": up, "check": check, "down": down, "fetch": fetch}


# --- plumbing -------------------------------------------------------------------------------------------------------


def _detached(folder: Path, process: Process) -> subprocess.Popen[bytes]:
    with (folder / f"{process.name}.log").open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - our own commands
            process.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **process.environment},
            start_new_session=True,
        )


def _bucket(kind: Kind) -> bool:
    ports = PORTS[kind.name]
    if not kind.is_s3:
        return _directory(kind.url(ports))
    created = create_bucket(kind, STATE / kind.name, ports, BUCKET)
    say(f"{kind.name}: bucket {BUCKET}" if created else f"{kind.name}: the bucket {BUCKET} could not be created")
    return created


def _directory(url: str) -> bool:
    try:
        from hdfs_native import Client
    except ImportError:
        say("hdfs: to have the directory created: pip install 'tiered[hdfs]'")
        return False
    Client(url).mkdirs(f"/{BUCKET}", create_parent=True)
    say(f"hdfs: directory {url}/{BUCKET}")
    return True


def start_time(pid: int) -> str | None:
    """What the kernel says of when this process began; None when it is gone (a zombie of ours counts as gone)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def end_group(pid: int) -> None:
    """The service and its children: it was started as the leader of a group of its own."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, kind)
        except ProcessLookupError:
            return
        due = time.monotonic() + STOP_SECONDS_MAX
        while time.monotonic() < due:
            if start_time(pid) is None:
                return
            time.sleep(0.1)


def say(words: str) -> None:
    print(words, file=sys.stderr)  # noqa: T201 - this is its user interface


if __name__ == "__main__":
    sys.exit(main())
