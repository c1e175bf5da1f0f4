"""The Starlette application: HTTP around pure functions from an address to a response.

Headers keep a browser from loading from or sending to another site. Pages are not cacheable; stylesheet and scripts are
revalidated by ETag. Responses are computed in daemon threads within ANSWER_S, so a slow disk or a held lock does not
block the event loop. Requests above ANSWERS_MAX queue; the server's connection limit bounds the queue.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from local.errors import Unavailable
from tiered.web.html import render_bare

ANSWER_S = 10.0
ANSWERS_MAX = 32
HTML_TYPE = "text/html; charset=utf-8"
GZIP_BYTES_MIN = 4096  # smaller responses fit into few packets
MANIFEST_BYTES_MAX = 16 * 1024  # of a request's target and headers
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
Answered = tuple[HTTPStatus, str, str]  # status, content type, body
_log = logging.getLogger(__name__)


def application(routes: Sequence[Route], within: Sequence[Middleware] = ()) -> ASGIApp:
    """Build the application of `routes`; `within` sees a request before its route."""
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
        path = target_of(request.scope).partition("?")[0]
        _log.error("a reply failed: path=%s %s", path[:200], _place(error), exc_info=_log.isEnabledFor(logging.DEBUG))
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
    """Return a page of one sentence, without any data of the logs."""
    text = render_bare("bare.html", title, words=words, is_problem=is_problem)
    return Response(text, status, media_type=HTML_TYPE)


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


def _place(error: Exception) -> str:
    """Return the type and place of an exception, without its message, which may contain any data."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"kind={type(error).__name__} at={at.filename.rpartition('/')[2]}:{at.lineno}"


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
