"""All charts: SVG of lines, of lines over time, of bars for table cells, and bars in text.

Colours are never the only sign: lines differ in marker shape or dash pattern, and each has its name at its end. Charts
over time are 340 units wide to fit a phone screen. A gap shows missing data. A point with no neighbour is a dot.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tiered.config.units import format_bytes, format_dollars
from tiered.web.html import Html, component

_TEMPLATE = "charts.html"
BAR = 1000  # the width of a bar, in its own units
SERIES_MAX = 6  # number of line classes in the stylesheet
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
_TICKS, _TIME_TICKS_MAX = 4, 5
_LETTER = 7  # width of a letter, at 12 units high
_STEPS = (HOUR_MS, 3 * HOUR_MS, 6 * HOUR_MS, 12 * HOUR_MS, DAY_MS, 2 * DAY_MS, 7 * DAY_MS, 14 * DAY_MS)
Run = Sequence[tuple[int, float]]  # (ms, value), by time, without a gap


class _Size(NamedTuple):
    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int


_WIDE = _Size(540, 320, 60, 112, 24, 46)
_SMALL = _Size(340, 190, 56, 60, 22, 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart: (x, y) in the chart's values, x rising."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """Runs of points with gaps between them. `style` is a class of the stylesheet."""

    name: str
    style: str
    runs: Sequence[Run]


def nice_top(value: float) -> float:
    """Return the smallest round number from `value` on: a power of ten times a step such as 1.2 or 5."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power > value:
        power /= 10
    while power * 10 <= value:
        power *= 10
    return next(step * power for step in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10) if step * power >= value * (1 - 1e-9))


def binary_top(value: float) -> float:
    """Return a round figure of bytes above the value, in its display unit."""
    unit = 1.0
    while value >= 999.5 * unit:
        unit *= 1024
    return max(unit * nice_top(value / unit), 4.0)


def bar(parts: Sequence[tuple[str, float]], most: float) -> Html:
    """Draw parts of a sum in sequence, each (class, value), as a share of `most`, without figures."""
    drawn, reached = [], 0.0
    for name, value in parts:
        begin, reached = reached, reached + max(0.0, value)
        if value > 0 and most > 0:
            at, to = begin / most * BAR, min(1.0, reached / most) * BAR
            drawn.append((name, round(at, 1), round(max(1.0, to - at), 1)))
    return component("bar", _TEMPLATE)(drawn, BAR)


def text_bar(parts: Iterable[tuple[str, float]], most: float, width: int) -> str:
    """Draw parts of a sum, each (letter, value). Rounding errors do not add up; `most` is `width` letters long."""
    drawn, reached = "", 0.0
    for letter, value in parts:
        reached += value
        drawn += letter * (round(reached / most * width) - len(drawn))
    return drawn


def line_chart(
    id_: str,
    title: str,
    words: str,
    lines: Sequence[Line],
    x_ticks: Sequence[tuple[float, str]],
    *,
    x_name: str,
    y_name: str,
    marks: Sequence[tuple[float, float, str]] = (),
    rules: Sequence[tuple[float, str]] = (),
) -> Html:
    """Draw lines over one axis, from zero. `marks` are labelled points, `rules` labelled verticals."""
    xs = [x for line in lines for x, _ in line.points] + [x for x, _ in x_ticks]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    top = nice_top(max((y for line in lines for _, y in line.points), default=0.0))
    frame = _Frame(_WIDE, low, max(high, low + 1e-9), top)
    drawn = [line for line in lines if line.points]
    ends = name_heights([frame.y(line.points[-1][1]) for line in drawn])
    return component("line_chart", _TEMPLATE)(
        id_,
        title,
        words,
        frame,
        _ticks(frame, x_ticks),
        [(line.name, frame.places(line.points), end) for line, end in zip(drawn, ends, strict=True)],
        [(frame.x(min(max(x, low), high)), frame.y(y), label) for x, y, label in marks],
        [(frame.x(x), name) for x, name in rules if low <= x <= high],
        x_name=x_name,
        y_name=y_name,
        show=lambda value: f"{value:,.0f}" if value >= 1000 else f"{value:.4g}",
        SERIES_MAX=SERIES_MAX,
    )


def time_chart(
    id_: str,
    title: str,
    words: str,
    lines: Sequence[TimeLine],
    since_ms: int,
    until_ms: int,
    show: Callable[[float], str],
    *,
    top_of: Callable[[float], float] = nice_top,
    rules: Sequence[tuple[int, str]] = (),
) -> Html:
    """Draw lines over ``[since_ms, until_ms]``, from zero; `show` formats a value, `top_of` is the scale."""
    values = [value for line in lines for run in line.runs for _, value in run]
    frame = _Frame(_SMALL, since_ms, max(until_ms, since_ms + 1), top_of(max(values, default=0.0)))
    named = [line for line in lines if line.name and line.runs]
    ends = [frame.y(line.runs[-1][-1][1]) for line in named]
    ends = name_heights(ends, _SMALL.height - _SMALL.bottom - 10, 28)  # a name and a value
    return component("time_chart", _TEMPLATE)(
        id_,
        title,
        words,
        frame,
        _ticks(frame, time_ticks(since_ms, until_ms)),
        [(line.style, frame.places(run)) for line in lines for run in line.runs],
        [
            (line.name, line.style, frame.x(at), value, end)
            for line, end in zip(named, ends, strict=True)
            for at, value in line.runs[-1][-1:]
        ],
        [(frame.x(at), name) for at, name in rules if since_ms < at < until_ms],
        show=show,
    )


def bytes_label(value: float) -> str:
    number, _, unit = format_bytes(round(value)).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def dollars_label(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else format_dollars(value)


def time_ticks(since_ms: int, until_ms: int) -> list[tuple[int, str]]:
    """Return labelled ticks at whole hours, days or months (UTC) within a time range."""
    span = until_ms - since_ms
    step = next((step for step in _STEPS if span // step <= _TIME_TICKS_MAX), None)
    if step is None:
        return _months(since_ms, until_ms)
    times = range(-(-since_ms // step) * step, until_ms + 1, step)
    dates = [datetime.datetime.fromtimestamp(at / 1000, datetime.UTC) for at in times]
    return [(ms, f"{at:%H:%M}" if ms % DAY_MS else f"{at.day} {at:%b}") for ms, at in zip(times, dates, strict=True)]


def _months(since_ms: int, until_ms: int) -> list[tuple[int, str]]:
    begin, end = (datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC) for ms in (since_ms, until_ms))
    count = (end.year - begin.year) * 12 + end.month - begin.month
    step = next((step for step in (1, 2, 3, 6, 12, 24, 60) if count / step <= _TIME_TICKS_MAX), 120)
    found = []
    for month in range(begin.year * 12 + begin.month, end.year * 12 + end.month):
        if month % step == 0:
            at = datetime.datetime(month // 12, month % 12 + 1, 1, tzinfo=datetime.UTC)
            found.append((int(at.timestamp() * 1000), f"{at:%b %Y}"))
    return found


def thinned(run: Run, since_ms: int, until_ms: int, *, most: bool) -> Run:
    """Keep one point per unit of width: the last, or with `most` the largest. The first point stays."""
    width = max(1, until_ms - since_ms) / (_SMALL.width - _SMALL.left - _SMALL.right)
    found: list[tuple[int, float]] = []
    for at, value in run:
        if found and len(found) > 1 and int((found[-1][0] - since_ms) / width) == int((at - since_ms) / width):
            found[-1] = (at, max(value, found[-1][1]) if most else value)
        else:
            found.append((at, value))
    return found


def name_heights(
    heights: Sequence[float], lowest: float = _WIDE.height - _WIDE.bottom + 4, apart: float = 15
) -> list[float]:
    """Place names without overlap, each near the end of its line, in the given order."""
    order = sorted(range(len(heights)), key=lambda at: heights[at])
    found = list(heights)
    for before, after in pairwise(order):
        found[after] = max(found[after], found[before] + apart)
    if max(found, default=0.0) > lowest:  # below the axis: move all up together, then separate them again
        for after, before in pairwise(reversed(order)):
            found[after] = min(found[after], lowest)
            found[before] = min(found[before], found[after] - apart)
    return found


@dataclass(frozen=True, slots=True)
class _Frame:
    size: _Size
    low: float
    high: float
    top: float

    def x(self, value: float) -> float:
        size = self.size
        return round(size.left + (value - self.low) / (self.high - self.low) * (size.width - size.left - size.right), 1)

    def y(self, value: float) -> float:
        size, share = self.size, min(value, self.top) / self.top
        return round(size.height - size.bottom - share * (size.height - size.top - size.bottom), 1)

    def places(self, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(self.x(x), self.y(y)) for x, y in points]

    @property
    def right(self) -> int:
        return self.size.width - self.size.right

    @property
    def floor(self) -> int:
        return self.size.height - self.size.bottom

    def steps(self) -> list[float]:
        return [self.top * step / _TICKS for step in range(_TICKS + 1)]


def _ticks(frame: _Frame, ticks: Sequence[tuple[float, str]]) -> list[tuple[float, float | None, str]]:
    """Return the place of each tick and of its label; None for a label that would overlap the one before."""
    found: list[tuple[float, float | None, str]] = []
    last = -1e9
    for value, words in ticks:
        x, half = frame.x(value), len(words) * _LETTER / 2
        middle = round(min(max(x, half), frame.size.width - half), 1)
        is_apart = middle - half >= last + 6
        found.append((x, middle if is_apart else None, words))
        last = middle + half if is_apart else last
    return found
