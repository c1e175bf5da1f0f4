"""Ranges of files: shared descriptors, closed with the last range, also of a deleted file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiered.serve.file_range import FileRange, OpenFile, OpenFiles


def opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_descriptor_is_closed_with_its_last_range(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(range(200)))
    file = OpenFile(opened(path))
    fd = file.fd
    whole = FileRange(file, 10, 100)
    parts = list(whole.slices(40))
    del file, whole
    path.unlink()
    assert [(each.position, len(each)) for each in parts] == [(10, 40), (50, 40), (90, 20)]
    assert b"".join(each.read() for each in parts) == bytes(range(10, 110))
    assert parts[0].after(15).read() == bytes(range(25, 50))
    del parts
    assert not is_open(fd)


def test_one_descriptor_of_a_key_serves_all_its_ranges_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x")
    files = OpenFiles(2)
    one, again, two = (files.get(key, lambda: opened(path)) for key in ("one", "one", "two"))
    assert one is again
    assert one is not two
    assert files.get("three", lambda: opened(path)) is None
    del one, again
    assert files.get("three", lambda: opened(path)) is not None


def test_an_error_of_the_opening_is_raised_and_takes_no_place(tmp_path: Path) -> None:
    files = OpenFiles(1)
    with pytest.raises(FileNotFoundError):
        files.get("one", lambda: opened(tmp_path / "missing"))
    path = tmp_path / "log"
    path.write_bytes(b"x")
    assert files.get("two", lambda: opened(path)) is not None


def test_only_an_uncached_byte_makes_a_range_uncached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x")
    whole, probed = FileRange(OpenFile(opened(path)), 7, 1000), list[int]()
    errors: dict[int, OSError] = {}

    def probe(fd: int, buffers: object, at: int, flags: int) -> int:
        probed.append(at)
        if at in errors:
            raise errors[at]
        return 1

    monkeypatch.setattr(os, "preadv", probe)
    assert whole.is_cached()
    assert probed == [7, 1006]
    errors[1006] = BlockingIOError(11, "not cached")
    assert not whole.is_cached()
    errors[1006] = OSError(95, "not supported")
    assert whole.is_cached()
