"""HTTP endpoint of a running manager: ``/metrics`` for Prometheus, ``/health`` for supervisors, and the pages.

Read-only and without authentication. It listens on the loopback address by default and serves pages only there.
DNS rebinding gets no content, and no page may load from or send to another site. Concurrent requests for the same
figures share one response. Figures that are not ready within a deadline are a 503, never old figures.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Collection
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from local.errors import InvalidRequest, Unavailable
from tiered.observe.metrics import Form, form_of
from tiered.web.http.application import ANSWER_S, Answered, Answering, answered, application, target_of
from tiered.web.http.gate import host_name, names_here, own_names
from tiered.web.http.serving import ServerInThread, Tls
from tiered.web.pages.data_loader import DataLoader

LOOPBACK = "127.0.0.1"
_NOT_HERE = "This server does not serve this host name. Add it with --host NAME.\n"
FIGURES_S = ANSWER_S - 1  # Prometheus waits ten seconds for a scrape by default
TEXT_TYPE = "text/plain; charset=utf-8"

Answer = Callable[[str], Answered]  # of an Accept header
Pages = Callable[[str], Answered]  # of a path with its query


class MetricsServer(ServerInThread):
    """Serves ``/metrics``, ``/health`` and the pages."""

    def __init__(
        self,
        host: str,
        port: int,
        answers: dict[str, Answer],
        pages: Pages | None = None,
        *,
        option: str = "--metrics",
        tls: Tls | None = None,
        answer_s: float = ANSWER_S,
        hosts: Collection[str] = (),
    ) -> None:
        """`answers` by path; `pages` answers all others, on a loopback address alone. Port 0 takes any free port.

        `answer_s` limits the time to compute a response. A request by name must use `host`, a name of this machine or
        one of
        `hosts`. Raises InvalidRequest for an address or a certificate that cannot be used.
        """
        is_own = is_loopback(host)
        names = {host, *hosts, *(() if is_own else own_names())}
        route = _MetricsRoute(
            answers, pages if is_own else None, Answering(limit_s=answer_s), {each.casefold() for each in names}
        )
        routes = [Route("/{path:path}", route.show, methods=["GET"])]
        super().__init__(host, port, application(routes), name="tiered-metrics", option=option, tls=tls)


_PORT_DIGITS = 5


def parse_address(text: str) -> tuple[str, int]:
    """Parse an address: ``:9464`` is loopback; ``0.0.0.0:9464`` all; ``[::1]:9464``. Raises InvalidRequest."""
    host, colon, port = text.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS
    if not colon or not is_number or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise InvalidRequest("invalid address", text=repr(text), expected="[HOST]:PORT, such as :9464")
    return host.strip("[]") or LOOPBACK, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _MetricsRoute:
    """The only route."""

    def __init__(
        self, answers: dict[str, Answer], pages: Pages | None, answering: Answering, hosts: Collection[str]
    ) -> None:
        self._hosts = hosts
        self._answers, self._pages, self._answering = answers, pages, answering
        self._loader = DataLoader(lambda: time.monotonic_ns() // 1_000_000, deadline_s=FIGURES_S)

    async def show(self, request: Request) -> Response:
        target, host, accept = target_of(request.scope), request.headers.get("Host", ""), request.headers.get("Accept")
        return await answered(request, self._answering, lambda: self._answer(target, host, accept or ""))

    def _answer(self, target: str, host: str, accept: str) -> Answered:
        if not names_here(host, self._hosts):
            return HTTPStatus.MISDIRECTED_REQUEST, TEXT_TYPE, _NOT_HERE
        path = target.partition("?")[0]
        answer = self._answers.get(path)
        if answer is not None:
            return self._figures(path, answer, accept)
        if self._pages is not None and is_loopback(host_name(host)):
            return self._pages(target)
        return HTTPStatus.NOT_FOUND, TEXT_TYPE, "\n".join([*self._answers, ""])

    def _figures(self, path: str, answer: Answer, accept: str) -> Answered:
        loaded = self._loader.get(f"{path} {form_of(accept).name}", lambda: answer(accept))
        if loaded.late_since_ms is not None:
            raise Unavailable("metrics are not available yet: the disk does not reply, or this machine is busy")
        return loaded.value


def metrics_answer(text: Callable[[Form], str]) -> Answer:
    """Return the metrics in the requested format."""

    def answer(accept: str) -> tuple[HTTPStatus, str, str]:
        form = form_of(accept)
        return HTTPStatus.OK, form.value, text(form)

    return answer


def health_answer(problem_lines: Callable[[], list[str]]) -> Answer:
    """Return the health: 200 without problems, 503 with the list of problems otherwise."""

    def answer(accept: str = "") -> tuple[HTTPStatus, str, str]:
        found = problem_lines()
        status = HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK
        return status, "text/plain; charset=utf-8", "".join(f"{line}\n" for line in found or ["ok"])

    return answer
