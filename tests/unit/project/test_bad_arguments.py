"""Invalid arguments of every command: no traceback, one line of error, a documented exit code, nothing changed.

The values and commands come from `bad_arguments`. The test draws some values of each option by a seed. To run all, or
those of some commands: ``python tests/unit/project/test_bad_arguments.py [COMMAND ...]``.
"""

from __future__ import annotations

import io
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from bad_arguments import Case, cases, leaves, right_words, some_cases
from run_profile import BAD_VALUES

from tiered.cli.errors import Exit
from tiered.cli.main import invoke

_SILENT = {Exit.DONE, Exit.FINDINGS, Exit.UNHEALTHY}  # the argument was accepted
_NO_NUMBERS = ("", " ", "nan", "inf", "-inf", "1e400", "..", "nosuch")
_MAKES_A_PLACE = {"init", "demo"}
_IN_TABLE = {"pipeline plan"}  # a problem of one of several nodes is reported in its row
_FOREIGN = re.compile(
    r"Traceback|internal error|\[errno|<(class|function|built-in)|0x[0-9a-f]{8}|NoneType", re.IGNORECASE
)


@contextmanager
def node(home: Path) -> Iterator[tuple[int, str]]:
    """Create a small node in `home` and change to it. Yields a port in use and the address of the bucket."""
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as taken:
        patch.chdir(home)
        for variable in [each for each in os.environ if each.startswith(("TIERED_", "AWS_"))]:
            patch.delenv(variable)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for module in ("pyspark", "pyspark.sql", "pyspark.sql.datasource"):
            patch.setitem(sys.modules, module, None)  # a Spark session takes seconds
        Path("lines").write_text("".join(f"k{at}:value {at}\n" for at in range(30)))
        Path("nothing").touch()
        Path("directory").mkdir()
        for words in (
            ["init"],
            ["topic", "create", "orders", "-p", "2", "-X", "segment.bytes=1KiB"],
            ["topic", "create", "latest", "-X", "cleanup.policy=compact"],
            ["append", "orders", "lines", "-K", ":", "--batch", "5"],
            ["run", "--once"],
            ["plan", "--out", "old.json"],
            ["scrub", "--report", "report.json"],
        ):
            assert invoke(["-q", *words]) == 0
        yield taken.getsockname()[1], (home / "bucket").as_uri()


def kept(home: Path) -> dict[str, bytes | None]:
    """Every file and directory, without the files that a manager writes at each open."""
    found: dict[str, bytes | None] = {}
    for path in sorted(home.rglob("*")):
        inside = path.relative_to(home).as_posix()
        is_own = path.parent.name == "data" and path.is_file() and path.name != "topics.json"
        if not is_own and "/meta" not in inside and not inside.endswith(_REWRITTEN):
            found[inside] = path.read_bytes() if path.is_file() else None
    return found


# Side files of a log that is closed cleanly, and lock files.
_REWRITTEN = (".snapshot", "checkpoint", ".index", ".timeindex", ".txnindex", ".lock")


def wrongs(case: Case, home: Path, told: Callable[[], tuple[str, str]]) -> list[str]:
    """Violations by a command line, as texts."""
    before = kept(home)
    try:
        code = invoke(list(case.words))
    except BaseException as error:  # noqa: BLE001 - any exception that leaves the command is a finding
        return [f"{type(error).__name__} came out"]
    out, err = told()
    found = [f"speaks of {match[0]}" for match in _FOREIGN.finditer(out + err)]
    if code not in set(Exit):
        found.append(f"exit {code}")
    if code in _SILENT:
        return found + ([f"took {case.value!r} for a number"] if case.is_number and case.value in _NO_NUMBERS else [])
    lines = [line for line in err.splitlines() if line.startswith(("error: ", "! "))]
    found += [] if lines or case.command in _IN_TABLE else ["no line of error"]
    found += ["several lines of error"] if sum(line.startswith("error: ") for line in lines) > 1 else []
    found += ["the usage in place of a line"] if "Usage:" in err else []
    after = kept(home)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name, 0) != after.get(name, 0))
    return found + ([f"exit {code}, and changed {changed}"] if changed else [])


def test_invalid_values_are_refused_in_one_line_and_change_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def told() -> tuple[str, str]:
        found = capfd.readouterr()
        return found.out, found.err

    with node(tmp_path) as (port, bucket):
        chosen = some_cases(port, bucket, of_each=BAD_VALUES, seed=7)
        told()
        found = {str(case): bad for case in chosen if (bad := wrongs(case, tmp_path, told))}
    assert not found
    assert len(chosen) > 200 * BAD_VALUES
    assert {case.command for case in chosen} >= {name for name, command in leaves() if command.params} - {"bench"}


# Broken places: the hint that the answers must contain, and the change of the configuration. None: no change.
_PLACES = {
    "the directory does not exist": ("tiered init", None),
    "the bucket is gone": ("correct the url", ("/bucket", "/gone")),
    "the log directory is a file": ("a file exists at the path of a directory", ('"data"', '"lines"')),
    "another manager is at work": ("stop that manager, or wait", None),
}


@pytest.mark.parametrize("what", _PLACES)
def test_every_command_in_a_broken_place_fails_in_one_line_and_changes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], what: str
) -> None:
    from tiered.config.config import Config
    from tiered.manager.manager import LogManager

    def told() -> tuple[str, str]:
        found = capfd.readouterr()
        seen.append(found.err)
        return found.out, found.err

    seen: list[str] = []
    hint, change = _PLACES[what]
    with node(tmp_path) as (port, bucket), ExitStack() as stack:
        toml = tmp_path / "tiered.toml"
        if change is not None:
            toml.write_text(toml.read_text().replace(*change))
        if what == "another manager is at work":
            stack.enter_context(LogManager.open(Config.load(str(toml)), now_ms=0))
        place = ("-C", "nowhere") if what == "the directory does not exist" else ()
        told()
        found = {}
        for name, _, right in right_words(port, bucket):
            if name in _MAKES_A_PLACE:
                continue
            case = Case(name, "", "", (*place, *name.split(), *right))
            if bad := wrongs(case, tmp_path, told):
                found[str(case)] = bad
    assert not found
    assert sum(hint in err for err in seen) >= 10


def _all(commands: list[str]) -> None:
    import contextlib
    import tempfile
    import time

    with tempfile.TemporaryDirectory() as place, node(Path(place)) as (port, bucket):
        for case in cases(port, bucket):
            if commands and case.command not in commands:
                continue
            out, err = (io.TextIOWrapper(io.BytesIO(), errors="surrogateescape") for _ in range(2))
            start = time.process_time()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                bad = wrongs(case, Path(place), lambda out=out, err=err: (_text(out), _text(err)))  # type: ignore[misc]
            took = time.process_time() - start
            for each in bad + ([f"took {took:.1f} s"] if took > 1 else []):
                print(f"{str(case)!a}\n    {each}\n    {_text(err)[-400:]!a}", flush=True)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode(errors="replace")  # type: ignore[attr-defined, no-any-return]


if __name__ == "__main__":
    _all(sys.argv[1:])
