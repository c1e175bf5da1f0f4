"""Segment map: every state is drawn and readable without colour, for any number of segments, with a zoom."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from manager_world import COMPACTED, NOW, TIERED, World, send, settle
from web_pages import page, site

from local.facts import SegmentInfo
from local.names import TopicPartition
from policies.snapshot import PartitionSnapshot
from remote.segment_entry import SegmentEntry
from tiered.web.pages.segment_map import (
    COMPACTED_LEAST,
    HEIGHTS,
    KINDS,
    STRIP,
    WIDTH,
    Piece,
    Window,
    bars,
    holes,
    segment_map,
)

HERE = "/topics/t/0"


def drawn(pieces: list[Piece], begin: int, end: int) -> list[dict[str, float | str]]:
    return [
        {"class": each.kind, "x": each.x, "width": each.width, "height": each.height}
        for each in bars(pieces, begin, end)
    ]


@pytest.mark.parametrize(("count", "size"), [(20_000, 1), (3000, 7), (990, 1000), (500, 3)])
def test_map_has_a_bounded_number_of_bars_for_any_number_of_segments(count: int, size: int) -> None:
    found = drawn([Piece(at * size, (at + 1) * size, "local") for at in range(count)], 0, count * size)
    assert 400 < len(found) <= WIDTH + 1
    assert found[0]["x"] == 0
    assert float(found[-1]["x"]) + float(found[-1]["width"]) > WIDTH - 2


def test_single_segment_is_one_bar_over_the_whole_strip() -> None:
    (bar,) = drawn([Piece(7, 9, "both")], 7, 9)
    assert (bar["x"], bar["width"], bar["height"]) == (0, WIDTH - 1, HEIGHTS["both"])


def test_every_kind_has_its_own_height_in_a_strip_at_any_width() -> None:
    for strip in (("local", "both", "expired"), ("remote", "compacted", "expired", "hole")):
        heights = {kind: drawn([Piece(0, 1, kind)], 0, 5000)[0]["height"] for kind in strip}
        assert heights == {kind: HEIGHTS[kind] for kind in strip}
        sizes = sorted([*heights.values(), *([COMPACTED_LEAST] if "compacted" in strip else [])])
        assert all(after - before >= 3 for before, after in pairwise(sizes))
    assert max(HEIGHTS.values()) == STRIP


def test_segment_at_risk_is_visible_among_thousands_of_copied_ones() -> None:
    pieces = [Piece(at, at + 1, "local" if at == 5555 else "both") for at in range(10_000)]
    found = drawn(pieces, 0, 10_000)
    (risk,) = [each for each in found if each["class"] == "local"]
    assert abs(float(risk["x"]) - 555) < 3


def test_gap_between_segments_is_visible_and_compaction_lowers_the_bar() -> None:
    stored = [Piece(at, at + 1, "compacted") for at in range(10_000) if not 4000 <= at < 4012]
    assert holes(stored) == [Piece(4000, 4012, "hole")]
    found = drawn(sorted([*stored, *holes(stored)], key=lambda each: each.start), 0, 10_000)
    (hole,) = [each for each in found if each["class"] == "hole"]
    assert 399 <= float(hole["x"]) <= 401
    assert holes([]) == holes(stored[:1]) == []
    full, thin, empty = (drawn([Piece(0, 9, "compacted", left)], 0, 9)[0]["height"] for left in (1.0, 0.5, 0.0))
    assert full > thin > empty == COMPACTED_LEAST
    among = drawn([Piece(at, at + 1, "compacted", 0.01 if at == 500 else 1.0) for at in range(2000)], 0, 2000)
    assert len([each for each in among if float(each["height"]) < 11]) == 1, (
        "a thin bar must stay visible among many others"
    )


def every_state() -> PartitionSnapshot:
    """A snapshot of a real partition with expired, copied, compacted and local-only segments and a gap."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "local.retention.ms": "2d"}, now_ms=NOW)
        send(manager, 900)
        settle(manager)
        send(manager, 100, start=900)
        (snapshot,) = manager.snapshots(NOW)
    rows = list(snapshot.remote)
    assert len(rows) > 8
    rows[4:6] = [replace(each, cleaned_through=900, record_count=3) for each in rows[4:6]]
    del rows[6]
    return replace(snapshot, remote=tuple(rows), log_start_offset=rows[1].next_offset)


def test_map_draws_every_state_with_a_legend_in_words() -> None:
    snapshot = every_state()
    body = segment_map(snapshot, Window.of(snapshot, {}), HERE)
    offsets, _, rest = body.partition("map-times")
    for kind in KINDS:
        assert f'class="{kind}"' in offsets, kind
        assert f"<strong>{kind}</strong>" in body
    assert 'class="expired"' in rest
    assert "no segment: no records were left" in body


def test_map_zooms_by_links_and_form_and_the_table_follows() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 900)
        settle(manager)
        found = site(world, manager)
        whole = page(found, HERE)
        assert re.findall(r'<nav aria-label="Zoom in">(.*?)</nav>', whole)[0].count("<a ") == 1
        seen, address = set(), "/topics/t/0"
        for words in ("Closer", "Closer", "Later", "Earlier", "Earlier", "Wider", "All"):
            body = page(found, address)
            (address,) = (each.replace("&amp;", "&") for each in re.findall(rf'href="([^"]*)">{words}</a>', body))
            seen.add(address)
        assert address == HERE
        assert len(seen) >= 5
        part = page(found, "/topics/t/0?from=200&to=300")
        assert "Offsets 200 to 300: " in part
        assert 'value="200"' in part
        assert 0 < part.count("<td>remote</td>") < whole.count("<td>remote</td>")
        for wrong in (
            "from=x&to=-3",
            "from=900000&to=5",
            "from=" + "9" * 40,
            "from=%3Cb%3E",
            "from=7&to=7",
            "from=1,0",
        ):
            assert "Offsets " in page(found, f"/topics/t/0?{wrong}")


def test_zoom_links_stay_within_the_offsets_and_lead_back_to_all() -> None:
    snapshot = every_state()
    for query in ({}, {"from": "0", "to": "1"}, {"from": "999", "to": "1000"}, {"from": "3", "to": "700"}):
        window = Window.of(snapshot, query)
        assert 0 <= window.begin <= window.start < window.stop <= window.end == 1000
        for words, (start, stop) in window.steps().items():
            other = Window.of(snapshot, {"from": str(start), "to": str(stop)})
            assert 0 <= other.start < other.stop <= 1000, words
            assert other != window, words
    whole, deep = Window.of(snapshot, {}), 0
    window = whole
    while "Closer" in window.steps():
        start, stop = window.steps()["Closer"]
        window, deep = Window.of(snapshot, {"from": str(start), "to": str(stop)}), deep + 1
        assert deep < 40
    assert window.stop - window.start == 1
    while not window.is_all:
        start, stop = window.steps()["Wider"]
        window, deep = Window.of(snapshot, {"from": str(start), "to": str(stop)}), deep + 1
        assert deep < 80
    assert window == whole


def test_page_of_a_hundred_thousand_local_segments_is_bounded() -> None:
    segments = tuple(
        SegmentInfo(
            base_offset=at * 10,
            next_offset=at * 10 + 10,
            size_bytes=100,
            max_timestamp_ms=NOW + at,
            modified_ms=NOW,
            is_active=at == 99_999,
        )
        for at in range(100_000)
    )
    snapshot = replace(every_state(), segments=segments, next_offset=1_000_000, partition=TopicPartition("t", 0))
    body = segment_map(snapshot, Window.of(snapshot, {}), HERE)
    assert len(body) < 180_000
    assert "100,000 local segments" in body


def test_table_shows_the_records_left_by_compaction() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("c", 1, COMPACTED, now_ms=NOW)
        send(manager, 300, topic="c")
        settle(manager)
        rows: tuple[SegmentEntry, ...] = manager.snapshots(NOW)[0].remote
        body = page(site(world, manager), "/topics/c/0")
        assert f"readable, compacted, {rows[0].record_count} records left" in body


def test_local_segments_already_cleaned_are_marked() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("c", 1, {"cleanup.policy": "compact"}, now_ms=NOW)
        send(manager, 300, topic="c")
        settle(manager)
        send(manager, 20, topic="c", start=300)
        body = page(site(world, manager), "/topics/c/0")
        assert "compacted, only on this disk" in body
        assert "active, only on this disk" in body
