"""Files that the user names on the command line.
Errors show the name as typed. A target that is not a regular file is never replaced."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

from local.errors import AccessDenied, DiskFailed, InvalidRequest, LogError, NotFound
from tiered.config import user_files
from tiered.config.user_files import check_target, read_given, write_given


def test_written_file_is_read_back_and_no_temporary_file_remains(tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    for body in (b"first", b"", b"second"):
        write_given(path, body, "writing")
        assert read_given(path, "reading", "none") == body
    assert os.listdir(tmp_path) == ["plan.json"]


def test_write_through_a_symlink_keeps_the_link_and_replaces_its_target(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "far")
    for body in (b"one", b"two"):
        write_given(str(tmp_path / "link"), body, "writing")
        assert (tmp_path / "far").read_bytes() == body
        assert (tmp_path / "link").is_symlink()


def test_write_to_a_pipe_keeps_the_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = Thread(target=lambda: got.append(read_given(str(pipe), "reading", "none")))
    reader.start()
    write_given(str(pipe), b"through", "writing")
    reader.join()
    assert got == [b"through"]
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("", InvalidRequest, "the name is empty"),
        ("there", InvalidRequest, "it is a directory"),
        ("there/", InvalidRequest, "it is a directory"),
        ("no/", InvalidRequest, "it is a directory"),
        ("no/such/file", NotFound, "its directory does not exist"),
        ("file/below", NotFound, "its directory does not exist"),
        ("x" * 300, DiskFailed, "enametoolong"),
    ],
)
def test_invalid_target_is_refused_with_the_name_as_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[LogError], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    Path("file").touch()
    with pytest.raises(kind, match=told) as error:
        write_given(name, b"body", "cannot write the plan")
    assert error.value.attempt.startswith("cannot write the plan")
    assert error.value.facts["file"] == (name or "''")
    assert sorted(os.listdir()) == ["file", "there"]


def test_unwritable_directory_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root passes every permission check
    with pytest.raises(AccessDenied, match="eacces"):
        check_target(str(tmp_path / "plan.json"), "cannot write the plan")


def test_unreadable_file_is_refused_with_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {
        "none": (NotFound, "the file does not exist: made by x"),
        "": (NotFound, "the file does not exist: made by x"),
    }
    for name, (kind, told) in cases.items():
        with pytest.raises(kind, match=told):
            read_given(str(tmp_path / name) if name else "", "reading", "made by x")
    with pytest.raises(InvalidRequest, match="it is a directory: made by x"):
        read_given(str(tmp_path), "reading", "made by x")
    (tmp_path / "file").write_bytes(b"12345")
    with pytest.raises(AccessDenied, match="enotdir"):
        read_given(str(tmp_path / "file" / "below"), "reading", "made by x")
    monkeypatch.setattr(user_files, "BYTES_MAX", 4)
    with pytest.raises(InvalidRequest, match="it is not a regular file"):
        read_given(str(tmp_path / "file"), "reading", "made by x")
