"""StartOperation and AwaitOperation: operations of a node for the commands on its machine."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TypeVar

import msgspec

from local.errors import InvalidRequest, LogError
from tiered.serve.commands.operation_jobs import Job, Jobs, failure_of
from tiered.serve.handlers.service import Call, Service
from tiered.serve.messages.operations import (
    DECODE_AWAIT,
    DECODE_START,
    OperationRequest,
    OperationResponse,
    State,
)

WAIT_S_MAX = 30.0
M = TypeVar("M")
_NO_JOB = 0


async def start_operation(service: Service, request: OperationRequest, call: Call) -> OperationResponse:
    assert service.operations is not None, "the API is offered only with this part"
    try:
        start = _decoded(DECODE_START, request)
        job = service.operations.start(start.operation, bytes(start.parameters))
    except LogError as error:
        return _failed(error)
    return _sent(service.operations, job, messages_seen=0)


async def await_operation(service: Service, request: OperationRequest, call: Call) -> OperationResponse:
    assert service.operations is not None, "the API is offered only with this part"
    try:
        wanted = _decoded(DECODE_AWAIT, request)
        job = service.operations.find(wanted.job)
    except LogError as error:
        return _failed(error)
    if wanted.cancels:
        job.cancel()
    loop, news = asyncio.get_running_loop(), asyncio.Event()

    def notify() -> None:
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(news.set)

    with job.watched(notify):
        if not job.is_done:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(max(wanted.wait_ms, 0) / 1000, WAIT_S_MAX)):
                    await news.wait()
    return _sent(service.operations, job, max(wanted.messages_seen, 0))


def _sent(jobs: Jobs, job: Job, messages_seen: int) -> OperationResponse:
    """The state of a job, which the client asks no further if the state is its outcome."""
    state = job.state(messages_seen)
    if state.is_done:
        jobs.forget(job)
    return _response(state)


def _decoded(decoder: msgspec.json.Decoder[M], request: OperationRequest) -> M:
    try:
        return decoder.decode(request.body)
    except msgspec.DecodeError as error:
        raise InvalidRequest("invalid operation, its JSON is not understood", cause=str(error)) from None


def _response(state: State) -> OperationResponse:
    return OperationResponse(body=msgspec.json.encode(state))


def _failed(error: LogError) -> OperationResponse:
    return _response(State(job=_NO_JOB, is_done=True, failure=failure_of(error)))
