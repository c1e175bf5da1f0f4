"""Route an address to its page: HTML, or JSON under ``?format=json``.

Pages read only the manager's memory and the disk. No page sends a store request, none changes data. Page data is
loaded in threads (`tiered.web.pages.data_loader`): if a disk hangs or a lock is held for long, the reader gets the last
result, marked as old. A result serves all readers for KEPT_MS. Thread safe.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

import msgspec

from local.errors import InvalidRequest, LogError, NotFound
from local.storage import DiskStorage, Storage
from tiered.status.status_report import StatusReport, status_report
from tiered.status.tier_history import still_there
from tiered.status.tier_journal import read_series
from tiered.web.html import Html, tag
from tiered.web.pages.assets import SCRIPT, icon, lab_script, stylesheet
from tiered.web.pages.compaction import Compaction, compaction_facts, compaction_page, look_at_compaction
from tiered.web.pages.data_loader import DEADLINE_S, Gathering, Patience, Told
from tiered.web.pages.history import Past
from tiered.web.pages.manager_cache import ManagerCache
from tiered.web.pages.overview import found_topics, overview, problems_page
from tiered.web.pages.partition import partition_facts, partition_page
from tiered.web.pages.parts import SOON_S, frame
from tiered.web.pages.plan import Asked, plan_facts, plan_page
from tiered.web.pages.stale_banner import age_facts, note_on
from tiered.web.pages.topic import topic_facts, topic_page

if TYPE_CHECKING:
    from policies.snapshot import PartitionSnapshot
    from tiered.manager.manager import LogManager
    from tiered.node.topic_registry import Topic
    from tiered.plans.planning import PricedPlan
    from tiered.web.pages.lab_site import Laboratory

KEPT_MS = 2000
PAST_KEPT_MS = 10_000  # notes are taken every five minutes
_log = logging.getLogger(__name__)
SCHEMA_VERSION = 1
QUERY_MAX = 2000  # characters of a query that are read
HTML_TYPE = "text/html; charset=utf-8"
JSON_TYPE = "application/json"
_ASSETS = {
    "/page.css": ("text/css; charset=utf-8", stylesheet),
    "/favicon.svg": ("image/svg+xml", icon),
    "/favicon.ico": ("image/svg+xml", icon),  # browsers ask for it on non-HTML responses
    "/page.js": ("text/javascript; charset=utf-8", lambda: SCRIPT),
    "/lab.js": ("text/javascript; charset=utf-8", lab_script),
}

Answered = tuple[HTTPStatus, str, str]  # status, content type, body
Query = Mapping[str, str]


class Site:
    """The pages over one manager, or over the current manager of `ManagerCache`."""

    def __init__(
        self,
        manager: LogManager | ManagerCache,
        now_ms: Callable[[], int],
        *,
        storage: Storage | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """`storage` is the disk with the files that the running manager writes."""
        self._looks = manager if isinstance(manager, ManagerCache) else ManagerCache.of(manager)
        self._now_ms, self._storage = now_ms, storage
        self._gathering = Gathering(now_ms, deadline_s=deadline_s)
        self._lab: Laboratory | None = None

    def answer(self, target: str) -> Answered:
        """The response to a GET of `target` (path and query)."""
        path, _, text = target.partition("?")
        if path in _ASSETS:
            kind, content = _ASSETS[path]
            return HTTPStatus.OK, kind, content()
        query = dict(parse_qsl(text[:QUERY_MAX]))
        is_json = query.get("format") == "json"
        try:
            body = self._json(path, query) if is_json else self._page(path, query)
        except NotFound as error:
            return self._failed(HTTPStatus.NOT_FOUND, "Not found", error, is_json=is_json)
        except InvalidRequest as error:
            is_name = path.startswith("/topics")  # of an invalid topic name
            status = HTTPStatus.NOT_FOUND if is_name else HTTPStatus.BAD_REQUEST
            return self._failed(status, "Not found" if is_name else "Invalid request", error, is_json=is_json)
        except LogError as error:
            return self._failed(HTTPStatus.SERVICE_UNAVAILABLE, "Not available now", error, is_json=is_json)
        return HTTPStatus.OK, JSON_TYPE if is_json else HTML_TYPE, body

    def _page(self, path: str, query: Query) -> str:
        match _parts(path):
            case []:
                return self._overview(query)
            case ["troubles"]:
                told = self._all()
                return problems_page(told.value, query, note=self._late(told))
            case ["plan"]:
                asked = Asked.of(query)
                plan = self._plan(asked)
                return plan_page(plan.value, asked, query, plan.at_ms, note=self._late(plan))
            case ["compaction"]:
                compaction = self._compaction()
                return compaction_page(compaction.value, query, note=self._late(compaction))
            case ["cost"]:
                return self._laboratory().page(query)
            case ["topics", topic]:
                patience = self._gathering.patience()
                found = self._topic(topic, patience)
                return topic_page(*found.value, query, self._late(found), self._past(topic, patience))
            case ["topics", topic, number]:
                part = self._partition(topic, number)
                return partition_page(*part.value, query, note=self._late(part))
        raise NotFound("page not found", path=path)

    def _json(self, path: str, query: Query) -> str:
        match _parts(path):
            case [] | ["troubles"]:
                everything = self._all()
                return self._aged(everything, found_topics(everything.value, query))
            case ["plan"]:
                asked = Asked.of(query)
                plan = self._plan(asked)
                return self._aged(plan, plan_facts(plan.value, asked, query))
            case ["compaction"]:
                compaction = self._compaction()
                return self._aged(compaction, compaction_facts(compaction.value, query))
            case ["cost"]:
                return _encoded(self._laboratory().facts(query))
            case ["topics", topic]:
                found = self._topic(topic)
                return self._aged(found, topic_facts(*found.value))
            case ["topics", topic, number]:
                part = self._partition(topic, number)
                report, snapshot = part.value
                return self._aged(part, partition_facts(report, snapshot.partition))
        raise NotFound("page not found", path=path)

    def _overview(self, query: Query) -> str:
        patience = self._gathering.patience()
        told, has_remote = self._all(patience), self._looks.config.remote_url is not None
        past = self._past(None, patience) if told.value.topics else None
        return overview(told.value, query, has_remote=has_remote, note=self._late(told), past=past)

    # -- page data -----------------------------------------------------------------------------------------------------

    def _all(self, patience: Patience | None = None) -> Told[StatusReport]:
        def look(manager: LogManager) -> StatusReport:
            return self._look(manager, None)

        return self._looks.gathered(self._gathering, "status", look, keep_ms=KEPT_MS, patience=patience)

    def _past(self, topic: str | None, patience: Patience) -> Past | None:
        """Return the history, or None if it is not available now: the page is shown without it."""

        def look() -> Past:
            disk = self._storage or DiskStorage()
            series = read_series([(disk, root) for root in self._looks.config.data_dirs])
            with self._looks.manager() as manager:
                return Past(series=series, still=still_there(manager, None if topic is None else [topic]))

        key = "past" if topic is None else f"past/{topic}"
        try:
            return self._gathering.get(key, look, keep_ms=PAST_KEPT_MS, patience=patience).value
        except LogError as error:
            _log.warning("cannot show the history: error=%s", error)
            return None

    def _plan(self, asked: Asked) -> Told[PricedPlan]:
        def look(manager: LogManager) -> PricedPlan:
            from tiered.plans.planning import priced_plan

            at_ms = self._now_ms() + (asked.after_ms or 0)
            return priced_plan(manager, at_ms, asked.topics, overrides=dict(asked.settings), may_ask=False)

        return self._looks.gathered(self._gathering, f"plan?{asked.key}", look, keep_ms=KEPT_MS)

    def _compaction(self) -> Told[Compaction]:
        def look(manager: LogManager) -> Compaction:
            return look_at_compaction(manager, self._now_ms())

        return self._looks.gathered(self._gathering, "compaction", look, keep_ms=KEPT_MS)

    def _topic(self, topic: str, patience: Patience | None = None) -> Told[tuple[StatusReport, Topic]]:
        def look(manager: LogManager) -> tuple[StatusReport, Topic]:
            return self._look(manager, topic), manager.topic(topic)

        return self._looks.gathered(self._gathering, f"topic/{topic}", look, patience=patience)

    def _partition(self, topic: str, number: str) -> Told[tuple[StatusReport, PartitionSnapshot]]:
        """Raises NotFound, and the errors of reading a partition."""

        def look(manager: LogManager) -> tuple[StatusReport, PartitionSnapshot]:
            report = self._look(manager, topic)
            known = {str(each.partition): each for each in manager.topic(topic).partitions()}
            if number not in known:
                raise NotFound("partition not found", topic=topic, partition=number)
            return report, manager.partition(known[number]).snapshot(report.now_ms, may_ask=False)

        return self._looks.gathered(self._gathering, f"partition/{topic}/{number}", look)

    def _laboratory(self) -> Laboratory:
        """Created on first use, because it imports the simulator."""
        if self._lab is None:
            from tiered.web.pages.lab_site import Laboratory

            self._lab = Laboratory(self._looks, self._gathering, self._now_ms)
        return self._lab

    def _look(self, manager: LogManager, topic: str | None) -> StatusReport:
        topics = None if topic is None else [topic]
        return status_report(manager, self._now_ms(), topics, storage=self._storage, may_ask=False)

    # -- texts ---------------------------------------------------------------------------------------------------------

    def _late(self, told: Told[Any]) -> list[Html]:
        """The age of a page's data, and the reason if it is old."""
        return note_on(self._looks, told, self._now_ms())

    def _aged(self, told: Told[Any], facts: Mapping[str, object]) -> str:
        """Facts with the age of their data, as JSON."""
        return _encoded({**age_facts(self._looks, told, self._now_ms()), **facts})

    def _failed(self, status: HTTPStatus, title: str, error: LogError, *, is_json: bool) -> Answered:
        words = " ".join(str(error).split())
        if is_json:
            return status, JSON_TYPE, _encoded({"error": type(error).__name__, "message": words})
        body = [tag("p", words, class_="trouble"), tag("p", tag("a", "Overview", href="/"))]
        again_s = SOON_S if status == HTTPStatus.SERVICE_UNAVAILABLE else None
        return status, HTML_TYPE, frame(title, "", self._now_ms(), body, refresh_s=again_s)


def _parts(path: str) -> list[str]:
    return [unquote(each) for each in path.strip("/").split("/") if each]


def _encoded(facts: Mapping[str, object]) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **facts}, ensure_ascii=False, default=msgspec.to_builtins)
