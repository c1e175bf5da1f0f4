"""``--progress``: events and their frequency with a virtual clock, and stderr of the commands."""

from __future__ import annotations

import io
import itertools
import json
import logging
import sys
from pathlib import Path

import click
import msgspec
import pytest
from json_schemas import SCHEMAS

from local.names import TopicPartition
from tiered.cli.main import invoke, main
from tiered.cli.progress import MODES, Progress, byte_lines
from tiered.cli.session import Session


def events_of(text: str, operation: str) -> list[dict]:
    """The `progress` events of `text`. Checks each line against the schema and the order of the values."""
    lines = text.splitlines()
    for line in lines:
        msgspec.json.decode(line, type=SCHEMAS["progress"])
    told = [json.loads(line) for line in lines]
    assert {each["operation"] for each in told} == {operation}
    assert [each["message"] is None for each in told] == [each["kind"] == "progress" for each in told]
    steps = [each for each in told if each["kind"] == "progress"]
    for before, after in itertools.pairwise(steps):
        assert before["done"] <= after["done"]
        assert before["total"] <= after["total"]
    assert [each["is_last"] for each in steps] == [False] * (len(steps) - 1) + [True]
    assert all(each["done"] <= each["total"] for each in steps)
    return steps


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_meter_sends_at_most_four_events_a_second_and_a_last_one_with_rate_and_eta() -> None:
    clock, lines = Clock(), list[str]()
    progress = Progress("scrub", lines.append, clock)
    progress.expect(10_000)
    for _ in range(500):  # five seconds
        clock.now += 0.01
        progress.advance(10)
    progress.end()
    steps = events_of("".join(lines), "scrub")
    assert 20 <= len(steps) <= 4 * 5 + 2
    assert steps[0]["eta_ms"] is None
    assert steps[-1]["done"] == 5000
    assert steps[-1]["total"] == 10_000
    assert steps[-1]["rate_per_second"] == pytest.approx(1000)
    assert steps[-1]["eta_ms"] == pytest.approx(5000, abs=10)


def test_meter_never_counts_down_and_names_its_wait() -> None:
    clock, lines = Clock(), list[str]()
    progress = Progress("run", lines.append, clock)
    progress.wait_for("loading")
    clock.now = 1
    progress.wait_for(None)
    for count in (3, 0, 4):  # more than expected
        clock.now += 1
        progress.advance(count)
    progress.expect(5, "segments")
    progress.end()
    steps = events_of("".join(lines), "run")
    assert [each["waits_for"] for each in steps[:2]] == ["loading", None]
    assert (steps[-1]["done"], steps[-1]["total"], steps[-1]["unit"]) == (7, 12, "segments")


def test_stderr_output_becomes_message_events_and_stderr_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    progress = Progress()
    log = logging.Logger("any")

    def fail() -> None:
        assert not sys.stderr.isatty()
        assert not progress.has_bars
        click.echo("! two\nlines", err=True)
        log.addHandler(logging.StreamHandler())
        log.warning("odd %s", "\udcff")
        click.echo("sure? ", err=True, nl=False)
        raise KeyError

    with pytest.raises(KeyError), progress.use("json", "gc"):
        fail()
    assert sys.stderr is stderr
    events_of(stderr.getvalue(), "gc")
    said = [json.loads(line)["message"] for line in stderr.getvalue().splitlines()]
    assert said == ["! two", "lines", "odd \\udcff", "sure? ", None]


@pytest.mark.parametrize("mode", MODES)
def test_progress_bar_is_shown_only_for_auto_on_a_terminal(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    stderr.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stderr)
    progress = Progress()
    with progress.use(mode, "scrub"):
        assert progress.has_bars == (mode == "auto")


def test_plain_progress_line_appears_every_ten_seconds_with_rate_and_time_left(
    capfd: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    advance = byte_lines(Session(directory=".").say, "scrubbed", 100 << 20, clock)
    for _ in range(25):
        clock.now += 1
        advance(1 << 20)
    first, second = capfd.readouterr().err.splitlines()
    assert "scrubbed 10" in first
    assert "90 s left" in first
    assert "scrubbed 20" in second
    assert "80 s left" in second


def test_restarted_copy_counts_only_beyond_its_previous_progress() -> None:
    lines, seconds = list[str](), itertools.count()
    progress = Progress("run", lines.append, lambda: float(next(seconds)))
    first, second = (TopicPartition("t", 0), 0), (TopicPartition("t", 1), 0)
    for done in (10, 40, 0, 10, 50, 100, 100):
        progress.track(first, done, 100)
        progress.track(second, done // 2, 50)
    progress.end()
    last = events_of("".join(lines), "run")[-1]
    assert (last["done"], last["total"]) == (150, 150)


def test_every_long_command_has_the_progress_option() -> None:
    names = "append run apply scrub verify repair import adopt restore fork backfill compact gc rotate-keys bench"
    context = click.Context(main, **main.context_settings)
    found = [main.get_command(context, name) for name in names.split()]
    for name, entry_filter in {"rewrite": None, "pipeline": None, "view": "build", "log-dirs": "move"}.items():
        group = main.get_command(context, name)
        assert isinstance(group, click.Group)
        found += [each for own, each in group.commands.items() if entry_filter in (None, own)]
    for command in found:
        assert command is not None
        (option,) = (each for each in command.params if each.name == "progress")
        assert isinstance(option.type, click.Choice)
        assert tuple(option.type.choices) == MODES


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiered.toml").write_text(
        f'[local]\ndir = "data"\n[remote]\nurl = "file://{tmp_path}/bucket"\n[defaults]\n"segment.bytes" = "4KiB"\n'
    )
    (tmp_path / "bucket").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "keys").write_text("key3\n")
    (tmp_path / "lines").write_text("".join(f"key{at % 20}:value {at}\n" for at in range(2000)))
    words = ["-C", str(tmp_path)]
    settings = ["-X", "remote.storage.enable=true", "-X", "append.batch.bytes=512"]
    assert invoke([*words, "topic", "create", "t", *settings]) == 0
    assert invoke([*words, "append", "t", "lines", "-K", ":"]) == 0
    assert invoke([*words, "run", "--once"]) == 0
    capfd.readouterr()
    return words


LONG = (
    "append t lines -K : --acks remote",
    "restore t --to {restored} --yes",
    "fork t f --yes",
    "bench --size 1MiB",
    "scrub --deep",
    "verify",
    "verify --remote --deep",
    "rewrite merge --yes",
    "rewrite recode --codec zstd --yes",
    "rewrite copy --to {other} --yes",
    "rewrite redact --key-file {keys} --yes",
)


def test_long_command_reports_progress_to_its_total_and_leaves_stdout_unchanged(
    at: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for line in LONG:
        places = {"other": (tmp_path / "other").as_uri(), "restored": tmp_path / "restored", "keys": tmp_path / "keys"}
        words = [word.format(**places) for word in line.split()]
        operation = " ".join(words[: 2 if words[0] == "rewrite" else 1])
        assert invoke([*at, *words, "--progress", "json", "-o", "json"]) == 0, line
        out, err = capfd.readouterr()
        assert json.loads(out)["schema_version"] == 1
        steps = events_of(err, operation)
        assert steps[-1]["done"] == steps[-1]["total"] > 0, line
        assert steps[-1]["unit"] == {"fork": "partitions", "bench": "figures"}.get(operation, "bytes"), line
    for mode in MODES:
        assert invoke([*at, "verify", "--progress", mode, "-o", "json"]) == 0
        out, err = capfd.readouterr()
        assert json.loads(out)["findings"] == []
        assert mode == "json" or "1 verified" in err


def test_run_apply_and_rotate_keys_report_progress_in_their_units(
    at: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for line, operation, unit in (
        ("run --once", "run", "bytes"),
        ("apply --auto", "apply", "bytes"),
        ("apply plan.json --yes", "apply", "decisions"),
        ("rotate-keys", "rotate-keys", "partitions"),
    ):
        assert invoke([*at, "append", "t", "lines", "-K", ":"]) == 0
        assert invoke([*at, "plan", "--out", "plan.json"]) == 0
        capfd.readouterr()
        assert invoke([*at, *line.split(), "--progress", "json"]) == 0, line
        last = events_of(capfd.readouterr().err, operation)[-1]
        assert last["done"] == last["total"] > 0, line
        assert last["unit"] == unit, line


def test_compact_and_gc_report_progress_in_their_units(
    at: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (manifest,) = (tmp_path / "bucket").glob("t-*/0/meta/head")
    for number in range(3):
        orphan = f"{number:020}-{number:020}-0000000000-01AN4Z07BY79KA1307SR9X4MV{number}.log"
        (manifest.parent.parent / "data" / orphan).write_bytes(b"nobody's")
    assert (
        invoke([*at, "topic", "create", "c", "-X", "cleanup.policy=compact", "-X", "remote.storage.enable=true"]) == 0
    )
    assert invoke([*at, "append", "c", "lines", "-K", ":"]) == 0
    capfd.readouterr()
    for line, code, operation, unit in (
        ("compact c --roll", 0, "compact", "partitions"),
        ("compact c", 0, "compact", "partitions"),  # without dirty segments
        ("run --once", 0, "run", "bytes"),
        ("compact c --bucket", 0, "compact", "partitions"),
        ("gc", 3, "gc", "partitions"),
        ("gc --delete --yes", 0, "gc", "orphans"),
        ("gc --delete --yes --older-than 0s", 0, "gc", "orphans"),
    ):
        assert invoke([*at, *line.split(), "--progress", "json"]) == code, line
        last = events_of(capfd.readouterr().err, operation)[-1]
        assert last["done"] == last["total"] > 0, line
        assert last["unit"] == unit, line


def test_error_is_one_line_after_the_progress_events(at: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke([*at, "scrub", "nobody", "--progress", "json"]) == 1
    *events, last = capfd.readouterr().err.splitlines()
    assert events_of("\n".join(events), "scrub")[-1]["done"] == 0
    assert last.startswith("error: ")
    assert "nobody" in last


def test_repair_adopt_view_pipeline_and_move_report_progress_to_their_total(
    at: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for data in sorted((tmp_path / "bucket").glob("t-*/0/data/*.indexes"))[:2]:
        data.unlink()
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "tiered.toml").write_text((tmp_path / "tiered.toml").read_text().replace('"data"', '"own"'))
    assert invoke(["-C", "node", "topic", "create", "n", "-X", "remote.storage.enable=true"]) == 0
    assert invoke([*at, "scrub", "--deep", "--report", "r.json"]) == 4
    dirs = tmp_path / "dirs"
    dirs.mkdir()
    (dirs / "tiered.toml").write_text('[local]\ndirs = ["one", "two"]\n[defaults]\n"segment.bytes" = "4KiB"\n')
    assert invoke(["-C", "dirs", "topic", "create", "t", "-X", "append.batch.bytes=512"]) == 0
    assert invoke(["-C", "dirs", "append", "t", "lines", "-K", ":"]) == 0
    (held,) = dirs.glob("*/t-0")
    (held.parent / "replication-offset-checkpoint").write_text("0\n1\nt 0 2000\n")
    other = "two" if held.parent.name == "one" else "one"
    capfd.readouterr()
    for line, operation, unit in (
        ("repair r.json --yes -o json", "repair", "bytes"),
        (
            f"adopt {held.parent} --once -X cleanup.policy=delete --remote {(tmp_path / 'other').as_uri()} -o json",
            "adopt",
            "bytes",
        ),
        ("view build t -o json", "view build", "partitions"),
        ("pipeline plan node -o json", "pipeline plan", "units"),
        ("pipeline run node --spark none --yes -o json", "pipeline run", "units"),
        (f"-C dirs log-dirs move t/0 --to {other}", "log-dirs move", "bytes"),
    ):
        assert invoke([*at, *line.split(), "--progress", "json"]) == 0, line
        out, err = capfd.readouterr()
        assert operation == "log-dirs move" or json.loads(out)["schema_version"] == 1
        last = events_of(err, operation)[-1]
        assert last["done"] == last["total"] > 0, line
        assert last["unit"] == unit, line
