"""Ranges of files: shared descriptors, closed with the last range, also of a deleted file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tiered.serve import file_range
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


def test_an_event_loop_keeps_a_file_open_for_the_next_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_range, "KEPT_S", 0.0)
    path = tmp_path / "log"
    path.write_bytes(b"records")
    files, opens = OpenFiles(), list[int]()

    def open_file() -> int:
        opens.append(opened(path))
        return opens[-1]

    async def fetches() -> None:
        assert files.get("a", open_file) is not None
        assert files.get("a", open_file) is not None
        assert len(opens) == 1, "the file must be open between two fetches"
        while is_open(opens[0]):
            await asyncio.sleep(0)
        assert files.get("a", open_file) is not None
        assert len(opens) == 2

    asyncio.run(fetches())
    assert not is_open(opens[-1])


def test_no_file_is_kept_beyond_a_number_of_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_range, "KEPT_MAX", 1)
    path = tmp_path / "log"
    path.write_bytes(b"records")
    files = OpenFiles()

    async def fetches() -> None:
        first = files.get("a", lambda: opened(path))
        assert first is not None
        second = files.get("b", lambda: opened(path))
        assert second is not None
        fd = second.fd
        del second
        assert not is_open(fd)

    asyncio.run(fetches())
