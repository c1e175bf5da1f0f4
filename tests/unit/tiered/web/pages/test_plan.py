"""Plan page and compaction page: equal to the commands, of bounded size, and without store requests."""

from __future__ import annotations

import re
from dataclasses import replace
from http import HTTPStatus

import pytest
from manager_world import COMPACTED, DAY, NOW, TIERED, SwitchableStore, World, send, settle
from web_pages import CountingStore, Sound, data, page, site

from local.cleaner.cleaner_history import CleaningRun
from local.names import TopicPartition
from policies.decisions import CopySegment
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
from tiered.config.units import counted
from tiered.manager.manager import LogManager
from tiered.plans.planning import priced_plan
from tiered.web.pages.maintenance import Selection, compaction_data, compaction_page, plan_page


@pytest.fixture
def world() -> World:
    return World()


def test_plan_page_equals_the_plan_command(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 2, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        send(manager, 100, start=300)
        priced = priced_plan(manager, NOW)
        found = data(site(world, manager), "/plan?format=json")
        assert [each["decision"] for each in found["decisions"]] == [
            type(each.decision).__name__ for each in priced.cost.lines
        ]
        assert {type(each.decision) for each in priced.cost.lines} >= {CopySegment}
        assert found["then_dollars_per_month"] == priced.cost.then_dollars > found["now_dollars_per_month"] > 0
        assert found["dollars_once"] == priced.cost.dollars
        assert sum(each["puts"] for each in found["decisions"]) == priced.cost.sum_of("puts")
        assert found["unread"] == []
        body = page(site(world, manager), "/plan")
        for each in priced.cost.lines:
            assert each.decision.reason.replace("'", "&#39;") in body
        assert f"{counted(len(priced.cost.lines), 'decision')}, in order" in body
        assert "tiered plan --out plan.json" in body
        assert 'method="post"' not in body


def test_what_if_plan_with_other_settings_or_times_changes_nothing(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "-1"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        before = manager.store.counts()
        found = site(world, manager)

        def kinds(query: str) -> set[str]:
            return {each["decision"] for each in data(found, f"/plan?format=json&{query}")["totals"]}

        short = "local.retention.ms=1h&retention.ms="
        assert kinds("") == set()
        assert kinds("local.retention.ms=1ms") == {"DropLocal", "RollActive"}
        assert kinds(f"{short}1h") >= {"AdvanceLogStart", "ExpireRemote"}
        assert kinds(f"{short}36h") == {"DropLocal", "RollActive"}
        assert kinds(f"{short}36h&after=7d") >= {"AdvanceLogStart", "ExpireRemote"}
        assert kinds(f"{short}1h&topic=t") == kinds(f"{short}1h")
        body = page(found, f"/plan?{short}36h&after=7d&topic=t")
        assert "tiered plan t -X retention.ms=36h -X local.retention.ms=1h --at +7d" in body
        assert 'value="36h"' in body
        assert 'value="7d" selected' in body
        assert "tiered apply" not in body, "a plan for a later moment cannot be applied, so it must not offer apply"
        assert "tiered apply plan.json" in page(found, f"/plan?{short}1h")
        assert manager.store.counts() == before
        assert manager.snapshots(NOW)[0].rules.retention_ms is None, "the settings of the topic must be unchanged"


def test_plan_with_an_override_equals_the_plan_after_an_alter(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        asked = {"retention.ms": "1h", "retention.bytes": "9000"}
        foretold = priced_plan(manager, NOW, overrides=asked)
        manager.topics.alter("t", asked, now_ms=NOW)
        assert foretold.plan == priced_plan(manager, NOW).plan
        assert not foretold.plan.is_empty


def test_disabled_tier_stays_disabled_under_an_override(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        manager.topics.alter("t", off, now_ms=NOW)
        plan = priced_plan(manager, NOW, overrides={"retention.ms": "1h"}).plan
        assert not any(isinstance(each, CopySegment) for each in plan.decisions.get(TopicPartition("t", 0), ()))
        assert plan == priced_plan(manager, NOW).plan


@pytest.mark.parametrize(
    "query",
    [
        "retention.ms=soon",
        "local.retention.bytes=1XB",
        "after=later",
        "after=-7",
        "topic=none",
        "topic=../etc",
        "topic=%3Cscript%3E",
    ],
)
def test_invalid_plan_query_is_an_escaped_error(world: World, query: str) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        status = HTTPStatus.NOT_FOUND if query == "topic=none" else HTTPStatus.BAD_REQUEST
        body = page(site(world, manager), f"/plan?{query}", status)
        assert "<script>" not in body
        assert site(world, manager).answer(f"/plan?{query}&format=json")[0] == status


def test_empty_deployment_has_an_empty_plan_and_no_compaction(world: World) -> None:
    with world.open() as manager:
        found = site(world, manager)
        assert "Nothing to do" in page(found, "/plan")
        assert data(found, "/plan?format=json")["decisions"] == []
        assert "No topic is compacted" in page(found, "/compaction")
        assert data(found, "/compaction?format=json")["partitions"] == []


def many(world: World, count: int = 1000) -> tuple[LogManager, list]:
    """The snapshot of one partition with pending work, repeated for a thousand partitions."""
    manager = world.open()
    manager.topics.create("t", 1, COMPACTED, now_ms=NOW)
    send(manager, 300)
    (snapshot,) = manager.snapshots(NOW)
    return manager, [replace(snapshot, partition=TopicPartition("t", number)) for number in range(count)]


def test_plan_of_a_thousand_partitions_shows_a_hundred_decisions_a_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, snapshots = many(world)
    with manager:
        monkeypatch.setattr(manager, "snapshots", lambda now_ms, names=None: snapshots)
        priced = priced_plan(manager, NOW)
        assert len(priced.cost.lines) >= 1000
        for query, first in (({}, "t/0"), ({"page": "3"}, "t/2"), ({"page": "99999"}, "t/9")):
            body = plan_page(priced, Selection(), query, NOW)
            assert Sound.problems(body) == []
            assert body.count("<tr>") < 120
            assert len(body) < 60_000
            assert f">{first}" in body
        body = plan_page(priced, Selection(kind="CleanLog"), {}, NOW)
        assert "1,000 decisions: clean" in body
        assert re.findall('href="(/[^"]*)"[^>]*>Last<', body) == ["/plan?kind=CleanLog&amp;page=10"]


def test_pages_send_no_store_request_and_the_plan_names_unread_partitions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", few)
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.ms": "2d"}, now_ms=NOW)
        send(manager, 1500)
        settle(manager)
    later, asked = NOW + 2 * DAY + DAY // 2, []  # when half of a manifest page may have expired
    with world.open(store=CountingStore(world.store, asked)) as manager:
        asked.clear()
        found = site(world, manager, later)
        assert data(found, "/plan?format=json")["unread"] == ["t/0"]
        assert 'id="unread"' in page(found, "/plan?retention.ms=36h&local.retention.ms=1h")
        page(found, "/compaction")
        assert asked == []
        priced_plan(manager, later)
        assert asked, "the command must read the store"


def test_plan_page_names_partitions_with_a_problem(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
    with world.open(store=SwitchableStore(world.store)) as manager:
        body = page(site(world, manager), "/plan")
        assert "1 partition with problems (t/0)" in body
        assert data(site(world, manager), "/plan?format=json")["problems"].keys() == {"t/0"}


def test_compaction_page_equals_the_commands(world: World) -> None:
    with world.open(min_cleanable_dirty_ratio="0.3") as manager:
        manager.topics.create("t", 1, COMPACTED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        send(manager, 300, start=300)
        found = data(site(world, manager), "/compaction?format=json")
        (row,) = found["partitions"]
        (log,) = compaction_data(manager, NOW).logs
        assert row["dirty_ratio"] == round(log.log.dirty_ratio, 4) > 0
        assert row["state"] == "due"
        assert len(found["runs"]) == len(manager.cleaning.runs) > 0
        assert found["runs"][-1]["records_after"] == 9
        body = page(site(world, manager), "/compaction")
        assert f"{log.log.dirty_ratio:.0%}" in body
        assert "300 to 9" in body or re.search(r"\d+ to 9<", body)


def test_compaction_page_is_bounded_and_shows_failed_runs(world: World) -> None:
    manager, _ = many(world, 1)
    with manager:
        one = compaction_data(manager, NOW)
        (log,) = one.logs
        logs = [replace(log, log=replace(log.log, partition=TopicPartition("t", n))) for n in range(1000)]
        failed = CleaningRun(topic="t", partition=3, at_ms=NOW, error="<b>a record is damaged</b>")
        body = compaction_page(replace(one, logs=logs, runs=[failed] * 200), {})
        assert Sound.problems(body) == []
        assert body.count('href="/topics/t/') == 100 + 30
        assert "1 to 100 of 1,000" in body
        assert "&lt;b&gt;a record" in body
        assert len(body) < 120_000


def test_compaction_page_shows_advice_above_the_logs(world: World) -> None:
    with world.open() as manager:
        manager.topics.create("t", 1, {**COMPACTED, "min.compaction.lag.ms": "30d", "segment.ms": "40d"}, now_ms=NOW)
        send(manager, 300)
        found = compaction_data(manager, NOW + 20 * DAY)
        body = compaction_page(found, {})
        assert Sound.problems(body) == []
        for each in found.advice:
            assert (each.setting or "") in body
