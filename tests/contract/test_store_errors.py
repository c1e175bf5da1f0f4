"""Store URLs, errors of the file store, the probe, and warnings, beyond the common store contract."""

from __future__ import annotations

import io
import logging
import os
import re
import threading
from urllib.parse import quote

import pytest

from local.errors import AccessDenied, AlreadyExists, InvalidRequest, NotFound, Unavailable
from remote.segment_entry import PART_BYTES
from remote.store import ranged_source
from remote.store.file_store import FileStore
from remote.store.memory_store import MemoryStore
from remote.store.middleware.deadlines_and_retries import RetryPolicy
from remote.store.open_store import open_store
from remote.store.probe import RACERS, probe_store
from remote.store.s3_store import S3Store
from remote.upload.segment_upload import SegmentToCopy, copy_segment

ONCE = RetryPolicy(attempts_max=1)
LARGE = bytes(2 * PART_BYTES + PART_BYTES // 2)


def source_of(body):
    return ranged_source(len(body), lambda start, length: memoryview(body)[start : start + length])


class TestOpenStore:
    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("ftp://host/x", "the url is not the url of a store"),
            ("bucket", "the url is not the url of a store"),
            ("s3://", "no bucket"),
            ("s3:///prefix", "no bucket"),
            ("file://relative/path", "absolute path"),
            ("s3://bucket/x?y=1", "the url is not the url of a store"),
            ("s3://[x", "the url is not the url of a store: scheme=s3"),
            ("file:///a%00b", "the url is not the url of a store"),
        ],
    )
    def test_an_invalid_url_is_refused(self, url, words):
        with pytest.raises(InvalidRequest, match=words):
            open_store(url)

    def test_credentials_in_a_url_are_refused_and_not_repeated_in_the_error(self):
        with pytest.raises(InvalidRequest, match="credentials") as caught:
            open_store("s3://key:hunter2@bucket/x")
        assert "hunter2" not in str(caught.value)

    def test_options_for_a_store_without_options_are_refused_by_name(self, tmp_path):
        with pytest.raises(InvalidRequest, match="options=key,secret") as caught:
            open_store(f"file://{tmp_path}", {"secret": "hunter2", "key": "k"})
        assert "hunter2" not in str(caught.value)

    def test_stores_with_the_same_memory_url_share_their_objects(self):
        open_store("memory://shared-in-test").put("a", b"x")
        assert open_store("memory://shared-in-test").get("a") == b"x"
        assert list(open_store("memory://another-in-test").list("")) == []

    def test_a_file_url_may_be_percent_encoded(self, tmp_path):
        root = tmp_path / "with space"
        root.mkdir()
        store = open_store(f"file://{tmp_path}/with%20space")
        store.put("a", b"x")
        assert (root / "a").read_bytes() == b"x"

    @pytest.mark.parametrize("name", ["d#1", "d?1", "100%", "a%20b", "ä", os.fsdecode(b"\xff")])
    def test_every_directory_name_has_a_url_that_opens_it(self, tmp_path, name):
        root = tmp_path / name
        root.mkdir()
        store = open_store("file://" + quote(os.fsencode(root)))
        store.put("a", b"x")
        assert (root / "a").read_bytes() == b"x"
        assert open_store(store.url).get("a") == b"x"
        assert store.url.isascii()


class TestFileStoreErrors:
    def test_a_missing_root_is_not_found_and_never_created(self, tmp_path):
        store = open_store(f"file://{tmp_path}/none")
        for verb in (lambda: store.put("a", b"x"), lambda: list(store.list("")), lambda: store.list_prefixes("")):
            with pytest.raises(NotFound, match=r"directory does not exist.*none"):
                verb()
        assert not (tmp_path / "none").exists()

    def test_a_missing_permission_raises_access_denied(self, tmp_path, monkeypatch):
        def refuse(*_):
            raise PermissionError(13, "Permission denied")

        store = FileStore(str(tmp_path))
        store.put("a", b"x")
        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(AccessDenied, match=r"access was denied.*key=a"):
            store.get("a")

    def test_a_full_disk_is_unavailable_and_the_old_object_stays(self, tmp_path, monkeypatch):
        def refuse(*_):
            raise OSError(28, "No space left on device")

        store = FileStore(str(tmp_path))
        store.put("a", b"old")
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", refuse)
            with pytest.raises(Unavailable, match="cause=enospc"):
                store.put("a", b"new")
        assert store.get("a") == b"old"
        assert [info.key for info in store.list("")] == ["a"]

    def test_a_create_syncs_the_bytes_and_the_name_before_it_returns(self, tmp_path):
        calls = []

        class Noting(FileStore):
            def _link(self, aside, path):
                calls.append("link")
                super()._link(aside, path)

        store = Noting(str(tmp_path))
        (tmp_path / "~aside").mkdir()
        disk = store._storage
        original = disk.create

        def create(path):
            file = original(path)
            sync = file.sync
            file.sync = lambda: (calls.append("sync file"), sync())
            return file

        disk.create = create
        sync_directory = disk.sync_directory
        disk.sync_directory = lambda path: (calls.append("sync directory"), sync_directory(path))
        store.put_if_absent("a", b"x")
        assert calls == ["sync file", "link", "sync directory"]


def test_a_store_that_ignores_if_absent_fails_the_probe():
    class Careless(MemoryStore):
        def put_if_absent(self, key, body):
            self.put(key, body)

    assert not probe_store(Careless()).create_if_absent


def test_a_store_that_raises_already_exists_but_overwrites_fails_the_probe():
    class Overwriting(MemoryStore):
        def put_if_absent(self, key, body):
            try:
                super().put_if_absent(key, body)
            except AlreadyExists:
                self.put(key, body)
                raise

    assert not probe_store(Overwriting()).create_if_absent


def test_a_store_that_checks_first_and_then_writes_fails_the_racing_probe():
    looked = threading.Barrier(RACERS)

    class Hasty(MemoryStore):
        def put_if_absent(self, key, body):
            if b"by" not in body:
                return super().put_if_absent(key, body)
            looked.wait()
            return self.put(key, body)

    assert probe_store(Hasty()).allows_writers
    assert not probe_store(Hasty(), is_racing=True).allows_writers
    assert probe_store(MemoryStore(), is_racing=True).allows_writers


@pytest.mark.parametrize("error", [AccessDenied("x"), NotFound("x"), Unavailable("x")], ids=repr)
def test_a_probe_object_that_could_not_be_created_is_not_deleted(error):
    calls = []

    class Refusing(MemoryStore):
        def put_if_absent(self, key, body):
            raise error

        def delete(self, keys):
            calls.append(keys)

    with pytest.raises(type(error)):
        probe_store(Refusing())
    assert calls == []


def printed(caplog):
    """The log records in the format of the command line."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    for record in caplog.records:
        handler.emit(record)
    return out.getvalue()


def test_warnings_of_the_store_print_their_facts(caplog):
    class EncodingChoice(MemoryStore):
        def delete(self, keys):
            raise AccessDenied("cannot delete objects, no permission", cause="AccessDenied")

        def upload(self, key, source):
            raise Unavailable("cannot upload an object")

    probe_store(EncodingChoice(), "p/")
    assert re.search(
        r"cannot delete a probe object: key=p/meta/probe/\w{26} cause=.*cause=AccessDenied", printed(caplog)
    )
    caplog.clear()
    segment = SegmentToCopy(
        base_offset=0, next_offset=1, size_bytes=1, record_count=1, max_timestamp_ms=1, min_timestamp_ms=1,
        epochs=((0, 0),), offset_index=b"", time_index=b"", read=lambda start, length: b"x",
    )  # fmt: skip
    with pytest.raises(Unavailable):
        copy_segment(EncodingChoice(), "t/0/", segment, epoch=1, now_ms=0)
    # the upload of its indexes never began
    assert re.search(
        r"cannot delete the objects of a failed upload: keys=t/0/data/[^\s,]+\.log cause=.", printed(caplog)
    )
    caplog.clear()
    store = S3Store("bucket", policy=ONCE)

    class Down:
        def call_s3(self, *_, **__):
            raise OSError(111, "refused")

    store._filesystem, store._pid = Down(), os.getpid()
    store._abort("big", "the-id")
    assert re.search(r"cannot abort an incomplete upload: key=big cause=.", printed(caplog))
