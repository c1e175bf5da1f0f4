"""Parts of an upload that are read again: each try sends the whole part, also beside an abandoned one."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from local.errors import Unavailable
from remote.store.middleware.deadlines_and_retries import RetryPolicy
from remote.store.protocol import UploadSource
from remote.store.s3_store import READ_BYTES, S3Store

BODY = b"".join(bytes([number]) * READ_BYTES for number in range(6))
TWICE = RetryPolicy(attempts_max=2, wait_first_s=0.001, wait_max_s=0.001)


class HangingClient:
    """s3fs as the store sees it: the first try of a part hangs half-sent, and continues beside the second one."""

    def __init__(self):
        self.abandoned, self.sent = None, {}
        self.loop = asyncio.new_event_loop()

    def call_s3(self, method, **names):
        if method == "upload_part":
            return self.loop.run_until_complete(self._part(names["PartNumber"], names["Body"]))
        return {"UploadId": "one"}

    async def _part(self, number, body):
        pieces = aiter(body)
        if self.abandoned is None:
            self.abandoned = pieces
            for _ in range(3):
                await anext(pieces)
            raise Unavailable("no reply before the deadline")
        self.sent[number] = b""
        async for piece in pieces:
            await anext(self.abandoned, None)
            self.sent[number] += piece
        return {"ETag": str(number)}


@pytest.mark.parametrize("is_read_again", [True, False])
def test_a_second_try_sends_the_whole_part_beside_an_abandoned_one(monkeypatch, is_read_again):
    def read(start, length):
        return memoryview(BODY)[start : start + length]

    def parts():
        return iter([read(0, 5 * READ_BYTES), read(5 * READ_BYTES, READ_BYTES)])

    client = HangingClient()
    monkeypatch.setattr(S3Store, "_fs", client)
    monkeypatch.setattr(S3Store, "_parts_max", 1)
    source = UploadSource(parts=parts, part_bytes=5 * READ_BYTES, read_again=read if is_read_again else None)
    with closing(client.loop):
        S3Store("bucket", policy=TWICE).upload("key", source)
    assert client.sent == {1: BODY[: 5 * READ_BYTES], 2: BODY[5 * READ_BYTES :]}
