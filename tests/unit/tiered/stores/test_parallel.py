"""The same work on several things at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from tiered.stores.parallel import side_by_side


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("threads", [1, 3, 8])
def test_answers_come_in_the_order_of_the_things(count: int, threads: int) -> None:
    assert side_by_side(lambda each: each * 2, range(count), threads=threads, name="t") == [*range(0, 2 * count, 2)]


def test_no_more_are_at_work_at_once_than_asked_for_and_as_many_are() -> None:
    together = threading.Barrier(3, timeout=60)
    at_work, most = 0, 0
    lock = threading.Lock()

    def work(_: int) -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        together.wait()
        with lock:
            at_work -= 1

    side_by_side(work, range(9), threads=3, name="t")
    assert most == 3


def test_nothing_begins_after_an_error_which_is_raised_and_what_was_under_way_is_waited_for() -> None:
    begun: list[int] = []
    ended: list[int] = []

    def work(at: int) -> None:
        begun.append(at)
        if at == 1:
            raise ValueError("one")
        while sum(each.name.startswith("failing_") for each in threading.enumerate()) > 1:
            time.sleep(0.001)  # until the other one is through with its error
        ended.append(at)

    with pytest.raises(ValueError, match="one"):
        side_by_side(work, range(100), threads=2, name="failing")
    assert sorted(begun) == [0, 1]
    assert ended == [0]


def test_a_process_that_is_interrupted_meanwhile_ends() -> None:
    program = """
import os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # who is started in the background by a shell ignores it
from tiered.stores.parallel import side_by_side
at_work = threading.Barrier(3)
def hang(_):
    at_work.wait()
    threading.Event().wait()
threading.Thread(target=lambda: (at_work.wait(), os.kill(os.getpid(), signal.SIGINT)), daemon=True).start()
try:
    side_by_side(hang, range(5), threads=2, name="t")
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=True)
    assert done.stdout == "interrupted\n"
