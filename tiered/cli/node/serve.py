"""``tiered serve``: the topics of a bucket for Kafka clients."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from local.errors import InvalidRequest
from tiered.cli.errors import Exit
from tiered.cli.options import GROUP, command, duration_ms, option, size_bytes
from tiered.cli.session import Session, stop_signals, store_options

if TYPE_CHECKING:
    from tiered.read.bucket_reader import RemoteLog
    from tiered.serve.handlers.service import Endpoint

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

    def check(self) -> None:
        from tiered.web.http.server import is_loopback

        if not self.is_open and not is_loopback(self.host):
            raise click.UsageError(
                "--host is not on loopback, and clients are not authenticated: add --without-authentication"
            )


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
    address.check()
    refresh_ms = duration_ms("--refresh", refresh, "5s")
    session.set_up_logging(is_daemon=True)
    with stop_signals() as stop:
        from tiered.serve.bucket_source import BucketSource
        from tiered.serve.handlers.service import Service
        from tiered.serve.server import KafkaServer

        advertised = _parse_endpoint(address.advertised)
        with bucket.open() as remote:
            source = BucketSource(remote, time.monotonic, refresh_s=refresh_ms / 1000)
            count = len(source.topics())  # an unreachable bucket ends the start
            server = KafkaServer(address.host, address.port, Service(source=source), advertised=advertised)
            server.start()
            try:
                session.say("serving {} topics to Kafka clients at {}:{} until Ctrl-C".format(count, *server.address))
                stop.wait(None)
            finally:
                server.close()
                source.close()
    return Exit.DONE


def _parse_endpoint(text: str | None) -> Endpoint | None:
    from tiered.serve.handlers.service import Endpoint

    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16
    if not colon or not host or not is_port:
        raise InvalidRequest("invalid --advertise", text=repr(text), expected="HOST:PORT, such as replica-1:9092")
    return Endpoint(host=host.strip("[]"), port=int(port))
