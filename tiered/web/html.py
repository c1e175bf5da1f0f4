"""HTML that is escaped by construction: every value that is not `Html` becomes text.

Topic names, error messages and reasons are untrusted input. They enter a page only through `tag`, which escapes
content and attributes.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

VOID = frozenset({"meta", "link", "input"})


class Html(str):
    """Markup. Only `tag` and `join` make it."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """``<name ...>children</name>``. `class_` is class, `aria_label` aria-label; None and False leave one out."""
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{join(children)}</{name}>")


def join(children: Child) -> Html:
    """Concatenate children; escape all that are not markup."""
    if children is None:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, (str, int)):
        return Html(escape(str(children)))
    return Html("".join(map(join, children)))


def _attribute(key: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
