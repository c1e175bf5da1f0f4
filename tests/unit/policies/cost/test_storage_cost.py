"""Worked examples of the price model, to the cent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.cost.prices import S3_STANDARD
from policies.cost.storage_cost import GIB, monthly_storage, request_cost, segment_requests, upload_requests
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import add_segments
from remote.segment_entry import PART_BYTES, PARTS_WANTED, part_step
from remote.store import parts_of
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore
from remote.upload.segment_upload import SegmentToCopy, copy_segment

MIB = 1 << 20


@pytest.mark.parametrize(
    ("stored_gb", "dollars"), [(0, 0), (1_000, 23), (10_000, 230), (100_000, 2_250), (1_000_000, 21_550)]
)
def test_storage_is_priced_band_by_band(stored_gb: int, dollars: float) -> None:
    assert monthly_storage(stored_gb * GIB) == pytest.approx(dollars, abs=0.005)


def test_two_tebibytes_cost_the_amount_of_the_manual() -> None:
    assert monthly_storage(2_132_547_747_840) == pytest.approx(45.68, abs=0.005)


@pytest.mark.parametrize(
    ("object_mib", "part_mib", "requests", "dollars"),
    [
        (1, 16, 1_048_576, 5.24),
        (16, 16, 65_536, 0.33),
        (64, 64, 16_384, 0.08),
        (64, 8, 163_840, 0.82),
        (256, 8, 139_264, 0.70),
        (256, 16, 73_728, 0.37),
        (512, 16, 69_632, 0.35),
        (1024, 8, 133_120, 0.67),
        (1024, 16, 67_584, 0.34),
    ],
)
def test_the_put_cost_of_writing_a_tebibyte_depends_on_object_and_part_size(
    object_mib: int, part_mib: int, requests: int, dollars: float
) -> None:
    puts = upload_requests(object_mib * MIB, part_mib * MIB) * (1024 * 1024 // object_mib)
    assert puts == requests
    assert request_cost(puts=puts) == pytest.approx(dollars, abs=0.005)


def test_reading_a_tebibyte_in_8_mib_ranges_costs_five_cents() -> None:
    assert request_cost(gets=131_072) == pytest.approx(0.052, abs=0.0005)


def test_a_list_costs_as_much_as_a_put() -> None:
    assert request_cost(lists=1000) == request_cost(puts=1000) == pytest.approx(0.005)


def test_a_segment_of_205_mib_and_its_commit_take_30_requests_if_parts_do_not_grow() -> None:
    assert segment_requests(205 * MIB, PART_BYTES) == 26 + 2 + 1 + 1
    assert segment_requests(205 * MIB) == 13 + 2 + 1 + 1
    assert segment_requests(205 * MIB, 16 * MIB) == 13 + 2 + 1 + 1


@pytest.mark.parametrize("size_bytes", [1, PART_BYTES, PART_BYTES + 1, 205 * MIB, 1 << 30, PART_BYTES * 10_000 + 1])
def test_the_price_of_an_upload_counts_the_requests_of_the_uploader(size_bytes: int) -> None:
    parts = len(parts_of(size_bytes))
    assert upload_requests(size_bytes, PART_BYTES) == (parts + 2 if parts > 1 else 1)


@pytest.mark.parametrize("size_bytes", [1, PART_BYTES + 1, 192 * MIB, 192 * MIB + 1, 1 << 30, 2 << 30, 5 << 40])
def test_parts_that_grow_are_at_most_24_above_192_mib(size_bytes: int) -> None:
    step = part_step(size_bytes, None)
    assert step % PART_BYTES == 0
    assert -(-size_bytes // step) <= PARTS_WANTED
    assert step == PART_BYTES or size_bytes > 192 * MIB


def test_the_price_of_a_segment_equals_the_requests_of_its_copy_and_commit() -> None:
    store = MeteredStore(MemoryStore())
    body = bytes(2 * PART_BYTES + 1)
    facts = {"base_offset": 0, "next_offset": 1, "record_count": 1, "max_timestamp_ms": 1, "min_timestamp_ms": 1}
    segment = SegmentToCopy(
        **facts,
        size_bytes=len(body),
        epochs=((0, 0),),
        offset_index=b"",
        time_index=b"",
        read=lambda start, length: body[start : start + length],
    )
    log = MetadataLog(store, f"t-{'A' * 22}/0/")
    log.become_writer("w", 0, topic="t", topic_id="A" * 22, partition=0)
    before = store.counts()
    entry = copy_segment(store, f"t-{'A' * 22}/0/", segment, epoch=log.epoch, now_ms=0)
    log.commit(add_segments([entry]), 0)
    assert (store.counts() - before).puts == segment_requests(len(body))


def test_every_price_can_be_replaced() -> None:
    mine = replace(S3_STANDARD, storage_bands=((None, 1.0),), get_per_1000=7.0)
    assert monthly_storage(3 * GIB, mine) == 3.0
    assert request_cost(gets=1000, prices=mine) == 7.0
