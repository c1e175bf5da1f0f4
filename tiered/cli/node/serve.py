"""``tiered serve``: the topics of a bucket for Kafka clients; ``credentials``: their passwords."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from tiered.cli.errors import Exit
from tiered.cli.options import GROUP, argument, command, duration_ms, option, size_bytes
from tiered.cli.session import Session, now_ms, stop_signals, store_options
from tiered.serve.security.addresses import LOOPBACK, is_loopback, parse_address

if TYPE_CHECKING:
    from tiered.manager.manager import LogManager
    from tiered.read.bucket_reader import RemoteLog
    from tiered.serve.commands.unix_socket import NodeSocket
    from tiered.serve.endpoint_metrics import EndpointMetrics
    from tiered.serve.security.security import Security
    from tiered.serve.workers import Worker

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

    def open(self, worker: Worker | None) -> RemoteLog:
        """Open the bucket; each worker has a cache of its own. Raises InvalidRequest for an invalid value."""
        from tiered.tables.remote_tables import open_remote

        limit_bytes = size_bytes("--cache-size", self.cache_size, _CACHE_SIZE, least=1 << 20)
        cache_dir = self.cache_dir if worker is None else worker.directory_in(self.cache_dir)
        return open_remote(self.url, self.options, cache_dir=cache_dir, cache_dir_bytes=limit_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Protection:
    """The security of an endpoint; the options of all commands that have one."""

    file: str | None = option(
        "--security FILE", "Protect the Kafka endpoint by TLS, authentication, ACLs and quotas of this file (TOML)."
    )

    @contextmanager
    def open(self, host: str | None, listen: str, permission: str, *, is_open: bool) -> Iterator[Security | None]:
        """The security of an endpoint at `host`, the value of the option `listen`, within the block.

        Raises InvalidRequest if other machines can reach it without protection, unless `is_open` permits it.
        """
        from tiered.serve.endpoint import check_permitted, secured

        with secured(self.file, time.monotonic, time.time) as security:
            if host is not None:
                check_permitted(listen, permission, is_permitted=is_open or is_loopback(host), security=security)
            yield security


@dataclass(frozen=True, slots=True, kw_only=True)
class _Address:
    """The address to listen at, and the one that clients are given."""

    host: str = option("--host HOST", "Listen at this address.", default=LOOPBACK)
    port: int = option(
        "--port PORT", "Listen at this port; 0: any free port.", type=click.IntRange(0, 65535), default=9092
    )
    advertised: str | None = option(
        "--advertise HOST:PORT", "Give clients this address; default: the one to which they connected."
    )
    is_open: bool = option(
        "--without-authentication", "Allow an address of other machines: every client may read, and use --groups."
    )
    peers: str | None = option("--peers HOST:PORT,...", "Share the partitions with these replicas of the bucket.")
    groups: str | None = option("--groups HOST:PORT", "Forward the requests of consumer groups to this node.")
    groups_config: str | None = option("--groups-config FILE", "Connect to --groups by the client properties of FILE.")
    metrics: str | None = option("--metrics [HOST]:PORT", "Serve /metrics at this address; :9464 is loopback.")
    processes: int = option("--processes N", "Serve with N processes.", type=click.IntRange(1, 64), default=1)
    protection: _Protection = GROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """The address at which a node serves Kafka clients, and the one that they are given."""

    listen: str | None = option("--kafka [HOST]:PORT", "Serve Kafka clients at this address; :9092 is loopback.")
    advertised: str | None = option(
        "--kafka-advertise HOST:PORT", "Give Kafka clients this address; default: the one to which they connected."
    )
    is_open: bool = option("--kafka-without-authentication", "Allow a --kafka address that other machines can reach.")
    protection: _Protection = GROUP

    @contextmanager
    def serving(
        self, session: Session, manager: LogManager, own: NodeSocket, metrics: EndpointMetrics
    ) -> Iterator[Security | None]:
        """Serve commands on the node's `own` socket, and Kafka clients at the address, within the block.

        Raises InvalidRequest for an unusable address.
        """
        own.publish()
        if self.listen is None and own.listener is None:
            yield None
            return
        from tiered.serve.node.endpoint import serving_node

        host, port = None, 0
        if self.listen is not None:
            host, port = parse_address(self.listen)
        permission = "--kafka-without-authentication"
        with (
            self.protection.open(host, "--kafka", permission, is_open=self.is_open) as security,
            serving_node(
                manager, host, port, self.advertised, security, own=own, now_ms=now_ms, metrics=metrics
            ) as server,
        ):
            if host is not None:
                session.say("serving Kafka clients at {}:{}".format(*server.address))
            yield security


@command("serve", example="serve --remote s3://my-bucket/logs --port 9092")
def serve(
    session: Session,
    bucket: _Bucket = GROUP,
    address: _Address = GROUP,
    refresh: str = option("--refresh TIME", "Look for new records in the bucket at most this often.", default="5s"),
) -> int:
    """Serve the topics of a bucket to Kafka clients: read-only, until a signal ends it.

    Consumers without a group read with any Kafka client; with --groups, groups commit to a node. The process keeps
    nothing but its cache, and any number of them may serve one bucket. Neither a broker nor a node has to run.
    """
    if address.metrics is not None and address.processes > 1:
        raise click.UsageError("--metrics needs one process: leave out --processes")
    refresh_ms = duration_ms("--refresh", refresh, "5s")
    session.set_up_logging(is_daemon=True)
    if address.processes == 1:
        return _serve(session, bucket, address, refresh_ms / 1000, None)
    from tiered.serve.server import bound
    from tiered.serve.workers import Supervisor, fork_workers

    with bound(address.host, address.port, is_shared=True) as reserved:  # a port for all
        address = replace(address, port=reserved.getsockname()[1])
        found = fork_workers(address.processes)
        if isinstance(found, Supervisor):
            where = f"{address.host}:{address.port} with {address.processes} processes"
            with stop_signals(reloads=True) as stop:
                return found.supervise(stop, session.say, where)
    return _serve(session, bucket, address, refresh_ms / 1000, found)


def _serve(session: Session, bucket: _Bucket, address: _Address, refresh_s: float, worker: Worker | None) -> int:
    from tiered.serve.bucket_endpoint import serving_bucket
    from tiered.serve.endpoint import parse_endpoint
    from tiered.serve.endpoint_metrics import EndpointMetrics

    advertised, metrics = parse_endpoint("--advertise", address.advertised), EndpointMetrics()
    with (
        stop_signals(reloads=True) as stop,
        address.protection.open(
            address.host, "--host", "--without-authentication", is_open=address.is_open
        ) as security,
        bucket.open(worker) as remote,
        _metrics(session, address.metrics, metrics),
        serving_bucket(
            remote,
            address.host,
            address.port,
            advertised,
            security,
            peers=address.peers,
            groups=(address.groups, address.groups_config),
            refresh_s=refresh_s,
            metrics=metrics,
            is_shared=worker is not None,
        ) as (server, count),
    ):
        if worker is None:
            session.say("serving {} topics to Kafka clients at {}:{} until Ctrl-C".format(count, *server.address))
        else:
            worker.report_ready()
        while not stop.is_set and not stop.wait(None, worker.parent_fd if worker is not None else None):
            if stop.take_reload() and security is not None:
                security.reload()
    return Exit.DONE


@contextmanager
def _metrics(session: Session, address: str | None, endpoint: EndpointMetrics) -> Iterator[None]:
    if address is None:
        yield
        return
    from tiered.observe.metrics import endpoint_text
    from tiered.web.http.server import MetricsServer, metrics_answer

    answers = {"/metrics": metrics_answer(lambda form: endpoint_text(endpoint, form))}
    with closing(MetricsServer(*parse_address(address), answers)) as server:
        server.start()
        session.say(f"metrics at {server.root}metrics")
        yield


@command("credentials", example="credentials users.json alice")
def credentials(
    session: Session,
    file: str = argument("FILE", type=click.Path()),
    user: str | None = argument("[USER]"),
    delete: bool = option("--delete", "Delete the user."),
) -> None:
    """Set the password of a user of the Kafka endpoint, or list the users of a file.

    A terminal asks for the password; otherwise it is the first line of stdin. The file has salted keys of SCRAM, which
    PLAIN uses too, and mode 0600. It is created with its first user.
    """
    from tiered.serve.security.credentials import Credentials, read_credentials, write_credentials

    if user is None:
        click.echo("".join(f"{name}\n" for name in sorted(read_credentials(file).users)), nl=False)
        return
    known = Credentials() if not delete and not os.path.exists(file) else read_credentials(file)
    if delete:
        changed = known.without_user(user)
    elif sys.stdin.isatty():
        changed = known.with_user(user, click.prompt("password", hide_input=True, confirmation_prompt=True, err=True))
    else:
        changed = known.with_user(user, sys.stdin.readline().rstrip("\r\n"))
    write_credentials(file, changed)
    session.say(f"user {user} {'deleted' if delete else 'set'}")
