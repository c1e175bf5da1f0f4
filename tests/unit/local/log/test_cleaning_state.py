"""The states of a cleaner pass: every transition, and threads that wait for a transition."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress

import pytest
from disk_model import ModelDisk
from hypothesis import given
from hypothesis import strategies as st
from test_cleaner import append, open_log, read_all

from local.cleaner import cleaner
from local.cleaner.cleaner import clean
from local.errors import CleaningAborted, InvalidRequest
from local.log import Log
from local.log.log_state import Cleaning, CleaningGate, State
from local.names import TopicPartition

NAME = TopicPartition("t", 0)


EVENTS = ("start", "end", "pause", "resume")


@given(st.lists(st.sampled_from(EVENTS)))
def test_a_log_is_never_cleaned_while_a_pause_is_held(events: list[str]) -> None:
    """Every transition except those of an aborted pass, for which a second thread waits."""
    gate, is_running, pauses = CleaningGate(NAME), False, 0
    for event in events:
        if event == "start":
            may_start = not is_running and not pauses
            assert gate.try_start() == may_start
            is_running = is_running or may_start
        elif event == "end" and is_running:
            assert gate.end()
            is_running = False
        elif event == "pause" and not is_running:
            gate.abort_and_pause()
            pauses += 1
        elif event == "resume" and pauses:
            gate.resume()
            pauses -= 1
        elif event == "resume":
            with pytest.raises(InvalidRequest, match=r"the transition is not allowed: state=.* event=resume"):
                gate.resume()
        state = State.IN_PROGRESS if is_running else State.PAUSED if pauses else State.NONE
        assert gate.now == Cleaning(state, pauses)


def test_the_error_for_an_invalid_resume_names_the_state() -> None:
    with pytest.raises(InvalidRequest, match="state=none event=resume"):
        CleaningGate(NAME).resume()


def test_the_cleaner_thread_cannot_abort_its_own_pass() -> None:
    gate = CleaningGate(NAME)
    assert gate.try_start()
    with pytest.raises(InvalidRequest, match="cannot pause its own cleaning"):
        gate.abort_and_pause()


def test_a_pass_starts_again_only_after_every_pause_of_the_last_one_is_resumed() -> None:
    gate = CleaningGate(NAME)
    assert gate.try_start()
    paused = threading.Semaphore(0)

    def pause() -> None:
        gate.abort_and_pause()
        paused.release()

    threads = [threading.Thread(target=pause) for _ in range(3)]
    for thread in threads:
        thread.start()
    while not gate.is_aborted:
        time.sleep(0)
    assert not paused.acquire(blocking=False)
    assert not gate.end()
    for thread in threads:
        thread.join()
    assert gate.now == Cleaning(State.PAUSED, 3)
    for _ in range(3):
        assert not gate.try_start()
        gate.resume()
    assert gate.try_start()


def test_a_paused_log_is_not_cleaned() -> None:
    _disk, log = filled()
    refusal = r"its cleaning state does not allow it: partition=t/0 state=paused\(1\)"
    with log.cleaning.paused(), pytest.raises(CleaningAborted, match=refusal):
        clean(log, clean_from=0, now_ms=0)
    assert clean(log, clean_from=0, now_ms=0) is not None


def test_a_pass_aborted_after_its_last_step_does_not_raise_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    _disk, log = filled()
    real = cleaner._result
    seen: list[int | None] = []

    def late(*args: object, **kw: object) -> object:
        result = real(*args, **kw)  # type: ignore[arg-type]
        waiting = threading.Thread(target=lambda: (log.cleaning.abort_and_pause(), seen.append(log.cleaner_offset)))
        waiting.start()
        while not log.cleaning.is_aborted:
            time.sleep(0)
        return result

    monkeypatch.setattr(cleaner, "_result", late)
    with pytest.raises(CleaningAborted):
        clean(log, clean_from=0, now_ms=0)
    while not seen:
        time.sleep(0)
    assert seen == [0]
    assert log.cleaner_offset == 0


def test_a_failed_pass_does_not_block_the_next_pass() -> None:
    _disk, log = filled()

    def fail(size_bytes: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        clean(log, clean_from=0, now_ms=0, throttle=fail)
    assert clean(log, clean_from=0, now_ms=0) is not None


def test_a_truncation_at_any_step_aborts_the_pass_and_no_truncated_record_returns() -> None:
    step = 0
    while truncated_at(step):
        step += 3
    assert step > 9, "the pass checks should_stop fewer than 10 times"


def truncated_at(step: int) -> bool:
    """Truncate at check `step` of a pass and check the log. False: the pass has fewer checks."""
    disk, log = filled()
    sent = {record.offset: record for record in read_all(log)}
    cut = log.segments()[-4].base_offset + 3
    truncation = threading.Thread(target=log.truncate_to, args=(cut,), kwargs={"now_ms": 0})
    asked = 0

    def truncate_at_that_step() -> bool:
        nonlocal asked
        asked += 1
        if asked == step + 1:
            truncation.start()
            while truncation.is_alive() and not log.cleaning.is_aborted:
                time.sleep(0)
        return False

    with suppress(CleaningAborted):
        clean(log, clean_from=0, now_ms=0, should_stop=truncate_at_that_step)
    if truncation.ident is None:
        return False
    truncation.join()
    assert log.cleaning.now == Cleaning()
    assert log.next_offset <= cut
    assert (log.cleaner_offset or 0) <= log.next_offset
    left = read_all(log)
    assert all(record == sent[record.offset] for record in left)
    assert all(record.offset < log.next_offset for record in left)
    # The reopened log holds the same records.
    log.close()
    assert read_all(Log.open(disk, "./t-0", NAME, log.settings, now_ms=0)) == left
    return True


def filled() -> tuple[ModelDisk, Log]:
    disk = ModelDisk()
    log = open_log(disk)
    append(log, random.Random(3), 500, 200)
    log.roll(now_ms=0)
    return disk, log
