"""Pages of consumer groups: equal to the figures of `status`, unknown figures as a dash, untrusted names escaped."""

from __future__ import annotations

import re
from http import HTTPStatus
from urllib.parse import quote

import pytest
from group_samples import commit
from manager_world import NOW, World, send
from web_pages import CountingStore, data, page, site

from local.names import TopicPartition
from tiered.manager.manager import LogManager
from tiered.serve.groups.lag import GroupLag, Owner, PartitionLag
from tiered.serve.node import group_lags
from tiered.serve.node.directory_groups import groups_of_directory
from tiered.web.html import DataAge
from tiered.web.pages.site import Site, groups_page

T0, T1, GONE = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("gone", 0)
AGE = DataAge(data_ms=NOW, age_ms=0, stale=None)


def made(world: World, manager: LogManager) -> Site:
    manager.topics.create("t", 2, {"retention.ms": "-1"}, now_ms=NOW)
    send(manager, 40)
    return site(world, manager)


def cells(body: str, row: str) -> list[str]:
    """The text of the cells of the row whose heading is `row`."""
    (found,) = [each for each in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL) if f">{row}<" in each]
    return [re.sub(r"<[^>]+>", "", each).strip() for each in re.findall(r"<td.*?</td>", found, re.DOTALL)]


def test_groups_and_their_partitions_have_the_figures_of_status() -> None:
    world = World()
    with world.open() as manager:
        found = made(world, manager)
        commit(manager, "readers", {T0: 15, T1: 0})
        (group,) = groups_of_directory(manager, NOW)
        assert group.lag == 25
        assert cells(page(found, "/groups"), "readers") == ["Empty", "0", "2", "25", "0", "0%"]
        body = page(found, "/groups/readers")
        assert cells(body, "t/0") == ["15", "40", "25", "0", "-", "-"]
        assert cells(body, "t/1") == ["0", "0", "0", "0", "0%", "-"]
        assert 'href="/topics/t/0"' in body
        figures = {"members": 0, "partitions": 2, "lag": 25, "expired_offsets": 0, "retention_used": 0.0}
        listed = data(found, "/groups?format=json")["groups"]
        assert listed == [{"group": "readers", "state": "Empty", **figures}]
        offsets = data(found, "/groups/readers?format=json")["offsets"]
        assert [(each["partition"], each["committed"], each["end"], each["lag"]) for each in offsets] == [
            (0, 15, 40, 25),
            (1, 0, 0, 0),
        ]


def test_an_unknown_lag_is_a_dash_and_never_zero() -> None:
    world = World()
    with world.open() as manager:
        found = made(world, manager)
        commit(manager, "g", {T0: 15, GONE: 3})
        assert cells(page(found, "/groups"), "g")[3] == "-"
        body = page(found, "/groups/g")
        assert cells(body, "gone/0") == ["3", "-", "-", "-", "-", "-"]
        assert 'href="/topics/gone/0"' not in body, "a partition that does not exist has no page"
        assert data(found, "/groups?format=json")["groups"][0]["lag"] is None
        assert [each["lag"] for each in data(found, "/groups/g?format=json")["offsets"]] == [None, 25]
    unknown = GroupLag(group="h", state="Stable", members=None, partitions=None)
    assert cells(groups_page([unknown], [], {}, AGE), "h") == ["Stable", "-", "-", "-", "-", "-"]
    assert "committed offsets are unknown" in groups_page([unknown], ["h"], {}, AGE)


def test_a_partition_shows_its_member_also_without_a_committed_offset() -> None:
    member = Owner("m-1", "app", "/10.0.0.7")
    lag = PartitionLag(partition=T0, committed=3, end=5)
    group = GroupLag(group="g", state="Stable", members=1, partitions=(lag,), owners={T0: member, T1: member})
    body = groups_page([group], ["g"], {}, AGE)
    assert cells(body, "t/0") == ["3", "5", "2", "-", "-", "m-1 app /10.0.0.7"]
    assert cells(body, "t/1") == ["-", "-", "-", "-", "-", "m-1 app /10.0.0.7"]


def test_groups_that_cannot_be_read_are_an_error_and_no_empty_list(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    with world.open() as manager:
        found = made(world, manager)
        commit(manager, "g", {T0: 15})

        def fail(*_: object, **__: object) -> None:
            raise ModuleNotFoundError("No module named 'kio'", name="kio")

        monkeypatch.setattr(group_lags, "consumer_groups", fail)
        for path in ("/groups", "/groups/g"):
            assert "tiered[kafka]" in page(found, path, HTTPStatus.SERVICE_UNAVAILABLE)


def test_a_directory_without_groups_says_how_to_make_one() -> None:
    world = World()
    with world.open() as manager:
        found = made(world, manager)
        assert "There is no consumer group" in page(found, "/groups")
        assert data(found, "/groups?format=json")["groups"] == []
        page(found, "/groups/nope", HTTPStatus.NOT_FOUND)
        page(found, "/groups/a/b", HTTPStatus.NOT_FOUND)


def test_names_of_groups_are_escaped_and_every_link_leads_to_a_page() -> None:
    world = World()
    names = ["a/b", "<script>x</script>", "100% & more?#", "ümlaut ☃", "x" * 300]
    with world.open() as manager:
        found = made(world, manager)
        for each in names:
            commit(manager, each, {T0: 1})
        body = page(found, "/groups")
        assert "<script>x" not in body
        links = re.findall(r'href="(/groups/[^"]+)"', body)
        assert sorted(links) == sorted(f"/groups/{quote(each, safe='')}" for each in names)
        for each in links:
            assert "A <a href=" in page(found, each)


def test_many_groups_are_shown_a_page_at_a_time() -> None:
    groups = [GroupLag(group=f"g{at:04}", state="Empty", members=0, partitions=()) for at in range(250)]
    body = groups_page(groups, [], {"page": "3"}, AGE)
    assert body.count('<th scope="row">') == 50
    assert "201 to 250 of 250" in body


def test_pages_of_groups_send_no_request_to_the_store() -> None:
    world = World()
    with world.open() as manager:
        made(world, manager)
        commit(manager, "g", {T0: 15})
    asked: list[str] = []
    with world.open(store=CountingStore(world.store, asked), read_only=True) as manager:
        asked.clear()
        page(site(world, manager), "/groups")
        page(site(world, manager), "/groups/g")
        assert asked == []
