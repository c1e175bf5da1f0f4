"""Operations that commands ask of a running node: jobs in threads, with progress, cancellation and an outcome.

| event | effect |
|---|---|
| an operation is started | a thread of its own runs it; more than JOBS_MAX at once are refused as Conflict |
| the command cancels it | `Work.should_stop` is true from then on: the operation ends at its next safe point |
| nothing waited for it during SILENCE_S: the command was killed | the same; an operation cut short by it fails |
| the node ends | the same |
| it ends | its outcome stays until it was sent, or for SILENCE_S |

Each operation has the safety of the library call that it makes: a node that is killed leaves what a killed command
would leave.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import msgspec

from local.errors import Conflict, ErrorCode, LogError, NotFound, Unavailable
from local.names import TopicPartition
from tiered.serve.messages.operations import Failure, State

JOBS_MAX = 16
MESSAGES_MAX = 1000
SILENCE_S = 60.0
OUTCOME_S = 2.0
_PLAIN = (int, float, bool, str)
_log = logging.getLogger(__name__)


class Work(Protocol):
    """What an operation reports to, and asks whether to end. Thread safe."""

    def expect(self, count: int, unit: str = "bytes") -> None: ...

    def advance(self, count: int = 1) -> None: ...

    def say(self, text: str) -> None:
        """A line for the user."""

    def should_stop(self) -> bool: ...

    def pause(self, seconds: float) -> object:
        """Sleep, until the operation is to end."""

    def now_ms(self) -> int: ...


class Problem(msgspec.Struct, frozen=True):
    """The error of one partition."""

    partition: TopicPartition
    failure: Failure


class Job:
    """One operation at work or done."""

    def __init__(self, number: int, operation: str, clock: Callable[[], float], now_ms: Callable[[], int]) -> None:
        self.number, self.operation, self.now_ms = number, operation, now_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._done = self._expected = 0
        self._unit = ""
        self._messages: list[str] = []
        self._result = msgspec.Raw(b"null")
        self._failure: Failure | None = None
        self._is_cancelled = self._is_done = self._is_ended = self._was_cut = False
        self._may_end = threading.Event()
        self._notify: Callable[[], None] = lambda: None
        self._heard_s = clock()

    def expect(self, count: int, unit: str = "bytes") -> None:
        with self._lock:
            self._expected, self._unit = self._expected + count, unit

    def advance(self, count: int = 1) -> None:
        with self._lock:
            self._done += count

    def say(self, text: str) -> None:
        with self._lock:
            if len(self._messages) < MESSAGES_MAX:
                self._messages.append(text)
        self._notify()

    def should_stop(self) -> bool:
        if self._is_ended or self.is_forgotten:
            self._was_cut = True
        return self._is_cancelled or self._was_cut

    @property
    def is_done(self) -> bool:
        return self._is_done

    @property
    def is_forgotten(self) -> bool:
        return self._clock() - self._heard_s > SILENCE_S

    def cancel(self) -> None:
        """Ask the operation to end, for its command."""
        self._is_cancelled = True
        self._may_end.set()

    def end(self) -> None:
        """Ask the operation to end, because the node does."""
        self._is_ended = True
        self._may_end.set()

    def pause(self, seconds: float) -> None:
        self._may_end.wait(seconds)

    def run(self, call: Callable[[Work], bytes]) -> None:
        try:
            self._result = msgspec.Raw(call(self))
            if self._was_cut:
                why = "the node ends" if self._is_ended else "its command was silent"
                raise Unavailable(f"the running node stopped the operation before its end, {why}: run it again")
        except LogError as error:
            self._failure = failure_of(error)
        except BaseException:  # noqa: BLE001 - its command gets an answer
            _log.exception("an operation failed: operation=%s", self.operation)
            self._failure = Failure(kind="LogError", attempt="the running node had an internal error: see its log")
        self._is_done = True
        self._notify()

    @contextmanager
    def watched(self, notify: Callable[[], None]) -> Iterator[None]:
        """Within the block call `notify`, from any thread, after a message and at the end."""
        self._heard_s, self._notify = self._clock(), notify
        try:
            yield
        finally:
            self._heard_s, self._notify = self._clock(), lambda: None

    def state(self, messages_seen: int = 0) -> State:
        with self._lock:
            is_done = self._is_done  # before the outcome: it is complete then
            return State(
                job=self.number,
                is_done=is_done,
                done=self._done,
                expected=self._expected,
                unit=self._unit,
                messages=self._messages[messages_seen:],
                result=self._result if is_done else msgspec.Raw(b"null"),
                failure=self._failure if is_done else None,
            )


class Jobs:
    """The jobs of one node. Thread safe. `run` does an operation by its name and its JSON, and returns JSON."""

    def __init__(
        self,
        run: Callable[[str, bytes, Work], bytes],
        now_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._now_ms, self._clock = run, now_ms, clock
        self._lock = threading.Condition()
        self._numbers = itertools.count(1)
        self._jobs: dict[int, Job] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._is_closed = False

    def start(self, operation: str, parameters: bytes) -> Job:
        """Start a job. Raises Conflict for too many, and while the node ends."""
        with self._lock:
            for number in [number for number, each in self._jobs.items() if each.is_done and each.is_forgotten]:
                self._drop(number)
            if self._is_closed:
                raise Conflict("cannot start an operation, the running node ends", operation=operation)
            at_work = sum(not each.is_done for each in self._jobs.values())
            if at_work >= JOBS_MAX:
                facts = {"operation": operation, "jobs": at_work}
                raise Conflict("cannot start an operation, too many are at work in the running node", **facts)
            job = Job(next(self._numbers), operation, self._clock, self._now_ms)
            self._jobs[job.number] = job
            call = lambda work: self._run(operation, parameters, work)  # noqa: E731 - the job runs it
            thread = threading.Thread(target=job.run, args=(call,), name=f"tiered-{operation}", daemon=True)
            self._threads[job.number] = thread
        thread.start()
        return job

    def find(self, number: int) -> Job:
        """Raises NotFound: the job's outcome was sent, or the node was started again."""
        with self._lock:
            if number not in self._jobs:
                raise NotFound("the running node does not know the operation, its outcome is unknown", job=number)
            return self._jobs[number]

    def forget(self, job: Job) -> None:
        with self._lock:
            self._drop(job.number)

    def close(self, timeout_s: float) -> None:
        """Start no more, ask all to end, wait for their end, and until their outcomes are sent.

        It takes `timeout_s` at most, and OUTCOME_S of it for outcomes, which a killed command does not fetch.
        """
        with self._lock:
            self._is_closed = True
            threads, jobs = list(self._threads.values()), list(self._jobs.values())
        for job in jobs:
            job.end()
        until_s = self._clock() + timeout_s
        for thread in threads:
            thread.join(max(0.0, until_s - self._clock()))
        with self._lock:
            self._lock.wait_for(lambda: not self._jobs, min(OUTCOME_S, max(0.0, until_s - self._clock())))

    def _drop(self, number: int) -> None:
        self._jobs.pop(number, None)
        self._threads.pop(number, None)
        self._lock.notify_all()


def failure_of(error: LogError) -> Failure:
    facts = {name: _plain(value) for name, value in error.facts.items() if value is not None}
    return Failure(kind=type(error).__name__, attempt=error.attempt, code=error.code, facts=facts)


def error_of(failure: Failure) -> LogError:
    """The error that `failure_of` described; a LogError for a class that this process does not know."""
    kinds = {each.__name__: each for each in _all_kinds(LogError)}
    codes = {each.value: each for each in ErrorCode}
    error = kinds.get(failure.kind, LogError)(failure.attempt, **failure.facts)
    return error.with_code(codes.get(failure.code or ""))


def problems_of(errors: Mapping[TopicPartition, LogError]) -> list[Problem]:
    return [Problem(name, failure_of(error)) for name, error in errors.items()]


def errors_of(problems: Sequence[Problem]) -> dict[TopicPartition, LogError]:
    return {each.partition: error_of(each.failure) for each in problems}


def _all_kinds(kind: type[LogError]) -> Iterator[type[LogError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _all_kinds(each)


def _plain(value: object) -> object:
    """A value of an error as JSON has it, so that it prints the same."""
    is_plain = type(value) in _PLAIN or (type(value) is list and all(type(each) in _PLAIN for each in value))
    return value if is_plain else str(value)
