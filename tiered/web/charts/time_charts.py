"""SVG line charts over time, which fit a phone screen and show gaps where data is missing.

The frame is 340 units wide and never shown larger, so text stays readable on a phone and does not grow on a wide
screen. Lines differ in colour, in dash pattern and in the name at their end. A point with no neighbour is a dot. A
table next to the chart has the figures.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tiered.config.units import format_bytes, format_dollars
from tiered.web.charts.charts import name_heights, nice_top
from tiered.web.html import Child, Html, tag

WIDE, HIGH = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 56, 60, 22, 30
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
_TICKS = 4
_LABEL_HIGH = 28  # a name and a value
_LABEL_UNITS = 7  # of a letter, at 12 units high
_STEPS = (HOUR_MS, 3 * HOUR_MS, 6 * HOUR_MS, 12 * HOUR_MS, DAY_MS, 2 * DAY_MS, 7 * DAY_MS, 14 * DAY_MS)
Run = Sequence[tuple[int, float]]  # (ms, value), by time, without a gap


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """One line: runs of points with gaps between them. `style` is a class of the stylesheet."""

    name: str
    style: str
    runs: Sequence[Run]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChart:
    """Lines over ``[since_ms, until_ms]``, from zero; `show` formats a value.

    `words` describe the chart; `rules` are labelled vertical lines.
    """

    id: str
    title: str
    words: str
    lines: Sequence[TimeLine]
    since_ms: int
    until_ms: int
    show: Callable[[float], str]
    binary: bool = False
    rules: Sequence[tuple[int, str]] = field(default=())

    def drawn(self) -> Html:
        """Return the SVG."""
        values = [value for line in self.lines for run in line.runs for _, value in run]
        top = _top(max(values, default=0.0), self.binary)
        frame = _Frame(self.since_ms, max(self.until_ms, self.since_ms + 1), top)
        shown = [line for line in self.lines if line.name and line.runs]
        ends = name_heights([frame.y(line.runs[-1][-1][1]) for line in shown], HIGH - BOTTOM - 10, _LABEL_HIGH)
        inner: list[Child] = [
            _grid(frame, self.show),
            [_tick(frame, at, words) for at, words in time_ticks(self.since_ms, self.until_ms)],
            [_rule(frame, at, words) for at, words in self.rules if self.since_ms < at < self.until_ms],
            [_runs(frame, line) for line in self.lines],
            [_end(frame, line, self.show, ends[number]) for number, line in enumerate(shown)],
        ]
        return tag(
            "svg",
            tag("title", self.title),
            tag("desc", self.words),
            inner,
            id=self.id,
            class_="times",
            viewBox=f"0 0 {WIDE} {HIGH}",
            role="img",
            aria_label=f"{self.title}. {self.words}",
        )


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


def thinned(run: Run, since_ms: int, until_ms: int, *, most: bool) -> Run:
    """Keep at most one point per unit of width: the last or the largest; the first and the last stay."""
    width = max(1, until_ms - since_ms) / (WIDE - LEFT - RIGHT)
    found: list[tuple[int, float]] = []
    for at, value in run:
        if found and len(found) > 1 and int((found[-1][0] - since_ms) / width) == int((at - since_ms) / width):
            found[-1] = (at, max(value, found[-1][1]) if most else value)
        else:
            found.append((at, value))
    return found


@dataclass(frozen=True, slots=True)
class _Frame:
    low: int
    high: int
    top: float

    def x(self, at_ms: float) -> float:
        return round(LEFT + (at_ms - self.low) / (self.high - self.low) * (WIDE - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HIGH - BOTTOM - min(value, self.top) / self.top * (HIGH - TOP - BOTTOM), 1)


def _top(value: float, binary: bool) -> float:
    """Return a round figure above the value, in its display unit."""
    if not binary:
        return nice_top(value)
    unit = 1.0
    while value >= 999.5 * unit:
        unit *= 1024
    return max(unit * nice_top(value / unit), 4.0)


def _grid(frame: _Frame, show: Callable[[float], str]) -> list[Html]:
    found = []
    for step in range(_TICKS + 1):
        value = frame.top * step / _TICKS
        y = frame.y(value)
        found.append(tag("line", class_="grid", x1=LEFT, x2=WIDE - RIGHT, y1=y, y2=y))
        found.append(tag("text", show(value), x=LEFT - 5, y=y + 4, text_anchor="end"))
    return found


def _tick(frame: _Frame, at_ms: int, words: str) -> list[Html]:
    x, y = frame.x(at_ms), HIGH - BOTTOM
    half = len(words) * _LABEL_UNITS / 2
    place = min(max(x, half), WIDE - half)
    return [
        tag("line", class_="grid", x1=x, x2=x, y1=y, y2=y + 4),
        tag("text", words, x=round(place, 1), y=y + 18, text_anchor="middle"),
    ]


def _rule(frame: _Frame, at_ms: int, words: str) -> list[Html]:
    x = frame.x(at_ms)
    is_late = x > (LEFT + WIDE - RIGHT) / 2
    line = tag("line", class_="rule", x1=x, x2=x, y1=TOP, y2=HIGH - BOTTOM)
    anchor = "end" if is_late else "start"
    return [line, tag("text", words, x=x + (-4 if is_late else 4), y=TOP - 8, class_="faint", text_anchor=anchor)]


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
    """Return the end of a line, with its name there and its last value below the name."""
    at_ms, value = line.runs[-1][-1]
    dot = tag("circle", class_=f"dot {line.style}", cx=frame.x(at_ms), cy=frame.y(value), r=3)
    x = WIDE - RIGHT + 7
    name = tag("text", line.name, x=x, y=round(y + 4, 1), class_=f"name {line.style}")
    return [dot, name, tag("text", show(value), x=x, y=round(y + 17, 1), class_="faint")]


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


__all__ = ["Run", "TimeChart", "TimeLine", "bytes_label", "dollars_label", "thinned", "time_ticks"]
