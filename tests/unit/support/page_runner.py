"""Runs the blocks of a page in order in its own directory, like a reader of the page.

A `Page` gives the state before the page (`setup`), events before some lines, and the exit codes that the page
promises. Blocks that are not run are listed with a reason. Absolute paths are mapped below the directory, ``s3://`` is
a server on loopback, questions are answered with yes.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from command_server import Commands

from tiered.demo.s3_endpoint import S3Endpoint

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```(?P<language>sh|bash|console|python)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
_ABSOLUTE = re.compile(r"(?<![\w:.\-/}])/(srv|var|etc|tmp|mnt|disk\d|secrets)\b")
_PATIENCE_S = 100


@dataclass(frozen=True, slots=True)
class Until:
    """A command that runs until it is stopped. It is ready once its output has `told`, or `url` answers.

    `and_with` are additional words, where a default may be in use on this machine.
    """

    told: str = ""
    url: str = ""
    and_with: str = ""
    by: signal.Signals = signal.SIGTERM
    code: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """How one page is run. Lines are named without their comments, Python blocks ``python 1`` and so on."""

    setup: str = ""
    buckets: tuple[str, ...] = ()
    codes: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)
    before: Mapping[str, str] = field(default_factory=dict)
    until: Mapping[str, Until] = field(default_factory=dict)
    not_run: Mapping[str, str] = field(default_factory=dict)
    preamble: str = ""
    exports: Mapping[str, str] = field(default_factory=dict)


def lines_of(body: str) -> list[str]:
    """The commands of a block, one per line, with continued lines joined and comments removed."""
    joined = re.sub(r"\\\n\s*", "", body)
    lines = [re.sub(r"(^|\s+)#( .*)?$", "", line).strip().removeprefix("$ ") for line in joined.splitlines()]
    return [line for line in lines if line]


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """(language, body) of each block that can be run."""
    return [(found["language"], found["body"]) for found in BLOCK.finditer(page.read_text())]


class Reader:
    """A directory with a shell. `port` is a free port for servers."""

    def __init__(self, folder: Path, commands: Commands, endpoint: S3Endpoint | None, port: int) -> None:
        self.folder, self.port = folder, port
        self.said: list[str] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIERED_", "AWS_"))}
        self.environment = kept | {
            "PATH": f"{commands.directory}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
        }
        if endpoint is not None:
            self.environment |= {
                "AWS_ENDPOINT_URL": endpoint.url,
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": "loopback",
                "AWS_SECRET_ACCESS_KEY": "loopback",
                "AWS_DEFAULT_REGION": "us-east-1",
            }
            self._endpoint = endpoint

    def make_buckets(self, names: tuple[str, ...]) -> None:
        """Create empty buckets and remove all others."""
        if names:
            _request("POST", f"{self._endpoint.url}/moto-api/reset")
        for name in names:
            _request("PUT", f"{self._endpoint.url}/{name}")

    def follow(self, path: Path, page: Page) -> None:
        """Run the whole page. Raises AssertionError with the line that does not do what the page says."""
        self.environment |= {name: self.here(value) for name, value in page.exports.items()}
        self.make_buckets(page.buckets)
        self.run("set -e\n" + page.setup)
        pythons = 0
        for language, body in blocks_of(path):
            if language == "python":
                pythons += 1
                self._python(f"python {pythons}", page, body)
            else:
                self._shell(lines_of(body), page)

    def here(self, text: str) -> str:
        """Map the absolute paths of a page below the directory, and its ports to the free port."""
        text = _ABSOLUTE.sub(rf"{self.folder}/\1", text)
        return re.sub(r"(?<=:)(946[45]|8080)\b", str(self.port), text)

    def run(self, script: str) -> str:
        """Stdout of a script that must succeed."""
        (code, out, err), *_ = self._run_lines([script])
        assert code == 0, f"{script[-200:]}\nexit code {code}\n{out}\n{err}"
        return out

    def _python(self, name: str, page: Page, body: str) -> None:
        if name in page.not_run:
            return
        if name in page.before:
            self.run("set -e\n" + page.before[name])
        code = self.here(f"{page.preamble}\n{body}")
        (self.folder / "block.py").write_text(code)
        self.run('python -c "$(cat block.py)"')

    def _shell(self, lines: list[str], page: Page) -> None:
        """Run lines in one shell with the variables of earlier lines. A new shell begins after an event."""
        run: list[str] = []
        for line in lines:
            if line in page.not_run:
                continue
            if line in page.before or line in page.until:
                self._expect(run, page)
                run = []
            if line in page.before:
                self.run("set -e\n" + page.before[line])
            if line in page.until:
                self._until(line, page.until[line])
            else:
                run.append(line)
        self._expect(run, page)

    def _expect(self, lines: list[str], page: Page) -> None:
        for line, (code, out, err) in zip(lines, self._run_lines(lines), strict=True):
            wanted = page.codes.get(line, 0)
            assert code in (wanted if isinstance(wanted, tuple) else (wanted,)), (
                f"{line}\nexit code {code}\n{out}\n{err}"
            )
            assert "Traceback" not in err, f"{line}\n{err}"

    def _run_lines(self, lines: list[str]) -> list[tuple[int, str, str]]:
        if not lines:
            return []
        parts = [
            f"{{ {self.here(line)}\n}} >.out.{at} 2>.err.{at}; echo $? >.code.{at}" for at, line in enumerate(lines)
        ]
        ours, theirs = pty.openpty()
        os.write(ours, b"y\n" * 50)
        try:
            child = subprocess.Popen(
                ["bash", "-c", "set -o pipefail\n" + "\n".join(parts)],
                cwd=self.folder,
                env=self.environment,
                stdin=theirs,
                start_new_session=True,
            )
            try:
                child.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGTERM)  # the commands too: each client passes the signal on to its fork
                child.wait(_PATIENCE_S)
        finally:
            os.close(ours)
            os.close(theirs)
        found = []
        for at in range(len(lines)):
            code, out, err = (self.folder / f".{kind}.{at}" for kind in ("code", "out", "err"))
            assert out.exists(), f"{lines[at]}\nwas not begun in time"
            found.append((int(code.read_text() if code.exists() else -1), out.read_text(), err.read_text()))
            self.said.append(f"$ {lines[at]}\n{out.read_text()}{err.read_text()}")
            out.unlink()
            code.unlink(missing_ok=True)
        return found

    def _until(self, line: str, until: Until) -> None:
        told = self.folder / ".until"
        with told.open("w") as output:
            child = subprocess.Popen(
                ["bash", "-c", f"exec {self.here(f'{line} {until.and_with}')}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + _PATIENCE_S
        try:
            while not self._is_ready(until, told.read_text()):
                assert child.poll() is None, f"{line}\nended by itself: {told.read_text()}"
                assert time.monotonic() < deadline, f"{line}\nis not ready: {told.read_text()}"
                time.sleep(0.05)
            child.send_signal(until.by)
            code = child.wait(_PATIENCE_S)
        finally:
            child.kill()
            child.wait()
        self.said.append(f"$ {line}\n{told.read_text()}")
        assert code == until.code, f"{line}\nexit code {code}\n{told.read_text()}"

    def _is_ready(self, until: Until, told: str) -> bool:
        if until.url:
            try:
                with urllib.request.urlopen(self.here(until.url), timeout=1) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False
        return until.told in told


def _request(verb: str, url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, method=verb), timeout=10):
        pass
