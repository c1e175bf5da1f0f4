"""Output of the commands cost, plan and status: exact text at two widths, and JSON of its schema.
The expected pages are in ``tests/unit/support/pages``. To write them again after an intended change:
    TIERED_WRITE_PAGES=1 pytest tests/unit/tiered/cost/test_cost_pages.py"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import msgspec
import pytest
from json_schemas import SCHEMAS

from tiered.cli.main import invoke
from tiered.cost import cost_history
from tiered.status import status_report

NOON = 1_795_176_000_000  # 2026-11-20T12:00:00Z
DAY = 86_400_000
PAGES = Path(__file__).parents[2] / "support" / "pages"


@pytest.fixture
def home(tmp_path: Path, monkeypatch, capfd) -> Path:
    """Four days of records in one topic, in both tiers. The clock is fixed at noon of the fifth day."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("TIERED_") and name != "TIERED_WRITE_PAGES"]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    # A manifest holds random names. Their compressed size would change the last digit of the figures.
    monkeypatch.setattr(cost_history, "manifest_costs", lambda manifest: {})
    monkeypatch.setattr(status_report, "size_of", lambda manifest: 2_000)
    clock = {"now": NOON}
    monkeypatch.setattr(time, "time_ns", lambda: clock["now"] * 1_000_000)
    assert invoke(["init"]) == 0
    words = ["-X", "segment.bytes=64KiB", "-X", "local.retention.ms=1d", "-X", "retention.ms=3d"]
    assert invoke(["topic", "create", "orders", "-p", "1", *words]) == 0
    for day in range(4):
        clock["now"] = NOON + day * DAY + 1001 * 60_000
        lines = [
            {"key": f"k{at}", "value": f"value {at:04} " * 20, "timestamp": NOON + day * DAY + at * 60_000}
            for at in range(1000)
        ]
        (tmp_path / "lines").write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert invoke(["append", "orders", "lines", "--jsonl", "--batch", "20"]) == 0
        if day < 3:
            assert invoke(["-q", "run", "--once"]) == 0
    clock["now"] = NOON + 4 * DAY
    capfd.readouterr()
    return tmp_path


COMMANDS = {
    "cost-show": ["cost", "show"],
    "cost-simulate": ["cost", "simulate", "--retention", "1d,3d,30d", "--class", "standard,ia"],
    "cost-chart": ["cost", "simulate", "--retention", "1d..30d", "--chart"],
    "status": ["status"],
    "status-partitions": ["status", "-p", "--section", "lag,cost"],
    "plan": ["plan"],
    "plan-summary": ["plan", "--summary", "-X", "retention.ms=2d"],
}


def on_terminal(monkeypatch, width: int) -> None:
    """Simulates a terminal of this width without colour."""
    import sys

    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_command_output_equals_the_stored_page(home: Path, capfd, monkeypatch, name: str, width: int) -> None:
    with monkeypatch.context() as patch:
        on_terminal(patch, width)
        assert invoke(COMMANDS[name]) == 0
    printed = re.sub(r"\x1b\[[01]m", "", capfd.readouterr().out)  # bold is not a colour
    assert "\x1b" not in printed
    found = "".join(line.rstrip() + "\n" for line in printed.splitlines())
    assert all(len(line) <= width for line in found.splitlines())
    page = PAGES / f"{name}-{width}.txt"
    if os.environ.get("TIERED_WRITE_PAGES") == "1":
        PAGES.mkdir(exist_ok=True)
        page.write_text(found)
    assert found == page.read_text()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cost-show", ["cost", "show"]),
        ("cost-simulate", ["cost", "simulate", "--retention", "1d,3d"]),
        ("cost-advise", ["cost", "advise", "--least", "0"]),
        ("status", ["status"]),
        ("status-partitions", ["status", "-p"]),
        ("plan", ["plan"]),
        ("plan-summary", ["plan", "--summary"]),
    ],
)
def test_json_output_matches_its_schema_exactly(home: Path, capfd, name: str, words: list[str]) -> None:
    assert invoke([*words, "-o", "json"]) in (0, 3)
    body = capfd.readouterr().out
    msgspec.json.decode(body, type=SCHEMAS[name])
    assert json.loads(body)["schema_version"] == 1
    assert json.loads(body).keys() == {"schema_version", *SCHEMAS[name].__struct_fields__}


def test_csv_output_has_one_line_per_topic_and_exact_numbers(home: Path, capfd) -> None:
    assert invoke(["cost", "show", "-o", "csv"]) == 0
    header, line = capfd.readouterr().out.splitlines()
    row = dict(zip(header.split(","), line.split(","), strict=True))
    assert row["topic"] == "orders"
    assert float(row["storage_dollars"]) > 0
    assert int(row["remote_bytes"]) > 0


def test_stored_bytes_and_log_bytes_have_different_column_titles(home: Path, capfd) -> None:
    """`status` shows the bytes of the log, as retention counts them.
    `cost show` shows the compressed bytes stored."""
    assert invoke(["topic", "create", "packed", "-X", "segment.bytes=64KiB", "-X", "remote.compression=zstd"]) == 0
    assert invoke(["append", "packed", "lines", "--jsonl", "--batch", "20"]) == 0
    assert invoke(["-q", "run", "--once"]) == 0

    def titled(*words: str) -> dict[str, int]:
        capfd.readouterr()
        assert invoke([*words, "--raw"]) == 0
        header, line = (re.split(" {2,}", each.strip()) for each in capfd.readouterr().out.splitlines()[:2])
        return {title: int(text) for title, text in zip(header, line, strict=False) if text.isdigit()}

    read, kept = titled("status", "packed"), titled("cost", "show", "packed")
    gone = titled("topic", "delete", "packed", "--dry-run")
    assert 0 < kept["STORED"] <= gone["STORED"] < read["REMOTE"] / 2
    assert "REMOTE" not in {*kept, *gone}


def test_own_prices_apply_in_every_command(home: Path, capfd) -> None:
    body = {"as_of": "2026-11-20", "classes": {"STANDARD": {"storage_bands": [[None, 1000.0]], "put_per_1000": 0}}}
    (home / "mine.json").write_text(json.dumps(body))

    def answer(*words: str) -> dict[str, object]:
        assert invoke([*words, "-o", "json"]) == 0
        return json.loads(capfd.readouterr().out)

    commands = (("status",), ("cost", "show"), ("cost", "simulate", "--retention", "1d"), ("plan",))
    before = [answer(*words) for words in commands]
    after = [answer("-X", "cost.prices=mine.json", *words) for words in commands]
    assert [each["prices"]["as_of"] for each in before] == ["2026-06"] * 4
    assert [each["prices"]["as_of"] for each in after] == ["2026-11-20"] * 4
    assert after[0]["topics"][0]["dollars_per_month"] > 1000 * before[0]["topics"][0]["dollars_per_month"] > 0


def test_commands_without_prices_warn_once_and_keep_their_schema(home: Path, capfd, caplog) -> None:
    for words, schema in ((["status"], "status"), (["plan"], "plan"), (["plan", "--summary"], "plan-summary")):
        assert invoke(["-X", "cost.prices=none.json", *words, "-o", "json"]) == 0
        out, _ = capfd.readouterr()
        msgspec.json.decode(out, type=SCHEMAS[schema])
        assert json.loads(out)["prices"] is None
        assert caplog.text.count("dollars are not shown") == 1, caplog.text
        caplog.clear()
        assert invoke(["-X", "cost.prices=none.json", *words]) == 0
        assert "nan" not in "".join(capfd.readouterr()).lower()
        caplog.clear()


def test_invalid_arguments_are_refused_with_the_cause_and_a_suggestion(home: Path, capfd) -> None:
    for words, told in (
        (["cost", "simulate", "--class", "cold"], "the storage class is unknown"),
        (["cost", "simulate", "--retention", "soon"], "--retention"),
        (["cost", "simulate", "--retention", "9d..3d"], "it is neither a value nor a range"),
        (["cost", "simulate", "--reads", "often"], "--reads"),
        (["cost", "show", "orders2"], "orders2"),
        (["plan", "--at", "tomorrow"], "invalid time"),
        (["apply", "none.json"], "does not exist"),
        (["-X", "cost.price=1", "cost", "show"], "did_you_mean=cost.prices"),
        (["-X", "cost.prices=none.json", "cost", "show"], "does not exist"),
    ):
        assert invoke(words) in (1, 2), words
        (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error:")]
        assert told in line, line


def test_advice_is_saved_to_a_file_and_applied(home: Path, capfd) -> None:
    assert invoke(["cost", "advise", "--least", "0", "--out", "cut.json"]) == 3
    assert "next: tiered apply cut.json --dry-run" in capfd.readouterr().err
    saved = msgspec.json.decode((home / "cut.json").read_bytes(), type=SCHEMAS["cost-advise-plan"])
    assert saved.steps

    def answer(*words: str) -> tuple[object, set[int]]:
        assert invoke(["apply", "cut.json", *words, "-o", "json"]) == 0
        body = capfd.readouterr().out
        found = msgspec.json.decode(body, type=SCHEMAS["apply-advice"])
        assert [each.change for each in found.steps] == [each.change for each in saved.steps]
        return found.dry_run, {each.due for each in found.steps}

    assert answer("--dry-run") == (True, {1})
    assert invoke(["apply", "cut.json"]) == 2  # without --yes and without a terminal to confirm
    assert answer("--dry-run") == (True, {1})
    assert answer("--yes") == (False, {0})
    assert answer("--yes") == (False, {0})
    assert invoke(["topic", "alter", "orders", "-X", f"{saved.steps[0].key}=", "-X", "retention.ms=9d"]) == 0
    capfd.readouterr()
    assert invoke(["apply", "cut.json", "--yes"]) == 5
    assert "orders retention.ms 259200000 -> 777600000" in capfd.readouterr().err


def test_saved_advice_without_steps_is_applied_as_advice(home: Path, capfd) -> None:
    assert invoke(["cost", "advise", "--least", "1000000", "--out", "none.json"]) == 0
    for word, is_dry in (("--dry-run", True), ("--yes", False)):
        capfd.readouterr()
        assert invoke(["apply", "none.json", word, "-o", "json"]) == 0
        out, err = capfd.readouterr()
        assert json.loads(out) == {"schema_version": 1, "dry_run": is_dry, "steps": []}
        assert "0 steps" in err
