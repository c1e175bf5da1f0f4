"""The node of a command: the running one of the directory, by its Unix socket, or a manager that the command opened.

| the directory | the command |
|---|---|
| no socket, or one without a listener | opens the directory itself |
| a node that starts or ends | waits for its answer, START_WAIT_S at most; looks again if the connection ends |
| a node at work | sends its operations to it |
| a node of another user | raises AccessDenied |
| no socket, but another process holds the lock | looks for a socket for GRACE_S, then raises that Conflict |

A node that ends in the middle of an operation leaves the command without an answer. `RunningNode` then raises
Unavailable, and says whether the node had the request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from local.errors import Conflict, ErrorCode, LogError, Unavailable
from tiered.serve.commands.operation_jobs import Work, error_of
from tiered.serve.commands.unix_socket import connect
from tiered.serve.messages.base import OwnApi
from tiered.serve.messages.operations import DECODE_STATE, Await, OperationRequest, OperationResponse, Start, State

if TYPE_CHECKING:
    from local.format.record import Record
    from local.log import AppendResult
    from local.names import TopicPartition
    from tiered.manager.manager import LogManager
    from tiered.serve.commands.client import Client
    from tiered.serve.node.appending import AppendTarget

CONNECT_S = 10.0
START_WAIT_S = 600.0
NOTE_AFTER_S = 2.0
GRACE_S = 0.5
POLL_S = 0.05
WAIT_MS = 500  # between two checks for a signal
OnAppended = Callable[[int, int, int], None]
P = ParamSpec("P")
R = TypeVar("R")


class Node(Protocol):
    """Where a command's operations run."""

    @property
    def client(self) -> Client:
        """A connection to the node; a manager of the command's own is served within this process."""

    @property
    def manager(self) -> LogManager | None:
        """The command's own manager; None: a running node has it."""

    def run(
        self,
        operation: Callable[Concatenate[LogManager, Work, P], R],
        *args: P.args,
        **parameters: P.kwargs,
    ) -> R:
        """Do one of `tiered.serve.node.operations.OPERATIONS`, with keyword parameters. Raises as it."""

    def append(self, name: TopicPartition, records: list[Record], target: AppendTarget, note: OnAppended) -> None:
        """Append to one partition; `note` gets (base offset, next offset, count) of what was appended.

        Raises InvalidRequest with nothing appended, and as `LogManager.append`.
        """

    def flush(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, LogError]:
        """Make appended records durable. Returns the errors of partitions whose records may be lost."""


class Progress(Protocol):
    def expect(self, count: int, unit: str = "bytes") -> None: ...

    def advance(self, count: int = 1) -> None: ...


class Stop(Protocol):
    """A signal to the command."""

    @property
    def is_set(self) -> bool: ...

    def wait(self, timeout_s: float) -> object: ...


class CommandWork(ExitStack):
    """The `Work` of a command: reports to its progress, and ends at a signal. Shown bytes end with the block."""

    def __init__(
        self,
        progress: Progress,
        show_bytes: Callable[[int], AbstractContextManager[Callable[[int], None]]],
        say: Callable[[str], None],
        now_ms: Callable[[], int],
        stop: Stop | None,
    ) -> None:
        super().__init__()
        self._progress, self._show_bytes, self._stop = progress, show_bytes, stop
        self.say, self.now_ms = say, now_ms
        self._advance: Callable[[int], None] = progress.advance

    def expect(self, count: int, unit: str = "bytes") -> None:
        if unit == "bytes":
            self._advance = self.enter_context(self._show_bytes(count))
        else:
            self._progress.expect(count, unit)

    def advance(self, count: int = 1) -> None:
        self._advance(count)

    def should_stop(self) -> bool:
        return self._stop is not None and self._stop.is_set

    def pause(self, seconds: float) -> None:
        if self._stop is not None:
            self._stop.wait(seconds)
        else:
            time.sleep(seconds)


class LocalNode:
    """A manager of the command's own, which the caller closes."""

    def __init__(self, manager: LogManager, work: Work, stack: ExitStack) -> None:
        """`stack` ends before the manager."""
        self.manager: LogManager = manager
        self._work, self._stack = work, stack
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        if self._client is None:
            from tiered.serve.commands.client import Client
            from tiered.serve.commands.unix_socket import NodeSocket
            from tiered.serve.node.endpoint import serving_node, serving_reads

            directory = self._stack.enter_context(TemporaryDirectory(prefix="tiered-"))
            own = self._stack.enter_context(closing(NodeSocket([directory])))
            if self.manager.directories.read_only:
                self._stack.enter_context(serving_reads(self.manager, own, self._work.now_ms))
            else:
                self._stack.enter_context(serving_node(self.manager, None, 0, own=own, now_ms=self._work.now_ms))
            connection = connect(directory, CONNECT_S)
            assert connection is not None, "this process listens"
            self._client = self._stack.enter_context(Client(connection))
        return self._client

    def run(
        self,
        operation: Callable[Concatenate[LogManager, Work, P], R],
        *args: P.args,
        **parameters: P.kwargs,
    ) -> R:
        return operation(self.manager, self._work, *args, **parameters)

    def append(self, name: TopicPartition, records: list[Record], target: AppendTarget, note: OnAppended) -> None:
        """As `Node.append`; retries once if Unavailable, as only the remote tier may know the log end."""
        try:
            result = self._append(name, records)
        except Unavailable:
            self.manager.partitions.retry([name], now_ms=self._work.now_ms())
            result = self._append(name, records)
        note(result.base_offset, result.next_offset, len(records))

    def flush(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, LogError]:
        failures: dict[TopicPartition, LogError] = {}
        for name in names:
            try:
                self.manager.partitions.find(name).log.flush()
            except LogError as error:
                failures[name] = error
        return failures

    def _append(self, name: TopicPartition, records: list[Record]) -> AppendResult:
        (result,) = self.manager.append(name.topic, records, name.partition, now_ms=self._work.now_ms()).values()
        return result


class RunningNode:
    """A node that runs, by a connection that the caller closes."""

    def __init__(self, client: Client, work: Work) -> None:
        self.manager = None
        self.client, self._work = client, work

    def run(
        self,
        operation: Callable[Concatenate[LogManager, Work, P], R],
        *args: P.args,
        **parameters: P.kwargs,
    ) -> R:
        from tiered.serve.node.operations import decode_result

        assert not args, "the parameters of an operation are keywords"
        name = operation.__name__
        start = Start(operation=name, parameters=msgspec.Raw(msgspec.json.encode(parameters)))
        state = self._ask(OwnApi.START_OPERATION, start)
        done = expected = seen = 0
        while True:
            if state.expected > expected:
                self._work.expect(state.expected - expected, state.unit)
            if state.done > done:
                self._work.advance(state.done - done)
            for text in state.messages:
                self._work.say(text)
            done, expected, seen = state.done, state.expected, seen + len(state.messages)
            if state.is_done:
                break
            cancels = self._work.should_stop()
            wanted = Await(job=state.job, messages_seen=seen, wait_ms=WAIT_MS, cancels=cancels)
            state = self._ask(OwnApi.AWAIT_OPERATION, wanted)
        if state.failure is not None:
            raise error_of(state.failure)
        found: R = decode_result(name, bytes(state.result))
        return found

    def append(self, name: TopicPartition, records: list[Record], target: AppendTarget, note: OnAppended) -> None:
        from local.log.encoding import encode_batches
        from tiered.serve.node.appending import for_produce
        from tiered.serve.node.produce_call import produce

        now_ms = self._work.now_ms()
        for batch in encode_batches(records, for_produce(target.settings), partition=name, now_ms=now_ms):
            note(*produce(self.client, name, target.topic.topic_id, batch))

    def flush(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, LogError]:
        """Nothing to do: the node acknowledges durable records."""
        return {}

    def _ask(self, api: OwnApi, body: Start | Await) -> State:
        from tiered.serve.commands.client import NoResponse

        try:
            response: OperationResponse = self.client.call(api, OperationRequest(body=msgspec.json.encode(body)))
        except NoResponse as error:
            if api is OwnApi.START_OPERATION and not error.is_in_doubt:
                raise Unavailable("the running node ended before it got the request: nothing was done") from None
            wrong = "the running node ended before it answered: it is unknown whether the change was made"
            raise Unavailable(wrong) from None
        return DECODE_STATE.decode(response.body)


@contextmanager
def opened(
    directories: Sequence[str],
    open_manager: Callable[[], LogManager],
    work: Work,
    *,
    overrides: Mapping[str, str],
) -> Iterator[Node]:
    """The running node of the directories, or a manager opened now, for one command.

    `overrides` are the command's settings of the manager, which a running node ignores. Raises as `find_node` and
    `open_manager`.
    """
    client = find_node(directories, work.say)
    with ExitStack() as stack:
        if client is None:
            try:
                manager = stack.enter_context(open_manager())
            except Conflict as error:
                if error.code is not ErrorCode.DIRECTORY_HELD or (client := _await_node(directories, work.say)) is None:
                    raise
            else:
                yield LocalNode(manager, work, stack)
                return
        if overrides:
            names = ", ".join(overrides)
            work.say(f"warning: the running node has its own settings, -X has no effect: {names}")
        yield RunningNode(stack.enter_context(client), work)


def find_node(directories: Sequence[str], say: Callable[[str], None]) -> Client | None:
    """Connect to the running node of the log directories; None without one. Waits while it starts or ends.

    Raises AccessDenied for a node of another user, Unavailable for one that does not answer.
    """
    until_s = time.monotonic() + START_WAIT_S
    note = threading.Timer(NOTE_AFTER_S, say, ["waiting for the running node, which starts or ends"])
    note.daemon = True
    note.start()
    try:
        while True:
            found = (connection for each in directories if (connection := connect(each, CONNECT_S)) is not None)
            if (connection := next(found, None)) is None:
                return None
            from tiered.serve.commands.client import Client, NoResponse  # a slow import, which a node alone needs

            remaining_s = until_s - time.monotonic()
            try:
                return Client(connection, timeout_s=max(POLL_S, remaining_s))
            except NoResponse:
                if time.monotonic() >= until_s:
                    raise Unavailable("the running node does not answer", waited_s=round(START_WAIT_S)) from None
            time.sleep(POLL_S)  # it ended: its socket is removed soon
    finally:
        note.cancel()


def _await_node(directories: Sequence[str], say: Callable[[str], None]) -> Client | None:
    """As `find_node` for a directory that another process has just locked: a node makes its socket soon after."""
    until_s = time.monotonic() + GRACE_S
    while True:
        client = find_node(directories, say)
        if client is not None or time.monotonic() >= until_s:
            return client
        time.sleep(POLL_S)
