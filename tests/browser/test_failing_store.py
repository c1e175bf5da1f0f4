"""Refusing or hanging bucket: pages answer at once, report it, and show local data and the last known remote data."""

from __future__ import annotations

import pytest
from headless import PHONE, Chromium

pytestmark = pytest.mark.browser

WORDS = {
    "refusing": ("the store is down", "since 2027-01-15 08:01:00 UTC, for 10m, 11 rounds", "runbooks/store-fails.md"),
    "hanging": ("upload waits: 1 segment,", "since 2027-01-15 08:00:00 UTC, for 44m", "runbooks/copy-lag-grows.md"),
}
FIGURE = """(name) => [...document.querySelectorAll('dl.figures dt')]
  .find((each) => each.textContent === name).nextSibling.textContent"""
TOP = "document.querySelector('.trouble').getBoundingClientRect().top"


@pytest.mark.parametrize("name", ["refusing", "hanging"])
def test_every_page_reports_the_failing_bucket_and_shows_local_data(chromium: Chromium, scenes, name: str) -> None:
    with chromium.open(scenes(name).root, PHONE) as tab:
        for address in ("/", "/topics/t", "/topics/t/0", "/troubles"):
            assert tab.go(address) == 200
            told = tab.text(".trouble")
            for words in WORDS[name]:
                assert words in told, address
            assert tab.js(TOP) < PHONE[1], "the problem must be visible without scrolling"
        tab.go("/topics/t/0")
        assert tab.js(FIGURE, "Next offset") == "300"
        assert tab.js(FIGURE, "Local") != "0 B" != tab.js(FIGURE, "Remote")
        rows = tab.text("tbody")
        assert rows.count("only on this disk") == 2 < rows.count("remote")
        tab.go("/")
        assert tab.text("#topics tbody td:last-child") == "1 stuck"
        assert (tab.said, tab.failed) == ([], [])
