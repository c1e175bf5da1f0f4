"""The real disk: its errors become the project's errors and name the path."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from local.errors import DiskFailed
from local.storage import DiskStorage, storage


def test_an_unreadable_part_of_a_file_fails_the_map_and_does_not_kill_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages behind the end of a truncated file fault like pages of a bad sector."""
    path = tmp_path / "file"
    try:
        mmap.mmap(-1, mmap.PAGESIZE).madvise(storage._POPULATE_READ)
    except OSError:
        pytest.skip("this kernel does not know MADV_POPULATE_READ (Linux 5.14)")
    path.write_bytes(b"x" * 4 * mmap.PAGESIZE)
    assert bytes(DiskStorage().map(str(path))) == path.read_bytes()
    mapped = storage._mapped

    def map_and_lose(fd: int, size: int) -> mmap.mmap:
        found = mapped(fd, size)
        os.truncate(path, mmap.PAGESIZE)
        return found

    monkeypatch.setattr(storage, "_mapped", map_and_lose)
    with pytest.raises(DiskFailed) as error:
        DiskStorage().map(str(path))
    assert error.value.facts["path"] == str(path)
    assert error.value.facts["cause"] == "efault"


@pytest.mark.parametrize("taken", [0, 3])
def test_a_write_that_accepts_no_byte_is_an_error_and_not_an_endless_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    file, answers = DiskStorage().create(str(tmp_path / "file")), iter([taken, 0])
    monkeypatch.setattr(os, "write", lambda fd, data: next(answers) if taken else 0)
    with pytest.raises(DiskFailed) as error:
        file.append(b"abcdef")
    assert error.value.lacks_room
    file.close()
