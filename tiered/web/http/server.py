"""The two read-only servers: pages (`tiered web`, `run --ui`) and metrics (`run --metrics`).

| server | serves | access |
|---|---|---|
| `WebServer` | the pages; POST for the token form alone | a `Gate`: host names, and a token where others can connect |
| `MetricsServer` | ``/metrics``, ``/health``; pages on loopback alone | host names of this machine |

| check | against |
|---|---|
| Host | DNS rebinding: only known names and plain addresses pass |
| Origin | a form that a page of another site sends |
| token | any client that can reach the address; a header for programs, a form and a cookie for browsers |

The cookie holds a random word of this process, never the token, and is a session cookie. Beyond one machine, TLS of the
server, a proxy or a tunnel must protect both in transit. A refused request gets no data.

Concurrent requests for the same figures share one response. Figures that miss their deadline are a 503, never old
figures.

Headers keep a browser from loading from or sending to another site. Pages are not cacheable; stylesheet and scripts are
revalidated by ETag. Responses are computed in daemon threads within ANSWER_S, so a slow disk does not block the event
loop. Requests above ANSWERS_MAX queue; the server's connection limit bounds the queue.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from local.errors import InvalidRequest, Unavailable
from tiered.observe.metrics import Form, form_of
from tiered.serve.security.addresses import is_address, is_loopback, own_names
from tiered.serve.security.tls import Tls
from tiered.web.html import HTML_TYPE, Answered, render_bare
from tiered.web.http.serving import MANIFEST_BYTES_MAX, ServerInThread
from tiered.web.pages.manager_cache import DataLoader

ANSWER_S = 10.0
ANSWERS_MAX = 32
FORM_MAX = 4096
OPEN = frozenset({"/page.css", "/page.js", "/favicon.svg", "/favicon.ico"})  # assets of the token form
FIGURES_S = ANSWER_S - 1  # Prometheus waits ten seconds for a scrape by default
TEXT_TYPE = "text/plain; charset=utf-8"
TOKEN_LETTERS_MIN = 16
COOKIE = "tiered-session"
_NOT_HERE = "This server does not serve this host name. Add it with --host NAME."

Pages = Callable[[str], Answered]  # of a path with its query
Answer = Callable[[str], Answered]  # of an Accept header
_log = logging.getLogger(__name__)
GZIP_BYTES_MIN = 4096  # smaller responses fit into few packets
GZIP_LEVEL = 5  # a page of a thousand rows in a fifth of the time of level 9, a few per cent larger
_KEPT_TYPES = ("text/css", "text/javascript")  # constant while the process runs
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with `no-referrer` a browser sends our own form without its origin
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def application(routes: Sequence[Route], within: Sequence[Middleware] = ()) -> ASGIApp:
    made = Starlette(
        routes=list(routes),
        middleware=[Middleware(GZipMiddleware, minimum_size=GZIP_BYTES_MIN, compresslevel=GZIP_LEVEL), *within],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    made.router.redirect_slashes = False
    return _Outside(made)


async def answered(request: Request, answering: Answering, make: Callable[[], Answered]) -> Response:
    """Return the response of `make`, or 503 if it is not ready in time."""
    try:
        status, kind, text = await answering.of(make)
    except Unavailable as error:
        words = " ".join(str(error).split())
        return page(HTTPStatus.SERVICE_UNAVAILABLE, "Not available now", words, is_problem=True)
    except Exception as error:  # noqa: BLE001 - the others' answers go on
        path, at = target_of(request.scope).partition("?")[0], traceback.extract_tb(error.__traceback__)[-1]
        # Without the message, which may contain any data.
        facts = path[:200], type(error).__name__, f"{at.filename.rpartition('/')[2]}:{at.lineno}"
        _log.error("a reply failed: path=%s kind=%s at=%s", *facts, exc_info=_log.isEnabledFor(logging.DEBUG))
        return await _failed(request, error)
    body = text.encode()
    if status != HTTPStatus.OK or not kind.startswith(_KEPT_TYPES):
        return Response(body, status, media_type=None, headers={"Content-Type": kind})
    mark = f'W/"{hashlib.sha256(body).hexdigest()[:20]}"'  # weak: the same for compressed bodies
    headers = {"Content-Type": kind, "Cache-Control": "no-cache", "ETag": mark}
    if mark in [each.strip() for each in request.headers.get("If-None-Match", "").split(",")]:
        return Response(None, HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(body, status, headers=headers)


def page(status: HTTPStatus, title: str, words: str, *, is_problem: bool = False) -> Response:
    return Response(render_bare("bare.html", title, words=words, is_problem=is_problem), status, media_type=HTML_TYPE)


def target_of(scope: Scope) -> str:
    query = scope["query_string"].decode("latin-1")
    path = scope["raw_path"].decode("latin-1")
    return f"{path}?{query}" if query else path


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        found = page(HTTPStatus.METHOD_NOT_ALLOWED, "Read-only", "These pages change nothing.")
    else:
        found = page(HTTPStatus(error.status_code), HTTPStatus(error.status_code).phrase, "Page not found.")
    found.headers.update(error.headers or {})
    return found


async def _failed(request: Request, error: Exception) -> Response:
    return page(HTTPStatus.INTERNAL_SERVER_ERROR, "Failed", "See the log of this process.")


class _Outside:
    """Middleware: sets default headers that the response lacks; refuses too large a request head."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers_bytes = sum(len(name) + len(value) for name, value in scope["headers"])
        head_bytes = len(scope["raw_path"]) + len(scope["query_string"]) + headers_bytes
        await (_TOO_LONG if head_bytes > MANIFEST_BYTES_MAX else self._app)(scope, receive, sending)


_TOO_LONG = Response(
    "the request header is too long", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, {"Connection": "close"}
)


class Answering:
    """Computes the responses of one server. Only for the thread of the server's loop."""

    def __init__(self, *, limit_s: float = ANSWER_S, count_max: int = ANSWERS_MAX) -> None:
        self._limit_s = limit_s
        self._places = asyncio.Semaphore(count_max)

    async def of(self, make: Callable[[], Answered]) -> Answered:
        """Return the result of `make`. Raises its exceptions, and Unavailable if there is no result in time."""
        result: Future[Answered] | None = None
        try:
            async with asyncio.timeout(self._limit_s):
                await self._places.acquire()
                result = self._begin(make)
                return await asyncio.wrap_future(result)
        except TimeoutError:
            why = "it was not finished in time" if result is not None else "too many other replies are in progress"
            raise Unavailable(f"cannot reply, {why}", waited_s=self._limit_s) from None

    def _begin(self, make: Callable[[], Answered]) -> Future[Answered]:
        loop, result = asyncio.get_running_loop(), Future[Answered]()

        def run() -> None:
            if result.set_running_or_notify_cancel():
                try:
                    result.set_result(make())
                except Exception as error:  # noqa: BLE001 - the awaiting request raises it
                    result.set_exception(error)
            with suppress(RuntimeError):  # the server and its loop were closed before the result came
                loop.call_soon_threadsafe(self._places.release)

        try:
            threading.Thread(target=run, name="tiered-answer", daemon=True).start()
        except RuntimeError as error:
            self._places.release()
            raise Unavailable("cannot reply, there is no free thread", cause=str(error)) from None
        return result


def check_token(token: str, **facts: object) -> str:
    """Return the token. Raises InvalidRequest, with these facts, if it is easy to guess."""
    if len(token) < TOKEN_LETTERS_MIN or not token.isascii() or not token.isprintable():
        reason = "invalid token, it is too short or has other characters than plain letters"
        raise InvalidRequest(reason, **facts, letters_at_least=TOKEN_LETTERS_MIN)
    return token


class Gate:
    """Checks requests by their headers alone. Immutable, so thread safe."""

    def __init__(self, *, token: str | None = None, hosts: Collection[str] = ()) -> None:
        """`hosts` are further names of this server. Raises InvalidRequest if the token is easy to guess."""
        self._token = None if token is None else check_token(token)
        self._session = secrets.token_urlsafe(32)
        self._hosts = frozenset(each.casefold() for each in hosts)

    @property
    def wants_token(self) -> bool:
        return self._token is not None

    def is_host(self, header: str) -> bool:
        """Whether a Host header names this server. A plain address passes: a name server cannot forge it."""
        name = host_name(header).casefold()
        return name in self._hosts or is_loopback(name) or (self.wants_token and is_address(name))

    def is_own(self, headers: Mapping[str, str]) -> bool:
        origin = headers.get("Origin")
        return origin is None or origin.partition("://")[2] == headers.get("Host", "")

    def may_see(self, headers: Mapping[str, str]) -> bool:
        if self._token is None:
            return True
        kind, _, given = headers.get("Authorization", "").partition(" ")
        if kind.casefold() == "bearer" and self.is_token(given.strip()):
            return True
        return _same(cookie_parser(headers.get("Cookie", "")).get(COOKIE, ""), self._session)

    def is_token(self, text: str) -> bool:
        return self._token is not None and _same(text, self._token)

    def cookie(self, *, is_encrypted: bool) -> str:
        """Return the Set-Cookie header after a valid token; `Secure` if the connection is encrypted."""
        return f"{COOKIE}={self._session}; HttpOnly; SameSite=Strict; Path=/{'; Secure' if is_encrypted else ''}"


def names_here(header: str, hosts: Collection[str]) -> bool:
    """Whether a Host header is one of `hosts` (lower case), this machine, an address, or empty."""
    name = host_name(header).casefold()
    return not name or name == "localhost" or name in hosts or is_address(name)


def host_name(header: str) -> str:
    """Return the name in a Host header, without the port and the final dot."""
    name = header if header.endswith("]") or ":" not in header else header.rpartition(":")[0]
    return name.strip("[]").removesuffix(".")


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


class WebServer(ServerInThread):
    """Serves the pages to requests that pass the gate. Logs the 1st, 10th, 100th wrong token and so on."""

    def __init__(
        self, host: str, port: int, pages: Pages, gate: Gate, *, option: str = "--listen", tls: Tls | None = None
    ) -> None:
        self._pages, self._gate = pages, gate
        self._answering = Answering()
        self._wrong_tokens = 0
        routes = [
            Route("/login", self._take_token, methods=["POST"]),
            Route("/{path:path}", self._show, methods=["GET"]),
        ]
        made = application(routes, [Middleware(_AccessMiddleware, refusal_of=self._refusal_of)])
        super().__init__(host, port, made, name="tiered-web", option=option, tls=tls)

    def _refusal_of(self, request: Request) -> Response | None:
        if not self._gate.is_host(request.headers.get("Host", "")):
            return page(HTTPStatus.MISDIRECTED_REQUEST, "Not found", _NOT_HERE)
        if request.method == "POST" or target_of(request.scope) in OPEN:
            return None  # a POST shows no data
        if self._gate.may_see(request.headers):
            return None
        if "Authorization" in request.headers:
            self._count_wrong_token(request)
        return _token_page(None)

    async def _show(self, request: Request) -> Response:
        target = target_of(request.scope)
        return await answered(request, self._answering, lambda: self._pages(target))

    async def _take_token(self, request: Request) -> Response:
        if not self._gate.wants_token:
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        if not self._gate.is_own(request.headers):
            return page(HTTPStatus.FORBIDDEN, "Refused", "The form was sent from another site.")
        body = await _form(request)
        if body is None:
            return page(HTTPStatus.BAD_REQUEST, "Invalid request", "This is not a token.")
        token = parse_qs(body.decode("ascii", "replace")).get("token", [""])[0].strip()
        if not self._gate.is_token(token):
            self._count_wrong_token(request)
            return _token_page("Wrong token.")
        headers = {"Location": "/", "Set-Cookie": self._gate.cookie(is_encrypted=request.url.scheme == "https")}
        return Response(None, HTTPStatus.SEE_OTHER, headers=headers)

    def _count_wrong_token(self, request: Request) -> None:
        self._wrong_tokens += 1
        if str(self._wrong_tokens).strip("0") == "1":
            client = request.client.host if request.client is not None else None
            _log.warning("a wrong token was sent: times=%s client=%s", self._wrong_tokens, client)


class _AccessMiddleware:
    def __init__(self, app: ASGIApp, refusal_of: Callable[[Request], Response | None]) -> None:
        self._app, self._refusal_of = app, refusal_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        await (self._refusal_of(Request(scope)) or self._app)(scope, receive, send)


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


def _token_page(problem: str | None) -> Response:
    text = render_bare("token.html", "Token", problem=problem)
    headers = {"WWW-Authenticate": "Bearer"}  # for programs; no browser prompts for this scheme
    return Response(text, HTTPStatus.UNAUTHORIZED, headers, HTML_TYPE)


class MetricsServer(ServerInThread):
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
        """`answers` by path, `pages` all other paths. A request by name must use `host`, this machine or `hosts`."""
        is_own = is_loopback(host)
        self._hosts = {each.casefold() for each in {host, *hosts, *(() if is_own else own_names())}}
        self._answers, self._pages = answers, pages if is_own else None
        self._answering = Answering(limit_s=answer_s)
        self._loader = DataLoader(lambda: time.monotonic_ns() // 1_000_000, deadline_s=FIGURES_S)
        routes = [Route("/{path:path}", self._show, methods=["GET"])]
        super().__init__(host, port, application(routes), name="tiered-metrics", option=option, tls=tls)

    async def _show(self, request: Request) -> Response:
        target, host, accept = target_of(request.scope), request.headers.get("Host", ""), request.headers.get("Accept")
        return await answered(request, self._answering, lambda: self._answer(target, host, accept or ""))

    def _answer(self, target: str, host: str, accept: str) -> Answered:
        if not names_here(host, self._hosts):
            return HTTPStatus.MISDIRECTED_REQUEST, TEXT_TYPE, f"{_NOT_HERE}\n"
        path = target.partition("?")[0]
        answer = self._answers.get(path)
        if answer is not None:
            loaded = self._loader.get(f"{path} {form_of(accept).name}", lambda: answer(accept))
            if loaded.late_since_ms is not None:
                raise Unavailable("metrics are not available yet: the disk does not reply, or this machine is busy")
            return loaded.value
        if self._pages is not None and is_loopback(host_name(host)):
            return self._pages(target)
        return HTTPStatus.NOT_FOUND, TEXT_TYPE, "\n".join([*self._answers, ""])


def metrics_answer(text: Callable[[Form], str]) -> Answer:

    def answer(accept: str) -> Answered:
        form = form_of(accept)
        return HTTPStatus.OK, form.value, text(form)

    return answer


def health_answer(problem_lines: Callable[[], list[str]]) -> Answer:
    """Return a function that answers 200 without problems, else 503 with the list of problems."""

    def answer(accept: str = "") -> Answered:
        found = problem_lines()
        status = HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK
        return status, TEXT_TYPE, "".join(f"{line}\n" for line in found or ["ok"])

    return answer
