"""What a failed upload had in hand is free at once: the collector counts objects, a part of a segment is megabytes."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Iterator

import pytest

from local.errors import Unavailable, forget_locals
from remote.store import Body, ObjectStore, UploadSource
from remote.store.memory_store import MemoryStore
from remote.store.middleware.deadline_store import WatchedStore
from remote.store.middleware.retrying_store import RetryingStore, RetryPolicy

TWICE = RetryPolicy(attempts_max=2, sleep=lambda seconds: None)


class Part(bytearray):
    """One that can be asked whether it is still there."""


class Failing(MemoryStore):
    """Takes the first part of an upload."""

    def upload(self, key: str, source: UploadSource) -> None:
        for part in source.parts():
            try:
                raise OSError(len(part))
            except OSError as error:
                raise Unavailable("uploading an object, the store cannot be reached", key=key) from error


STORES = {
    "watched": lambda: WatchedStore(Failing()),
    "tried again": lambda: RetryingStore(Failing(), TWICE),
    "tried once": lambda: RetryingStore(Failing(), RetryPolicy(attempts_max=1)),
    "as it is opened": lambda: RetryingStore(WatchedStore(Failing()), TWICE),
}


def upload(store: ObjectStore, parts: list[weakref.ref[Part]]) -> Unavailable:
    def made() -> Iterator[Body]:
        part = Part(1000)
        parts.append(weakref.ref(part))
        yield part

    try:
        store.upload("a", UploadSource(parts=made))
    except Unavailable as error:
        return error
    raise AssertionError("it fails")


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("how", STORES)
def test_an_upload_that_failed_leaves_nothing_to_the_collector(how: str) -> None:
    store, parts = STORES[how](), list[weakref.ref[Part]]()
    for tries in range(1, 4):
        upload(store, parts)
        assert [part() is None for part in parts] == [True] * len(parts)
        assert len(parts) >= tries


@pytest.mark.usefixtures("_no_collector")
def test_an_error_that_is_kept_keeps_nothing_else_and_tells_where_it_was_raised() -> None:
    parts: list[weakref.ref[Part]] = []
    kept = upload(Failing(), parts)
    assert parts[0]() is not None
    assert forget_locals(kept) is kept
    assert parts[0]() is None
    told = "".join(traceback.format_exception(kept))
    assert "OSError: 1000" in told
    assert "in upload" in told
