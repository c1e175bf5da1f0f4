"""Which page an address is, and what it answers: HTML, or JSON under ``?format=json``.

Everything is read from what the manager holds in memory; no page sends a request to the store. What was gathered for
one reader is as good as new for KEPT_MS for all others. Thread safe.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

from local.errors import InvalidRequest, LogError, NotFound
from local.storage import Storage
from tiered.status_report import StatusReport, status_report
from tiered.web.assets import SCRIPT, stylesheet
from tiered.web.html import tag
from tiered.web.overview import found_topics, overview, troubles_page
from tiered.web.partition import partition_facts, partition_page
from tiered.web.parts import frame
from tiered.web.topic import topic_facts, topic_page

if TYPE_CHECKING:
    from policies.snapshot import PartitionSnapshot
    from tiered.manager import LogManager

KEPT_MS = 2000
SCHEMA_VERSION = 1
HTML_TYPE = "text/html; charset=utf-8"
JSON_TYPE = "application/json"
_ASSETS = {"/page.css": ("text/css; charset=utf-8", stylesheet), "/page.js": ("text/javascript", lambda: SCRIPT)}
_INTERNAL_FIELDS = frozenset({"lag"})  # of rows: only tables have it

Answered = tuple[HTTPStatus, str, str]  # status, content type, body
Query = Mapping[str, str]


class Site:
    """The pages over one manager."""

    def __init__(self, manager: LogManager, now_ms: Callable[[], int], *, storage: Storage | None = None) -> None:
        self._manager, self._now_ms, self._storage = manager, now_ms, storage
        self._lock = threading.Lock()
        self._report: StatusReport | None = None

    def answer(self, target: str) -> Answered:
        """What a GET of `target` (path and query) gives."""
        path, _, text = target.partition("?")
        if path in _ASSETS:
            kind, content = _ASSETS[path]
            return HTTPStatus.OK, kind, content()
        query = dict(parse_qsl(text[:2000]))
        is_json = query.get("format") == "json"
        try:
            body = self._json(path, query) if is_json else self._page(path, query)
        except (NotFound, InvalidRequest) as error:
            return self._failed(HTTPStatus.NOT_FOUND, "Not found", error, is_json=is_json)
        except LogError as error:
            return self._failed(HTTPStatus.SERVICE_UNAVAILABLE, "Not to be had now", error, is_json=is_json)
        return HTTPStatus.OK, JSON_TYPE if is_json else HTML_TYPE, body

    def _page(self, path: str, query: Query) -> str:
        match _parts(path):
            case []:
                return overview(self._all(), query, has_remote=self._manager.config.remote_url is not None)
            case ["troubles"]:
                return troubles_page(self._all())
            case ["topics", topic]:
                return topic_page(self._look(topic), self._manager.topic(topic), query)
            case ["topics", topic, number]:
                report = self._look(topic)
                return partition_page(report, self._snapshot(report, topic, number), query)
        raise NotFound("looking for a page", path=path)

    def _json(self, path: str, query: Query) -> str:
        match _parts(path):
            case [] | ["troubles"]:
                return _encoded(found_topics(self._all(), query))
            case ["topics", topic]:
                return _encoded(topic_facts(self._look(topic), self._manager.topic(topic)))
            case ["topics", topic, number]:
                report = self._look(topic)
                return _encoded(partition_facts(report, self._snapshot(report, topic, number).partition))
        raise NotFound("looking for a page", path=path)

    def _snapshot(self, report: StatusReport, topic: str, number: str) -> PartitionSnapshot:
        """Raises NotFound, and what keeps a partition from being looked at."""
        known = {str(each.partition): each for each in self._manager.topic(topic).partitions()}
        if number not in known:
            raise NotFound("looking for a partition", topic=topic, partition=number)
        return self._manager.partition(known[number]).snapshot(report.now_ms, may_ask=False)

    def _all(self) -> StatusReport:
        """The report of everything, as it is now or was a moment ago."""
        with self._lock:
            now = self._now_ms()
            if self._report is None or not 0 <= now - self._report.now_ms < KEPT_MS:
                self._report = self._look()
            return self._report

    def _look(self, topic: str | None = None) -> StatusReport:
        topics = None if topic is None else [topic]
        return status_report(self._manager, self._now_ms(), topics, storage=self._storage, may_ask=False)

    def _failed(self, status: HTTPStatus, title: str, error: LogError, *, is_json: bool) -> Answered:
        words = " ".join(str(error).split())
        if is_json:
            return status, JSON_TYPE, _encoded({"error": type(error).__name__, "message": words})
        body = [tag("p", words), tag("p", tag("a", "Overview", href="/"))]
        return status, HTML_TYPE, frame(title, "", self._now_ms(), body, refreshes=False)


def _parts(path: str) -> list[str]:
    return [unquote(each) for each in path.strip("/").split("/") if each]


def _encoded(facts: Mapping[str, object]) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **_plain(facts)}, ensure_ascii=False)


def _plain(facts: Mapping[str, object]) -> dict[str, object]:
    """Facts without what only tables have."""
    found = {name: value for name, value in facts.items() if name not in _INTERNAL_FIELDS}
    return {
        name: [_plain(each) if isinstance(each, dict) else each for each in value] if isinstance(value, list) else value
        for name, value in found.items()
    }
