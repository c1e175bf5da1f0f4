"""Labelled form controls; the address holds all values of a form, so that it can be bookmarked."""

from __future__ import annotations

from collections.abc import Mapping

from tiered.web.html import Html, tag


def field(id_: str, label: str, value: str, *, name: str | None = None, example: str = "") -> Html:
    """A text field."""
    control = tag("input", type="text", id=id_, name=name or id_, value=value, placeholder=example, size=10)
    return tag("div", tag("label", label, for_=id_), control)


def choice(id_: str, label: str, options: Mapping[str, str], chosen: str, *, class_: str | None = None) -> Html:
    """A choice: labels by value. With the script, class ``slider`` becomes a slider (`lab.js`)."""
    inner = [tag("option", words, value=value, selected=value == chosen) for value, words in options.items()]
    return tag("div", tag("label", label, for_=id_), tag("select", inner, id=id_, name=id_, class_=class_))


def button(words: str) -> Html:
    return tag("button", words)
