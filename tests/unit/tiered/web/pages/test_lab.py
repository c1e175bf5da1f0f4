"""Cost lab: equal to the simulator, usable as a plain form, of bounded size, and without store requests."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from http import HTTPStatus
from itertools import pairwise

import pytest
from manager_world import HOUR, NOW, TIERED, SwitchableStore, World, send, settle
from web_pages import Sound, data, page, site

from local.errors import InvalidRequest
from policies.cost.prices import BUILT_IN
from policies.cost.scenarios import KINDS, Scenario, Stream, cost_of
from policies.cost.simulation import Workload
from policies.cost.storage_cost import DAY_MS
from policies.rules import PartitionRules
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
from tiered.config.units import format_dollars
from tiered.cost.cost_history import Measured
from tiered.cost.cost_simulation import ALONG, STEPS, CostLab, cost_lab, read_scenario, simulate_streams, value_words
from tiered.web.charts import name_heights, nice_top
from tiered.web.pages.cost_page import lab_facts, lab_page

MIB = 1 << 20
STREAM = Stream(
    topic="t",
    partitions=4,
    workload=Workload(batch_bytes=MIB, batch_ms=35_150, segment_bytes=256 * MIB),
    rules=PartitionRules(retention_ms=14 * DAY_MS, local_retention_ms=DAY_MS),
    zstd_share=0.4,
)
MEASURED = [Measured(topic="t", stream=STREAM, basis=("made up",))]


def lab(along: str = "retention_ms", **asked: int | str | float) -> CostLab:
    return cost_lab(MEASURED, Scenario(**asked), BUILT_IN, along=along)


@pytest.fixture
def world() -> World:
    return World()


def test_lab_equals_the_simulation() -> None:
    found = lab(retention_ms=30 * DAY_MS, storage_class="STANDARD_IA")
    asked = Scenario(retention_ms=30 * DAY_MS, storage_class="STANDARD_IA")
    assert found.today == cost_of([STREAM], Scenario(), BUILT_IN)
    assert found.chosen == cost_of([STREAM], asked, BUILT_IN)
    assert found.sensitivities == simulate_streams(MEASURED).sensitivities
    assert dict(found.curve)[30 * DAY_MS] == found.chosen
    assert dict(found.curve_today)[14 * DAY_MS] == replace(found.today, variant=Scenario(retention_ms=14 * DAY_MS))
    assert dict(found.by_class["STANDARD_IA"])[0.0].total == pytest.approx(found.chosen.total)
    assert [len(found.largest_sensitivities), found.largest_sensitivities[0][1]] == [2, found.sensitivities[0][1]]
    kept = next(each for each in found.break_evens if each.what == "STANDARD_IA: days that data is stored")
    assert (kept.value, kept.verdict) == (30, "stored long enough"), (
        "the break-even lines must be those of the chosen scenario"
    )


@pytest.mark.parametrize("along", ALONG)
def test_each_curve_has_a_point_for_each_step(along: str) -> None:
    found = lab(along)
    assert [value for value, _ in found.curve] == [step for step in STEPS[along] if step != -1]
    assert found.curve == found.curve_today, "without a choice both curves must be equal"
    assert Sound.problems(lab_page(found, {"along": along}, NOW)) == []


def test_class_curve_crosses_standard_at_the_break_even_limit() -> None:
    found = lab(retention_ms=365 * DAY_MS, segment_bytes=1024 * MIB)
    (line,) = [each for each in found.break_evens if each.what == "STANDARD_IA: share of the data read in a month"]
    saved = {
        share: dict(found.by_class["STANDARD"])[share].total - cost.total
        for share, cost in found.by_class["STANDARD_IA"]
    }
    before, after = max(each for each in saved if each < line.limit), min(each for each in saved if each > line.limit)
    assert saved[before] > 0 > saved[after]


def test_lab_page_has_all_chart_figures_in_a_table_and_two_levers() -> None:
    found = lab(local_retention_ms=HOUR, read_share=0.5)
    body = lab_page(found, {"local": "1h", "reads": "50%"}, NOW)
    assert Sound.problems(body) == []
    for _, cost in [*found.curve, *found.curve_today, *(each for costs in found.by_class.values() for each in costs)]:
        assert f">{format_dollars(cost.total)}</td>" in body
    for words, value in (("now", found.today.total), ("double", found.chosen.double), ("idle", found.chosen.idle)):
        assert re.search(f'id="dollars-{words}">{re.escape(format_dollars(value))}<', body)
    sensitivities = re.findall(r'<li><a href="(/cost\?[^"]*)">[^<]*</a> saves \$ ([0-9.,]+)', body)
    assert [dollars for _, dollars in sensitivities] == [
        format_dollars(dollars) for _, dollars in found.largest_sensitivities
    ]
    assert body.count('role="img"') == 2
    assert body.count("<desc>") == 2
    for id_ in ("lab", "results", "curve", "classes", "lines", "sensitivities", "kinds", "lab-status"):
        assert body.count(f'id="{id_}"') == 1
    assert "tiered cost simulate t --local 1h --reads 50% --html costs.html" in body
    assert "prices of" in body


def test_lever_link_opens_the_lab_with_the_promised_saving() -> None:
    found = lab()
    body = lab_page(found, {}, NOW)
    href = re.findall(r'<li><a href="/cost\?([^"]*)">', body)[0]
    variant = read_scenario(dict(part.split("=") for part in href.replace("&amp;", "&").split("&")))
    again = cost_lab(MEASURED, variant, BUILT_IN)
    assert again.today.total - again.chosen.total == pytest.approx(found.sensitivities[0][1])


@pytest.mark.parametrize("name", ["retention", "local", "segment", "reads"])
def test_slider_has_ordered_steps_including_the_current_value(name: str) -> None:
    for query in ({}, {name: {"reads": "30%", "segment": "20MiB"}.get(name, "17h")}):
        body = lab_page(cost_lab(MEASURED, read_scenario(query), BUILT_IN), query, NOW)
        select = re.search(rf'<select id="{name}"[^>]*>(.*?)</select>', body)
        options = re.findall(r'<option value="([^"]*)"( selected)?>', select[1])
        values = [value for value, _ in options]
        assert values.count("") == 1
        assert len(set(values)) == len(values)
        assert [value for value, is_chosen in options if is_chosen] == [query.get(name, "")]
        read = [getattr(read_scenario({name: each}), FIELDS[name]) for each in values if each]
        ranks = [float("inf") if each == -1 else each for each in read]
        assert ranks == sorted(ranks)
        assert ranks[0] < ranks[-1]


FIELDS = {
    "retention": "retention_ms",
    "local": "local_retention_ms",
    "segment": "segment_bytes",
    "reads": "read_share",
}


@pytest.mark.parametrize("name", ["retention", "local", "segment", "reads"])
def test_formatted_value_is_parsed_back_exactly(name: str) -> None:
    values = {"segment": [20_000_001, 1 << 30, 4096], "reads": [0.0, 0.015, 0.3, 2.5]}
    for value in values.get(name, [90_061_001, 7 * DAY_MS, 3_723_000, HOUR]):
        assert getattr(read_scenario({name: value_words(FIELDS[name], value)}), FIELDS[name]) == value


@pytest.mark.parametrize(
    "query",
    [
        {"retention": "soon"},
        {"retention": "1ms"},
        {"retention": "-2"},
        {"local": "-1"},
        {"segment": "1"},
        {"segment": "9PB"},
        {"reads": "nan"},
        {"reads": "-1%"},
        {"reads": "inf"},
        {"class": "<b>"},
        {"codec": "rot13"},
    ],
)
def test_invalid_scenario_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        cost_lab(MEASURED, read_scenario(query), BUILT_IN)


def test_empty_query_is_the_current_scenario() -> None:
    assert read_scenario({"retention": " ", "topic": "t", "format": "json"}) == Scenario()


def test_lab_of_a_deployment_measures_its_topics_and_matches_its_json(world: World) -> None:
    with world.open() as manager:
        for topic in ("a", "b", "c", "t"):
            manager.topics.create(topic, 1, {**TIERED, "retention.ms": "30d"}, now_ms=NOW)
        send(manager, 500)
        send(manager, 100, topic="b")
        settle(manager)
        found = site(world, manager)
        rates = "rate=b=1GiB/d,t=2GiB/d"
        body = page(found, f"/cost?{rates}")
        assert "Smaller topics (1) are not included" in body
        facts = data(found, f"/cost?format=json&{rates}")
        assert facts["topics"] == ["b", "t"], "topics without stored records must be left out"
        one = data(found, "/cost?format=json&topic=t&rate=2GiB/d&retention=60d&along=local")
        assert one["topics"] == ["t"]
        assert one["chosen"]["stored_bytes"] > one["today"]["stored_bytes"] > 0
        assert one["chosen"]["dollars_per_month"] == pytest.approx(
            sum(one["chosen"][f"{each}_dollars"] for each in KINDS)
        )
        assert one["along"] == "local_retention_ms"
        assert one["measured"][0]["basis"]
        assert 'value="60d" selected' in page(found, "/cost?topic=t&rate=2GiB/d&retention=60d")
        for wrong in (
            "retention=soon",
            "retention=60",
            "rate=much&topic=t",
            "along=%3Cscript%3E",
            "class=%22%3E%3Cscript%3E",
        ):
            assert "<script>" not in page(
                found, f"/cost?{wrong}&{rates if 'rate' not in wrong else ''}", HTTPStatus.BAD_REQUEST
            )
        page(found, "/cost?topic=none", HTTPStatus.NOT_FOUND)
        code, kind, script = found.answer("/lab.js")
        assert (code, kind) == (HTTPStatus.OK, "text/javascript; charset=utf-8")
        assert "innerHTML" not in script


def test_lab_without_stored_records_shows_how_to_begin(world: World) -> None:
    with world.open() as manager:
        assert "Nothing to simulate" in page(site(world, manager), "/cost")
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        assert "Nothing to simulate" in page(site(world, manager), "/cost?retention=7d")
        code, _, body = site(world, manager).answer("/cost?format=json")
        assert (code, json.loads(body)["error"]) == (HTTPStatus.BAD_REQUEST, "InvalidRequest")


def test_lab_sends_no_request_to_a_dead_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    few = PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", few)
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.ms": "30d"}, now_ms=NOW)
        send(manager, 1500)
        settle(manager)
    store = SwitchableStore(world.store, is_down=False)
    with world.open(store=store) as manager:
        store.is_down = True
        counts = manager.store.counts()
        facts = data(site(world, manager), "/cost?format=json&rate=1GiB/d")
        assert facts["today"]["stored_bytes"] > 0
        assert any("older segments are not counted" in each for each in facts["measured"][0]["basis"])
        assert manager.store.counts() == counts


def test_lab_json_has_no_infinite_numbers() -> None:
    for_ever = replace(STREAM, rules=PartitionRules(retention_ms=None, local_retention_ms=DAY_MS))
    found = cost_lab([Measured(topic="t", stream=for_ever, basis=())], Scenario(), BUILT_IN)
    assert json.loads(json.dumps(lab_facts(found), allow_nan=False))["break_evens"]
    body = lab_page(found, {}, NOW)
    assert Sound.problems(body) == []
    assert "no limit (current)" in body


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.3, 0.3), (0.9, 1), (1, 1), (1.01, 1.2), (21, 24), (45, 50), (99, 100)]
)
def test_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert nice_top(value) == pytest.approx(top)


def test_line_labels_do_not_overlap() -> None:
    for heights in ([100, 100, 100, 100, 100], [10, 270, 272, 271], [5], [], [278, 20, 30, 31]):
        placed = sorted(name_heights([float(each) for each in heights]))
        assert all(after - before >= 14.99 for before, after in pairwise(placed))
        assert all(each <= 278.01 for each in placed)
