"""The order of locks: ranks ascend, and a wrong order fails at the acquisition, before any wait."""

from __future__ import annotations

import re
import threading
from itertools import product
from pathlib import Path

import pytest

from local import lock_ranks
from local.lock_ranks import LockRank, check_ranks, ranked_lock

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "locks.md"


@pytest.mark.parametrize(("held", "taken"), list(product(LockRank, LockRank)))
def test_lock_is_taken_only_under_locks_of_lower_ranks(held: LockRank, taken: LockRank) -> None:
    with ranked_lock(held):
        other = ranked_lock(taken)
        if taken > held:
            with other:
                pass
            return
        with pytest.raises(AssertionError, match=f"rank {taken.name} is taken under {held.name}"):
            other.acquire()
    with other:
        pass  # the failed acquisition left nothing behind


def test_lock_is_reentrant_and_knows_only_the_locks_of_its_thread() -> None:
    topics, log = ranked_lock(LockRank.TOPICS), ranked_lock(LockRank.LOG)
    errors: list[BaseException] = []

    def take_topics() -> None:
        try:
            with topics:
                pass
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    with log, log:
        thread = threading.Thread(target=take_topics)
        thread.start()
        thread.join(60)
    assert not errors
    with topics, log:
        pass


def test_attempt_that_does_not_wait_asserts_the_rank_too_and_fails_without_a_note() -> None:
    log, tier = ranked_lock(LockRank.LOG), ranked_lock(LockRank.TIER)
    with log, pytest.raises(AssertionError):
        tier.acquire(blocking=False)
    taken = threading.Event()
    may_end = threading.Event()

    def hold() -> None:
        with log:
            taken.set()
            may_end.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(60)
    assert not log.acquire(blocking=False)
    may_end.set()
    thread.join(60)
    with tier, log:
        pass


def test_locks_are_plain_without_the_check() -> None:
    assert lock_ranks._is_checking, "every test checks"
    check_ranks(False)
    try:
        with ranked_lock(LockRank.LOG), ranked_lock(LockRank.TOPICS):
            pass
    finally:
        check_ranks()


def test_page_of_the_docs_lists_every_rank() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [(str(rank.value), rank.name) for rank in LockRank]
