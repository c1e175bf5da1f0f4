"""What all handlers share: the source, its read pool, the names of this server, and the codes of errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

from local.errors import Corrupt, Fenced, InvalidRequest, LogError, NotFound, OffsetOutOfRange
from local.names import TopicPartition
from tiered.serve.admin import Admin, Configs
from tiered.serve.commands.operation_jobs import Jobs
from tiered.serve.endpoint_metrics import EndpointMetrics
from tiered.serve.groups.coordinator import GroupCoordinator
from tiered.serve.groups.group_node import GroupNode, NodeConnection
from tiered.serve.handlers.byte_budget import ByteBudget
from tiered.serve.handlers.fetch_sessions import FetchSessions
from tiered.serve.handlers.group_flush import GroupFlush
from tiered.serve.handlers.repeated_errors import RepeatedErrors
from tiered.serve.messages.base import Api, Error, OwnApi, Versions
from tiered.serve.peers import Endpoint as Endpoint
from tiered.serve.peers import Peers
from tiered.serve.protocol import OWN, SERVED
from tiered.serve.read_pool import ReadPool
from tiered.serve.record_sink import PromptSink, RecordSink
from tiered.serve.record_source import Bounds, PromptSource, RecordSource, ServedTopic
from tiered.serve.security.acl import Kind, Operation
from tiered.serve.security.principals import ANONYMOUS, Principal
from tiered.serve.security.security import Security
from tiered.serve.security.session import Session
from tiered.serve.transactions.coordinator import TransactionCoordinator

BROKER_ID = 0  # of a replica without peers
READ_WAIT_S = 0.5  # a slow read of one partition delays a response no longer
RESPONSE_BYTES_MAX = 32 << 20
UNSENT_BYTES_MAX = 256 << 20  # of the responses of all connections, up to LEAST_BYTES more for each connection
LEAST_BYTES = 64 << 10
TINY_BYTES = 16 << 10
SMALL_BYTES, SMALL_BYTES_MAX = 1 << 20, 128 << 20
LARGE_BYTES_MAX = 256 << 20
APPENDS_AT_ONCE = 8  # kafka num.io.threads
APPENDS_OF_PARTITION = 2  # one writes, another checks its batch
FLUSHES_AT_ONCE = 8
TRANSACTION_CALLS_AT_ONCE = 8
TRANSACTION_TICK_S = 1.0
T = TypeVar("T")
GROUP_APIS = frozenset(
    (
        Api.OFFSET_COMMIT,
        Api.OFFSET_FETCH,
        Api.FIND_COORDINATOR,
        Api.JOIN_GROUP,
        Api.HEARTBEAT,
        Api.LEAVE_GROUP,
        Api.SYNC_GROUP,
        Api.DESCRIBE_GROUPS,
        Api.LIST_GROUPS,
        Api.DELETE_GROUPS,
        Api.OFFSET_DELETE,
        Api.CONSUMER_GROUP_HEARTBEAT,
        Api.CONSUMER_GROUP_DESCRIBE,
    )
)
# The part of `Service` that answers an API. The other APIs need its source only.
PART_OF: Mapping[int, str] = MappingProxyType(
    dict[int, str]()
    | dict.fromkeys((Api.PRODUCE, Api.INIT_PRODUCER_ID), "sink")
    | dict.fromkeys(
        (
            Api.CREATE_TOPICS,
            Api.DELETE_TOPICS,
            Api.DELETE_RECORDS,
            Api.ALTER_CONFIGS,
            Api.ALTER_REPLICA_LOG_DIRS,
            Api.ALTER_PARTITION_REASSIGNMENTS,
            Api.LIST_PARTITION_REASSIGNMENTS,
            Api.ELECT_LEADERS,
            Api.DESCRIBE_LOG_DIRS,
            Api.CREATE_PARTITIONS,
            Api.INCREMENTAL_ALTER_CONFIGS,
        ),
        "admin",
    )
    | dict.fromkeys((Api.DESCRIBE_CONFIGS,), "configs")
    | dict.fromkeys(GROUP_APIS, "groups")
    | dict.fromkeys(
        (
            Api.ADD_PARTITIONS_TO_TXN,
            Api.ADD_OFFSETS_TO_TXN,
            Api.END_TXN,
            Api.TXN_OFFSET_COMMIT,
            Api.WRITE_TXN_MARKERS,
            Api.DESCRIBE_PRODUCERS,
            Api.DESCRIBE_TRANSACTIONS,
            Api.LIST_TRANSACTIONS,
        ),
        "transactions",
    )
    | dict.fromkeys((Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE), "security")
    | dict.fromkeys(OwnApi, "operations")
)
_log = logging.getLogger(__name__)
_errors = RepeatedErrors(_log)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request's version, and the client that sent it to `endpoint`; `client_id` is the client's own text."""

    version: int
    endpoint: Endpoint
    client_id: str | None = None
    client_host: str = ""
    principal: Principal = ANONYMOUS
    session: Session | None = None
    node: NodeConnection | None = None  # of this client to `Service.group_node`
    # Lets the next request of the connection begin before this one is answered. Responses keep their order.
    proceed: Callable[[], None] = lambda: None


class Load:
    """The memory of all connections: the requests at work, and the responses that clients have not read yet.

    | bytes of a request | limit of all such requests together |
    |---|---|
    | up to TINY_BYTES | none; a connection has a bounded number |
    | up to SMALL_BYTES | SMALL_BYTES_MAX |
    | above | LARGE_BYTES_MAX: large requests do not delay the others |

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self.unsent_bytes = 0
        self._small, self._large = ByteBudget(SMALL_BYTES_MAX), ByteBudget(LARGE_BYTES_MAX)

    @property
    def request_bytes(self) -> int:
        """The bytes of the requests at work, without tiny ones."""
        return self._small.used_bytes + self._large.used_bytes

    async def receive(self, size_bytes: int) -> Callable[[], None]:
        """Wait until a request of this size may be read. The caller calls the result after the request's end."""
        if size_bytes <= TINY_BYTES:
            return lambda: None
        budget = self._small if size_bytes <= SMALL_BYTES else self._large
        await budget.take(size_bytes)
        return partial(budget.give_back, size_bytes)

    @property
    def response_bytes_max(self) -> int:
        """The limit of the next response: small while slow clients hold UNSENT_BYTES_MAX."""
        return max(LEAST_BYTES, min(RESPONSE_BYTES_MAX, UNSENT_BYTES_MAX - self.unsent_bytes))

    @contextmanager
    def sending(self, size_bytes: int) -> Iterator[None]:
        self.unsent_bytes += size_bytes
        try:
            yield
        finally:
            self.unsent_bytes -= size_bytes


@dataclass(slots=True, kw_only=True)
class Service:
    """The parts of one server, served by one event loop. `bounds` and `known_topics` are the last known ones.

    A part that is None is not offered: `apis` lacks the APIs that need it.
    """

    source: RecordSource
    prompt: PromptSource | None = None  # for the answers of `source` that need no wait
    sink: RecordSink | None = None
    prompt_sink: PromptSink | None = None  # for the appends to `sink` that need no wait
    admin: Admin | None = None
    configs: Configs | None = None
    groups: GroupCoordinator | None = None
    group_node: GroupNode | None = None  # that coordinates all groups in place of this server (`forwarding`)
    transactions: TransactionCoordinator | None = None
    security: Security | None = None
    operations: Jobs | None = None  # on the Unix socket of a node only
    peers: Peers | None = None
    broker_id: int = BROKER_ID
    pool: ReadPool = field(default_factory=ReadPool)
    appends: ReadPool = field(default_factory=partial(ReadPool, APPENDS_AT_ONCE, partition_max=APPENDS_OF_PARTITION))
    flushes: ReadPool = field(default_factory=partial(ReadPool, FLUSHES_AT_ONCE, partition_max=1))
    # One thread for changes and one for moves between log directories, each of which runs them one at a time.
    changes: ReadPool = field(default_factory=partial(ReadPool, 2, partition_max=1))
    transaction_calls: ReadPool = field(default_factory=partial(ReadPool, TRANSACTION_CALLS_AT_ONCE))
    bounds: dict[TopicPartition, Bounds] = field(default_factory=dict)
    known_topics: Mapping[str, ServedTopic] | None = None
    names_by_id: dict[UUID, str] = field(default_factory=dict)  # of `known_topics`
    load: Load = field(default_factory=Load)
    sessions: FetchSessions = field(default_factory=FetchSessions)
    metrics: EndpointMetrics = field(default_factory=EndpointMetrics)
    apis: Mapping[int, Versions] = field(init=False)  # that this server answers
    group_flush: GroupFlush = field(init=False)

    def __post_init__(self) -> None:
        self.group_flush = GroupFlush(self.flushes)
        self.apis = {key: each for key, each in (*SERVED.items(), *OWN.items()) if self._offers(key)}

    def background(self) -> list[Coroutine[object, object, None]]:
        """What has to run in the event loop of the server, from its start to its end."""
        found: list[Coroutine[object, object, None]] = []
        if self.groups is not None:
            found.append(self.groups.run())
        if self.transactions is not None:
            found.append(self._tick_transactions(self.transactions))
        return found

    async def _tick_transactions(self, transactions: TransactionCoordinator) -> None:
        while True:
            try:
                await asyncio.shield(self.transaction_calls.run("tick", "tick", transactions.tick))
            except Exception:  # noqa: BLE001 - the other requests are served
                _log.exception("the background work of transactions failed, it is repeated")
            await asyncio.sleep(TRANSACTION_TICK_S)

    @property
    def coordinator(self) -> GroupCoordinator:
        """The part `groups`, for the handlers that need it."""
        assert self.groups is not None, "an API without its part is not offered"
        return self.groups

    def _offers(self, key: int) -> bool:
        part = PART_OF.get(key)
        return part is None or getattr(self, part) is not None or (self.group_node is not None and key in GROUP_APIS)

    def close(self) -> None:
        """End idle threads of the pools."""
        for pool in (self.pool, self.appends, self.flushes, self.changes, self.transaction_calls):
            pool.close()

    def may(self, call: Call, operation: Operation, kind: Kind, name: str, *, logs: bool = True) -> bool:
        """Whether the caller may do the operation on the resource; `logs` a refusal."""
        security = self.security
        return security is None or security.may(call.principal, call.client_host, operation, kind, name, logs=logs)

    def may_some(self, call: Call, operation: Operation, kind: Kind) -> bool:
        """Whether there may be a resource of the kind on which the caller may do the operation."""
        return self.security is None or self.security.may_some(call.principal, call.client_host, operation, kind)

    async def offload(self, call: Callable[[], T]) -> T:
        """Run a call that takes a processor for milliseconds."""
        return await self.call("authentication", object(), call)

    async def topics(self) -> Mapping[str, ServedTopic]:
        """All topics by name; the last known ones if a new list takes longer than READ_WAIT_S."""
        topics = self.prompt.topics_now() if self.prompt is not None else None
        if topics is None:
            listed = self.pool.run("topics", "topics", self.source.topics)
            if self.known_topics is not None:
                await asyncio.wait([listed], timeout=READ_WAIT_S)
                if not listed.done():
                    return self.known_topics
            topics = await asyncio.shield(listed)
        if topics is not self.known_topics:
            self.known_topics = topics
            self.names_by_id = {each.topic_id: each.name for each in topics.values() if each.topic_id is not None}
        return topics

    async def latest_topics(self) -> Mapping[str, ServedTopic] | None:
        """As `topics`; the last known ones, or None, if no list can be read. `names_by_id` has their names."""
        try:
            return await self.topics()
        except LogError as error:
            error_of(error, "all")
            return self.known_topics

    async def call(self, partition: Hashable, key: Hashable, call: Callable[[], T]) -> T:
        """Run a blocking call in the pool. A cancelled caller leaves it running for the others."""
        return await asyncio.shield(self.pool.run(partition, key, call))


# A response, or None for a request without one.
Handler = Callable[[Service, Any, Call], Awaitable[object]]


def error_of(error: BaseException, where: object) -> Error:
    """Kafka's code for an error of the source. Logs errors that are not the client's."""
    match error:
        case OffsetOutOfRange():
            return Error.OFFSET_OUT_OF_RANGE
        case InvalidRequest():
            return Error.INVALID_REQUEST
        case NotFound():
            return Error.UNKNOWN_TOPIC_OR_PARTITION
        case Fenced():
            return Error.NOT_LEADER_OR_FOLLOWER  # another node took the partition over
        case Corrupt():
            _errors.fail(where, error)
            return Error.CORRUPT_MESSAGE
        case LogError():
            _errors.warn(where, error)
            return Error.KAFKA_STORAGE_ERROR  # clients try again
        case Exception():
            _log.error("cannot serve a partition: partition=%s", where, exc_info=error)
            return Error.UNKNOWN_SERVER_ERROR
        case _:
            raise error


def epoch_error(claimed: int, bounds: Bounds) -> Error:
    """The error of a client that claims a leader epoch; -1 claims none.

    Source: kafka `Partition.checkCurrentLeaderEpoch`.
    """
    if claimed < 0 or bounds.leader_epoch is None or claimed == bounds.leader_epoch:
        return Error.NONE
    return Error.UNKNOWN_LEADER_EPOCH if claimed > bounds.leader_epoch else Error.FENCED_LEADER_EPOCH


def served_partition(topics: Mapping[str, ServedTopic], name: str | None, partition: int) -> TopicPartition | None:
    """The partition, None if it is not served. So a source is never asked for a name that a client made up."""
    topic = topics.get(name) if name is not None else None
    return TopicPartition(topic.name, partition) if topic is not None and partition in topic.partitions else None
