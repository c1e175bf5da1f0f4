"""Wrong answers of a store: retried if a retry can help, and reported with the right error."""

from __future__ import annotations

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from local.errors import AlreadyExists, Corrupt, Unavailable
from remote.store import UploadSource
from remote.store.middleware.deadlines_and_retries import RetryPolicy
from remote.store.open_store import open_store

BODY = bytes(range(256)) * 4
PATIENT = RetryPolicy(attempts_max=4, wait_first_s=0.0, wait_max_s=0.0, sleep=lambda seconds: None)


class Server:
    """A server for objects like S3. `wrong` changes the first `wrongs` answers to `verb`."""

    def __init__(self, verb, wrong, wrongs):
        self.objects, self.asked, self._left = {}, Counter(), wrongs
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_verb(self):
                length = int(self.headers.get("Content-Length", 0))
                sent = self.rfile.read(length)
                if self.headers.get("Content-Encoding") == "aws-chunked":
                    sent = _without_chunks(sent)
                outer.asked[self.command] += 1
                is_wrong = self.command == verb and outer._left > 0
                outer._left -= is_wrong
                status, body, headers = outer.answer(self.command, self.path.partition("?")[0], self.headers, sent)
                if is_wrong:
                    status, body, headers = wrong(status, body, headers)
                self.send_response(status)
                for name, value in {"ETag": '"x"', "Last-Modified": "Mon, 23 Nov 2026 20:00:00 GMT", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = handle_verb  # noqa: N815

            def log_message(self, *_): ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def answer(self, verb, name, headers, sent):
        if verb == "PUT":
            self.objects[name] = sent
            return 200, b"", {}
        if name not in self.objects:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
        body = self.objects[name]
        if "Range" not in headers:
            return 200, body, {}
        first, last = map(int, headers["Range"].removeprefix("bytes=").split("-"))
        told = {"Content-Range": f"bytes {first}-{last}/{len(body)}"}
        return 206, body[first : last + 1], told

    def store(self, client, policy):
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        options = {"key": "k", "secret": "s", "endpoint_url": url, "client_kwargs": {"region_name": "us-east-1"}}
        return open_store("s3://bucket", {**options, "client": client}, policy=policy)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _without_chunks(sent):
    """The body of an upload with trailing checksums."""
    body = b""
    while sent:
        line, _, sent = sent.partition(b"\r\n")
        length = int(line.partition(b";")[0], 16)
        if not length:
            break
        body, sent = body + sent[:length], sent[length + 2 :]
    return body


@pytest.fixture
def served():
    made = []

    def serve(verb, wrong, wrongs):
        made.append(Server(verb, wrong, wrongs))
        return made[-1]

    yield serve
    for each in made:
        each.close()


@pytest.fixture(params=["s3fs", "obstore"])
def client(request):
    return request.param


WRONG_RANGES = {
    "the whole object": lambda status, body, headers: (200, BODY, {}),
    "a longer range": lambda status, body, headers: (206, body + b"more", headers),
}


@pytest.mark.parametrize("wrong", WRONG_RANGES)
def test_a_ranged_get_with_a_wrong_answer_is_retried(served, client, wrong):
    server = served("GET", WRONG_RANGES[wrong], 2)
    store = server.store(client, PATIENT)
    store.put("a", BODY)
    assert bytes(store.get_range("a", 10, 20)) == BODY[10:30]
    assert server.asked["GET"] == 3
    store.close()


@pytest.mark.parametrize("wrong", WRONG_RANGES)
def test_a_store_that_always_returns_another_range_is_unavailable_with_that_cause(served, client, wrong):
    store = served("GET", WRONG_RANGES[wrong], 100).store(client, PATIENT)
    store.put("a", BODY)
    with pytest.raises(Unavailable, match=r"the store returned another range than requested.*attempts=4"):
        store.get_range("a", 10, 20)
    store.close()


def test_a_short_answer_is_corrupt_because_the_object_ends_too_early(served, client):
    store = served("GET", lambda status, body, headers: (status, body[:-3], headers), 100).store(client, PATIENT)
    store.put("a", BODY)
    with pytest.raises(Corrupt, match="the object ends before the range"):
        store.get_range("a", 10, 20)
    store.close()


def refused(status, body, headers):
    return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}


WRITES = {
    "put": lambda store, body: store.put("a", body),
    "upload": lambda store, body: store.upload("a", UploadSource(parts=lambda: iter([body]))),
}


@pytest.mark.parametrize("verb", WRITES)
def test_a_put_answered_with_412_succeeds_if_the_object_has_its_bytes(served, client, verb):
    server = served("PUT", refused, 1)
    store = server.store(client, PATIENT)
    WRITES[verb](store, BODY)
    assert store.get("a") == BODY
    assert server.asked["PUT"] == 1
    store.close()


@pytest.mark.parametrize("verb", WRITES)
def test_a_put_answered_with_412_while_other_bytes_are_stored_is_already_exists(served, client, verb):
    server = served("PUT", refused, 100)
    server.answer = lambda verb, name, headers, sent: (200, b"others" if verb == "GET" else b"", {})
    store = server.store(client, PATIENT)
    with pytest.raises(AlreadyExists, match="the name already exists"):
        WRITES[verb](store, BODY)
    store.close()


@pytest.mark.parametrize("verb", WRITES)
def test_a_put_answered_with_412_without_an_object_is_retried(served, client, verb):
    server = served("PUT", refused, 2)
    kept = server.answer
    server.answer = lambda *asked: (412, b"", {}) if asked[0] == "PUT" and server.asked["PUT"] < 3 else kept(*asked)
    store = server.store(client, PATIENT)
    WRITES[verb](store, BODY)
    assert server.objects == {"/bucket/a": BODY}
    assert server.asked["PUT"] == 3
    store.close()


def test_a_create_answered_with_412_raises_already_exists(served, client):
    store = served("PUT", refused, 1).store(client, PATIENT)
    with pytest.raises(AlreadyExists):
        store.put_if_absent("a", BODY)
    store.close()
