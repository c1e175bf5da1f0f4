"""The Kafka endpoint of a running node: the parts of its `Service` over one `LogManager`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial

from local.errors import InvalidRequest
from local.names import TopicPartition
from tiered.manager.manager import LogManager
from tiered.serve.commands.operation_jobs import Jobs
from tiered.serve.commands.unix_socket import NodeSocket
from tiered.serve.endpoint import parse_endpoint, serving
from tiered.serve.endpoint_metrics import EndpointMetrics
from tiered.serve.groups.coordinator import GroupCoordinator
from tiered.serve.groups.group_settings import GroupSettings
from tiered.serve.groups.group_states import Moment
from tiered.serve.groups.offsets_log import OFFSETS_TOPIC, TopicOffsetsLog
from tiered.serve.handlers.service import Service
from tiered.serve.node.group_lags import coordinator_figures
from tiered.serve.node.node_admin import NodeAdmin
from tiered.serve.node.node_sink import NodeSink
from tiered.serve.node.node_source import NodeSource
from tiered.serve.node.operations import run_operation
from tiered.serve.security.security import Security
from tiered.serve.server import KafkaServer
from tiered.serve.transactions.coordinator import EndMarker, TransactionCoordinator, TransactionSettings
from tiered.serve.transactions.transaction_log import TopicTransactionLog

JOBS_END_S = 10.0  # as for uploads


@contextmanager
def serving_node(
    manager: LogManager,
    host: str | None,
    port: int,
    advertised: str | None = None,
    security: Security | None = None,
    *,
    own: NodeSocket | None = None,
    now_ms: Callable[[], int],
    metrics: EndpointMetrics | None = None,
) -> Iterator[KafkaServer]:
    """Serve the node's topics within the block, which must end before the manager is closed.

    Clients come to `host`, if there is one, the commands of this machine to the `own` socket of the node.

    Order at the end: operations of commands are asked to end, the listeners and all connections are closed, then the
    streams of the readers. A request at work gets no response; its client sends it again after the next start. Raises
    InvalidRequest for an unusable address.
    """
    address = parse_endpoint("--kafka-advertise", advertised)
    jobs = Jobs(partial(run_operation, manager), now_ms)
    local = None
    if own is not None:
        own.publish()
        local = (own.listener, jobs) if own.listener is not None else None
    with closing(NodeSource(manager)) as source:
        sink, admin = NodeSink(manager, now_ms), NodeAdmin(manager, source.broker_id, now_ms)
        groups = group_coordinator(manager, source, sink, now_ms)
        if metrics is not None:
            metrics.group_figures = coordinator_figures(manager, groups, now_ms)
        transactions = transaction_coordinator(manager, source, sink, now_ms, partial(_end_in_group, groups))
        transactions.load()  # the prepared transactions end before a client reads
        service = Service(
            source=source,
            prompt=source,
            sink=sink,
            prompt_sink=sink,
            admin=admin,
            configs=admin,
            transactions=transactions,
            groups=groups,
            security=security,
            broker_id=source.broker_id,
            metrics=metrics or EndpointMetrics(),
        )
        # The listener closes first, then the running change ends.
        with closing(sink), closing(admin), serving(service, host, port, address, local=local) as server:
            try:
                yield server
            finally:
                jobs.close(JOBS_END_S)


@contextmanager
def serving_reads(manager: LogManager, own: NodeSocket, now_ms: Callable[[], int]) -> Iterator[KafkaServer]:
    """Serve a directory that is open read-only on a socket within the block: its records and its groups."""
    own.publish()
    assert own.listener is not None, "the caller can write the directory of the socket"
    jobs = Jobs(partial(run_operation, manager), now_ms)
    with closing(NodeSource(manager)) as source:
        groups = group_coordinator(manager, source, NodeSink(manager, now_ms), now_ms)
        service = Service(source=source, groups=groups, broker_id=source.broker_id)
        with serving(service, None, 0, local=(own.listener, jobs)) as server:
            yield server


def group_coordinator(
    manager: LogManager, source: NodeSource, sink: NodeSink, now_ms: Callable[[], int]
) -> GroupCoordinator:
    settings = GroupSettings.of(manager.config.int_of)
    log = TopicOffsetsLog(source, sink, partial(_create_topic, manager, now_ms), settings.offsets_segment_bytes)

    def now() -> Moment:
        return Moment(time.monotonic_ns() // 1_000_000, now_ms())

    groups = GroupCoordinator(log, settings, topics=source.topics_now, now=now)
    manager.topics.on_deleted = groups.topic_deleted
    return groups


def _end_in_group(groups: GroupCoordinator, partition: TopicPartition, marker: EndMarker) -> None:
    """A marker is durable: the offsets that the transaction committed for groups are visible, or dropped."""
    if partition.topic == OFFSETS_TOPIC:
        groups.transaction_ended(partition.partition, marker.producer_id, is_commit=marker.is_commit)


def transaction_coordinator(
    manager: LogManager,
    source: NodeSource,
    sink: NodeSink,
    now_ms: Callable[[], int],
    on_marker: Callable[[TopicPartition, EndMarker], None] = lambda partition, marker: None,
) -> TransactionCoordinator:
    settings = TransactionSettings.of(manager.config.int_of)
    log = TopicTransactionLog(source, sink, partial(_create_topic, manager, now_ms), now_ms, settings)
    sink.highest_coordinated_id = log.highest_producer_id
    return TransactionCoordinator(
        log, new_producer_id=sink.new_producer_id, clock_ms=now_ms, settings=settings, on_marker=on_marker
    )


def _create_topic(
    manager: LogManager, now_ms: Callable[[], int], name: str, partitions: int, settings: Mapping[str, str]
) -> None:
    """Create a topic of a coordinator, unless another call has created it."""
    try:
        manager.topics.create(name, partitions, settings, now_ms=now_ms())
    except InvalidRequest:
        if all(each.name != name for each in manager.topics.all()):
            raise
