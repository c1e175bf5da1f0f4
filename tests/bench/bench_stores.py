"""The S3 clients compared in one run: ``python tests/bench/bench_stores.py [--mib 64] [--rounds 5]``.

| row | measured |
|---|---|
| upload | one object in parts of 8 MiB, like `ObjectStore.upload` sends a segment |
| ranges | the object in parallel ranged GETs of 8 MiB, `get_ranges` |
| small | 64 ranged GETs of 4 KiB at random positions, one after the other: milliseconds each |
| create | 64 create-if-absent of 1 KiB, one after the other: milliseconds each |

Clients: ``raw`` is http.client on presigned URLs, in threads, the lower bound for Python. ``boto3`` is its own
transfer. ``s3fs`` and ``obstore`` are this project's stores. ``face`` is obstore's fsspec interface without this
project's store. The server is versitygw on loopback, over a directory. It shares the cores, so that only ratios are
meaningful. Rounds are interleaved; best of each. CPU is that of this process, in ms for each MiB.
"""

from __future__ import annotations

import argparse
import http.client
import io
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

sys.path.insert(0, str(Path(__file__).parents[2] / "localstack"))
from local_servers import ACCESS_KEY, KINDS, SECRET_KEY, RunningServer

from remote.segment_entry import PART_BYTES
from remote.store import ranged_source
from remote.store.open_store import open_store

BUCKET, SMALL_BYTES, SMALL_COUNT, THREADS = "bench-bucket", 4096, 64, 8


class Client:
    """Named steps. A client may lack a step."""

    def __init__(self, name: str, **steps: Callable[[], object]) -> None:
        self.name, self.steps = name, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    body = random.Random(1).randbytes(1 << 20) * arguments.mib
    with tempfile.TemporaryDirectory() as folder, RunningServer(KINDS["versitygw"], Path(folder)) as server:
        server.create_bucket(BUCKET)
        clients = [raw(server, body), with_boto3(server, body), face(server, body)]
        clients += [ours(name, server, body) for name in ("s3fs", "obstore")]
        print(f"{arguments.mib} MiB, best of {arguments.rounds}; ratio to raw, more is faster")
        for step in ("upload", "ranges", "small", "create"):
            compare(step, clients, arguments.rounds, arguments.mib)


def compare(step: str, clients: list[Client], rounds: int, mib: int) -> None:
    having = [client for client in clients if step in client.steps]
    took: dict[str, list[tuple[float, float]]] = {client.name: [] for client in having}
    for client in having:
        client.steps[step]()
    for _ in range(rounds):
        for client in having:
            begun, cpu = time.perf_counter(), time.process_time()
            client.steps[step]()
            took[client.name].append((time.perf_counter() - begun, time.process_time() - cpu))
    floor = min(took["raw"])[0]
    for name, each in took.items():
        wall, cpu = min(each)[0], min(cpu for _, cpu in each)
        if step in ("upload", "ranges"):
            told = f"{mib * (1 << 20) / wall / 1e6:8.0f} MB/s   cpu {cpu * 1e3 / mib:5.2f} ms/MiB"
        else:
            told = f"{wall / SMALL_COUNT * 1e3:8.2f} ms     cpu {cpu * 1e3 / SMALL_COUNT:5.2f} ms"
        print(f"{step:8} {name:8} {told}   ratio {floor / wall:5.2f}")


def places(size_bytes: int) -> list[int]:
    drawn = random.Random(2)
    return [drawn.randrange(size_bytes - SMALL_BYTES) for _ in range(SMALL_COUNT)]


def ours(name: str, server: RunningServer, body: bytes) -> Client:
    store = open_store(f"s3://{BUCKET}/{name}", {**server.options(), "client": name})
    view = memoryview(body)
    source = ranged_source(len(body), lambda start, length: view[start : start + length])
    ranges = [(start, min(PART_BYTES, len(body) - start)) for start in range(0, len(body), PART_BYTES)]
    fresh = iter(range(1 << 30))

    def read() -> None:
        assert sum(map(len, store.get_ranges("object", ranges))) == len(body)

    return Client(
        name,
        upload=lambda: store.upload("object", source),
        ranges=read,
        small=lambda: [store.get_range("object", at, SMALL_BYTES) for at in places(len(body))],
        create=lambda: [store.put_if_absent(f"new/{next(fresh)}", bytes(1024)) for _ in range(SMALL_COUNT)],
    )


def boto(server: RunningServer):
    return boto3.client(
        "s3", endpoint_url=server.url, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        config=Config(signature_version="s3v4", request_checksum_calculation="when_required"),
    )  # fmt: skip


def with_boto3(server: RunningServer, body: bytes) -> Client:
    client = boto(server)
    transfer = TransferConfig(PART_BYTES, max_concurrency=THREADS, multipart_chunksize=PART_BYTES)

    def read() -> None:
        into = io.BytesIO()
        client.download_fileobj(BUCKET, "boto3", into, Config=transfer)
        assert into.getbuffer().nbytes == len(body)

    return Client(
        "boto3", upload=lambda: client.upload_fileobj(io.BytesIO(body), BUCKET, "boto3", Config=transfer), ranges=read
    )


def raw(server: RunningServer, body: bytes) -> Client:
    """Presigned requests over one connection for each thread. The upload is multipart, like for all clients."""
    client = boto(server)
    place = urlsplit(server.url)
    url = client.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "raw"}, ExpiresIn=36000)
    view = memoryview(body)
    idle: list[http.client.HTTPConnection] = []

    def ask(method: str, target: str, sent: memoryview | None = None, **headers: str) -> http.client.HTTPResponse:
        connection = idle.pop() if idle else http.client.HTTPConnection(place.hostname, place.port)
        connection.request(method, target.removeprefix(server.url), sent, headers)
        answer = connection.getresponse()
        answer.whole = answer.read()
        assert answer.status < 300, answer.whole
        idle.append(connection)
        return answer

    def part(number: int, upload_id: str) -> dict[str, object]:
        names = {"Bucket": BUCKET, "Key": "raw", "UploadId": upload_id, "PartNumber": number}
        target = client.generate_presigned_url("upload_part", Params=names)
        start = (number - 1) * PART_BYTES
        return {"PartNumber": number, "ETag": ask("PUT", target, view[start : start + PART_BYTES]).headers["ETag"]}

    def upload() -> None:
        upload_id = client.create_multipart_upload(Bucket=BUCKET, Key="raw")["UploadId"]
        with ThreadPoolExecutor(4) as pool:
            sent = list(pool.map(lambda number: part(number, upload_id), range(1, -(-len(body) // PART_BYTES) + 1)))
        names = {"Bucket": BUCKET, "Key": "raw", "UploadId": upload_id, "MultipartUpload": {"Parts": sent}}
        client.complete_multipart_upload(**names)

    def get(start: int, length: int) -> bytes:
        return ask("GET", url, Range=f"bytes={start}-{start + length - 1}").whole

    def read() -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            bodies = list(pool.map(lambda start: get(start, PART_BYTES), range(0, len(body), PART_BYTES)))
        assert sum(map(len, bodies)) == len(body)

    def create() -> None:
        for number in range(SMALL_COUNT):
            target = client.generate_presigned_url("put_object", Params={"Bucket": BUCKET, "Key": f"raws/{number}"})
            ask("PUT", target, memoryview(bytes(1024)))

    small = lambda: [get(at, SMALL_BYTES) for at in places(len(body))]  # noqa: E731
    return Client("raw", upload=upload, ranges=read, small=small, create=create)


def face(server: RunningServer, body: bytes) -> Client:
    from obstore.fsspec import FsspecStore

    told = {"endpoint": server.url, "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "region": "us-east-1"}
    filesystem = FsspecStore("s3", config=told, client_options={"allow_http": True})
    path = f"{BUCKET}/face"
    starts = list(range(0, len(body), PART_BYTES))
    ends = [min(start + PART_BYTES, len(body)) for start in starts]

    def read() -> None:
        assert sum(map(len, filesystem.cat_ranges([path] * len(starts), starts, ends))) == len(body)

    return Client(
        "face",
        upload=lambda: filesystem.pipe_file(path, body),
        ranges=read,
        small=lambda: [filesystem.cat_file(path, start=at, end=at + SMALL_BYTES) for at in places(len(body))],
    )


if __name__ == "__main__":
    main()
