"""``tiered append --acks remote``: exit 0 means in the bucket, else exit 6.
A repeated command appends no record twice."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from local.errors import AccessDenied, Unavailable
from local.storage import DiskStorage
from tiered.cli.main import invoke
from tiered.manager import remote_acks
from tiered.serve.node.append_marks import MARKS_FILE, MARKS_MAX, AppendMarks, Share, input_key

APPEND = ["append", "orders", "lines", "-K", ":", "--acks", "remote"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("lines").write_text("".join(f"k{at}:value {at}\n" for at in range(60)))
    assert invoke(["-q", "init"]) == 0
    assert invoke(["-q", "topic", "create", "orders", "-p", "2", "-X", "remote.copy.lag.ms=1h"]) == 0
    return tmp_path


def values(capfd: pytest.CaptureFixture[str], *words: str) -> list[str]:
    capfd.readouterr()
    assert invoke(["consume", "orders", *words]) == 0
    return sorted(capfd.readouterr().out.splitlines())


ALL = sorted(f"value {at}" for at in range(60))


def test_append_with_remote_acks_exits_0_when_all_records_are_in_the_bucket(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert invoke([*APPEND, "-o", "json"]) == 0
    out, said = capfd.readouterr()
    assert sum(each["records"] for each in json.loads(out)["appended"]) == 60
    assert "in the bucket: orders/0 up to" in said
    assert "orders/1 up to" in said
    assert values(capfd, "--remote", (home / "bucket").as_uri()) == ALL
    assert not (home / MARKS_FILE).exists()
    assert invoke([*APPEND]) == 0
    assert len(values(capfd)) == 120, "acknowledged input may be appended again"


def test_append_with_remote_acks_without_bucket_exits_6_and_repeats_append_nothing(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = remote_acks.wait_for_bucket

    for _ in range(3):
        monkeypatch.setattr(remote_acks, "wait_for_bucket", _raise_unavailable)
        capfd.readouterr()
        assert invoke(APPEND) == 6
        said = capfd.readouterr().err
        assert "'tiered run' copies them" in said
        assert "nothing twice" in said
        assert values(capfd) == ALL
    assert values(capfd, "--remote", (home / "bucket").as_uri()) == []
    monkeypatch.setattr(remote_acks, "wait_for_bucket", real)
    capfd.readouterr()
    assert invoke(APPEND) == 0
    assert "appended by an earlier command: records=60" in capfd.readouterr().err
    assert values(capfd) == values(capfd, "--remote", (home / "bucket").as_uri()) == ALL
    assert not (home / MARKS_FILE).exists()


def test_other_input_is_appended_while_an_earlier_one_waits_for_the_bucket(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(remote_acks, "wait_for_bucket", _raise_unavailable)
        assert invoke(APPEND) == 6
        assert invoke(["append", "orders/1", "lines", "-K", ":", "--acks", "remote"]) == 6, (
            "another target is another input"
        )
        assert invoke(["append", "orders", "lines", "--acks", "remote"]) == 6, "another format is another input"
    Path("lines").write_text("one:more\n")
    assert invoke(APPEND) == 0
    assert len(values(capfd)) == 181


@pytest.mark.parametrize(("words", "is_remote"), [([], True), (["--acks", "local"], False)])
def test_append_waits_as_the_topic_says_unless_the_command_says_otherwise(
    home: Path, capfd: pytest.CaptureFixture[str], words: list[str], *, is_remote: bool
) -> None:
    assert invoke(["-q", "topic", "create", "archive", "-X", "append.acks=remote"]) == 0
    capfd.readouterr()
    assert invoke(["append", "archive", "lines", *words]) == 0
    assert ("in the bucket: archive/0 up to" in capfd.readouterr().err) is is_remote
    assert invoke(["append", "archive", "lines", *words, "--timeout", "1m"]) == (0 if is_remote else 2)


def test_append_to_a_missing_topic_names_it(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["append", "nope", "lines"]) == 1
    assert "nope" in capfd.readouterr().err


def _raise_unavailable(*args: object, **more: object) -> None:
    raise Unavailable("the bucket is away", store="file://")


def test_append_interrupted_while_waiting_exits_130_and_is_resumed_by_a_repeat(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(remote_acks, "wait_for_bucket", _interrupt)
        assert invoke(APPEND) == 130
    assert invoke(APPEND) == 0
    assert values(capfd) == values(capfd, "--remote", (home / "bucket").as_uri()) == ALL


def test_append_without_a_writable_mark_still_waits_and_warns(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(marks: AppendMarks, key: str, shares: list[Share]) -> None:
        raise AccessDenied("writing a file", path=MARKS_FILE)

    monkeypatch.setattr(AppendMarks, "note", refuse)  # as if the directory of the configuration were not writable
    capfd.readouterr()
    assert invoke(APPEND) == 0
    assert "running the command again would append the records twice" in capfd.readouterr().err
    assert values(capfd, "--remote", (home / "bucket").as_uri()) == ALL
    with monkeypatch.context() as patch:
        patch.setattr(remote_acks, "wait_for_bucket", _raise_unavailable)
        capfd.readouterr()
        assert invoke(APPEND) == 6
    assert "do not append it again" in capfd.readouterr().err


def _interrupt(*args: object, **more: object) -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("remote.storage.enable=false", "remote.storage.enable"),
        ("cleanup.policy=compact", "use acks local"),
        ("remote.log.copy.disable=true", "not copied"),
    ],
)
def test_append_with_remote_acks_refuses_a_topic_that_never_reaches_the_bucket(
    home: Path, capfd: pytest.CaptureFixture[str], settings: str, told: str
) -> None:
    assert invoke(["topic", "create", "other", "-X", settings]) == 0
    capfd.readouterr()
    assert invoke(["append", "other", "lines", "-K", ":", "--acks", "remote"]) == 2
    assert told in capfd.readouterr().err
    assert invoke(["consume", "other"]) == 0
    assert capfd.readouterr().out == ""
    assert invoke(["append", "orders", "lines", "--timeout", "5s"]) == 2
    assert "--timeout requires --acks remote" in capfd.readouterr().err


def test_append_marks_are_found_by_input_and_limited_in_number(tmp_path: Path) -> None:
    path = str(tmp_path / MARKS_FILE)
    marks, disk = AppendMarks(DiskStorage(), path), DiskStorage()
    share = Share(topic="t", partition=0, base_offset=1, next_offset=3, records=2)
    keys = [input_key({"source": ("file", at)}) for at in range(MARKS_MAX + 5)]
    assert len(set(keys)) == len(keys)
    for key in keys:
        marks.note(key, [share])
    assert [marks.find(key) for key in keys[:6]] == [None] * 5 + [[share]]
    assert AppendMarks(disk, path).find(keys[-1]) == [share]
    for key in keys:
        marks.forget(key)
    assert not (tmp_path / MARKS_FILE).exists()
