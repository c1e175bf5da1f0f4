"""Controls of forms, each with a label of its own; what a form asks for stands in the address, so it can be kept."""

from __future__ import annotations

from collections.abc import Mapping

from tiered.web.html import Html, tag


def field(id_: str, label: str, value: str, *, name: str | None = None, example: str = "") -> Html:
    """A line of text."""
    control = tag("input", type="text", id=id_, name=name or id_, value=value, placeholder=example, size=10)
    return tag("div", tag("label", label, for_=id_), control)


def choice(id_: str, label: str, options: Mapping[str, str], chosen: str, *, class_: str | None = None) -> Html:
    """One of several: words by values. A class ``slider`` becomes one where the script runs (`lab.js`)."""
    inner = [tag("option", words, value=value, selected=value == chosen) for value, words in options.items()]
    return tag("div", tag("label", label, for_=id_), tag("select", inner, id=id_, name=id_, class_=class_))


def button(words: str) -> Html:
    return tag("button", words)
