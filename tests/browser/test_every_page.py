"""Every page reachable by links in a real Chromium: silent console, no outside requests, accessible, bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from headless import DESKTOP, NARROW, PHONE, Chromium, Tab
from page_audit import keyboard_problems, problems
from web_scenes import EVIL, PARTITIONS, SEGMENTS, TOPICS

pytestmark = pytest.mark.browser

SECTIONS = {"/", "/plan", "/cost", "/compaction", "/groups", "/troubles"}
KINDS = SECTIONS | {"/topics/TOPIC", "/topics/TOPIC/N"}
GROUP = "/groups/GROUP"  # in the scenes with a group
NODES_MAX, BYTES_MAX = 3500, 250_000  # of any page, for a deployment of any size


def kind_of(address: str) -> str:
    """The kind of an address: addresses that differ only in names and numbers have the same kind."""
    parts = urlsplit(address)
    path = re.sub(r"^/topics/[^/]+", "/topics/TOPIC", parts.path)
    path = re.sub(r"^/groups/[^/]+", GROUP, path)
    names = sorted({name for name, _ in parse_qsl(parts.query)})
    return re.sub(r"/[0-9]+\b", "/N", path) + ("?" + "&".join(names) if names else "")


def draw(tab: Tab, file: str, *, whole: bool) -> None:
    """Screenshots for people: wide and light, narrow and dark."""
    for width, theme in ((DESKTOP, "light"), (PHONE, "dark")):
        tab.resize(width)
        tab.theme(theme)
        tab.picture(f"{file}-{width[0]}.png", whole=whole)
    tab.resize(DESKTOP)


def kinds(tab: Tab) -> Iterator[tuple[str, str]]:
    """Open one page of each kind reachable by links from the overview. Yields its kind and address.

    A list in another order is the same page.
    """
    waiting, known = ["/"], {"/"}
    while waiting:
        address = waiting.pop(0)
        assert tab.go(address) == 200, address
        yield kind_of(address), address
        for each in tab.js("[...document.links].map((link) => link.getAttribute('href'))"):
            if each.startswith("/") and "sort=" not in each and kind_of(each) not in known:
                known.add(kind_of(each))
                waiting.append(each)


@pytest.mark.parametrize(
    "name",
    [
        "empty",
        "aged",
        "evil",
        "refusing",
        "hanging",
        pytest.param("huge", marks=pytest.mark.deep("a node of many segments")),
    ],
)
def test_every_page_loads_without_errors_or_outside_requests_and_is_accessible(
    chromium: Chromium, scenes, pictures, name: str
) -> None:
    scene = scenes(name)
    seen: set[str] = set()
    with chromium.open(scene.root) as tab:
        for kind, address in kinds(tab):
            seen.add(kind)
            assert problems(tab) == [], address
            size = tab.js("[document.querySelectorAll('*').length, document.documentElement.outerHTML.length]")
            assert size < [NODES_MAX, 0], address
            assert size[1] < BYTES_MAX, address
            if "?" not in kind:
                draw(tab, str(pictures / re.sub(r"\W+", "-", f"{name} {kind}").strip("-")), whole=name != "huge")
        assert (tab.said, tab.failed, tab.elsewhere()) == ([], [], [])
        assert len(tab.asked) >= 3 * len(seen), "requests must be recorded: the page, its style, its script"
        assert tab.js("window.hit") is None
    assert seen >= (SECTIONS if name == "empty" else KINDS)
    assert (GROUP in seen) is (name in ("aged", "evil"))


def test_every_page_is_usable_with_the_tab_key(chromium: Chromium, scenes) -> None:
    with chromium.open(scenes("busy").root) as tab:
        for _, address in kinds(tab):
            assert keyboard_problems(tab) == [], address
        assert tab.said == []


def test_first_tab_stop_skips_to_the_content(chromium: Chromium, scenes) -> None:
    here = "document.activeElement.textContent"
    with chromium.open(scenes("busy").root) as tab:
        for address in ("/", "/topics/orders", "/topics/orders/0"):
            tab.go(address)
            tab.press("Tab")
            assert tab.js(here) == "Skip to the content"
            assert tab.js("document.activeElement.getBoundingClientRect().left") >= 0, (
                "the link must be visible while it has the focus"
            )
            tab.press("Enter", "Tab")
            assert tab.js("document.activeElement.closest('main') !== null"), address


def test_search_is_usable_with_the_keyboard_and_shows_its_results(chromium: Chromium, scenes) -> None:
    with chromium.open(scenes("busy").root) as tab:
        tab.go("/")
        tab.js("document.getElementById('search').focus()")
        tab.type("clic")
        tab.press("Enter")
        tab.wait("location.search.includes('q=clic') && document.querySelector('#topics caption')")
        assert "1 of 3 topics" in tab.text("#topics caption")
        assert tab.js("document.getElementById('search').value") == "clic"


def test_untrusted_text_is_escaped_on_every_page(chromium: Chromium, scenes) -> None:
    with chromium.open(scenes("evil").root) as tab:
        for address in ("/", "/troubles", "/topics/t", "/topics/t/0", "/groups", f"/groups/{quote(EVIL, safe='')}"):
            tab.go(address)
            assert EVIL in tab.text(), address
        for address, words in [
            ("/topics/%3Cimg%20src=x%20onerror=%22window.hit=1%22%3E", "<img src=x"),
            ("/topics/t/%3Cscript%3Ewindow.hit=1%3C%2Fscript%3E", "<script>"),
            ("/?q=%3Cimg%20src=x%20onerror=%22window.hit=1%22%3E&sort=%22%3E%3Cscript%3E", "<img src=x"),
        ]:
            tab.go(address)
            assert words in tab.text(), address
            assert tab.js("document.images.length + document.querySelectorAll('body script').length") == 0
            assert problems(tab) == [], address
        assert tab.js("window.hit") is None
        assert [each for each in tab.said if "404" not in each] == []


@pytest.mark.deep("a partition of many segments")
def test_segment_list_of_a_huge_partition_is_paged_by_keyboard(chromium: Chromium, scenes) -> None:
    scene = scenes("huge")
    with chromium.open(scene.root, PHONE) as tab:
        tab.go("/topics/huge/0")
        assert f"{SEGMENTS:,} segments" in tab.text("caption")
        follow = "(word) => [...document.querySelectorAll('nav a')].find((each) => each.textContent === word).focus()"
        for word, first in [("Next", "101 to 200"), ("Last", f"{SEGMENTS - 99:,} to {SEGMENTS:,}"), ("Previous", "")]:
            tab.js(follow, word)
            tab.press("Enter")
            tab.wait(
                "(text) => document.querySelector('main nav[aria-label^=Pages]')?.textContent.includes(text)", first
            )
        assert tab.js("document.querySelectorAll('main tbody tr').length") == 100
        tab.go("/topics/huge")
        assert f"{PARTITIONS:,} partitions" in tab.text("caption")
        tab.go("/troubles")
        assert f"{PARTITIONS + TOPICS:,} partitions: the store is down" in tab.text(".trouble")
        assert tab.js("document.querySelectorAll('.trouble').length") == 1, "a failing bucket must be one problem"
        tab.js("document.querySelector('.trouble summary').focus()")
        tab.press("Enter")
        tab.wait("document.querySelector('.trouble details').open")
        assert tab.js("document.querySelectorAll('.trouble li a').length") == 50
        tab.js("[...document.querySelectorAll('.trouble a')].at(-1).focus()")
        tab.press("Enter")
        tab.wait("location.search.includes('alike=') && document.querySelector('main nav')")
        assert f"1 to 100 of {PARTITIONS + TOPICS:,}" in tab.text("main nav")
        tab.go("/?page=2")
        assert f"101 to {TOPICS + 1} of" in tab.text("#topics nav")


def test_map_zooms_with_the_keyboard_only(chromium: Chromium, scenes) -> None:
    with chromium.open(scenes("aged").root, PHONE) as tab:
        tab.go("/topics/orders/0")
        follow = "(word) => [...document.querySelectorAll('nav a')].find((each) => each.textContent === word).focus()"
        whole = tab.text("#map-offsets + .ends")
        for word in ("Closer", "Later", "Wider"):
            before = tab.text("#map-offsets + .ends")
            tab.js(follow, word)
            tab.press("Enter")
            tab.wait("(text) => document.querySelector('#map-offsets + .ends').innerText !== text", before)
            assert problems(tab) == [], word
        tab.js("document.getElementById('from').focus()")
        tab.js("document.activeElement.select()")
        tab.type("80")
        tab.press("Enter")
        tab.wait("location.search.includes('from=80&') && document.querySelector('.key-list')")
        assert tab.text("tbody tr th") == "80"
        tab.js(follow, "All")
        tab.press("Enter")
        tab.wait("location.search === '' && document.querySelector('.key-list')")
        assert tab.text("#map-offsets + .ends") == whole
        assert (tab.said, tab.failed, tab.elsewhere()) == ([], [], [])


def test_history_charts_fit_a_phone_and_their_table_opens_by_keyboard(chromium: Chromium, scenes) -> None:
    with chromium.open(scenes("aged").root, PHONE) as tab:
        for address, rows in (("/?span=2d", 40), ("/?span=30d", 30), ("/?span=3y", 35), ("/topics/orders?span=2d", 20)):
            tab.resize(PHONE)
            tab.go(address)
            ends = tab.js("[...document.querySelectorAll('svg.times')].map((e) => e.getBoundingClientRect().right)")
            assert len(ends) == 3, address
            assert max(ends) <= PHONE[0], address
            tab.js("document.querySelector('#history summary').focus()")
            tab.press("Enter")
            tab.wait("document.querySelector('#history details').open")
            assert tab.js("document.querySelectorAll('#history tbody tr').length") >= rows
            assert problems(tab) == [], address


def test_page_without_scripts_refreshes_itself(chromium: Chromium, scenes) -> None:
    with chromium.open(scenes("busy").root, NARROW, scripts=False) as tab:
        tab.go("/")
        assert tab.js("document.querySelector('meta[http-equiv=refresh]')?.content") == "30"
        assert "orders" in tab.text("main")
