"""All charts: SVG of lines, of lines over time, of bars for table cells, and bars in text.

Every drawing has a title and a description in words. Colours are classes of the stylesheet and never the only sign:
lines differ in marker shape or dash pattern, and each has its name at its end. Charts over time are 340 units wide to
fit a phone screen. A gap shows missing data. A point with no neighbour is a dot.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tiered.config.units import format_bytes, format_dollars
from tiered.web.html import Child, Html, tag

BAR = 1000  # the width of a bar, in its own units
SERIES_MAX = 6  # number of line classes in the stylesheet
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
_TICKS = 4
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
class Mark:
    """A point with a label."""

    words: str
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """Runs of points with gaps between them. `style` is a class of the stylesheet."""

    name: str
    style: str
    runs: Sequence[Run]


def nice_top(value: float) -> float:
    """Return the smallest value not below, from a few whole steps of a power of ten."""
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
            drawn.append(tag("rect", class_=name, x=round(at, 1), y=0, width=round(max(1.0, to - at), 1), height=10))
    back = tag("rect", class_="back", x=0, y=0, width=BAR, height=10)
    return tag(
        "svg", back, drawn, class_="bar", viewBox=f"0 0 {BAR} 10", preserveAspectRatio="none", aria_hidden="true"
    )


def text_bar(parts: Iterable[tuple[str, float]], most: float, width: int) -> str:
    """Draw parts of a sum, each (letter, value), without added rounding; `most` is `width` letters long."""
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
    marks: Sequence[Mark] = (),
    rules: Sequence[tuple[float, str]] = (),
) -> Html:
    """Draw lines over one axis, from zero. `words` describe the chart; `rules` are labelled verticals."""
    xs = [x for line in lines for x, _ in line.points] + [x for x, _ in x_ticks]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    top = nice_top(max((y for line in lines for _, y in line.points), default=0.0))
    frame = _Frame(_WIDE, low, max(high, low + 1e-9), top)
    ends = name_heights([frame.y(line.points[-1][1]) for line in lines if line.points])
    inner: list[Child] = [
        frame.grid(_figure),
        _ticks(frame, x_ticks),
        _names_of_axes(x_name, y_name),
        [_rule(frame, x, name, _WIDE.top + 10) for x, name in rules if low <= x <= high],
        [_line(frame, at % SERIES_MAX, each, ends[at]) for at, each in enumerate(lines) if each.points],
        [_mark(frame, each) for each in marks],
    ]
    return frame.drawn(id_, "chart", title, words, inner)


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
    """Draw lines over ``[since_ms, until_ms]``, from zero; `show` formats a value.

    `words` describe the chart; `rules` are labelled vertical lines; `top_of` is the scale.
    """
    values = [value for line in lines for run in line.runs for _, value in run]
    frame = _Frame(_SMALL, since_ms, max(until_ms, since_ms + 1), top_of(max(values, default=0.0)))
    named = [line for line in lines if line.name and line.runs]
    ends = [frame.y(line.runs[-1][-1][1]) for line in named]
    ends = name_heights(ends, _SMALL.height - _SMALL.bottom - 10, 28)  # a name and a value
    inner: list[Child] = [
        frame.grid(show),
        _ticks(frame, time_ticks(since_ms, until_ms)),
        [_rule(frame, at, words, _SMALL.top - 8) for at, words in rules if since_ms < at < until_ms],
        [_runs(frame, line) for line in lines],
        [_end(frame, line, show, ends[number]) for number, line in enumerate(named)],
    ]
    return frame.drawn(id_, "times", title, words, inner)


def bytes_label(value: float) -> str:
    """Format bytes without insignificant digits: ``1.5 TiB``, ``512 GiB``."""
    number, _, unit = format_bytes(round(value)).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def dollars_label(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else format_dollars(value)


def time_ticks(since_ms: int, until_ms: int, count_max: int = 5) -> list[tuple[int, str]]:
    """Return labelled ticks at whole hours, days or months (UTC) within a time range."""
    span = until_ms - since_ms
    step = next((step for step in _STEPS if span // step <= count_max), None)
    if step is None:
        return _months(since_ms, until_ms, count_max)
    first = -(-since_ms // step) * step
    return [(at, _moment(at)) for at in range(first, until_ms + 1, step)]


def _moment(at_ms: int) -> str:
    at = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    return at.strftime("%H:%M") if at_ms % DAY_MS else f"{at.day} {at:%b}"


def _months(since_ms: int, until_ms: int, count_max: int) -> list[tuple[int, str]]:
    begin, end = (datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC) for ms in (since_ms, until_ms))
    count = (end.year - begin.year) * 12 + end.month - begin.month
    step = next((step for step in (1, 2, 3, 6, 12, 24, 60) if count / step <= count_max), 120)
    found = []
    for month in range(begin.year * 12 + begin.month, end.year * 12 + end.month):
        if month % step == 0:
            at = datetime.datetime(month // 12, month % 12 + 1, 1, tzinfo=datetime.UTC)
            found.append((int(at.timestamp() * 1000), f"{at:%b %Y}"))
    return found


def thinned(run: Run, since_ms: int, until_ms: int, *, most: bool) -> Run:
    """Keep at most one point per unit of width, the last or the largest; the first and the last stay."""
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

    @property
    def right(self) -> int:
        return self.size.width - self.size.right

    @property
    def floor(self) -> int:
        return self.size.height - self.size.bottom

    def grid(self, show: Callable[[float], str]) -> list[Html]:
        found = []
        for step in range(_TICKS + 1):
            value = self.top * step / _TICKS
            y = self.y(value)
            found.append(tag("line", class_="grid", x1=self.size.left, x2=self.right, y1=y, y2=y))
            found.append(tag("text", show(value), x=self.size.left - 5, y=y + 4, text_anchor="end"))
        return found

    def drawn(self, id_: str, class_: str, title: str, words: str, inner: Child) -> Html:
        return tag(
            "svg", tag("title", title), tag("desc", words), inner, id=id_, class_=class_,
            viewBox=f"0 0 {self.size.width} {self.size.height}", role="img", aria_label=f"{title}. {words}",
        )  # fmt: skip


def _ticks(frame: _Frame, ticks: Sequence[tuple[float, str]]) -> list[Html]:
    found, last = [], -1e9
    for value, words in ticks:
        x, half = frame.x(value), len(words) * _LETTER / 2
        found.append(tag("line", class_="grid", x1=x, x2=x, y1=frame.floor, y2=frame.floor + 4))
        middle = round(min(max(x, half), frame.size.width - half), 1)
        if middle - half >= last + 6:  # labels must not overlap
            found.append(tag("text", words, x=middle, y=frame.floor + 18, text_anchor="middle"))
            last = middle + half
    return found


def _names_of_axes(x_name: str, y_name: str) -> list[Html]:
    size = _WIDE
    middle = (size.left + size.width - size.right) / 2
    return [
        tag("text", x_name, x=middle, y=size.height - 6, text_anchor="middle", class_="faint"),
        tag("text", y_name, x=size.left - 6, y=size.top - 10, class_="faint", text_anchor="middle"),
    ]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _line(frame: _Frame, at: int, line: Line, name_y: float) -> list[Html]:
    points = [(frame.x(x), frame.y(y)) for x, y in line.points]
    drawn = tag("polyline", class_=f"line s{at}", points=" ".join(f"{x},{y}" for x, y in points))
    dots = [_dot(at, x, y) for x, y in points]
    return [drawn, *dots, tag("text", line.name, x=frame.right + 8, y=name_y + 4, class_=f"name s{at}")]


def _dot(at: int, x: float, y: float) -> Html:
    name = f"dot s{at}"
    if at % 3 == 0:
        return tag("circle", class_=name, cx=x, cy=y, r=3.5)
    if at % 3 == 1:
        return tag("rect", class_=name, x=x - 3, y=y - 3, width=6, height=6)
    return tag("path", class_=name, d=f"M{x} {y - 4}l4 7h-8z")


def _mark(frame: _Frame, mark: Mark) -> list[Html]:
    x, y = frame.x(min(max(mark.x, frame.low), frame.high)), frame.y(mark.y)
    is_late = x > frame.right - 60
    words = tag("text", mark.words, x=x + (-9 if is_late else 9), y=y - 9, text_anchor="end" if is_late else "start")
    return [tag("circle", class_="mark", cx=x, cy=y, r=7), words]


def _rule(frame: _Frame, value: float, name: str, label_y: int) -> list[Html]:
    x = frame.x(value)
    is_late = x > (frame.size.left + frame.right) / 2
    line = tag("line", class_="rule", x1=x, x2=x, y1=frame.size.top, y2=frame.floor)
    anchor = "end" if is_late else "start"
    return [line, tag("text", name, x=x + (-4 if is_late else 4), y=label_y, class_="faint", text_anchor=anchor)]


def _runs(frame: _Frame, line: TimeLine) -> list[Html]:
    found = []
    for run in line.runs:
        points = [(frame.x(at), frame.y(value)) for at, value in run]
        if len(points) == 1:
            found.append(tag("circle", class_=f"dot {line.style}", cx=points[0][0], cy=points[0][1], r=2.5))
        else:
            path = " ".join(f"{x:g},{y:g}" for x, y in points)
            found.append(tag("polyline", class_=f"line {line.style}", points=path))
    return found


def _end(frame: _Frame, line: TimeLine, show: Callable[[float], str], y: float) -> list[Html]:
    at_ms, value = line.runs[-1][-1]
    dot = tag("circle", class_=f"dot {line.style}", cx=frame.x(at_ms), cy=frame.y(value), r=3)
    x = frame.right + 7
    name = tag("text", line.name, x=x, y=round(y + 4, 1), class_=f"name {line.style}")
    return [dot, name, tag("text", show(value), x=x, y=round(y + 17, 1), class_="faint")]
