"""The history of both tiers on the overview and topic pages: three small charts and a table.

The charts show the notes of running managers (`tiered.status.tier_history`). A line is broken where no manager ran or
the bucket was not read. Before the first note a dotted line shows a lower bound: the bytes that the bucket holds today
and already held then.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tiered.config.units import counted, format_bytes, format_dollars, format_ms
from tiered.status.tier_history import DAY_MS, TierHistory, TierPoint, TierSeries, history_of, stretches
from tiered.web.charts import Run, TimeLine, binary_top, bytes_label, dollars_label, nice_top, thinned, time_chart
from tiered.web.html import Html, component, stamp

SPANS = {
    "6h": (DAY_MS // 4, "6 hours"),
    "2d": (2 * DAY_MS, "2 days"),
    "30d": (30 * DAY_MS, "30 days"),
    "3y": (1096 * DAY_MS, "3 years"),
}
_PERIODS = {
    "6h": ("five minutes", "%Y-%m-%d %H:%M"),
    "2d": ("hour", "%Y-%m-%d %H"),
    "30d": ("day", "%Y-%m-%d"),
    "3y": ("month", "%Y-%m"),
}
_WORST = frozenset({"lag_bytes", "at_risk_bytes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryData:
    """Notes, and (time, bytes) of data still in the bucket (`tiered.status.tier_history.still_there`)."""

    series: TierSeries
    still: Sequence[tuple[int, int]]


def requested_span(query: Mapping[str, str], begun_ms: int | None, now_ms: int) -> str:
    """Return the requested span, else the shortest that shows everything, up to 30 days."""
    span = query.get("span", "")
    if span in SPANS:
        return span
    age_ms = now_ms - begun_ms if begun_ms is not None else SPANS["30d"][0]
    return next((name for name, (span_ms, _) in SPANS.items() if age_ms <= span_ms and name != "3y"), "30d")


def history_section(
    history: HistoryData | None,
    topic: str | None,
    now_ms: int,
    path: str,
    query: Mapping[str, str],
    selection: Mapping[str, str],
) -> Html | None:
    """Return the part with the id ``history``; `path` and the query `selection` link to the same page."""
    if history is None:
        return None
    span = requested_span(query, history.series.of(topic).oldest_ms, now_ms)
    found = history_of(history.series, topic, now_ms, SPANS[span][0])
    still = _still(history.still, found)
    charts: list[tuple[str, Html]] = []
    if found.points or still:
        charts = [_tiers(found, still), *([_waiting(found), _dollars(found)] if found.points else [])]
    return component("section", "history.html")(
        span=span,
        spans={name: title for name, (_, title) in SPANS.items()},
        path=path,
        selection=selection,
        charts=charts,
        words=_words(found, has_still=bool(still)),
        rows=_rows(found, span),
        has_missing=any(each.missing_partitions for each in found.points),
        period=_PERIODS[span][0],
        command=f"tiered status{'' if topic is None else f' {topic}'} --history {format_ms(SPANS[span][0])} -o csv",
    )


def _tiers(found: TierHistory, still: Run) -> tuple[str, Html]:
    lines = [
        _line(found, "bucket", "t-remote", "remote_bytes"),
        _line(found, "disk", "t-local", "local_bytes"),
        TimeLine(name="", style="t-still", runs=[still] if still else []),
    ]
    rules = [(found.begun_ms, "first point")] if still and found.begun_ms is not None else []
    bucket = _range(found, "In the bucket", "remote_bytes", format_bytes)
    words = f"{bucket} {_range(found, 'On the disk', 'local_bytes', format_bytes)}"
    return _figure(found, "history-tiers", "Bytes by tier", words, lines, bytes_label, top_of=binary_top, rules=rules)


def _waiting(found: TierHistory) -> tuple[str, Html]:
    lines = [_line(found, "waits", "t-lag", "lag_bytes"), _line(found, "at risk", "t-risk", "at_risk_bytes")]
    waits = _range(found, "Waiting for upload", "lag_bytes", format_bytes)
    words = f"{waits} {_range(found, 'On this disk alone', 'at_risk_bytes', format_bytes)}"
    return _figure(
        found, "history-risk", "Waiting for upload, and at risk", words, lines, bytes_label, top_of=binary_top
    )


def _dollars(found: TierHistory) -> tuple[str, Html]:
    lines = [_line(found, "bucket", "t-dollars", "dollars_per_month")]
    words = _range(found, "Dollars a month", "dollars_per_month", format_dollars)
    return _figure(found, "history-dollars", "$ a month for what is in the bucket", words, lines, dollars_label)


def _figure(
    found: TierHistory,
    id_: str,
    title: str,
    words: str,
    lines: Sequence[TimeLine],
    show: Callable[[float], str],
    *,
    top_of: Callable[[float], float] = nice_top,
    rules: Sequence[tuple[int, str]] = (),
) -> tuple[str, Html]:
    since, until = found.since_ms, found.until_ms
    return title, time_chart(id_, title, words, lines, since, until, show, top_of=top_of, rules=rules)


def _line(found: TierHistory, name: str, style: str, field: str) -> TimeLine:
    runs = [run for stretch in stretches(found.points, found.step_ms) for run in _known(stretch, field)]
    thin = [thinned(run, found.since_ms, found.until_ms, most=field in _WORST) for run in runs]
    return TimeLine(name=name, style=style, runs=thin)


def _known(stretch: Sequence[TierPoint], field: str) -> list[list[tuple[int, float]]]:
    found: list[list[tuple[int, float]]] = [[]]
    for point in stretch:
        value = getattr(point, field)
        if value is None:
            found.append([])
        else:
            found[-1].append((point.at_ms, float(value)))
    return [run for run in found if run]


def _still(still: Sequence[tuple[int, int]], found: TierHistory) -> Run:
    until = found.until_ms if found.begun_ms is None else min(found.begun_ms, found.until_ms)
    if until <= found.since_ms:
        return []
    before = [size for at, size in still if at < found.since_ms]
    run: list[tuple[int, float]] = [(found.since_ms, float(before[-1]))] if before else []
    for at, size in still:
        if found.since_ms <= at < until:
            run += [(at, run[-1][1] if run else 0.0), (at, float(size))]  # steps: the size is constant in between
    if not run or until - run[0][0] < (found.until_ms - found.since_ms) // 100:
        return []  # too short to be visible
    return [*thinned(run, found.since_ms, found.until_ms, most=True), (until, run[-1][1])]


def _range(found: TierHistory, name: str, field: str, show: Callable[[float], str] | Callable[[int], str]) -> str:
    values = [value for point in found.points if (value := getattr(point, field)) is not None]
    if not values:
        return f"{name}: unknown."
    last, least, most = (show(each) for each in (values[-1], min(values), max(values)))
    return f"{name}: {last} last, {least} at least, {most} at most."


def _words(found: TierHistory, *, has_still: bool) -> list[str]:
    words = []
    if not found.points:
        begun = "" if found.begun_ms is None else f" The first point is of {stamp(found.begun_ms)}."
        words.append(
            f"No history of this time: a running manager (tiered run) records a point every five minutes.{begun}"
        )
    else:
        newest = stamp(found.points[-1].at_ms)
        words.append(f"{counted(len(found.points), 'point')} of running managers, the last of {newest}.")
        if len(list(stretches(found.points, found.step_ms))) > 1 or any(e.remote_bytes is None for e in found.points):
            words.append("A line is broken where no manager ran, or the bucket was not read yet.")
        if any(each.missing_partitions for each in found.points):
            words.append("Partitions that were not open are not included.")
    if has_still:
        words.append("Dotted, before the first point: the part of the data in the bucket today that already existed.")
    return words


def _rows(found: TierHistory, span: str) -> list[tuple[str, TierPoint, int | None, int | None, int]]:
    """Rows by period, newest first: last point, maximum of copy lag, bytes at risk, missing partitions."""
    periods: dict[str, list[TierPoint]] = {}
    for point in found.points:
        at = datetime.datetime.fromtimestamp(point.at_ms / 1000, datetime.UTC)
        periods.setdefault(at.strftime(_PERIODS[span][1]), []).append(point)
    return [
        (
            f"{key}:00" if len(key) == 13 else key,
            points[-1],
            max((each.lag_bytes for each in points if each.lag_bytes is not None), default=None),
            max((each.at_risk_bytes for each in points if each.at_risk_bytes is not None), default=None),
            max(each.missing_partitions for each in points),
        )
        for key, points in reversed(periods.items())
    ]
