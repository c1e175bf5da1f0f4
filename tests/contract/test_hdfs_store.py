"""HDFS beyond the common store contract: temporary files, answers of a NameNode, and configuration."""

from __future__ import annotations

import importlib.util
import itertools
import os
import select
import signal
import socket
import threading
import time
from contextlib import closing, suppress

import pytest

from local.errors import AccessDenied, AlreadyExists, InvalidRequest, NotFound, Unavailable
from remote.keys import new_ulid
from remote.segment_entry import PART_BYTES
from remote.store import UploadSource, ranged_source
from remote.store.hdfs_store import ASIDE_AGE_MAX_MS, translate
from remote.store.middleware.deadlines_and_retries import RetryPolicy
from remote.store.open_store import open_store

ONCE = RetryPolicy(attempts_max=1)
TWICE = RetryPolicy(attempts_max=2, sleep=lambda _: None)
LARGE = bytes(os.urandom(1 << 16)) * ((2 * PART_BYTES + PART_BYTES // 2) >> 16)
_numbers = itertools.count()


@pytest.fixture
def client(hdfs_server):
    from hdfs_native import Client

    return Client(hdfs_server.url)


@pytest.fixture
def root(client):
    """The path of an empty directory."""
    root = f"/store-{next(_numbers)}"
    client.mkdirs(root, create_parent=True)
    return root


@pytest.fixture
def store(hdfs_server, root):
    store = open_store(hdfs_server.url + root, policy=ONCE)
    yield store
    store.close()


def _write(client, path, body=b"x"):
    from hdfs_native import WriteOptions

    file = client.create(path, WriteOptions(create_parent=True))
    file.write(body)
    file.close()


@pytest.mark.server
@pytest.mark.hdfs
class TestFiles:
    def test_a_missing_root_is_not_found_and_never_created(self, hdfs_server, client):
        store = open_store(f"{hdfs_server.url}/nobody/made/this", policy=ONCE)
        for verb in (
            lambda: store.put("a", b"x"),
            lambda: store.put_if_absent("a", b"x"),
            lambda: store.upload("a", ranged_source(1, lambda start, length: b"x")),
            lambda: list(store.list("")),
            lambda: store.list_prefixes(""),
        ):
            with pytest.raises(NotFound, match=r"directory does not exist.*/nobody/made/this"):
                verb()
        with pytest.raises(FileNotFoundError):
            client.get_file_info("/nobody")

    def test_an_upload_is_not_visible_until_it_is_complete(self, store, client, root):
        store.put("big", b"old")
        seen = []

        def parts():
            for start in range(0, len(LARGE), PART_BYTES):
                seen.append((store.get("big"), [info.key for info in store.list("")]))
                yield LARGE[start : start + PART_BYTES]

        store.upload("big", UploadSource(parts=parts))
        assert seen == [(b"old", ["big"])] * 3
        assert store.get("big") == LARGE
        assert list(client.list_status(f"{root}/~aside", recursive=False)) == []

    def test_temporary_files_of_a_killed_writer_are_neither_listed_nor_readable(self, store, client, root):
        store.put("a", b"x")
        _write(client, f"{root}/~aside/{new_ulid(0)}")
        assert [info.key for info in store.list("")] == ["a"]
        assert store.list_prefixes("") == []
        with pytest.raises(InvalidRequest, match="reserved"):
            store.put(f"~aside/{new_ulid(0)}", b"x")

    def test_the_first_write_deletes_old_temporary_files_with_a_ulid_name_only(self, hdfs_server, client, root):
        old, young = new_ulid(0), new_ulid(0)
        for name in (old, young, "named-notes"):
            _write(client, f"{root}/~aside/{name}")
        long_ago = time.time_ns() // 1_000_000 - ASIDE_AGE_MAX_MS - 60_000
        for name in (old, "named-notes"):
            client.set_times(f"{root}/~aside/{name}", long_ago, long_ago)
        store = open_store(hdfs_server.url + root, policy=ONCE)
        store.put("a", b"x")
        left = {status.path.rpartition("/")[2] for status in client.list_status(f"{root}/~aside", recursive=False)}
        assert left == {young, "named-notes"}

    def test_a_write_succeeds_after_the_temporary_directory_was_deleted(self, store, client, root):
        store.put("a", b"x")
        client.delete(f"{root}/~aside", recursive=True)
        store.put("b", b"x")
        assert [info.key for info in store.list("")] == ["a", "b"]

    def test_a_delete_of_a_directory_name_deletes_nothing(self, store):
        store.put("a/b", b"x")
        store.delete(["a", "a/b/c"])
        assert store.get("a/b") == b"x"

    def test_a_listing_does_not_enter_directories_outside_its_prefix_or_range(self, store, monkeypatch):
        for key in ("t/1/x", "t/2/x", "t/20/x", "t/3/x", "u/x"):
            store.put(key, b"x")
        entered, inner = [], store._inner._inner
        children = inner._children
        monkeypatch.setattr(inner, "_children", lambda at: (entered.append(at), children(at))[1])
        assert [info.key for info in store.list("t/2", start_after="t/2/x")] == ["t/20/x"]
        assert entered == ["t/", "t/2/", "t/20/"]

    def test_a_put_to_the_name_of_a_directory_is_an_error_and_the_directory_stays(self, store):
        store.put("a/b", b"x")
        with pytest.raises((InvalidRequest, Unavailable)):
            store.put("a", b"y")
        with pytest.raises(InvalidRequest, match="ParentNotDirectory"):
            store.put("a/b/c", b"y")
        assert [info.key for info in store.list("")] == ["a/b"]

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns of forking with threads
    def test_a_forked_child_and_its_parent_never_read_answers_of_each_other(self, store):
        """The client keeps a connection to a DataNode after a read, and a fork copies it."""
        for key in ("a", "b"):
            store.put(key, key.encode())
        assert store.get("b") == b"b"
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(writing, store.get("a"))
            finally:
                os._exit(0)
        os.close(writing)
        try:
            while not select.select([reading], [], [], 0.05)[0]:
                assert store.get("b") == b"b"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert os.read(reading, 10) == b"a"
        os.close(reading)
        assert store.get("a") == b"a"


@pytest.mark.server
@pytest.mark.hdfs
@pytest.mark.parametrize("verb", ["put", "put_if_absent"])
def test_a_rename_with_a_lost_answer_is_resolved_by_the_retry(hdfs_server, root, monkeypatch, verb):
    """The client repeats the call, and the source no longer exists."""
    store = open_store(hdfs_server.url + root, policy=TWICE)
    store.put("warm", b"x")
    client = store._inner._inner._client
    rename, calls = client.rename, []

    def losing(source, target, overwrite):
        rename(source, target, overwrite)
        calls.append(target)
        if len(calls) == 1:
            rename(source, target, overwrite)

    monkeypatch.setattr(client, "rename", losing)
    if verb == "put":
        store.put("a", b"body")
        assert len(calls) == 2
    else:
        with pytest.raises(AlreadyExists):
            store.put_if_absent("a", b"body")
    assert store.get("a") == b"body"


@pytest.mark.server
@pytest.mark.hdfs
def test_an_ha_nameservice_is_found_through_the_hadoop_configuration_directory(
    hdfs_server, root, tmp_path, monkeypatch
):
    settings = {
        "fs.defaultFS": "hdfs://logical",
        "dfs.nameservices": "logical",
        "dfs.ha.namenodes.logical": "gone,here",
        "dfs.namenode.rpc-address.logical.gone": "127.0.0.1:1",
        "dfs.namenode.rpc-address.logical.here": hdfs_server.url.removeprefix("hdfs://"),
    }
    rows = "".join(f"<property><name>{name}</name><value>{told}</value></property>" for name, told in settings.items())
    for name in ("core-site.xml", "hdfs-site.xml"):
        (tmp_path / name).write_text(f"<configuration>{rows}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    for url in (f"hdfs://logical{root}", f"hdfs://{root}"):
        store = open_store(url, policy=ONCE)
        store.put("a", url.encode())
        assert store.get("a") == url.encode()
        assert store.url == url
        store.close()


def test_an_unreachable_namenode_is_unavailable_within_seconds(tmp_path, monkeypatch):
    pytest.importorskip("hdfs_native")
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    store = open_store("hdfs://127.0.0.1:1/x", policy=ONCE)
    for verb in (lambda: store.get("a"), lambda: store.put("a", b"x"), lambda: list(store.list(""))):
        begun = time.monotonic()
        with pytest.raises(Unavailable, match=r"cannot be reached.*hdfs://127.0.0.1:1/x"):
            verb()
        assert time.monotonic() - begun < 20


def test_an_unknown_hadoop_option_is_named_without_its_value():
    pytest.importorskip("hdfs_native")
    with pytest.raises(InvalidRequest, match=r"not a Hadoop setting.*option=some\.thing") as caught:
        open_store("hdfs://127.0.0.1:1/x", {"some.thing": ["hunter2"]})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("hdfs://namenode:8020", "no directory"),
        ("hdfs://namenode:8020/", "no directory"),
        ("hdfs://namenode:99999/x", "the port in the url is invalid"),
        ("hdfs://namenode:x/x", "the port in the url is invalid"),
        ("hdfs://user@namenode/x", "credentials"),
    ],
)
def test_an_invalid_hdfs_url_is_refused(url, words):
    with pytest.raises(InvalidRequest, match=words):
        open_store(url)


def test_without_the_hdfs_client_the_error_names_the_install_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"library=hdfs_native install=pip install 'tiered\[hdfs\]'$"):
        open_store("hdfs://namenode/x")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (FileNotFoundError("/secret"), NotFound, "it does not exist"),
        (FileExistsError("/secret"), AlreadyExists, "already exists"),
        (
            "org.apache.hadoop.security.AccessControlException:Permission denied: user=x",
            AccessDenied,
            "access was denied",
        ),
        ("org.apache.hadoop.security.AccessControlException:/a (is not a directory)", NotFound, "it does not exist"),
        ("org.apache.hadoop.security.token.SecretManager$InvalidToken:x", AccessDenied, "cause=InvalidToken"),
        ("org.apache.hadoop.fs.InvalidPathException:/a:b", InvalidRequest, "cause=InvalidPathException"),
        ("org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException:x", InvalidRequest, "TooLong"),
        ("org.apache.hadoop.hdfs.server.namenode.SafeModeException:x", Unavailable, "cause=SafeModeException"),
        ("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException:x", Unavailable, "cause=DSQuotaExceededException"),
        ("java.io.IOException:could only be written to 0 of the 1 minReplication nodes", Unavailable, "IOException"),
        (ConnectionRefusedError(111, "secret"), Unavailable, "cannot be reached"),
        (RuntimeError("DataTransferError(secret)"), Unavailable, "cause=DataTransferError"),
    ],
)
def test_a_namenodes_error_becomes_the_matching_error_class_without_its_text(error, kind, words):
    if isinstance(error, str):
        name, _, text = error.partition(":")
        error = RuntimeError(f'RPCError("{name}", "{text} secret")')
    found = translate(error, "cannot store an object", {"key": "a"})
    assert type(found) is kind
    assert words in str(found)
    assert "secret" not in str(found)


@pytest.mark.parametrize(("options", "connections"), [({}, (1, 2)), ({"dfs.client.failover.max.attempts": 2}, (3, 6))])
def test_calls_to_a_namenode_are_retried_by_the_retry_layer_only(options, connections):
    pytest.importorskip("hdfs_native")
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            with suppress(OSError):
                while True:
                    seen.append(server.accept()[0].close())

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        url = f"hdfs://127.0.0.1:{server.getsockname()[1]}/x"
        for policy, tries in ((ONCE, 1), (TWICE, 2)):
            seen.clear()
            with (
                pytest.raises(Unavailable, match=f"attempts={tries}"),
                closing(open_store(url, options, policy=policy)) as store,
            ):
                store.get("a")
            least, most = (tries * each for each in connections)
            assert least <= len(seen) <= most
        server.shutdown(socket.SHUT_RDWR)
    accepting.join(10)
