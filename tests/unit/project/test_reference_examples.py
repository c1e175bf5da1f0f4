"""Worked examples of the manual of object-store economics by section, with the test that proves each of them.

Examples without a test elsewhere are proven here. The manual is not part of the repository. This list names its
examples, so that none is missing or proven twice.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from policies.cost.bill import request_dollars
from policies.cost.prices import BUILT_IN, S3_STANDARD
from policies.cost.scenarios import Scenario, Stream, cost_of
from policies.cost.simulation import Counts, Reads, Workload, simulate
from policies.cost.storage_cost import DAY_MS, GIB, monthly_storage, upload_requests
from policies.rules import PartitionRules
from remote.fetch import read_ahead
from remote.fetch.range_reader import RANGE_BYTES
from remote.segment_entry import PART_BYTES

TESTS = Path(__file__).parents[2]
MIB = 1 << 20
PRICES, COST, HERE = (
    "unit/policies/cost/test_prices.py",
    "unit/policies/cost/test_storage_cost.py",
    "unit/project/test_reference_examples.py",
)

EXAMPLES: dict[str, dict[str, list[tuple[int, str]]]] = {  # file -> test -> (section, example)
    HERE: {
        "test_sequential_and_parallel_range_rates_follow_the_request_model": [
            (1, "what the request model implies"),
        ],
        "test_throughput_of_parallel_ranges": [
            (1, "8 MiB x 12 in flight is about 500 MiB/s"),
        ],
        "test_request_count_of_a_gibibyte_by_part_size": [
            (2, "1 GiB is about 200 calls at 5 MiB parts, 40 at 25 MiB"),
        ],
        "test_request_cost_is_small_against_storage_for_large_objects": [
            (4, "requests are about 0.4 % beside storage"),
        ],
        "test_simulation_equals_the_formulas_of_the_manual": [
            (6, "the terms of the model"),
        ],
        "test_three_replicas_on_disk_cost_the_baseline": [
            (6, "baseline 0.075-0.225 USD per GiB-month against 0.021"),
            (6, "Aiven claims 3-9 times"),
        ],
        "test_sizing_example_stores_at_a_tenth_of_the_disk_cost": [
            (6, "100 MiB/s for 7 days: about 10 times less"),
        ],
    },
    "unit/policies/cost/test_simulation.py": {
        "test_the_simulation_predicts_weeks_of_a_real_manager_within_one_percent": [
            (1, "LIST and DeleteObjects take 1000 keys"),
        ],
    },
    "contract/test_client_requests.py": {
        "test_s3fs_sends_the_requests_in_the_manuals_table": [
            (2, "requests per operation of s3fs"),
        ],
        "test_read_ahead_of_an_open_file_transfers_twenty_thousand_times_the_read_bytes": [
            (2, "1 KB of a 30 MB object moves 20 MB"),
        ],
    },
    PRICES: {
        "test_a_month_of_storage_costs_the_amounts_of_the_manual": [
            (3, "USD per month by GB stored"),
        ],
        "test_express_storage_costs_almost_five_times_standard": [
            (3, "Express is 4.8 times Standard"),
        ],
        "test_intelligent_tiering_bills_monitoring_and_lowers_its_price_by_age": [
            (3, "Intelligent-Tiering by days unread"),
            (5, "Intelligent-Tiering fee by object size"),
        ],
        "test_small_objects_are_billed_with_the_minimum_size_and_overhead_of_the_class": [
            (3, "128 KB minimum, 40 KB overhead"),
        ],
        "test_a_deletion_within_the_minimum_duration_costs_the_rest_of_it": [
            (3, "minimum days"),
        ],
        "test_one_more_object_per_segment_costs_eight_cents_per_tebibyte": [
            (4, "each further sidecar 0.08 USD a TiB"),
        ],
        "test_the_get_cost_of_reading_a_tebibyte_depends_on_the_range_size": [
            (4, "reading 1 TiB"),
        ],
        "test_reading_a_tebibyte_from_glacier_instant_costs_requests_and_retrieval": [
            (4, "1 TiB from Glacier Instant: 1.31 + 30.7"),
        ],
        "test_periodic_requests_of_ten_thousand_partitions_cost_the_amounts_of_the_manual": [
            (4, "cadence of 10 000 partitions"),
        ],
        "test_listing_ten_million_objects_costs_five_cents": [
            (4, "LIST audit of 10 M objects"),
        ],
        "test_colder_classes_are_cheaper_below_these_shares_of_reads": [
            (5, "break-even shares 1.05, 0.95, 0.85, 0.63, 0.57"),
        ],
        "test_a_put_costs_as_much_as_a_month_of_217_bytes": [
            (5, "a PUT is a month of 217 KB, 800 KB in IA"),
        ],
        "test_merging_fifty_objects_removes_98_percent_of_entries_and_uploads_data_twice": [
            (5, "merging 50 small objects"),
        ],
    },
    COST: {
        "test_a_list_costs_as_much_as_a_put": [
            (3, "LIST is billed like PUT"),
        ],
        "test_the_put_cost_of_writing_a_tebibyte_depends_on_object_and_part_size": [
            (4, "writing 1 TiB"),
        ],
    },
    "unit/policies/cost/test_cost_advice.py": {
        "test_no_segment_moves_that_would_be_billed_twice": [
            (5, "only settled segments, kept longer than the minimum"),
        ],
    },
}


def test_every_example_names_an_existing_test():
    sections = set()
    for name, tests in EXAMPLES.items():
        tree = ast.parse((TESTS / name).read_text())
        known = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert set(tests) <= known, set(tests) - known
        sections |= {section for examples in tests.values() for section, _ in examples}
    assert sections == {1, 2, 3, 4, 5, 6}


# -- section 1 ---------------------------------------------------------------------------------------------------------

FIRST_MS, PER_MIB_MS, TEN_GIGABIT = 30, 20, 10e9 / 8 / MIB  # MiB/s


def at_a_time(range_mib: float) -> float:
    """MiB/s of sequential range requests."""
    return range_mib / (FIRST_MS + PER_MIB_MS * range_mib) * 1000


@pytest.mark.parametrize(
    ("range_mib", "alone", "in_flight"), [(1, 20, 60), (4, 36, 33), (8, 42, 28), (16, 46, 26), (64, 49, 24)]
)
def test_sequential_and_parallel_range_rates_follow_the_request_model(range_mib, alone, in_flight):
    assert at_a_time(range_mib) == pytest.approx(alone, abs=0.5)
    assert TEN_GIGABIT / at_a_time(range_mib) == pytest.approx(in_flight, abs=0.5)


def test_throughput_of_parallel_ranges():
    assert 12 * at_a_time(8) == pytest.approx(500, rel=0.02)
    assert TEN_GIGABIT / 85 > 14
    assert (RANGE_BYTES, PART_BYTES) == (8 * MIB, 8 * MIB), "ranges must be aligned to parts"
    ours = read_ahead.THREADS * at_a_time(RANGE_BYTES / MIB)
    assert ours == pytest.approx(168, abs=1), "the MiB/s of one process; 10 Gb/s need several processes"


# -- section 2 ---------------------------------------------------------------------------------------------------------


def test_request_count_of_a_gibibyte_by_part_size():
    assert upload_requests(1 << 30, 5 * MIB) == pytest.approx(200, rel=0.04)
    assert upload_requests(1 << 30, 25 * MIB) == pytest.approx(40, rel=0.08)
    assert all(upload_requests(size * MIB, 25 * MIB) <= 10 for size in (100, 150, 200))


# -- sections 4 and 6 --------------------------------------------------------------------------------------------------

SIZING = Stream(
    topic="sizing",
    partitions=100,
    workload=Workload(batch_bytes=MIB, batch_ms=1000, segment_bytes=1 << 30, part_bytes=16 * MIB),
    rules=PartitionRules(retention_ms=7 * DAY_MS, local_retention_ms=3_600_000, delete_grace_ms=0),
)
KEPT_GIB = 100 / 1024 * 7 * 86_400
DISKS = (0.015, 0.045)  # USD per GB-month, the cheapest disks of the same vendor


def on_disk(per_gb_month: float, *, replicas: int = 3, free: float = 0.4) -> float:
    """USD per GiB-month of data on replicated disks with free space."""
    return replicas * per_gb_month / (1 - free)


def test_three_replicas_on_disk_cost_the_baseline():
    low, high = (on_disk(price) for price in DISKS)
    assert (low, high) == (pytest.approx(0.075), pytest.approx(0.225))
    tiered = S3_STANDARD.storage_bands[-1][1]
    assert tiered == 0.021
    assert 3 < low / tiered < 4
    assert 9 < high / S3_STANDARD.storage_bands[0][1] < 10


def test_sizing_example_stores_at_a_tenth_of_the_disk_cost():
    found = cost_of([SIZING], Scenario(), BUILT_IN)
    assert found.storage == pytest.approx(monthly_storage(KEPT_GIB * GIB), rel=0.01)
    assert on_disk(DISKS[1]) * KEPT_GIB / found.storage == pytest.approx(10, abs=0.5)


def test_request_cost_is_small_against_storage_for_large_objects():
    found = {
        size: cost_of([replace(SIZING, workload=replace(SIZING.workload, part_bytes=size))], Scenario(), BUILT_IN)
        for size in (16 * MIB, 1 << 30)
    }
    assert found[1 << 30].requests / found[1 << 30].storage < 0.01, (
        "one PUT a segment must cost less than 1 % of the storage (0.4 % of a bill with compute)"
    )
    written_gib = 100 / 1024 * 30 * 86_400
    parts = Counts(puts=upload_requests(1 << 30, 16 * MIB) * written_gib)
    assert found[16 * MIB].requests == pytest.approx(request_dollars(parts, {}, BUILT_IN)[0], rel=0.11)
    small = cost_of([SIZING], Scenario(segment_bytes=MIB), BUILT_IN)
    assert small.requests > 2 * small.storage, "small objects must cost more in requests than in storage"


@pytest.mark.parametrize(
    ("segment_mib", "part_mib", "retention_days", "local_days", "grace_days"),
    [(64, 8, 30, 1, 1), (64, 64, 10, 3, 0), (256, 16, 60, 2, 2), (16, 8, 20, 1, 1)],
)
def test_simulation_equals_the_formulas_of_the_manual(segment_mib, part_mib, retention_days, local_days, grace_days):
    """One partition in steady state, for a month.

    V: bytes ingested. T: retention. D: pending deletes. L: local retention. S: segment size. P: part size.
    """
    share, range_bytes = 0.5, 8 * MIB
    workload = Workload(
        batch_bytes=MIB,
        batch_ms=20_000,
        segment_bytes=segment_mib * MIB,
        part_bytes=part_mib * MIB,
        index_base_bytes=0,
        index_share=0,
        reads=Reads(every_ms=DAY_MS, share=share / 30, range_bytes=range_bytes),
    )
    rules = PartitionRules(
        retention_ms=retention_days * DAY_MS,
        local_retention_ms=local_days * DAY_MS,
        delete_grace_ms=grace_days * DAY_MS,
    )
    found = simulate(workload, rules, window_ms=30 * DAY_MS)
    V, S, P = workload.bytes_per_month, segment_mib * MIB, part_mib * MIB  # noqa: N806 - letters of the manual
    T, D, L = retention_days / 30, grace_days / 30, local_days / 30  # noqa: N806
    assert found.stored_bytes + found.waiting_bytes == pytest.approx(V * (T + D), rel=0.02)
    uploads = V / S * (S / P + 2 if S > P else 1)
    assert found.counts.data_puts == pytest.approx(uploads, rel=0.02)
    assert found.counts.puts > uploads + V / S, "the difference must be the index objects and the commits"
    stored = found.stored_bytes
    assert found.counts.data_gets - V / S == pytest.approx(share * stored / range_bytes, rel=0.05)
    assert found.counts.data_bytes_out == pytest.approx(share * stored, rel=0.05)
    assert found.local_bytes == pytest.approx(V * L, rel=0.1, abs=S)
    assert found.both_bytes == pytest.approx(V * min(L, T), rel=0.1, abs=S)
