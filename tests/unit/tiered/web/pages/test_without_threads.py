"""A process that temporarily cannot start threads: every part works again once threads can be started."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import pytest
from manager_world import NOW, World

from local.errors import Unavailable
from remote.store.memory_store import MemoryStore
from tiered.stores.configured_store import StoreClock
from tiered.web.http.server import Answering
from tiered.web.pages.manager_cache import DataLoader, ManagerCache

HERE = (HTTPStatus.OK, "text/plain", "here")


@contextmanager
def no_threads() -> Iterator[None]:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


def test_answers_work_again_after_a_failed_thread_start() -> None:
    async def asked() -> None:
        answering = Answering(limit_s=30, count_max=2)
        with no_threads():
            for _ in range(3):  # more often than there are slots
                with pytest.raises(Unavailable, match="no free thread"):
                    await answering.of(lambda: HERE)
        assert await answering.of(lambda: HERE) == HERE

    asyncio.run(asked())


def test_page_data_is_gathered_again_after_a_failed_thread_start() -> None:
    loader = DataLoader(lambda: NOW, deadline_s=30)
    with no_threads(), pytest.raises(Unavailable):
        loader.get("key", lambda: 1)
    assert loader.get("key", lambda: 1).value == 1


def test_read_only_open_works_again_after_a_failed_thread_start() -> None:
    world = World()
    with world.open() as manager:
        looks = ManagerCache(manager.config, lambda: world.open(read_only=True), lambda: NOW)
        with no_threads(), pytest.raises(Unavailable, match="no free thread"), looks.seen():
            pass
        with looks.seen() as (found, _):
            assert found.topics.all() == []
        looks.close()


def test_store_clock_is_read_again_after_a_failed_thread_start() -> None:
    clock, told = StoreClock(MemoryStore(), lambda: NOW), threading.Event()
    with no_threads():
        clock.ask(lambda at_ms: told.set(), wait_s=30)
    assert not told.is_set()
    clock.ask(lambda at_ms: told.set(), wait_s=30)
    assert told.is_set()
