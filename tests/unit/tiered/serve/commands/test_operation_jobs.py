"""Jobs of operations: progress, cancellation, silence, limits, the end of the node, errors on their way as JSON."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec
import pytest
from fake_source import FakeSource

from local.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    DiskFailed,
    ErrorCode,
    InvalidRequest,
    LogError,
    NotFound,
    Unavailable,
)
from local.names import TopicPartition
from tiered.serve.commands import operation_jobs
from tiered.serve.commands.operation_jobs import (
    JOBS_MAX,
    MESSAGES_MAX,
    SILENCE_S,
    Job,
    Jobs,
    Work,
    error_of,
    failure_of,
)
from tiered.serve.handlers.operations import start_operation
from tiered.serve.handlers.service import Call, Service
from tiered.serve.messages.operations import DECODE_STATE, Failure, OperationRequest, Start, State

LIMIT_S = 60.0


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Held:
    """Operations that end when the test lets them, or when they are asked to end."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def __call__(self, operation: str, parameters: bytes, work: Work) -> bytes:
        work.expect(3, "partitions")
        work.advance(2)
        work.say(operation)
        while not self.may_end.wait(0.01) and not work.should_stop():
            pass
        return parameters


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_jobs, "OUTCOME_S", 0.0)


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.may_end.set()


def done(job: Job) -> None:
    ended = threading.Event()
    with job.watched(ended.set):
        if not job.is_done:
            assert ended.wait(LIMIT_S)
            while not job.is_done:  # a message woke it
                ended.clear()
                assert job.is_done or ended.wait(LIMIT_S)


def jobs_of(run: Callable[[str, bytes, Work], bytes], clock: Clock | None = None) -> Jobs:
    return Jobs(run, lambda: 7, clock or Clock())


def test_a_job_has_progress_messages_and_a_result(held: Held) -> None:
    jobs = jobs_of(held)
    job = jobs.start("compact", b'{"a":1}')
    assert job.now_ms() == 7
    held.may_end.set()
    done(job)
    state = job.state()
    assert (state.is_done, state.done, state.expected, state.unit) == (True, 2, 3, "partitions")
    assert (state.messages, bytes(state.result), state.failure) == (["compact"], b'{"a":1}', None)
    assert job.state(messages_seen=1).messages == []
    jobs.forget(job)
    with pytest.raises(NotFound, match="does not know the operation"):
        jobs.find(job.number)


def test_a_cancelled_job_has_the_result_of_what_it_did(held: Held) -> None:
    job = jobs_of(held).start("compact", b"{}")
    job.cancel()
    done(job)
    assert job.state().failure is None


def test_a_job_without_a_listener_ends_as_a_failure(held: Held) -> None:
    clock = Clock()
    jobs = jobs_of(held, clock)
    job = jobs.start("compact", b"{}")
    clock.now_s = SILENCE_S + 1
    jobs_thread_ended = threading.Event()
    threading.Thread(target=lambda: (jobs.close(LIMIT_S), jobs_thread_ended.set())).start()
    assert jobs_thread_ended.wait(LIMIT_S)
    failure = job.state().failure
    assert failure is not None
    assert "its command was silent" in failure.attempt or "the node ends" in failure.attempt
    assert failure.kind == "Unavailable"


def test_the_end_of_the_node_ends_jobs_and_refuses_new_ones(held: Held) -> None:
    jobs = jobs_of(held)
    job = jobs.start("compact", b"{}")
    jobs.close(LIMIT_S)
    assert job.is_done
    assert "the node ends" in str(error_of(job.state().failure or Failure(kind="", attempt="")))
    with pytest.raises(Conflict, match="the running node ends"):
        jobs.start("compact", b"{}")


def test_a_job_that_was_done_in_spite_of_the_end_is_a_success() -> None:
    jobs = jobs_of(lambda operation, parameters, work: b"1")
    job = jobs.start("create_topics", b"{}")
    done(job)
    jobs.close(LIMIT_S)
    assert (job.state().failure, bytes(job.state().result)) == (None, b"1")


def test_too_many_jobs_at_once_are_refused_and_done_ones_do_not_count(held: Held) -> None:
    jobs = jobs_of(held)
    started = [jobs.start(f"o{at}", b"{}") for at in range(JOBS_MAX)]
    with pytest.raises(Conflict, match="too many are at work"):
        jobs.start("one more", b"{}")
    held.may_end.set()
    for each in started:
        done(each)
    with closing_jobs(jobs):
        assert jobs.start("one more", b"{}").number == JOBS_MAX + 1


def closing_jobs(jobs: Jobs) -> closing[object]:
    class Closed:
        def close(self) -> None:
            jobs.close(LIMIT_S)

    return closing(Closed())


def test_outcomes_that_were_never_fetched_are_forgotten(held: Held) -> None:
    clock = Clock()
    jobs = jobs_of(held, clock)
    held.may_end.set()
    job = jobs.start("compact", b"{}")
    done(job)
    clock.now_s = SILENCE_S + 1
    jobs.start("compact", b"{}")
    with pytest.raises(NotFound):
        jobs.find(job.number)


def test_messages_are_bounded() -> None:
    def talk(operation: str, parameters: bytes, work: Work) -> bytes:
        for at in range(MESSAGES_MAX + 10):
            work.say(str(at))
        return b"null"

    job = jobs_of(talk).start("talk", b"{}")
    done(job)
    assert len(job.state().messages) == MESSAGES_MAX


def test_an_unexpected_error_is_logged_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    def fail(operation: str, parameters: bytes, work: Work) -> bytes:
        raise ZeroDivisionError

    job = jobs_of(fail).start("compact", b"{}")
    done(job)
    assert "internal error" in str(job.state().failure)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("cannot do it", topic="orders", count=3, share=0.5, ok=True, nothing=None),
        NotFound("not found", partition=TopicPartition("orders", 1), names=["a", "b"], pair=("a", 1)),
        Conflict("held", directory="d").with_code(ErrorCode.DIRECTORY_HELD),
        DiskFailed("cannot write", cause="enospc"),
        AlreadyExists("there"),
        Corrupt("damaged", offsets=[TopicPartition("orders", 1), 2]),
        Unavailable("away"),
        LogError("other"),
    ],
)
def test_an_error_is_the_same_after_its_way_as_json(error: LogError) -> None:
    sent = msgspec.json.encode(State(job=1, failure=failure_of(error)))
    failure = DECODE_STATE.decode(sent).failure
    assert failure is not None
    found = error_of(failure)
    assert type(found) is type(error)
    assert (str(found), found.code, found.attempt) == (str(error), error.code, error.attempt)
    if isinstance(error, DiskFailed) and isinstance(found, DiskFailed):
        assert found.lacks_room == error.lacks_room


def test_an_error_class_that_this_process_does_not_know_is_an_error_all_the_same() -> None:
    found = error_of(Failure(kind="NewInTheNextVersion", attempt="it failed", code="new", facts={"a": 1}))
    assert (type(found), str(found), found.code) == (LogError, "it failed: a=1", None)


class Prompt(Jobs):
    """Jobs whose operations are done when they were started."""

    def start(self, operation: str, parameters: bytes) -> Job:
        job = super().start(operation, parameters)
        done(job)
        return job


def test_an_outcome_that_was_sent_with_the_first_response_is_forgotten() -> None:
    """Otherwise the end of the node waits for a client that asks no further."""
    jobs = Prompt(lambda operation, parameters, work: parameters, lambda: 7)
    service = Service(source=FakeSource(), operations=jobs)
    request = OperationRequest(body=msgspec.json.encode(Start(operation="compact", parameters=msgspec.Raw(b"{}"))))
    response = asyncio.run(start_operation(service, request, Call(version=0, endpoint=("127.0.0.1", 9092))))
    assert response is not None
    state = DECODE_STATE.decode(response.body)
    assert state.is_done
    with pytest.raises(NotFound, match="does not know the operation"):
        jobs.find(state.job)
