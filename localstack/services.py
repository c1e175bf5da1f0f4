"""The services of compose.yaml without Docker: ``python localstack/services.py up|check|down [service ...]``.

| service | what | where |
|---|---|---|
| ``moto`` | moto's S3 server, from the project's own environment | 127.0.0.1:4567 |
| ``localstack`` | LocalStack 4.9.2 in host mode, in an environment of its own | 127.0.0.1:4566 |

`up` starts what does not run yet, waits until it answers, and creates the bucket; `check` says for each whether it
answers (exit 1 when one does not); `down` ends what `up` started. State is under ``localstack/.state/``: one folder for
each service with its pid, its log and its files. HDFS without Docker is not here yet; compose.yaml has it.

Without a service named, `up` starts moto alone: LocalStack's environment takes some 500 MB.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

STATE = Path(__file__).resolve().parent / ".state"
HOST, BUCKET = "127.0.0.1", "tiered-local"
START_TIMEOUT_S, STOP_TIMEOUT_S = 90, 15

# The newest LocalStack that runs on Python 3.11 without a token; its dependencies' later versions break it.
LOCALSTACK_PINS = (
    "localstack-core[runtime]==4.9.2",
    "cbor2<5.8",
    "cryptography<45",
    "pyopenssl<25",
    "service_identity<24.3",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    name: str
    port: int
    prepare: Callable[[Path], Sequence[str]]  # the command to run, after whatever has to be there first
    environment: Callable[[Path], dict[str, str]]

    @property
    def folder(self) -> Path:
        return STATE / self.name

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Start, check and end the local services without Docker.")
    parser.add_argument("verb", choices=("up", "check", "down"))
    parser.add_argument("service", nargs="*", choices=(*SERVICES, []), help=f"of {', '.join(SERVICES)}")
    chosen = parser.parse_args(arguments)
    started = [name for name in SERVICES if (STATE / name / "pid").exists()]
    names = chosen.service or (["moto"] if chosen.verb == "up" else started)
    outcome = [VERBS[chosen.verb](SERVICES[name]) for name in names]
    if not names:
        say("nothing was started")
    return 0 if all(outcome) and (names or chosen.verb == "down") else 1


def up(service: Service) -> bool:
    if answers(service):
        say(f"{service.name}: answers already at {service.url}")
        return create_bucket(service)
    service.folder.mkdir(parents=True, exist_ok=True)
    command = service.prepare(service.folder)
    with (service.folder / "log").open("wb") as log:
        child = subprocess.Popen(  # noqa: S603 - our own commands
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=service.folder,
            env={**os.environ, **service.environment(service.folder)},
            start_new_session=True,
        )
    # The pid alone may be another process's after a restart of the machine; with its start time it is this one.
    (service.folder / "pid").write_text(json.dumps({"pid": child.pid, "started": start_time(child.pid)}))
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers(service):
        if child.poll() is not None or time.monotonic() > deadline:
            say(f"{service.name}: did not come up, see {service.folder / 'log'}")
            down(service)
            return False
        time.sleep(0.2)
    say(f"{service.name}: up at {service.url}, bucket {BUCKET}")
    return create_bucket(service)


def check(service: Service) -> bool:
    good = answers(service)
    say(f"{service.name}: {'answers' if good else 'does not answer'} at {service.url}")
    return good


def down(service: Service) -> bool:
    noted = service.folder / "pid"
    if not noted.exists():
        say(f"{service.name}: not started from here")
        return True
    told = json.loads(noted.read_text())
    pid = int(told["pid"])
    if start_time(pid) == told["started"]:
        end_group(pid)
    noted.unlink()
    for name in ("files", "home"):  # LocalStack keeps objects in its temporary folder, which is here
        shutil.rmtree(service.folder / name, ignore_errors=True)
    say(f"{service.name}: down")
    return True


# --- the services -----------------------------------------------------------------------------------------------------


def prepare_moto(_: Path) -> Sequence[str]:
    return [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(SERVICES["moto"].port)]


def prepare_localstack(folder: Path) -> Sequence[str]:
    """An environment of its own: its pins would hold back the project's."""
    environment, done = folder / "venv", folder / "venv" / "installed.json"
    python = environment / "bin" / "python"
    if not done.exists() or json.loads(done.read_text()) != list(LOCALSTACK_PINS):
        say("localstack: installing into an environment of its own, once (some 500 MB)")
        venv.create(environment, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *LOCALSTACK_PINS], check=True)  # noqa: S603
        done.write_text(json.dumps(LOCALSTACK_PINS))
    for name in ("files", "home"):
        (folder / name).mkdir(exist_ok=True)
    return [str(python), "-m", "localstack.runtime.main"]


def localstack_environment(folder: Path) -> dict[str, str]:
    return {
        "SERVICES": "s3",
        "STRICT_SERVICE_LOADING": "1",
        "EAGER_SERVICE_LOADING": "1",
        "GATEWAY_LISTEN": f"{HOST}:{SERVICES['localstack'].port}",
        "DISABLE_EVENTS": "1",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "FILESYSTEM_ROOT": str(folder / "files"),
        "TMPDIR": str(folder / "home"),
        "HOME": str(folder / "home"),
    }


SERVICES = {
    "moto": Service(name="moto", port=4567, prepare=prepare_moto, environment=lambda _: {}),
    "localstack": Service(name="localstack", port=4566, prepare=prepare_localstack, environment=localstack_environment),
}
VERBS: dict[str, Callable[[Service], bool]] = {"up": up, "check": check, "down": down}


# --- plumbing ---------------------------------------------------------------------------------------------------------


def request(service: Service, method: str, path: str) -> int | None:
    """The answer's status; None without an answer."""
    connection = http.client.HTTPConnection(HOST, service.port, timeout=5)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def answers(service: Service) -> bool:
    status = request(service, "GET", "/")
    return status is not None and status < 500


def create_bucket(service: Service) -> bool:
    created = request(service, "PUT", f"/{BUCKET}") in (200, 409)
    if not created:
        say(f"{service.name}: the bucket {BUCKET} could not be created")
    return created


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
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            if start_time(pid) is None:
                return
            time.sleep(0.1)


def say(words: str) -> None:
    print(words, file=sys.stderr)  # noqa: T201 - this is its user interface


if __name__ == "__main__":
    sys.exit(main())
