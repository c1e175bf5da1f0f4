"""`tiered config explain` and the completion of shells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from tiered.cli.main import COMMANDS, invoke, main
from tiered.cli.node.generate import VARIABLE, answer, example_of
from tiered.config.properties import PROPERTIES, parse


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    assert invoke(["init"]) == 0
    assert invoke(["topic", "create", "orders", "-p", "2", "-X", "retention.ms=3d"]) == 0
    assert invoke(["topic", "create", "bills"]) == 0
    return tmp_path


def test_config_explain_shows_a_setting_with_value_and_origin(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def explained(*words: str) -> dict[str, str]:
        capfd.readouterr()
        assert invoke([*words, "-o", "json"]) == 0
        (row,) = json.loads(capfd.readouterr().out)["settings"]
        return row

    row = explained("config", "explain", "retention.ms")
    assert (row["value"], row["origin"], row["kafka"], row["of"]) == ("7d", "default", "retention.ms", "topic")
    assert row["meaning"]
    row = explained("config", "explain", "retention.ms", "-t", "orders")
    assert (row["value"], row["origin"], row["default"]) == ("3d", "topic orders", "7d")
    monkeypatch.setenv("TIERED_RETENTION_MS", "4d")
    row = explained("config", "explain", "retention.ms", "-t", "orders")
    assert (row["value"], row["origin"]) == ("4d", "environment")
    row = explained("-X", "retention.ms=5d", "config", "explain", "retention.ms", "-t", "orders")
    assert (row["value"], row["origin"]) == ("5d", "-X")
    assert explained("config", "explain", "cost.prices")["kafka"] == "none, it is a setting of tiered"
    assert invoke(["config", "explain", "retention.ms"]) == 0
    assert "origin    environment\n" in capfd.readouterr().out
    assert invoke(["config", "explain", "retenton.ms"]) == 2
    assert "did_you_mean=retention.ms" in capfd.readouterr().err


def test_example_of_every_setting_is_a_valid_value() -> None:
    for name, row in PROPERTIES.items():
        parse(name, example_of(row))


@pytest.mark.parametrize(
    ("words", "incomplete", "expected"),
    [
        ([], "", list(COMMANDS)),
        ([], "cons", ["consume"]),
        (["topic"], "cr", ["create"]),
        (["consume"], "", ["bills", "orders"]),
        (["consume", "--from", "start"], "o", ["orders"]),
        (["topic", "delete"], "b", ["bills"]),
        (["topic", "create"], "b", []),
        (["-C", ".", "status", "bills"], "o", ["orders"]),
        (["status"], "--che", ["--check"]),
        (["topic", "alter", "orders", "-X"], "retention.b", ["retention.bytes="]),
        (["config", "explain"], "retention.b", ["retention.bytes"]),
        (["consume"], "orders/", ["orders/0", "orders/1"]),
        (["-C", ".", "delete-records"], "orders/1", ["orders/1"]),
        (["consume"], "nothing/", []),
        (["status"], "orders/", []),
        (["-q", "topic", "delete"], "b", ["bills"]),
        (["log-dirs", "move"], "bills/", ["bills/0"]),
    ],
    ids=str,
)
def test_completion_offers_the_possible_words(
    home: Path, words: list[str], incomplete: str, expected: list[str]
) -> None:
    assert [
        each.value for each in BashComplete(main, {}, "tiered", VARIABLE).get_completions(words, incomplete)
    ] == expected


def test_completion_of_an_invalid_line_or_missing_directory_offers_nothing(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_WORDS", "tiered nonsense ")
    monkeypatch.setenv("COMP_CWORD", "2")
    capfd.readouterr()
    assert answer("bash_complete") == 0
    monkeypatch.setenv("COMP_WORDS", "tiered -C nowhere status ")
    monkeypatch.setenv("COMP_CWORD", "4")
    assert answer("bash_complete") == 0
    assert capfd.readouterr().out.split() == []
    assert answer("tcsh_complete") == 1


def test_completion_of_topics_imports_no_heavy_library(home: Path) -> None:
    heavy = "print(sorted({'numpy', 'pyarrow', 'fsspec', 'rich', 'pyspark'} & set(sys.modules)))"
    code = f"import sys\nfrom tiered.cli.main import run\ntry:\n    run()\nfinally:\n    {heavy}"
    asked = {"_TIERED_COMPLETE": "bash_complete", "COMP_WORDS": "tiered status ", "COMP_CWORD": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **asked})
    assert done.stdout.split() == ["plain,bills", "plain,orders", "[]"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_calls_tiered(capfd: pytest.CaptureFixture[str], shell: str) -> None:
    assert invoke(["completion", shell]) == 0
    assert f"_TIERED_COMPLETE={shell}_complete" in capfd.readouterr().out
