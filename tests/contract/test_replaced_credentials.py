"""Credentials that expire while a process runs and are replaced at their source: a shared file or a profile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from between_server import BetweenServer, Request

from local.errors import AccessDenied, LogError, Unavailable
from remote.store import ObjectStore, s3_store
from remote.store.middleware.deadlines_and_retries import RetryPolicy
from remote.store.open_store import open_store

pytestmark = pytest.mark.server
PATIENT = RetryPolicy(wait_first_s=0.01, wait_max_s=0.01)


class Place:
    """A server that accepts one key id, and a credentials file."""

    def __init__(self, home: Path, client: str) -> None:
        self.file = home / "credentials"
        self.client = client
        self.good = "OLD"
        self.code = (403, "InvalidAccessKeyId")
        self.write("OLD")

    def write(self, name: str) -> None:
        self.file.write_text(f"[default]\naws_access_key_id = {name}\naws_secret_access_key = s\n")

    def answer(self, request: Request) -> tuple[int, str]:
        is_right = f"Credential={self.good}/" in request.headers.get("authorization", "")
        return (200, "body") if is_right else self.code

    def open(self, url: str) -> ObjectStore:
        options = {
            "endpoint_url": url,
            "client": self.client,
            "client_kwargs": {"region_name": "us-east-1"},
            "config_kwargs": {"proxies": {}},
        }
        return open_store("s3://bucket", options, policy=PATIENT)


@pytest.fixture(params=["s3fs", "obstore"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    found = Place(tmp_path, request.param)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(found.file))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.fixture
def server(place: Place) -> Iterator[BetweenServer]:
    with BetweenServer("http://127.0.0.1:9", place.answer) as running:
        yield running


@pytest.fixture
def store(place: Place, server: BetweenServer) -> Iterator[ObjectStore]:
    opened = place.open(server.url)
    opened.get("k")
    yield opened
    opened.close()


@pytest.mark.parametrize("code", [(403, "InvalidAccessKeyId"), (400, "ExpiredToken"), (403, "")])
def test_replaced_credentials_are_loaded_without_an_error_for_the_caller(
    place: Place, store: ObjectStore, code: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_store, "CLIENT_AGE_MIN_S", 0.0)
    place.good, place.code = "NEW", code
    place.write("NEW")
    assert b"body" in store.get("k")
    place.good = "NEWER"
    place.write("NEWER")
    assert b"body" in store.get("k"), "a second replacement must be loaded too"


def test_credentials_that_stay_invalid_are_refused_after_one_reload(
    place: Place, store: ObjectStore, server: BetweenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.good = "NEW"
    before = len(server.requests)
    with pytest.raises(AccessDenied):
        store.get("k")
    assert len(server.requests) == before + 1, "a new client must not reload its credentials"
    inner = store._inner._inner
    inner._made_s -= s3_store.CLIENT_AGE_MIN_S
    with pytest.raises(AccessDenied):
        store.get("k")
    assert len(server.requests) == before + 3
    place.write("NEW")
    with pytest.raises(AccessDenied):
        store.get("k")
    inner._made_s -= s3_store.CLIENT_AGE_MIN_S
    assert b"body" in store.get("k")


@pytest.mark.parametrize("code", ["RequestTimeTooSkewed", "NotSignedUp"])
def test_errors_that_new_credentials_cannot_fix_are_raised_without_a_reload(
    place: Place, store: ObjectStore, server: BetweenServer, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_store, "CLIENT_AGE_MIN_S", 0.0)
    place.good, place.code = "NEW", (403, code)
    before = len(server.requests)
    with pytest.raises(AccessDenied, match=code):
        store.get("k")
    assert len(server.requests) == before + 1


def test_threads_that_are_refused_at_the_same_time_share_one_new_client(place: Place, store: ObjectStore) -> None:
    store._inner._inner._made_s -= s3_store.CLIENT_AGE_MIN_S
    place.good = "NEW"
    place.write("NEW")
    found: list[object] = []

    def ask() -> None:
        try:
            found.append(store.get("k"))
        except LogError as error:
            found.append(error)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [each for each in found if isinstance(each, LogError)] == []
    assert len(found) == 6
    assert store._inner._inner._clients_made == 1


def test_a_credentials_file_that_was_missing_is_loaded_when_it_exists_again(
    place: Place, server: BetweenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(place.file.parent))
    place.file.unlink()
    store = place.open(server.url)
    with pytest.raises((AccessDenied, Unavailable)):
        store.get("k")
    place.write("OLD")
    store._inner._inner._made_s -= s3_store.CLIENT_AGE_MIN_S
    assert b"body" in store.get("k")
    store.close()
