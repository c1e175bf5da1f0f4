"""Recorded terminal sessions: a list of commands and their output at 80 and at 120 columns.

    python tests/unit/support/recorded_sessions.py --write

runs every session of SESSIONS and writes ``tests/sessions/<name>.<width>.txt``. A test runs them again and compares
the output exactly. Commands run in this process. Stdout is a terminal of that width without colours, the time starts
at `NOON` and advances a second with each command, and the versions and the free disk space are fixed. Ids, plan
fingerprints and paths are replaced by texts of the same length before the layout. Nothing else is masked.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import itertools
import json
import os
import platform
import random
import re
import secrets
import shlex
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[3]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from local import kernels  # noqa: E402
from local.storage import DiskStorage, Space  # noqa: E402
from tiered.cli import render  # noqa: E402
from tiered.cli.main import invoke  # noqa: E402
from tiered.health import doctor  # noqa: E402

FOLDER = ROOT / "tests" / "sessions"
WIDTHS = (80, 120)
NOON = 1_795_176_000_000  # 2026-11-20T12:00:00Z
_PLACE = "/srv/logs/the-node"
_ROOM = Space(64 << 30, 256 << 30)
_FSYNC_S = 0.0004
_VERSIONS = {"fsspec": "2026.9.0", "s3fs": "2026.9.0", "obstore": "0.12.1", "boto3": "1.43.117"}
_VERSIONS |= {"hdfs-native": "0.14.7", "cryptography": "50.0.2", "pyarrow": "26.0.1", "pyspark": "4.3.0"}
_CODES = re.compile(r"\x1b\[[0-9;]*m")
_TOPIC_ID = re.compile(r"(?<![\w/+-])(?=[\w-]*[A-Z])(?=[\w-]*[a-z])[\w-]{22}(?![\w-])")
_TOPIC_PREFIX = re.compile(r"(?<=[a-z]-)[\w-]{22}(?=/)")
_FINGERPRINT = re.compile(r"(?<=^plan )[0-9a-f]{16}", re.MULTILINE)  # of the state, including ULIDs
_ULID = re.compile(r"(?<![0-9A-Z])01[0-9A-HJKMNP-TV-Z]{24}(?![0-9A-Z])")


@dataclass(frozen=True, slots=True)
class Session:
    """`commands` are shown, `before` is run first and not shown. ``later 2h`` moves the clock, `deeds` are named
    functions."""

    name: str
    commands: tuple[str, ...]
    before: tuple[str, ...] = ()
    deeds: tuple[tuple[str, Callable[[Path], None]], ...] = ()


_SMALL = "-X segment.bytes=4KiB -X local.retention.ms=1h"
_NODE = (
    "tiered -q init",
    f"tiered -q topic create orders -p 2 {_SMALL}",
    f"tiered -q topic create prices -X cleanup.policy=compact {_SMALL}",
    "tiered -q append orders orders.txt -K : --batch 20",
    "tiered -q append prices prices.txt -K : --batch 20",
)
_YEAR = (
    "tiered -q init",
    "tiered -q topic create orders -X segment.bytes=64KiB -X retention.ms=365d -X local.retention.ms=1d",
    "tiered -q topic create prices -X cleanup.policy=compact -X segment.bytes=64KiB",
    "tiered -q append orders orders.jsonl --jsonl --batch 20",
    "tiered -q append prices prices.txt -K : --batch 20",
    "tiered -q run --once",
)
_TIERED = (*_NODE, "tiered -q run --once")


def _flip(home: Path) -> None:
    """Damage the middle of the first segment in the bucket."""
    wrong = min((home / "bucket").glob("orders-*/0/data/*.log"))
    body = bytearray(wrong.read_bytes())
    body[1000] ^= 1
    wrong.chmod(0o600)
    wrong.write_bytes(bytes(body))


SESSIONS = (
    Session(
        "topics",
        (
            "tiered init",
            "tiered topic create orders -p 3 -X retention.ms=30d -X local.retention.ms=6h",
            "tiered topic create prices -X cleanup.policy=compact",
            "tiered topic create orders",
            "tiered topic list",
            "tiered append orders orders.txt -K :",
            "tiered topic describe orders",
            "tiered topic alter orders -X segment.bytes=64MiB",
            "tiered topic delete prices",
            "tiered topic delete prices --yes",
            "tiered topic list -o json",
        ),
    ),
    Session(
        "records",
        (
            "tiered append orders orders.txt -K : --batch 20",
            "tiered consume orders/0 -n 5",
            "tiered consume orders/0 --from -3 -f '%o %d %k=%v\\n'",
            "tiered get-offsets orders",
            "tiered get-offsets orders --time earliest -o csv",
            "tiered delete-records orders/0 --before 5 --dry-run",
            "tiered delete-records orders/0 --before 5 --yes",
            "tiered consume orders/0 -n 1 -o jsonl",
        ),
        before=("tiered -q init", f"tiered -q topic create orders -p 2 {_SMALL}"),
    ),
    Session(
        "day",
        (
            "tiered status",
            "tiered plan",
            "tiered plan --summary",
            "tiered -q run --once",
            "tiered status",
            "tiered status -p --section remote,lag",
            "tiered status --section sync",
            "later 2h",
            "tiered plan --out plan.json",
            "tiered apply plan.json --dry-run",
            "tiered apply plan.json",
            "tiered apply plan.json --yes",
            "tiered apply plan.json --yes",
            "tiered status --check",
        ),
        before=_NODE,
    ),
    Session(
        "inside",
        (
            "tiered dump data/orders-0/00000000000000000000.log",
            "tiered dump data/orders-0/00000000000000000000.index",
            "tiered dump orders/0 --records -n 2",
            "tiered verify",
            "tiered verify --deep -o json",
        ),
        before=_NODE,
    ),
    Session(
        "cost",
        (
            "tiered cost show",
            "tiered cost simulate orders --retention 7d,30d,365d --local 1h,1d",
            "tiered cost simulate orders --class standard,ia --reads 0,100%",
            "tiered cost simulate orders --retention 7d,30d --chart",
            "tiered cost advise",
        ),
        before=(*_YEAR, "later 2h"),
    ),
    Session(
        "compaction",
        (
            "tiered compaction status",
            "tiered compact prices --dry-run",
            "tiered compact prices",
            "tiered compaction status",
            "tiered compaction advise",
            "tiered view build orders --dry-run",
            "tiered view status orders",
        ),
        before=_NODE,
    ),
    Session(
        "care",
        (
            "tiered scrub",
            "tiered restore orders --to restored --dry-run",
            "tiered restore orders --to restored --yes",
            "tiered restore orders --to restored --yes",
            "tiered gc",
            "tiered rewrite merge orders --dry-run",
            "tiered fork orders orders-trial --dry-run",
            "tiered remote ls file:///srv/logs/the-node/bucket",
            "flip",
            "tiered scrub --deep --report found.json",
            "tiered repair found.json --dry-run",
            "tiered consume orders/0 --remote file:///srv/logs/the-node/bucket -n 1",
            "tiered repair found.json",
            "tiered repair found.json --yes",
            "tiered repair found.json --dry-run",
            "tiered consume orders/0 --remote file:///srv/logs/the-node/bucket -n 1",
        ),
        before=_TIERED,
        deeds=(("flip", _flip),),
    ),
    Session(
        "health",
        (
            "tiered doctor",
            "tiered log-dirs",
            "tiered pause orders --reason 'the bucket moves'",
            "later 2h",
            "tiered status",
            "tiered doctor --problems",
            "tiered pause --list",
            "tiered resume",
            "tiered status --check",
        ),
        before=(
            "tiered -q init",
            "tiered -q topic create orders -p 2 -X retention.ms=3d",
            "tiered -q append orders orders.txt -K :",
            "tiered -q run --once",
        ),
    ),
    Session(
        "mistakes",
        (
            "tiered statsu",
            "tiered topic creat orders",
            "tiered status --chek",
            "tiered consume ordres",
            "tiered topic alter orders -X retenton.ms=7d",
            "tiered -X retention.ms=7days status",
            "tiered consume orders/7",
            "tiered consume orders/0 --from 99999",
            "tiered restore orders --to data --yes",
            "tiered config explain retention.m",
            "tiered apply nothing.json",
        ),
        before=_TIERED,
    ),
    Session(
        "config",
        (
            "tiered config explain retention.ms",
            "tiered config explain local.retention.ms -t orders",
            "tiered config explain remote.log.delete.grace.ms -o json",
            "tiered topic describe orders --settings",
        ),
        before=_NODE,
    ),
)

# Commands of sessions whose JSON has a schema, by the page of docs/reference/schemas.
WITH_SCHEMA = {
    "tiered status": "status",
    "tiered status -p --section remote,lag": "status-partitions",
    "tiered plan": "plan",
    "tiered plan --summary": "plan-summary",
    "tiered cost show": "cost-show",
    "tiered cost simulate orders --retention 7d,30d,365d --local 1h,1d": "cost-simulate",
    "tiered cost advise": "cost-advise",
}


class _Terminal(io.TextIOWrapper):
    """A stream that commands treat as a terminal."""

    def isatty(self) -> bool:
        return True


class _Shared(io.BytesIO):
    """Stdout and stderr of one command in one buffer, like on a terminal. Closing one leaves the other open."""

    def close(self) -> None:
        pass


class Player:
    """Runs commands in its own directory. `run` returns the exit code and the whole output in order."""

    def __init__(self, home: Path, width: int) -> None:
        self.home, self.width, self.now_ms = home, width, NOON
        self.printed_json: dict[str, str] = {}
        self.random = random.Random(0)  # real ids differ, and some numbers in the index have fewer digits

    def play(self, session: Session) -> str:
        self._write_lines()
        for line in session.before:
            code, told = self.step(line, session)
            assert code == 0, f"{line}\n{told}"
        shown = []
        for line in session.commands:
            code, told = self.step(line, session)
            if not line.startswith("tiered "):
                shown.append(f"[{line}]\n")
                continue
            if line in WITH_SCHEMA:
                self.printed_json[line] = self.run(f"{line} -o json")[1].partition("\n")[0]
            end = f"[exit {code}]\n" if code else ""
            shown.append(f"$ {line}\n{told}{end}")
        return "\n".join(shown)

    def step(self, line: str, session: Session) -> tuple[int, str]:
        self.now_ms += 1000
        for name, deed in session.deeds:
            if line == name:
                deed(self.home)
                return 0, ""
        if line.startswith("later "):
            self.now_ms += int(line.removeprefix("later ").removesuffix("h")) * 3_600_000
            return 0, ""
        return self.run(line)

    def run(self, line: str) -> tuple[int, str]:
        screen = _Shared()
        out = _Terminal(screen, "utf-8", write_through=True)
        err = io.TextIOWrapper(screen, "utf-8", write_through=True)  # a file: no progress bars
        words = shlex.split(line.replace(_PLACE, str(self.home)))[1:]
        with self._disguise(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = invoke(words)
        lines = [each.rstrip() for each in self.masked(_CODES.sub("", screen.getvalue().decode())).splitlines()]
        return code, "".join(f"{each}\n" for each in lines)

    @contextlib.contextmanager
    def _disguise(self) -> Iterator[None]:
        """Replace directory, clock and terminal. Ids and paths are replaced before a table is laid out."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}
        kept |= {"COLUMNS": str(self.width), "LINES": "50", "NO_COLOR": "1", "TERM": "xterm", "TZ": "UTC"}
        cells = render._cells
        with (
            contextlib.chdir(self.home),
            mock.patch.dict(os.environ, kept, clear=True),
            mock.patch.object(time, "time_ns", return_value=self.now_ms * 1_000_000),
            mock.patch.object(secrets, "randbits", self.random.getrandbits),
            mock.patch.object(uuid, "uuid4", self._uuid),
            mock.patch.object(time, "perf_counter", side_effect=itertools.count(0, _FSYNC_S)),
            mock.patch.object(DiskStorage, "modified_ms", return_value=self.now_ms),
            mock.patch.object(DiskStorage, "space", return_value=_ROOM),
            mock.patch.object(doctor.resource, "getrlimit", return_value=(65536, 65536)),
            mock.patch.object(importlib.metadata, "version", lambda name: _VERSIONS[name]),
            mock.patch.object(platform, "python_version", return_value="3.12.9"),
            mock.patch.object(kernels, "implementation", return_value="compiled"),
            mock.patch.object(socket, "gethostname", return_value="the-node"),
            mock.patch.object(render, "_cells", lambda *row: [self.masked(each) for each in cells(*row)]),
        ):
            yield

    def _uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def masked(self, text: str) -> str:
        text = _TOPIC_PREFIX.sub("a-topic-id-of-22-chars", text.replace(str(self.home), _PLACE))
        text = _FINGERPRINT.sub("0123456789abcdef", text)
        return _ULID.sub("01" + "ABCDEFGH" * 3, _TOPIC_ID.sub("a-topic-id-of-22-chars", text))

    def _write_lines(self) -> None:
        orders = "".join(f"customer-{at % 7}:order {at}, of a few words\n" for at in range(240))
        (self.home / "orders.txt").write_text(orders)
        entries = (
            {"key": f"c{at % 7}", "value": "order " * 200, "timestamp": NOON - (2400 - at) * 3_600_000}
            for at in range(2400)
        )
        (self.home / "orders.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
        (self.home / "prices.txt").write_text("".join(f"item-{at % 9}:{at}.00\n" for at in range(240)))


@contextlib.contextmanager
def a_home() -> Iterator[Path]:
    """A directory with a name as long as the shown name."""
    with tempfile.TemporaryDirectory(prefix="node-", dir="/tmp") as folder:
        assert len(folder) <= len(_PLACE), folder
        yield Path(folder)


def file_of(session: Session, width: int) -> Path:
    return FOLDER / f"{session.name}.{width}.txt"


def play(session: Session, width: int) -> tuple[str, dict[str, str]]:
    """The output of a session, and the JSON of its commands of WITH_SCHEMA."""
    with a_home() as home:
        player = Player(home, width)
        return player.play(session), player.printed_json


if __name__ == "__main__":
    assert sys.argv[1:2] == ["--write"], __doc__
    for session in SESSIONS if not sys.argv[2:] else [each for each in SESSIONS if each.name in sys.argv[2:]]:
        for width in WIDTHS:
            file_of(session, width).write_text(play(session, width)[0])
