"""``tiered serve``: the topics of a bucket for Kafka clients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tiered.cli.errors import Exit
from tiered.cli.options import GROUP, command, duration_ms, option, size_bytes
from tiered.cli.session import Session, stop_signals, store_options

if TYPE_CHECKING:
    from tiered.manager.manager import LogManager
    from tiered.read.bucket_reader import RemoteLog

_LOOPBACK = "127.0.0.1"
_CACHE_SIZE = "10GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bucket:
    """The bucket to serve, and the caches in front of it."""

    url: str = option("--remote URL", "Serve the topics of this bucket; needs no configuration.", required=True)
    options: dict[str, object] = option(
        "--option NAME=VALUE", "Option of the store of --remote.", callback=store_options
    )
    cache_dir: str | None = option(
        "--cache-dir DIR", "Keep fetched data in this directory for later reads and starts.", type=click.Path()
    )
    cache_size: str = option("--cache-size SIZE", "Limit the size of --cache-dir.", default=_CACHE_SIZE)

    def open(self) -> RemoteLog:
        """Open the bucket. Raises InvalidRequest for an invalid url, option or size."""
        from tiered.read.bucket_reader import open_remote

        limit_bytes = size_bytes("--cache-size", self.cache_size, _CACHE_SIZE, least=1 << 20)
        return open_remote(self.url, self.options, cache_dir=self.cache_dir, cache_dir_bytes=limit_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Address:
    """The address to listen at, and the one that clients are given."""

    host: str = option("--host HOST", "Listen at this address.", default=_LOOPBACK)
    port: int = option(
        "--port PORT", "Listen at this port; 0: any free port.", type=click.IntRange(0, 65535), default=9092
    )
    advertised: str | None = option(
        "--advertise HOST:PORT", "Give clients this address; default: the one to which they connected."
    )
    is_open: bool = option(
        "--without-authentication", "Allow an address that other machines can reach: every client may read."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """The address at which a node serves Kafka clients, and the one that they are given."""

    listen: str | None = option("--kafka [HOST]:PORT", "Serve Kafka clients at this address; :9092 is loopback.")
    advertised: str | None = option(
        "--kafka-advertise HOST:PORT", "Give Kafka clients this address; default: the one to which they connected."
    )
    is_open: bool = option("--kafka-without-authentication", "Allow a --kafka address that other machines can reach.")

    @contextmanager
    def serving(self, session: Session, manager: LogManager) -> Iterator[None]:
        """Serve Kafka clients within the block, if there is an address. Raises InvalidRequest for an unusable one."""
        if self.listen is None:
            yield
            return
        from tiered.serve.endpoint import check_permitted
        from tiered.serve.node.endpoint import serving_node
        from tiered.web.http.server import is_loopback, parse_address

        host, port = parse_address(self.listen)
        is_permitted = self.is_open or is_loopback(host)
        check_permitted("--kafka", "--kafka-without-authentication", is_permitted=is_permitted)
        with serving_node(manager, host, port, self.advertised) as server:
            session.say("serving Kafka clients at {}:{}".format(*server.address))
            yield


@command("serve", example="serve --remote s3://my-bucket/logs --port 9092")
def serve(
    session: Session,
    bucket: _Bucket = GROUP,
    address: _Address = GROUP,
    refresh: str = option("--refresh TIME", "Look for new records in the bucket at most this often.", default="5s"),
) -> int:
    """Serve the topics of a bucket to Kafka clients: read-only, until a signal ends it.

    Consumers without a group read with any Kafka client. The process keeps nothing but its cache, and any number of
    them may serve one bucket. Neither a broker nor a node has to run.
    """
    from tiered.serve.endpoint import check_permitted, parse_endpoint
    from tiered.web.http.server import is_loopback

    is_permitted = address.is_open or is_loopback(address.host)
    check_permitted("--host", "--without-authentication", is_permitted=is_permitted)
    refresh_ms = duration_ms("--refresh", refresh, "5s")
    session.set_up_logging(is_daemon=True)
    with stop_signals() as stop:
        from tiered.serve.bucket_source import BucketSource
        from tiered.serve.endpoint import serving
        from tiered.serve.handlers.service import Service

        advertised = parse_endpoint("--advertise", address.advertised)
        with (
            bucket.open() as remote,
            closing(BucketSource(remote, time.monotonic, refresh_s=refresh_ms / 1000)) as source,
        ):
            count = len(source.topics())  # an unreachable bucket ends the start
            with serving(Service(source=source), address.host, address.port, advertised) as server:
                session.say("serving {} topics to Kafka clients at {}:{} until Ctrl-C".format(count, *server.address))
                stop.wait(None)
    return Exit.DONE
