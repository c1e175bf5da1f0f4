"""HTML for all pages, by the Jinja2 templates in ``templates``.

Every value that is not `Html` is untrusted text, which templates escape (autoescape). A name that a template does not
know is an error (StrictUndefined).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from local.names import TopicPartition
from tiered.config.units import counted, format_bytes, format_count, format_dollars, format_lasted, format_ms
from tiered.node.problems import Problem

REFRESH_S = 30
SOON_S = 8  # refresh interval while data is not ready
ROWS_ON_A_PAGE = 100
GROUPS_SHOWN = 5  # problems at the top of a page
MEMBERS_SHOWN = 50  # of an opened group
SECTIONS = {"/": "Overview", "/plan": "Plan", "/cost": "Cost lab", "/compaction": "Compaction"}
SECTIONS |= {"/groups": "Groups", "/troubles": "Troubles"}

HTML_TYPE = "text/html; charset=utf-8"
T = TypeVar("T")
Html: TypeAlias = Markup
Answered: TypeAlias = tuple[HTTPStatus, str, str]  # status, content type, body


@dataclass(frozen=True, slots=True, kw_only=True)
class DataAge:
    """The time and age of a page's data; `stale` is the reason for data that is older than it should be."""

    data_ms: int
    age_ms: int
    stale: str | None


def render(
    template: str,
    title: str,
    here: str,
    now_ms: int,
    age: DataAge | None = None,
    *,
    refresh_s: int | None = REFRESH_S,
    script: str | None = None,
    **facts: object,
) -> str:
    """Render a page of the section `here`. With `refresh_s` the page refreshes, with or without the `script`."""
    facts |= {"here": here, "now_ms": now_ms, "age": age, "refresh_s": refresh_s, "script": script}
    return render_bare(template, title, **facts)


def render_bare(template: str, title: str, **facts: object) -> str:
    """Render a page without any data of the logs, for clients without access."""
    return _ENVIRONMENT.get_template(template).render(title=title, **facts)


@cache
def asset(name: str) -> str:
    return files("tiered.web.pages").joinpath(name).read_text(encoding="utf-8")


class ListPage(Generic[T]):
    """The rows of the requested page of a list, or of its last page. Pages count from 1, the default."""

    def __init__(self, rows: Sequence[T], query: Mapping[str, str]) -> None:
        text = query.get("page", "")
        requested = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 1
        self.count, self.last = len(rows), max(1, -(-len(rows) // ROWS_ON_A_PAGE))
        self.number = min(self.last, max(1, requested))
        self.begin = (self.number - 1) * ROWS_ON_A_PAGE
        self.rows = rows[self.begin : self.begin + ROWS_ON_A_PAGE]


def link(path: str, query: Mapping[str, object]) -> str:
    given = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path


def topic_path(topic: str) -> str:
    return f"/topics/{quote(topic, safe='')}"


def partition_path(name: TopicPartition) -> str:
    return f"{topic_path(name.topic)}/{name.partition}"


def group_path(group: str) -> str:
    return f"/groups/{quote(group, safe='')}"


def stamp(ms: int) -> str:
    try:
        return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"  # records may have any timestamp


def since(problem: Problem, now_ms: int) -> str:
    """``since 2026-01-01 10:00:00 UTC, for 11m, 22 rounds``."""
    if problem.since_ms is None:
        return "seen now, start time unknown"
    tries = f", {problem.count} rounds" if problem.count > 1 else ""
    return f"since {stamp(problem.since_ms)}, for {format_lasted(now_ms - problem.since_ms)}{tries}"


def _or_dash(show: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "-" if value is None else show(value)


def component(name: str, template: str) -> Callable[..., Html]:
    found: Callable[..., Html] = getattr(_ENVIRONMENT.get_template(template).module, name)
    return found


_ENVIRONMENT = Environment(
    loader=PackageLoader("tiered.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,  # an upgrade must not mix its templates with the code of a running process
)
_ENVIRONMENT.filters |= {
    "bytes": _or_dash(lambda value: format_bytes(round(value))),
    "number": _or_dash(format_count),
    "dollars": _or_dash(format_dollars),
    "percent": _or_dash("{:.0%}".format),
    "ms": format_ms,
    "counted": counted,
    "stamp": stamp,
    "lasted": format_lasted,
    "since": since,
    "topic_path": topic_path,
    "partition_path": partition_path,
    "group_path": group_path,
}
_ENVIRONMENT.globals |= {
    "link": link,
    "SECTIONS": SECTIONS,
    "GROUPS_SHOWN": GROUPS_SHOWN,
    "MEMBERS_SHOWN": MEMBERS_SHOWN,
}
