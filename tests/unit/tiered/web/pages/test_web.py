"""Pages of a running manager: their content, valid and accessible HTML, and escaping of all text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from http import HTTPStatus
from http.client import HTTPConnection

import pytest
from manager_world import COMPACTED, HOUR, NOW, TIERED, SwitchableStore, World, send, settle
from web_pages import CountingStore, Sound, data, page, site

from local.errors import Corrupt
from local.names import TopicPartition
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
from tiered.serve.security.addresses import LOOPBACK
from tiered.service.worker import Worker
from tiered.status.status_report import StatusReport, status_report
from tiered.web.html import asset, render_bare
from tiered.web.http.server import MetricsServer
from tiered.web.pages.overview import found_topics, overview
from tiered.web.pages.segment_map import local_pieces, remote_pieces

MINUTE = 60_000
EVIL = "<script>alert('x')</script> & \"quoted\""


@pytest.fixture
def world() -> World:
    return World()


def test_empty_deployment_shows_the_first_command(world: World) -> None:
    with world.open() as manager:
        body = page(site(world, manager), "/")
        assert "tiered topic create orders -p 2 -X remote.storage.enable=true" in body
        assert data(site(world, manager), "/?format=json", "status")["topics"] == []
        assert "There are no problems" in page(site(world, manager), "/troubles")


def test_overview_and_topic_page_equal_the_status(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 2, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        send(manager, 20, start=300)
        found = site(world, manager)
        row = data(found, "/?format=json", "status")["topics"][0]
        assert row["topic"] == "t"
        assert row["remote_bytes"] > 0 < row["at_risk_bytes"]
        parts = data(found, "/topics/t?format=json", "status-partitions")["partitions"]
        assert [each["next_offset"] for each in parts] == [320, 0]
        assert sum(each["remote_bytes"] for each in parts) == row["remote_bytes"]
        assert 'href="/topics/t"' in page(found, "/")
        body = page(found, "/topics/t")
        assert 'href="/topics/t/1"' in body
        assert "local.retention.ms" in body


def test_partition_page_shows_segments_of_both_tiers_as_map_and_table(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 2, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        send(manager, 100, start=300)
        found = site(world, manager)
        body = page(found, "/topics/t/0")
        snapshot = manager.snapshots(NOW)[0]
        assert f"{len(snapshot.segments)} local segments, {snapshot.committed_count} remote" in body
        assert "Offsets 0 to 400" in body
        assert body.count("<td>remote</td>") == len(snapshot.remote) > 1
        assert body.count("<td>local</td>") == len(snapshot.segments) > 1
        assert "active, only on this disk" in body
        (row,) = data(found, "/topics/t/0?format=json", "status-partitions")["partitions"]
        assert row["next_offset"] == 400
        assert "Offsets 0 to 1" in page(found, "/topics/t/1"), "an empty partition must have a map too"
        for wrong in ("2", "-1", "00", "x"):
            page(found, f"/topics/t/{wrong}", HTTPStatus.NOT_FOUND)


def test_map_shows_tier_and_state_of_each_segment(world: World) -> None:
    with world.open(remote_log_delete_grace_ms="1d") as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "2d"}, now_ms=NOW)
        manager.topics.create("c", 1, COMPACTED, now_ms=NOW)
        send(manager, 300)
        send(manager, 300, topic="c")
        settle(manager)
        send(manager, 100, start=300)
        of = {each.partition.topic: each for each in manager.snapshots(NOW)}
        assert [each.kind for each in local_pieces(of["t"])] == ["both"] * len(of["t"].remote) + ["local"] * (
            len(of["t"].segments) - len(of["t"].remote)
        )
        assert {each.kind for each in remote_pieces(of["t"])} == {"remote"}
        assert {each.kind for each in remote_pieces(of["c"])} == {"compacted"}
        raised = replace(of["t"], log_start_offset=of["t"].remote[0].next_offset)
        assert [each.kind for each in remote_pieces(raised)][:2] == ["expired", "remote"]
        body = page(site(world, manager), "/topics/t/0")
        assert 'id="map-offsets"' in body
        assert 'id="map-times"' in body
        assert "Records from 2027-01-14 08:00:00 UTC to" in body
        strips = body.partition('id="map-times"')[2].partition("key-list")[0]
        assert strips.count('class="both"') == len(of["t"].remote), "each segment must have its time span"
        assert "readable, compacted" in page(site(world, manager), "/topics/c/0")
        manager.topics.create("e", 1, {}, now_ms=NOW)
        assert 'id="map-times"' not in page(site(world, manager), "/topics/e/0"), (
            "a partition without timestamps must have no time strip"
        )


def test_thousand_topics_are_paged_searched_and_sorted(world: World) -> None:
    report = large(world)

    def asked(**query: str) -> str:
        body = overview(report, query, has_remote=True)
        assert Sound.problems(body) == []
        return body

    body = asked()
    assert body.count('<th scope="row">') == 100
    assert "1 to 100 of 1,000" in body
    assert "topic-0099" in body
    assert "topic-0100" not in body
    assert len(body) < 100_000
    assert "topic-0999" in asked(page="10")
    assert "topic-0999" in asked(page="99999"), "a page number beyond the end must show the last page"
    for wrong in ("0", "-1", "x", "9" * 40, "\u00b2"):
        assert "topic-0000" in asked(page=wrong)
    assert asked(q="C-077").count('<th scope="row">') == 10
    assert "No topic has" in asked(q="nothing like it")
    assert re.findall('href="/topics/(topic-[0-9]+)"', asked(sort="local_bytes"))[0] == "topic-0777"
    assert len(found_topics(report, {})["topics"]) == 1000
    assert [row["topic"] for row in found_topics(report, {"q": "-0777"})["topics"]] == ["topic-0777"]
    last = re.findall('href="(/[^"]*)"[^>]*>Last<', asked(q="topic", sort="offsets"))
    assert last == ["/?q=topic&amp;sort=offsets&amp;page=10"], "a page link must preserve search and sort order"


def large(world: World) -> StatusReport:
    """A status report of a thousand topics, each with the figures of one real topic."""
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 30)
        report = status_report(manager, NOW, storage=world.disk)
    (figures,) = report.partitions.values()
    topics = [replace(report.topics[0], name=f"topic-{number:04}") for number in range(1000)]
    found = {
        name: replace(figures, partition=name, local_bytes=figures.local_bytes + (name.topic == "topic-0777"))
        for topic in topics
        for name in topic.partitions()
    }
    return replace(report, topics=tuple(topics), partitions=found)


def test_failing_store_is_shown_with_known_figures_and_start_of_the_problem(world: World) -> None:
    store = SwitchableStore(world.store, is_down=False)
    with world.open(store=store) as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        while worker.round(NOW):
            pass
        send(manager, 100, start=200)
        store.is_down = True
        for at in range(1, 12):
            worker.round(NOW + at * MINUTE)
        found = site(world, manager, NOW + 11 * MINUTE)
        before = sum(each.size_bytes for each in manager.snapshots(NOW)[0].remote)
        for path in ("/", "/topics/t", "/topics/t/0", "/troubles"):
            body = page(found, path)
            assert "the store is down" in body
            assert "2027-01-15 08:01:00 UTC, for 10m, 11 rounds" in body
        (row,) = data(found, "/?format=json", "status")["topics"]
        assert row["remote_bytes"] == before > 0, "the last known figure must stay"
        assert row["at_risk_bytes"] > 0


def test_no_page_sends_a_store_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        commit_protocol,
        "PAGE_RULE",
        PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_entries_min=1),
    )
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.ms": "2d"}, now_ms=NOW)
        send(manager, 1500)
        settle(manager)
    asked: list[str] = []
    with world.open(store=CountingStore(world.store, asked)) as manager:
        asked.clear()
        for path in ("/", "/topics/t", "/topics/t/0", "/troubles"):
            page(site(world, manager, NOW + 3 * 24 * HOUR), path)
        assert asked == []
        manager.snapshots(NOW + 3 * 24 * HOUR)
        assert asked, "a snapshot with store access must read the oldest manifest page, so that the test can fail"


def test_bucket_that_was_never_read_has_no_figures(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        settle(manager)
    with world.open(store=SwitchableStore(world.store)) as manager:
        found = site(world, manager)
        assert "unknown" in page(found, "/")
        assert "unknown" in page(found, "/topics/t")


def test_message_text_is_escaped_in_every_page(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        manager.partitions.problems = {TopicPartition("t", 0): Corrupt(EVIL)}
        found = site(world, manager)
        for path in ("/", "/topics/t", "/troubles", "/?q=%3Cscript%3E%22", "/?sort=%22%3E%3Cscript%3E&q=t"):
            body = page(found, path)
            assert "<script>" not in body
        assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;quoted&#34;" in page(found, "/")
        assert "<script>" not in page(found, "/topics/%3Cscript%3E", HTTPStatus.NOT_FOUND)
    assert "<script>" not in render_bare("bare.html", EVIL, words=EVIL, is_problem=False)


def test_unknown_paths_are_not_found(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        found = site(world, manager)
        for path in ("/topics/none", "/topics/t/0/1/2", "/nothing", "/topics/..%2F..%2Fetc", "/%00"):
            page(found, path, HTTPStatus.NOT_FOUND)
            code, kind, body = found.answer(f"{path}?format=json")
            assert (code, kind) == (HTTPStatus.NOT_FOUND, "application/json")
            assert json.loads(body)["error"] in ("NotFound", "InvalidRequest")


THEMES = [
    dict(re.findall(r"--(\w+): (#\w{6});", block)) for block in re.findall(r":root {(.*?)}", asset("page.css"), re.S)
]


@pytest.mark.parametrize("theme", THEMES, ids=["light", "dark"])
def test_text_has_sufficient_contrast_in_every_theme(theme: dict[str, str]) -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(theme[one]), luminance(theme[other])))
        return (high + 0.05) / (low + 0.05)

    for ground in ("ground", "panel"):
        for text in ("text", "faint", "link", "bad", "local", "remote"):
            assert contrast(text, ground) >= 4.5, (text, ground)
        assert contrast("line", ground) >= 2.5
    assert set(re.findall(r"var\(--(\w+)\)", asset("page.css"))) <= set(theme)


def test_metrics_endpoint_serves_pages_on_loopback_with_a_strict_policy(world: World) -> None:
    with world.open() as manager:
        server = MetricsServer(LOOPBACK, 0, {}, site(world, manager).answer)
        server.start()
        try:

            def ask(path: str, **headers: str) -> tuple[int, str]:
                connection = HTTPConnection(*server.address, timeout=30)
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'")
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                found = answer.status, answer.read().decode()
                connection.close()
                return found

            assert "First steps" in ask("/")[1]
            assert ask("/page.css")[0] == ask("/page.js")[0] == HTTPStatus.OK
            for host in ("localhost:80", "[::1]:9464", "127.0.0.1"):
                assert ask("/", Host=host)[0] == HTTPStatus.OK
            for host in ("evil.example", "evil.example:9464", "127.0.0.1.evil.example"):
                assert ask("/", Host=host)[0] == HTTPStatus.MISDIRECTED_REQUEST, (
                    "a host name of another site (DNS rebinding) must be refused"
                )
            for host in ("", "10.0.0.9"):
                assert ask("/", Host=host)[0] == HTTPStatus.NOT_FOUND
        finally:
            server.close()
        server = MetricsServer("0.0.0.0", 0, {}, site(world, manager).answer)
        server.start()
        try:
            connection = HTTPConnection("127.0.0.1", server.address[1], timeout=30)
            connection.request("GET", "/")
            assert connection.getresponse().status == HTTPStatus.NOT_FOUND
            connection.close()
        finally:
            server.close()
