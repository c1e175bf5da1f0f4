"""A missing or refusing bucket: the user gets one line with the cause and the place, and no record is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tiered.demo.s3_endpoint import S3Endpoint

pytestmark = pytest.mark.server

REFUSALS = {
    "access was denied": (403, "AccessDenied", 1, "access was denied"),
    "access was denied or the credentials are wrong": (403, "InvalidAccessKeyId", 1, "access was denied"),
    "wrong secret": (403, "SignatureDoesNotMatch", 1, "access was denied"),
    "no such bucket": (404, "NoSuchBucket", 1, "bucket"),
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with S3Endpoint() as running:
        yield running


def _tiered(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tiered", "-C", str(home), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def _configure(home: Path, bucket: str, endpoint_url: str) -> None:
    (home / "tiered.toml").write_text(
        f'[local]\ndir = "data"\n[remote]\nurl = "s3://{bucket}/p"\n[remote.options]\n'
        f'endpoint_url = "{endpoint_url}"\nkey = "loopback"\nsecret = "loopback"\n'
        f'client_kwargs = {{ region_name = "us-east-1" }}\n'
        f'[defaults]\n"remote.storage.enable" = true\n"retention.ms" = -1\n"local.retention.ms" = "1ms"\n'
    )


def _one_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("error: ")]
    return line


class _Refusing:
    """A server that answers every request with one S3 error."""

    def __init__(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.mark.parametrize("why", list(REFUSALS))
def test_refusing_bucket_gives_one_error_line_and_creates_no_topic(tmp_path: Path, why: str) -> None:
    status, code, exit_code, word = REFUSALS[why]
    server = _Refusing(status, code)
    try:
        _configure(tmp_path, "wanted-bucket", server.url)
        line = _one_line(_tiered(tmp_path, "topic", "create", "orders"), exit_code)
    finally:
        server.stop()
    assert "wanted-bucket" in line
    assert word in line.lower()
    assert "loopback" not in line, "no credential may be shown"
    assert not (tmp_path / "data" / "topics.json").exists()


def test_a_bucket_that_does_not_exist_is_named(tmp_path: Path, endpoint: S3Endpoint) -> None:
    _configure(tmp_path, "nobody-made-this", endpoint.url)
    assert "nobody-made-this" in _one_line(_tiered(tmp_path, "topic", "create", "orders"), 1)


def test_bucket_lost_after_an_append_loses_no_record(tmp_path: Path, endpoint: S3Endpoint) -> None:
    endpoint.create_bucket("present")
    _configure(tmp_path, "present", endpoint.url)
    (tmp_path / "lines").write_text("".join(f"{at}\n" for at in range(100)))
    assert _tiered(tmp_path, "topic", "create", "orders").returncode == 0
    assert _tiered(tmp_path, "append", "orders", str(tmp_path / "lines")).returncode == 0
    _configure(tmp_path, "absent", endpoint.url)
    assert "absent" in _one_line(_tiered(tmp_path, "run", "--once"), 1)
    _configure(tmp_path, "present", endpoint.url)
    assert _tiered(tmp_path, "run", "--once").returncode == 0
    read = _tiered(tmp_path, "consume", "orders/0", "-o", "jsonl")
    assert [json.loads(line)["value"] for line in read.stdout.splitlines()] == [str(at) for at in range(100)]


def test_conflict_on_a_directory_and_on_a_bucket_have_different_errors(tmp_path: Path, endpoint: S3Endpoint) -> None:
    endpoint.create_bucket("shared")
    first, second = tmp_path / "first", tmp_path / "second"
    for home in (first, second):
        home.mkdir()
        _configure(home, "shared", endpoint.url)
    assert _tiered(first, "topic", "create", "orders").returncode == 0
    (second / "data").mkdir()
    (second / "data" / "topics.json").write_bytes((first / "data" / "topics.json").read_bytes())
    command = [sys.executable, "-m", "tiered", "-C", str(first), "run", "--interval", "50ms"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert running.stderr.readline().startswith("running")
    line = _one_line(_tiered(first, "run", "--once"), 5)
    assert "another manager" in line
    assert str(first / "data") in line
    (second / "lines").write_text("x\n")
    assert _tiered(second, "append", "orders", str(second / "lines")).returncode == 0
    running.terminate()
    assert running.wait(60) == 0
    running.stderr.close()
    assert running.stdout is not None
    running.stdout.close()
