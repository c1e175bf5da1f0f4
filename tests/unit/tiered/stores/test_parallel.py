"""Parallel work on several items."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from tiered.stores.parallel import side_by_side


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("threads", [1, 3, 8])
def test_results_have_the_order_of_the_items(count: int, threads: int) -> None:
    assert side_by_side(lambda each: each * 2, range(count), threads=threads, name="t") == [*range(0, 2 * count, 2)]


def test_exactly_the_requested_number_of_threads_work_at_once() -> None:
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


def test_error_stops_new_items_waits_for_running_ones_and_is_raised() -> None:
    begun: list[int] = []
    ended: list[int] = []

    def work(at: int) -> None:
        begun.append(at)
        if at == 1:
            raise ValueError("one")
        while sum(each.name.startswith("failing_") for each in threading.enumerate()) > 1:
            time.sleep(0.001)  # until the failed thread has ended
        ended.append(at)

    with pytest.raises(ValueError, match="one"):
        side_by_side(work, range(100), threads=2, name="failing")
    assert sorted(begun) == [0, 1]
    assert ended == [0]


def test_interrupted_process_ends_without_waiting_for_its_threads() -> None:
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
