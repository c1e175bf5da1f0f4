"""`tiered web`: the pages over HTTP, read-only. GET, HEAD and, where there is a token, the one form that takes it.

No address changes anything: there is no other verb. What a gate (`tiered.web.gate`) does not let through gets a page
that says why and nothing of what the others show.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import ClassVar

from tiered.metrics_server import BoundHandler, ServerInThreads
from tiered.web.gate import Gate
from tiered.web.html import Html, tag
from tiered.web.parts import bare_page

FORM_MAX = 4096
HTML_TYPE = "text/html; charset=utf-8"
OPEN = frozenset({"/page.css", "/page.js"})  # what the page that asks for the token needs

Pages = Callable[[str], tuple[HTTPStatus, str, str]]  # of a path with its query


class WebServer(ServerInThreads):
    """The pages, to whom the gate lets through."""

    def __init__(self, host: str, port: int, pages: Pages, gate: Gate) -> None:
        """Port 0 takes any free one. Raises InvalidRequest for an address that cannot be had."""

        class Handler(_PageHandler):
            given = (pages, gate)

        super().__init__(host, port, Handler, name="tiered-web")


class _PageHandler(BoundHandler):
    given: ClassVar[tuple[Pages, Gate]]

    def reply(self, verb: str) -> None:
        gate, with_body = self.given[1], verb != "HEAD"
        if not gate.is_host(self.headers.get("Host", "")):
            words = "This name is none of this server's. tiered web --host NAME makes it one."
            self._say(HTTPStatus.MISDIRECTED_REQUEST, "Not here", [tag("p", words)], with_body=with_body)
        elif verb == "POST":
            self._take_token()
        elif gate.may_see(dict(self.headers.items())) or self.path in OPEN:
            status, kind, text = self.given[0](self.path)
            self.send_page(status, kind, text, with_body=with_body)
        else:
            self._ask_for_token(None, with_body=with_body)

    def _take_token(self) -> None:
        """From the page that asks for it."""
        gate = self.given[1]
        length = self.headers.get("Content-Length", "")
        size = int(length) if length.isascii() and length.isdigit() and len(length) < 6 else FORM_MAX + 1
        if self.path != "/login" or not gate.wants_token:
            self._say(HTTPStatus.METHOD_NOT_ALLOWED, "Read-only", [tag("p", "These pages change nothing.")])
        elif not gate.is_own(dict(self.headers.items())):
            self._say(HTTPStatus.FORBIDDEN, "Refused", [tag("p", "The form was sent from elsewhere.")])
        elif size > FORM_MAX:
            self._say(HTTPStatus.BAD_REQUEST, "Not understood", [tag("p", "That is no token.")])
        elif not gate.is_token(gate.token_of(self.rfile.read(size))):
            self._ask_for_token("That is not the token.", with_body=True)
        else:
            headers = {"Location": "/", "Set-Cookie": gate.cookie}
            self.send_page(HTTPStatus.SEE_OTHER, HTML_TYPE, "", headers=headers)

    def _ask_for_token(self, trouble: str | None, *, with_body: bool) -> None:
        form = tag(
            "form",
            tag("label", "Token", for_="token"),
            tag("input", type="password", id="token", name="token", autocomplete="current-password"),
            tag("button", "Show the pages"),
            method="post",
            action="/login",
        )
        where = tag("p", "It stands where tiered web was started, or in the file that --token-file names.")
        wrong = [tag("div", trouble, class_="trouble", role="alert")] if trouble is not None else []
        self._say(HTTPStatus.UNAUTHORIZED, "Token", [*wrong, form, where], with_body=with_body)

    def _say(self, status: HTTPStatus, title: str, inner: list[Html], *, with_body: bool = True) -> None:
        self.send_page(status, HTML_TYPE, bare_page(title, inner), with_body=with_body)
