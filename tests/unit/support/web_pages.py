"""Web pages for tests: the site over a manager, a page with valid HTML, and JSON that matches its schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from http import HTTPStatus

import msgspec
from json_schemas import SCHEMAS
from manager_world import NOW, SwitchableStore, World

from remote.store.memory_store import MemoryStore
from tiered.manager.manager import LogManager
from tiered.web.pages.site import Site


def site(world: World, manager: LogManager, now_ms: int = NOW) -> Site:
    """The site with a deadline that a busy machine meets."""
    return Site(manager, lambda: now_ms, storage=world.disk, deadline_s=60)


def page(found: Site, path: str, status: HTTPStatus = HTTPStatus.OK) -> str:
    """The HTML of a page, after its validation."""
    code, kind, body = found.answer(path)
    assert (code, kind) == (status, "text/html; charset=utf-8"), (code, body)
    assert Sound.problems(body) == []
    return body


def data(found: Site, path: str, schema: str | None = None) -> dict:
    """The JSON of a page, after its validation. The schema does not have the data age that pages add."""
    code, kind, body = found.answer(path)
    assert (code, kind) == (HTTPStatus.OK, "application/json"), (code, body)
    if schema is not None:
        facts = json.loads(body)
        assert all(isinstance(facts.pop(name), int) for name in ("data_ms", "age_ms"))
        facts.pop("stale")
        msgspec.json.decode(json.dumps(facts), type=SCHEMAS[schema])
    return json.loads(body)


class Sound(HTMLParser):
    """Finds errors of a page.

    Reported are unmatched tags, controls without a label, tables without headings, links without text, skipped heading
    levels, duplicate ids, and content from other servers.
    """

    VOID = ("meta", "link", "input")
    CONTROLS = ("input", "select", "textarea")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, dict]] = []
        self.found: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.controls: list[str] = []
        self.levels: list[int] = []
        self.text: dict[int, str] = {}
        self.seen: list[str] = []

    @classmethod
    def problems(cls, body: str) -> list[str]:
        found = cls()
        found.feed(body)
        found.close()
        return [*found.found, *found.at_end(body)]

    def handle_starttag(self, name, given):
        attributes = dict(given)
        self.seen.append(f"svg {name}" if any(each == "svg" for each, _ in self.open) else name)
        if len(attributes) != len(given):
            self.found.append(f"an attribute twice: {name}")
        self.ids += [attributes["id"]] if "id" in attributes else []
        for key, value in given:
            if key.startswith("on") or key == "style":
                self.found.append(f"{key} in the page: the policy of contents forbids it")
            if key in ("src", "href", "action") and not re.match(r"/(?!/)|#", value or ""):
                self.found.append(f"leads elsewhere: {value}")
        if name == "label":
            self.labels.append(attributes.get("for", ""))
        if name in self.CONTROLS and attributes.get("type") != "hidden":
            self.controls.append(attributes.get("id", ""))
        if re.fullmatch("h[1-6]", name):
            self.levels.append(int(name[1]))
        if name == "th" and "scope" not in attributes:
            self.found.append("a heading of a table without scope")
        if name == "svg" and attributes.get("role") == "img" and not attributes.get("aria-label"):
            self.found.append("a picture without a name")
        if name not in self.VOID:
            self.open.append((name, attributes))
            self.text[len(self.open)] = ""

    def handle_endtag(self, name):
        if not self.open or self.open[-1][0] != name:
            self.found.append(f"closes {name} within {self.open[-1:]}")
            return
        text = self.text[len(self.open)]
        if name in ("a", "button", "label", "h1", "h2", "caption", "title", "th") and not text.strip():
            self.found.append(f"an empty {name}")
        self.open.pop()
        if self.open:
            self.text[len(self.open)] += text

    def handle_data(self, text):
        if self.open:
            self.text[len(self.open)] += text

    def at_end(self, body: str) -> list[str]:
        found = [f"not closed: {name}" for name, _ in self.open]
        found += [f"id twice: {each}" for each in set(self.ids) if self.ids.count(each) > 1]
        found += [f"a control without a label: {each}" for each in self.controls if each not in self.labels]
        found += [f"{name} once, please" for name in ("h1", "main", "title") if self.seen.count(name) != 1]
        steps = zip(self.levels, self.levels[1:], strict=False)
        found += [f"heading {after} after {before}" for before, after in steps if after > before + 1]
        if "lang=" not in body or "viewport" not in body or "skip" not in body:
            found.append("no language, viewport or way past the links")
        if self.seen.count("table") != self.seen.count("caption"):
            found.append("a table without a caption")
        return found


class CountingStore(SwitchableStore):
    """A store that works and records the verbs of its calls."""

    def __init__(self, inner: MemoryStore, asked: list[str]) -> None:
        super().__init__(inner, is_down=False)
        self.asked = asked

    def __getattr__(self, verb: str) -> Callable[..., object]:
        call = super().__getattr__(verb)

        def noted(*args: object, **more: object) -> object:
            self.asked.append(verb)
            return call(*args, **more)

        return noted
