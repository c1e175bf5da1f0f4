"""The contract of `remote.store.protocol` as one test suite for every object store and every wrapper."""

from __future__ import annotations

import itertools
import os
import select
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from urllib.parse import quote

import pytest

from local.errors import AlreadyExists, Corrupt, InvalidRequest, NotFound, Unavailable
from remote.segment_entry import PART_BYTES
from remote.store import ranged_source
from remote.store.file_store import ASIDE, FileStore
from remote.store.memory_store import MemoryStore
from remote.store.middleware.deadlines_and_retries import RetryingStore, RetryPolicy, WatchedStore
from remote.store.middleware.store_wrapper import MeteredStore, ObservedStore, ThrottledStore
from remote.store.open_store import open_store
from remote.store.probe import probe_store
from remote.store.s3_store import PartSender

ONCE = RetryPolicy(attempts_max=1)
NUMBERS = itertools.count()  # of buckets: each test has its own
LARGE = bytes(os.urandom(1 << 16)) * ((2 * PART_BYTES + PART_BYTES // 2) >> 16)


def source_of(body):
    return ranged_source(len(body), lambda start, length: memoryview(body)[start : start + length])


def read_again_source(body):
    """`body` in parts of two given parts each, read again to send them."""
    return replace(
        source_of(body),
        part_bytes=2 * PART_BYTES,
        read_again=lambda start, length: memoryview(body)[start : start + length],
    )


class ObjectStoreContract:
    """Subclasses provide `store`, whose root is empty."""

    # number of the upload part whose read finds an unfinished upload in the store; 4: no part does
    begins_with_part = 4
    reads_again = False  # parts of UploadSource.part_bytes, instead of the given ones

    def test_get_returns_the_stored_body(self, store):
        store.put("a/b", b"body")
        assert store.get("a/b") == b"body"

    def test_put_replaces_an_object(self, store):
        store.put("a", b"one")
        store.put("a", b"longer two")
        assert store.get("a") == b"longer two"

    @pytest.mark.parametrize("body", [b"bytes", bytearray(b"bytes"), memoryview(b"bytes")])
    def test_bodies_may_be_any_bytes_like_object(self, store, body):
        store.put("a", body)
        store.put_if_absent("b", body)
        assert store.get("a") == store.get("b") == b"bytes"

    def test_a_second_create_if_absent_of_a_key_raises_already_exists(self, store):
        store.put_if_absent("a", b"first")
        with pytest.raises(AlreadyExists, match="key=a"):
            store.put_if_absent("a", b"second")
        assert store.get("a") == b"first"

    def test_of_eight_concurrent_creators_exactly_one_succeeds(self, store):
        for round_number in range(5):
            key = f"race/{round_number}"
            start = threading.Barrier(8)

            def create(number, key=key, start=start):
                start.wait()
                try:
                    store.put_if_absent(key, b"writer %d" % number)
                    return number
                except AlreadyExists:
                    return None

            with ThreadPoolExecutor(8) as pool:
                winners = [number for number in pool.map(create, range(8)) if number is not None]
            assert len(winners) == 1
            assert store.get(key) == b"writer %d" % winners[0]

    @pytest.mark.parametrize("verb", ["put", "put_if_absent"])
    def test_an_empty_body_is_refused_and_nothing_changes(self, store, verb):
        store.put("a", b"there")
        with pytest.raises(InvalidRequest, match="empty"):
            getattr(store, verb)("a", b"")
        with pytest.raises(InvalidRequest, match="empty"):
            store.upload("a", source_of(b""))
        assert store.get("a") == b"there"

    @pytest.mark.parametrize("size_bytes", [1, 1000, PART_BYTES, PART_BYTES + 1, len(LARGE)])
    def test_an_uploaded_object_has_all_its_bytes(self, store, size_bytes):
        store.upload("big", source_of(LARGE[:size_bytes]))
        assert store.head("big").size_bytes == size_bytes
        assert store.get("big") == LARGE[:size_bytes]

    def test_an_upload_reads_every_byte_in_parts_that_begin_at_part_boundaries(self, store):
        asked = []

        def read(start, length):
            asked.append((start, length))
            return LARGE[start : start + length]

        store.upload("big", ranged_source(len(LARGE), read))
        assert all(start % PART_BYTES == 0 for start, _ in asked)
        assert {at for start, length in asked for at in range(start, start + length, 4096)} == set(
            range(0, len(LARGE), 4096)
        )

    @pytest.mark.parametrize("size_bytes", [PART_BYTES - 1, PART_BYTES + 1, 2 * PART_BYTES, len(LARGE)])
    def test_an_upload_of_parts_that_are_read_again_has_all_its_bytes(self, store, size_bytes):
        store.upload("big", read_again_source(LARGE[:size_bytes]))
        assert store.get("big") == LARGE[:size_bytes]

    def test_an_error_of_reading_a_part_again_stores_nothing_and_is_raised(self, store):
        def read_again(start, length):
            raise Corrupt("reading a segment again", at=start)

        source = replace(read_again_source(LARGE), read_again=read_again)
        if type(self).reads_again:
            with pytest.raises(Corrupt, match="reading a segment again"):
                store.upload("big", source)
            assert (list(store.list("")), self.under_way(store)) == ([], [])
        else:
            store.upload("big", source)
            assert store.get("big") == LARGE

    def test_an_upload_from_a_failing_source_stores_nothing_and_raises_its_error(self, store):
        def read(start, length):
            if start:
                raise NotFound("reading a local segment, there is none", path="/gone")
            return LARGE[start : start + length]

        with pytest.raises(NotFound, match="path=/gone"):
            store.upload("big", ranged_source(len(LARGE), read))
        assert list(store.list("")) == []

    def under_way(self, store):
        """The unfinished uploads of the store that no listing shows. Memory has none."""
        return []

    @pytest.mark.parametrize("failing", [1, 2, 3])
    def test_a_failed_upload_leaves_no_unfinished_upload(self, store, failing):
        begun = []

        def read(start, length):
            if start >= (failing - 1) * PART_BYTES:
                begun.append(len(self.under_way(store)))
                raise Corrupt("reading a segment", at=start)
            return LARGE[start : start + length]

        store.put("other", b"stays")
        with pytest.raises(Corrupt, match="reading a segment"):
            store.upload("big", ranged_source(len(LARGE), read))
        assert begun == [1 if failing >= self.begins_with_part else 0], (
            "the upload must be unfinished at this part, or the test proves nothing"
        )
        assert self.under_way(store) == []
        assert [info.key for info in store.list("")] == ["other"]

    def test_ranges_contain_exactly_the_requested_bytes(self, store):
        store.put("a", b"0123456789")
        assert store.get_range("a", 0, 10) == b"0123456789"
        assert store.get_range("a", 3, 4) == b"3456"
        assert store.get_range("a", 9, 1) == b"9"
        assert store.get_range("a", 5, 0) == b""
        assert store.get_ranges("a", [(8, 2), (0, 1), (2, 0), (0, 3)]) == [b"89", b"0", b"", b"012"]
        assert store.get_ranges("a", []) == []

    @pytest.mark.parametrize(("start", "length"), [(0, 11), (9, 2), (10, 1), (500, 5)])
    def test_a_range_past_the_end_is_corrupt(self, store, start, length):
        store.put("a", b"0123456789")
        with pytest.raises(Corrupt, match=f"the object ends before the range.*key=a start={start} length={length}"):
            store.get_range("a", start, length)
        with pytest.raises(Corrupt):
            store.get_ranges("a", [(0, 1), (start, length)])

    @pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, -1)])
    def test_an_invalid_range_is_refused(self, store, start, length):
        store.put("a", b"0123456789")
        with pytest.raises(InvalidRequest, match="the range is invalid"):
            store.get_range("a", start, length)

    def test_a_read_of_a_missing_key_raises_not_found_with_the_key(self, store):
        store.put("a/b", b"x")
        for read in (store.get, store.head, lambda key: store.get_range(key, 0, 1)):
            for key in ("none", "a", "a/b/c"):
                with pytest.raises(NotFound, match=f"key={key}"):
                    read(key)

    def test_a_listing_is_in_key_order_and_has_sizes(self, store):
        for key in ("b/2", "b/10", "a", "b-1", "c/d/e"):
            store.put(key, key.encode())
        assert [info.key for info in store.list("")] == ["a", "b-1", "b/10", "b/2", "c/d/e"]
        assert [(info.key, info.size_bytes) for info in store.list("b/")] == [("b/10", 4), ("b/2", 3)]
        assert [info.key for info in store.list("b")] == ["b-1", "b/10", "b/2"]
        assert [info.key for info in store.list("b", start_after="b/10")] == ["b/2"]
        assert [info.key for info in store.list("nothing/")] == []
        assert store.head("b/2").modified_ms is None or store.head("b/2").modified_ms > 1_600_000_000_000

    def test_a_listing_shows_puts_and_deletes_immediately(self, store):
        store.put("a", b"x")
        assert [info.key for info in store.list("")] == ["a"]
        store.put("b", b"x")
        store.delete(["a"])
        assert [info.key for info in store.list("")] == ["b"]

    def test_prefixes_are_the_next_path_components_that_contain_objects(self, store):
        for key in ("t-1/0/x", "t-1/10/x", "t-2/0/x", "file"):
            store.put(key, b"x")
        assert store.list_prefixes("") == ["t-1", "t-2"]
        assert store.list_prefixes("t-1/") == ["0", "10"]
        assert store.list_prefixes("none/") == []
        store.delete(["t-2/0/x"])
        assert store.list_prefixes("") == ["t-1"]

    def test_get_each_returns_the_bodies_and_none_for_missing_keys_and_ranges(self, store):
        store.put("a", b"0123456789")
        store.put("b/c", b"xyz")
        asked = [
            ("a", 0, None),
            ("a", 3, 4),
            ("none", 0, None),
            ("none", 0, 2),
            ("a", 8, 3),
            ("b/c", 2, 1),
            ("a", 4, 0),
        ]
        found = store.get_each(asked)
        expected = [b"0123456789", b"3456", None, None, None, b"z", b""]
        assert [None if each is None else bytes(each) for each in found] == expected
        assert store.get_each([]) == []
        assert [bytes(each) for each in store.get_each(asked[:1])] == expected[:1]

    def test_list_prefixes_accepts_the_first_characters_of_a_component(self, store):
        for key in ("t-1/0/x", "t-1/10/x", "t-1/11/1/x", "t-12/0/x", "t/0/x", "u-1/0/x", "t-13"):
            store.put(key, b"x")
        assert store.list_prefixes("t-") == ["t-1", "t-12"]
        assert store.list_prefixes("t-1") == ["t-1", "t-12"]
        assert store.list_prefixes("t-1/1") == ["10", "11"]
        assert store.list_prefixes("t-1/11/") == ["1"]
        assert store.list_prefixes("t-1/11") == ["11"]
        assert store.list_prefixes("v-") == store.list_prefixes("none/t-") == []

    def test_a_delete_ignores_missing_keys(self, store):
        for number in range(12):
            store.put(f"k/{number:02d}", b"x")
        store.delete([f"k/{number:02d}" for number in range(10)] + ["k/none"])
        assert [info.key for info in store.list("")] == ["k/10", "k/11"]
        store.delete([])

    @pytest.mark.parametrize("key", ["", "/a", "a//b", "a/", "../a", "a/../b", "./a", "a\nb", "a?b", "k" * 1025])
    def test_an_illegal_key_is_refused(self, store, key):
        for verb in (lambda: store.put(key, b"x"), lambda: store.put_if_absent(key, b"x"), lambda: store.get(key)):
            with pytest.raises(InvalidRequest, match="invalid object key"):
                verb()

    def test_keys_with_special_characters_are_stored_unchanged(self, store):
        for key in ("a b", "a+b%20", "ä", "a#b", "a=b&c"):
            store.put_if_absent(key, key.encode())
        for key in ("a b", "a+b%20", "ä", "a#b", "a=b&c"):
            assert store.get(key) == key.encode()
            assert store.head(key).key == key
        assert {info.key for info in store.list("")} == {"a b", "a+b%20", "ä", "a#b", "a=b&c"}

    def test_the_probe_detects_create_if_absent_and_leaves_no_object(self, store):
        assert probe_store(store, "p/", is_racing=True).allows_writers
        assert list(store.list("")) == []

    def test_close_may_be_called_twice(self, store):
        store.put("a", b"x")
        store.close()
        store.close()


class TestMemory(ObjectStoreContract):
    @pytest.fixture
    def store(self):
        return MemoryStore()


class TestFile(ObjectStoreContract):
    begins_with_part = 2

    @pytest.fixture
    def store(self, tmp_path):
        return FileStore(str(tmp_path))

    def under_way(self, store):
        return os.listdir(f"{store._root}/{ASIDE}")

    def test_a_listing_resolves_the_real_path_of_a_directory_once(self, store, tmp_path, monkeypatch):
        for key in ("a/1", "a/2", "a/b/3", "a/c/4"):
            store.put(key, b"x")
        asked = []
        real = os.path.realpath
        monkeypatch.setattr(os.path, "realpath", lambda path: asked.append(path) or real(path))
        assert len(list(store.list("a/b/"))) == 1
        assert not asked, "a prefix without subdirectories needs no resolution"
        assert len(list(store.list("a/"))) == 4
        assert len(asked) == 1

    def test_a_listing_ends_despite_circular_and_dangling_links(self, store, tmp_path, tmp_path_factory):
        (tmp_path / "b").mkdir()
        for key in ("a/f", "a/c/g", "b/h"):
            store.put(key, b"x")
        for link, to in {
            "self": "self",
            "a/self": "self",
            "a/gone": "nowhere",
            "a/up": "..",
            "a/c/top": "../..",
            "a/b": "../b",
            "b/a": "../a",
        }.items():
            (tmp_path / link).symlink_to(to)
        beyond = tmp_path_factory.mktemp("beyond")
        (beyond / "i").write_bytes(b"x")
        (tmp_path / "out").symlink_to(beyond)
        (beyond / "back").symlink_to(tmp_path)
        found = [info.key for info in store.list("")]
        inside = ["a/b/h", "a/c/g", "a/f", "b/a/c/g", "b/a/f", "b/h"]
        assert sorted(set(found)) == found == [*inside, "out/i"]
        assert store.list_prefixes("") == ["a", "b", "out"]
        assert store.list_prefixes("a/") == ["b", "c", "up"]
        assert {"a/c/g", "a/c/top/b/h"} <= {info.key for info in store.list("a/c/")}, (
            "a listing that begins inside a circle must end too"
        )


class TestRetrying(ObjectStoreContract):
    @pytest.fixture
    def store(self):
        return RetryingStore(MemoryStore(), ONCE)


class TestWatched(ObjectStoreContract):
    @pytest.fixture
    def store(self):
        return WatchedStore(MemoryStore())


class TestThrottled(ObjectStoreContract):
    @pytest.fixture
    def store(self):
        return ThrottledStore(MemoryStore(), 1e12, 1e12)


class TestObserved(ObjectStoreContract):
    @pytest.fixture
    def store(self):
        return ObservedStore(MemoryStore(), lambda op, key: nullcontext())


class TestMetered(ObjectStoreContract):
    @pytest.fixture
    def store(self):
        return MeteredStore(MemoryStore())


def is_path_of_a_file(name):
    """A gateway over a file system stores only objects whose key is a valid file path."""
    return all(part not in ("", ".", "..") for part in name.split("/"))


class S3Contract(ObjectStoreContract):
    """Subclasses provide `server` with its options and buckets, and may set another `client`."""

    client = "s3fs"

    @pytest.fixture
    def store(self, server):
        bucket = f"own-bucket-{next(NUMBERS)}"
        server.create_bucket(bucket)
        store = open_store(f"s3://{bucket}/some/root", {**server.options(), "client": self.client})
        assert type(store._inner._inner).__name__ == {"s3fs": "S3Store", "obstore": "ObstoreS3Store"}[self.client]
        yield store
        store.close()

    begins_with_part = 3  # a body of one part is one PUT
    reads_again = True

    def holds(self, name):
        """Whether this server accepts such an object name and lists it in byte order."""
        return True

    def under_way(self, store):
        inner = store._inner._inner
        answer = inner._fs.call_s3("list_multipart_uploads", Bucket=inner._bucket)
        return [each["UploadId"] for each in answer.get("Uploads", ())]

    @pytest.mark.parametrize(
        "foreign",
        [(), ("", "00000000000000000007/"), ("/", "//x"), ("./x",), ("a b", "a+b%20", "ä", "x/y")],
        ids=["none", "marks of folders", "empty components", "dots", "odd names"],
    )
    def test_manifests_are_listed_together_with_external_objects_under_their_own_names(self, store, foreign):
        heads = [f"t-1/0/meta/head/{number:020d}" for number in (1, 2, 10)]
        for head in heads:
            store.put(head, b"head")
        store.put("t-1/0/meta/headless", b"x")
        inner, foreign = store._inner._inner, [name for name in foreign if self.holds(name)]
        for name in foreign:
            key = f"some/root/t-1/0/meta/head/{name}"
            inner._fs.call_s3("put_object", Bucket=inner._bucket, Key=key, Body=b"" if name.endswith("/") else b"x")
        theirs = [f"t-1/0/meta/head/{name}" for name in foreign]
        listed = list(store.list("t-1/0/meta/head/"))
        assert [info.key for info in listed] == sorted([*heads, *theirs], key=str.encode)
        assert {info.size_bytes for info in listed if info.key in heads} == {4}
        assert all(info.modified_ms for info in listed)
        after = [info.key for info in store.list("t-1/0/meta/head/", start_after=heads[1])]
        assert after == [key for key in sorted([*heads, *theirs], key=str.encode) if key.encode() > heads[1].encode()]
        assert list(store.list("t-2/0/meta/head/")) == []

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns of forking with threads
    def test_a_store_works_in_a_forked_child_process(self, store):
        store.put("a", b"x")
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(writing, store.get("a"))
            finally:
                os._exit(0)
        os.close(writing)
        told, _, _ = select.select([reading], [], [], 60)
        if not told:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert os.read(reading, 10) == b"x"
        os.close(reading)
        assert store.get("a") == b"x"

    @pytest.mark.parametrize("happened", [True, False])
    def test_an_upload_completion_without_answer_is_resolved_by_reading_the_object(self, store, monkeypatch, happened):
        inner = store._inner._inner
        call = inner._call

        def losing(attempt, method, key, **names):
            if method != "complete_multipart_upload":
                return call(attempt, method, key, **names)
            if happened:
                call(attempt, method, key, **names)
            raise Unavailable("cannot complete an upload", key=key)

        monkeypatch.setattr(inner, "_call", losing)
        monkeypatch.setattr(inner, "_policy", ONCE)
        if happened:
            store.upload("big", source_of(LARGE))
            assert store.get("big") == LARGE
        else:
            with pytest.raises(Unavailable, match="cannot complete"):
                store.upload("big", source_of(LARGE))
            assert list(store.list("")) == []


class S3fsContract(S3Contract):
    def test_each_call_sends_one_request(self, store):
        # Counts calls in the client, because moto's log is in another process.
        calls = []
        inner = store._inner._inner
        inner.put("warm", b"x")
        original = inner._fs._call_s3

        async def counted(method, *args, **kwargs):
            calls.append(method)
            return await original(method, *args, **kwargs)

        inner._fs._call_s3 = counted
        inner._fs.call_s3 = lambda *args, **kwargs: _sync(inner._fs, counted, *args, **kwargs)
        store.get("warm")
        store.get_range("warm", 0, 1)
        store.head("warm")
        store.put("other", b"x")
        assert len(list(store.list(""))) == 2
        store.delete(["warm", "other"])
        assert calls == [
            "get_object",
            "get_object",
            "head_object",
            "put_object",
            "list_objects_v2",
            "delete_objects",
        ]

    def test_a_failed_part_is_sent_again_alone(self, store, monkeypatch):
        inner, sent = store._inner._inner, []
        call = inner._call

        def failing_once(attempt, method, key, **names):
            if method == "upload_part":
                sent.append(names["PartNumber"])
                if sent.count(2) == 1 and names["PartNumber"] == 2:
                    raise Unavailable("cannot upload a part")
            return call(attempt, method, key, **names)

        monkeypatch.setattr(inner, "_call", failing_once)
        monkeypatch.setattr(inner, "_policy", RetryPolicy(sleep=lambda _: None))
        store.upload("big", source_of(LARGE))
        assert sorted(sent) == [1, 2, 2, 3]
        assert store.get("big") == LARGE

    def test_an_upload_holds_only_its_parts_in_flight_and_the_next_one(self, store, monkeypatch):
        monkeypatch.setattr(store._inner._inner, "_sender", PartSender(2))
        inner, lock, held, most = store._inner._inner, threading.Lock(), set(), []
        call = inner._call

        def watching(attempt, method, key, **names):
            answer = call(attempt, method, key, **names)
            if method == "upload_part":
                with lock:
                    held.discard((names["PartNumber"] - 1) * PART_BYTES)
            return answer

        def read(start, length):
            with lock:
                held.add(start)
                most.append(len(held))
            return memoryview(LARGE)[start : start + length]

        monkeypatch.setattr(inner, "_call", watching)
        store.upload("big", ranged_source(len(LARGE), read))
        assert max(most) <= 2 + 1  # plus the part that is read next

    def test_a_listing_of_several_pages_is_complete(self, store):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: store.put(f"many/{number:05d}", b"x"), range(1100)))
        assert [info.key for info in store.list("many/")] == [f"many/{number:05d}" for number in range(1100)]
        store.delete([f"many/{number:05d}" for number in range(1100)])
        assert list(store.list("many/")) == []


@pytest.mark.server
class TestS3fsOnMoto(S3fsContract):
    @pytest.fixture
    def server(self, s3_endpoint):
        return s3_endpoint


@pytest.mark.server
@pytest.mark.localstack
@pytest.mark.deep("LocalStack; the plain profile has two other S3 servers")
class TestS3fsOnLocalStack(S3fsContract):
    holds = staticmethod(str.isascii)  # its start-after compares with the URL-encoded name

    @pytest.fixture
    def server(self, localstack_server):
        return localstack_server


@pytest.mark.server
@pytest.mark.versitygw
class TestS3fsOnVersitygw(S3fsContract):
    holds = staticmethod(is_path_of_a_file)

    @pytest.fixture
    def server(self, versitygw_server):
        return versitygw_server


class ObstoreContract(S3Contract):
    client = "obstore"

    def test_a_listing_of_many_manifests_uses_obstore_unless_a_name_needs_s3fs(self, store):
        names = [f"k/meta/head/{number:020d}" for number in range(1100)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: store.put(name, b"x"), names))
        assert [info.key for info in store.list("k/meta/head/")] == names
        assert [info.key for info in store.list("k/meta/head/", start_after=names[1050])] == names[1051:]
        assert store._inner._inner._filesystem is None
        mark = "some/root/k/meta/head/00000000000000001040/"
        if not self.holds(mark):
            return
        inner = store._inner._inner
        inner._fs.call_s3("put_object", Bucket=inner._bucket, Key=mark, Body=b"")
        listed = [info.key for info in store.list("k/meta/head/")]
        assert listed == sorted([*names, mark.removeprefix("some/root/")]), (
            "obstore lists the first page and s3fs the rest"
        )

    def test_a_manifest_listing_in_a_missing_bucket_raises_not_found(self, server):
        store = open_store("s3://no-such-bucket-at-all/root", {**server.options(), "client": self.client})
        with pytest.raises(NotFound, match="the bucket does not exist"):
            list(store.list("k/meta/head/"))
        store.close()


@pytest.mark.server
class TestObstoreOnMoto(ObstoreContract):
    @pytest.fixture
    def server(self, s3_endpoint):
        return s3_endpoint


@pytest.mark.server
@pytest.mark.localstack
@pytest.mark.deep("LocalStack; the plain profile has two other S3 servers")
class TestObstoreOnLocalStack(ObstoreContract):
    @pytest.fixture
    def server(self, localstack_server):
        return localstack_server


@pytest.mark.server
@pytest.mark.versitygw
class TestObstoreOnVersitygw(ObstoreContract):
    holds = staticmethod(is_path_of_a_file)

    @pytest.fixture
    def server(self, versitygw_server):
        return versitygw_server


@pytest.mark.server
@pytest.mark.hdfs
class TestHdfs(ObjectStoreContract):
    @pytest.fixture
    def root(self, hdfs_server):
        from hdfs_native import Client

        root = f"/bucket-{next(NUMBERS)}/some root"
        Client(hdfs_server.url).mkdirs(root, create_parent=True)
        return f"{hdfs_server.url}{quote(root)}"

    @pytest.fixture
    def store(self, root):
        store = open_store(root, policy=ONCE)
        yield store
        store.close()

    begins_with_part = 2

    def under_way(self, store):
        inner = store._inner._inner
        return [status.path for status in inner._client.list_status(inner._aside, recursive=False)]


def _sync(filesystem, function, *args, **kwargs):
    from fsspec.asyn import sync

    return sync(filesystem.loop, function, *args, **kwargs)
