"""Route an address to its page: HTML, or JSON under ``?format=json``.

Pages read only the manager's memory and the disk; none sends a store request or changes data. If a disk hangs, the
reader gets the last result, marked as old. A result serves all readers for CACHE_MS. Thread safe.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from local.errors import InvalidRequest, LogError, NotFound
from local.storage import DiskStorage, Storage
from policies.snapshot import PartitionSnapshot
from tiered.manager.manager import LogManager
from tiered.plans.planning import PricedPlan, priced_plan
from tiered.serve.groups.lag import GroupLag, find_group, group_facts
from tiered.serve.node.directory_groups import groups_at_hand
from tiered.status.status_report import StatusReport, status_report
from tiered.status.tier_history import read_series, still_there
from tiered.web.html import HTML_TYPE, SOON_S, Answered, DataAge, ListPage, asset, group_path, render
from tiered.web.pages.cost_page import Laboratory
from tiered.web.pages.maintenance import (
    Selection,
    compaction_data,
    compaction_facts,
    compaction_page,
    plan_facts,
    plan_page,
)
from tiered.web.pages.manager_cache import DEADLINE_S, DataLoader, Loaded, ManagerCache, data_age
from tiered.web.pages.overview import (
    HistoryData,
    found_topics,
    overview,
    partition_facts,
    partition_page,
    problems_page,
    topic_page,
)

CACHE_MS = 2000
HISTORY_CACHE_MS = 10_000  # notes are taken every five minutes
_log = logging.getLogger(__name__)
SCHEMA_VERSION = 1
QUERY_MAX = 2000  # characters of a query that are read
JSON_TYPE = "application/json"
_ASSETS = {  # content type, and file in this folder
    "/page.css": ("text/css; charset=utf-8", "page.css"),
    "/favicon.svg": ("image/svg+xml", "favicon.svg"),
    "/favicon.ico": ("image/svg+xml", "favicon.svg"),  # browsers ask for it on non-HTML responses
    "/page.js": ("text/javascript; charset=utf-8", "page.js"),
    "/lab.js": ("text/javascript; charset=utf-8", "lab.js"),
}

Query = Mapping[str, str]
T = TypeVar("T")


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
        self._cache = manager if isinstance(manager, ManagerCache) else ManagerCache.of(manager)
        self._now_ms, self._storage = now_ms, storage
        self._loader = DataLoader(now_ms, deadline_s=deadline_s)

    def answer(self, target: str) -> Answered:
        path, _, text = target.partition("?")
        if path in _ASSETS:
            kind, name = _ASSETS[path]
            return HTTPStatus.OK, kind, asset(name)
        query = dict(parse_qsl(text[:QUERY_MAX]))
        is_json = query.get("format") == "json"
        try:
            body = self._body(path, query, is_json=is_json)
        except NotFound as error:
            return self._failed(HTTPStatus.NOT_FOUND, "Not found", error, is_json=is_json)
        except InvalidRequest as error:
            is_name = path.startswith("/topics")  # the topic name is invalid, not the query
            status = HTTPStatus.NOT_FOUND if is_name else HTTPStatus.BAD_REQUEST
            return self._failed(status, "Not found" if is_name else "Invalid request", error, is_json=is_json)
        except LogError as error:
            return self._failed(HTTPStatus.SERVICE_UNAVAILABLE, "Not available now", error, is_json=is_json)
        return HTTPStatus.OK, JSON_TYPE if is_json else HTML_TYPE, body

    def _body(self, path: str, query: Query, *, is_json: bool) -> str:
        deadline = self._loader.deadline()

        def form(
            loaded: Loaded[T], page: Callable[[T, DataAge], str], facts: Callable[[T], Mapping[str, object]]
        ) -> str:
            age = data_age(self._cache, loaded, self._now_ms())
            return _encoded({**asdict(age), **facts(loaded.value)}) if is_json else page(loaded.value, age)

        match [unquote(each) for each in path.strip("/").split("/") if each]:
            case [] | ["troubles"] as section:
                return form(
                    self._load("status", lambda manager: self._report(manager, None), deadline),
                    lambda report, age: (
                        problems_page(report, query, age) if section else self._overview(report, query, age, deadline)
                    ),
                    lambda report: found_topics(report, query),
                )
            case ["plan"]:
                selection = Selection.of(query)
                plan = self._plan(selection)
                return form(
                    plan,
                    lambda priced, age: plan_page(priced, selection, query, plan.at_ms, age),
                    lambda priced: plan_facts(priced, selection, query),
                )
            case ["compaction"]:
                return form(
                    self._load("compaction", lambda manager: compaction_data(manager, self._now_ms())),
                    lambda state, age: compaction_page(state, query, age),
                    lambda state: compaction_facts(state, query),
                )
            case ["groups", *names] if len(names) <= 1:
                return form(
                    self._load("groups", lambda manager: groups_at_hand(manager, self._now_ms())),
                    lambda groups, age: groups_page(groups, names, query, age),
                    lambda groups: group_facts(groups, names),
                )
            case ["cost"]:
                return _encoded(self._laboratory.facts(query)) if is_json else self._laboratory.page(query)
            case ["topics", topic]:
                return form(
                    self._load(
                        f"topic/{topic}",
                        lambda manager: (self._report(manager, topic), manager.topics.get(topic)),
                        deadline,
                        keep_ms=0,
                    ),
                    lambda found, age: topic_page(*found, query, age, self._history(topic, deadline)),
                    lambda found: partition_facts(found[0], found[1].partitions()),
                )
            case ["topics", topic, number]:
                return form(
                    self._partition(topic, number),
                    lambda found, age: partition_page(*found, query, age),
                    lambda found: partition_facts(found[0], [found[1].partition]),
                )
        raise NotFound("page not found", path=path)

    def _overview(self, report: StatusReport, query: Query, age: DataAge, deadline: float) -> str:
        history = self._history(None, deadline) if report.topics else None
        return overview(report, query, has_remote=self._cache.config.remote_url is not None, age=age, history=history)

    def _load(
        self, key: str, read: Callable[[LogManager], T], deadline: float | None = None, keep_ms: int = CACHE_MS
    ) -> Loaded[T]:
        return self._cache.load(self._loader, key, read, keep_ms=keep_ms, deadline=deadline)

    def _history(self, topic: str | None, deadline: float) -> HistoryData | None:

        def read() -> HistoryData:
            disk = self._storage or DiskStorage()
            series = read_series([(disk, root) for root in self._cache.config.data_dirs])
            with self._cache.seen() as (manager, _):
                return HistoryData(series=series, still=still_there(manager, None if topic is None else [topic]))

        key = "past" if topic is None else f"past/{topic}"
        try:
            return self._loader.get(key, read, keep_ms=HISTORY_CACHE_MS, deadline=deadline).value
        except LogError as error:
            _log.warning("cannot show the history: error=%s", error)
            return None

    def _plan(self, selection: Selection) -> Loaded[PricedPlan]:
        def read(manager: LogManager) -> PricedPlan:
            at_ms, topics = self._now_ms() + selection.after_ms, [selection.topic] if selection.topic else None
            return priced_plan(manager, at_ms, topics, overrides=dict(selection.settings), may_ask=False)

        return self._load(f"plan?{selection.key}", read)

    def _partition(self, topic: str, number: str) -> Loaded[tuple[StatusReport, PartitionSnapshot]]:

        def read(manager: LogManager) -> tuple[StatusReport, PartitionSnapshot]:
            report = self._report(manager, topic)
            known = {str(each.partition): each for each in manager.topics.get(topic).partitions()}
            if number not in known:
                raise NotFound("partition not found", topic=topic, partition=number)
            return report, manager.partitions.find(known[number]).snapshot(report.now_ms, may_ask=False)

        return self._load(f"partition/{topic}/{number}", read, keep_ms=0)

    @cached_property
    def _laboratory(self) -> Laboratory:
        """The cost lab, created on first use because it imports the simulator."""
        from tiered.web.pages.cost_page import Laboratory

        return Laboratory(self._cache, self._loader, self._now_ms)

    def _report(self, manager: LogManager, topic: str | None) -> StatusReport:
        topics = None if topic is None else [topic]
        return status_report(manager, self._now_ms(), topics, storage=self._storage, may_ask=False)

    def _failed(self, status: HTTPStatus, title: str, error: LogError, *, is_json: bool) -> Answered:
        words = " ".join(str(error).split())
        if is_json:
            return status, JSON_TYPE, _encoded({"error": type(error).__name__, "message": words})
        again_s = SOON_S if status == HTTPStatus.SERVICE_UNAVAILABLE else None
        return status, HTML_TYPE, render("failed.html", title, "", self._now_ms(), refresh_s=again_s, words=words)


def _encoded(facts: Mapping[str, object]) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **facts}, ensure_ascii=False, default=msgspec.to_builtins)


def groups_page(groups: Sequence[GroupLag], names: Sequence[str], query: Mapping[str, str], age: DataAge) -> str:
    """The page of the consumer group in `names`, or of all without a name. Raises NotFound."""
    now_ms = age.data_ms + age.age_ms
    if not names:
        return render("groups.html", "Groups", "/groups", now_ms, age, groups=ListPage(groups, query))
    group = find_group(groups, names[0])
    rows = ListPage(group.rows(), query)
    return render("group.html", group.group, group_path(group.group), now_ms, age, group=group, rows=rows)
