"""Reading ahead of an upload: the same bytes as through the storage, for a changing file too."""

from __future__ import annotations

import os
import random

import pytest

from local.errors import DiskFailed
from remote.upload import segment_upload_stream
from remote.upload.segment_upload_stream import FileAhead

BLOCK = 1000
BODY = random.Random(4).randbytes(10 * BLOCK + 77)


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "segment.log"
    file.write_bytes(BODY)
    return str(file)


class Through:
    """Reads through the storage, and counts the reads."""

    def __init__(self, body=BODY):
        self.body = body
        self.asked = []

    def read(self, start, length):
        self.asked.append((start, length))
        return self.body[start : start + length]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(segment_upload_stream, "BLOCK_BYTES", BLOCK)


@pytest.fixture
def through():
    return Through()


def blocks():
    return [(at, min(BLOCK, len(BODY) - at)) for at in range(0, len(BODY), BLOCK)]


def test_blocks_in_order_are_read_ahead_and_whole(path, through):
    ahead = FileAhead(path, len(BODY), through.read)
    found = [ahead.read(start, length) for start, length in blocks()]
    ahead.close()
    assert b"".join(found) == BODY
    assert all(isinstance(each, bytes) for each in found), "a whole block was copied"
    assert through.asked == [(0, BLOCK)], "more than the first block was read through the storage"


def test_any_range_in_any_order_reads_the_bytes_of_the_file(path, through):
    rng = random.Random(1)
    ahead = FileAhead(path, len(BODY), through.read)
    for _ in range(300):
        start = rng.randrange(len(BODY))
        length = rng.randrange(1, 3 * BLOCK)
        assert bytes(ahead.read(start, length)) == BODY[start : start + length]
    ahead.close()


@pytest.mark.parametrize("spoil", ["gone", "cut", "closed"])
def test_bytes_that_the_file_lacks_are_read_through_the_storage(path, through, spoil):
    ahead = FileAhead(path, len(BODY), through.read)
    match spoil:
        case "gone":
            os.unlink(path)
        case "cut":
            os.truncate(path, 3 * BLOCK + 5)
        case _:
            ahead.close()
    assert b"".join(ahead.read(start, length) for start, length in blocks()) == BODY
    assert len(through.asked) > 5
    ahead.close()


def test_a_disk_error_is_raised_by_the_storage(tmp_path):
    def failing(start, length):
        raise DiskFailed("cannot read a file", cause="eio")

    ahead = FileAhead(str(tmp_path / "none"), 100, failing)
    with pytest.raises(DiskFailed):
        ahead.read(0, 10)
    ahead.close()


def test_closing_twice_or_without_a_read_has_no_effect(path, through):
    for reads in (0, 1, 3):
        ahead = FileAhead(path, len(BODY), through.read)
        for start, length in blocks()[:reads]:
            ahead.read(start, length)
        ahead.close()
        ahead.close()
