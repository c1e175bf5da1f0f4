"""Names of remote objects and their inverses; lookups in a manifest; partitions of a store."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from local.errors import InvalidRequest
from remote import keys
from remote.manifest.catalog import RemotePartitionName, list_partitions
from remote.manifest.manifest_lookup import MetadataIndex
from remote.store.memory_store import MemoryStore

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from remote_samples import entry, manifest

ID = "AbCdEfGhIjKlMnOpQrSt-_"
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
MANIFEST = manifest(entry("A", 0, 10), entry("B", 10, 20), entry("C", 30, 40), entry("D", 40, 50))


def index_of(manifest):
    return MetadataIndex(manifest, lambda page: ())


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(0, "A"), (9, "A"), (10, "B"), (19, "B"), (20, "C"), (29, "C"), (30, "C"), (39, "C"), (49, "D"), (50, None)],
)
def test_an_offset_is_found_in_its_entry_or_the_next_one(offset, expected):
    found = index_of(MANIFEST).find_by_offset(offset)
    assert (found and found.ulid) == expected


def test_entries_below_the_log_start_offset_are_skipped():
    started = manifest(*MANIFEST.segments, log_start_offset=15)
    assert index_of(started).find_by_offset(0).ulid == "B"
    assert index_of(started).find_by_timestamp(0).ulid == "B"
    assert index_of(manifest(*MANIFEST.segments, log_start_offset=20)).find_by_offset(12).ulid == "C"
    assert index_of(manifest()).find_by_offset(0) is None
    assert index_of(manifest()).find_by_timestamp(0) is None


@pytest.mark.parametrize(("timestamp", "expected"), [(0, "A"), (100, "A"), (101, "C"), (300, "C"), (301, None)])
def test_a_time_is_found_in_the_first_entry_that_reaches_it_in_any_order(timestamp, expected):
    times = {"A": 100, "B": None, "C": 300, "D": 200}
    entries = [
        entry(each.ulid, each.base_offset, each.next_offset, max_timestamp_ms=times[each.ulid])
        for each in MANIFEST.segments
    ]
    found = index_of(manifest(*entries)).find_by_timestamp(timestamp)
    assert (found and found.ulid) == expected


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, None, "ABCD"), (10, None, "BCD"), (20, 30, ""), (20, 31, "C"), (9, 11, "AB"), (0, 0, ""), (60, None, "")],
)
def test_the_entries_of_a_range_are_the_ones_that_touch_it(start, end, expected):
    assert "".join(each.ulid for each in index_of(MANIFEST).entries(start, end)) == expected


def test_a_partition_prefix_has_its_topic_and_its_id():
    assert keys.partition_prefix("or-ders", ID, 3) == f"or-ders-{ID}/3/"
    for topic, topic_id, partition in (("a/b", ID, 0), ("..", ID, 0), ("a", "short", 0), ("a", ID, -1)):
        with pytest.raises(InvalidRequest):
            keys.partition_prefix(topic, topic_id, partition)


def test_a_topic_directory_is_split_by_the_width_of_its_id():
    assert keys.parse_topic_directory(f"a-b-{ID}") == ("a-b", ID)
    assert keys.parse_topic_directory(f"a-{ID}") == ("a", ID)
    for other in (ID, f"-{ID}", f"a{ID}", "orders", "", f"..-{ID}", f"a-{ID}x"):
        parsed = keys.parse_topic_directory(other)
        assert parsed is None or keys.topic_directory(*parsed) == other
    assert keys.parse_topic_directory("orders") is None


@pytest.mark.parametrize(
    ("text", "expected"), [("0", 0), ("12", 12), ("03", None), ("-1", None), ("x", None), ("²", None)]
)
def test_a_partition_in_a_name_is_a_plain_number(text, expected):
    assert keys.parse_partition(text) == expected


def test_names_of_data_and_indexes_are_fixed_and_have_inverses():
    name = keys.data_key(5, 19, 3, ULID)
    assert name == f"data/00000000000000000005-00000000000000000019-0000000003-{ULID}.log"
    assert keys.indexes_key(5, 19, 3, ULID) == name.removesuffix(".log") + ".indexes"
    found = keys.parse_data_key(name)
    assert found == keys.DataKey(base_offset=5, last_offset=19, epoch=3, ulid=ULID, suffix=".log")
    for other in (name + "x", "x" + name, name.replace("data/", "meta/"), name.lower().replace(".log", ".txt")):
        assert keys.parse_data_key(other) is None


def test_names_of_manifests_are_fixed_and_have_an_inverse():
    assert keys.manifest_key(42) == "meta/head/00000000000000000042"
    assert keys.parse_manifest_key(keys.manifest_key(42)) == 42
    assert keys.parse_manifest_key("meta/head/42") is None


def test_ulids_have_26_characters_sort_by_time_and_differ():
    made = [keys.new_ulid(now) for now in (0, 1, 1_700_000_000_000, 1_700_000_000_001)]
    assert made == sorted(made)
    assert all(len(each) == 26 for each in made)
    assert keys.new_ulid(7) != keys.new_ulid(7)
    assert keys.parse_data_key(keys.data_key(0, 1, 1, made[2])) is not None


def test_only_directories_with_the_form_of_a_partition_name_are_listed():
    store = MemoryStore()
    for name in (f"b-{ID}/10/meta/head/1", f"b-{ID}/2/data/x", f"a-{ID}/0/x", "other/0/x", f"b-{ID}/notes/x", "file"):
        store.put(name, b"x")
    assert list_partitions(store) == [
        RemotePartitionName("a", ID, 0),
        RemotePartitionName("b", ID, 2),
        RemotePartitionName("b", ID, 10),
    ]
    assert list_partitions(store)[0].prefix == f"a-{ID}/0/"
