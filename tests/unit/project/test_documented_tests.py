"""Scripts, options, markers and files named on the pages about tests and code exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

from page_runner import ROOT, blocks_of, lines_of

PAGE, CODE_PAGE = (ROOT / "docs" / "how-to" / f"{name}.md" for name in ("run-the-tests", "change-the-code"))
OF_PYTEST = {"--deep", "--pdb", "--randomly-seed", "--hypothesis-profile"}


def complaints(page: Path) -> list[str]:
    """Names in command lines that do not exist."""
    told = []
    for _, body in blocks_of(page):
        for line in lines_of(body):
            words = shlex.split(line)
            scripts = [word for word in words if "/" in word and not word.startswith(("/", "~", "-", "TIERED_"))]
            told += [f"{line}: {each}" for each in scripts if not (ROOT / each).exists()]
            text = "".join((ROOT / each).read_text() for each in scripts if (ROOT / each).is_file())
            options = {word.partition("=")[0] for word in words if word.startswith("--")} - OF_PYTEST
            told += [f"{line}: {each}" for each in sorted(options) if f'"{each}"' not in text]
            markers = set(re.findall(r"[a-z]+", words[words.index("-m") + 1])) if "-m" in words else set()
            told += [f"{line}: {each}" for each in sorted(markers - {"not", "and", "or"} - _markers())]
            variables = [word.partition("=")[0] for word in words if re.match(r"[A-Z_]+=", word)]
            told += [f"{line}: {each}" for each in variables if f'"{each}"' not in _CODE]
    return told


def _markers() -> set[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    return {each.partition(":")[0] for each in settings["markers"]}


_PATHS = [path for room in ("tests", "local") for path in (ROOT / room).rglob("*.py") if path != Path(__file__)]
_CODE = "".join(path.read_text() for path in _PATHS)


def test_page_about_the_tests_names_only_existing_things() -> None:
    assert complaints(PAGE) == []
    table = re.findall(r"^\| `(\w+)` \|", PAGE.read_text().partition("## Markers")[2].partition("```")[0], re.MULTILINE)
    assert set(table) == _markers() - {"damages_bucket"}


def test_page_about_the_code_names_only_existing_files() -> None:
    assert complaints(CODE_PAGE) == []
    named = re.findall(r"`([a-z]+/[\w/.]+)`", CODE_PAGE.read_text())
    assert [each for each in named if not (ROOT / each).exists()] == []
    assert len(named) > 15


def settings_places() -> list[tuple[str, str]]:
    """Each row of the table of places below "Add a setting that decides something": the place, the tests that fail."""
    table = CODE_PAGE.read_text().partition("## Add a setting that decides")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([\w/.]+)` \| .+ \| (.+) \|$", table, re.MULTILINE)


def test_places_of_a_setting_exist_and_name_the_setting() -> None:
    places = settings_places()
    assert len(places) > 10
    wrong = [
        place for place, _ in places if not re.search(r"copy[._]window", (ROOT / place).read_text(), re.IGNORECASE)
    ]
    assert wrong == []
    tests = {path for _, tests in places for path in re.findall(r"`(tests/[\w/.]+)`", tests)}
    assert [path for path in sorted(tests) if not (ROOT / path).exists()] == []


def test_missing_script_marker_or_option_is_reported(tmp_path: Path) -> None:
    (tmp_path / "wrong.md").write_text(
        "```sh\n.ci/wth pytest\n.ci/with pytest -m sparkle\n.ci/with python tests/crash/campaign.py --stats 7\n"
        "TIERED_NO_SKIP=1 .ci/with pytest\n```\n"
    )
    wrong = [each.rpartition(": ")[2] for each in complaints(tmp_path / "wrong.md")]
    assert wrong == [".ci/wth", "sparkle", "--stats", "TIERED_NO_SKIP"]
