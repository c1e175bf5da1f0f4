"""Plan form and cost lab sliders used with the keyboard. The clock of the page is moved by the test."""

from __future__ import annotations

import pytest
from headless import PHONE, Chromium, Tab
from page_audit import keyboard_problems, problems

pytestmark = pytest.mark.browser

FOCUS = "(id) => document.getElementById(id).focus()"
STATUS = "document.getElementById('lab-status').textContent"
TOLD = "document.getElementById('lab-status').textContent.includes('dollars a month as chosen')"
RATED = "/cost?rate=orders=500MiB/d,clicks=300MiB/d"  # no month is forecast from less than a day of records
MOVED_MS = 300  # a slider is evaluated after this rest


@pytest.fixture
def lab(chromium: Chromium, scenes):
    with chromium.open(scenes("busy").root) as tab:
        tab.hold_clock()
        assert tab.go(RATED) == 200
        yield tab


def moved(tab: Tab, slider: str, *keys: str) -> None:
    tab.js(FOCUS, slider)
    tab.press(*keys)
    tab.pass_time(MOVED_MS)


def test_slider_moved_by_keys_updates_results_and_address(lab: Tab) -> None:
    chosen = "document.getElementById('dollars-chosen').textContent"
    before = lab.js(chosen)
    lab.js("window.mark = 1")
    moved(lab, "retention-slider", "Home", "ArrowRight")
    lab.wait(TOLD)
    assert lab.js("document.getElementById('retention-slider').getAttribute('aria-valuetext')") == lab.text(
        "#retention-shown"
    )
    assert lab.js("document.activeElement.id") == "retention-slider", "the focus must stay on the slider"
    after, address = lab.js(chosen), lab.js("location.pathname + location.search")
    assert "retention=" in address
    assert (after != before, lab.js("window.mark")) == (True, 1)
    assert problems(lab) == []
    assert (lab.said, lab.failed, lab.elsewhere()) == ([], [], [])
    lab.go(address)
    assert lab.js(chosen) == after, "the address must lead to the same result"
    lab.click("form a[href^='/cost']")
    lab.wait("!location.search.includes('retention=') && document.getElementById('retention-slider')")
    assert lab.js(chosen) == before


def test_several_slider_moves_give_one_request_for_the_last(lab: Tab) -> None:
    lab.js(FOCUS, "retention-slider")
    lab.press("Home")
    lab.count_fetches()
    for _ in range(5):
        lab.press("ArrowRight")
        lab.pass_time(50)
    assert lab.fetches() == 0, "no request may be sent while the slider moves"
    lab.pass_time(MOVED_MS)
    lab.wait(TOLD)
    assert lab.fetches() == 1
    shown = lab.text("#retention-shown")
    assert lab.js("document.getElementById('retention').selectedOptions[0].text") == shown


def test_lab_reports_an_unreachable_manager_and_continues_when_it_returns(lab: Tab, scenes) -> None:
    scene = scenes("busy")
    scene.hang_up()
    try:
        moved(lab, "retention-slider", "Home")
        lab.wait(f"{STATUS}.includes('does not answer')")
        assert lab.js("document.getElementById('dollars-chosen').textContent"), "the last result must stay visible"
    finally:
        scene.serve()
    moved(lab, "retention-slider", "ArrowRight")
    lab.wait(TOLD)


def test_lab_without_scripts_has_lists_and_a_button(chromium: Chromium, scenes) -> None:
    with chromium.open(scenes("busy").root, PHONE, scripts=False) as tab:
        assert tab.go(f"{RATED}&retention=7d") == 200
        assert tab.js("document.getElementById('retention').value") == "7d"
        assert tab.js("document.querySelectorAll('input[type=range]').length") == 0
        assert keyboard_problems(tab) == []
        assert tab.js("document.getElementById('dollars-chosen').textContent.length > 0")


def test_plan_form_is_usable_with_the_keyboard_only(chromium: Chromium, scenes) -> None:
    with chromium.open(scenes("busy").root, PHONE) as tab:
        tab.go("/plan")
        tab.js(FOCUS, "retention-ms")
        tab.type("1h")
        tab.press("Enter")
        tab.wait("location.search.includes('retention.ms=1h') && document.querySelector('main table')")
        assert "expire" in tab.text("main table")
        assert "-X retention.ms=1h" in tab.text("main pre")
        assert problems(tab) == []
        tab.js(FOCUS, "retention-ms")
        tab.js("document.activeElement.select()")
        tab.type("no time")
        tab.press("Enter")
        tab.wait("document.querySelector('h1')?.textContent === 'Invalid request'")
        assert "retention.ms" in tab.text(".trouble")
        assert [each for each in tab.said if "400" not in each] == []
