"""The Kafka endpoint of a running node: the parts of its `Service` over one `LogManager`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from tiered.manager.manager import LogManager
from tiered.serve.endpoint import parse_endpoint, serving
from tiered.serve.handlers.service import Service
from tiered.serve.node.node_admin import NodeAdmin
from tiered.serve.node.node_sink import NodeSink
from tiered.serve.node.node_source import NodeSource
from tiered.serve.server import KafkaServer


@contextmanager
def serving_node(
    manager: LogManager, host: str, port: int, advertised: str | None = None, *, now_ms: Callable[[], int]
) -> Iterator[KafkaServer]:
    """Serve the node's topics within the block, which must end before the manager is closed.

    Order at the end: the listener and all connections are closed, then the streams of the readers. A request at work
    gets no response; its client sends it again after the next start. Raises InvalidRequest for an unusable address.
    """
    address = parse_endpoint("--kafka-advertise", advertised)
    with closing(NodeSource(manager)) as source:
        admin = NodeAdmin(manager, source.broker_id, now_ms)
        service = Service(
            source=source, sink=NodeSink(manager, now_ms), admin=admin, configs=admin, broker_id=source.broker_id
        )
        # The listener closes first, then the running change ends.
        with closing(admin), serving(service, host, port, address) as server:
            yield server
