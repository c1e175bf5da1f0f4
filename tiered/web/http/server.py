"""The read-only page server of `tiered web` and `run --ui`.

Methods are GET and HEAD, and POST for the token form if there is a token. No address changes any data. A request that
the gate (`tiered.web.http.gate`) refuses gets a page with the reason and no data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tiered.web.html import tag
from tiered.web.http.application import Answered, Answering, answered, application, page, target_of
from tiered.web.http.gate import Gate
from tiered.web.http.serving import ServerInThread, Tls

FORM_MAX = 4096
# Assets of the token form.
OPEN = frozenset({"/page.css", "/page.js", "/favicon.svg", "/favicon.ico"})

Pages = Callable[[str], Answered]  # of a path with its query

_log = logging.getLogger(__name__)


class WebServer(ServerInThread):
    """Serves the pages to requests that pass the gate."""

    def __init__(
        self, host: str, port: int, pages: Pages, gate: Gate, *, option: str = "--listen", tls: Tls | None = None
    ) -> None:
        """Port 0 takes any free port. Raises InvalidRequest for an address or a certificate that cannot be used."""
        guesses = _Guesses()
        page_routes = _PageRoutes(pages, gate, guesses)
        routes = [
            Route("/login", page_routes.take_token, methods=["POST"]),
            Route("/{path:path}", page_routes.show, methods=["GET"]),
        ]
        made = application(routes, [Middleware(_AccessMiddleware, gate=gate, guesses=guesses)])
        super().__init__(host, port, made, name="tiered-web", option=option, tls=tls)


class _AccessMiddleware:
    """Middleware: pass a request to its route, or refuse it."""

    def __init__(self, app: ASGIApp, gate: Gate, guesses: _Guesses) -> None:
        self._app, self._gate, self._guesses = app, gate, guesses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        answer = self._refusal(Request(scope))
        await (self._app if answer is None else answer)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        if not self._gate.is_host(request.headers.get("Host", "")):
            words = "This server does not serve this host name. Add it with --host NAME."
            return page(HTTPStatus.MISDIRECTED_REQUEST, "Not found", [tag("p", words)])
        if request.method == "POST" or target_of(request.scope) in OPEN:
            return None  # a POST shows no data
        if self._gate.may_see(request.headers):
            return None
        if "Authorization" in request.headers:
            self._guesses.count_wrong_token(request)
        return _question(None)


class _PageRoutes:
    """The two routes."""

    def __init__(self, pages: Pages, gate: Gate, guesses: _Guesses) -> None:
        self._pages, self._gate, self._guesses = pages, gate, guesses
        self._answering = Answering()

    async def show(self, request: Request) -> Response:
        target = target_of(request.scope)
        return await answered(request, self._answering, lambda: self._pages(target))

    async def take_token(self, request: Request) -> Response:
        """Accept the token from the form."""
        if not self._gate.wants_token:
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        if not self._gate.is_own(request.headers):
            return page(HTTPStatus.FORBIDDEN, "Refused", [tag("p", "The form was sent from another site.")])
        body = await _form(request)
        if body is None:
            return page(HTTPStatus.BAD_REQUEST, "Invalid request", [tag("p", "This is not a token.")])
        if not self._gate.is_token(self._gate.token_of(body)):
            self._guesses.count_wrong_token(request)
            return _question("Wrong token.")
        headers = {"Location": "/", "Set-Cookie": self._gate.cookie(is_encrypted=request.url.scheme == "https")}
        return Response(None, HTTPStatus.SEE_OTHER, headers=headers)


class _Guesses:
    """Counts wrong tokens; logs the first, the tenth, the hundredth and so on."""

    def __init__(self) -> None:
        self._count = 0

    def count_wrong_token(self, request: Request) -> None:
        self._count += 1
        if str(self._count).strip("0") == "1":
            client = request.client.host if request.client is not None else None
            _log.warning("a wrong token was sent: times=%s client=%s", self._count, client)


async def _form(request: Request) -> bytes | None:
    """Return the body, or None if it is longer than a token can be."""
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > FORM_MAX:
                return None
    except ClientDisconnect:
        return None
    return bytes(body)


def _question(trouble: str | None) -> Response:
    """The page with the token form."""
    form = tag(
        "form",
        tag("label", "Token", for_="token"),
        tag("input", type="password", id="token", name="token", autocomplete="current-password"),
        tag("button", "Open the pages"),
        method="post",
        action="/login",
    )
    where = tag("p", "The token was printed when the server started, or is in the file of --token-file.")
    wrong = [tag("div", trouble, class_="trouble", role="alert")] if trouble is not None else []
    answer = page(HTTPStatus.UNAUTHORIZED, "Token", [*wrong, form, where])
    answer.headers["WWW-Authenticate"] = "Bearer"  # for programs; no browser prompts for this scheme
    return answer
