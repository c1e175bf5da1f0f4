"""Every mistake of the table is made for real: one helpful line, the exit code, no traceback, nothing written."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from mistakes import MISTAKES, PAGE, Mistake, render

from tiered.cli.main import invoke


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A node that is well: a tiered topic of two partitions, a compacted one, files to give to commands."""
    home = tmp_path_factory.mktemp("mistakes")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        _forget_variables(patch)
        assert invoke(["init"]) == 0
        (home / "lines").write_text("".join(f"k{at}:value {at}\n" for at in range(60)))
        assert invoke(["topic", "create", "orders", "-p", "2", "-X", "segment.bytes=1KiB"]) == 0
        assert invoke(["topic", "create", "latest", "-X", "cleanup.policy=compact"]) == 0
        assert invoke(["append", "orders", "lines", "-K", ":", "--batch", "5"]) == 0
        assert invoke(["plan", "--out", "old.json"]) == 0
        (home / "broken.json").write_text((home / "old.json").read_text()[:-9])
        yield home


def _forget_variables(patch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        patch.delenv(variable)


def change_world(name: str, home: Path, patch: pytest.MonkeyPatch, stack: ExitStack) -> str:
    """Make the node what the row says, until `stack` ends; a port that is taken, or nothing."""
    toml = home / "tiered.toml"
    texts = {
        "misspelt": "[defaults]\n'retenton.ms' = 1\n",
        "section": "[remot]\nurl = 's3://b'\n",
        "no toml": "[local]\ndir = data\n",
        "not a directory": "[local]\ndir = 'lines'\n",
        "no key ring": toml.read_text().replace("[remote]", "[remote]\nkey_ring = 'no-keys'"),
    }
    if name in texts:
        stack.callback(toml.write_text, toml.read_text())
        toml.write_text(texts[name])
    elif name == "variable":
        patch.setenv("TIERED_RETENTON_MS", "7d")
    elif name == "no spark":
        for module in ("pyspark", "pyspark.sql", "pyspark.sql.datasource"):
            patch.setitem(sys.modules, module, None)
    elif name == "locked":
        from tiered.config import Config
        from tiered.manager import LogManager

        stack.enter_context(LogManager.open(Config.load(str(toml)), now_ms=0))
    elif name == "port taken":
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        return str(taken.getsockname()[1])
    elif name == "changed":
        assert invoke(["delete-records", "orders/0", "--before", "3", "--yes"]) == 0
    return ""


def kept(home: Path) -> dict[str, bytes]:
    """What a refused command must leave: records, topics, the configuration, objects of data, all names beside them."""
    found = {}
    for path in sorted(home.rglob("*")):
        inside = path.relative_to(home).parts
        is_state = inside[0] in ("data", "bucket") and path.suffix != ".log" and path.name != "topics.json"
        if path.is_file() and not is_state:
            found["/".join(inside)] = path.read_bytes()
    return found


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.what)
def test_a_mistake_is_answered_with_what_where_and_what_next(
    node: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], row: Mistake
) -> None:
    monkeypatch.chdir(node)
    _forget_variables(monkeypatch)
    with ExitStack() as stack:
        port = change_world(row.world, node, monkeypatch, stack)
        before = kept(node)
        capfd.readouterr()
        assert invoke([word.replace("{port}", port) for word in row.words]) == row.code
        told = capfd.readouterr()
        assert kept(node) == before, "nothing is written"
    (line,) = [each for each in told.err.splitlines() if each.startswith("error: ")]
    assert "Traceback" not in told.err
    assert "hunter2" not in told.err
    for text in (*row.names, row.hint):
        assert text.replace("{port}", port) in line, told.err


def test_the_page_is_what_the_table_says_and_the_table_is_long_enough() -> None:
    assert len(MISTAKES) >= 30
    assert PAGE.read_text() == render(), "run: python tests/unit/mistakes.py"
