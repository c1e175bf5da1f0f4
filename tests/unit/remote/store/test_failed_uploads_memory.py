"""A failed upload frees its memory at once, without the garbage collector."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Iterator

import pytest

from local.errors import Unavailable, forget_locals
from remote.store import Body, ObjectStore, UploadSource
from remote.store.memory_store import MemoryStore
from remote.store.middleware.deadlines_and_retries import RetryingStore, RetryPolicy, WatchedStore

TWICE = RetryPolicy(attempts_max=2, sleep=lambda seconds: None)


class Part(bytearray):
    """A part whose lifetime can be observed."""


class Failing(MemoryStore):
    """Accepts the first part of an upload, then fails."""

    def upload(self, key: str, source: UploadSource) -> None:
        for part in source.parts():
            try:
                raise OSError(len(part))
            except OSError as error:
                raise Unavailable("cannot upload an object, the store cannot be reached", key=key) from error


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
def test_a_failed_upload_leaves_no_part_to_the_garbage_collector(how: str) -> None:
    store, parts = STORES[how](), list[weakref.ref[Part]]()
    for tries in range(1, 4):
        upload(store, parts)
        assert [part() is None for part in parts] == [True] * len(parts)
        assert len(parts) >= tries


@pytest.mark.usefixtures("_no_collector")
def test_a_stored_error_holds_no_local_variables_and_has_its_traceback() -> None:
    parts: list[weakref.ref[Part]] = []
    kept = upload(Failing(), parts)
    assert parts[0]() is not None
    assert forget_locals(kept) is kept
    assert parts[0]() is None
    told = "".join(traceback.format_exception(kept))
    assert "OSError: 1000" in told
    assert "in upload" in told
