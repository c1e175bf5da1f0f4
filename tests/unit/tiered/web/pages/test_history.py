"""History charts: drawn from the notes only, readable without the chart, for a history of any age."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from manager_world import HOUR, NOW, TIERED, World, send, settle
from web_pages import Sound, page, site

from local.errors import DiskFailed
from local.storage import replace_file
from tiered.service.worker import Worker
from tiered.status.tier_history import DAY_MS, FILE, TierPoint, TierSeries, history_of
from tiered.web.charts import bytes_label, dollars_label, thinned, time_ticks
from tiered.web.html import render_bare
from tiered.web.pages.overview import SPANS, HistoryData, history_section, requested_span

FIVE = 5 * 60_000
GIB = 1 << 30


def point(at_ms: int, **figures: object) -> TierPoint:
    whole = TierPoint(
        at_ms=at_ms,
        local_bytes=2 * GIB,
        remote_bytes=40 * GIB,
        lag_bytes=GIB,
        at_risk_bytes=GIB,
        dollars_per_month=0.92,
    )
    return replace(whole, **figures)


def series(*points: TierPoint) -> TierSeries:
    found = TierSeries()
    for each in points:
        found.add(each, {"t": each})
    return found


def drawn(found: TierSeries, *, now_ms: int = NOW, topic: str | None = None, still=(), **query: str) -> str:
    """The history section, in a page with valid HTML."""
    history = HistoryData(series=found, still=list(still))
    section = history_section(history, topic, now_ms, "/", query, {"q": "or", "sort": ""})
    body = render_bare("bare.html", "Past", words=section, is_problem=False)
    assert Sound.problems(body) == []
    assert body.count('id="history"') == 1
    return section


def lines(section: str, style: str) -> list[str]:
    return re.findall(rf'<polyline class="line {style}" points="([^"]*)"', section)


def test_notes_of_a_day_are_drawn_as_lines_with_a_table() -> None:
    found = series(*(point(NOW - at * FIVE, local_bytes=(at % 7 + 1) * GIB) for at in range(300)))
    body = drawn(found, span="2d")
    for style in ("t-remote", "t-local", "t-lag", "t-risk", "t-dollars"):
        (path,) = lines(body, style)
        xs = [float(each.partition(",")[0]) for each in path.split()]
        assert xs == sorted(xs)
        assert 90 < len(xs) < 230, "a line must have at most one point for each unit of the width"
    assert "In the bucket: 40.0 GiB last, 40.0 GiB at least, 40.0 GiB at most." in body
    assert "On the disk: 1.00 GiB last, 1.00 GiB at least, 7.00 GiB at most." in body
    assert body.count('role="img"') == 3 == body.count("<figcaption>")
    assert "at the end of each hour" in body
    assert len(re.findall(r'<th scope="row"', body)) in (25, 26)
    assert "300 points of running managers" in body
    assert "line is broken" not in body
    assert "tiered status --history 2d -o csv" in body
    of_one = drawn(found, topic="t", span="2d")
    assert "tiered status t --history 2d -o csv" in of_one
    assert len(lines(of_one, "t-remote")) == 1, (
        "hours are drawn, because the notes of every five minutes are deleted earlier"
    )
    assert 'href="/?q=or&amp;span=30d"' in body


def test_gap_breaks_the_line_and_a_single_note_is_a_dot() -> None:
    times = [*range(300, 200, -1), 150, *range(100, -1, -1)]
    body = drawn(series(*(point(NOW - at * FIVE) for at in times)), span="2d")
    assert len(lines(body, "t-remote")) == 2
    assert body.count('<circle class="dot t-remote"') == 2, "the single note and the end of the line must be dots"
    assert "or the bucket was not read yet" in body


def test_unknown_figure_is_a_gap_instead_of_zero() -> None:
    unknown = {"remote_bytes": None, "lag_bytes": None, "at_risk_bytes": None, "dollars_per_month": None}
    found = series(
        *(point(NOW - at * FIVE, missing_partitions=3, **(unknown if 40 < at < 60 else {})) for at in range(100))
    )
    body = drawn(found, span="2d")
    assert len(lines(body, "t-remote")) == len(lines(body, "t-dollars")) == 2
    assert len(lines(body, "t-local")) == 1
    assert "Partitions that were not open are not included" in body
    assert body.count('<td class="number">3</td>') == 10
    nothing = drawn(series(point(NOW, **unknown)), span="2d")
    assert "unknown" in nothing
    assert "In the bucket: unknown" in nothing


def test_no_notes_draw_no_chart_and_one_note_is_a_dot() -> None:
    body = drawn(TierSeries())
    assert "<svg" not in body
    assert "a running manager" in body
    one = drawn(series(point(NOW)))
    assert one.count("<svg") == 3
    assert "1 point of running managers" in one
    late = drawn(series(point(NOW - 5 * DAY_MS)), span="6h")
    assert "<svg" not in late
    assert "The first point is of 2027-01-10" in late
    assert "<svg" not in drawn(series(point(NOW + HOUR))), (
        "a note that is in the future after a clock was set back must not be drawn"
    )


def test_time_before_the_first_note_shows_a_dotted_lower_bound() -> None:
    still = [(NOW - 20 * DAY_MS, GIB), (NOW - 10 * DAY_MS, 3 * GIB), (NOW, 50 * GIB)]
    body = drawn(series(point(NOW - DAY_MS), point(NOW)), still=still, span="30d")
    (path,) = lines(body, "t-still")
    ys = [float(each.partition(",")[2]) for each in path.split()]
    assert ys == sorted(ys, reverse=True), "the lower bound must only grow"
    assert "Dotted, before the first point: the part of the data in the bucket today that already existed." in body
    assert "first point</text>" in body
    assert lines(drawn(series(point(NOW - 40 * DAY_MS), point(NOW)), still=still, span="30d"), "t-still") == []
    alone = drawn(TierSeries(), still=still, span="30d")
    assert len(lines(alone, "t-still")) == 1
    assert alone.count("<svg") == 1


def test_chart_of_three_years_is_of_bounded_size() -> None:
    found = series(*(point(NOW - at * DAY_MS, remote_bytes=at * GIB) for at in range(1090, -1, -1)))
    body = drawn(found, span="3y")
    assert len(body) < 40_000
    assert "at the end of each month" in body
    assert len(re.findall(r'<th scope="row"', body)) == 37


@pytest.mark.parametrize(
    ("age_ms", "span"),
    [(0, "6h"), (HOUR, "6h"), (DAY_MS, "2d"), (20 * DAY_MS, "30d"), (900 * DAY_MS, "30d"), (None, "30d")],
)
def test_default_span_is_the_shortest_that_covers_all_notes(age_ms: int | None, span: str) -> None:
    begun = None if age_ms is None else NOW - age_ms
    assert requested_span({}, begun, NOW) == requested_span({"span": "<b>"}, begun, NOW) == span
    assert [requested_span({"span": each}, begun, NOW) for each in SPANS] == list(SPANS)


def test_ticks_are_few_and_at_whole_hours_days_and_months() -> None:
    for span, *_ in SPANS.values():
        for shift in range(0, 40 * DAY_MS, 7 * HOUR + 1):
            ticks = time_ticks(NOW + shift - span, NOW + shift)
            assert 1 <= len(ticks) <= 6
            assert all(NOW + shift - span <= at <= NOW + shift for at, _ in ticks)
            assert all(at % HOUR == 0 for at, _ in ticks)
            assert len({words for _, words in ticks}) >= len(ticks) - 2, "only equal clock times of two days may repeat"
    assert time_ticks(0, 1)
    assert time_ticks(-(10**13), 10**14)


def test_labels_have_short_rounded_numbers() -> None:
    assert [bytes_label(each) for each in (0, 512, 1.5 * GIB, 512 * GIB, 2048 * GIB)] == [
        "0 B", "512 B", "1.5 GiB", "512 GiB", "2 TiB"
    ]  # fmt: skip
    assert [dollars_label(each) for each in (0, 60, 0.25, 1234)] == ["0", "60", "0.25", "1,234"]


def test_dense_points_are_thinned_to_the_worst_or_the_last() -> None:
    run = [(at, float(at % 100)) for at in range(10_000)]
    for most in (True, False):
        thin = thinned(run, 0, 10_000, most=most)
        assert len(thin) < 260
        assert thin[0] == run[0]
        assert thin[-1][0] == run[-1][0]
        assert max(value for _, value in thin) == 99 or not most


def test_pages_show_the_notes_of_all_topics_and_of_one() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        worker = Worker(manager, now_ms=NOW, interval_ms=30_000)
        for at in range(3):
            worker.round(NOW + at * FIVE)
        found = site(world, manager, NOW + 2 * FIVE)
        for path in ("/", "/topics/t"):
            body = page(found, path)
            assert "3 points of running managers" in body
            assert len(lines(body, "t-remote")) == 1
        assert 'name="span" value="3y"' in page(found, "/?span=3y"), "a search must preserve the time span"
        history = history_of(TierSeries.decoded(world.disk.read(f"./data/{FILE}")), "t", NOW + 2 * FIVE, DAY_MS)
        assert [each.remote_bytes for each in history.points] == [
            sum(each.size_bytes for each in manager.snapshots(NOW)[0].remote)
        ] * 3


def test_unreadable_notes_do_not_prevent_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        replace_file(world.disk, f"./data/{FILE}", b"damaged")
        assert "No history of this time" in page(site(world, manager), "/")

        def refused(*given: object) -> TierSeries:
            raise DiskFailed("cannot read a file")

        monkeypatch.setattr("tiered.web.pages.site.read_series", refused)
        for path in ("/", "/topics/t"):
            body = page(site(world, manager), path)
            assert 'id="history"' not in body
            assert "topics/t" in body
