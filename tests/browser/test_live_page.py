"""A page that stays open follows the manager, does not disturb its reader, and reports a missing answer.

The clock of the page is moved by the test only.
"""

from __future__ import annotations

import threading

import pytest
from headless import PHONE, Chromium, Tab
from manager_world import NOW, TIERED, SwitchableStore, World, send
from web_scenes import MINUTE, Scene

from local.errors import Corrupt, Unavailable
from local.names import TopicPartition
from tiered.web.html import REFRESH_S

pytestmark = pytest.mark.browser

PERIOD_MS = REFRESH_S * 1000
NO_ANSWER = "document.getElementById('asked').textContent.includes('does not answer')"


@pytest.fixture
def scene():
    with Scene() as made:
        made.manager.topics.create("t", 1, {}, now_ms=NOW)
        send(made.manager, 10)
        yield made


@pytest.fixture
def tab(chromium: Chromium, scene: Scene):
    with chromium.open(scene.root) as tab:
        tab.hold_clock()
        tab.go("/topics/t")
        tab.js("window.mark = 1")
        yield tab


def shows(tab: Tab, offset: int) -> None:
    tab.wait("(text) => document.querySelector('main tbody tr').textContent.includes(text)", str(offset))


def later(scene: Scene, tab: Tab, count: int = 0) -> None:
    """Advance to the next refresh of the page, with `count` more records."""
    if count:
        send(scene.manager, count, start=10)
    scene.now_ms += PERIOD_MS
    tab.pass_time(PERIOD_MS)


def test_open_page_updates_without_a_reload_and_keeps_the_focus(scene: Scene, tab: Tab) -> None:
    tab.js("document.querySelector('main tbody a').focus()")
    later(scene, tab, 20)
    shows(tab, 30)
    assert tab.js("window.mark") == 1, "the page must not be reloaded"
    assert tab.js("document.activeElement.textContent") == "t/0"
    assert (tab.said, tab.failed) == ([], [])


def test_new_problem_on_an_open_page_keeps_focus_and_scroll_position(scene: Scene, tab: Tab) -> None:
    tab.resize(PHONE)
    tab.js("document.querySelector('main tbody a').focus()")
    tab.js("document.querySelector('main .wide').scrollLeft = 150")
    scene.manager.partitions.problems = {TopicPartition("t", 0): Corrupt("bad, all of it")}
    later(scene, tab)
    tab.wait("document.querySelector('.trouble')")
    assert tab.js("document.activeElement.closest('tbody') !== null"), (
        "the focus must stay on the link in the table, not on that of the problem"
    )
    assert tab.js("document.querySelector('main .wide').scrollLeft") == 150


def test_opened_details_stay_open_and_keep_the_focus_after_an_update(scene: Scene, tab: Tab) -> None:
    scene.manager.topics.create("many", 3, {}, now_ms=NOW)
    names = [TopicPartition("many", number) for number in range(3)]
    scene.manager.partitions.problems = {name: Unavailable("the store is down", partition=name) for name in names[:2]}
    tab.go("/topics/many")
    tab.js("document.querySelector('.trouble summary').focus()")
    tab.press("Enter")
    tab.wait("document.querySelector('.trouble details').open")
    scene.manager.partitions.problems = {name: Unavailable("the store is down", partition=name) for name in names}
    later(scene, tab)
    tab.wait("document.querySelector('.trouble strong').textContent === '3 partitions'")
    assert tab.js("document.querySelector('.trouble details').open")
    assert tab.js("document.activeElement.tagName") == "SUMMARY"
    scene.manager.partitions.problems = {}
    later(scene, tab)
    tab.wait("document.querySelector('.trouble') === null")


def test_page_does_not_update_while_text_is_typed_or_selected(scene: Scene, tab: Tab) -> None:
    tab.go("/")
    tab.js("document.getElementById('search').focus()")
    tab.type("ord")
    later(scene, tab, 20)
    later(scene, tab)
    assert tab.js("document.getElementById('search').value") == "ord"
    tab.js("document.activeElement.blur()")
    tab.count_fetches()
    tab.js("getSelection().selectAllChildren(document.querySelector('h1'))")
    later(scene, tab)
    assert tab.fetches() == 0, "no request may be sent while a text is selected"
    tab.js("getSelection().removeAllRanges()")
    later(scene, tab)
    shows(tab, 30)


def test_open_page_reports_an_unreachable_manager_and_continues_when_it_returns(scene: Scene, tab: Tab) -> None:
    scene.hang_up()
    later(scene, tab, 20)
    tab.wait(NO_ANSWER)
    assert "10" in tab.text("main tbody tr"), "the last data must stay visible"
    later(scene, tab)
    scene.serve()
    later(scene, tab)
    shows(tab, 30)
    assert "Computed at" in tab.text("#asked")
    assert tab.js("window.mark") == 1
    assert [each for each in tab.said if "ERR_" not in each] == []


def test_open_page_reports_a_hanging_manager_and_continues_when_it_answers(scene: Scene, tab: Tab) -> None:
    answers, answer = threading.Event(), scene.site.answer

    def hanging(target: str):
        if target.startswith("/topics"):
            answers.wait(30)
        return answer(target)

    scene.site.answer = hanging
    tab.count_fetches()
    later(scene, tab, 20)
    later(scene, tab)
    tab.wait(NO_ANSWER)
    later(scene, tab)
    assert 2 <= tab.fetches() <= 3, "there must be one request for each period, not more"
    answers.set()
    later(scene, tab)
    later(scene, tab)
    shows(tab, 30)


def test_answer_without_a_page_changes_only_the_footer(scene: Scene, tab: Tab) -> None:
    answer = scene.site.answer
    scene.site.answer = lambda target: (503, "text/plain", "busy")
    later(scene, tab, 20)
    tab.wait(NO_ANSWER)
    assert "10" in tab.text("main tbody tr")
    scene.site.answer = answer
    later(scene, tab)
    shows(tab, 30)


def test_open_page_of_a_deleted_topic_becomes_not_found(scene: Scene, tab: Tab) -> None:
    scene.manager.topics.delete("t", now_ms=NOW)
    later(scene, tab)
    tab.wait("document.querySelector('h1').textContent === 'Not found'")
    assert tab.js("document.title").startswith("Not found")


def test_open_page_shows_an_unreachable_bucket_and_its_recovery(chromium: Chromium) -> None:
    world = World()
    store = SwitchableStore(world.store, is_down=False)
    with Scene(world, store) as scene, chromium.open(scene.root) as tab:
        scene.manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(scene.manager, 200)
        scene.settle()
        tab.hold_clock()
        tab.go("/")
        assert "the store is down" not in tab.text()
        store.is_down = True
        send(scene.manager, 100, start=200)
        scene.now_ms += MINUTE
        scene.worker.round(scene.now_ms)
        tab.pass_time(PERIOD_MS)
        tab.wait("document.querySelector('main').textContent.includes('the store is down')")
        store.is_down = False
        scene.now_ms += MINUTE
        scene.settle()
        tab.pass_time(PERIOD_MS)
        tab.wait("!document.querySelector('main').textContent.includes('the store is down')")
        assert "nothing" in tab.text("dl.figures")
