"""Cost simulation: measured on a topic's history, priced, and compared with break-even values."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import simulated_run
from simulated_run import DAY, HOUR, NAME, START, run

from local.errors import InvalidRequest, NotFound
from local.format.record import Record
from policies.cost.prices import BUILT_IN
from policies.cost.scenarios import KINDS, Scenario, Stream, break_evens, changed, cost_of, sensitivities, variants
from policies.cost.simulation import Reads, Workload
from policies.cost.storage_cost import GIB, monthly_storage
from policies.rules import PartitionRules
from remote.store.memory_store import MemoryStore
from tiered.cli.main import invoke
from tiered.config.config import Config
from tiered.config.units import parse_duration
from tiered.cost.cost_history import Measured, measured_streams
from tiered.cost.cost_simulation import ALONG, cost_lab, simulate_costs, simulate_streams
from tiered.manager.manager import LogManager
from tiered.web.pages.cost_page import chart_lines, cost_page

MIB = 1 << 20
# 1 GiB an hour in segments of 256 MiB, two weeks in the bucket.
STREAM = Stream(
    topic="t",
    partitions=4,
    workload=Workload(batch_bytes=MIB, batch_ms=3515, segment_bytes=256 * MIB),
    rules=PartitionRules(retention_ms=14 * DAY, local_retention_ms=DAY),
    zstd_share=0.4,
)


@pytest.fixture(autouse=True)
def nothing_waits_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


def cost(stream=STREAM, prices=BUILT_IN, **change):
    return cost_of([stream], Scenario(**change), prices)


def test_storage_of_the_steady_state_is_rate_times_retention():
    found = cost()
    assert found.stored_bytes == pytest.approx(4 * 14 * 24 * GIB, rel=0.01)
    assert found.storage == pytest.approx(monthly_storage(4 * 14 * 24 * GIB), rel=0.02)
    assert found.disk == pytest.approx(4 * 24.2 * 0.08, rel=0.03)
    assert found.double == pytest.approx(4 * 24 * 0.08, rel=0.03)
    assert found.requests == pytest.approx(4 * 720 * 4 * (18 + 4) * 0.005 / 1000, rel=0.1)
    assert found.total == pytest.approx(sum(getattr(found, kind) for kind in KINDS))


@pytest.mark.parametrize(
    ("change", "kind", "factor"),
    [
        ({"retention_ms": 28 * DAY}, "storage", 2),
        ({"retention_ms": 7 * DAY}, "storage", 0.5),
        ({"local_retention_ms": 2 * DAY}, "disk", 2),
        ({"compression": "zstd"}, "storage", 0.4),
        ({"compression": "none"}, "storage", 1),
        ({"segment_bytes": 64 * MIB}, "requests", 4 * 17 / 24),
    ],
)
def test_each_setting_changes_its_own_kind_of_cost(change, kind, factor):
    assert getattr(cost(**change), kind) / getattr(cost(), kind) == pytest.approx(factor, rel=0.12)


def test_colder_class_adds_retrieval_costs_and_its_minimum_storage_duration():
    standard, colder = cost(read_share=0.5), cost(read_share=0.5, storage_class="STANDARD_IA")
    assert standard.retrieval == 0
    assert colder.retrieval == pytest.approx(colder.stored_bytes * 0.5 / GIB * 0.01, rel=0.02)
    # Data is retained for 15 of 30 days. The other 15 days are billed too, for all data deleted in a month.
    assert colder.early_deletion == pytest.approx(4 * 720 * 0.0125 * 15 / 30, rel=0.02)
    assert cost(storage_class="STANDARD_IA", retention_ms=40 * DAY).early_deletion == 0


def test_ia_and_standard_break_even_at_the_expected_read_share():
    kept = replace(STREAM, rules=replace(STREAM.rules, retention_ms=40 * DAY))
    shares = [0.9, 1.2]
    less, more = (
        cost(kept, read_share=share, storage_class="STANDARD_IA").total - cost(kept, read_share=share).total
        for share in shares
    )
    assert less < 0 < more


def test_small_segments_in_ia_are_billed_as_128_kib():
    small = replace(STREAM, workload=Workload(batch_bytes=4096, batch_ms=HOUR, segment_bytes=64 << 10))
    kept = replace(small, rules=PartitionRules(retention_ms=40 * DAY, local_retention_ms=DAY))
    found = cost(kept, storage_class="STANDARD_IA")
    smalls = cost(kept).storage * 0
    assert found.storage == pytest.approx(found.objects * (128 << 10) / GIB * 0.0125 + smalls, rel=0.02)


def test_small_segments_are_not_moved_or_monitored_by_intelligent_tiering():
    of, rules = BUILT_IN.of("INTELLIGENT_TIERING"), PartitionRules(retention_ms=360 * DAY, local_retention_ms=DAY)
    for segment_bytes, is_moved in ((96 << 10, False), (256 << 10, True)):
        workload = Workload(batch_bytes=4096, batch_ms=HOUR // 4, segment_bytes=segment_bytes, index_share=0.0)
        stream = replace(STREAM, workload=workload, rules=rules)
        found = cost(stream, storage_class="INTELLIGENT_TIERING")
        first_price = monthly_storage(found.stored_bytes, of)
        if is_moved:
            tiers = (30 * 0.023 + 60 * 0.0125 + 270 * 0.004) / 360 / 0.023
            monitoring = found.objects * 0.0025 / 1000
            assert found.storage == pytest.approx(first_price * tiers + monitoring, rel=0.05)
        else:
            assert found.storage == pytest.approx(first_price, rel=0.01)


def test_retention_by_size_and_by_time_cost_the_same_in_intelligent_tiering():
    """A week of records is never unread for a month, so it stays in the first tier."""
    week = 7 * 24 * GIB
    by_size = replace(STREAM, rules=PartitionRules(retention_ms=None, retention_bytes=week, local_retention_ms=DAY))
    by_time = replace(STREAM, rules=PartitionRules(retention_ms=7 * DAY, local_retention_ms=DAY))
    found = [cost(each, storage_class="INTELLIGENT_TIERING").storage for each in (by_size, by_time)]
    assert found[0] == pytest.approx(found[1], rel=0.02)


def test_costs_are_never_negative_and_double_is_part_of_the_disk():
    """Covers low and high rates, no retention and unlimited retention, and segments of one byte to 2 GiB."""
    batches, pauses, segments = (1, 1 << 20, 1 << 40), (HOUR, 30 * DAY, 400 * DAY), (1, 1 << 31)
    keeps = [(None, None, None), (0, None, 0), (1000, None, 1), (365 * DAY, 1 << 20, None), (None, 0, DAY)]
    for size, every_ms, segment_bytes, (kept, limit, local) in product(batches, pauses, segments, keeps):
        workload = Workload(batch_bytes=size, batch_ms=every_ms, segment_bytes=segment_bytes, segment_ms=HOUR)
        rules = PartitionRules(retention_ms=kept, retention_bytes=limit, local_retention_ms=local)
        found = cost(replace(STREAM, workload=workload, rules=rules), storage_class="GLACIER_IR")
        assert min(getattr(found, kind) for kind in (*KINDS, "double", "idle")) >= 0, (workload, rules)
        assert found.double <= found.disk * 1.000001, (workload, rules)


def test_levers_are_single_changes_ordered_by_saving():
    axes = {"retention_ms": [7 * DAY, 28 * DAY], "local_retention_ms": [HOUR], "read_share": [0.0]}
    found = sensitivities([STREAM], axes, BUILT_IN)
    assert [each.changes for each, _ in found] == [{"retention_ms": 7 * DAY}, {"local_retention_ms": HOUR}]
    today = cost().total
    for variant, dollars in found:
        assert dollars == pytest.approx(today - cost_of([STREAM], variant, BUILT_IN).total)
    assert found[0][1] > found[1][1] > 0


def test_variants_are_all_combinations_of_the_axes():
    found = variants({"retention_ms": [1, 2], "storage_class": ["STANDARD", "STANDARD_IA", "GLACIER_IR"]})
    assert len(set(found)) == 6


def test_local_retention_is_limited_to_the_total_retention():
    assert changed(STREAM, Scenario(retention_ms=HOUR)).rules.local_retention_ms == HOUR
    assert changed(STREAM, Scenario(retention_ms=-1, local_retention_ms=-1)).rules.local_retention_ms is None


def test_break_evens_give_a_verdict_for_each_class():
    by_what = {each.what: each for each in break_evens([replace(STREAM, read_share=0.8)], BUILT_IN)}
    assert by_what["STANDARD_IA: share of the data read in a month"].verdict == "pays"
    assert by_what["GLACIER_IR: share of the data read in a month"].verdict == "does not pay"
    assert by_what["STANDARD_IA: days that data is stored"].verdict == "deleted too early"
    assert by_what["STANDARD_IA: object size"].verdict == "large enough"


# -- measured streams ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """A directory and a bucket after three weeks of a real manager."""
    directory, store = str(tmp_path_factory.mktemp("lived")), MemoryStore("memory://b")
    patch = pytest.MonkeyPatch()
    patch.setattr(os, "fsync", lambda fd: None)
    settings = {"segment.bytes": "500000", "retention.ms": "7d", "local.retention.ms": "1d"}
    done = run(store, directory, settings, weeks=3, is_random=False)
    patch.undo()
    return directory, store, done


def opened(lived, now_ms=START + 21 * DAY):
    directory, store, _ = lived
    config = replace(Config.load(None, {}, {}, local_dir=directory), remote_url="memory://b")
    return LogManager.open(config, now_ms=now_ms, store=simulated_run._Shared(store), read_only=True)


def test_measured_stream_has_the_rates_and_ratios_of_the_topics_segments(lived):
    _, _, done = lived
    with opened(lived) as manager:
        (found,) = measured_streams(manager, START + 21 * DAY)
    workload = found.stream.workload
    assert workload.batch_bytes == pytest.approx(done.batch_bytes, rel=0.001)
    assert workload.batch_ms == pytest.approx(HOUR, rel=0.001)
    assert workload.segment_bytes == 500_000
    assert (found.stream.partitions, found.stream.storage_class) == (1, "STANDARD")
    assert found.stream.zstd_share == pytest.approx(0.5, abs=0.06)
    assert workload.stored_share == 1
    assert any("sampled on the disk" in each for each in found.basis)


def test_rate_of_a_compacted_topic_counts_all_appended_records(tmp_path):
    """A month of records is appended at once. After compaction only the last two days remain."""
    store, end, every_ms = MemoryStore("memory://b"), START + 40 * DAY, HOUR // 2
    config = replace(Config.load(None, {}, {}, local_dir=str(tmp_path)), remote_url="memory://b")
    settings = {"remote.storage.enable": "true", "cleanup.policy": "compact", "segment.bytes": "20000"}
    settings |= {"append.batch.bytes": "100", "min.cleanable.dirty.ratio": "0.01"}
    with LogManager.open(config, now_ms=end, store=store) as manager:
        manager.topics.create("t", 1, settings, now_ms=end)
        came = [Record(b"%04d" % (at % 96), b"v" * 200, end - 30 * DAY + at * every_ms) for at in range(30 * 48)]
        manager.append("t", came, 0, now_ms=end)
        for now in (end, end + HOUR, end + 2 * HOUR, end + 3 * HOUR):
            while manager.tick(now):
                pass
        rows = manager.partitions.find(NAME).manifest().segments
        left = max(row.max_timestamp_ms for row in rows) - min(row.min_timestamp_ms for row in rows)
        assert left < 4 * DAY, "compaction must remove the older records"
        (found,) = measured_streams(manager, end + 4 * HOUR)
    workload = found.stream.workload
    batch = sum(row.size_bytes for row in rows) / sum(row.record_count for row in rows)
    assert workload.batch_bytes / workload.batch_ms == pytest.approx(batch / every_ms, rel=0.02)


def test_idle_topic_is_noted_in_the_basis_of_the_measurement(lived):
    with opened(lived) as manager:
        (fresh,) = measured_streams(manager, START + 21 * DAY)
        (idle,) = measured_streams(manager, START + 40 * DAY)
    assert not any("no records arrived" in each for each in fresh.basis)
    assert any(
        re.fullmatch("no records arrived for (18|19)d.*simulated with the earlier rate", each) for each in idle.basis
    )
    assert fresh.warning is None


def test_simulation_of_the_current_settings_equals_stored_bytes_and_metered_requests(lived):
    _, _, done = lived
    with opened(lived) as manager:
        simulation = simulate_costs(manager, START + 21 * DAY)
        sent = manager.store.history().total()
    assert simulation.today.stored_bytes == pytest.approx(done.manifest.size_bytes, rel=0.05)
    assert simulation.today.counts.data_puts == pytest.approx(sent.data_puts * 30 / 21, rel=0.05)
    assert len(simulation.found) > 5
    assert all(sum(value is not None for value in each.variant.changes.values()) == 1 for each in simulation.found)


def test_topic_without_local_segments_is_sampled_in_the_bucket(lived, monkeypatch):
    from tiered.cost import cost_history

    monkeypatch.setattr(cost_history, "_samples", lambda held: [])
    with opened(lived) as manager:
        (found,) = measured_streams(manager, START + 21 * DAY)
    assert found.stream.zstd_share == pytest.approx(0.5, abs=0.06)
    assert any("sampled in the bucket" in each for each in found.basis)


def test_simulation_without_data_or_of_an_unknown_topic_is_refused(tmp_path):
    with opened((str(tmp_path), MemoryStore("memory://b"), None)) as manager:
        with pytest.raises(InvalidRequest, match="stored records yet"):
            simulate_costs(manager, START)
        with pytest.raises(NotFound):
            simulate_costs(manager, START, topics=["no"])


MADE_UP = [Measured(topic="t<1>", stream=STREAM, basis=("made up",))]


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        ({"retention": [1]}, "the setting is unknown"),
        ({"storage_class": ["COLD"]}, "the storage class is unknown"),
        ({"compression": ["lz4"]}, "the compression is unknown"),
        ({"segment_bytes": [0]}, "above 0"),
        ({"read_share": [-1.0]}, "0 or more"),
        ({"retention_ms": list(range(1, 3000))}, "too many"),
    ],
)
def test_invalid_axis_of_a_simulation_is_refused(axes, told):
    with pytest.raises(InvalidRequest, match=told):
        simulate_streams(MADE_UP, axes)


def test_simulation_converts_to_a_data_frame():
    pytest.importorskip("pandas")
    simulation = simulate_streams(MADE_UP, {"retention_ms": [7 * DAY, 28 * DAY]})
    frame = simulation.to_frame()
    assert list(frame["changes"]) == ["current", "retention.ms=7d", "retention.ms=28d"]
    assert frame["saved_dollars"].iloc[0] == 0


@pytest.mark.parametrize("width", [80, 120])
def test_chart_bars_fit_the_terminal_and_grow_with_the_cost(width):
    simulation = simulate_streams(MADE_UP, {"retention_ms": [7 * DAY, 28 * DAY]})
    lines = chart_lines(simulation, width)
    assert all(len(line) <= width for line in lines)
    week, month = (line.rpartition(" ")[2] for line in lines[1:3])
    assert len(week) < len(month)
    assert {mark for mark in "█▓─x" if mark in month} == {"█", "▓", "─"}
    colder = simulate_streams(MADE_UP, {"storage_class": ["STANDARD_IA"]})
    assert "x" in chart_lines(colder, width)[1]
    assert "x early deletion" in chart_lines(colder, width)[-1]


def test_cost_page_is_self_contained_and_escapes_names():
    import xml.etree.ElementTree as Tree

    page = cost_page(simulate_streams(MADE_UP, {"retention_ms": [7 * DAY]}))
    assert "t&lt;1&gt;" in page
    assert not any(word in page for word in ("<script", "http://", "https://", "@import", "url("))
    drawing = page[page.index("<svg") : page.index("</svg>") + 6]
    tree = Tree.fromstring(drawing)
    assert len(tree.findall("rect")) >= 2 * 3
    for figure in ("retention.ms=7d", "saves", "break-even", "made up"):
        assert figure in page.lower()


def test_changed_read_share_sets_the_reads_of_the_workload():
    assert changed(STREAM, Scenario(read_share=0.3)).workload.reads == Reads(every_ms=DAY, share=0.01)
    assert NAME.topic == "t"


GRID: dict[str, tuple[int | str, ...]] = {
    "retention_ms": (10 * DAY, 90 * DAY),
    "local_retention_ms": (DAY // 4, 2 * DAY),
    "segment_bytes": (16 * MIB, 256 * MIB),
    "compression": ("none", "zstd"),
    "storage_class": ("STANDARD_IA", "GLACIER_IR"),
}


@pytest.mark.deep("all combinations of settings")
def test_no_combination_saves_much_more_than_the_two_named_levers():
    """Prices every combination of one or two settings of the grid.
    1. No single change saves more than the first lever.
    2. No change of another setting saves more than the second lever."""
    named = set()
    for read_share, zstd_share, segment in product((0.0, 0.9), (0.5, 0.98), (MIB, 128 * MIB)):
        workload = replace(STREAM.workload, segment_bytes=segment)
        stream = replace(STREAM, workload=workload, read_share=read_share, zstd_share=zstd_share)
        today = cost_of([stream], Scenario(), BUILT_IN).total
        saved: dict[frozenset[str], float] = {}
        for values in product(*((None, *each) for each in GRID.values())):
            changes = {name: value for name, value in zip(GRID, values, strict=True) if value is not None}
            if len(changes) in (1, 2):
                cheaper = today - cost_of([stream], Scenario(**changes), BUILT_IN).total
                saved[frozenset(changes)] = max(cheaper, saved.get(frozenset(changes), cheaper))
        (first, most), (second, more), *_ = sensitivities([stream], GRID, BUILT_IN)
        singles = {name: saved[frozenset([name])] for name in GRID}
        assert most == max(singles.values()) == singles[one(first)]
        assert more == max(dollars for name, dollars in singles.items() if name != one(first)) == singles[one(second)]
        # Savings of two settings overlap (fewer stored bytes, fewer bytes to compress).
        # So a third setting may combine slightly better with the first one.
        best = max(((dollars, names) for names, dollars in saved.items() if len(names) == 2), key=lambda pair: pair[0])
        assert one(first) in best[1]
        assert saved[frozenset([one(first), one(second)])] > 0.9 * best[0]
        named |= {one(first), one(second)}
    assert len(named) >= 3


def one(variant: Scenario) -> str:
    (name,) = variant.changes
    return name


# -- figures only for enough records


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--retention", "7"], "a time with a unit such as 7d or 12h"),
        (["--local", "3600000"], "a time with a unit such as 7d or 12h"),
        (["--retention", "1..7"], "a time with a unit such as 7d or 12h"),
        (["--class", "glacier"], "objects of this storage class must be restored before a read"),
        (["--class", "deep_archive"], "objects of this storage class must be restored before a read"),
        (["--class", "tin"], "the storage class is unknown"),
    ],
)
def test_simulate_refuses_a_duration_without_a_unit_and_an_unsupported_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    _place_of_minutes(tmp_path, monkeypatch)
    assert invoke(["cost", "simulate", "orders", "--rate", "1GiB/d", *words]) == 2
    assert said in capfd.readouterr().err


def test_simulate_and_advise_give_no_figures_for_less_than_a_day_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _place_of_minutes(tmp_path, monkeypatch)
    capfd.readouterr()
    assert invoke(["cost", "simulate", "orders", "--retention", "7d"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "next: state the rate, as --rate orders=20GiB/d" in err
    assert invoke(["cost", "advise", "-o", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["advice"] == []
    assert invoke(["cost", "simulate", "orders", "--retention", "7d", "--rate", "1GiB/d", "-o", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["variants"][0]["dollars_per_month"] > 0


def _place_of_minutes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Creates a topic that is seconds old, with segments in the bucket."""
    monkeypatch.chdir(home)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    tiered = ["-X", "remote.storage.enable=true", "-X", "segment.bytes=1KiB"]
    (home / "lines").write_text("".join(f"k{at}:value {at}\n" for at in range(100)))
    for words in (["init"], ["topic", "create", "orders", *tiered], ["append", "orders", "lines", "-K", ":"]):
        assert invoke(words) == 0
    assert invoke(["run", "--once"]) == 0


@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("asked", [Scenario(), Scenario(retention_ms=11 * DAY, segment_bytes=100 << 20)])
def test_chosen_point_of_the_cost_lab_is_on_its_curve(along: str, asked: Scenario) -> None:
    lab = cost_lab([Measured(topic="t", stream=_stream(9 * DAY), basis=())], asked, BUILT_IN, along=along)
    assert lab.chosen_at is not None
    assert dict(lab.curve)[lab.chosen_at].total == pytest.approx(lab.chosen.total)


def test_different_streams_have_no_point_on_the_curve_unless_a_value_is_chosen() -> None:
    measured = [Measured(topic=str(days), stream=_stream(days * DAY), basis=()) for days in (3, 9)]
    assert cost_lab(measured, Scenario(), BUILT_IN).chosen_at is None
    asked = cost_lab(measured, Scenario(retention_ms=5 * DAY), BUILT_IN)
    assert asked.chosen_at == 5 * DAY
    assert dict(asked.curve)[5 * DAY].total == pytest.approx(asked.chosen.total)


def _stream(retention_ms: int) -> Stream:
    workload = Workload(batch_bytes=16 << 10, batch_ms=1000, segment_bytes=50 << 20, segment_ms=7 * DAY)
    rules = PartitionRules(retention_ms=retention_ms, local_retention_ms=DAY)
    return Stream(topic="t", partitions=2, workload=workload, rules=rules)


@pytest.mark.parametrize(
    ("text", "value"), [("7", None), ("7d", 604_800_000), ("0", 0), ("-1", -1), ("1h30m", 5_400_000), ("x", None)]
)
def test_duration_option_above_0_needs_a_unit(text: str, value: int | None) -> None:
    assert parse_duration(text) == value
