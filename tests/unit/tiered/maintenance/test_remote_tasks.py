"""The task pool of the threads that wait for the store.
No test sleeps: each step waits for an event of the step before."""

from __future__ import annotations

import threading

import pytest

from tiered.maintenance.remote_tasks import Load, State, TaskPool

LIMIT_S = 60.0  # far more than anything needs: a test that hangs fails


class Gate:
    """Work that reports its start and blocks until it is released."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.at_once = self.at_once_max = 0
        self.more: dict[str, int] = {}
        self._changed = threading.Condition()
        self._let: set[str] = set()
        self.is_open = False

    def work(self, key: str) -> bool:
        with self._changed:
            self.begun.append(key)
            self.at_once += 1
            self.at_once_max = max(self.at_once_max, self.at_once)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.is_open or key in self._let, LIMIT_S)
            self._let.discard(key)
            self.at_once -= 1
            left = self.more.get(key, 0)
            self.more[key] = max(0, left - 1)
            return left > 0

    def wait_begun(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, LIMIT_S), self.begun

    def let(self, *keys: str) -> None:
        with self._changed:
            self._let.update(keys)
            self._changed.notify_all()

    def open(self) -> None:
        with self._changed:
            self.is_open = True
            self._changed.notify_all()


def test_key_has_one_running_task_and_one_repeat_if_submitted_again() -> None:
    gate = Gate()
    copier_pool = TaskPool(4, gate.work)
    assert copier_pool.submit("a")
    gate.wait_begun(1)
    assert copier_pool.states == {"a": State.RUNNING}
    assert copier_pool.submit("a")
    assert not copier_pool.submit("a"), "a repeat is already queued"
    assert copier_pool.states == {"a": State.RERUN}
    gate.open()
    assert copier_pool.wait_idle(LIMIT_S)
    assert (gate.begun, gate.at_once_max) == (["a", "a"], 1)


def test_task_pool_never_exceeds_its_number_of_threads() -> None:
    gate = Gate()
    copier_pool = TaskPool(3, gate.work)
    for at in range(12):
        copier_pool.submit(f"k{at}")
    gate.wait_begun(3)
    assert sorted(copier_pool.states.values(), key=str).count(State.RUNNING) == 3
    gate.open()
    assert copier_pool.wait_idle(LIMIT_S)
    assert (sorted(gate.begun), gate.at_once_max) == (sorted(f"k{at}" for at in range(12)), 3)


def test_key_with_more_work_is_queued_behind_the_waiting_keys() -> None:
    gate = Gate()
    gate.more = {"long": 2}
    copier_pool = TaskPool(1, gate.work)
    for key in ("long", "b", "c"):
        copier_pool.submit(key)
    gate.open()
    assert copier_pool.wait_idle(LIMIT_S)
    assert gate.begun == ["long", "b", "c", "long", "long"]


def test_hanging_task_does_not_delay_other_tasks() -> None:
    gate = Gate()
    copier_pool = TaskPool(2, gate.work)
    copier_pool.submit("hangs")
    gate.wait_begun(1)
    for at, key in enumerate("abc"):
        copier_pool.submit(key)
        gate.wait_begun(2 + at)
        gate.let(key)
    gate.open()
    assert copier_pool.wait_idle(LIMIT_S)


def test_stopped_pool_starts_no_queued_task_and_waits_for_running_ones() -> None:
    gate = Gate()
    copier_pool = TaskPool(1, gate.work)
    copier_pool.submit("a")
    gate.wait_begun(1)
    copier_pool.submit("b")
    copier_pool.submit("a")
    copier_pool.stop()
    assert not copier_pool.wait_idle(0.0), "the running task must not be finished yet"
    assert not copier_pool.submit("c")
    gate.open()
    assert copier_pool.wait_idle(LIMIT_S)
    assert gate.begun == ["a"]


@pytest.mark.parametrize("asked", ["a", "b"])
def test_queued_tasks_run_later_when_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    """The process has reached its limit of threads. Two submissions of each key fail to start one."""
    gate = Gate()
    gate.open()
    copier_pool = TaskPool(2, gate.work)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            copier_pool.submit("a")
            copier_pool.submit("c")
    copier_pool.submit(asked)
    assert copier_pool.wait_idle(LIMIT_S)
    assert sorted(gate.begun) == sorted({"a", "c", asked})


def test_exception_of_a_task_ends_only_this_task(caplog) -> None:
    done = []

    def work(key: str) -> bool:
        if key == "bad":
            raise ValueError(key)
        done.append(key)
        return False

    copier_pool = TaskPool(1, work)
    for key in ("bad", "good", "bad", "better"):
        copier_pool.submit(key)
    assert copier_pool.wait_idle(LIMIT_S)
    assert sorted(done) == ["better", "good"]
    assert "a task failed" in caplog.text


def test_load_counts_queued_and_running_tasks_and_the_age_of_the_oldest() -> None:
    gate, now_s = Gate(), [100.0]
    copier_pool = TaskPool(1, gate.work, clock=lambda: now_s[0])
    assert copier_pool.load == Load(threads=1, queued=0, running=0, oldest_wait_s=0.0, oldest_turn_s=0.0)
    copier_pool.submit("a")
    gate.wait_begun(1)
    now_s[0] = 103.0
    for key in ("b", "c", "b", "a"):
        copier_pool.submit(key)
    now_s[0] = 110.0
    assert copier_pool.load == Load(threads=1, queued=2, running=1, oldest_wait_s=7.0, oldest_turn_s=10.0)
    gate.let("a")
    gate.wait_begun(2)
    now_s[0] = 111.0
    assert copier_pool.load == Load(threads=1, queued=2, running=1, oldest_wait_s=8.0, oldest_turn_s=1.0), (
        "a repeat of `a` is queued last"
    )
    gate.open()
    assert copier_pool.wait_idle(LIMIT_S)
    assert copier_pool.load == Load(threads=1, queued=0, running=0, oldest_wait_s=0.0, oldest_turn_s=0.0)
