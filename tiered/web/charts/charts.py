"""SVG drawings: bars for table cells, and line charts.

Every drawing has a title and a description in words; a table next to it has the figures. Colours are classes of the
stylesheet and never the only sign: each line has its own marker shape and its name at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tiered.web.html import Child, Html, tag

BAR = 1000  # the width of a bar, in its own units
WIDE, HIGH = 540, 320  # of a line chart
LEFT, RIGHT, TOP, BOTTOM = 60, 112, 24, 46
SERIES_MAX = 6  # number of line classes in the stylesheet
_TICKS = 4
_NAME_HEIGHT = 15


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


def bar(parts: Sequence[tuple[str, float]], most: float) -> Html:
    """Draw parts of a sum in sequence, each (class, value), as a share of `most`.

    The caller puts the figures in words next to it.
    """
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
    """Draw lines over one axis, from zero. `words` describe the chart; `rules` are labelled vertical lines."""
    xs = [x for line in lines for x, _ in line.points] + [x for x, _ in x_ticks]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    top = nice_top(max((y for line in lines for _, y in line.points), default=0.0))
    frame = _Frame(low, max(high, low + 1e-9), top)
    ends = name_heights([frame.y(line.points[-1][1]) for line in lines if line.points])
    inner: list[Child] = [
        _axes(frame, x_ticks, x_name, y_name),
        [_rule(frame, x, name) for x, name in rules if low <= x <= high],
        [_line(frame, at % SERIES_MAX, each, ends[at]) for at, each in enumerate(lines) if each.points],
        [_mark(frame, each) for each in marks],
    ]
    return tag(
        "svg",
        tag("title", title),
        tag("desc", words),
        inner,
        id=id_,
        class_="chart",
        viewBox=f"0 0 {WIDE} {HIGH}",
        role="img",
        aria_label=f"{title}. {words}",
    )


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


@dataclass(frozen=True, slots=True)
class _Frame:
    low: float
    high: float
    top: float

    def x(self, value: float) -> float:
        return round(LEFT + (value - self.low) / (self.high - self.low) * (WIDE - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HIGH - BOTTOM - min(value, self.top) / self.top * (HIGH - TOP - BOTTOM), 1)


def _axes(frame: _Frame, x_ticks: Sequence[tuple[float, str]], x_name: str, y_name: str) -> list[Html]:
    found = []
    for step in range(_TICKS + 1):
        value = frame.top * step / _TICKS
        y = frame.y(value)
        found.append(tag("line", class_="grid", x1=LEFT, x2=WIDE - RIGHT, y1=y, y2=y))
        found.append(tag("text", _figure(value), x=LEFT - 6, y=y + 4, text_anchor="end"))
    last = -1e9
    for value, words in x_ticks:
        x = frame.x(value)
        found.append(tag("line", class_="grid", x1=x, x2=x, y1=HIGH - BOTTOM, y2=HIGH - BOTTOM + 4))
        if x - 3.7 * len(words) >= last + 6:  # labels must not overlap
            found.append(tag("text", words, x=x, y=HIGH - BOTTOM + 18, text_anchor="middle"))
            last = x + 3.7 * len(words)
    middle = (LEFT + WIDE - RIGHT) / 2
    found.append(tag("text", x_name, x=middle, y=HIGH - 6, text_anchor="middle", class_="faint"))
    found.append(tag("text", y_name, x=LEFT - 6, y=TOP - 10, class_="faint", text_anchor="middle"))
    return found


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _line(frame: _Frame, at: int, line: Line, name_y: float) -> list[Html]:
    points = [(frame.x(x), frame.y(y)) for x, y in line.points]
    drawn = tag("polyline", class_=f"line s{at}", points=" ".join(f"{x},{y}" for x, y in points))
    dots = [_dot(at, x, y) for x, y in points]
    return [drawn, *dots, tag("text", line.name, x=WIDE - RIGHT + 8, y=name_y + 4, class_=f"name s{at}")]


def _dot(at: int, x: float, y: float) -> Html:
    """Return a marker shape for each line, for readers that cannot distinguish colours."""
    name = f"dot s{at}"
    if at % 3 == 0:
        return tag("circle", class_=name, cx=x, cy=y, r=3.5)
    if at % 3 == 1:
        return tag("rect", class_=name, x=x - 3, y=y - 3, width=6, height=6)
    return tag("path", class_=name, d=f"M{x} {y - 4}l4 7h-8z")


def _mark(frame: _Frame, mark: Mark) -> list[Html]:
    x, y = frame.x(min(max(mark.x, frame.low), frame.high)), frame.y(mark.y)
    is_late = x > WIDE - RIGHT - 60
    words = tag("text", mark.words, x=x + (-9 if is_late else 9), y=y - 9, text_anchor="end" if is_late else "start")
    return [tag("circle", class_="mark", cx=x, cy=y, r=7), words]


def _rule(frame: _Frame, value: float, name: str) -> list[Html]:
    x = frame.x(value)
    line = tag("line", class_="rule", x1=x, x2=x, y1=TOP, y2=HIGH - BOTTOM)
    return [line, tag("text", name, x=x + 4, y=TOP + 10, class_="faint")]


def name_heights(
    heights: Sequence[float], lowest: float = HIGH - BOTTOM + 4, apart: float = _NAME_HEIGHT
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
