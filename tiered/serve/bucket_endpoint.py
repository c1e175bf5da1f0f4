"""The Kafka endpoint of a bucket: the parts of its read-only `Service` over one `RemoteLog`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from tiered.read.bucket_reader import RemoteLog
from tiered.serve.admin.bucket_configs import BucketConfigs
from tiered.serve.bucket_source import BucketSource
from tiered.serve.endpoint import group_node, joined, serving
from tiered.serve.endpoint_metrics import EndpointMetrics
from tiered.serve.handlers.service import BROKER_ID, Endpoint, Service
from tiered.serve.security.security import Security
from tiered.serve.server import KafkaServer


@contextmanager
def serving_bucket(
    bucket: RemoteLog,
    host: str,
    port: int,
    advertised: Endpoint | None = None,
    security: Security | None = None,
    *,
    peers: str | None = None,
    groups: tuple[str | None, str | None] = (None, None),
    refresh_s: float,
    metrics: EndpointMetrics,
    is_shared: bool = False,
) -> Iterator[tuple[KafkaServer, int]]:
    """Serve the topics of a bucket within the block; yields the server, and the number of topics.

    `peers`: the value of ``--peers``; `groups`: those of ``--groups`` and ``--groups-config``. `is_shared`: other
    processes serve the same address. Raises InvalidRequest for an unusable address, Unavailable for a bucket that
    cannot be read, and as `group_node`.
    """
    own, node = advertised or Endpoint(host=host, port=port), group_node(*groups)
    with (
        closing(BucketSource(bucket, time.monotonic, refresh_s=refresh_s)) as source,
        joined(own, peers, security) as replicas,
    ):
        count = len(source.topics())  # an unreachable bucket ends the start
        service = Service(
            source=source,
            prompt=source,
            configs=BucketConfigs(source),
            group_node=node,
            peers=replicas,
            broker_id=BROKER_ID if replicas is None else replicas.own.broker_id,
            security=security,
            metrics=metrics,
        )
        with serving(service, host, port, advertised, is_shared=is_shared) as server:
            yield server, count
