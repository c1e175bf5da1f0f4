"""Reading ahead of an upload: the same bytes as through the storage, for a changing file too."""

from __future__ import annotations

import os
import random

import pytest

from local.errors import Corrupt, DiskFailed
from remote.segments.stored_segment import CHUNK_BYTES, ZSTD, Seal
from remote.upload import segment_upload_stream
from remote.upload.segment_upload_stream import FileAhead, SegmentUploadStream

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


# --- parts that are read again ----------------------------------------------------------------------------------------


def stream_of(body, read_again):
    return SegmentUploadStream(
        len(body), lambda start, length: body[start : start + length], seal=Seal(), chunk_bytes=CHUNK_BYTES,
        read_again=read_again,
    )  # fmt: skip


@pytest.mark.parametrize("at", [0, CHUNK_BYTES, 3 * CHUNK_BYTES + 5])
def test_a_part_that_is_read_again_must_have_the_bytes_of_the_first_read(at):
    body = random.Random(7).randbytes(3 * CHUNK_BYTES + 99)
    changed = bytearray(body)
    source = stream_of(body, lambda start, length: bytes(changed[start : start + length])).source()
    assert b"".join(source.parts()) == body
    assert source.read_again(at, 50) == body[at : at + 50]
    changed[at] ^= 1
    with pytest.raises(Corrupt, match="its file changed"):
        source.read_again(at, 50)


@pytest.mark.parametrize("left", [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 98])
def test_a_file_that_was_truncated_is_found_when_its_part_is_read_again(left):
    body = random.Random(8).randbytes(3 * CHUNK_BYTES + 99)
    source = stream_of(body, lambda start, length: body[:left][start : start + length]).source()
    assert b"".join(source.parts()) == body
    with pytest.raises(Corrupt, match="its file changed"):
        source.read_again(0, len(body))


def test_the_parts_of_an_encoded_segment_are_held():
    body = bytes(5 * CHUNK_BYTES)
    stream = SegmentUploadStream(
        len(body), lambda start, length: body[start : start + length], seal=Seal(codec=ZSTD), chunk_bytes=CHUNK_BYTES,
        read_again=lambda start, length: body[start : start + length],
    )  # fmt: skip
    assert stream.source().read_again is None
