"""Equal problems form one group with details, a list names its sort column, and a count has the correct plural."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from manager_world import NOW, TIERED, World, send
from web_pages import Sound, page, site

from local.names import TopicPartition
from tiered.config.units import counted
from tiered.node.problems import Problem, group_problems, same_cause
from tiered.status.status_report import StatusReport, status_report
from tiered.web.html import GROUPS_SHOWN, MEMBERS_SHOWN
from tiered.web.pages.overview import overview, problems_page
from tiered.web.pages.site import Site

MINUTE = 60_000


def problem(
    number: int, what: str, kind: str = "Unavailable", since_ms: int | None = None, topic: str = "t"
) -> Problem:
    name = TopicPartition(topic, number)
    return Problem(where=str(name), partition=name, kind=kind, what=what, next_step="tiered doctor", since_ms=since_ms)


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("the store is down: partition=t/1", "the store is down: partition=t/2", True),
        ("putting an object: key=a/b.log cause=slow down", "putting an object: key=c/d.log cause=slow down", True),
        ("putting an object: key=a/b.log cause=slow down", "putting an object: key=a/b.log cause=forbidden", False),
        ("putting an object: key=a", "cannot read an object: key=a", False),
        ("t/1 has lost its head", "t/2 has lost its head", True),
        ("putting an object: cause=http 503", "putting an object: cause=http 403", False),
        ("status=503", "status=404", False),
    ],
)
def test_problems_that_differ_only_in_partition_form_one_group(first: str, second: str, is_one: bool) -> None:
    found = group_problems([problem(1, first), problem(2, second)])
    assert [len(each.members) for each in found] == ([2] if is_one else [1, 1])


def test_waiting_uploads_form_one_group_with_the_oldest_first() -> None:
    waits = [problem(n, f"upload waits: {n} segments, {n} KiB", "upload", NOW - n * MINUTE) for n in range(1, 101)]
    damaged = problem(7, "upload waits: 7 segments, 7 KiB", "Corrupt", NOW - MINUTE, "u")
    found = group_problems([*waits, damaged])
    assert [len(each.members) for each in found] == [100, 1]
    assert found[0].what == "upload waits"
    assert [each.where for each in found[0].members[:2]] == ["t/100", "t/99"]
    assert len(same_cause([*waits, damaged], "t/3")) == 100
    assert same_cause([*waits, damaged], "u/7") == [damaged]
    assert same_cause(waits, "elsewhere") == []


@pytest.fixture
def report() -> StatusReport:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 30)
        found = status_report(manager, NOW, storage=world.disk)
    waits = [problem(n, f"the store is down: partition=t/{n}", since_ms=NOW - n * MINUTE) for n in range(200)]
    return replace(found, problems=(*waits, problem(3, "another <b>trouble</b>", "Corrupt")))


def test_equal_problems_are_one_box_with_details(report: StatusReport) -> None:
    for body in (overview(report, {}, has_remote=True), problems_page(report, {})):
        assert Sound.problems(body) == []
        assert body.count('class="trouble"') == 2
        assert "200 partitions</strong>: the store is down, the oldest for 3h 19m" in body
        assert body.count("<li>") == MEMBERS_SHOWN
        assert "another &lt;b&gt;" in body
        assert body.count("<details") == 1
    (alike,) = re.findall(r'href="(/troubles\?alike=[^"]*)"', problems_page(report, {}))
    assert alike == "/troubles?alike=t%2F199"
    singly = problems_page(report, {"alike": "t/199", "page": "2"})
    assert Sound.problems(singly) == []
    assert singly.count('class="trouble"') == 100
    assert "101 to 200 of 200" in singly
    assert "There are no problems" in problems_page(report, {"alike": "none"})


def test_overview_shows_the_first_problems_and_links_to_all(report: StatusReport) -> None:
    words = "ABCDEFGHIJ"
    many = replace(report, problems=tuple(problem(n, f"trouble of kind {words[n]}") for n in range(10)))
    body = overview(many, {}, has_remote=True)
    assert body.count('class="trouble"') == GROUPS_SHOWN
    assert ">5 more problems</a>" in body


def test_list_marks_its_sort_column(report: StatusReport) -> None:
    def sorted_by(query: dict[str, str]) -> list[str]:
        return re.findall(r'aria-sort="(\w+)"[^>]*>(?:<a[^>]*>)?([^<]+)', overview(report, query, has_remote=True))

    assert sorted_by({}) == sorted_by({"sort": "nonsense"}) == [("ascending", "Topic")]
    assert sorted_by({"sort": "local_bytes"}) == [("descending", "Local")]


def test_pages_have_an_icon_and_favicon_requests_are_answered() -> None:
    world = World()
    with world.open() as manager:
        found: Site = site(world, manager)
        assert '<link rel="icon" href="/favicon.svg" type="image/svg+xml">' in page(found, "/")
        for path in ("/favicon.svg", "/favicon.ico"):
            status, kind, body = found.answer(path)
            assert (status, kind) == (200, "image/svg+xml")
            assert "style" not in body, "the content security policy forbids inline styles"


def test_count_has_the_correct_plural() -> None:
    words = ["0 segments", "1 segment", "2 segments", "1,000 segments"]
    assert [counted(count, "segment") for count in (0, 1, 2, 1000)] == words


def test_single_segment_is_shown_in_the_singular() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        assert "1 local segment, 0 remote" in page(site(world, manager), "/topics/t/0")
