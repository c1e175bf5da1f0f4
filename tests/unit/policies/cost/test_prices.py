"""The price table: worked examples to the cent, and a user's prices that override the built-in ones."""

from __future__ import annotations

import json

import pytest

from local.errors import InvalidRequest, NotFound
from policies.cost.prices import BUILT_IN, S3_STANDARD
from policies.cost.storage_cost import (
    GIB,
    billed_bytes,
    break_even_reads,
    early_deletion,
    equal_object_bytes,
    intelligent_storage,
    monthly_storage,
    request_cost,
    retrieval_cost,
    segment_requests,
    upload_requests,
)
from tiered.config.config import Config
from tiered.config.price_file import configured_prices, load_prices, price_rows, with_prices

KB, MIB = 1024, 1 << 20
IA, GIR, DEEP = (BUILT_IN.of(name) for name in ("STANDARD_IA", "GLACIER_IR", "DEEP_ARCHIVE"))


@pytest.mark.parametrize(
    ("stored_gb", "standard", "ia", "instant", "deep"),
    [
        (1_000, 23, 12.5, 4, 0.99),
        (10_000, 230, 125, 40, 9.9),
        (100_000, 2_250, 1_250, 400, 99),
        (1_000_000, 21_550, 12_500, 4_000, 990),
    ],
)
def test_a_month_of_storage_costs_the_amounts_of_the_manual(stored_gb, standard, ia, instant, deep):
    found = [monthly_storage(stored_gb * GIB, prices) for prices in (S3_STANDARD, IA, GIR, DEEP)]
    assert found == pytest.approx([standard, ia, instant, deep], abs=0.005)


@pytest.mark.parametrize(
    ("range_mib", "gets", "dollars"),
    [(1, 1_048_576, 0.419), (4, 262_144, 0.105), (8, 131_072, 0.052), (16, 65_536, 0.026)],
)
def test_the_get_cost_of_reading_a_tebibyte_depends_on_the_range_size(range_mib, gets, dollars):
    assert 1024 * 1024 // range_mib == gets
    assert request_cost(gets=gets) == pytest.approx(dollars, abs=0.0005)


def test_one_more_object_per_segment_costs_eight_cents_per_tebibyte():
    assert request_cost(puts=1024 * 1024 // 64) == pytest.approx(0.08, abs=0.005)


def test_merging_fifty_objects_removes_98_percent_of_entries_and_uploads_data_twice():
    """1 MiB per minute, copied every 10 minutes, merged into 500 MiB."""
    small, merged = 10 * MIB, 500 * MIB
    assert (1 - small / merged, (50 * small + merged) / (50 * small)) == (0.98, 2)
    once = 50 * upload_requests(small, 16 * MIB)
    assert (once, upload_requests(merged, 16 * MIB)) == (50, 34)


def test_the_example_plan_of_the_manual_adds_up():
    """Two segments of 205 MiB are copied in parts of 16 MiB with one manifest, and 61.3 GiB expire."""
    assert 2 * (segment_requests(205 * MIB, 16 * MIB) - 1) + 1 == 33
    before = monthly_storage(2_132_547_747_840)
    after = before + monthly_storage(410 * MIB) - monthly_storage(61.3 * GIB)
    assert (round(before, 2), round(after, 2), round(100 * (after / before - 1), 1)) == (45.68, 44.28, -3.1)
    assert monthly_storage(8.70 * 1024 * GIB) == pytest.approx(204.91, abs=0.01)


def test_reading_a_tebibyte_from_glacier_instant_costs_requests_and_retrieval():
    assert request_cost(gets=131_072, prices=GIR) == pytest.approx(1.31, abs=0.005)
    assert retrieval_cost(1024 * GIB, GIR) == pytest.approx(30.72, abs=0.005)


MONTH_S = 30 * 86_400


@pytest.mark.parametrize(
    ("verb", "per_interval", "every_s", "dollars"),
    [
        ("puts", 3, 60, 6_480),
        ("puts", 3, 600, 648),
        ("puts", 3, 3_600, 108),
        ("puts", 1, 30, 4_320),
        ("puts", 1, 60, 2_160),
        ("gets", 1, 1, 10_368),
        ("gets", 1, 30, 345.60),
    ],
)
def test_periodic_requests_of_ten_thousand_partitions_cost_the_amounts_of_the_manual(
    verb, per_interval, every_s, dollars
):
    count = 10_000 * per_interval * MONTH_S // every_s
    assert request_cost(**{verb: count}) == pytest.approx(dollars, abs=0.005)


def test_listing_ten_million_objects_costs_five_cents():
    assert request_cost(lists=10_000_000 // 1000) == pytest.approx(0.05, abs=0.0005)


def test_colder_classes_are_cheaper_below_these_shares_of_reads():
    assert break_even_reads(IA) == pytest.approx(1.05, abs=0.005)
    assert break_even_reads(GIR) == pytest.approx(0.63, abs=0.005)
    assert break_even_reads(IA, stored_bytes=50_000 * GIB) == pytest.approx(1.05, abs=0.005)
    assert break_even_reads(IA, stored_bytes=50_001 * GIB) == pytest.approx(0.95, abs=0.005)
    assert break_even_reads(IA, stored_bytes=500_001 * GIB) == pytest.approx(0.85, abs=0.005)
    assert break_even_reads(GIR, stored_bytes=500_001 * GIB) == pytest.approx(0.57, abs=0.005)
    with_gets = break_even_reads(GIR, range_bytes=8 * MIB)
    assert with_gets is not None
    assert with_gets < 0.63
    assert break_even_reads(BUILT_IN.of("INTELLIGENT_TIERING")) is None


def test_a_put_costs_as_much_as_a_month_of_217_bytes():
    assert equal_object_bytes() / GIB * 1e6 == pytest.approx(217, abs=0.5)
    assert equal_object_bytes(IA) / GIB * 1e6 == pytest.approx(800, abs=0.5)


def test_small_objects_are_billed_with_the_minimum_size_and_overhead_of_the_class():
    assert billed_bytes(10 * KB, 1, IA) == 128 * KB
    assert billed_bytes(200 * KB, 1, IA) == 200 * KB
    assert billed_bytes(10 * 10 * KB, 10, GIR) == 10 * 128 * KB
    assert billed_bytes(GIB, 100, DEEP) == GIB + 100 * 40 * KB
    assert billed_bytes(0, 0, IA) == 0


@pytest.mark.parametrize(("age_days", "dollars"), [(0, 12.0), (30, 8.0), (45, 6.0), (90, 0), (200, 0)])
def test_a_deletion_within_the_minimum_duration_costs_the_rest_of_it(age_days, dollars):
    assert early_deletion(1000 * GIB, age_days, GIR) == pytest.approx(dollars, abs=0.005)


def test_intelligent_tiering_bills_monitoring_and_lowers_its_price_by_age():
    prices = BUILT_IN.of("INTELLIGENT_TIERING")
    assert intelligent_storage(GIB, 16, 0, prices) - 0.023 == pytest.approx(0.00004, abs=1e-6)
    assert intelligent_storage(GIB, 1024, 0, prices) - 0.023 == pytest.approx(0.00256, abs=1e-6)
    monitored, saved = prices.monitoring_per_1000 / 1000, 0.023 - prices.later_bands[-1][1]
    assert monitored / saved * GIB / KB == pytest.approx(138, abs=0.5), (
        "near 128 KB the monitoring fee equals the saving"
    )
    by_age = [intelligent_storage(1000 * GIB, 0, days, prices) for days in (0, 29, 30, 89, 90)]
    assert by_age == pytest.approx([23, 23, 12.5, 12.5, 4], abs=0.005)


def test_objects_below_128_kb_in_intelligent_tiering_pay_no_monitoring_fee():
    """S3's rule: INTELLIGENT_TIERING always bills objects below 128 KB at the frequent access price and without
    monitoring."""
    prices = BUILT_IN.of("INTELLIGENT_TIERING")
    count = 1000
    small, large = count * (128 * KB - 1), count * 128 * KB
    for days in (0, 30, 90, 1000):
        assert intelligent_storage(small, count, days, prices) == pytest.approx(monthly_storage(small, prices))
    assert intelligent_storage(large, count, 0, prices) - monthly_storage(large, prices) == pytest.approx(0.0025)
    assert intelligent_storage(large, count, 90, prices) == pytest.approx(large / GIB * 0.004 + 0.0025)
    assert intelligent_storage(0, 0, 90, prices) == 0


def test_express_storage_costs_almost_five_times_standard():
    express = BUILT_IN.of("EXPRESS_ONEZONE")
    assert monthly_storage(GIB, express) / monthly_storage(GIB) == pytest.approx(4.8, abs=0.05)


def test_a_class_without_prices_uses_the_prices_of_standard():
    assert BUILT_IN.of(None) is BUILT_IN.of("REDUCED_REDUNDANCY") is BUILT_IN.of("STANDARD")


# -- a user's prices --------------------------------------------------------------------------------------------------


def test_a_price_file_overrides_only_the_prices_it_contains(tmp_path):
    said = {"as_of": "2026-11-01", "region": "eu", "classes": {"STANDARD_IA": {"put_per_1000": 1, "min_days": 60}}}
    (tmp_path / "prices.json").write_text(json.dumps(said))
    (tmp_path / "tiered.toml").write_text('[defaults]\n"cost.prices" = "prices.json"\n')
    table = configured_prices(Config.load(str(tmp_path / "tiered.toml")))
    mine = table.of("STANDARD_IA")
    assert (table.as_of, mine.as_of, mine.region, mine.put_per_1000, mine.min_days) == ("2026-11-01",) * 2 + (
        "eu",
        1,
        60,
    )
    assert (mine.get_per_1000, mine.retrieval_per_gb) == (IA.get_per_1000, IA.retrieval_per_gb)
    assert "put_per_1000" not in mine.unverified
    assert "get_per_1000" in mine.unverified
    assert table.of("STANDARD").storage_bands == S3_STANDARD.storage_bands
    assert configured_prices(Config.load(None)) is BUILT_IN


def test_the_exported_price_table_loads_as_the_same_table(tmp_path):
    (tmp_path / "all.json").write_text(json.dumps(price_rows(BUILT_IN)))
    again = load_prices(str(tmp_path / "all.json"))
    assert again == BUILT_IN


NEW = {"storage_bands": [[None, 0.006]], "put_per_1000": 0, "get_per_1000": 0, "list_per_1000": 0}


def test_a_price_file_can_add_the_class_of_another_vendor():
    table = with_prices(BUILT_IN, {"classes": {"WASABI": NEW}})
    assert monthly_storage(1000 * GIB, table.of("WASABI")) == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"clases": {}}, "did_you_mean=classes"),
        ({"classes": {"STANDARD": {"put_per_100": 1}}}, "did_you_mean=put_per_1000"),
        ({"classes": {"STANDARD": {"put_per_1000": "cheap"}}}, "put_per_1000"),
        ({"classes": {"STANDARD": {"put_per_1000": -1}}}, "negative"),
        ({"classes": {"STANDARD": {"storage_bands": [[50, 0.1]]}}}, "storage_bands"),
        ({"classes": {"NEW": {"put_per_1000": 1}}}, "storage_bands"),
        ({"classes": []}, "array"),
        ([], "array"),
    ],
)
def test_an_invalid_price_file_is_refused_and_the_error_names_the_file(tmp_path, said, told):
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(said))
    with pytest.raises(InvalidRequest) as error:
        load_prices(str(path))
    assert told in str(error.value)
    assert error.value.facts["file"] == str(path)


def test_a_missing_price_file_raises_not_found(tmp_path):
    with pytest.raises(NotFound, match="does not exist"):
        load_prices(str(tmp_path / "none.json"))
