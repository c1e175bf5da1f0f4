"""The designed tree of commands and options, compared with the commands of click."""

from __future__ import annotations

import re
import shlex
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest
from documented_commands import Written, complaint

from tiered.cli.main import COMMANDS, invoke, main

# Command: its options. `=` after an option: it takes a value. Names in capitals are arguments.
TREE: Mapping[str, str] = {
    "demo": "",
    "init": "DIRECTORY --remote=",
    "doctor": "",
    "topic create": "NAMES -p= -X= --dry-run",
    "topic list": "",
    "topic describe": "NAME",
    "topic alter": "NAME -X= --dry-run",
    "topic add-partitions": "NAME COUNT --dry-run",
    "topic delete": "NAME --dry-run",
    "append": "TARGET SOURCE -K= --jsonl --batch= --compression= --acks=",
    "consume": "TARGETS --from= -n= -f= -o=",
    "dump": "TARGET --batches --records --index --hex",
    "verify": "TARGETS --deep --remote --sample= --fix-index",
    "status": "TOPICS --watch --check --section=",
    "plan": "TOPICS -X= --at= --out=",
    "apply": "FILE --auto",
    "run": "--metrics= --ui= --once",
    "scrub": "TARGETS --deep --rate= --resume",
    "repair": "REPORT --dry-run",
    "gc": "--older-than= --delete --yes",
    "restore": "TARGETS --to= --at=",
    "cost show": "TOPICS",
    "cost simulate": "TOPICS --retention= --local= --class= --rate= --chart --html=",
    "backfill": "TARGETS --from= --to= --spark= --parallel= --resume=",
    "bench": "--remote --dry-run --yes -o=",
    "config explain": "SETTING",
    "config lint": "TOPICS --properties= -o=",
    "config export": "--format= --topic= --all",
    "generate completion": "SHELL",
    "generate grafana-dashboard": "",
    "generate prometheus-alerts": "",
    "generate iam-policy": "",
    "generate systemd": "",
}

# Commands added after the design. Each of them is in docs/reference/cli.md.
BESIDE = {
    *(
        "adopt",
        "fork",
        "import",
        "remote",
        "rewrite",
        "pipeline",
        "get-offsets",
        "delete-records",
        "transactions",
        "group",
    ),
    *(
        "compact",
        "view",
        "compaction",
        "log-dirs",
        "placement",
        "pause",
        "resume",
        "serve",
        "credentials",
        "web",
        "completion",
        "rotate-keys",
    ),
}

LINES = (
    "init there --remote s3://bucket/prefix",
    "topic create orders -p 3 -X retention.ms=7d",
    "append orders/0 - -K : --jsonl --batch 1000 --compression zstd --acks remote",
    "consume orders/0 --from @-2h -n 5 -f '%T %p:%o %k %v\\n' -o jsonl",
    "dump orders/0@17 --batches",
    "dump orders/0@17 --index",
    "dump orders/0@17 --hex",
    "verify orders --deep --fix-index",
    "verify orders --deep --remote --sample 5%",
    "status orders --watch --check --section local,remote,lag,cost,sync",
    "plan orders -X retention.ms=30d --at +7d --out plan.json",
    "apply plan.json",
    "apply --auto",
    "run --metrics :9464 --ui 127.0.0.1:8080 --once",
    "scrub orders --deep --rate 50MB/s --resume",
    "repair report.json --dry-run",
    "gc --older-than 3d --delete --yes",
    "restore orders --to there --at 2026-11-20T12:00:00Z",
    "cost simulate --retention 1d..365d --local 1h..7d --class standard,ia,gir --chart --html out.html",
    "backfill orders --from @-30d --to s3://bucket/parquet --spark local[2] --parallel auto --resume job",
    "bench --remote --dry-run -o json",
    "config explain retention.ms",
    "config lint --properties server.properties -o json",
    "config export --format kafka-configs --all",
    "generate completion zsh",
)


def leaves(command: click.Command = main, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that can be run, by its words. Groups that can be run are included."""
    context = click.Context(command)
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield " ".join(words), command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, (*words, name))


def found(words: str) -> click.Command | None:
    command: click.Command | None = main
    for word in words.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
        if command is None:
            return None
    return command


def parameters_of(command: click.Command) -> set[str]:
    """The parameters in the notation of the table."""
    told = set()
    for each in command.params:
        if isinstance(each, click.Option):
            told |= {name + ("" if each.is_flag else "=") for name in each.opts}
        else:
            told.add((each.name or "").upper())
    return told


@pytest.mark.parametrize(("words", "wanted"), TREE.items())
def test_every_designed_command_exists_with_its_options(words: str, wanted: str) -> None:
    command = found(words)
    assert command is not None, f"no command: {words}"
    assert set(wanted.split()) <= parameters_of(command)


def test_every_top_level_command_is_designed_or_listed_as_added() -> None:
    designed = {words.split()[0] for words in TREE}
    assert designed | BESIDE == set(COMMANDS)
    assert not designed & BESIDE


@pytest.mark.parametrize("line", LINES)
def test_command_lines_of_the_design_parse(line: str) -> None:
    assert complaint(Written("design", 1, tuple(shlex.split(line)), is_prose=False)) is None


def test_every_command_and_option_has_a_help_text() -> None:
    silent = [words for words, command in leaves() if not command.help]
    silent += [
        f"{words} {each.opts[0]}"
        for words, command in leaves()
        for each in command.params
        if isinstance(each, click.Option) and not each.help
    ]
    assert not silent


def test_every_command_with_a_table_has_raw_numbers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    forms = ("table", "json", "jsonl", "csv")
    for words, command in leaves():
        offered = [each for each in command.params if each.name == "output" and isinstance(each.type, click.Choice)]
        if offered and tuple(offered[0].type.choices) == forms:  # type: ignore[attr-defined]
            assert "--raw" in parameters_of(command), words
    at = ["-q", "-C", str(tmp_path)]
    assert invoke([*at, "init"]) == 0
    assert invoke([*at, "topic", "create", "orders"]) == 0
    (tmp_path / "lines").write_text("a line\n" * 2000)
    assert invoke([*at, "append", "orders", str(tmp_path / "lines")]) == 0
    capfd.readouterr()
    assert invoke([*at, "topic", "describe", "orders"]) == invoke([*at, "topic", "describe", "orders", "--raw"]) == 0
    human, exact = (line.split() for line in capfd.readouterr().out.splitlines()[1::2])
    assert "2,000" in human
    assert "2000" in exact
    assert {"KiB", "B"} & set(human)
    assert not {"KiB", "B"} & set(exact)


def test_alias_prints_the_same_and_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for first, second in (("grafana", "grafana-dashboard"), ("alerts", "prometheus-alerts")):
        assert invoke(["generate", first]) == 0
        printed = capsys.readouterr().out
        assert invoke(["generate", second]) == 0
        assert capsys.readouterr().out == printed != ""
        assert invoke(["generate", "--help"]) == 0
        assert second in capsys.readouterr().out
    assert invoke(["completion", "bash"]) == invoke(["generate", "completion", "bash"]) == 0
    printed = capsys.readouterr().out
    assert printed[: len(printed) // 2] == printed[len(printed) // 2 :]


def test_apply_auto_has_the_effect_of_run_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    at = ["-q", "-C", str(tmp_path)]
    assert invoke([*at, "init"]) == 0
    assert invoke([*at, "topic", "create", "orders", "-X", "segment.bytes=1KiB"]) == 0
    (tmp_path / "lines").write_text("".join(f"line {number}\n" for number in range(200)))
    assert invoke([*at, "append", "orders", str(tmp_path / "lines"), "--batch", "10"]) == 0
    capfd.readouterr()
    assert invoke([*at, "apply", "--auto", "--dry-run", "-o", "jsonl"]) == 0
    assert "CopySegment" in capfd.readouterr().out
    assert not list((tmp_path / "bucket").rglob("*.log"))
    assert invoke([*at, "apply", "--auto"]) == 0
    assert list((tmp_path / "bucket").rglob("*.log"))
    capfd.readouterr()
    assert invoke([*at, "plan", "-o", "jsonl"]) == 0
    assert capfd.readouterr().out == ""


def test_run_ui_serves_the_pages_of_the_running_manager(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requires the token where one is configured, like `tiered web`."""
    from tiered.cli.node import run

    seen: list[tuple[int, str]] = []
    finish, secret = run._work_off, tmp_path / "token"
    secret.write_text("a token long enough")

    def look(*words: object) -> int:
        code = finish(*words)
        told = re.search(r"pages at (http://\S+)", capfd.readouterr().err)
        assert told is not None
        for headers in ({}, {"Authorization": "Bearer a token long enough"}):
            try:
                with urllib.request.urlopen(urllib.request.Request(told[1], headers=headers), timeout=60) as answer:
                    seen.append((answer.status, answer.read().decode()))
            except urllib.error.HTTPError as refused:
                with refused:
                    seen.append((refused.code, refused.read().decode()))
        return code

    monkeypatch.setattr(run, "_work_off", look)
    at = ["-C", str(tmp_path)]
    assert invoke([*at, "-q", "init"]) == 0
    assert invoke([*at, "-q", "topic", "create", "orders"]) == 0
    assert invoke([*at, "run", "--once", "--ui", "127.0.0.1:0"]) == 0
    assert invoke([*at, "run", "--once", "--ui", "127.0.0.1:0", "--token-file", str(secret)]) == 0
    assert [status for status, _ in seen] == [200, 200, 401, 200]
    assert ["orders" in page for _, page in seen] == [True, True, False, True]


@pytest.mark.parametrize("words", [["apply"], ["apply", "plan.json", "--auto"]])
def test_apply_needs_either_a_plan_or_auto(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(words) == 2
    assert "PLAN.json, or --auto" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_backfill_refuses_an_invalid_number_of_tasks(text: str) -> None:
    from local.errors import InvalidRequest
    from tiered.cli.bucket.pipeline import parse_parallel

    assert (parse_parallel("auto"), parse_parallel("7")) == (None, 7)
    with pytest.raises(InvalidRequest):
        parse_parallel(text)
