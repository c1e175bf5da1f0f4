"""Invalid input: one line on stderr with cause and place, an exit code, no traceback, no lost records."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_profile import one_of_each

from local.errors import (
    AccessDenied,
    AlreadyExists,
    Conflict,
    Corrupt,
    DiskFailed,
    Fenced,
    InvalidRequest,
    LogError,
    NotFound,
    OffsetOutOfRange,
    Unavailable,
)
from tiered.cli.errors import Exit, exit_code, one_line, worst
from tiered.cli.main import COMMANDS, invoke


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    """A directory with a bucket on disk and one topic with two partitions and ten records."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    assert invoke(["init"]) == 0
    assert invoke(["topic", "create", "orders", "-p", "2", "-X", "segment.bytes=1KiB"]) == 0
    (tmp_path / "lines").write_text("".join(f"k{at}:value {at}\n" for at in range(10)))
    assert invoke(["append", "orders", "lines", "-K", ":"]) == 0
    return tmp_path


CASES = [
    (["-X", "retenton.ms=1d", "status"], 2, ["unknown key", "key=retenton.ms", "did_you_mean=retention.ms"]),
    (["-X", "retention.ms=soon", "status"], 2, ["key=retention.ms", "value='soon'", "a duration such as 7d"]),
    (["-X", "retention.ms", "status"], 2, ["not of the form key=value"]),
    (["topic", "create", "a/b"], 2, ["invalid topic name", "topic='a/b'"]),
    (["topic", "create", ".."], 2, ["invalid topic name", "topic='..'"]),
    (["topic", "create", ""], 2, ["invalid topic name"]),
    (["topic", "create", "x" * 250], 2, ["invalid topic name", "at most 249"]),
    (["topic", "create", "orders"], 2, ["it already exists", "topic=orders"]),
    (["topic", "create", "new", "-p", "0"], 2, ["--partitions"]),
    (["topic", "create", "new", "-X", "segment.byte=1"], 2, ["did_you_mean=segment.bytes"]),
    (["topic", "create", "new", "-X", "local.retention.ms=8d"], 2, ["local.retention.ms=691200000"]),
    (["topic", "describe", "nope"], 1, ["topic=nope", "there_are=orders"]),
    (["topic", "alter", "orders"], 2, ["nothing to alter"]),
    (["status", "nope"], 1, ["topic=nope"]),
    (["plan", "nope"], 1, ["topic=nope"]),
    (["append", "nope", "lines"], 1, ["topic=nope"]),
    (["append", "orders/9", "lines"], 1, ["partition=orders/9"]),
    (["append", "orders", "no-such-file"], 2, ["no-such-file"]),
    (["append", "orders", "lines", "-K", "#"], 2, ["no key separator", "line=1"]),
    (["append", "orders", "lines", "--jsonl"], 2, ["it is not JSON", "line=1"]),
    (["append", "orders", "lines", "--jsonl", "-K", ":"], 2, ["remove -K"]),
    (["consume", "orders/../0"], 2, ["text='orders/../0'"]),
    (["consume", "orders/9"], 1, ["partition=orders/9"]),
    (["consume", "orders/0", "--from", "999"], 1, ["out of range", "offset=999", "next_offset="]),
    (["consume", "orders/0", "--from", "soon"], 2, ["text='soon'"]),
    (["consume", "orders/0", "--from", "@soon"], 2, ["text='soon'"]),
    (["consume", "orders/0", "-f", "%q"], 2, ["sign=%q"]),
    (["consume", "orders", "--remote", "ftp://x"], 2, ["url=ftp://x"]),
    (["consume", "orders", "--remote", "file:///no/such/place"], 1, ["/no/such/place"]),
    (["consume", "orders", "--remote", "s3://me:hunter2@b"], 2, ["credentials"]),
    (["dump", "no-such.log"], 1, ["path=no-such.log"]),
    (["dump", "orders"], 2, ["TOPIC/PARTITION"]),
    (["run", "--interval", "often"], 2, ["text='often'"]),
    (["init"], 2, ["it already exists", "tiered.toml"]),
    (
        ["init", "other", "--remote", "s3://b", "--option", "secret=hunter2"],
        2,
        ["looks like a secret", "option=secret"],
    ),
    (["statsu"], 2, ["unknown command: statsu", "did you mean status?"]),
    (["status", "--nope"], 2, ["--nope"]),
    (["-C", "elsewhere", "status"], 1, ["tiered init", "/elsewhere"]),
]


@pytest.mark.parametrize(("words", "code", "told"), CASES, ids=[" ".join(case[0])[:60] for case in CASES])
def test_invalid_input_is_one_error_line_and_an_exit_code(
    home: Path, capfd, words: list[str], code: int, told: list[str]
) -> None:
    capfd.readouterr()
    assert invoke(words) == code
    err = capfd.readouterr().err
    (line,) = [each for each in err.splitlines() if each.startswith("error: ")]
    assert "Traceback" not in err
    assert "hunter2" not in err
    for text in told:
        assert text in line
    assert invoke(["consume", "orders", "-f", "%k\\n"]) == 0
    assert sorted(capfd.readouterr().out.split()) == [f"k{at}" for at in range(10)], "no record may be lost"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[local", "file="),
        ("[defalts]", "did_you_mean=defaults"),
        ("[remote]\nurl = 3", "key=url"),
        ("[defaults]\n'retenton.ms' = 1", "did_you_mean=retention.ms"),
        ("[remote]\nurl = 's3://b'\noptions = { secret = 'hunter2' }", "option=secret"),
    ],
)
def test_invalid_config_file_is_one_error_line_with_its_name(home: Path, capfd, text: str, told: str) -> None:
    (home / "tiered.toml").write_text(text)
    capfd.readouterr()
    assert invoke(["status"]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert told in err
    assert "tiered.toml" in err
    assert "hunter2" not in err


def test_traceback_is_printed_only_with_debug(home: Path, capfd) -> None:
    assert invoke(["--debug", "consume", "orders/0", "--from", "soon"]) == 2
    assert "Traceback" in capfd.readouterr().err


def test_tiered_topic_without_a_store_is_refused(home: Path, capfd) -> None:
    (home / "tiered.toml").write_text("[defaults]\n'remote.storage.enable' = true")
    assert invoke(["topic", "create", "new"]) == 2
    assert "set url in [remote]" in capfd.readouterr().err


def test_second_manager_on_a_directory_is_a_conflict_and_a_reader_is_not(home: Path, capfd) -> None:
    from tiered.config.config import Config
    from tiered.manager.manager import LogManager

    with LogManager.open(Config.load(str(home / "tiered.toml")), now_ms=0):
        assert invoke(["topic", "create", "new"]) == Exit.CONFLICT
        assert "another manager has the log directory open" in capfd.readouterr().err
        assert invoke(["status"]) == 0


def segment_of(home: Path, suffix: str) -> Path:
    return next(path for path in sorted((home / "data").glob(f"orders-*/*{suffix}")) if path.stat().st_size)


def test_dump_of_a_corrupt_batch_exits_4_and_names_the_position(home: Path, capfd) -> None:
    body = bytearray(segment_of(home, ".log").read_bytes())
    body[-1] ^= 1
    damaged = home / "00000000000000000000.log"
    damaged.write_bytes(body)
    assert invoke(["dump", str(damaged)]) == Exit.CORRUPTION
    assert "crc differs: path=" in capfd.readouterr().err


def test_dump_of_a_torn_segment_exits_3_and_reports_no_corruption(home: Path, capfd) -> None:
    torn = home / "00000000000000000000.log"
    torn.write_bytes(segment_of(home, ".log").read_bytes()[:-1])
    assert invoke(["dump", str(torn)]) == Exit.FINDINGS
    assert "ends inside a batch" in capfd.readouterr().err


@pytest.mark.parametrize(("suffix", "whole"), [(".index", 8), (".timeindex", 12)])
def test_dump_of_a_truncated_index_exits_4(home: Path, capfd, suffix: str, whole: int) -> None:
    path = home / f"00000000000000000000{suffix}"
    path.write_bytes(bytes(whole + 1))
    assert invoke(["dump", str(path)]) == Exit.CORRUPTION
    assert f"not a multiple of {whole} bytes" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LogError("x"), 1),
        (InvalidRequest("x"), 2),
        (OffsetOutOfRange("x"), 1),
        (NotFound("x"), 1),
        (AccessDenied("x"), 1),
        (Unavailable("x"), 6),
        (Conflict("x"), 5),
        (AlreadyExists("x"), 5),
        (Fenced("x"), 5),
        (Corrupt("x"), 4),
        (DiskFailed("x"), 1),
        (KeyboardInterrupt(), 130),
        (OSError(28, "No space left on device", "/d"), 1),
    ],
)
def test_every_error_class_has_its_exit_code(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


def test_exit_code_of_several_errors_is_that_of_the_worst() -> None:
    assert worst([Unavailable("x"), Corrupt("x"), Fenced("x")]) == Exit.CORRUPTION
    assert worst([Unavailable("x"), NotFound("x")]) == Exit.FAILED
    assert worst([]) == Exit.DONE


def test_error_is_one_line_for_any_text_in_it() -> None:
    assert one_line(Corrupt("reading\na thing", path="a\nb")) == "error: reading a thing: path=a b"
    assert one_line(OSError(2, "No such file or directory", "/d")) == "error: no such file or directory: path=/d"
    assert one_line(OSError(2, "No such file or directory")) == "error: no such file or directory"
    assert one_line(ModuleNotFoundError("No module named 'x'", name="x.y")).endswith("package=x")


def test_failed_import_inside_the_own_packages_shows_its_cause() -> None:
    wrong = "cannot import name 'gone' from 'tiered.read.reader'"
    for error in (ImportError(wrong, name="tiered.read.reader"), ImportError(wrong)):
        assert one_line(error).endswith(f"install the package again: {wrong}")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DiskFailed("cannot open a file", path="/d/.lock", cause="erofs"), "mounted read-only; status, plan, consume"),
        (AccessDenied("cannot open a file", path="/d/.lock", cause="eacces"), "run as the owner of the files"),
        (DiskFailed("cannot write to a file", path="/d/x.log", cause="enospc"), "the disk is full"),
        (OSError(28, "No space left on device", "/d"), "no space left on device: path=/d (the disk is full)"),
        (OSError(24, "Too many open files"), "ulimit -n"),
        (DiskFailed("cannot sync a file", path="/d/x.log", cause="eio"), "cause=eio"),
    ],
)
def test_disk_error_names_the_next_step_where_it_is_known(error: BaseException, told: str) -> None:
    assert told in one_line(error)


@pytest.mark.parametrize("module", ["aiohttp", "s3fs"])
def test_missing_library_error_names_the_package_to_install(module: str) -> None:
    """Runs in a process of its own, because modules that are imported already cannot be removed."""
    words = ["consume", "orders", "--remote", "s3://bucket"]
    code = (
        f"import sys; sys.modules[{module!r}] = None; from tiered.cli.main import invoke; sys.exit(invoke({words!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode in (Exit.USAGE, Exit.FAILED), done.stderr
    assert f"={module}" in done.stderr
    assert "pip install 'tiered[s3]'" in done.stderr


@pytest.mark.parametrize("module", one_of_each(3, ["starlette", "uvicorn", "h11", "anyio", "jinja2"]))
def test_commands_work_without_the_web_server_and_web_names_the_package(tmp_path: Path, module: str) -> None:
    words = [["-q", "init"], ["-q", "status"], ["run", "--once"], ["web", "--listen", ":0"]]
    code = (
        f"import sys; sys.modules[{module!r}] = None; from tiered.cli.main import invoke; "
        f"print([int(invoke(['-C', {str(tmp_path)!r}, *each])) for each in {words!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 1]", done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: a package is not installed: package={module} ")
    assert done.stderr.splitlines()[-1].endswith("install=pip install tiered")


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(capfd, name: str) -> None:
    assert invoke([name, "--help"]) == 0
    assert f"Usage: tiered {name}" in capfd.readouterr().out


def test_tiered_without_a_command_shows_the_help(capfd) -> None:
    assert invoke([]) == 2
    assert "Usage: tiered" in capfd.readouterr().err


def test_one_line_for_a_forged_manifest_does_not_advise_to_name_a_key_ring() -> None:
    line = one_line(Corrupt("reading a sealed manifest, forged, moved or edited", key_id="k1"))
    assert "key_ring" not in line
    assert "docs/runbooks/corruption.md" in line


def test_one_line_for_a_missing_key_names_both_places_of_the_key_ring() -> None:
    line = one_line(AccessDenied("cannot decrypt a sealed manifest, its key is not in the key ring", key_id="k9"))
    assert "key_ring in [remote] of tiered.toml" in line
    assert "TIERED_KEY_RING" in line
    assert "add the key with that id" in line
