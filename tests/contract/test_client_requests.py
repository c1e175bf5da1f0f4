"""The requests that s3fs sends for each call, counted. The manual's section 2 has this table.
If an upgrade of s3fs fails this test, review `remote.store.s3_store`, the ranges of `remote.fetch.range_reader` and
the prices of requests: they are based on these numbers."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tiered.demo.s3_endpoint import S3Endpoint

MB, MIB = 1_000_000, 1 << 20
BIG = 30 * MB


class Client:
    """s3fs with a record of every request: its kind and its range."""

    def __init__(self, endpoint: S3Endpoint) -> None:
        import s3fs

        self.files = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False, **endpoint.options())
        self.files.connect()
        self.sent: list[tuple[str, str | None]] = []
        self.files.s3.meta.events.register("before-send.s3", self._note)

    def _note(self, request, **_: object) -> None:
        query = request.url.partition("?")[2]
        kinds = {"uploads": "begin", "delete": "DeleteObjects", "list-type": "LIST", "partNumber": "part"}
        found = next((told for sign, told in kinds.items() if query.startswith(sign)), None)
        kind = found or ("end" if query.startswith("uploadId") else request.method)
        asked = request.headers.get("Range")
        self.sent.append((kind, asked.decode() if isinstance(asked, bytes) else asked))

    def requests(self, act: Callable[[], object]) -> list[str]:
        self.sent.clear()
        act()
        return [kind for kind, _ in self.sent]


@pytest.fixture(scope="module")
def client(s3_endpoint: S3Endpoint) -> Client:
    s3_endpoint.create_bucket("counted")
    return Client(s3_endpoint)


def write(client: Client, size_bytes: int, step: int = MIB, **more: int) -> None:
    with client.files.open("counted/written", "wb", **more) as file:
        for _ in range(size_bytes // step):
            file.write(bytes(step))


def look_into(client: Client) -> None:
    """Read 1 KB at offset 10 MB."""
    with client.files.open("counted/big", "rb") as file:
        file.seek(10 * MB)
        assert len(file.read(1000)) == 1000


@pytest.mark.server
def test_s3fs_sends_the_requests_in_the_manuals_table(client: Client, tmp_path) -> None:
    files, path, body = client.files, tmp_path / "big", os.urandom(BIG)
    path.write_bytes(body)
    ranges = [0, 100, 200, 300], [100, 200, 300, 400]
    table = {
        "put_file of 30 MB": (lambda: files.put_file(str(path), "counted/big"), ["PUT"]),
        "cat_file": (lambda: files.cat_file("counted/big"), ["HEAD", "GET"]),
        "cat_file of a range": (lambda: files.cat_file("counted/big", start=0, end=100), ["GET"]),
        "open to read": (lambda: look_into(client), ["HEAD", "GET"]),
        "exists on a missing key": (lambda: files.exists("counted/none"), ["HEAD", "LIST"]),
        "cat_ranges of 4 that adjoin": (lambda: files.cat_ranges(["counted/big"] * 4, *ranges), ["GET"] * 4),
        "get_file": (lambda: files.get_file("counted/big", str(tmp_path / "again")), ["GET"]),
        "rm of a list": (lambda: files.rm(["counted/big"]), ["DeleteObjects"]),
        "open to write 30 MB": (lambda: write(client, BIG, MB), ["PUT"]),
        "written below a block of 50 MiB": (lambda: write(client, 49 * MIB), ["PUT"]),
        "from two blocks on it is n parts and two": (
            lambda: write(client, 15 * MIB, block_size=5 * MIB),
            ["begin", "part", "part", "part", "end"],
        ),
    }
    found = {name: client.requests(act) for name, (act, _) in table.items()}
    assert found == {name: asked for name, (_, asked) in table.items()}


@pytest.mark.server
def test_read_ahead_of_an_open_file_transfers_twenty_thousand_times_the_read_bytes(client: Client) -> None:
    client.files.pipe_file("counted/big", bytes(BIG))
    client.requests(lambda: look_into(client))
    (asked,) = [asked for kind, asked in client.sent if kind == "GET"]
    first, last = map(int, str(asked).removeprefix("bytes=").split("-"))
    assert last - first + 1 == 20 * MB
