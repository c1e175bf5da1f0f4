"""The replicas of one bucket that serve together: which are alive, and which one leads a partition or names a group.

Every replica gets the same list of addresses. It needs no other agreement:

- A broker id is the place of its address in the sorted list.
- A partition is led by the live replica with the largest hash of address and partition (rendezvous hashing). If a
  replica dies, only its partitions move. The caches of the others stay useful. The replica that clients take for the
  coordinator of a group is chosen by the group id in the same way.
- A replica probes the others (a connection, ApiVersions, the response). FAILURES_MAX failures in a row make one dead,
  one success makes it alive. The replica itself counts as alive.

Replicas may disagree for some seconds. A client then reads from a replica that does not lead the partition, and that
serves it as well.

Source: Thaler, Ravishankar: A name-based mapping scheme for rendezvous (1996).
"""

from __future__ import annotations

import logging
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b

from local.names import TopicPartition
from tiered.serve.messages.base import Api
from tiered.serve.security.tls import ClientAuth, Tls

PROBE_S = 1.0  # from one round of probes to the next
PROBE_TIMEOUT_S = 1.0
FAILURES_MAX = 2
_VERSIONS = struct.pack(">ihhih", 10, Api.API_VERSIONS, 0, 1, -1)  # a whole frame
_RESPONSE_BYTES_MAX = 64 << 10
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Endpoint:
    """The address under which a client reaches a server, as the responses name it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One replica as a broker of the cluster."""

    broker_id: int
    endpoint: Endpoint


Probe = Callable[[Endpoint], bool]


class Peers:
    """Thread safe. The state changes in `check` alone, which `start` calls every `interval_s` in a thread."""

    def __init__(self, own: Endpoint, others: Sequence[Endpoint], probe: Probe, *, interval_s: float = PROBE_S) -> None:
        """`others` may contain `own`."""
        addresses = sorted({own, *others})
        self._members = {each: Member(broker_id=at, endpoint=each) for at, each in enumerate(addresses)}
        self.own = self._members[own]
        self._others = [each for each in addresses if each != own]
        self._probe, self._interval_s = probe, interval_s
        self._failures = dict.fromkeys(self._others, 0)
        self._alive = tuple(self._members.values())
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tiered-peers", daemon=True)

    @property
    def alive(self) -> Sequence[Member]:
        """The live replicas by broker id, this one included."""
        return self._alive

    def leader_of(self, partition: TopicPartition) -> Member:
        return self._chosen(f"{partition.topic} {partition.partition}")

    def coordinator_of(self, group_id: str) -> Member:
        return self._chosen(group_id)

    def _chosen(self, key: str) -> Member:
        return max(self._alive, key=lambda member: _weight(member.endpoint, key))

    def start(self) -> None:
        """Probe once, so that no dead replica is named as a leader, and then again and again."""
        self.check(failures_max=1)
        self._thread.start()

    def close(self) -> None:
        self._is_closed.set()

    def check(self, *, failures_max: int = FAILURES_MAX) -> None:
        """Probe all other replicas at once. Takes as long as the slowest probe."""
        found: dict[Endpoint, bool] = {}
        threads = [threading.Thread(target=self._ask, args=(each, found), daemon=True) for each in self._others]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for address in self._others:
            self._note(address, is_up=found.get(address, False), failures_max=failures_max)
        self._alive = tuple(
            member
            for address, member in self._members.items()
            if address == self.own.endpoint or self._failures[address] < FAILURES_MAX
        )

    def _note(self, address: Endpoint, *, is_up: bool, failures_max: int) -> None:
        before = self._failures[address]
        after = 0 if is_up else FAILURES_MAX if before + 1 >= failures_max else before + 1
        self._failures[address] = after
        if before < FAILURES_MAX <= after:
            _log.warning("a replica does not answer, its partitions move to the others: replica=%s", address)
        elif after < FAILURES_MAX <= before:
            _log.info("a replica answers again: replica=%s", address)

    def _ask(self, address: Endpoint, found: dict[Endpoint, bool]) -> None:
        found[address] = self._probe(address)

    def _run(self) -> None:
        while not self._is_closed.wait(self._interval_s):
            self.check()


def answers(
    address: Endpoint, timeout_s: float = PROBE_TIMEOUT_S, *, tls: Callable[[], Tls | None] = lambda: None
) -> bool:
    """Whether a Kafka endpoint answers at `address`: ApiVersions, or with `tls` a handshake, also by a refusal.

    `tls` of this replica, read at each probe: if it asks clients for certificates, the probe sends its own.
    """
    files = tls()
    with suppress(OSError), socket.create_connection((address.host, address.port), timeout_s) as client:
        if files is not None:
            return _shakes_hands(client, files)
        client.sendall(_VERSIONS)
        client.settimeout(timeout_s)
        with client.makefile("rb") as reader:
            head = reader.read(4)
            length = int.from_bytes(head, "big") if len(head) == 4 else 0
            return 0 < length <= _RESPONSE_BYTES_MAX and len(reader.read(length)) == length
    return False


def _shakes_hands(client: socket.socket, tls: Tls) -> bool:
    """True also after a refusal. With TLS 1.3 the server reads the client's certificate after the handshake."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    if tls.client_auth is not ClientAuth.NONE:
        with suppress(OSError):  # ssl.SSLError too: files that are being replaced
            context.load_cert_chain(tls.certificate, tls.key)
    with suppress(ssl.SSLError):
        context.wrap_socket(client).close()
    return True


def _weight(address: Endpoint, key: str) -> bytes:
    return blake2b(f"{address} {key}".encode(errors="replace"), digest_size=8).digest()
