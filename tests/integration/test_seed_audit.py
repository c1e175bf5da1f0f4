"""Every row of the audit of the seed texts is proven: its command prints the words, or its tests exist."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_server import Commands
from page_runner import ROOT, blocks_of

PAGE = ROOT / "docs" / "reference" / "seed-audit.md"
_ROW = re.compile(
    r"^\| (?P<number>\d+) \| (?P<feature>.+?) \| (?P<shown>.*?) ?\| (?P<words>.*?) ?\| (?P<verdict>.+) \|$", re.M
)
_MISSING_ON_PURPOSE = {"Replication between brokers"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of the page. `shown` is a command or the path of a test file, without backticks."""

    number: int
    feature: str
    shown: str
    words: str
    verdict: str


def entries_of(text: str) -> list[Row]:
    """The rows of the page, in order."""
    return [
        Row(
            number=int(each["number"]),
            feature=each["feature"],
            shown=each["shown"].strip("`"),
            words=each["words"],
            verdict=each["verdict"],
        )
        for each in _ROW.finditer(text)
    ]


ROWS = entries_of(PAGE.read_text())


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """The deployment that the page creates, and the environment of its commands."""
    home = tmp_path_factory.mktemp("audit")
    (home / "bucket").mkdir()
    with Commands(tmp_path_factory.mktemp("commands")) as commands:
        environ = {**os.environ, "PATH": f"{commands.directory}:{os.environ['PATH']}", "COLUMNS": "200"}
        (_, body), *_rest = blocks_of(PAGE)
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", body], cwd=home, env=environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        yield home, environ


def test_the_audit_has_a_verdict_for_at_least_120_features() -> None:
    assert [each.number for each in ROWS] == list(range(1, len(ROWS) + 1))
    assert len(ROWS) >= 120
    unknown = [each.feature for each in ROWS if not re.match(r"works|differs: |missing", each.verdict)]
    assert unknown == []
    missing = {each.feature for each in ROWS if each.verdict.startswith("missing")}
    assert missing == _MISSING_ON_PURPOSE


def test_every_test_named_by_the_audit_exists() -> None:
    named = [each.shown for each in ROWS if each.shown.startswith("tests/")]
    gone = []
    for each in named:
        path, _, function = each.partition("::")
        if not (ROOT / path).is_file() or (function and f"def {function}(" not in (ROOT / path).read_text()):
            gone.append(each)
    assert gone == []
    assert len(named) > 50


@pytest.mark.deep("more than 60 commands")
def test_commands_of_the_audit_print_the_expected_words(
    deployment: tuple[Path, dict[str, str]],
) -> None:
    home, environ = deployment
    wrong = []
    commands = [each for each in ROWS if each.shown.startswith("tiered ")]
    for row in commands:
        done = subprocess.run(["bash", "-c", row.shown], cwd=home, env=environ, capture_output=True, text=True)
        if done.returncode != 0 or row.words not in done.stdout + done.stderr:
            wrong.append(f"{row.number} {row.shown}: exit {done.returncode}\n{done.stdout[-600:]}{done.stderr[-600:]}")
    assert not wrong, "\n".join(wrong)
    assert len(commands) > 60
