"""A connection to the node over TLS and with each mechanism, and what a wrong secret or a false node gets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fake_group_node import LIMIT_S, FakeNode, fake_node
from group_messages import REQUESTS, RESPONSES
from kafka_security import PASSWORDS, SASL, TLS, Place, credentials, secured

from tiered.serve.groups.group_node import CONNECT_S, GroupNode, NodeConnection, NodeUnavailable, UnsupportedByNode
from tiered.serve.handlers.service import Endpoint, Load
from tiered.serve.messages.base import Api, Error
from tiered.serve.messages.cluster import MetadataRequest, MetadataResponse
from tiered.serve.messages.sasl import SaslAuthenticateResponse, SaslHandshakeResponse
from tiered.serve.security.client_settings import ClientSettings
from tiered.serve.security.scram import ScramExchange
from tiered.serve.server import KafkaServer

pytestmark = pytest.mark.server
T = TypeVar("T")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.new(tmp_path)


async def directly(call: Callable[[], T]) -> T:
    return call()


def ask(endpoint: Endpoint, settings: ClientSettings, api: int = Api.METADATA, *, times: int = 1) -> Any:
    """The last of several responses over one `NodeConnection`."""

    async def work() -> object:
        node = GroupNode(endpoint=endpoint, settings=settings)
        with closing(NodeConnection(node, Load(), directly)) as connection:
            requests = {**REQUESTS, Api.METADATA: MetadataRequest()}
            for _ in range(times):
                response = await connection.call(api, 4, requests[api], "client")
            return response

    return asyncio.run(work())


def user(name: str = "alice", mechanism: str = "SCRAM-SHA-512", **more: Any) -> ClientSettings:
    return ClientSettings(**{"mechanism": mechanism, "user": name, "password": PASSWORDS[name], **more})


def trusting(place: Place) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(place.authority.file))


def at(server: KafkaServer, host: str = "localhost") -> Endpoint:
    return Endpoint(host=host, port=server.address[1])


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_each_mechanism_authenticates_with_and_without_tls(mechanism: str, place: Place) -> None:
    for tls, context in (("", None), (TLS, trusting(place))):
        place.write(SASL, tls)
        with secured(place) as server:
            for name in PASSWORDS:
                found = ask(at(server), user(name, mechanism, context=context))
                assert isinstance(found, MetadataResponse)


def test_a_certificate_authenticates_at_a_node_that_asks_for_one(place: Place) -> None:
    place.write(TLS, 'ssl.client.auth = "required"\nssl.client.ca.file = "ca.pem"')
    certificate = place.authority.issue("replica")
    with secured(place) as server:
        context = trusting(place)
        with pytest.raises(NodeUnavailable):
            ask(at(server), ClientSettings(context=context))
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        assert isinstance(ask(at(server), ClientSettings(context=context)), MetadataResponse)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_named_as_the_cause_and_not_shown(mechanism: str, place: Place) -> None:
    place.write(SASL)
    with secured(place) as server, pytest.raises(NodeUnavailable, match="authentication failed") as caught:
        ask(at(server), user(mechanism=mechanism, password="never shown"))
    assert "never shown" not in str(caught.value)


def test_a_mechanism_that_the_node_does_not_enable_is_named(place: Place) -> None:
    place.write(SASL.replace('"SCRAM-SHA-512", ', ""))
    with secured(place) as server, pytest.raises(NodeUnavailable, match="does not enable SCRAM-SHA-512"):
        ask(at(server), user())


def test_a_node_of_another_authority_or_name_gets_no_password(place: Place, tmp_path: Path) -> None:
    place.write(SASL, TLS)
    other = Place.new(tmp_path / "other")
    with secured(place) as server:
        with pytest.raises(NodeUnavailable, match="tls: "):
            ask(at(server), user(context=trusting(other)))
        with pytest.raises(NodeUnavailable, match="tls: hostname mismatch"):
            ask(at(server, "127.1"), user(context=trusting(place)))


def test_a_plain_connection_to_a_node_with_tls_fails_in_one_line(place: Place) -> None:
    place.write(TLS)
    with secured(place) as server, pytest.raises(NodeUnavailable) as caught:
        ask(at(server), ClientSettings())
    assert "\n" not in str(caught.value)


def scripted(*, signs: bool = True, lifetime_ms: int = 0) -> Callable[[Any, Any], object]:
    """Answers of a node that authenticates by SCRAM; unless it `signs`, with a false signature."""
    exchanges: list[ScramExchange] = []

    def answer(header: Any, request: Any) -> object:
        if header.api_key == Api.SASL_HANDSHAKE:
            exchanges.append(ScramExchange(credentials(), request.mechanism))
            return SaslHandshakeResponse(mechanisms=(request.mechanism,))
        if header.api_key != Api.SASL_AUTHENTICATE:
            return RESPONSES[header.api_key]
        reply = exchanges[-1].step(request.auth_bytes)
        is_last = exchanges[-1].principal is not None
        return SaslAuthenticateResponse(
            auth_bytes=b"v=" + b"A" * 86 + b"==" if is_last and not signs else reply,
            session_lifetime_ms=lifetime_ms if is_last else 0,
        )

    return answer


@contextmanager
def authenticating(**how: Any) -> Iterator[FakeNode]:
    with fake_node(scripted(**how)) as found:
        yield found


def test_a_node_that_does_not_know_the_password_gets_no_request() -> None:
    with authenticating(signs=False) as node:
        with pytest.raises(NodeUnavailable, match="signature of the server is wrong"):
            ask(node.endpoint, user(), Api.HEARTBEAT)
        node.ended.get(timeout=LIMIT_S)
        apis = [int.from_bytes(node.frames.get()[:2], "big") for _ in range(node.frames.qsize())]
        assert apis == [Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE, Api.SASL_AUTHENTICATE]


def test_a_session_that_expires_is_replaced_before_its_end() -> None:
    for lifetime_ms, connections in ((0, 1), (3_600_000, 1), (1, 3)):
        with authenticating(lifetime_ms=lifetime_ms) as node:

            async def work(node: FakeNode = node, lifetime_ms: int = lifetime_ms) -> None:
                to = GroupNode(endpoint=node.endpoint, settings=user())
                loop = asyncio.get_running_loop()
                with closing(NodeConnection(to, Load(), directly)) as connection:
                    for _ in range(3):
                        await connection.call(Api.HEARTBEAT, 4, REQUESTS[Api.HEARTBEAT], None)
                        while lifetime_ms == 1 and loop.time() < (connection._expires_s or 0.0):
                            await asyncio.sleep(0)

            asyncio.run(work())
            assert node.opened == connections


def test_a_cancelled_call_closes_the_connection() -> None:
    async def work(node: FakeNode) -> None:
        with closing(NodeConnection(GroupNode(endpoint=node.endpoint), Load(), directly)) as connection:
            task = asyncio.create_task(connection.call(Api.JOIN_GROUP, 4, REQUESTS[Api.JOIN_GROUP], None))
            await asyncio.to_thread(node.frames.get, timeout=LIMIT_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(node.ended.get, timeout=LIMIT_S)
            node.answer = lambda header, request: RESPONSES[header.api_key]
            assert await connection.call(Api.HEARTBEAT, 4, REQUESTS[Api.HEARTBEAT], None) == RESPONSES[Api.HEARTBEAT]

    with fake_node() as node:
        asyncio.run(work(node))


def test_an_api_that_the_node_does_not_serve_is_not_sent() -> None:
    with fake_node(lacks={Api.HEARTBEAT: -1}) as node:
        with pytest.raises(UnsupportedByNode):
            ask(node.endpoint, ClientSettings(), Api.HEARTBEAT)
        assert node.frames.empty()


def test_a_node_that_refuses_to_tell_its_versions_is_unavailable() -> None:
    with fake_node() as node:
        found = node._versions()
        node._versions = lambda: type(found)(error_code=Error.UNSUPPORTED_VERSION, api_keys=())  # type: ignore[method-assign]
        with pytest.raises(NodeUnavailable, match="versions"):
            ask(node.endpoint, ClientSettings())


def test_the_cause_of_a_refusal_is_one_line_of_printable_characters() -> None:
    """The message comes from another machine, and is in the log of the replica."""
    message = "no\r\nERROR forged \x1b[2J line" + "x" * 1000

    def answer(header: Any, request: Any) -> object:
        if header.api_key == Api.SASL_HANDSHAKE:
            return SaslHandshakeResponse(mechanisms=(request.mechanism,))
        return SaslAuthenticateResponse(error_code=Error.SASL_AUTHENTICATION_FAILED, error_message=message)

    with fake_node(answer) as node, pytest.raises(NodeUnavailable, match=r"no.{1,4}ERROR forged") as caught:
        ask(node.endpoint, user())
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_a_host_that_does_not_resolve_is_named_as_the_cause() -> None:
    assert CONNECT_S == 10
    with pytest.raises(NodeUnavailable, match="cause="):
        ask(Endpoint(host="no host", port=9092), ClientSettings())
