"""The address of a Kafka endpoint, and its server for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from local.errors import InvalidRequest
from tiered.serve.handlers.service import Endpoint, Service
from tiered.serve.server import KafkaServer


@contextmanager
def serving(service: Service, host: str, port: int, advertised: Endpoint | None = None) -> Iterator[KafkaServer]:
    """Serve clients within the block. The caller closes the parts of `service` afterwards.

    Raises InvalidRequest for an unusable address.
    """
    with closing(KafkaServer(host, port, service, advertised=advertised)) as server:
        server.start()
        yield server


def parse_endpoint(option: str, text: str | None) -> Endpoint | None:
    """The address in the value of an `option`; None without a value. Raises InvalidRequest."""
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16
    if not colon or not host or not is_port:
        raise InvalidRequest(f"invalid {option}", text=repr(text), expected="HOST:PORT, such as replica-1:9092")
    return Endpoint(host=host.strip("[]"), port=int(port))


def check_permitted(option: str, permission: str, *, is_permitted: bool) -> None:
    """Raise InvalidRequest for an address that other machines can reach, without the permission for it."""
    if not is_permitted:
        wrong = f"{option} is not on loopback, and clients are not authenticated: add {permission}"
        raise InvalidRequest(wrong)
