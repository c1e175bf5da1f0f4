"""The address of a Kafka endpoint, and its server for the length of a block."""

from __future__ import annotations

import logging
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial

from local.errors import InvalidRequest
from tiered.serve.commands.operation_jobs import Jobs
from tiered.serve.connection import Limits
from tiered.serve.groups.group_node import GroupNode
from tiered.serve.handlers.service import Endpoint, Service
from tiered.serve.peers import Peers, answers
from tiered.serve.security.client_settings import ClientSettings, read_client_settings
from tiered.serve.security.security import Security
from tiered.serve.server import KafkaServer

# Of a connection: its socket, and a copy while the client has no room for a response (`tiered.serve.sender`).
DESCRIPTORS = 2
_EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - addresses to refuse
_log = logging.getLogger(__name__)


@contextmanager
def serving(
    service: Service,
    host: str | None,
    port: int,
    advertised: Endpoint | None = None,
    *,
    is_shared: bool = False,
    local: tuple[socket.socket, Jobs] | None = None,
) -> Iterator[KafkaServer]:
    """Serve clients within the block. The caller closes the parts of `service` afterwards.

    `is_shared`: other processes serve the same address.

    Raises InvalidRequest for an unusable address.
    """
    most = service.security.settings.limits.connections_max if service.security is not None else None
    wanted = max(Limits().connections_max, most or 0)
    each = DESCRIPTORS + (service.group_node is not None)
    limits = Limits(connections_max=connections_that_fit(wanted, descriptors=each))
    server = KafkaServer(host, port, service, advertised=advertised, limits=limits, is_shared=is_shared, local=local)
    with closing(server):
        server.start()
        yield server


def connections_that_fit(wanted: int, *, descriptors: int = DESCRIPTORS) -> int:
    """Raise the soft limit of open files to the hard one. At most half of the free descriptors are for connections.

    A connection may need `descriptors`. Rolls, the store and ranges of files in responses need the other half.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # the system refuses the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return wanted
    found = max(1, min(wanted, (soft - len(os.listdir("/dev/fd"))) // 2 // descriptors))
    if found < wanted:
        _log.warning("fewer connections of Kafka clients: limit=%d usual=%d open_files_max=%d", found, wanted, soft)
    return found


@contextmanager
def secured(path: str | None, clock: Callable[[], float], wall_clock: Callable[[], float]) -> Iterator[Security | None]:
    """The security of the file, followed within the block; None without a file. Raises as `Security`."""
    if path is None:
        yield None
        return
    with closing(Security(path, clock, wall_clock)) as security:
        security.start()
        yield security


def parse_endpoint(option: str, text: str | None) -> Endpoint | None:
    """The address in the value of an `option`; None without a value. Raises InvalidRequest."""
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16
    if not colon or not _is_host(host.strip("[]")) or not is_port:
        raise InvalidRequest(f"invalid {option}", text=repr(text), expected="HOST:PORT, such as replica-1:9092")
    return Endpoint(host=host.strip("[]"), port=int(port))


def _is_host(text: str) -> bool:
    """Whether the text may be a name or an address: of others, a connection fails by no OSError."""
    try:
        return "\0" not in text and bool(text.encode("idna"))
    except UnicodeError:
        return False


def group_node(address: str | None, config: str | None) -> GroupNode | None:
    """The node in the value of ``--groups``, with the settings of the file of ``--groups-config``; None without a node.

    Raises InvalidRequest, NotFound, AccessDenied.
    """
    endpoint = parse_endpoint("--groups", address)
    if endpoint is None:
        if config is not None:
            raise InvalidRequest("--groups-config needs the node of the groups: add --groups HOST:PORT", file=config)
        return None
    return GroupNode(
        endpoint=endpoint, settings=read_client_settings(config) if config is not None else ClientSettings()
    )


@contextmanager
def joined(own: Endpoint, peers: str | None, security: Security | None = None) -> Iterator[Peers | None]:
    """The replicas in the value of ``--peers`` and this one, probed within the block; None without a value.

    `security` of this replica: all of them serve over TLS if it does, and accept its certificate as a client's.

    Raises InvalidRequest.
    """
    if peers is None:
        yield None
        return
    others = [found for text in peers.split(",") if (found := parse_endpoint("--peers", text.strip())) is not None]
    if own.host in _EVERYWHERE or not own.port:
        raise InvalidRequest("--peers needs the address of this replica: add --advertise", host=own.host, port=own.port)
    with closing(
        Peers(own, others, partial(answers, tls=lambda: security.settings.tls if security is not None else None))
    ) as members:
        members.start()
        yield members


def check_permitted(option: str, permission: str, *, is_permitted: bool, security: Security | None) -> None:
    """Raise InvalidRequest for an address that other machines can reach, without protection or permission."""
    if is_permitted or (security is not None and security.is_protected):
        return
    missing = "authenticated" if security is None or not security.settings.authenticates else "protected by TLS"
    remedy = f"add {permission}, or --security FILE with both"
    raise InvalidRequest(f"{option} is not on loopback, and clients are not {missing}: {remedy}")
