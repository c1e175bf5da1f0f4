"""Input of ``append`` that ends with an error or never ends, invalid bytes, and closed streams.
Records read before an error or a signal are appended. Each error is one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiered.cli.data.append import CHUNK_BYTES, line_runs
from tiered.cli.errors import Exit
from tiered.cli.main import invoke
from tiered.cli.session import stop_signals
from tiered.config.config import Config

COMMAND = [sys.executable, "-m", "tiered"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    """A directory with a bucket on disk and two empty topics.
    ``small`` allows messages of at most one KiB."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    assert invoke(["init"]) == 0
    assert invoke(["topic", "create", "t"]) == 0
    assert invoke(["topic", "create", "small", "-X", "max.message.bytes=1KiB"]) == 0
    return tmp_path


def values(capfd, topic: str = "t") -> list[str]:
    capfd.readouterr()
    assert invoke(["consume", topic]) == 0
    return capfd.readouterr().out.splitlines()


# -- input that ends with an error or a signal ------------------------------------------------------------------


def test_append_of_an_invalid_line_keeps_and_counts_the_lines_before_it(home: Path, capfd) -> None:
    (home / "lines").write_text('{"value": "1"}\n{"value": "2"}\nbad\n{"value": "4"}\n')
    capfd.readouterr()
    assert invoke(["append", "t", "lines", "--jsonl", "-o", "jsonl"]) == Exit.USAGE
    told = capfd.readouterr()
    assert "line=3" in told.err
    assert "appended before the error: records=2" in told.err
    assert json.loads(told.out)["records"] == 2
    assert values(capfd) == ["1", "2"]


def test_append_of_a_record_that_the_log_refuses_keeps_the_lines_before_it(home: Path, capfd) -> None:
    (home / "lines").write_text("".join(f"{at}\n" for at in range(300)) + "x" * 2000 + "\nafter\n")
    assert invoke(["append", "small/0", "lines"]) == Exit.USAGE
    told = capfd.readouterr()
    assert "max.message.bytes" in told.err
    assert "appended before the error: records=300" in told.err
    assert values(capfd, "small") == [str(at) for at in range(300)]


def test_append_that_fails_at_the_first_line_reports_zero_records(home: Path, capfd) -> None:
    (home / "lines").write_text("bad\n")
    capfd.readouterr()
    assert invoke(["append", "t", "lines", "--jsonl", "-o", "json"]) == Exit.USAGE
    told = capfd.readouterr()
    assert (told.out, "appended before the error: records=0" in told.err) == ("", True)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.TERMINATED)], ids=["int", "term"]
)
def test_append_from_an_open_pipe_keeps_the_whole_lines_when_a_signal_ends_it(
    home: Path, capfd, number: int, code: int
) -> None:
    with subprocess.Popen(
        [*COMMAND, "append", "t", "-o", "json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        child.stdin.write(b"".join(b"%d\n" % at for at in range(500)) + b"unfinished")
        child.stdin.flush()
        deadline = time.monotonic() + 20
        while len(values(capfd)) < 500 and time.monotonic() < deadline:
            pass  # Lines are appended within a second of reading, although the pipe stays open.
        child.send_signal(number)
        assert child.wait(60) == code
        assert child.stdout is not None
        assert child.stderr is not None
        (row,) = json.loads(child.stdout.read())["appended"]
        assert row["records"] == 500
        assert b"appended before the error: records=500" in child.stderr.read()
    assert values(capfd) == [str(at) for at in range(500)]
    assert (home / "data" / ".kafka_cleanshutdown").exists()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue  # the test has closed it


def test_line_runs_return_whole_lines_in_order_and_at_most_the_given_number(tmp_path: Path) -> None:
    lines = [b"a" * (at % 700) for at in range(9000)] + [b"b" * (3 * CHUNK_BYTES), b"", b"no line end"]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    fd = os.open(tmp_path / "lines", os.O_RDONLY)
    try:
        with stop_signals() as stop:
            runs = list(line_runs(fd, 100, stop))
    finally:
        os.close(fd)
    assert [line for run in runs for line in run] == lines
    assert max(len(run) for run in runs) == 100
    assert all(runs)


def test_line_runs_end_with_the_last_whole_line_after_a_signal(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"1\n2\nunfinished")
    with stop_signals() as stop:
        runs = line_runs(pipe[0], 1, stop)
        assert next(runs) == [b"1"]
        signal.raise_signal(signal.SIGTERM)
        assert list(runs) == [[b"2"]]


def test_second_signal_raises_keyboard_interrupt_at_once() -> None:
    for numbers in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)):
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        with stop_signals() as stop:
            signal.raise_signal(numbers[0])
            assert stop.is_set
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(numbers[1])
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


# -- invalid input -----------------------------------------------------------------------------------------------


def test_arguments_that_are_not_utf8_are_used_as_bytes(home: Path, capfdbinary) -> None:
    (home / "lines").write_bytes(b"k\xffv\n")
    odd = os.fsdecode(b"\xff")
    assert invoke(["append", "t", "lines", "-K", odd]) == 0
    capfdbinary.readouterr()
    assert invoke(["consume", "t", "-f", f"%k{odd}%v"]) == 0
    assert capfdbinary.readouterr().out == b"k\xffv"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"key": "\\ud800"}', "not text"),
        ('{"value": {"a": "\\ud800"}}', "not text"),
        ('{"headers": {"\\ud800": "x"}}', "not text"),
        ("[" * 200_000, "it is not JSON"),
        ('{"value": ' + "[" * 900 + "]" * 900 + "}", None),
        ('{"headers": [{"key": null, "value": "x"}]}', "headers"),
        ('{"headers": [{"key": 3, "value": "x"}]}', "headers"),
        ('{"headers": 3}', "headers"),
        ('{"timestamp": 1e3}', "timestamp"),
        ('{"timestamp": 99999999999999999999}', "timestamp"),
        ('{"timestamp": -2}', "timestamp"),
        ('{"timestamp": ' + "9" * 5000 + "}", "it is not JSON"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_json_line_is_appended_or_refused_with_its_line_number(home: Path, capfd, line: str, told: str | None) -> None:
    (home / "lines").write_text(line + "\n")
    assert invoke(["append", "t", "lines", "--jsonl"]) == (0 if told is None else Exit.USAGE)
    err = capfd.readouterr().err
    if told is not None:
        assert told in err
        assert "line=1" in err


def shell(text: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    script = text.replace("tiered", f"exec {sys.executable} -m tiered", 1)
    return subprocess.run(
        ["bash", "-c", script],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4]), **environment},
    )


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("tiered status >&-", "error: cannot write to stdout: bad file descriptor"),
        ("tiered status >/dev/full", "error: cannot write to stdout: no space left on device"),
        (
            "tiered topic describe t --settings -o json >/dev/full",
            "error: cannot write to stdout: no space left on device",
        ),
        ("tiered append t <&-", "error: cannot read lines, stdin is closed"),
    ],
)
def test_closed_or_full_stream_is_a_one_line_error(home: Path, command: str, told: str) -> None:
    done = shell(command, home)
    assert done.stderr.splitlines() == [done.stderr.strip()]
    assert done.stderr.startswith(told)
    assert done.returncode in (Exit.FAILED, Exit.USAGE)


def test_command_without_output_needs_no_stdout(home: Path) -> None:
    assert shell("tiered topic create u <&- >&- 2>&-", home).returncode == 0
    assert shell("tiered status | head -1", home).returncode == 0


@pytest.mark.parametrize("word", ["s3://[x", "file://[x", "s3://me:hunter2@[x", os.fsdecode(b"file:///tmp/\xff")])
@pytest.mark.parametrize("command", [["consume", "t", "--remote"], ["init", "other", "--remote"]])
def test_invalid_url_is_a_usage_error(home: Path, capfd, command: list[str], word: str) -> None:
    assert invoke([*command, word]) == Exit.USAGE
    err = capfd.readouterr().err
    assert "url" in err
    assert "hunter2" not in err
    assert "internal" not in err


@pytest.mark.parametrize(
    "words",
    [
        ["dump", "t/0@²"],
        ["dump", "t/0@" + "9" * 5000],
        ["dump", "t/" + "9" * 5000],
        ["consume", "t/" + "9" * 5000],
        ["consume", "t", "-n", "9" * 30],
        ["dump", "t/0", "-n", "9" * 30],
        ["run", "--interval", "99999999999999d"],
        ["-X", "retention.ms=" + "9" * 400 + "d", "status"],
        ["-X", "segment.bytes=" + "9" * 400 + "MiB", "status"],
        ["topic", "create", "new", "-X", "retention.bytes=" + "9" * 400 + "PiB"],
        ["append", "t", "-K", ""],
        ["consume", "t", "--topic-id", "x"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_out_of_range_numbers_and_empty_arguments_are_usage_errors(home: Path, capfd, words: list[str]) -> None:
    assert invoke(words) == Exit.USAGE
    assert "internal" not in capfd.readouterr().err


def test_init_writes_a_config_file_that_is_readable_with_any_option_value(home: Path) -> None:
    assert invoke(["init", "a", "--no-probe", "--remote", "s3://b/é", "--option", 'profile=\U0001f600 "x" \\n']) == 0
    assert Config.load(str(home / "a" / "tiered.toml")).remote_options == {"profile": '\U0001f600 "x" \\n'}
    assert invoke(["init", "b", "--no-probe", "--remote", "s3://b", "--option", os.fsdecode(b"a=\xff")]) == Exit.USAGE
    assert not (home / "b").exists()


def test_init_accepts_a_table_option_as_json(home: Path, capfd) -> None:
    tables = {
        "client_kwargs": {"region_name": "eu-é"},
        "config_kwargs": {"read_timeout": 60, "s3": {"x": True, "list": [{"y": 1.5}, float("inf")]}},
    }
    given = [word for name, table in tables.items() for word in ("--option", f"{name}={json.dumps(table)}")]
    assert invoke(["init", "c", "--no-probe", "--remote", "s3://b", *given]) == 0
    assert Config.load(str(home / "c" / "tiered.toml")).remote_options == tables
    capfd.readouterr()
    assert invoke(["init", "d", "--no-probe", "--remote", "s3://b", "--option", "config_kwargs={hunter2"]) == Exit.USAGE
    err = capfd.readouterr().err
    assert "JSON object: name=config_kwargs" in err
    assert "hunter2" not in err
    for text in ('{"verify": null}', '{"a": [{"b": null}]}'):
        words = ["init", "f", "--no-probe", "--remote", "s3://b", "--option", f"client_kwargs={text}"]
        assert invoke(words) == Exit.USAGE, text
        assert "TOML has no null" in capfd.readouterr().err
        assert not (home / "f").exists(), "no config file may be written that cannot be read"
    for text in ('{"aws_secret_access_key": "hunter2"}', '{"a": [[{"aws_secret_access_key": "hunter2"}]]}'):
        words = ["init", "e", "--no-probe", "--remote", "s3://b", "--option", f"client_kwargs={text}"]
        assert invoke(words) == Exit.USAGE
        assert "hunter2" not in capfd.readouterr().err


def test_unexpected_exception_is_one_line_that_names_the_debug_option(home: Path, capfd, monkeypatch) -> None:
    def fails(*words: object) -> None:
        raise ZeroDivisionError("hunter2")

    monkeypatch.setattr(Config, "load", fails)
    capfd.readouterr()
    assert invoke(["status"]) == Exit.FAILED
    err = capfd.readouterr().err
    assert err.startswith("error: internal error: kind=ZeroDivisionError at=")
    assert "--debug" in err
    assert "hunter2" not in err, "the text of an unexpected exception may contain secrets"
    assert invoke(["--debug", "status"]) == Exit.FAILED
    assert "Traceback" in capfd.readouterr().err
