"""A page that stays open: it follows the manager, leaves its reader alone, and says so when nobody answers.

The page's clock moves by hand alone.
"""

from __future__ import annotations

import threading

import pytest
from headless import PHONE, Chromium, Tab
from manager_world import NOW, TIERED, SwitchableStore, World, send
from web_scenes import MINUTE, Scene

from local.errors import Corrupt, Unavailable
from local.names import TopicPartition
from tiered.web.pages.parts import REFRESH_S

pytestmark = pytest.mark.browser

PERIOD_MS = REFRESH_S * 1000
NO_ANSWER = "document.getElementById('asked').textContent.includes('does not answer')"


@pytest.fixture
def scene():
    with Scene() as made:
        made.manager.create_topic("t", 1, {}, now_ms=NOW)
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
    """The next time that the page asks, `count` records later."""
    if count:
        send(scene.manager, count, start=10)
    scene.now_ms += PERIOD_MS
    tab.pass_time(PERIOD_MS)


def test_an_open_page_follows_without_being_loaded_again_and_keeps_the_place(scene: Scene, tab: Tab) -> None:
    tab.js("document.querySelector('main tbody a').focus()")
    later(scene, tab, 20)
    shows(tab, 30)
    assert tab.js("window.mark") == 1, "not loaded anew"
    assert tab.js("document.activeElement.textContent") == "t/0"
    assert (tab.said, tab.failed) == ([], [])


def test_a_trouble_that_comes_takes_neither_the_focus_nor_the_place_from_who_reads(scene: Scene, tab: Tab) -> None:
    tab.resize(PHONE)
    tab.js("document.querySelector('main tbody a').focus()")
    tab.js("document.querySelector('main .wide').scrollLeft = 150")
    scene.manager.problems = {TopicPartition("t", 0): Corrupt("bad, all of it")}
    later(scene, tab)
    tab.wait("document.querySelector('.trouble')")
    assert tab.js("document.activeElement.closest('tbody') !== null"), "the link in the table, not that in the trouble"
    assert tab.js("document.querySelector('main .wide').scrollLeft") == 150


def test_what_was_opened_stays_open_and_keeps_the_focus(scene: Scene, tab: Tab) -> None:
    scene.manager.create_topic("many", 3, {}, now_ms=NOW)
    names = [TopicPartition("many", number) for number in range(3)]
    scene.manager.problems = {name: Unavailable("the store is down", partition=name) for name in names[:2]}
    tab.go("/topics/many")
    tab.js("document.querySelector('.trouble summary').focus()")
    tab.press("Enter")
    tab.wait("document.querySelector('.trouble details').open")
    scene.manager.problems = {name: Unavailable("the store is down", partition=name) for name in names}
    later(scene, tab)
    tab.wait("document.querySelector('.trouble strong').textContent === '3 partitions'")
    assert tab.js("document.querySelector('.trouble details').open")
    assert tab.js("document.activeElement.tagName") == "SUMMARY"
    scene.manager.problems = {}
    later(scene, tab)
    tab.wait("document.querySelector('.trouble') === null")


def test_who_types_or_has_marked_something_is_left_alone_until_done(scene: Scene, tab: Tab) -> None:
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
    assert tab.fetches() == 0, "nothing was asked for while a text was marked"
    tab.js("getSelection().removeAllRanges()")
    later(scene, tab)
    shows(tab, 30)


def test_a_page_says_that_the_manager_went_away_and_goes_on_when_it_is_back(scene: Scene, tab: Tab) -> None:
    scene.hang_up()
    later(scene, tab, 20)
    tab.wait(NO_ANSWER)
    assert "10" in tab.text("main tbody tr"), "what it said last is still shown"
    later(scene, tab)
    scene.serve()
    later(scene, tab)
    shows(tab, 30)
    assert "Computed at" in tab.text("#asked")
    assert tab.js("window.mark") == 1
    assert [each for each in tab.said if "ERR_" not in each] == []


def test_a_page_says_so_when_the_manager_hangs_and_goes_on_when_it_does_not(scene: Scene, tab: Tab) -> None:
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
    assert 2 <= tab.fetches() <= 3, "once in each period, not more"
    answers.set()
    later(scene, tab)
    later(scene, tab)
    shows(tab, 30)


def test_an_answer_that_is_no_page_changes_nothing_but_the_footer(scene: Scene, tab: Tab) -> None:
    answer = scene.site.answer
    scene.site.answer = lambda target: (503, "text/plain", "busy")
    later(scene, tab, 20)
    tab.wait(NO_ANSWER)
    assert "10" in tab.text("main tbody tr")
    scene.site.answer = answer
    later(scene, tab)
    shows(tab, 30)


def test_a_topic_that_was_deleted_meanwhile_is_said_to_be_gone(scene: Scene, tab: Tab) -> None:
    scene.manager.delete_topic("t", now_ms=NOW)
    later(scene, tab)
    tab.wait("document.querySelector('h1').textContent === 'Not found'")
    assert tab.js("document.title").startswith("Not found")


def test_a_bucket_out_of_reach_comes_and_goes_on_an_open_page(chromium: Chromium) -> None:
    world = World()
    store = SwitchableStore(world.store, is_down=False)
    with Scene(world, store) as scene, chromium.open(scene.root) as tab:
        scene.manager.create_topic("t", 1, TIERED, now_ms=NOW)
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
