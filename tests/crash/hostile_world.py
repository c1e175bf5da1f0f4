"""A deployment under attack: its directory and bucket are damaged or emptied, then restored.

`HostileWorld` makes the deployment once, by commands. `restore` returns both tiers to that state. `ATTACKS` are
functions of (world, random generator) that change one thing and return an `Attack`. An `Attack` states which results of
a command are allowed. Commands run through `command_server`, one process each.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import hostile_stores
from command_server import Commands
from hostile_stores import LyingGate
from local_servers import RunningServer, request
from outage_gate import HOST, Way

from remote.manifest.manifest import decode_line, encode_line
from remote.store.open_store import open_store

RECORDS = 400
PARTITIONS = ("plain/0", "plain/1", "newest/0", "kept/0")
TIMEOUT_S = 120
CLEAN_MARKER = ".kafka_cleanshutdown"
ABSURD = (
    -1,
    -(2**40),
    0,
    1,
    2**31,
    2**40,
    2**62,
    2**63,
    2**64,
    10**20,
    1.5,
    True,
    None,
    "",
    "x",
    "../../etc",
    [],
    {},
    "\u0000",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attack:
    """One change to a deployment, and the results that it allows.

    * `may_cut`: a prefix of a log is a right answer (the torn tail of a killed process).
    * `may_grow`: records may follow the truth, and compaction may have run.
    * `is_forged`: the bucket holds other facts with a valid checksum, so a read may differ from the truth.
    * `answers`: answers of commands that ran during the attack.
    * `acknowledged`: the values that these commands appended to kept/0.
    * `complaints`: complaints that the attack itself found.
    """

    what: str
    may_cut: bool = False
    may_grow: bool = False
    is_forged: bool = False
    answers: tuple[Answer, ...] = ()
    acknowledged: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The result of a command."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str


class HostileWorld:
    """A deployment in `home` over a bucket of `server` (None: a folder), with its saved state."""

    def __init__(self, home: Path, commands: Commands, server: RunningServer | None, name: str) -> None:
        self.home, self.data = home, home / "data"
        self._environ = {**os.environ, "PATH": f"{commands.directory}:{os.environ['PATH']}", "COLUMNS": "200"}
        self.gate = LyingGate(server.ports[0]) if server is not None else None
        self.is_s3 = server is not None and server.kind.is_s3
        self._server, self._bucket = server, name
        self.url, options = self._place(server, name)
        self.store = open_store(self.url, options)
        self.options_told = [(key, value) for key, value in options.items() if isinstance(value, str)]
        self._configure(options)
        self._fill()
        self.truth = {each: self.consumed(each) for each in PARTITIONS}
        assert all(self.truth.values())
        shutil.copytree(self.data, home / "saved")
        self.objects = {each.key: self.store.get(each.key) for each in self.store.list("")}

    def run(self, *words: str, stdin: str = "", home: Path | None = None) -> Answer:
        """Run a command to its end, in this deployment or in another `home`."""
        done = subprocess.run(
            ["tiered", *words],
            cwd=home or self.home,
            env=self._environ,
            executable=str(Path(self._environ["PATH"].partition(":")[0]) / "tiered"),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        return Answer(words=words, code=done.returncode, out=done.stdout, err=done.stderr)

    def kill(self, *words: str, stdin: str, after_s: float) -> None:
        """Start a command in a process of its own and kill it after `after_s` seconds, at any step."""
        import sys

        child = subprocess.Popen(
            [sys.executable, "-m", "tiered", *words],
            cwd=self.home,
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            child.communicate(stdin.encode(), timeout=after_s)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()

    def consumed(self, partition: str, *words: str) -> list[str]:
        """The records that `consume` prints, one JSON line each."""
        answer = self.run("consume", partition, "-o", "jsonl", *words)
        assert answer.code == 0, answer
        return answer.out.splitlines()

    def restore(self, *, is_clean: bool) -> None:
        """Restore both tiers; without the clean marker the last process counts as killed."""
        self._make_bucket()
        (self.home / "gc-list.json").unlink(missing_ok=True)
        shutil.rmtree(self.data)
        shutil.copytree(self.home / "saved", self.data)
        if not is_clean:
            (self.data / CLEAN_MARKER).unlink(missing_ok=True)
        found = {each.key for each in self.store.list("")}
        self.store.delete(sorted(found - self.objects.keys()))
        for key, body in self.objects.items():
            if key not in found or self.store.get(key) != body:
                self.store.put(key, body)

    def files(self) -> list[Path]:
        """Every file of the data directory that a command wrote, in order of name."""
        return sorted(path for path in self.data.rglob("*") if path.is_file() and path.name != ".lock")

    def manifests(self) -> list[str]:
        """The key of the newest manifest of each partition."""
        newest: dict[str, str] = {}
        for key, body in self.objects.items():
            if body.startswith(b"tiered-head "):
                newest[key.rpartition("/")[0]] = max(newest.get(key.rpartition("/")[0], ""), key)
        return sorted(newest.values())

    def told_remote(self) -> list[str]:
        """The arguments that name the bucket: the url for ``--remote``, and its options."""
        return [self.url, *(word for key, value in self.options_told for word in ("--option", f"{key}={value}"))]

    @contextmanager
    def dead(self, way: Way) -> Iterator[None]:
        """Stop the store from answering; a bucket that is a folder is renamed."""
        if self.gate is None:
            (self.home / "bucket").rename(self.home / "away")
        else:
            self.gate.turn(way)
        try:
            yield
        finally:
            if self.gate is None:
                (self.home / "away").rename(self.home / "bucket")
            else:
                self.gate.turn(Way.OPEN)

    def remove_bucket(self) -> None:
        """Delete every object and the bucket itself."""
        if self._server is None:
            shutil.rmtree(self.home / "bucket")
            return
        self.store.delete([each.key for each in self.store.list("")])
        if not self.is_s3:
            from hdfs_native import Client

            Client(self._server.url).delete(f"/{self._bucket}", recursive=True)
        elif self._server.kind.name == "versitygw":  # a directory is a bucket there
            shutil.rmtree(self._server.folder / "files" / self._bucket)
        else:
            status, body = request(self._server.ports[0], "DELETE", f"/{self._bucket}") or (None, b"")
            assert status == 204, (status, body)

    def _make_bucket(self) -> None:
        if self._server is None:
            (self.home / "bucket").mkdir(exist_ok=True)
        elif self.is_s3:
            self._server.create_bucket(self._bucket)
        else:
            from hdfs_native import Client

            Client(self._server.url).mkdirs(f"/{self._bucket}/logs", create_parent=True)

    def _place(self, server: RunningServer | None, name: str) -> tuple[str, dict[str, object]]:
        self._make_bucket()
        if server is None or self.gate is None:
            return (self.home / "bucket").as_uri(), {}
        if server.kind.is_s3:
            return f"s3://{name}/logs", {**server.options(), "endpoint_url": self.gate.url}
        return f"hdfs://{HOST}:{self.gate.port}/{name}/logs", {}

    def _configure(self, options: dict[str, object]) -> None:
        told = "".join(
            f"{key} = {json.dumps(value)}\n" for key, value in options.items() if not isinstance(value, dict)
        )
        told += 'client_kwargs = { region_name = "us-east-1" }\n' if options else ""
        defaults = {
            "remote.storage.enable": "true", "segment.bytes": "4000", "append.batch.bytes": "500", "retention.ms": "-1",
            "index.interval.bytes": "200", "file.delete.delay.ms": "0", "remote.log.delete.grace.ms": "0",
            "local.retention.ms": "1ms",
        }  # fmt: skip
        entries = "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in defaults.items())
        (self.home / "tiered.toml").write_text(
            f'[local]\ndir = "data"\n[remote]\nurl = "{self.url}"\n[remote.options]\n{told}[defaults]\n{entries}'
        )

    def _fill(self) -> None:
        made = [
            self.run("topic", "create", "plain", "-p", "2"),
            self.run("topic", "create", "newest", "-X", "cleanup.policy=compact"),
            self.run("topic", "create", "kept", "-X", "local.retention.ms=-2"),
        ]
        for at in range(2):
            lines = "".join(f"k{n % 60}:value {n} of some length\n" for n in range(at * RECORDS, (at + 1) * RECORDS))
            for topic in ("plain", "newest", "kept"):
                made.append(self.run("append", topic, "-", "-K", ":", "--batch", "50", stdin=lines))
            made += [self.run("compact", "newest"), self.run("run", "--once")]
        assert all(each.code == 0 for each in made), [each for each in made if each.code]


def damage_file(world: HostileWorld, rng: random.Random) -> Attack:
    """Damage one file of the data directory."""
    path = rng.choice(world.files())
    body = path.read_bytes()
    kind = rng.choice(("flip", "cut", "empty", "delete", "zeros", "grow", "other"))
    if kind == "delete" or not body:
        path.unlink()
        kind = "delete"
    elif kind == "other":
        path.write_bytes(rng.choice(world.files()).read_bytes())
    else:
        path.write_bytes(_damaged(body, kind, rng))
    is_active_end = path.suffix in (".log", ".index", ".timeindex", ".snapshot") and kind != "other"
    return Attack(what=f"{kind} {path.relative_to(world.data)}", may_cut=is_active_end)


def damage_object(world: HostileWorld, rng: random.Random) -> Attack:
    """Damage one object of the bucket."""
    key = rng.choice(sorted(world.objects))
    body = world.objects[key]
    kind = rng.choice(("flip", "cut", "delete", "zeros", "grow", "other"))
    if kind == "delete":
        world.store.delete([key])
    else:
        other = world.objects[rng.choice(sorted(world.objects))]
        world.store.put(key, other if kind == "other" else _damaged(body, kind, rng))
    return Attack(what=f"{kind} {key}", is_forged=b"tiered-head" in body[:16] and kind in ("other", "delete"))


def forge_manifest(world: HostileWorld, rng: random.Random) -> Attack:
    """Set one or two fields of a manifest to absurd values, with a valid checksum."""
    key = rng.choice(world.manifests())
    manifest = json.loads(decode_line(world.objects[key]))
    told = []
    for _ in range(rng.choice((1, 1, 2))):
        path = rng.choice(_paths(manifest))
        value = rng.choice(ABSURD)
        _set(manifest, path, value)
        told.append(f"{'.'.join(map(str, path))}={value!r}")
    world.store.put(key, encode_line(json.dumps(manifest).encode()))
    return Attack(what=f"forged {key}: {' '.join(told)}", is_forged=True)


def hide_manifests(world: HostileWorld, rng: random.Random) -> Attack:
    """Delete every manifest of one partition, or of all."""
    prefix = rng.choice(world.manifests()).rpartition("/")[0] if rng.random() < 0.5 else ""
    gone = [key for key, body in world.objects.items() if key.startswith(prefix) and body.startswith(b"tiered-head ")]
    world.store.delete(gone)
    return Attack(what=f"no manifests below {prefix!r}")


def empty_bucket(world: HostileWorld, rng: random.Random) -> Attack:
    """Delete every object of the bucket."""
    world.store.delete(sorted(world.objects))
    return Attack(what="empty bucket")


def kill_commands(world: HostileWorld, rng: random.Random) -> Attack:
    """Kill commands that change both tiers, at drawn moments."""
    lines = "".join(f"k{n}:late {n} of some length\n" for n in range(300))
    told = []
    for _ in range(rng.randint(1, 3)):
        words = rng.choice((("append", "kept", "-", "-K", ":"), ("run", "--once"), ("compact", "newest", "--roll")))
        after_s = rng.uniform(0.2, 1.5)
        world.kill(*words, stdin=lines if words[0] == "append" else "", after_s=after_s)
        told.append(f"{words[0]} after {after_s:.2f} s")
    return Attack(what=f"kill {', '.join(told)}", may_grow=True)


ATTACKS: tuple[tuple[int, Callable[[HostileWorld, random.Random], Attack]], ...] = (
    (8, damage_file),
    (5, damage_object),
    (6, forge_manifest),
    (1, hide_manifests),
    (1, empty_bucket),
    (2, kill_commands),
    *hostile_stores.ATTACKS,
)


def _damaged(body: bytes, kind: str, rng: random.Random) -> bytes:
    at = rng.randrange(len(body))
    match kind:
        case "flip":
            return body[:at] + bytes([body[at] ^ (1 << rng.randrange(8))]) + body[at + 1 :]
        case "cut":
            return body[:at]
        case "empty":
            return b""
        case "zeros":
            return body[:at] + bytes(len(body) - at)
        case _:
            return body + rng.randbytes(rng.choice((1, 17, 4096)))


def _paths(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path of every field of a JSON value."""
    if isinstance(value, dict):
        return [each for key, item in value.items() for each in ((*path, key), *_paths(item, (*path, key)))]
    if isinstance(value, list):
        return [each for at, item in enumerate(value) for each in _paths(item, (*path, at))]
    return []


def _set(value: object, path: tuple[str | int, ...], new: object) -> None:
    for key in path[:-1]:
        value = value[key]  # type: ignore[index]
    value[path[-1]] = new  # type: ignore[index]
