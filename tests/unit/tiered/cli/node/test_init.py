"""The hints that ``tiered demo`` prints at its end."""

from __future__ import annotations

import pytest

from remote.store.middleware.store_wrapper import RequestCounts
from tiered.cli.node.init import _look_around
from tiered.demo.main_job import DemoResult


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ((6_776, 330_000), "330,000 of 336,776 flights. The other 6,776 are on the disk"),
        ((0, 336_776), "all 336,776 flights"),
    ],
)
def test_demo_hints_offer_spark_and_count_the_records_on_the_disk(records: tuple[int, int], said: str) -> None:
    result = DemoResult(
        directory="/tmp/demo",
        steps=(),
        status=(),
        requests=RequestCounts(),
        records_by_tier={"flights": records, "aircraft": (0, 1)},
        bucket_bytes=1,
        with_spark=True,
    )
    told = _look_around(result)
    assert said in told
    assert told.index(said) < told.index("spark_session")
